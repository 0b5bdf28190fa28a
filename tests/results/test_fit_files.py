"""Fits travel through files: the same predictions, and they go on bit for bit."""

import json

import numpy as np
import pytest

import ribbit as rb
from tests.support.targets import same

RNG = np.random.default_rng(4)
X = RNG.normal(size=(40, 2))
Y = X[:, 0] + 0.3 * RNG.normal(size=40)


def target(*, dropout=False):
    layers = [rb.Dense(5), rb.Activation("tanh"), rb.Dense(1)]
    if dropout:
        layers.insert(2, rb.Dropout(0.2))
    model = rb.Model(layers, input_shape=(2,))
    return rb.Posterior(model, X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())


def trainer(name):
    if name == "BBB":
        return rb.BBB(target(), batch_size=10, kl="sampled")
    if name == "DeepEnsemble":
        return rb.DeepEnsemble(target(), members=3, batch_size=10)
    if name == "SWAG":
        return rb.SWAG(target(), members=2, batch_size=10, max_rank=2)
    if name == "LaplaceApproximation":
        return rb.LaplaceApproximation(target(), batch_size=10, tune_prior="shared")
    rate = "concrete" if name == "concrete" else None
    return rb.MCDropout(target(dropout=True), rate=rate, batch_size=10)


def damage(folder, change):
    """Write the file "fit" anew as "other", with its header and arrays changed."""
    with np.load(folder / "fit") as found:
        arrays = {name: found[name] for name in found.files}
    header = json.loads(arrays.pop("header").tobytes())
    change(header, arrays)
    data = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with open(folder / "other", "wb") as file:
        np.savez(file, header=data, **arrays)


NAMES = ["BBB", "DeepEnsemble", "MCDropout", "concrete", "SWAG", "LaplaceApproximation"]
STATE = ("position", "first_moment", "second_moment")


# a few epochs, whose objective rises: what they converge to does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_fit_comes_back(name, tmp_path):
    fit = trainer(name).fit(3, seed=5, progress=False)
    fit.save(tmp_path / "fit")
    back = rb.load(tmp_path / "fit")
    assert type(back) is type(fit)
    assert repr(back) == repr(fit)
    assert back.settings == fit.settings
    assert set(back.history) == set(fit.history)
    for key, values in fit.history.items():
        assert same(back.history[key], values)
    new = RNG.normal(size=(7, 2))
    assert same(back.predict(new).mean, fit.predict(new).mean)
    assert same(back.draws(4).predict(new).std, fit.draws(4).predict(new).std)
    assert back.predict(new).mean.shape == (7,)
    assert same(back._starts(None, 1), fit._starts(None, 1))
    assert back.summary().text == fit.summary().text


# a few epochs, whose objective rises: what they converge to does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_fit_from_a_file_goes_on(name, tmp_path):
    """As one that was not stopped; and starts a sampler."""
    (first, rest, both), options = (2, 3, 5), [{}, {}, {}]
    if name == "SWAG":  # in the middle of its collection
        first, rest, both = 2, 0, 2
        options = [{"swag_epochs": epochs} for epochs in (3, 4, 7)]
    fit = trainer(name).fit(first, seed=5, progress=False, **options[0])
    fit.save(tmp_path / "fit")
    part = rb.load(tmp_path / "fit")
    more = trainer(name).fit(rest, resume=part, progress=False, **options[1])
    whole = trainer(name).fit(both, seed=5, progress=False, **options[2])
    if name == "BBB":
        assert same(more.mean, whole.mean)
        assert same(more.elbo, whole.elbo)
    else:
        held = {
            "SWAG": ("mean", "squares", "deviations"),
            "LaplaceApproximation": ("mean", "factor"),
        }.get(name, ("theta",))
        for array in held:
            assert same(getattr(more, array), getattr(whole, array))
        for moment in STATE:
            assert same(getattr(more.state, moment), getattr(whole.state, moment))
    sgld = rb.SGLD(target(), step_size=1e-6, batch_size=10)
    back = rb.load(tmp_path / "fit")
    assert sgld.sample(2, warmup=1, chains=2, init=back, progress=False).complete


