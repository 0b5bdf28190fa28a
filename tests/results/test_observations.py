"""The law of y: distribution function, score, samples, and the shapes of a single output."""

import math
from itertools import pairwise

import numpy as np
import pytest

import ribbit as rb
from ribbit.results import lazy, observations, prediction
from ribbit.samplers import HMC
from tests.support.likelihoods import EVERY
from tests.support.targets import Classes, Line, same

# a dozen draws that both sides are made of: whether they have converged does not matter
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
RNG = np.random.default_rng(5)
X = RNG.normal(size=(30, 2))
LABELS = RNG.integers(0, 3, size=30)
WAVE = np.sin(X[:, 0])
REGRESSIONS = [one for one in EVERY if one.kind == "regression"]


def data(likelihood):
    """Outputs of the network, and a y (N,)."""
    name = type(likelihood).__name__
    if name == "Categorical":
        return 3, LABELS
    y = {"Bernoulli": LABELS > 0, "Poisson": LABELS}.get(name, WAVE)
    return 1 + (name == "HeteroscedasticGaussian"), np.asarray(y, float)


def run(likelihood, *, column=False, **options):
    outputs, y = data(likelihood)
    target = rb.Posterior(
        rb.mlp(2, (6,), outputs),
        X,
        y[:, None] if column else y,
        prior=rb.Normal(0.5),
        likelihood=likelihood,
        dtype=np.float64,
    )
    hmc = HMC(target, step_size=0.002, num_leapfrog_steps=10)
    return hmc.sample(12, warmup=4, chains=2, seed=3, **options)


def terms_of(draws):
    positions = np.swapaxes(draws.positions, 0, 1).reshape(-1, draws.positions.shape[-1])
    return draws.predictive.predictive(positions, X)


@pytest.mark.parametrize("likelihood", EVERY, ids=lambda v: type(v).__name__)
def test_a_single_output_has_the_shape_of_y(likelihood, tmp_path):
    """(N,) where y was (N,), also from files, fits and while sampling; (N, 1) where it was so."""
    flat, column = run(likelihood, predict_at=X), run(likelihood, column=True, predict_at=X)
    names = ["mean", "std", "epistemic_std", "aleatoric_std"]
    wide = ()
    if likelihood.kind == "classification":
        names = ["probs", "epistemic_std"]
        wide = (3,) if isinstance(likelihood, rb.Categorical) else ()
    flat.save(tmp_path / "draws")
    fit = rb.EnsembleFit(flat.positions[:, 0], True, {}, flat.predictive)
    for draws, shape in (
        (flat, (30, *wide)),
        (column, (30, *(wide or (1,)))),
        (rb.load(tmp_path / "draws"), (30, *wide)),
        (fit.draws(), (30, *wide)),
    ):
        p = draws.predict(X, keep=True)
        for name in names:
            assert getattr(p, name).shape == shape, name
            if draws.prediction is not None:
                assert getattr(draws.prediction, name).shape == shape, name
        assert p.samples.shape == (*draws.positions.shape[:2], *shape)
        assert p.credible_quantile(0.5).shape == p.credible_interval()[0].shape == shape
        assert p.credible_quantile([0.1, 0.5]).shape == (2, *shape)
        if likelihood.kind != "classification":
            assert p.quantile(0.5).shape == p.interval()[0].shape == shape
            assert p.cdf(data(likelihood)[1]).shape == shape
        if len(draws.positions) * draws.positions.shape[1] > 3:
            found = rb.diagnostics.predictive_rhat(draws, X)
            assert found.shape == rb.diagnostics.predictive_ess(draws, X).shape == shape
    assert same(flat.predict(X).epistemic_std.reshape(-1), column.predict(X).epistemic_std.ravel())


def test_shapes_survive_a_pickle():
    import pickle

    target = pickle.loads(pickle.dumps(run(rb.Gaussian(0.3)).predictive))
    assert target.flat
    assert not pickle.loads(pickle.dumps(run(rb.Gaussian(0.3), column=True).predictive)).flat


def test_a_frame_of_predictions():
    pandas = pytest.importorskip("pandas")
    p = run(rb.Gaussian()).predict(X)
    frame = pandas.DataFrame({"mean": p.mean, "sd": p.std})
    assert frame.shape == (30, 2)
    assert (frame["mean"].to_numpy() == p.mean).all()


