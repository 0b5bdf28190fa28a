"""Tables for notebooks: valid HTML, with the facts, and nothing from users unescaped."""

import html
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.tables import html_table
from ribbit.results.summary import Row, Summary

EVIL = "<script>alert('&')</script>"
TAGS = {"table", "caption", "tr", "td", "p"}
X = np.linspace(-1, 1, 40)[:, None]
FIT = {"batch_size": 10}


class Tables(HTMLParser):
    """Reads what `_repr_html_` gives; raises for tags that are not balanced or not ours."""

    def __init__(self, page):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(page)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS, f"foreign: {tag}"
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open[-1:] == [tag], f"not balanced: {tag}"
        self.open.pop()

    def handle_data(self, data):
        assert self.open, f"outside of a tag: {data}"
        self.texts.append(data)


def texts(result):
    return Tables(result._repr_html_()).texts


def posterior(model=None, x=X, **options):
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3), **options}
    model = rb.mlp(1, (5,), 1) if model is None else model
    return rb.Posterior(model, x, 2 * X, **options)


def sampled(**options):
    hmc = rb.HMC(posterior(), step_size=0.01, num_leapfrog_steps=3)
    return hmc.sample(5, warmup=2, chains=2, progress=False, **options)


def fits():
    dropout = rb.Model([rb.Dense(8), rb.Dropout(0.1), rb.Dense(1)], input_shape=(1,))
    yield rb.BBB(posterior()), ["BBB", "ELBO per row"], 16
    yield rb.MCDropout(posterior(dropout), **FIT), ["MCDropout", "objective per row"], 25
    yield rb.DeepEnsemble(posterior(), members=3, **FIT), ["DeepEnsemble", "objective per row"], 16
    yield rb.SWAG(posterior(), **FIT), ["SWAG", "objective per row"], 16
    yield rb.LaplaceApproximation(posterior(), **FIT), ["LaplaceApproximation", "log evidence"], 16


@pytest.mark.parametrize(
    "page",
    ["<table><tr></table>", "<table>", "</p>", "<b>x</b>", "x", f"<p>{EVIL}</p>"],
)
def test_the_parser_refuses_wrong_pages(page):
    with pytest.raises(AssertionError):
        Tables(page)


def test_a_table():
    found = html_table("a < b", [("c & d", EVIL), ("e",)], EVIL)
    assert Tables(found).texts == ["a < b", "c & d", EVIL, "e", EVIL]
    assert html.escape(EVIL) in found
    assert "<p>" not in html_table("", [])


def test_summary():
    found = Summary(EVIL, (Row("one", EVIL, "<= 2", False),), None, "what to do")
    assert texts(found) == [EVIL, "one", EVIL, "want <= 2  <- no", "what to do"]


def test_draws():
    draws = sampled()
    found = texts(draws)
    facts = dict(zip(found[1::2], found[2::2], strict=True))
    assert facts["sampler"] == "HMC"
    assert facts["draws"] == "2 chains x 5 draws x 16 parameters"
    assert facts["dtype"] == "float32"
    assert facts["acceptance"] == f"{draws.stats['acceptance_rate'].mean():.2f}"
    assert facts["divergences"] == str(draws.stats["diverging"].sum())
    assert facts["complete"] == "yes"
    assert facts["seconds"] == f"{draws.seconds:.1f}"
    cut = replace(draws, complete=False, seconds=None, settings={"sampler": EVIL})
    assert {EVIL, "no"} <= set(texts(cut))
    assert "seconds" not in texts(cut)
    assert "2 chains x 5 draws x 16 parameters, positions not kept" in texts(
        sampled(save_draws=False)
    )


def test_draws_on_the_disk_are_not_read(tmp_path, monkeypatch):
    shown = texts(sampled(store=rb.Store(tmp_path / "run", dtype="float16")))
    draws = rb.load(tmp_path / "run")

    def read(*_):
        raise AssertionError("read")

    monkeypatch.setattr("ribbit.results.lazy.RoundedArray.__getitem__", read)
    assert texts(draws) == shown
    with pytest.raises(AssertionError, match="read"):
        np.asarray(draws.positions)


@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")
def test_fits():
    for method, facts, dim in fits():
        fit = method.fit(20, progress=False)
        found = texts(fit)
        assert found[0] == repr(fit)
        assert f"{dim} parameters" in found[0]
        assert found[found.index("epochs") + 1] == str(fit.settings["num_epochs"])
        assert set(facts) <= set(found)
        assert found[-1] == fit.summary().message
        settings = {**fit.settings, "sampler": EVIL, "schedule": EVIL}
        assert texts(replace(fit, settings=settings)).count(EVIL) == 2
    assert "not known" in texts(rb.MeanField(np.zeros(3), np.ones(3)))


def test_posterior():
    found = texts(posterior(dtype=np.float64))
    assert found[0] == "Posterior"
    shown = dict(zip(found[1:11:2], found[2:12:2], strict=True))
    assert shown == {
        "rows": "40",
        "parameters": "16",
        "prior": repr(rb.Normal(1.0)),
        "likelihood": repr(rb.Gaussian(0.3)),
        "dtype": "float64",
    }
    assert found[11:] == texts(rb.mlp(1, (5,), 1))
    less = posterior(likelihood=rb.Gaussian(), marginalize="last_layer")
    assert "11 of 17, the last layer integrated out" in texts(less)


def test_columns_of_a_frame():
    pd = pytest.importorskip("pandas")
    found = texts(posterior(rb.mlp(2, (5,), 1), pd.DataFrame({"age": X[:, 0], EVIL: X[:, 0]})))
    assert found[found.index("columns") + 1] == f"age, {EVIL}"


def test_model():
    assert texts(rb.mlp(1, (5,), 1, activation="tanh")) == [
        *("Model", "0", repr(rb.Dense(5)), "weight (1, 5), bias (5,)", "10"),
        *("1", repr(rb.Activation("tanh"))),
        *("2", repr(rb.Dense(1)), "weight (5, 1), bias (1,)", "6"),
        "16 parameters, inputs (1,), outputs (1,)",
    ]
    model = rb.resnet20_frn()
    found = texts(model)
    assert f"{model.dim:,} parameters, inputs (32, 32, 3), outputs (10,)" == found[-1]
    numbers = [int(text.replace(",", "")) for text in found if text.replace(",", "").isdigit()]
    places = range(len(model.layers))
    assert sum(numbers) == model.dim + sum(places)
    assert any("shortcut.0.weight (1, 1, 16, 32)" in text for text in found)