LAPLACE_DAMAGES = {
    "factor is not upper triangular": lambda h, a: a.update(factor=a["factor"].T),
    "positive diagonal": lambda h, a: a.update(factor=-a["factor"]),
    r"factor has shape \(3, 22\)": lambda h, a: a.update(factor=a["factor"][:3]),
    "factor is not finite": lambda h, a: a.update(factor=a["factor"] + np.nan),
    "mean is int64": lambda h, a: a.update(mean=a["mean"].astype(np.int64)),
    "a factor of 22 from parameter 1 of 22 on": lambda h, a: h["curvature"].update(first=1),
    "curvature/first is not a whole number": lambda h, a: h["curvature"].update(first=-1),
    "curvature/log_density is no number": lambda h, a: h["curvature"].update(log_density="1"),
    "tuning/log_evidence is float32": lambda h, a: a.update(
        {"tuning/log_evidence": a["tuning/log_evidence"].astype(np.float32)}
    ),
}


# three epochs: what they converge to does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
@pytest.mark.parametrize("text", LAPLACE_DAMAGES)
def test_curvatures_that_no_fit_can_have_are_refused(text, tmp_path):
    fit = trainer("LaplaceApproximation").fit(3, progress=False)
    fit.save(tmp_path / "fit")
    damage(tmp_path, LAPLACE_DAMAGES[text])
    with pytest.raises(rb.errors.DataError, match=text):
        rb.load(tmp_path / "other")


# three epochs: what they converge to does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
def test_a_laplace_fit_comes_back_whole(tmp_path):
    fit = trainer("LaplaceApproximation").fit(3, progress=False)
    fit.save(tmp_path / "fit")
    back = rb.load(tmp_path / "fit")
    assert back.log_evidence == fit.log_evidence
    assert set(back.tuning) == set(fit.tuning)
    assert same(back.tuning["log_evidence"], fit.tuning["log_evidence"])
    assert same(back.covariance, fit.covariance)
    new = RNG.normal(size=(7, 2))
    assert same(back.predict(new, linearized=False).std, fit.predict(new, linearized=False).std)
    given = rb.LaplaceApproximation(target(), batch_size=10).fit(0, init=fit, progress=False)
    given.save(tmp_path / "given")
    assert rb.load(tmp_path / "given").state is None


def test_a_fit_made_by_hand_has_no_target(tmp_path):
    fit = rb.MeanField(np.zeros(3), np.ones(3))
    fit.save(tmp_path / "fit")
    back = rb.load(tmp_path / "fit")
    assert same(back.sample(2), fit.sample(2))
    assert back.state is None
    assert back.predictive is None


def test_draws_and_fits_are_told_apart(tmp_path):
    fit = trainer("BBB").fit(1, progress=False)
    fit.save(tmp_path / "fit")
    fit.draws(2).save(tmp_path / "draws")
    assert isinstance(rb.load(tmp_path / "fit"), rb.MeanField)
    assert isinstance(rb.load(tmp_path / "draws"), rb.Draws)
    with pytest.raises(FileNotFoundError):
        rb.load(tmp_path / "nothing")
    data = (tmp_path / "fit").read_bytes()
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    with pytest.raises(rb.errors.DataError, match=r"\[load\] .*cut is damaged or foreign"):
        rb.load(tmp_path / "cut")
    with pytest.raises(TypeError, match=r"\[EnsembleFit\.save\] expected a path"):
        trainer("DeepEnsemble").fit(1, progress=False).save(3)


DAMAGES = {
    "squares is not not negative": lambda h, a: a.update(squares=-1.0 - a["squares"]),
    r"squares has shape \(2, 4\)": lambda h, a: a.update(squares=a["squares"][:, :4]),
    "mean is float32": lambda h, a: a.update(mean=a["mean"].astype(np.float32)),
    "deviations is not finite": lambda h, a: a.update(deviations=a["deviations"] + np.nan),
    r"deviations has shape \(1, 2": lambda h, a: a.update(deviations=a["deviations"][:1]),
    "2 deviations of 1 iterates": lambda h, a: h["collected"].update(count=1),
    "1 deviations of 3 iterates": lambda h, a: a.update(deviations=a["deviations"][:, :1]),
    "collected/count is not a whole number": lambda h, a: h["collected"].update(count="3"),
    "collected/first_step is not a whole number": lambda h, a: h["collected"].update(
        first_step=None
    ),
    "state/position is float64": lambda h, a: a.update(
        {k: v.astype(np.float64) for k, v in a.items() if k in {f"state/{s}" for s in STATE}}
    ),
}


@pytest.mark.parametrize("text", DAMAGES)
def test_moments_that_no_fit_can_have_are_refused(text, tmp_path):
    fit = trainer("SWAG").fit(1, swag_epochs=3, progress=False)
    fit.save(tmp_path / "fit")
    damage(tmp_path, DAMAGES[text])
    with pytest.raises(rb.errors.DataError, match=text):
        rb.load(tmp_path / "other")
