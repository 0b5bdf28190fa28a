"""Verdicts: chains that have not converged are named, those that have are left alone."""

import dataclasses
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import ConvergenceWarning, FitWarning, PrecisionWarning, RibbitWarning
from ribbit.results import fit_verdicts, verdicts
from ribbit.results.summary import Row, Summary
from ribbit.samplers import HMC
from tests.support.targets import Gaussian, Line

X = np.random.default_rng(0).normal(size=(9, 2))


class Modes(Gaussian):
    """Two normals at -20 and 20: no chain crosses."""

    def value_and_grad(self, theta, rows=None):
        centre = np.where(theta > 0, 20.0, -20.0)
        lp = -0.5 * np.sum((theta - centre) ** 2, axis=1) + 3.0 * (theta[:, 0] > 0)
        return lp, centre - theta


class Funnel(Gaussian):
    """Neal (2003): v ~ N(0, 3^2), x ~ N(0, exp(v))."""

    def value_and_grad(self, theta, rows=None):
        v, x = theta[:, :1], theta[:, 1:]
        scaled = x * x * np.exp(-v)
        n = x.shape[1]
        lp = -(v[:, 0] ** 2) / 18 - 0.5 * scaled.sum(axis=1) - 0.5 * n * v[:, 0]
        slope = -v / 9 + 0.5 * scaled.sum(axis=1, keepdims=True) - 0.5 * n
        return lp, np.concatenate([slope, -x * np.exp(-v)], axis=1)


def walk(**options):
    hmc = HMC(Line([1.0, 2.0]), step_size=0.3, num_leapfrog_steps=5, jitter=0.2)
    return hmc.sample(400, warmup=50, seed=1, progress=False, **options)


