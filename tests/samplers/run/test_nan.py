"""A target that is NaN somewhere: errors and warnings say so."""

import dataclasses

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import NonFiniteError

DIM = 3
KINDS = {"both": (True, True), "value": (True, False), "gradient": (False, True)}
STOCHASTIC = {
    "SGLD": lambda t: rb.SGLD(t, step_size=0.01, batch_size=None),
    "SGHMC": lambda t: rb.SGHMC(t, step_size=0.01, batch_size=None),
    "BAOAB": lambda t: rb.BAOAB(t, step_size=0.01, batch_size=None),
}
OTHERS = {
    "HMC": lambda t: rb.HMC(t, step_size=0.3, num_leapfrog_steps=5),
    "NUTS": lambda t: rb.NUTS(t, step_size=0.3),
    "MCLMC": lambda t: rb.MCLMC(t, step_size=0.3, decoherence_length=2.0),
    "adjusted": lambda t: rb.MCLMC(t, step_size=0.3, decoherence_length=2.0, adjusted=True),
}


def density(kind, after):
    """Return a normal density that is NaN from its call number `after` on."""
    value, gradient = KINDS[kind]
    calls = 0

    def log_density(q):
        nonlocal calls
        calls += 1
        lost = np.nan if calls > after else 1.0
        return (
            -0.5 * float(q @ q) * (lost if value else 1.0),
            -q * (lost if gradient else 1.0),
        )

    return rb.CallableDensity(log_density, DIM)


@pytest.mark.parametrize("warmup", [0, 100])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampler", STOCHASTIC)
def test_steps_without_rejection_end_with_an_error_that_says_nan(sampler, kind, warmup):
    run = STOCHASTIC[sampler](density(kind, 50))
    with pytest.raises(NonFiniteError, match=r"\|gradient\| NaN: .* is NaN where") as caught:
        run.sample(200, warmup=warmup, thin=1, chains=1, init=np.ones(DIM), progress=False)
    assert np.isfinite(caught.value.state.position).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fit", [rb.DeepEnsemble, rb.SWAG])
def test_fits_end_with_an_error_that_says_nan(fit, kind):
    with pytest.raises(NonFiniteError, match=r"\|gradient\| NaN: .* is NaN where"):
        fit(density(kind, 20), members=1, batch_size=None).fit(
            50, init=np.ones(DIM), progress=False
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [20, 120])  # all draws diverge, or some of them
@pytest.mark.parametrize("sampler", OTHERS)
def test_divergences_by_nan_are_warned_of_as_such(sampler, after, kind):
    run = OTHERS[sampler](density(kind, after))
    with pytest.warns(Warning, match="NaN at finite parameters"):
        run.sample(200, warmup=0, thin=1, chains=1, init=np.ones(DIM), progress=False)


def test_divergences_without_nan_are_not():
    def cliff(q):  # steep, and finite everywhere
        return -0.5e6 * float(q @ q), -1e6 * q

    run = rb.HMC(rb.CallableDensity(cliff, DIM), step_size=0.3, num_leapfrog_steps=5)
    with pytest.warns(Warning, match="diverged") as found:
        run.sample(50, warmup=0, chains=1, init=np.zeros(DIM), progress=False)
    assert not any("NaN" in str(one.message) for one in found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampler", STOCHASTIC | OTHERS)
def test_a_first_nan_is_named(sampler, kind):
    run = (STOCHASTIC | OTHERS)[sampler](density(kind, 0))
    with pytest.raises(ValueError, match=r"finite .*, got nan"):
        run.sample(5, warmup=0, chains=1, init=np.ones(DIM), progress=False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("value", "largest"), [(np.nan, "NaN"), (np.inf, r"\S+")])
@pytest.mark.parametrize("sampler", STOCHASTIC)
def test_native_steps_say_nan(sampler, value, largest, dtype):
    x = np.linspace(-1, 1, 20)[:, None]
    target = rb.Posterior(
        rb.mlp(1, (), 1), x, x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3), dtype=dtype
    )
    run = STOCHASTIC[sampler](target)
    call = {"thin": 1, "progress": False}
    state = run.sample(1, warmup=0, init=np.zeros(target.dim), **call).state
    lost = dataclasses.replace(state, position=np.full_like(state.position, value))
    with pytest.raises(NonFiniteError, match=rf"\|gradient\| {largest}: .*use a smaller step size"):
        run.sample(1, resume=lost, **call)


def test_a_fit_in_native_code_says_nan():
    x = np.linspace(-1, 1, 20)[:, None]
    target = rb.Posterior(rb.mlp(1, (), 1), x, x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
    bbb = rb.BBB(target)
    fit = bbb.fit(1, progress=False)
    moments, step, seed, records = fit.state
    moments[0] = np.nan
    with pytest.raises(NonFiniteError, match=r"\|gradient\| NaN: .*use a smaller learning rate"):
        bbb.fit(1, resume=dataclasses.replace(fit, state=(moments, step, seed, records)))
