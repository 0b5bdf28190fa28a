"""Stochastic-gradient steps on arrays of a device and on NumPy: targets, rules and calls."""

import numpy as np

import ribbit as rb
from ribbit._arrays.namespace import from_host, to_host

ROWS = 23
MODEL = rb.mlp(4, (6, 5), 2, activation="tanh")
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(ROWS, 4)), RNG.normal(size=(ROWS, 2))
OPTIONS = {"prior": rb.Normal(0.7), "likelihood": rb.Gaussian(1.0)}
RULES = {  # name, first moment, second moment, step size
    "langevin": ("langevin", False, False, 1e-2),
    "preconditioned": ("langevin", False, True, 1e-3),
    "friction": ("friction", True, False, 1e-3),
    "adam": ("adam", True, True, 1e-2),
    "kinetic": ("kinetic", True, True, 1e-1),
}


def pair(device, model=MODEL, x=X, y=Y, **options):
    """The same posterior on NumPy and on the device."""
    given = {**OPTIONS, "dtype": "float64", **options}
    on_device = rb.Posterior(model, device.asarray(x), device.asarray(y), **given)
    return rb.Posterior(model, x, y, **given), on_device


def steps(target, theta, rule, batch, *, count=10, chains=None, seed=5, moments=None, **options):
    """Call ``advance``; the results on the host."""
    name, first, second, size = RULES[rule]
    xp, dtype = getattr(target, "array_namespace", np), target.dtype
    ids = np.array([0, 4, 9], dtype=np.uint32) if chains is None else np.array(chains, np.uint32)
    if moments is None:
        moments = [np.full_like(theta, 0.02) if has else None for has in (first, second)]
    given = {
        "seed": seed,
        "chains": ids,
        "first_step": 2,
        "batch_size": batch,
        "step_size": size * np.linspace(1.0, 0.6, count),
        "noise": np.where(np.arange(count) == 4, 0.0, 1.0),
        "rule": name,
        "prior": 1.0,
        "friction": 0.1,
        "previous_step_size": 1.1 * size,
        "decay": (0.9, 0.99),
        "epsilon": 1e-5,
        "adapt_until": 7,
        **options,
    }
    given_arrays = [None if a is None else a.astype(dtype) for a in (theta, *moments)]
    start = [None if a is None else from_host(xp, a) for a in given_arrays]
    before = [None if a is None else to_host(a).copy() for a in start]
    *arrays, failed, largest = target.advance(*start, **given)
    for a, b in zip(start, before, strict=True):  # inputs are not changed
        assert a is b or to_host(a).tobytes() == b.tobytes()
    return [None if a is None else to_host(a) for a in arrays], failed, largest


def same(found, expected, **tolerance):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, **tolerance)


def bits(found):
    return [None if a is None else a.tobytes() for a in found]
