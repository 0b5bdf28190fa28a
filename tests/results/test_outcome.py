"""One outcome: each check of the table finds what it is for, and leaves the rest alone.

`test_outcome_runs.py` has whole runs. Here draws are planted, so that one thing is wrong at a time.
"""

import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import ConvergenceWarning, FitWarning, PrecisionWarning, RibbitWarning
from ribbit.results.outcome import (
    Evidence,
    far_below,
    outcome_of,
    summary_of_fit,
    superchains_of,
)
from ribbit.results.summary import CONVERGED, NOT, PREDICTIONS, SHORT, Row, Summary
from tests.support.outcome_runs import curve, funnel, line, modes, normal, xor
from tests.support.targets import Gaussian, Line

X = np.linspace(-2.0, 2.0, 40)[:, None]
FIXED = {"step_size": 0.5, "num_leapfrog_steps": 4}
APART = np.array([[-10.0], [10.0], [-9.5], [9.5]])  # starts in both of `modes(10.0)`


def caught(call):
    """What a call returns, and the warnings of the library."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        value = call()
    return value, [w for w in found if issubclass(w.category, RibbitWarning)]


def planted(positions, *, target=None, settings=None, **stats):
    """Draws (C, D, P) with these statistics (C, D)."""
    return rb.Draws(positions, stats, True, None, settings or {}, predictive=target)


def independent(rng, draws=400, chains=4, dim=1):
    return rng.normal(size=(chains, draws, dim))


def row_of(summary, name):
    return next(row for row in summary.rows if row.name == name)


# ---- what is left alone


def test_one_base_of_all_warnings():
    for kind in (ConvergenceWarning, FitWarning, PrecisionWarning, rb.errors.ScaleWarning):
        assert issubclass(kind, RibbitWarning)
        assert issubclass(kind, UserWarning)


def test_chains_that_converge_are_left_alone():
    """No warning; each summary has every row, and says what agreement cannot show."""
    draws, found = caught(lambda: rb.HMC(line()[0]).sample(400, chains=4, seed=1, progress=False))
    assert found == []
    for summary in (draws.summary(), draws.summary(line()[0].x)):
        assert (summary.outcome, summary.converged) == (CONVERGED, True)
        assert row_of(summary, "R-hat of the predictions").good is True
        assert row_of(summary, "R-hat of the log density").good is None  # predictions decide
        for name in ("divergent transitions", "E-BFMI per chain", "acceptance", "seconds"):
            row_of(summary, name)
        assert all(row.name in summary.text for row in summary.rows)
        assert summary.message.startswith("Converged: R-hat is at most 1.0")
        assert "cannot show modes that no chain visited" in summary.message
        assert not any(row.good is False for row in summary.rows)


def test_noise_of_short_runs_is_no_finding(rng):
    """2,000 sets of 4 chains that are independent, at each length, are never "not converged".

    The limit is the 99.9 % quantile for the largest of all quantities, so at most 2 of 2,000 are
    expected above it; 15 or more have probability 1e-8. Control: R-hat is above 1.05 in many.
    """
    for draws, many in ((10, 0.3), (20, 0.1), (60, 0.0)):
        groups = {"parameters": independent(rng, draws, dim=2000)}
        found = Evidence(groups, {}, {})
        assert found.chance > 1.05 or draws == 60
        alone = Evidence({"parameters": groups["parameters"][:, :, :1]}, {}, {}).chance
        assert (found.rhat["parameters"] > max(alone, 1.05)).sum() < 15
        assert (found.rhat["parameters"] > 1.05).mean() >= many
        assert outcome_of(found) == SHORT if draws < 60 else outcome_of(found) != NOT


def test_many_parameters_that_agree_are_left_alone():
    """500 normals: the law of the largest R-hat of all that are looked at."""
    start = np.random.default_rng(4).normal(size=(4, 500))
    hmc = rb.HMC(Gaussian(np.ones(500)), step_size=0.25, num_leapfrog_steps=8)
    draws, found = caught(lambda: hmc.sample(400, warmup=0, init=start, progress=False))
    assert found == []
    assert draws.summary().outcome == CONVERGED


# ---- chains that disagree


def test_modes_are_warned_of_once_at_the_line_of_the_user():
    hmc = rb.HMC(modes(10.0), **FIXED)
    draws, found = caught(lambda: hmc.sample(100, warmup=20, init=APART, progress=False))
    assert [w.category for w in found] == [ConvergenceWarning]
    assert str(found[0].message) == f"[HMC.sample] {draws.summary().message}"
    assert found[0].filename == __file__
    assert draws.summary().outcome == NOT
    # fewer than ten draws are a trial: the summary speaks, sample() does not
    few, found = caught(lambda: hmc.sample(9, warmup=0, init=APART, progress=False))
    assert found == []
    assert few.summary().converged is not True


def test_parameters_decide_if_there_are_no_predictions(tmp_path):
    """Modes of one height: the log density agrees, the parameters do not."""
    hmc = rb.HMC(modes(10.0, 2), **FIXED)
    options = {"warmup": 20, "seed": 1, "progress": False}
    draws, found = caught(lambda: hmc.sample(400, init=APART * np.ones(2), **options))
    assert len(found) == 1
    assert "about the parameters" in str(found[0].message)
    draws.save(tmp_path / "draws")
    for summary in (draws.summary(), rb.load(tmp_path / "draws").summary()):
        assert summary.outcome == NOT
        assert row_of(summary, "R-hat of the parameters").good is False
        assert row_of(summary, "R-hat of the log density").good is True
    # the control: one mode
    draws, found = caught(lambda: hmc.sample(400, init=np.abs(APART) * np.ones(2), **options))
    assert found == []
    assert draws.summary().outcome == CONVERGED


def test_predictions_decide_while_sampling():
    """A label switch: two chains at +w, two at -w, one log density; only predictions tell."""

    class Mirror(Line):
        def value_and_grad(self, theta, rows=None):
            centre = np.where(theta > 0, 20.0, -20.0)
            return -0.5 * np.sum((theta - centre) ** 2, axis=1), centre - theta

    hmc = rb.HMC(Mirror([1.0]), step_size=0.5, num_leapfrog_steps=5, step_size_jitter=0.3)
    for keep in (True, False):
        draws, found = caught(
            lambda keep=keep: hmc.sample(
                200, warmup=20, init=2 * APART, predict_at=X, save_draws=keep, progress=False
            )
        )
        assert len(found) == 1
        assert draws.summary().outcome == NOT


def test_chains_that_agree_at_the_rows_alone_have_not_converged():
    """XOR: all chains fit the four corners, and not the same surface (seed 0: R-hat 1.5)."""
    target = xor()
    draws, found = caught(lambda: rb.HMC(target).sample(200, warmup=200, seed=0, progress=False))
    assert draws.summary().outcome == NOT
    assert len(found) == 1
    corners = np.asarray(draws.predict(target.x, keep=True).samples).reshape(4, 200, -1)
    assert rb.diagnostics.rhat(corners).max() < 1.05  # the control: the rows agree


def test_weights_of_a_network_may_disagree(rng):
    """Weights have an R-hat of 2 and predictions of 1: fine, and said."""
    draws, found = caught(lambda: rb.HMC(curve(2)).sample(500, seed=1, progress=False))
    summary = draws.summary(weights=True)
    assert found == []
    assert (summary.outcome, summary.converged) == (PREDICTIONS, True)
    assert "use the predictions, not single weights" in summary.message
    assert row_of(summary, "R-hat of the weights").good is None
    layers = [row.name for row in summary.rows if row.name.startswith("layer ")]
    assert layers == ["layer 0.weight", "layer 0.bias", "layer 2.weight", "layer 2.bias"]
    assert not any(row.name.startswith("layer ") for row in draws.summary().rows)


def test_no_outcome_is_a_plain_converged_next_to_a_failed_row(rng):
    """Planted faults of one kind each; the control has none."""
    fine = independent(rng)
    energy = rng.normal(size=(4, 400))
    slow = np.cumsum(rng.normal(size=(4, 400)), axis=1)
    stuck = fine.copy()
    stuck[2] = 0.1
    trend = fine + 2.0 * np.linspace(-1.0, 1.0, 400)[:, None]
    infinite, missing = fine.copy(), fine.copy()
    infinite[1, 7], missing[3] = np.inf, np.nan
    diverging = np.zeros((4, 400), bool)
    diverging[0, :8] = True  # 2 %
    for positions, stats, outcome in (
        (fine, {"energy": energy, "diverging": diverging & False}, CONVERGED),
        (fine, {"diverging": diverging}, NOT),
        (fine, {"energy": slow}, NOT),
        (fine + np.arange(4.0)[:, None, None], {}, NOT),
        (fine * np.array([0.2, 1.0, 1.0, 1.0])[:, None, None], {}, NOT),
        (trend, {}, NOT),
        (trend[:1], {}, NOT),
        (stuck, {}, NOT),
        (np.ones((4, 400, 1)), {}, NOT),
        (infinite, {}, NOT),
        (missing, {}, NOT),
        (fine[:, :3], {}, SHORT),
        (fine[:, :18], {}, SHORT),
        (fine[:1, :60], {}, SHORT),
        (fine[:1], {}, CONVERGED),
    ):
        summary = planted(positions, **stats).summary()
        assert summary.outcome == outcome, summary
        failed = any(row.good is False for row in summary.rows)
        assert failed is (summary.converged is not True), summary
        assert summary.message.lower().startswith(outcome)
        assert not re.search(r"\bnan\b", summary.message)


def test_what_a_run_without_a_draw_says():
    """What a look at a run says during warmup, when statistics are (C, 0)."""
    summary = planted(np.zeros((4, 0, 3)), lp=np.zeros((4, 0))).summary()
    assert summary.outcome == SHORT
    assert "nan" not in summary.message


def drifting(rng, start, chains=4, draws=800):
    """Draws of N(0, 1) that come from `start` sds away in some 40 steps, side by side."""
    way = start * np.exp(-np.arange(draws) / 40.0)
    position = way + rng.normal(size=(chains, draws))
    lp = -0.5 * position**2
    energy = rng.gamma(0.5, size=lp.shape) - lp
    return planted(position[:, :, None], lp=lp, energy=energy)


def test_chains_that_drift_in_side_by_side_have_not_converged(rng):
    """R-hat lets them pass: 1.04, with an sd of 2.6 for 1. E-BFMI does not; the control is no way.

    Planted: what NUTS did on columns whose sd is 1,000 (an sd 3 times too large, R-hat 1.04).
    """
    far = drifting(rng, 16.0)
    assert far.positions.std() > 2.0
    assert far.summary().outcome == NOT
    assert row_of(far.summary(), "E-BFMI per chain").good is False
    assert drifting(rng, 0.0).summary().outcome == CONVERGED


def test_divergences_between_kept_draws_count():
    """Neal's funnel: of a thinned run every transition counts, not every fifth."""
    start = np.zeros((4, 2)) + 0.1 * np.arange(4.0)[:, None]
    hmc = rb.HMC(funnel(2), step_size=0.5, num_leapfrog_steps=9)
    draws, found = caught(lambda: hmc.sample(100, warmup=0, thin=5, init=start, progress=False))
    assert len(found) == 1
    assert "of the transitions of a chain diverged" in str(found[0].message)
    assert row_of(draws.summary(), "divergent transitions").value.startswith(
        str(int(draws.stats["divergences"].sum()))
    )
    assert draws.stats["divergences"].sum() > draws.stats["diverging"].sum()


