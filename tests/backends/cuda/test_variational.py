"""Weight samples and Bayes by Backprop on arrays of a device, against the CPU core.

Noise has the CPU's bits. softplus(rho) is the scalar source of core/math_hd.h, within 3.5 ulp of
the truth, against the CPU's vectors, for which the same holds: 7 ulp between them, float32 alone.
Eight steps differ by the summation order of gradients, and in float32 by that of softplus too:
1e-10 and 1e-4 on parameters of size 1.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit._arrays.threads import Interrupted, InterruptFlag
from ribbit._backends.cuda.programs import variational
from ribbit.errors import NonFiniteError
from ribbit.results.fits import MeanField
from tests.backends.cuda.variational_problem import (
    COUNTS,
    PRIORS,
    RNG,
    ROWS,
    Y,
    advance,
    check,
    pair,
    same,
    unchanged,
)

SIZES = [1, 2, 3, 4, 5, 7, 255, 1023, 1025, 4099]


# --- weight samples ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_weights_of_a_fit_have_the_bits_of_the_cpu(device, rng, size, dtype):
    mean = rng.normal(size=size).astype(dtype)
    scale = np.exp(3 * rng.normal(size=size)).astype(dtype)
    host, there = (MeanField(a(mean), a(scale)) for a in (np.asarray, device.asarray))
    found = there.sample(5, seed=2**63 + 1)
    np.testing.assert_array_equal(found.get(), host.sample(5, seed=2**63 + 1))
    np.testing.assert_array_equal(there.sample(3, seed=2**63 + 1).get(), found.get()[:3])
    assert np.all(there.sample(5, seed=1).get() != found.get())  # the control


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_reparameterize_is_that_of_the_cpu(device, rng, size, dtype):
    mean = rng.normal(size=size).astype(dtype)
    rho = (4 * rng.normal(size=size)).astype(dtype)
    host = rb.reparameterize(mean, rho, 4, 77, step=2**39 + 1)
    found = rb.reparameterize(device.asarray(mean), device.asarray(rho), 4, 77, step=2**39 + 1)
    assert found.dtype == dtype
    eps = np.finfo(dtype).eps
    bound = 7 * eps * np.abs(host - mean) + 2 * eps * np.abs(host) + 2 * eps * np.abs(mean)
    # Bit for bit in double where the core has a fused multiply-add, as a device has.
    exact = dtype == "float64" and _core.isa() != "baseline"
    assert np.all(np.abs(found.get() - host) <= (0 if exact else bound))
    # The noise itself: softplus(64) is 64, so that samples are 64 eps in any precision.
    big = np.full(size, 64, dtype)
    noise = [rb.reparameterize(a(0 * mean), a(big), 2, 5) for a in (np.asarray, device.asarray)]
    np.testing.assert_array_equal(noise[1].get(), noise[0])


def test_reparameterize_refuses(device):
    mean = device.asarray(np.zeros(3))
    for rho, error in (
        (np.zeros(3), TypeError),
        (device.asarray(np.zeros(3, np.float32)), TypeError),
        (device.asarray(np.zeros(4)), ValueError),
        (device.asarray(np.zeros((1, 3))), ValueError),
    ):
        with pytest.raises(error, match=r"^\[reparameterize\] expected .*rho.*, got "):
            rb.reparameterize(mean, rho, 2, 0)
    with pytest.raises(TypeError, match="rho as a NumPy array of dtype float64"):
        rb.reparameterize(np.zeros(3), mean, 2, 0)


# --- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("batch", "samples"), [(ROWS, 1), (ROWS, 3), (32, 1), (32, 3), (35, 2)])
def test_steps_are_those_of_the_cpu(device, batch, samples, closed, dtype):
    targets = pair(device, dtype=dtype, temperature=0.8, likelihood_temperature=1.3)
    check(targets, batch=batch, samples=samples, closed=closed, first=7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("prior", PRIORS)
def test_priors(device, prior, dtype):
    targets = pair(device, prior=PRIORS[prior], dtype=dtype, temperature=0.8)
    check(targets, batch=32, samples=2, closed=False)
    if targets[0].normal_prior:
        check(targets, batch=32, samples=2, closed=True)


@pytest.mark.parametrize("batch", [ROWS, 32])
@pytest.mark.parametrize("learned", [True, False])
def test_learned_noise_and_constants_of_rows(device, learned, batch):
    likelihood, y = (rb.Gaussian(), Y) if learned else (rb.Poisson(), COUNTS)
    check(pair(device, likelihood=likelihood, y=y), batch=batch, samples=2)


def test_images(device):
    """Bytes, a convolution and classes."""
    x = RNG.integers(0, 255, size=(37, 6, 5, 2)).astype(np.uint8)
    y = RNG.integers(0, 3, size=37)
    layers = [rb.Conv2D(5, 3, padding="same"), rb.FilterResponseNorm(), rb.Flatten(), rb.Dense(3)]
    model = rb.Model(layers, input_shape=x.shape[1:])
    given = {"prior": PRIORS["laplace"], "likelihood": rb.Categorical(), "dtype": "float64"}
    targets = [rb.Posterior(model, a(x), a(y), **given) for a in (np.asarray, device.asarray)]
    check(targets, batch=16, samples=2, closed=False)


def test_large_steps_of_the_40_bit_counter(device):
    steps, weights = np.full(3, 0.01), np.full(3, 0.3)
    check(pair(device), batch=32, first=2**39 + 5, step_size=steps, kl_weight=weights, closed=False)


@pytest.mark.parametrize("closed", [True, False])
def test_what_changes_no_bit(device, monkeypatch, closed):
    """Order of threads, groups of samples, calls, and the room for steps that a call finds."""
    # More than one block of threads, in every kernel.
    options = {"batch": 32, "samples": 5, "closed": closed}
    model = rb.mlp(5, (110, 20), 1)

    def target():
        return pair(device, model=model, dtype="float32", prior=PRIORS["normals"])[1]

    whole = unchanged(device, monkeypatch, target, options)
    monkeypatch.setattr(variational, "_FEWEST", 2)
    one = target()
    parts = [advance(one, steps=2, **options)]
    parts.append(advance(one, steps=5, first=2, state=parts[0][0], **options))
    parts.append(advance(one, steps=1, first=7, state=parts[1][0], **options))
    np.testing.assert_array_equal(parts[2][0].get(), whole[0].get())
    np.testing.assert_array_equal(np.concatenate([p[1] for p in parts], axis=1), whole[1])
    other = advance(target(), **options, seed=3)  # the control
    assert np.abs(other[0].get() - whole[0].get()).max() > 1e-3


def test_the_host_waits_once(device):
    if device.__name__ == "cupy":
        pytest.skip("waits are counted on the device made of the CPU")
    target = pair(device)[1]
    start = device.asarray(np.zeros((6, target.dim)))
    for steps in (1, 8):
        before = device.waits
        advance(target, steps=steps, batch=32, samples=2, state=start)
        assert device.waits == before + 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_that_fails_is_named(device, dtype):
    """The fourth step leaves what is not finite; later steps change neither that nor its report."""
    sizes = np.array([0.01, 0.01, 0.01, np.inf, 0.01, 0.01])
    host, there = (
        advance(t, step_size=sizes, kl_weight=np.full(6, 0.3), batch=32, samples=2)
        for t in pair(device, dtype=dtype)
    )
    assert there[2] == host[2] == 3
    assert there[3] == pytest.approx(host[3], rel=1e-4)
    np.testing.assert_allclose(there[1][:, :4], host[1][:, :4], rtol=1e-4)
    np.testing.assert_array_equal(np.isfinite(there[0].get()), np.isfinite(host[0]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gradient_that_is_not_finite_is_found(device, dtype):
    """Weights near the largest number: the next step has no gradient."""
    huge = {"float32": 1e30, "float64": 1e200}[dtype]
    sizes = np.array([0.01, 0.01, huge, 0.01, 0.01])
    host, there = (
        advance(t, step_size=sizes, kl_weight=np.full(5, 0.3)) for t in pair(device, dtype=dtype)
    )
    assert there[2] == host[2] == 3


def test_bad_arguments(device):
    target = pair(device)[1]
    start = device.asarray(np.zeros((6, target.dim)))
    cases = [
        ({"state": start.get()}, TypeError, "state as a .* array of dtype float64"),
        ({"state": start[:5, :]}, ValueError, "state of shape"),
        ({"state": device.astype(start, device.float32)}, TypeError, "dtype float64"),
        ({"batch": ROWS + 1}, ValueError, "batch_rows <= N"),
        ({"samples": 0}, ValueError, "samples >= 1"),
        ({"step_size": np.zeros(0), "kl_weight": np.zeros(0)}, ValueError, "at least 1"),
        ({"kl_weight": np.zeros(3)}, ValueError, "as many kl_weight"),
        ({"first": 2**40, "step_size": np.ones(1), "kl_weight": np.ones(1)}, ValueError, "2\\^40"),
        ({"estimator": "other"}, ValueError, "estimator as 'reparam' or"),
        ({"estimator": 1}, TypeError, "estimator as 'reparam' or"),
    ]
    for options, error, text in cases:
        with pytest.raises(error, match=text):
            advance(target, **options)


def test_an_interrupt_ends_a_call(device):
    flag = InterruptFlag()
    flag.set()
    target = pair(device)[1]
    with pytest.raises(Interrupted):
        advance(target, interrupt=flag)
    flag.clear()
    same(advance(target, interrupt=flag), advance(target))


# --- fits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kl", ["closed", "sampled"])
@pytest.mark.parametrize("batch", [None, 32])
def test_a_fit_is_that_of_numpy(device, batch, kl):
    fits = [
        rb.BBB(t, batch_size=batch, num_samples=2, kl=kl).fit(4, seed=3, progress=False)
        for t in pair(device, likelihood=rb.Gaussian(), temperature=0.8)
    ]
    for name in ("mean", "scale"):
        found = getattr(fits[1], name)
        np.testing.assert_allclose(found.get(), getattr(fits[0], name), rtol=0, atol=1e-10)
    for name in ("elbo", "kl", "expected_log_likelihood"):
        np.testing.assert_allclose(getattr(fits[1], name), getattr(fits[0], name), rtol=1e-10)
    assert repr(fits[1]) == repr(fits[0])


def test_a_fit_goes_on_and_starts_others(device):
    target = pair(device)[1]
    bbb = rb.BBB(target, batch_size=32)
    whole = bbb.fit(5, seed=3, progress=False)
    rest = bbb.fit(3, resume=bbb.fit(2, seed=3, progress=False), progress=False)
    np.testing.assert_array_equal(rest.mean.get(), whole.mean.get())
    np.testing.assert_array_equal(rest.scale.get(), whole.scale.get())
    np.testing.assert_array_equal(rest.elbo, whole.elbo)
    draws = whole.draws(20, seed=7)
    assert draws.positions.shape == (1, 20, target.dim)
    np.testing.assert_array_equal(draws.positions[0].get(), whole.sample(20, seed=7).get())
    hmc = rb.HMC(target, step_size=1e-3, num_leapfrog_steps=3)
    warm = hmc.sample(2, warmup=0, chains=3, seed=7, init=whole, progress=False)
    start = hmc.sample(
        2, warmup=0, seed=7, init=whole._starts(np.arange(3, dtype=np.uint32), 7), progress=False
    )
    np.testing.assert_array_equal(warm.positions.get(), start.positions.get())
    for init in (whole, whole.mean):
        again = rb.BBB(target).fit(1, init=init, progress=False)
        assert np.abs(again.mean.get() - whole.mean.get()).max() < 0.2


def test_a_fit_that_is_lost_gives_its_last_state(device):
    with pytest.raises(
        NonFiniteError, match="others at step 1 with learning rate 1e\\+305"
    ) as info:
        rb.BBB(pair(device)[1], learning_rate=1e305).fit(3, progress=False)
    assert np.isfinite(info.value.state.mean.get()).all()


def test_fits_of_libraries_are_not_mixed(device):
    host, there = pair(device)
    fits = [rb.BBB(t).fit(1, progress=False) for t in (host, there)]
    for target, fit in ((host, fits[1]), (there, fits[0])):
        for options in ({"init": fit}, {"init": fit.mean}, {"resume": fit}):
            with pytest.raises(TypeError, match=r"\[BBB\.fit\] expected "):
                rb.BBB(target).fit(1, progress=False, **options)