def test_asking_for_a_statistic_never_raises():
    """hasattr on any kind, with and without what the statistic needs."""
    names = ["mean", "std", "epistemic_std", "aleatoric_std", "probs", "entropy"]
    names += ["mutual_information", "samples"]
    there = {}
    for likelihood in (rb.Gaussian(), rb.Poisson(), rb.Categorical()):
        p = run(likelihood).predict(X)
        there[p.kind] = {name for name in names if hasattr(p, name)}
    values = {"mean", "std", "epistemic_std", "aleatoric_std"}
    assert there["regression"] == there["count"] == values
    others = {"probs", "entropy", "mutual_information", "epistemic_std"}
    assert there["classification"] == others
    empty = run(rb.Gaussian(), predict_at=X, save_draws=False).prediction
    empty._moments.count = 0
    assert not hasattr(empty, "mean")
    with pytest.raises(rb.errors.KindError, match="expected a classification likelihood"):
        _ = run(rb.Gaussian()).predict(X).probs
    assert issubclass(rb.errors.KindError, TypeError)
    assert issubclass(rb.errors.MissingError, ValueError)


@pytest.mark.parametrize("likelihood", EVERY, ids=lambda v: type(v).__name__)
def test_a_run_without_draws_knows_the_law(likelihood, tmp_path):
    """All its predictions fit: what it gives is what the draws give, also from a file."""
    p = run(likelihood, predict_at=X).prediction
    gone = run(likelihood, predict_at=X, save_draws=False)
    gone.save(tmp_path / "draws")
    _, y = data(likelihood)
    for q in (gone.prediction, rb.load(tmp_path / "draws").prediction):
        assert q._positions is None
        pairs = [(q.credible_interval(), p.credible_interval())]
        pairs += [(q.sample(20, seed=2), p.sample(20, seed=2))]
        if likelihood.kind != "classification":
            pairs += [(q.interval(), p.interval()), (q.cdf(y), p.cdf(y))]
        if likelihood.kind == "regression":
            pairs += [(q.crps(y), p.crps(y))]
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("likelihood", REGRESSIONS, ids=lambda v: type(v).__name__)
def test_cdf_is_the_inverse_of_quantile(likelihood):
    p = run(likelihood).predict(X)
    for q in (0.02, 0.4, 0.9):
        np.testing.assert_allclose(p.cdf(p.quantile(q)), q, rtol=1e-9)
    assert (p.cdf(np.full(30, -1e9)) < 1e-6).all()


def test_cdf_of_counts_is_the_mixtures():
    stats = pytest.importorskip("scipy.stats")
    draws = run(rb.Poisson())
    expected = stats.poisson.cdf(LABELS, terms_of(draws).mean[:, :, 0]).mean(axis=0)
    np.testing.assert_allclose(draws.predict(X).cdf(LABELS), expected, atol=1e-12)


def test_crps_of_a_normal_mixture_has_a_closed_form():
    """Grimit et al. (2006), equation 5; also where draws are far apart, or their noise differs."""
    erf = np.vectorize(math.erf)

    def term(mean, sd):
        z = mean / sd
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return mean * erf(z / math.sqrt(2)) + 2 * sd * density

    rng = np.random.default_rng(0)
    for apart, ratio, close in ((0.3, 1.0, 1e-6), (20.0, 3.0, 1e-6), (1.0, 100.0, 1e-3)):
        mean = apart * rng.normal(size=(8, 5, 1))
        sd = ratio ** rng.uniform(size=(8, 5, 1))
        y = apart * rng.normal(size=(5, 1))
        pairs = np.sqrt(sd[:, None] ** 2 + sd[None] ** 2)
        expected = term(y - mean, sd).mean(axis=0) - 0.5 * term(
            mean[:, None] - mean[None], pairs
        ).mean(axis=(0, 1))
        terms = rb.protocols.PredictiveTerms(mean=mean, noise_sd=sd)
        np.testing.assert_allclose(observations.crps(np, terms, y), expected, rtol=close)


