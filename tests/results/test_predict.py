"""Predictions against brute force, whole and streamed."""

import math

import numpy as np
import pytest

import ribbit as rb
from ribbit.results import lazy, prediction
from ribbit.results import running as _running
from ribbit.results.prediction import Prediction
from ribbit.results.prediction import _sorted_quantile as sorted_quantile
from ribbit.samplers import HMC
from tests.support.likelihoods import EVERY
from tests.support.targets import Classes, Gaussian, Line, same

# the draws of a run stand on both sides: whether they have converged does not matter
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
SDS = [1.0, 2.0, 0.3]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(11, 3)), rng.normal(size=(11, 1))


@pytest.fixture(scope="module")
def draws():
    return HMC(Line(SDS), step_size=0.25, num_leapfrog_steps=6).sample(50, chains=3, seed=1)


def flat(draws):
    """(S, P), draw by draw."""
    return np.swapaxes(draws.positions, 0, 1).reshape(-1, draws.positions.shape[-1])


def logmeanexp(values):
    top = values.max(axis=0)
    return top + np.log(np.exp(values - top).mean(axis=0))


def test_regression_statistics(draws, data):
    x, y = data
    p = draws.predict(x)
    mean = (flat(draws) @ x.T)[:, :, None]  # (S, N, 1)
    np.testing.assert_allclose(p.mean, mean.mean(axis=0), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(p.epistemic_std, mean.std(axis=0), rtol=1e-11)
    np.testing.assert_allclose(p.aleatoric_std, 0.5, rtol=1e-14)
    np.testing.assert_allclose(p.std, np.sqrt(mean.var(axis=0) + 0.25), rtol=1e-11)
    density = -0.5 * ((y - mean) / 0.5) ** 2 - math.log(0.5 * math.sqrt(2 * math.pi))
    expected = logmeanexp(density.sum(axis=-1)).mean()
    assert isinstance(p.log_likelihood(y), float)
    assert p.log_likelihood(y) == pytest.approx(expected, rel=1e-12)
    assert p.mean.shape == p.std.shape == (11, 1)
    assert p.num_draws == 150


def test_quantiles_of_the_mean_function(draws, data):
    mean = (flat(draws) @ data[0].T)[:, :, None]
    p = draws.predict(data[0])
    found = p.credible_quantile([0.05, 0.5, 0.95])
    np.testing.assert_allclose(found, np.quantile(mean, [0.05, 0.5, 0.95], axis=0), rtol=1e-11)
    assert same(p.credible_quantile(0.5), found[1])


def test_quantiles_of_the_predictive_distribution(draws, data):
    mean = (flat(draws) @ data[0].T)[:, :, None]
    found = draws.predict(data[0]).quantile([0.05, 0.95])
    assert found.shape == (2, 11, 1)
    erfc = np.vectorize(math.erfc)
    cdf = 0.5 * erfc(-(found[:, None] - mean) / 0.5 / math.sqrt(2)).mean(axis=1)
    np.testing.assert_allclose(cdf[0], 0.05, rtol=1e-13)
    np.testing.assert_allclose(cdf[1], 0.95, rtol=1e-13)


def test_intervals_are_pairs_of_quantiles(draws, data):
    p = draws.predict(data[0])
    for interval, quantile in (
        (p.interval, p.quantile),
        (p.credible_interval, p.credible_quantile),
    ):
        np.testing.assert_allclose(interval(0.8), quantile([0.1, 0.9]), rtol=1e-12)
        np.testing.assert_allclose(interval(), quantile([0.05, 0.95]), rtol=1e-12)


def test_an_interval_covers_new_observations():
    """As many as it says, noise known or learned; the band of the function does not.

    2,000 new rows of the line that was learned from 400: the count inside has an sd of 0.7 %, the
    interval's own coverage one of about 1 %; 6 % is 5 sd of both (false-fail rate 6e-7).
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2400, 1))
    y = 0.7 * x[:, 0] + 0.5 * rng.normal(size=2400)
    for likelihood in (rb.Gaussian(0.5), rb.Gaussian()):
        target = rb.Posterior(
            rb.mlp(1, (), 1), x[:400], y[:400], prior=rb.Normal(1.0), likelihood=likelihood
        )
        hmc = HMC(target, step_size=0.02, num_leapfrog_steps=10)
        p = hmc.sample(200, warmup=100, chains=2, seed=0).predict(x[400:])
        assert abs(rb.metrics.coverage(y[400:], *p.interval(0.9)) - 0.9) < 0.06
        assert rb.metrics.coverage(y[400:], *p.credible_interval(0.9)) < 0.3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("log_rate", [20.0, 34.5, 40.0, 85.0])
def test_an_interval_of_large_counts_holds_their_mean(log_rate, dtype):
    x = np.zeros((20, 1))
    model = rb.Model([rb.Dense(1)], input_shape=(1,))
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Poisson(), "dtype": dtype}
    target = rb.Posterior(model, x, np.zeros(20), **options)
    hmc = HMC(target, step_size=1e-30, num_leapfrog_steps=1)
    draws = hmc.sample(8, chains=2, warmup=0, init=np.array([0.0, log_rate]), predict_at=x[:2])
    for p in (draws.predict(x[:2]), draws.prediction):
        np.testing.assert_allclose(p.mean, np.exp(log_rate), rtol=1e-14)
    lower, upper = draws.predict(x[:2]).interval(0.9)
    assert (lower <= p.mean).all()
    assert (p.mean <= upper).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_probabilities_of_classes_sum_to_one_in_float64(dtype):
    x = np.random.default_rng(5).normal(size=(40, 2))
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Categorical(), "dtype": dtype}
    target = rb.Posterior(rb.mlp(2, (6,), 3), x, np.arange(40) % 3, **options)
    draws = HMC(target, step_size=0.01, num_leapfrog_steps=3).sample(
        7, warmup=0, chains=2, predict_at=x
    )
    ensemble = rb.DeepEnsemble(target, members=2).fit(2, progress=False)
    for p in (draws.predict(x), draws.prediction, ensemble.predict(x)):
        assert p.probs.dtype == np.float64
        np.testing.assert_allclose(p.probs.sum(axis=1), 1.0, rtol=1e-15)


def test_quantiles_of_counts_are_those_of_the_mixture():
    """The smallest count that reaches the level, from the rates of all draws."""
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(40, 2)), rng.poisson(3.0, size=40)
    target = rb.Posterior(
        rb.mlp(2, (6,), 1), x, y, prior=rb.Normal(0.5), likelihood=rb.Poisson(), dtype=np.float64
    )
    draws = HMC(target, step_size=0.01, num_leapfrog_steps=10).sample(40, warmup=20, chains=2)
    found = draws.predict(x).quantile([0.05, 0.5, 0.95])
    assert found.shape[:2] == (3, 40)
    found = found.reshape(3, 40)
    rates = target.predictive(flat(draws), x).mean[:, :, 0]
    for level, count in zip([0.05, 0.5, 0.95], found, strict=True):
        assert (stats.poisson.cdf(count, rates).mean(axis=0) >= level - 1e-12).all()
        assert (stats.poisson.cdf(count - 1, rates).mean(axis=0) < level).all()


@pytest.mark.parametrize("binary", [False, True])
def test_classification_statistics(binary):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(7, 2)), rng.integers(0, 3, size=7)
    draws = HMC(Classes([1.0] * 6, 3, binary=binary), step_size=0.5, num_leapfrog_steps=3).sample(
        40, chains=2
    )
    p = draws.predict(x)
    probs = draws.predictive.predictive(flat(draws), x).probs

    def entropy(q):
        parts = -q * np.log(q) - ((1 - q) * np.log(1 - q) if binary else 0.0)
        return parts.sum(axis=-1)

    np.testing.assert_allclose(p.probs, probs.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(p.entropy, entropy(probs.mean(axis=0)), rtol=1e-12)
    information = entropy(probs.mean(axis=0)) - entropy(probs).mean(axis=0)
    np.testing.assert_allclose(p.mutual_information, information, rtol=1e-9)
    assert p.entropy.shape == p.mutual_information.shape == (7,)
    expected = logmeanexp(np.log(probs[:, np.arange(7), y])).mean()
    assert p.log_likelihood(y) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(
        p.credible_quantile(0.9), np.quantile(probs, 0.9, axis=0), rtol=1e-11
    )


def test_certain_probabilities_have_no_entropy():
    class Certain(Classes):
        def predictive(self, theta, x):
            probs = np.zeros((len(theta), len(x), 2))
            probs[..., 1] = 1.0
            return rb.protocols.PredictiveTerms(probs=probs)

    draws = HMC(Certain([1.0, 1.0], 2), step_size=0.5, num_leapfrog_steps=2).sample(5, chains=2)
    p = draws.predict(np.ones((3, 1)))
    assert (p.entropy == 0).all()
    assert (p.mutual_information == 0).all()


def test_a_rejected_proposal_counts_again(data):
    """Big steps: many rejections. The mean over accepted draws alone is another number."""
    draws = HMC(Line(SDS), step_size=0.6, num_leapfrog_steps=3).sample(60, chains=2, seed=2)
    accepted = draws.stats["accepted"]
    assert 0.1 < accepted.mean() < 0.9
    mean = draws.predict(data[0]).mean
    np.testing.assert_allclose(mean, (flat(draws) @ data[0].T).mean(axis=0)[:, None], atol=1e-13)
    only = (draws.positions[accepted] @ data[0].T).mean(axis=0)[:, None]
    assert not np.allclose(mean, only, atol=1e-3)
    running = HMC(Line(SDS), step_size=0.6, num_leapfrog_steps=3).sample(
        60, chains=2, seed=2, predict_at=data[0], save_draws=False
    )
    assert same(running.prediction.mean, mean)


STATISTICS = ("mean", "std", "epistemic_std", "aleatoric_std")


def test_chunks_change_no_bit(draws, data, monkeypatch):
    whole = draws.predict(data[0])
    expected = [getattr(whole, name) for name in STATISTICS]
    quantile, noisy = whole.credible_quantile([0.1, 0.9]), whole.quantile(0.3)
    density = whole.log_likelihood(data[1])
    for chunk in (1, 40, 300, 1000):
        monkeypatch.setattr(lazy, "CHUNK", chunk)
        monkeypatch.setattr(prediction, "_HELD", 32 * chunk)
        p = draws.predict(data[0])
        for name, value in zip(STATISTICS, expected, strict=True):
            assert same(getattr(p, name), value)
        assert same(p.credible_quantile([0.1, 0.9]), quantile)
        assert same(p.quantile(0.3), noisy)
        assert p.log_likelihood(data[1]) == density


def test_predict_at_is_predict(draws, data, monkeypatch):
    x, y = data
    hmc = HMC(Line(SDS), step_size=0.25, num_leapfrog_steps=6)
    arguments = {"chains": 3, "seed": 1, "predict_at": (x, y)}
    after = draws.predict(x)
    for call in (_running._CALL, 1):  # rows all at once, and 32 at a time
        monkeypatch.setattr(_running, "_CALL", call)
        for keep in (True, False):
            run = hmc.sample(50, save_draws=keep, **arguments)
            p = run.prediction
            for name in STATISTICS:
                assert same(getattr(p, name), getattr(after, name))
            assert p.log_likelihood() == after.log_likelihood(y)
            assert same(p.credible_quantile([0.1, 0.9]), after.credible_quantile([0.1, 0.9]))
            assert same(p.quantile([0.1, 0.9]), after.quantile([0.1, 0.9]))
            assert same(p.cdf(y), after.cdf(y))
            assert same(p.sample(7), after.sample(7))
            assert p.crps(y) == after.crps(y)
            assert p.num_draws == 150
    assert run.positions.shape == (3, 0, 3)
    assert len(run) == 50


def test_predict_at_with_many_rows_per_call():
    x = np.random.default_rng(0).normal(size=(100, 3))
    hmc = HMC(Line(SDS), step_size=0.25, num_leapfrog_steps=6)
    whole = hmc.sample(5, chains=2, predict_at=x).prediction
    patch = pytest.MonkeyPatch()
    with patch.context() as inside:
        inside.setattr(_running, "_CALL", 1)
        parts = hmc.sample(5, chains=2, predict_at=x).prediction
    assert same(whole.mean, parts.mean)
    assert same(whole.std, parts.std)


SIZE = 2 * 11 * 8 + 8  # bytes of what a draw of two chains predicts, and its noise


@pytest.mark.parametrize(("fit", "thin"), [(700, 1), (699, 2), (64, 16), (7, 128), (1, 1024)])
def test_evenly_spaced_draws_are_kept(data, fit, thin, monkeypatch):
    """The fewest doublings after which they fit; the quantiles are exactly those of these draws."""
    monkeypatch.setattr(_running, "_KEPT", fit * SIZE)
    hmc = HMC(Line(SDS), step_size=0.25, num_leapfrog_steps=2)
    options = {"chains": 2, "progress": False}
    p = hmc.sample(700, predict_at=data[0], save_draws=False, **options).prediction
    mean = np.sum(hmc.sample(700, **options).positions[:, :, None] * data[0], axis=-1)  # (2, D, N)

    def quantiles(first, step):
        values = np.sort(mean[:, first::step].reshape(-1, 11, 1), axis=0)
        return sorted_quantile(np, np.moveaxis(values, 0, -1), [0.05, 0.5])

    found = p.credible_quantile([0.05, 0.5])
    assert same(found, quantiles(0, thin))
    assert p.running.kept.values.shape[0] == 2 * -(-700 // thin) <= 2 * fit
    if thin > 1:  # control: other draws have other quantiles
        assert not same(found, quantiles(0, 1))
        assert not same(found, quantiles(1, thin)) or thin == 1024


def test_kept_predictions_of_a_run_that_goes_on(data, monkeypatch, tmp_path):
    """A folder, left again and again, also between two draws that are kept: the same bits."""

    class Stops(Line):
        calls, every = 0, 10**9

        def predictive(self, theta, x):
            self.calls += 1
            if self.calls % self.every == 0:
                raise KeyboardInterrupt
            return super().predictive(theta, x)

    monkeypatch.setattr(_running, "_KEPT", 20 * SIZE)
    hmc = HMC(Stops(SDS), step_size=0.25, num_leapfrog_steps=2)
    options = {"chains": 2, "predict_at": data[0], "save_draws": False, "progress": False}
    whole = hmc.sample(150, **options).prediction
    assert whole.running._thin == 8
    monkeypatch.setattr("ribbit.sample._SECONDS", 0.0)  # a block is one draw
    monkeypatch.setattr(Stops, "every", 45)
    left = 0
    while True:
        try:
            last = hmc.sample(150, store=tmp_path / "run", **options)
            break
        except KeyboardInterrupt:
            left += 1
    assert left > 2
    assert same(last.prediction.credible_quantile([0.1, 0.9]), whole.credible_quantile([0.1, 0.9]))
    assert same(last.prediction.running.kept.mean, whole.running.kept.mean)
    assert whole.running.kept.mean.shape[0] == 2 * 19


def test_memory_does_not_grow_with_the_draws(monkeypatch):
    import tracemalloc

    monkeypatch.setattr(_running, "_KEPT", 1 << 20)
    x = np.random.default_rng(0).normal(size=(20_000, 3))  # beside which what R-hat needs is small
    hmc = HMC(Line(SDS), step_size=0.25, num_leapfrog_steps=1)
    peaks = []
    for draws in (50, 400):
        tracemalloc.start()
        hmc.sample(draws, chains=1, predict_at=x, save_draws=False, progress=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_keep(draws, data):
    p = draws.predict(data[0], keep=True)
    assert p.samples.shape == (3, 50, 11, 1)
    np.testing.assert_allclose(p.samples[1, 7, :, 0], data[0] @ draws.positions[1, 7])
    calls = []
    p._predictive = type("Counted", (), {"kind": "regression", "predictive": calls.append})()
    lazy = draws.predict(data[0])
    assert same(p.mean, lazy.mean)
    assert calls == []
    p._predictive = draws.predictive
    assert same(p.credible_quantile(0.2), lazy.credible_quantile(0.2))
    assert same(p.quantile(0.2), lazy.quantile(0.2))


def test_nothing_is_computed_before_it_is_asked_for(draws, data):
    class Never:
        kind = "regression"

        def predictive(self, theta, x):
            raise AssertionError

    p = Prediction(Never(), data[0], positions=draws.positions)
    assert "11 rows, 150 draws" in repr(p)


def test_errors(draws, data):
    x, y = data
    p = draws.predict(x)
    with pytest.raises(TypeError, match=r"\[Prediction\.probs\] expected a classification"):
        _ = p.probs
    classes = HMC(Classes([1.0] * 4, 2), step_size=0.5, num_leapfrog_steps=2).sample(4, chains=2)
    q = classes.predict(np.ones((3, 2)))
    for name in set(STATISTICS) - {"epistemic_std"}:
        with pytest.raises(TypeError, match="ask for probs"):
            getattr(q, name)
    for call in (lambda: q.quantile(0.5), lambda: q.interval(0.9)):
        with pytest.raises(TypeError, match=r"where y is a label: .* credible_quantile"):
            call()
    for bad in (0.0, 1.0, 90):
        for call in (p.interval, p.credible_interval):
            with pytest.raises(ValueError, match=r"interval\] expected coverage in \(0, 1\), got"):
                call(bad)
    for bad in (-0.1, 1.5, [0.5, math.nan], [], [[0.5]]):
        with pytest.raises(ValueError, match="q "):
            p.credible_quantile(bad)
    for bad in (0.0, 1.0):
        with pytest.raises(ValueError, match=r"\(0, 1\)"):
            p.quantile(bad)
    with pytest.raises(ValueError, match=r"y with 11 rows, got shape \(3, 1\)"):
        p.log_likelihood(y[:3])
    with pytest.raises(ValueError, match="expected y"):
        p.log_likelihood()
    with pytest.raises(ValueError, match="keep=True"):
        _ = p.samples
    with pytest.raises(ValueError, match="N >= 1"):
        draws.predict(x[:0])
    plain = HMC(Gaussian(SDS), step_size=0.5, num_leapfrog_steps=2).sample(3, init=np.zeros(3))
    with pytest.raises(TypeError, match="target with predictions"):
        plain.predict(x)


def test_errors_without_kept_draws(data, monkeypatch):
    x, y = data
    hmc = HMC(Line(SDS), step_size=0.25, num_leapfrog_steps=2)
    run = hmc.sample(5, chains=2, predict_at=x, save_draws=False)
    with pytest.raises(ValueError, match="save_draws=False"):
        run.predict(x)
    monkeypatch.setattr(_running, "_KEPT", 2 * 11 * 8)  # without the noise of a draw
    large = hmc.sample(5, chains=2, predict_at=x, save_draws=False).prediction
    for call in (large.credible_quantile, large.quantile):
        with pytest.raises(ValueError, match=r"take more than 64 MiB\. Predict at fewer rows, or"):
            call(0.5)
    large._moments.count = 0
    with pytest.raises(ValueError, match="expected at least one draw, got none"):
        large.quantile(0.5)
    with pytest.raises(ValueError, match=r"predict_at=\(x, y\)"):
        run.prediction.log_likelihood(y)
    with pytest.raises(ValueError, match="y with 11 rows"):
        hmc.sample(5, predict_at=(x, y[:4]))
    with pytest.raises(ValueError, match=r"\(x, y\)"):
        hmc.sample(5, predict_at=(x, y, 3))


@pytest.mark.parametrize(
    "likelihood",
    [one for one in EVERY if one.kind != "classification"],
    ids=lambda v: type(v).__name__,
)
def test_posteriors(likelihood):
    """The real thing: streamed statistics against the oracle of all outputs at once."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 2))
    y = rng.poisson(2.0, size=40) if isinstance(likelihood, rb.Poisson) else np.sin(x[:, 0])
    outputs = 2 if isinstance(likelihood, rb.HeteroscedasticGaussian) else 1
    target = rb.Posterior(
        rb.mlp(2, (6,), outputs), x, y[:, None], prior=rb.Normal(0.5), likelihood=likelihood
    )
    draws = HMC(target, step_size=0.001, num_leapfrog_steps=10).sample(
        30, chains=2, predict_at=(x[:9], y[:9, None])
    )
    p = draws.predict(x[:9])
    terms = target.predictive(flat(draws), x[:9])
    mean = terms.mean.astype(float)
    noise = np.broadcast_to(terms.noise_sd.astype(float), mean.shape)
    np.testing.assert_allclose(p.mean, mean.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(p.aleatoric_std**2, (noise**2).mean(axis=0), rtol=1e-10)
    total = mean.var(axis=0) + (noise**2).mean(axis=0)
    np.testing.assert_allclose(p.std**2, total, rtol=1e-8)
    if isinstance(likelihood, rb.Poisson):  # its rates round as NumPy's exp and as ours, in float64
        np.testing.assert_allclose(draws.prediction.mean, p.mean, rtol=1e-14)
    else:
        assert same(draws.prediction.mean, p.mean)
        assert same(draws.prediction.epistemic_std, p.epistemic_std)
        # so does the exp of a learned noise, in float64
        np.testing.assert_allclose(draws.prediction.std, p.std, rtol=1e-14)
    if likelihood == rb.Gaussian(0.3):
        assert same(draws.prediction.std, p.std)
    density = target.log_likelihood(flat(draws), x[:9], y[:9])
    assert p.log_likelihood(y[:9]) == pytest.approx(logmeanexp(density).mean(), rel=1e-10)
    assert draws.prediction.log_likelihood() == p.log_likelihood(y[:9])


def test_log_mean_exp_takes_any_order_of_magnitude():
    values = np.array([[-1e5, -np.inf], [-1.0, -np.inf], [-2e5, -np.inf]])
    running = _running.LogMeanExp()
    running.add(values[:1])
    running.add(values[1:])
    assert running._top[0] + math.log(running._sum[0] / 3) == pytest.approx(-1.0 - math.log(3))
    assert running.mean_over_rows() == -math.inf


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_log_mean_exp_does_not_depend_on_blocks(scale):
    rng = np.random.default_rng(0)
    values = scale * rng.normal(size=(300, 7))
    values[rng.random(values.shape) < 0.02] = values[:3, 0] = -np.inf
    found = []
    for size in (1, 7, 300):
        running = _running.LogMeanExp()
        for low in range(0, 300, size):
            running.add(values[low : low + size])
        found.append((running._top.tobytes(), running._sum.tobytes(), running.count))
    assert len(set(found)) == 1
