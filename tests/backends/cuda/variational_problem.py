"""Bayes by Backprop on arrays of a device and on NumPy: targets, steps and what is compared."""

import numpy as np

import ribbit as rb
from ribbit._arrays.namespace import device_of, from_host, to_host
from ribbit._backends.cuda import density as cuda_density

ROWS = 70
BOUND = {"float32": 1e-4, "float64": 1e-10}
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(ROWS, 5)), RNG.normal(size=(ROWS, 1))
COUNTS = RNG.poisson(2.0, size=(ROWS, 1))
PRIORS = {
    "normal": rb.Normal(0.5),
    "laplace": rb.Laplace(0.5),
    "student": rb.StudentT(4.0, 0.8),
    "logistic": rb.Logistic(0.6),
    "mixture": rb.ScaleMixture(0.4, 1.0, 0.1),
    "several": {"0.bias": rb.Normal(0.5), "*.weight": rb.Laplace(0.3), "*": rb.Normal(2.0)},
    "normals": {"0.bias": rb.Normal(0.5), "*.weight": rb.Normal(0.3), "*": rb.Normal(2.0)},
}


def pair(device, *, y=Y, model=None, **options):
    """The same posterior on NumPy and on the device."""
    given = {"prior": PRIORS["normal"], "likelihood": rb.Gaussian(0.7), "dtype": "float64"}
    given.update(options)
    model = rb.mlp(5, (12, 7), 1) if model is None else model
    on_device = rb.Posterior(model, device.asarray(X), device.asarray(y), **given)
    return rb.Posterior(model, X, y, **given), on_device


def advance(target, *, steps=8, batch=ROWS, samples=1, closed=True, first=0, state=None, **options):
    """Steps from a start that depends on the target's shapes alone."""
    if state is None:
        state = np.zeros((6, target.dim), target.dtype)
        state[0] = to_host(target.init(seed=1))
        state[1] = np.linspace(-4.0, 0.5, target.dim)
        state = from_host(target.array_namespace, state)
    given = {
        "seed": 2**63 + 5,
        "step_size": np.linspace(0.02, 0.01, 40)[first : first + steps],
        "kl_weight": np.linspace(0.2, 0.4, 40)[first : first + steps],
        "estimator": "reparam",
        "decay": (0.9, 0.999),
        "epsilon": 1e-8,
    }
    return target.advance_variational(
        state,
        first_step=first,
        batch_size=batch,
        num_samples=samples,
        closed=closed,
        **{**given, **options},
    )


def check(targets, **options):
    host, there = (advance(target, **options) for target in targets)
    bound = BOUND[str(targets[0].dtype)]
    np.testing.assert_allclose(there[0].get(), host[0], rtol=bound, atol=bound)
    np.testing.assert_allclose(there[1], host[1], rtol=bound, atol=bound)
    assert (there[2], there[3]) == (host[2], host[3]) == (-1, 0.0)
    assert np.abs(host[0][0] - advance(targets[0], **{**options, "seed": 1})[0][0]).max() > 1e-3


def same(a, b):
    np.testing.assert_array_equal(a[0].get(), b[0].get())
    np.testing.assert_array_equal(a[1], b[1])


def unchanged(device, monkeypatch, target, options):
    """What 8 steps of `target()` end with, in any order of threads and in groups of any size."""
    whole = advance(target(), **options)
    if device.__name__ != "cupy":
        for seed in (77, 12345):
            monkeypatch.setattr(device_of(device), "seed", seed)
            same(advance(target(), **options), whole)
    for most in (3, 2, 1):
        monkeypatch.setattr(cuda_density, "MOST_CHAINS", most)
        same(advance(target(), **options), whole)
    return whole
