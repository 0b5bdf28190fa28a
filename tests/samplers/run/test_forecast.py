"""What a run says early: of data without noise, and of trajectories without end."""

import re
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import NoiseWarning, RibbitWarning


def problem(noise_prior, **options):
    """Five rows of a line, and a prior that decides what the noise sd is."""
    x = np.linspace(-1.0, 1.0, 5)[:, None]
    likelihood = rb.Gaussian(log_noise_prior=noise_prior)
    return rb.Posterior(rb.mlp(1, (), 1), x, 2.0 * x, likelihood=likelihood, **options)


def run(target, **options):
    """Warmup of 60: trajectories are looked at behind its 30th transition."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoiseWarning)
        warnings.simplefilter("ignore", rb.errors.ConvergenceWarning)
        warnings.filterwarnings("ignore", ".*within 20 prior standard deviations")  # on their way
        return rb.HMC(target, **options).sample(20, warmup=60, seed=1, progress=False)


NONE = rb.Normal(0.1, mean=-8.0)  # of the log noise: an sd of 3e-4
SOME = rb.Normal(0.1, mean=-1.0)


@pytest.mark.parametrize("options", [{}, {"standardize": True}])
def test_data_without_noise_are_named_early(options):
    target = problem(NONE, prior=rb.Normal(1.0), marginalize=None, **options)
    with pytest.raises(NoiseWarning, match=r"^\[HMC.sample\] expected data with noise") as caught:
        run(target)
    text = str(caught.value)
    assert re.search(r"after ([45]\d|60) of 80 transitions", text)  # in warmup
    assert "of the sd of y" in text
    assert "seconds" in text
    assert "GammaPrecision(3.0, " in text
    assert ("standardised units" in text) == bool(options)
    assert len(caught.value.draws) == 0  # resume= goes on


def test_the_marginal_density_too(monkeypatch):
    monkeypatch.setattr("ribbit.sample._LONG", 1.0)
    with pytest.raises(NoiseWarning, match="expected data with noise"):
        run(problem(NONE, prior=rb.Normal(1.0), marginalize="last_layer"))


@pytest.mark.parametrize(
    ("prior", "options"),
    [
        (SOME, {}),  # noise
        (NONE, {"trajectory_length": 1e-3}),  # short trajectories
        (NONE, {"num_leapfrog_steps": 1200}),  # as long as was asked for
    ],
)
def test_nothing_is_said_of_others(prior, options):
    run(problem(prior, prior=rb.Normal(1.0), marginalize=None), **options)


@pytest.mark.filterwarnings("ignore:.*default length takes at most:ribbit.errors.RibbitWarning")
def test_long_runs_are_foreseen(monkeypatch):
    """Any other posterior that is far narrower than its prior: of any target."""
    monkeypatch.setattr("ribbit.sample._PATIENCE", 0.0)

    class Narrow(rb.CallableDensity):
        shared_prior_sd = 1.0

    def density(theta):
        scaled = np.clip(theta / 1e-4, -1e6, 1e6)  # far off while the step is looked for
        return -0.5 * float(scaled @ scaled), -1e4 * scaled

    # an error here, which ends the run: it has said what it had to
    with pytest.raises(RibbitWarning, match="expected trajectories of some hundred") as caught:
        rb.HMC(Narrow(density, 2)).sample(
            2, warmup=36, seed=1, chains=1, init=np.zeros(2), progress=False
        )
    assert "num_leapfrog_steps=200" in str(caught.value)
    assert "MCLMC" in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*default length takes at most:ribbit.errors.RibbitWarning")
def test_draws_do_not_depend_on_it(monkeypatch):
    target = problem(NONE, prior=rb.Normal(1.0), marginalize=None)
    hmc, how = rb.HMC(target), {"warmup": 36, "seed": 1, "progress": False}
    with pytest.warns(NoiseWarning, match="expected data with noise"):
        told = hmc.sample(2, **how)
    monkeypatch.setattr(rb.HMC, "_settled", lambda *_: None)
    assert hmc.sample(2, **how).positions.tobytes() == told.positions.tobytes()
