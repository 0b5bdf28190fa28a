"""The samplers, draws and predictions on a strict array type that is not NumPy."""

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.namespace import namespace
from ribbit.samplers import HMC, MCLMC, SWAG
from ribbit.store import load
from tests.support.targets import Line

strict = pytest.importorskip("array_api_strict")

# the same short runs in two libraries: whether they have converged does not matter
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
SDS = [1.0, 2.0, 0.3]
X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
Y = np.zeros((5, 1), np.float32)


def line(xp):
    return Line(SDS, xp, np.float32)


def pair(options, **arguments):
    """The same run on strict arrays and on NumPy."""
    return [
        HMC(line(xp), **options).sample(
            12, seed=4, predict_at=(xp.asarray(X), xp.asarray(Y)), **arguments
        )
        for xp in (strict, np)
    ]


def close(a, b, **tolerance):
    assert isinstance(a, type(strict.asarray(0.0))), type(a)
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), **tolerance)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"step_size": 0.2, "num_leapfrog_steps": 4}, {"chains": 3}),
        (
            {"step_size": 0.2, "trajectory_length": 0.9, "step_size_jitter": 0.2},
            {"chains": 2, "thin": 3},
        ),
        ({"step_size": "auto", "inverse_mass_matrix": "adapt"}, {"chains": 2, "warmup": 25}),
        ({"step_size": 0.3, "inverse_mass_matrix": [1.0, 4.0, 0.1]}, {"init": [0.1, 0.2, 0.3]}),
        ({"step_size": 0.2, "num_leapfrog_steps": 4}, {"save_draws": False}),
    ],
)
def test_a_run_is_that_on_numpy(options, arguments):
    """Equal up to the rounding of sums; trajectories here are short and stable."""
    a, b = pair(options, **arguments)
    close(a.positions, b.positions, rtol=1e-3, atol=1e-4)
    for name in b.stats:
        close(a.stats[name], b.stats[name], rtol=2e-3, atol=2e-3)
    for name in ("mean", "std", "epistemic_std", "aleatoric_std"):
        close(getattr(a.prediction, name), getattr(b.prediction, name), rtol=1e-2, atol=1e-3)
    assert a.prediction.log_likelihood() == pytest.approx(b.prediction.log_likelihood(), rel=1e-3)
    medians = [run.prediction.credible_quantile([0.5]) for run in (a, b)]
    close(*medians, rtol=1e-2, atol=1e-3)
    assert repr(a) == repr(b)


def test_predict_and_resume():
    options = {"step_size": 0.2, "num_leapfrog_steps": 4}
    a, b = pair(options, chains=2)
    p, q = a.predict(strict.asarray(X)), b.predict(X)
    close(p.mean, q.mean, rtol=1e-3, atol=1e-4)
    close(p.credible_quantile([0.1, 0.9]), q.credible_quantile([0.1, 0.9]), rtol=1e-3, atol=1e-4)
    close(p.quantile(0.1), q.quantile(0.1), rtol=1e-3, atol=1e-4)
    assert p.log_likelihood(strict.asarray(Y)) == pytest.approx(q.log_likelihood(Y), rel=1e-3)
    kept = a.predict(strict.asarray(X), keep=True)
    close(kept.samples, b.predict(X, keep=True).samples, rtol=1e-3, atol=1e-3)
    hmc = HMC(line(strict), **options)
    whole = hmc.sample(6, chains=2, seed=4)
    rest = hmc.sample(3, resume=hmc.sample(3, chains=2, seed=4))
    close(rest.positions, whole.positions[:, 3:, :], rtol=0, atol=0)


def test_predictions_without_draws(monkeypatch):
    """Of some of them: what is kept, thinned and joined stays in the library of the run."""
    monkeypatch.setattr("ribbit.results.running._KEPT", 400)
    options = {"step_size": 0.2, "num_leapfrog_steps": 1}
    a, b = pair(options, thin=2, chains=2, save_draws=False)
    p, q = a.prediction, b.prediction
    assert p.running._thin == q.running._thin > 1
    close(p.credible_quantile([0.1, 0.9]), q.credible_quantile([0.1, 0.9]), rtol=1e-2, atol=1e-3)
    close(p.quantile(0.1), q.quantile(0.1), rtol=1e-2, atol=1e-3)
    close(p.cdf(strict.asarray(Y)), q.cdf(Y), rtol=1e-2, atol=1e-3)
    assert p.sample(7).shape == q.sample(7).shape


