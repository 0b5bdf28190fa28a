"""Gate "posteriordb": HMC on user log densities against Stan's reference draws.

Means within 5.5 combined Monte Carlo standard errors (256 batch means against about 10,000
effective reference draws: false-fail rate under 2e-7 per parameter, 38 parameters) and standard
deviations within 5 % (each known to about 1 %).
"""

import ctypes

import numpy as np
import pytest

import ribbit as rb
from tests.gates.posteriordb_models import MODELS, quiet
from tests.support.gates import Table, agreement

CHAINS = 64
# draws of each chain, and the trajectory in whitened units: correlated posteriors need longer ones
SETTINGS = {
    "sblrc-blr": {"draws": 400},
    "kidiq-kidscore_interaction": {"draws": 500, "trajectory_length": 2.5},
    "nes2000-nes": {"draws": 400, "trajectory_length": 2.5},
    "arK-arK": {"draws": 400},
    "eight_schools-eight_schools_noncentered": {"draws": 500},
}
QUICK = ("eight_schools-eight_schools_noncentered",)


def load(folder, name):
    with np.load(folder / "posteriordb" / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def sample(target, model, *, draws, trajectory_length=None, chains=CHAINS, warmup=500, seed=1):
    hmc = rb.HMC(
        target,
        step_size="auto",
        inverse_mass_matrix="adapt",
        trajectory_length=trajectory_length,
        step_size_jitter=0.2,
        # before the first mass is known a trajectory of pi/2 would take thousands of steps; later
        # those of random length take up to 400
        max_num_leapfrog_steps=500,
    )
    return hmc.sample(
        draws, warmup=warmup, chains=chains, seed=seed, init=model.start(), progress=False
    )


def run(folder, name):
    """Agreement with the reference, the draws, and the constrained positions."""
    data = load(folder, name)
    model = MODELS[name](data)
    target = rb.CallableDensity(model, model.dim, batched=True)
    draws = sample(target, model, **SETTINGS[name])
    reference_error = data["sd"] / np.sqrt(data["ess_bulk"])
    positions = model.constrain(draws.positions)
    return agreement(positions, data["mean"], data["sd"], reference_error), draws, data, positions


@pytest.mark.parametrize("name", MODELS)
def test_gradients_match_central_differences(shared_data, name):
    model = MODELS[name](load(shared_data, name))
    rng = np.random.default_rng(0)
    theta = model.start() + 0.1 * rng.normal(size=model.dim)
    scale = np.maximum(np.abs(theta), 0.1)
    for i in range(model.dim):
        h = 1e-5 * scale[i] * (np.arange(model.dim) == i)
        central = (model((theta + h)[None])[0] - model((theta - h)[None])[0]) / (2 * h[i])
        grad = model(theta[None])[1][0, i]
        assert grad == pytest.approx(central[0], rel=1e-5, abs=1e-4)


# in warmup; none of the draws is cut, as is asserted
@pytest.mark.filterwarnings(
    "ignore:.*expected at most 500 leapfrog steps:ribbit.errors.RibbitWarning"
)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MODELS]
)
def test_draws_agree_with_the_reference(shared_data, name):
    found, draws, data, positions = run(shared_data, name)
    assert found.mean_errors <= 5.5
    assert found.sd_error <= 0.05
    assert np.mean(draws.stats["acceptance_rate"]) > 0.6
    assert np.mean(draws.stats["diverging"]) < 0.02
    assert not np.any(draws.stats["capped"])
    # controls: one parameter shifted by a fifth of its sd, all sds 6 % off
    error = data["sd"] / np.sqrt(data["ess_bulk"])
    shifted = data["mean"] + 0.2 * data["sd"] * (np.arange(error.size) == 0)
    assert not agreement(positions, shifted, data["sd"], error).holds
    assert not agreement(positions, data["mean"], 1.12 * data["sd"], error).holds


def test_a_wrong_prior_is_noticed(shared_data):
    # control of the whole path: tau's half-Cauchy(5) replaced by half-Cauchy(2.5)
    data = load(shared_data, "eight_schools-eight_schools_noncentered")
    model = MODELS["eight_schools-eight_schools_noncentered"](data)

    @quiet
    def wrong(theta):
        lp, grad = model(theta)
        variance = np.exp(2 * theta[:, 9])
        lp = lp + np.log1p(variance / 25) - np.log1p(variance / 6.25)
        grad[:, 9] += 2 * variance / (25 + variance) - 2 * variance / (6.25 + variance)
        return lp, grad

    draws = sample(rb.CallableDensity(wrong, 10, batched=True), model, draws=300)
    error = data["sd"] / np.sqrt(data["ess_bulk"])
    assert not agreement(model.constrain(draws.positions), data["mean"], data["sd"], error).holds