@pytest.mark.parametrize("df", [1.5, 3.0, 30.0])
def test_crps_of_a_student_mixture_is_its_integral(df):
    integrate = pytest.importorskip("scipy.integrate")
    stats = pytest.importorskip("scipy.stats")
    mean, scale, y = np.array([-3.0, 0.0, 0.5]), np.array([0.3, 1.0, 0.5]), 0.8

    def square(z):
        f = stats.t.cdf((z - mean) / scale, df).mean()
        return (f - (z >= y)) ** 2

    ends = [-np.inf, -3.0, 0.0, y, 3.0, np.inf]
    parts = [integrate.quad(square, a, b, limit=500)[0] for a, b in pairwise(ends)]
    terms = rb.protocols.PredictiveTerms(
        mean=mean[:, None, None],
        noise_sd=np.full((3, 1, 1), np.nan),
        noise_df=df,
        noise_scale=scale[:, None, None],
    )
    found = observations.crps(np, terms, np.array([[y]]))
    assert found[0, 0] == pytest.approx(sum(parts), rel=1e-4)


def test_crps_of_a_prediction_is_that_of_its_samples():
    """And without a mean there is none."""
    p = run(rb.Gaussian()).predict(X)
    whole, drawn = rb.metrics.crps(WAVE, p), rb.metrics.crps(WAVE, p.sample(4000, seed=1))
    assert drawn == pytest.approx(whole, rel=0.03)  # its sd over seeds is 0.5 %: false 2e-9
    assert whole == p.crps(WAVE[:, None])
    assert run(rb.StudentTNoise(1.0, 0.3)).predict(X).crps(WAVE) == math.inf
    with pytest.raises(TypeError, match=r"metrics\.crps\(y, p\.sample\(1000\)\)"):
        run(rb.Poisson()).predict(X).crps(LABELS)


@pytest.mark.parametrize("likelihood", EVERY, ids=lambda v: type(v).__name__)
def test_samples_follow_the_mixture(likelihood):
    """Each row's empirical distribution against the mixture's: Kolmogorov's distance.

    20,000 samples: beyond 0.0205 once in 1e7 (2 exp(-2 n d^2), discrete laws less often), 30 rows.
    Control: the samples of one draw alone, for the likelihoods whose draws differ.
    """
    draws = run(likelihood)
    p, n = draws.predict(X), 20_000
    y = p.sample(n, seed=7)
    assert y.shape == (n, 30)
    if p.kind == "classification":
        assert y.dtype == np.int64
        probs = p.probs if p.probs.ndim == 2 else np.stack([1 - p.probs, p.probs], axis=1)
        for k in range(probs.shape[1]):
            assert np.abs((y <= k).mean(axis=0) - probs[:, : k + 1].sum(axis=1)).max() < 0.0205
        return
    for q in (0.05, 0.3, 0.6, 0.95):
        at = p.quantile(q)
        assert np.abs((y <= at).mean(axis=0) - p.cdf(at)).max() < 0.0205


def test_samples_depend_on_their_number_alone(monkeypatch):
    """Not on how many there are, nor on chunks; masks keep theirs."""
    for draws in (run(rb.StudentTNoise(4.0)), run(rb.Poisson()), dropout()):
        p = draws.predict(X)
        y = p.sample(40, seed=2)
        assert same(p.sample(9, seed=2), y[:9])
        assert (p.sample(40, seed=3) != y).any()
        with monkeypatch.context() as patch:
            patch.setattr(lazy, "CHUNK", 100)
            assert same(draws.predict(X).sample(40, seed=2), y)


def dropout():
    layers = [rb.Dense(6), rb.Activation("tanh"), rb.Dropout(0.2), rb.Dense(1)]
    model = rb.Model(layers, input_shape=(2,))
    target = rb.Posterior(
        model, X, WAVE, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3), dtype=np.float64
    )
    return rb.MCDropout(target, batch_size=10).fit(2, progress=False).draws(10, seed=1)