def test_a_density_that_is_nan_decides_and_says_so():
    target = rb.CallableDensity(lambda q: (np.nan if q[0] > 1.0 else -0.5 * q @ q, -q), 2)
    draws, found = caught(
        lambda: rb.MCLMC(target).sample(
            100, warmup=200, thin=5, chains=4, init=np.zeros(2), progress=False
        )
    )
    assert len(found) == 1
    assert "NaN" in str(found[0].message)
    assert draws.summary().outcome == NOT


# ---- effective draws


def test_effective_draws_decide_between_too_short_and_rough(rng):
    """4 x 18, 4 x 70 and 4 x 400 independent draws: about 70, 250 and 1,600 effective ones."""
    texts = []
    for draws, outcome in ((18, SHORT), (70, CONVERGED), (400, CONVERGED)):
        summary = planted(independent(rng, draws)).summary()
        assert summary.outcome == outcome
        texts.append(summary.message)
    assert "effective draws" in texts[0]
    assert "ends of a 90 % interval are rough" in texts[1]
    assert "rough" not in texts[2]


def test_antithetic_draws_are_counted_by_their_widths(rng):
    """AR(1) of -0.9: means are known as from thousands of draws, widths as from a tenth of them."""
    noise = rng.normal(size=(4, 300))
    q = np.empty_like(noise)
    q[:, 0] = noise[:, 0]
    for i in range(1, 300):
        q[:, i] = -0.98 * q[:, i - 1] + np.sqrt(1 - 0.98**2) * noise[:, i]
    draws = planted(q[:, :, None])
    assert rb.diagnostics.ess(draws.positions).min() > 1200
    assert draws.summary().outcome == SHORT
    assert planted(independent(rng, 300)).summary().outcome == CONVERGED  # the control