def caught(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        value = call()
    return value, [w for w in found if issubclass(w.category, RibbitWarning)]


def test_one_base_of_all_warnings():
    for kind in (ConvergenceWarning, FitWarning, PrecisionWarning, rb.errors.ScaleWarning):
        assert issubclass(kind, RibbitWarning)
        assert issubclass(kind, UserWarning)


def test_chains_that_converge_are_left_alone():
    """No warning, also with predictions; the summary agrees and has every row."""
    draws, found = caught(lambda: walk(predict_at=X))
    assert found == []
    for summary in (draws.summary(), draws.summary(X)):
        assert summary.converged is True
        names = [row.name for row in summary.rows]
        assert names[:2] == ["R-hat of the predictions", "R-hat of the log density"]
        for name in ("divergent draws", "E-BFMI per chain", "acceptance", "seconds"):
            assert name in names
        assert summary.rows[0].good
        assert summary.rows[1].good is None  # predictions decide
        assert all(row.name in summary.text for row in summary.rows)
        assert summary.verdict.startswith("Converged")
    assert walk().summary().rows[0] == Row(
        "R-hat of the log density", walk().summary().rows[0].value, "<= 1.05", True
    )


def test_chains_in_different_modes_are_warned_of_once():
    start = np.array([[-20.0], [20.0], [-20.5], [20.5]])
    hmc = HMC(Modes([1.0]), step_size=0.5, num_leapfrog_steps=5, jitter=0.3)
    draws, found = caught(lambda: hmc.sample(100, warmup=20, init=start, progress=False))
    assert [w.category for w in found] == [ConvergenceWarning]
    text = str(found[0].message)
    assert text.startswith("[HMC.sample] expected R-hat <= 1.05 of the parameters, got ")
    assert found[0].filename == __file__
    assert draws.summary().converged is False


class Mirrored(Gaussian):
    """Two normals at -20 and 20 with one log density: it does not tell them apart."""

    def value_and_grad(self, theta, rows=None):
        centre = np.where(theta > 0, 20.0, -20.0)
        return -0.5 * np.sum((theta - centre) ** 2, axis=1), centre - theta


def test_parameters_decide_where_there_are_no_predictions(tmp_path):
    """Modes of one height: the log density agrees, the parameters do not."""
    start = np.array([[-20.0], [20.0], [-20.5], [20.5]]) * np.ones(2)
    hmc = HMC(Mirrored([1.0, 1.0]), step_size=0.5, num_leapfrog_steps=5, jitter=0.3)
    options = {"warmup": 20, "init": start, "seed": 1, "progress": False}
    draws, found = caught(lambda: hmc.sample(200, **options))
    assert [w.category for w in found] == [ConvergenceWarning]
    assert "of the parameters, got " in str(found[0].message)
    draws.save(tmp_path / "draws")
    for summary in (draws.summary(), rb.load_draws(tmp_path / "draws").summary()):
        assert summary.converged is False
        assert [row.name for row in summary.rows[:2]] == [
            "R-hat of the parameters",
            "R-hat of the log density",
        ]
        assert [row.good for row in summary.rows[:2]] == [False, True]
        # there is no fit to start at
        assert "different modes" in summary.verdict
        assert "DeepEnsemble" not in summary.verdict
    start = np.full((4, 2), 20.0)
    draws, found = caught(lambda: hmc.sample(400, **options | {"init": start}))
    assert found == []
    assert draws.summary().converged is True
    # the control: without the parameters nothing is found
    assert verdicts.check_run("f", draws.stats, None, None) is None


def test_many_parameters_that_agree_are_left_alone():
    """500 normals, of which 125 are judged, by the law of their largest R-hat."""
    target = Gaussian(np.ones(500))
    hmc = HMC(target, step_size=0.25, num_leapfrog_steps=8)
    init = np.random.default_rng(4).normal(size=(4, 500))
    draws, found = caught(lambda: hmc.sample(300, warmup=0, init=init, progress=False))
    assert found == []
    assert verdicts.parameters_of(None, draws.positions).shape == (4, 300, 125)
    rng = np.random.default_rng(5)
    for size in (10, 12, 20, 60):  # independent ones: false 0.1 % each
        assert verdicts.judge(verdicts.find({}, None, None, rng.normal(size=(4, size, 125))))[0]
    assert verdicts.rhat_limit(4, 12, 125) > verdicts.rhat_limit(4, 12)
    assert verdicts.parameters_of(None, np.zeros((1, 1 << 20, 16), np.int8)).shape[2] == 8
    assert verdicts.parameters_of(target, draws.positions) is None
    assert verdicts.parameters_of(None, np.zeros((2, 0, 3))) is None


def test_the_next_step_depends_on_what_is_wrong():
    """Chains that agree with themselves sit in modes; chains that do not still move."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 200, 1))
    apart = verdicts.find({}, None, noise + 5.0 * np.arange(4)[:, None, None])
    assert "different modes (or move so little" in verdicts.judge(apart)[1]
    assert "a larger thin help). Start from an ensemble" in verdicts.judge(apart)[1]
    moving = verdicts.find({}, None, noise + 0.05 * np.arange(200)[:, None])
    assert verdicts.judge(moving)[0] is False
    assert "the chains still move" in verdicts.judge(moving)[1]
    single = verdicts.find({}, None, moving.quantities["predictions"][:1])
    assert "between the halves of the one chain" in verdicts.judge(single)[1]
    assert verdicts.judge(verdicts.find({}, None, noise))[0] is True
    assert "only several chains" in verdicts.judge(verdicts.find({}, None, noise[:1]))[1]
    still = verdicts.find({}, None, np.ones((4, 200, 1)))
    assert verdicts.judge(still) == (
        None,
        "Not known: no draw differs from another. Have the chains moved?",
    )
    # of a dozen draws nobody can tell the one from the other
    few = verdicts.find({}, None, apart.quantities["predictions"][:, :12])
    assert "the chains still move" in verdicts.judge(few)[1]
    stuck = verdicts.find({}, None, np.arange(4.0)[:, None, None] * np.ones((1, 200, 1)))
    assert stuck.worst[1] > 1e6
    assert verdicts.judge(stuck)[0] is False


def test_a_run_without_a_draw_yet_has_no_verdict():
    """What run.draws().summary() says during warmup, when lp is (C, 0)."""
    stats = {name: np.zeros((4, 0)) for name in ("lp", "n_steps")}
    summary = rb.Draws(np.zeros((4, 0, 3)), stats, False, None, {"sampler": "HMC"}).summary()
    assert summary.converged is None
    assert summary.verdict.startswith("Not known: there is no draw yet.")


def test_divergences_are_warned_of():
    """Neal's funnel at a step size that is too large for its neck."""
    hmc = HMC(Funnel([1.0] * 10), step_size=0.5, num_leapfrog_steps=10, divergence_threshold=10.0)
    draws, found = caught(lambda: hmc.sample(300, init=np.zeros(10), progress=False))
    assert (draws.stats["diverging"].mean(axis=1) > 0.01).any()
    assert [w.category for w in found] == [ConvergenceWarning]
    assert "expected at most 1% of diverging draws, got " in str(found[0].message)
    assert draws.summary().converged is False


def test_a_verdict_says_what_to_do_about_a_bad_row():
    """Converged, with some 70 effective draws where 400 are wanted; more draws are silent."""
    rng = np.random.default_rng(6)
    few = rb.Draws(
        positions=rng.normal(size=(4, 18, 2)), stats={}, complete=True, state=None, settings={}
    )
    texts = []
    for size in (18, 400):
        stats = {name: rng.normal(size=(4, size)) for name in ("lp", "energy", "n_steps")}
        positions = rng.normal(size=(4, size, 2))
        draws = dataclasses.replace(few, positions=positions, stats=stats)
        summary = verdicts.summary_of_draws(draws, None)
        assert summary.converged is True
        texts.append(summary.verdict)
    assert "Effective draws are few" in texts[0]
    assert "resume=draws" in texts[0]
    assert texts[1].startswith("Converged: R-hat is at most 1.0")
    assert "resume=draws" not in texts[1]


def drifting(rng, start, chains=4, draws=800):
    """Draws of N(0, 1) that come from `start` sds away in some 40 steps, side by side."""
    way = start * np.exp(-np.arange(draws) / 40.0)
    position = way + rng.normal(size=(chains, draws))
    lp = -0.5 * position**2
    energy = rng.gamma(0.5, size=(chains, draws)) - lp
    return rb.Draws(
        positions=position[:, :, None],
        stats={"lp": lp, "energy": energy, "n_steps": np.ones((chains, draws))},
        complete=True,
        state=None,
        settings={"sampler": "NUTS"},
    )


def test_chains_that_drift_in_side_by_side_have_not_converged(rng):
    """R-hat lets them pass: 1.04, with an sd of 2.6 for 1. E-BFMI and effective draws do not.

    Planted: what NUTS did on columns whose sd is 1,000 (an sd 3 times too large, R-hat 1.04).
    Control: the same draws without a way.
    """
    for start, expected in ((16.0, False), (0.0, True)):
        draws = drifting(rng, start)
        summary = draws.summary()
        assert summary.rows[0].good, summary
        assert summary.converged is expected
        assert ("side by side" in summary.verdict) is not expected
        warned = verdicts.check_run("NUTS.sample", draws.stats, None, None, None, draws.settings)
        assert (warned is not None) is not expected
        if warned is not None:
            assert "expected an E-BFMI >= 0.3, got 0.0" in warned
    assert drifting(rng, 16.0).positions.std() > 2.0


def test_noise_of_short_runs_is_no_finding():
    """R-hat of ten independent draws exceeds 1.05 in a third of the cases, its limit hardly ever.

    2,000 quantities at each length: at most 0.2 % exceed the limit, and the bound is 5 sd above
    (false 3e-7). Control: above 1.05 are many.
    """
    rng = np.random.default_rng(2)
    for draws, few, many in ((10, 0.007, 0.3), (20, 0.007, 0.1), (60, 0.007, 0.0)):
        found = verdicts.find({}, None, rng.normal(size=(4, draws, 2000)))
        rhat = found.rhat["predictions"]
        assert (rhat > found.limit).mean() < few
        assert (rhat > 1.05).mean() >= many
    assert verdicts.rhat_limit(4, 1000) == 1.05
    assert 2.0 < verdicts.rhat_limit(1, 4) < 3.0
    assert np.isnan(verdicts.rhat_limit(4, 3))


def test_trials_of_a_few_draws_are_not_warned_of():
    hmc = HMC(Modes([1.0]), step_size=0.5, num_leapfrog_steps=5)
    for size, chains in ((3, 1), (9, 4)):
        start = np.full((chains, 1), -20.0)
        start[0] = 20.0
        draws, found = caught(lambda n=size, s=start: hmc.sample(n, warmup=0, init=s))
        assert found == []
        if size < 4:
            summary = draws.summary()
            assert summary.converged is None
            assert "at least 4 draws per chain" in summary.verdict


def test_predictions_decide_while_sampling():
    """A label switch: two chains at +w, two at -w, one log density; only predictions tell."""

    class Mirror(Line):
        def value_and_grad(self, theta, rows=None):
            centre = np.where(theta > 0, 20.0, -20.0)
            return -0.5 * np.sum((theta - centre) ** 2, axis=1), centre - theta

    start = np.array([[-20.0], [20.0], [-20.5], [20.5]])
    hmc = HMC(Mirror([1.0]), step_size=0.5, num_leapfrog_steps=5, jitter=0.3)
    options = {"warmup": 20, "init": start, "progress": False}
    _, found = caught(lambda: hmc.sample(200, **options))
    assert found == []
    for keep in (True, False):
        draws, found = caught(
            lambda keep=keep: hmc.sample(200, predict_at=X[:, :1], keep_draws=keep, **options)
        )
        assert len(found) == 1
        assert "of the predictions" in str(found[0].message)
        assert draws.summary().converged is False
    assert "different modes" in draws.summary().verdict


def test_what_is_traced_does_not_grow():
    """At most eight predictions of 4,096 draws, in the order of the run."""
    run = HMC(Line([1.0]), step_size=0.3, num_leapfrog_steps=1).sample(
        3000, warmup=0, chains=2, predict_at=X[:, :1], progress=False
    )
    traced = run.prediction.running.traced
    assert traced.shape == (2, 1500, 8)
    expected = run.positions[:, ::2] * X[[0, 8], 0]
    np.testing.assert_allclose(traced[:, :, [0, -1]], expected, rtol=1e-12)


def test_a_stochastic_sampler_without_a_density_says_what_to_ask():
    target = posterior()
    draws, found = caught(
        lambda: rb.SGLD(target, step_size=1e-5, batch_size=10).sample(20, warmup=5, progress=False)
    )
    assert [w.category for w in found] in ([], [ConvergenceWarning])  # of the log noise alone
    assert draws.summary().rows[0].name == "R-hat of the log noise"
    known = rb.SGLD(posterior(rb.Gaussian(0.3)), step_size=1e-5, batch_size=10)
    draws, found = caught(lambda: known.sample(20, warmup=5, progress=False))
    assert found == []
    assert "draws.summary(x)" in draws.summary().verdict
    assert draws.summary(X).rows[0].name == "R-hat of the predictions"


def test_what_no_step_rejects_is_called_biased():
    """A line, known noise: sds in closed form, and a step with which one is 17 % too large.

    R-hat is content with it. 10,000 effective squares or more give an sd a standard error of 0.7 %,
    and what is asked lies seven of them away or more (false 1e-11). Control: HMC has no such
    sentence, and no such sds.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    y = x[:, 0] + 0.3 * rng.normal(size=60)
    line = rb.Model([rb.Dense(1)], input_shape=(2,))
    target = rb.Posterior(line, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
    inputs = np.column_stack([x, np.ones(60)])
    exact = np.sqrt(np.diag(np.linalg.inv(inputs.T @ inputs / 0.09 + np.eye(3))))
    options = {"warmup": 500, "progress": False}
    coarse = rb.SGLD(target, step_size=1e-3, batch_size=20).sample(6000, thin=20, **options)
    right = rb.HMC(target).sample(6000, **options)
    wide = coarse.positions.reshape(-1, 3).std(axis=0) / exact
    assert wide.max() > 1.1
    assert abs(right.positions.reshape(-1, 3).std(axis=0) / exact - 1.0).max() < 0.05
    assert coarse.summary(x).converged is True
    assert "biased" in coarse.summary(x).verdict
    assert "half of step_size" in coarse.summary(x).verdict
    assert "biased" not in right.summary(x).verdict
    pilot = rb.BAOAB(target, batch_size=20).sample(300, progress=False)
    assert "what 'auto' let pass" in pilot.summary(x).verdict


def test_forms_of_a_table(capsys):
    rows = Row("one", "1", "<= 2", True), Row("two", "3", "<= 2", False)
    summary = Summary("A < B", rows, None, "v")
    print(summary)
    printed = capsys.readouterr().out
    assert printed == summary.text + "\n"
    assert "\x1b" not in printed
    assert "  two  3  want <= 2  <- no" in printed
    page = summary._repr_html_()
    assert "A &lt; B" in page
    assert page.count("<tr>") == 2
    rich = pytest.importorskip("rich.console")
    console = rich.Console(width=80, force_terminal=True)
    console.print(summary)
    assert "\x1b[" in capsys.readouterr().out


def test_seconds_travel_through_files(tmp_path):
    hmc = HMC(posterior(), step_size=0.01, num_leapfrog_steps=5)
    draws = hmc.sample(5, warmup=2, progress=False)
    assert draws.seconds > 0
    draws.save(tmp_path / "draws")
    back = rb.load_draws(tmp_path / "draws")
    assert back.seconds == draws.seconds
    assert back.summary().text == draws.summary().text


def posterior(likelihood=None, rows=60):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 2))
    y = x[:, 0] + 0.3 * rng.normal(size=rows)
    return rb.Posterior(
        rb.mlp(2, (8,), 1), x, y, prior=rb.Normal(1.0), likelihood=likelihood or rb.Gaussian()
    )


FITS = {
    "BBB": lambda target, **k: rb.BBB(
        target, learning_rate=2e-2, estimator="local", init_scale=0.01, batch_size=20, **k
    ),
    "DeepEnsemble": lambda target, **k: rb.DeepEnsemble(
        target, members=3, learning_rate=1e-2, batch_size=20, **k
    ),
    "likelihood": lambda target, **k: rb.DeepEnsemble(
        target, learning_rate=1e-2, batch_size=None, objective="likelihood", **k
    ),
    "MCDropout": lambda target, **k: rb.MCDropout(
        target, rate=0.1, learning_rate=1e-2, batch_size=20, **k
    ),
}


def dropout_posterior():
    target = posterior()
    layers = [rb.Dense(8), rb.Activation("relu"), rb.Dropout(0.1), rb.Dense(1)]
    model = rb.Model(layers, input_shape=(2,))
    y = target.y[:, 0]
    return rb.Posterior(model, target.x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())


@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_ends_too_early_is_warned_of(name):
    target = dropout_posterior() if name == "MCDropout" else posterior()
    fit, found = caught(lambda: FITS[name](target).fit(12, progress=False))
    assert [w.category for w in found] == [FitWarning]
    assert "still rose by" in str(found[0].message)
    assert found[0].filename == __file__
    summary = fit.summary()
    assert summary.converged is False
    assert "train longer (resume=fit goes on)" in summary.verdict
    objective = fit.history["elbo" if name == "BBB" else "objective"]
    assert len(fit.history["epoch"]) == len(objective) == 12
    assert objective[-1].mean() > objective[0].mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # judged below
        more = FITS[name](target).fit(12, resume=fit, progress=False)
    assert more.history["epoch"].tolist() == list(range(1, 25))


@pytest.mark.parametrize("name", ["DeepEnsemble", "MCDropout"])
def test_a_fit_that_has_settled_is_left_alone(name):
    """3,000 epochs under a falling rate; history has twenty points and changes no bit."""
    target = dropout_posterior() if name == "MCDropout" else posterior()
    fit, found = caught(
        lambda: FITS[name](target, schedule=rb.schedules.cosine(9000)).fit(3000, progress=False)
    )
    assert found == []
    assert fit.summary().converged is True
    assert fit.history["epoch"].tolist() == list(range(150, 3001, 150))


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


def test_endings():
    rng = np.random.default_rng(3)
    steps = np.arange(40.0)
    flat = -100 + rng.normal(size=40)
    assert fit_verdicts.ending(flat, 100).certain is False
    assert fit_verdicts.ending(flat + steps, 100).certain is True
    assert fit_verdicts.ending(flat + steps, 100).change == pytest.approx(0.08, abs=0.02)
    assert fit_verdicts.ending(flat - steps, 100).change < 0
    assert fit_verdicts.ending(1e-3 * steps, 100).certain is False  # certain, and nothing
    assert np.isnan(fit_verdicts.ending(steps[:7], 1).change)
    assert fit_verdicts.ending(np.where(steps < 39, steps, np.nan), 1).certain is False


def test_draws_of_a_fit_have_nothing_to_converge():
    fit, _ = caught(lambda: FITS["BBB"](posterior()).fit(3, progress=False))
    assert "fewer than 8 points" in fit.summary().verdict
    summary = fit.draws(5).summary()
    assert summary.converged is None
    assert "fit.summary()" in summary.verdict