def test_a_lost_proposal_is_rejected():
    class Wall(Line):
        def value_and_grad(self, theta, rows=None):
            xp = self.array_namespace
            lp, grad = super().value_and_grad(theta)
            return xp.where(theta[:, 0] > 0.2, xp.nan, lp), grad

    target = Wall(SDS, strict, np.float32)
    draws = HMC(target, step_size=0.2, num_leapfrog_steps=4).sample(60, init=[0.0, 0.0, 0.0])
    assert float(strict.max(draws.positions[:, :, 0])) <= 0.2
    assert bool(strict.any(draws.stats["diverging"]))


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({}, {"warmup": 150, "thin": 5}),
        (
            {"inverse_mass_matrix": "adapt", "integrator": "mclachlan"},
            {"warmup": 120, "thin": 2},
        ),
        ({"step_size": 0.3, "decoherence_length": 2.0}, {"warmup": 0, "thin": 1}),
        ({"adjusted": True, "inverse_mass_matrix": "adapt"}, {"warmup": 30}),
    ],
)
def test_mclmc_is_that_on_numpy(options, how):
    a, b = (
        MCLMC(line(xp), max_num_leapfrog_steps=20, **options).sample(8, chains=2, seed=4, **how)
        for xp in (strict, np)
    )
    close(a.positions, b.positions, rtol=2e-3, atol=2e-3)
    assert set(a.stats) == set(b.stats)
    for name in a.stats:
        close(a.stats[name], b.stats[name], rtol=2e-2, atol=1e-3, err_msg=name)
    assert "R-hat" in a.summary().text


def test_save_and_datatree(tmp_path):
    draws = HMC(line(strict), step_size=0.2, num_leapfrog_steps=2).sample(4, chains=2)
    object.__setattr__(draws, "predictive", None)  # the description of this target is not ours
    draws.save(tmp_path / "run")
    back = load(tmp_path / "run")
    assert isinstance(back.positions, np.ndarray)
    close(draws.positions, back.positions, rtol=0, atol=0)
    if pytest.importorskip("arviz_base"):
        assert draws.to_datatree()["posterior"]["theta"].shape == (2, 4, 3)


def test_progress_of_a_run(monkeypatch):
    seen = []
    HMC(line(strict), step_size=0.2, num_leapfrog_steps=2).sample(
        9, chains=2, progress=seen.append, warmup=0
    )
    assert seen[-1]["done"] == 9
    assert len(seen[-1]["acceptance_rate"]) == 2


def test_libraries_are_not_mixed():
    hmc = HMC(line(strict), step_size=0.2, num_leapfrog_steps=2)
    with pytest.raises(TypeError, match="init as array_api_strict array"):
        rb.Chains(hmc, np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="init as numpy array"):
        rb.Chains(HMC(line(np), num_leapfrog_steps=2), strict.zeros(3))
    with pytest.raises(TypeError, match="inverse_mass_matrix"):
        HMC(line(np), inverse_mass_matrix=strict.ones(3))
    with pytest.raises(TypeError, match="one library, got numpy and array_api_strict"):
        namespace(np.zeros(2), strict.zeros(2))
    with pytest.raises(TypeError, match="expected a NumPy or CuPy array, got list"):
        namespace([1.0])


def test_an_optimiser_s_moments_are_those_on_numpy():
    a, b = (
        SWAG(line(xp), members=2, learning_rate=0.1, batch_size=None).fit(
            3, swag_epochs=5, init=xp.asarray(X[:2]), progress=False
        )
        for xp in (strict, np)
    )
    for name in ("mean", "squares", "deviations", "variance"):
        close(getattr(a, name), getattr(b, name), rtol=1e-4, atol=1e-6)
    close(a.draws(7, seed=2).positions, b.draws(7, seed=2).positions, rtol=1e-4, atol=1e-6)
    close(a._starts(None, 2), b._starts(None, 2), rtol=1e-4, atol=1e-6)
    again = SWAG(line(strict), members=2, learning_rate=0.1, batch_size=None)
    assert again.fit(0, swag_epochs=2, resume=a, progress=False).count == 7
    assert again.fit(0, swag_epochs=2, init=a, progress=False).count == 2