# ---- what agreement cannot show


def test_one_start_and_one_chain_are_named():
    """A density gets a word about it; for a network nothing is known of other modes."""
    options = {"seed": 0, "progress": False}
    one = rb.HMC(normal([1.0])).sample(500, chains=4, init=np.array([0.5]), **options).summary()
    own = rb.HMC(normal([1.0])).sample(500, chains=4, **options).summary()
    assert one.outcome == own.outcome == CONVERGED
    assert "all chains share one start" in one.message
    assert "start" not in own.message
    start = curve().init(seed=1)
    network = rb.HMC(curve()).sample(500, chains=4, init=start, **options).summary()
    assert network.outcome == SHORT
    assert "share a start" in network.message
    single = rb.HMC(curve()).sample(1000, chains=1, **options).summary()
    assert single.outcome == SHORT
    assert "single chain" in single.message


def test_until_refuses_chains_that_can_show_nothing():
    """A rule that no number of draws can meet is an error before the run."""
    for call in ({"chains": 1}, {"chains": 4, "init": curve().init(seed=1)}):
        with pytest.raises(ValueError, match=r"^\[HMC.sample\] until= cannot be met"):
            rb.HMC(curve()).sample(
                until=rb.Converged(), max_draws=50, seed=0, progress=False, **call
            )