DENSITY = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_double),
    ctypes.POINTER(ctypes.c_double),
    ctypes.POINTER(ctypes.c_double),
    ctypes.c_void_p,
)


# forty draws in all
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_a_ctypes_pointer_walks_the_same_chain_as_the_callable(shared_data):
    data = load(shared_data, "arK-arK")
    model = MODELS["arK-arK"](data)

    @DENSITY
    def density(n, x, grad, lp, user):
        theta = np.ctypeslib.as_array(x, (n,))
        values, gradients = model(theta[None])
        np.ctypeslib.as_array(grad, (n,))[:] = gradients[0]
        lp[0] = values[0]
        return 0

    address = ctypes.cast(density, ctypes.c_void_p).value
    pointer = rb.CallableDensity.from_pointer(address, model.dim)
    callable_ = rb.CallableDensity(model, model.dim, batched=True)
    options = {"step_size": 0.004, "num_leapfrog_steps": 8}
    runs = [
        rb.HMC(target, **options).sample(
            20, warmup=0, chains=2, seed=4, init=model.start(), progress=False
        )
        for target in (pointer, callable_)
    ]
    np.testing.assert_allclose(runs[0].positions, runs[1].positions, rtol=0, atol=1e-8)
    assert np.mean(runs[0].stats["accepted"]) > 0.5


def numba_eight_schools(data):
    """A C function of the eight schools, compiled by numba: no Python while sampling."""
    numba = pytest.importorskip("numba")
    y, sigma = data["data_y"].astype(float), data["data_sigma"].astype(float)
    doubles = numba.types.CPointer(numba.types.double)
    signature = numba.types.intc(numba.types.uintp, doubles, doubles, doubles, numba.types.voidptr)

    @numba.cfunc(signature)
    def density(n, x, grad, lp, user):
        theta = numba.carray(x, n)
        out = numba.carray(grad, n)
        mu, tau = theta[8], np.exp(theta[9])
        value = -0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2) + theta[9]
        out[8] = -mu / 25
        out[9] = 1 - 2 * tau**2 / (25 + tau**2)
        for j in range(8):
            residual = (y[j] - mu - tau * theta[j]) / sigma[j]
            value += -0.5 * theta[j] ** 2 - 0.5 * residual**2
            out[j] = -theta[j] + tau * residual / sigma[j]
            out[8] += residual / sigma[j]
            out[9] += tau * theta[j] * residual / sigma[j]
        lp[0] = value
        return 0

    return density


def test_a_numba_function_agrees_with_the_reference(shared_data):
    name = "eight_schools-eight_schools_noncentered"
    data = load(shared_data, name)
    model = MODELS[name](data)
    density = numba_eight_schools(data)
    target = rb.CallableDensity.from_pointer(density.address, 10, threadsafe=True)
    theta = model.start() + np.random.default_rng(1).normal(size=(5, 10))
    lp, grad = target.value_and_grad(theta)
    known, known_grad = model(theta)
    np.testing.assert_allclose(lp, known, rtol=1e-12)
    np.testing.assert_allclose(grad, known_grad, rtol=1e-10, atol=1e-12)
    draws = sample(target, model, draws=1500)
    error = data["sd"] / np.sqrt(data["ess_bulk"])
    found = agreement(model.constrain(draws.positions), data["mean"], data["sd"], error)
    assert found.mean_errors <= 5.5
    assert found.sd_error <= 0.05


def results(folder):
    table = Table(
        "posteriordb",
        (
            "posterior",
            "largest error of a mean (MCSE)",
            "largest error of a sd",
            "acceptance",
            "diverging",
            "leapfrog steps per draw",
        ),
        note=f"HMC with {CHAINS} chains, step size and mass matrix adapted, compared with "
        "reference draws of Stan. Gate: means within 5.5 combined MCSE, sds within 5 %.",
    )
    for name in MODELS:
        found, draws, _, _ = run(folder, name)
        stats = draws.stats
        table.add(
            name,
            f"{found.mean_errors:.2f}",
            f"{100 * found.sd_error:.2f} %",
            f"{np.mean(stats['acceptance_rate']):.3f}",
            f"{100 * np.mean(stats['diverging']):.2f} %",
            f"{np.mean(stats['n_steps']):.1f}",
            holds=found.holds,
        )
    return [table]