def test_samples_of_one_row_share_a_function():
    """A sample is one draw at all rows: without noise it is one of the functions."""
    line = Line([1.0, 2.0])
    line.noise = 1e-9
    draws = HMC(line, step_size=0.3, num_leapfrog_steps=5).sample(20, chains=2, seed=1)
    y = draws.predict(X).sample(50)
    functions = draws.predict(X, keep=True).samples.reshape(40, -1)
    distance = np.abs(y.reshape(50, 1, -1) - functions[None]).max(axis=2)
    assert (distance.min(axis=1) < 1e-7).all()
    assert len(set(distance.argmin(axis=1))) > 15


def test_what_does_not_fit_is_refused(monkeypatch):
    p = run(rb.Gaussian()).predict(X)
    for call in (p.cdf, p.crps):
        with pytest.raises(ValueError, match=r"expected y of shape \(30, 1\), got \(29,\)"):
            call(WAVE[:29])
        with pytest.raises(TypeError, match="expected y as an array"):
            call("y")
    q = HMC(Classes([1.0] * 4, 2), step_size=0.5, num_leapfrog_steps=2).sample(4, chains=2)
    q = q.predict(X)
    for call in (q.cdf, q.crps):
        with pytest.raises(TypeError, match="expected a regression"):
            call(LABELS)
    monkeypatch.setattr("ribbit.results.running._KEPT", 400)
    gone = run(rb.Gaussian(), predict_at=X, save_draws=False).prediction
    for call in (lambda: gone.sample(3), lambda: gone.cdf(WAVE), lambda: gone.crps(WAVE)):
        with pytest.raises(
            ValueError, match=r"no draw was kept, .* or sample with save_draws=True"
        ):
            call()
    with pytest.raises(ValueError, match="num_samples >= 1"):
        p.sample(0)


def test_samples_of_a_large_network_take_a_few_draws_at_once(monkeypatch):
    """Weights are gathered draw by draw of a sample: no more of them than values elsewhere."""
    draws, taken = run(rb.Gaussian(0.1)), []
    p = draws.predict(X[:4])
    wanted = p.sample(50, seed=1)
    terms_of_all = prediction.Prediction._terms_of

    def watched(self, numbers, rows=None):
        taken.append(len(numbers))
        return terms_of_all(self, numbers, rows)

    monkeypatch.setattr(lazy, "CHUNK", 3 * draws.positions.shape[-1])
    monkeypatch.setattr(prediction.Prediction, "_terms_of", watched)
    assert same(p.sample(50, seed=1), wanted)
    assert max(taken) == 3


NO_Y = {
    "NaN": np.nan,
    "infinity": np.inf,
    "minus infinity": -np.inf,
    "text": "a",
    "None": None,
    "complex": 1j,
}


@pytest.mark.parametrize("bad", NO_Y)
@pytest.mark.parametrize("likelihood", EVERY, ids=lambda v: type(v).__name__)
def test_a_y_that_is_none_is_named(likelihood, bad):
    p = run(likelihood).predict(X)
    y = list(data(likelihood)[1])
    y[3] = NO_Y[bad]
    for name in ("cdf", "crps", "log_likelihood"):
        if likelihood.kind == "regression" or name == "log_likelihood":
            with pytest.raises((TypeError, ValueError), match=r"^\[Prediction.* expected .*\by\b"):
                getattr(p, name)(y)
    if likelihood.kind == "count":
        with pytest.raises((TypeError, ValueError), match=r"expected .*\by\b"):
            p.cdf(y)


def test_counts_that_no_int64_holds_are_not_sampled():
    terms = rb.protocols.PredictiveTerms(
        mean=np.full((2, 1, 1), 1e19), noise_sd=np.full((2, 1, 1), 1e19**0.5)
    )
    with pytest.raises(ValueError, match=r"^\[Prediction.sample\] expected rates .* got a count"):
        observations.sample(np, "count", terms, 0, np.arange(2))
    lower, upper = observations.quantiles(np, "count", terms, [0.05, 0.95])[:, 0, 0]
    assert lower < 1e19 < upper


def test_crps_far_from_a_student_mixture_is_the_distance():
    terms = rb.protocols.PredictiveTerms(
        mean=np.zeros((2, 1, 1)),
        noise_sd=np.full((2, 1, 1), np.nan),
        noise_df=3.0,
        noise_scale=np.ones((2, 1, 1)),
    )
    assert observations.crps(np, terms, np.array([[1e200]])) == pytest.approx(1e200)