# ---- chains far below the others, and chains that share starts


def test_a_chain_far_below_is_found(rng):
    lp = 300.0 + 60.0 * rng.normal(size=(10, 1)) + 20.0 * rng.normal(size=(10, 50))
    assert far_below(lp).size == 0
    lp[7] -= 4000.0
    lp[2] -= 9000.0
    assert far_below(lp).tolist() == [2, 7]
    assert far_below(-lp).size == 0  # far above is no fault


def test_agreeing_chains_are_compared_with_their_own_spread(rng):
    lp = rng.normal(size=(8, 200))
    assert far_below(lp).size == 0
    lp[3] -= 8.0
    assert far_below(lp).size == 0
    lp[3] -= 8.0
    assert far_below(lp).tolist() == [3]


@pytest.mark.parametrize("chains", [4, 5, 7, 8, 10])
def test_modes_of_one_law_are_no_finding(rng, chains):
    """Means from one normal law, ten times as wide as a chain: under 1 % of runs are named."""
    lp = 10.0 * rng.normal(size=(400, chains, 1)) + rng.normal(size=(400, chains, 20))
    found = sum(far_below(one).size > 0 for one in lp)
    assert found <= 20  # at a share of 1 %: 21 or more of 400 with probability 1e-9


def test_few_chains_or_no_density_say_nothing():
    assert far_below(np.array([[0.0, 1.0], [0.0, 1.0], [-1e9, -1e9]])).size == 0
    assert far_below(np.full((5, 9), np.nan)).size == 0
    assert far_below(np.full((5, 9), -np.inf)).size == 0
    assert far_below(np.zeros((5, 1))).size == 0


class Wells(Gaussian):
    """Two wells; the left one is 5,000 deeper in log density."""

    def value_and_grad(self, theta, rows=None):
        left = theta[:, 0] < 0
        centre = np.where(left[:, None], -20.0, 20.0)
        lp = -0.5 * np.sum((theta - centre) ** 2, axis=1) - 5000.0 * left
        return lp, centre - theta


def wells(start, **options):
    hmc = rb.HMC(Wells([1.0]), step_size=0.5, num_leapfrog_steps=5, step_size_jitter=0.3)
    draws, found = caught(
        lambda: hmc.sample(200, warmup=20, init=start, seed=1, progress=False, **options)
    )
    return draws, " ".join(str(w.message) for w in found)


def test_a_chain_in_a_worse_mode_is_named_by_its_id(tmp_path):
    start = np.array([[20.0], [20.1], [-20.0], [20.3], [20.4]])
    draws, warned = wells(start, chains=[3, 5, 8, 9, 11])
    draws.save(tmp_path / "draws")
    for summary in (draws.summary(), rb.load(tmp_path / "draws").summary()):
        assert summary.outcome == NOT
        assert re.search("far lower in chain 8 than in the others", summary.message)
        assert row_of(summary, "chains far below the others").good is False
    assert summary.message in warned
    fine, warned = wells(np.abs(start))  # the control
    assert "far below" not in fine.summary().text
    assert warned == ""


def test_chains_that_share_starts_have_nested_rhat(tmp_path):
    draws, warned = wells(np.array([[20.0], [-20.0], [20.0], [-20.0]]))
    assert draws.settings["start"] == {"superchains": [0, 1, 0, 1]}
    assert "[HMC.sample] Not converged: " in warned
    draws.save(tmp_path / "draws")
    summary = draws.summary()
    assert summary.outcome == NOT
    assert summary.rows[0].name == "nested R-hat of the parameters"
    assert rb.load(tmp_path / "draws").summary().rows == summary.rows
    # independent draws pass: two starts of one well, four chains each
    fine, warned = wells(np.repeat([[19.0], [21.0]], 4, axis=0))
    assert warned == ""
    assert fine.summary().message.startswith("Converged: nested R-hat is at most")
    own, _ = wells(np.array([[19.0], [20.0], [21.0], [22.0]]))
    assert "start" not in own.settings
    assert own.summary().rows[0].name == "R-hat of the parameters"


@pytest.mark.parametrize(
    "start", [None, 3, [0], {"superchains": [0]}, {"superchains": "ab"}, {"superchains": [0, "b"]}]
)
def test_settings_that_say_nothing_of_starts(start):
    assert superchains_of({"start": start}, 2) is None
    assert superchains_of({"start": {"superchains": [4, 1]}}, 2).tolist() == [1, 0]


# ---- words


def test_samplers_that_reject_nothing_are_called_biased():
    """A line, known noise: with this step one sd is 17 % too large, and R-hat is content.

    10,000 effective squares or more give an sd a standard error of 0.7 %, and what is asked lies
    seven of them away or more (false 1e-11). Control: HMC has no such sentence, and no such sds.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    y = x[:, 0] + 0.3 * rng.normal(size=60)
    target = rb.Posterior(rb.mlp(2, (), 1), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
    inputs = np.column_stack([x, np.ones(60)])
    exact = np.sqrt(np.diag(np.linalg.inv(inputs.T @ inputs / 0.09 + np.eye(3))))
    options = {"warmup": 500, "progress": False}
    coarse = rb.SGLD(target, step_size=1e-3, batch_size=20).sample(6000, thin=20, **options)
    right = rb.HMC(target).sample(6000, **options)
    assert (coarse.positions.reshape(-1, 3).std(axis=0) / exact).max() > 1.1
    assert abs(right.positions.reshape(-1, 3).std(axis=0) / exact - 1.0).max() < 0.05
    assert coarse.summary().outcome == right.summary().outcome == CONVERGED
    assert "have a bias of unknown size" in coarse.summary().message
    assert "bias" not in right.summary().message


@pytest.mark.parametrize(
    ("method", "epochs"),
    [("hmc", None), ("ensemble", 3), ("ensemble", 40), ("bbb", 3), ("bbb", 150)],
)
def test_advice_speaks_to_users_of_estimators(method, epochs):
    """Of a run that is too short: arguments of the estimator, and nothing of samplers."""
    from ribbit.sklearn import BNNRegressor

    short = {"draws": 40, "warmup": 5} if method == "hmc" else {"epochs": epochs}
    model = BNNRegressor(hidden=(5,), method=method, random_state=0, **short)
    _, found = caught(lambda: model.fit(X, np.sin(X[:, 0])))
    assert model.converged_ is not True
    for text in (model.summary_.message, *(str(w.message) for w in found)):
        assert not re.search(r"resume=|init=|rb\.|step_size|HMC|fit\.", text), text
    assert all(str(w.message).startswith("[BNNRegressor.fit] ") for w in found)
    assert all(w.filename == __file__ for w in found)


def test_estimators_pass_on_warnings_that_are_not_of_convergence():
    """y without noise: HMC warns of it while it samples."""
    from ribbit.sklearn import BNNRegressor

    model = BNNRegressor(hidden=(5,), method="nuts", max_seconds=0.01, random_state=0)
    with pytest.raises(ValueError, match="expected a draw within max_seconds"):
        caught(lambda: model.fit(X, np.sin(X[:, 0])))


def test_forms_of_a_table(capsys):
    rows = Row("one", "1", "<= 2", True), Row("two", "3", "<= 2", False)
    summary = Summary("A < B", rows, SHORT, "v")
    assert summary.converged is None
    print(summary)
    printed = capsys.readouterr().out
    assert printed == summary.text + "\n"
    assert "\x1b" not in printed
    assert "  two  3  want <= 2  <- no" in printed
    assert "A &lt; B" in summary._repr_html_()
    rich = pytest.importorskip("rich.console")
    rich.Console(width=80, force_terminal=True).print(summary)
    assert "\x1b[" in capsys.readouterr().out


def test_summaries_travel_through_files_and_folders(tmp_path):
    """A file and a folder of a run say what the draws said."""
    hmc = rb.HMC(curve(2))
    draws = hmc.sample(300, chains=4, seed=0, progress=False, store=tmp_path / "run")
    assert draws.seconds > 0
    assert draws.summary().outcome == PREDICTIONS
    draws.save(tmp_path / "draws")
    back = rb.load(tmp_path / "draws")
    assert back.seconds == draws.seconds
    assert back.summary().text == draws.summary().text
    assert rb.load(tmp_path / "run").summary().text == draws.summary().text


def test_what_is_monitored_does_not_grow():
    """At most 16,384 draws of all chains, evenly spaced, whatever the length of the run."""
    draws = rb.HMC(Gaussian([1.0]), step_size=0.5, num_leapfrog_steps=1).sample(
        10_000, warmup=0, chains=4, init=np.zeros((4, 1)), progress=False
    )
    every = draws.settings["monitored"]["every"]
    assert every > 1
    assert draws.monitored.shape[1] * 4 <= 16_384
    np.testing.assert_array_equal(draws.monitored[:, :, 0], draws.positions[:, ::every, 0])


# ---- fits


def posterior(likelihood=None, rows=60):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 2))
    y = x[:, 0] + 0.3 * rng.normal(size=rows)
    return rb.Posterior(
        rb.mlp(2, (8,), 1), x, y, prior=rb.Normal(1.0), likelihood=likelihood or rb.Gaussian()
    )


def dropout_posterior():
    target = posterior()
    layers = [rb.Dense(8), rb.Activation("relu"), rb.Dropout(0.1), rb.Dense(1)]
    model = rb.Model(layers, input_shape=(2,))
    y = target.y[:, 0]
    return rb.Posterior(model, target.x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())


FITS = {
    "BBB": lambda **k: rb.BBB(
        posterior(), learning_rate=2e-2, estimator="local", init_scale=0.01, batch_size=20, **k
    ),
    "DeepEnsemble": lambda **k: rb.DeepEnsemble(
        posterior(), members=3, learning_rate=1e-2, batch_size=20, **k
    ),
    "likelihood": lambda **k: rb.DeepEnsemble(
        posterior(), learning_rate=1e-2, batch_size=None, objective="likelihood", **k
    ),
    "MCDropout": lambda **k: rb.MCDropout(
        dropout_posterior(), rate=0.1, learning_rate=1e-2, batch_size=20, **k
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_ends_too_early_is_warned_of(name):
    fit, found = caught(lambda: FITS[name]().fit(12, progress=False))
    assert [w.category for w in found] == [FitWarning]
    assert "still rose, by" in str(found[0].message)
    assert found[0].filename == __file__
    summary = fit.summary()
    assert summary.outcome == NOT
    assert "rain longer (resume=fit continues)" in summary.message
    assert fit.draws(3).summary().outcome == NOT if name != "DeepEnsemble" else True


@pytest.mark.parametrize("name", ["DeepEnsemble", "MCDropout"])
def test_a_fit_that_has_settled_is_left_alone(name):
    """3,000 epochs under a falling rate."""
    fit, found = caught(
        lambda: FITS[name](schedule=rb.schedules.cosine(9000)).fit(3000, progress=False)
    )
    assert found == []
    assert fit.summary().outcome == CONVERGED
    draws = fit.draws(seed=0) if name == "DeepEnsemble" else fit.draws(5)
    assert draws.summary().outcome == CONVERGED
    assert "independent draws from a fit" in draws.summary().message


def test_the_objective_is_that_of_the_members():
    """On all rows, when there are few: the log density itself, or the likelihood alone."""
    target = posterior(rows=30)
    fit, _ = caught(lambda: rb.DeepEnsemble(target, batch_size=10).fit(8, progress=False))
    lp, _ = target.value_and_grad(fit.theta)
    np.testing.assert_allclose(fit.history["objective"][-1], lp, rtol=1e-5)
    alone = rb.DeepEnsemble(target, batch_size=10, objective="likelihood")
    fit, _ = caught(lambda: alone.fit(8, progress=False))
    expected = target.log_likelihood(fit.theta)
    np.testing.assert_allclose(fit.history["objective"][-1], expected, rtol=1e-5)


def test_the_history_begins_before_the_first_epoch_and_goes_on():
    """Every epoch of a short fit; of a long one twenty points."""
    make = FITS["DeepEnsemble"]
    first, _ = caught(lambda: make().fit(12, progress=False))
    more, _ = caught(lambda: make().fit(12, resume=first, progress=False))
    assert more.history["epoch"].tolist() == list(range(25))
    assert more.history["objective"].shape == (25, 3)
    long, _ = caught(lambda: make().fit(300, progress=False))
    assert long.history["epoch"].tolist() == list(range(0, 301, 15))


@pytest.mark.parametrize(
    ("values", "outcome"),
    [(np.arange(40.0), CONVERGED), (np.arange(3.0), CONVERGED), (-np.exp(np.arange(40.0)), NOT)],
)
def test_a_fit_that_held_out_rows_ended_may_still_rise(values, outcome):
    """A rise and few epochs are no faults then; the control is a fit that diverged."""
    settings = {"num_rows": 10, "held_out": 5}
    fit = SimpleNamespace(history={"objective": values}, settings=settings, complete=True)
    summary = summary_of_fit(fit)
    assert summary.outcome == outcome
    assert all(row.good is not False for row in summary.rows)
    del settings["held_out"]
    assert summary_of_fit(fit).outcome != CONVERGED


def test_endings_of_an_objective():
    """Noise alone, a rise, a fall, a rise of nothing, a short history and one that ends in NaN."""
    rng = np.random.default_rng(3)
    steps = np.arange(40.0)
    flat = -100 + rng.normal(size=40)
    for values, outcome, words in (
        (np.r_[-1000.0, flat], CONVERGED, "has settled"),
        (np.r_[-1000.0, 1e-3 * steps], CONVERGED, "has settled"),  # a rise for certain, of nothing
        (flat[0] + 0.0 * flat, SHORT, "has gained 0 nats"),
        (flat + steps, NOT, "still rose, by 0.0"),
        (flat - steps, NOT, "fell at the end, by 0.0"),
        (steps[:7], SHORT, "7 points"),
        (np.where(steps < 39, steps, np.nan), NOT, "nan"),
        (-np.exp(steps), NOT, "below its start"),
    ):
        history = {"epoch": steps[: len(values)], "objective": values}
        fit = SimpleNamespace(history=history, settings={"num_rows": 100}, complete=True)
        summary = summary_of_fit(fit)
        assert summary.outcome == outcome, summary.message
        assert words in summary.message
