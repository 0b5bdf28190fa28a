"""Counter-based random numbers: seed and index determine a number, without any state."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ribbit._arrays import checks, random_numbers
from ribbit._arrays import positions as positions_
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import (
    from_device,
    host_dtype,
    is_device_array,
    namespace,
    require_memory,
)
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["normal", "reparameterize"]


def normal(
    shape: int | tuple[int, ...],
    seed: checks.Seed,
    *,
    stream: int = 0,
    dtype: npt.DTypeLike = np.float32,
) -> FloatArray:
    """Return standard normals; the same arguments give the same numbers.

    Element e in C order is normal e % 4 of Philox block e // 4 under (seed, stream), so a shorter
    array is the beginning of a longer one. Philox4x32-10 (Salmon et al. 2011), Box-Muller; the
    largest possible abs(z) is sqrt(66 ln 2) = 6.76.

    Parameters
    ----------
    shape : int or tuple of int
        Shape of the result; sizes may be zero.
    seed : int, Generator, SeedSequence or None
        An integer in [0, 2**64); the others as in :meth:`ribbit.Sampler.sample`.
    stream : int, default 0
        In [0, 2**32); streams of one seed are independent.
    dtype : dtype, default float32
        float32 or float64; both come from the same random words.

    Returns
    -------
    numpy.ndarray
        Normals of the given shape.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, or the array has more than 2**34 elements.

    Examples
    --------
    >>> rb.random.normal(3, seed=0)
    array([-2.2460222 ,  0.67583877, -0.03509828], dtype=float32)
    >>> bool((rb.random.normal(2, seed=0) == rb.random.normal(3, seed=0)[:2]).all())
    True
    """
    name = "random.normal"
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    dims = tuple(checks.integer(name, "shape", n, minimum=0, maximum=2**34) for n in sizes)
    if math.prod(dims) > 2**34:
        raise ShapeError(f"[{name}] expected at most 2**34 elements, got shape {dims}")
    number = checks.seed(name, seed)
    place = checks.integer(name, "stream", stream, minimum=0, maximum=2**32 - 1)
    chosen = checks.float_dtype(name, dtype)
    if math.prod(dims) == 0:
        return np.empty(dims, dtype=chosen)
    checks.memory(name, math.prod(dims), chosen, f"normals of shape {dims}")
    out: FloatArray = random_numbers.normal(
        np,
        (1, math.prod(dims)),
        chosen,
        seed=number,
        step=0,
        chains=np.array([place], dtype=np.uint32),
        purpose=random_numbers.PUBLIC,
    )
    return out.reshape(dims)


def reparameterize(
    mean: Array, rho: Array, num_samples: int, seed: checks.Seed, *, step: int = 0
) -> Array:
    """Return weight samples mean + softplus(rho) * eps (Blundell et al. 2015, section 3.2).

    Parameters
    ----------
    mean, rho : array
        (P,), both float32 or both float64; NumPy arrays, or both in GPU memory.
    num_samples : int
        Number of samples S, >= 1.
    seed : int, Generator, SeedSequence or None
        An integer in [0, 2**64); the others as in :meth:`ribbit.Sampler.sample`.
    step : int, default 0
        Step of a training loop, in [0, 2**40).

    Returns
    -------
    array
        (S, P) in the dtype and memory of `mean`; sample s does not depend on S.

    Raises
    ------
    TypeError, ValueError
        If shapes or dtypes do not fit or a number is out of range. NaN passes through.
    ImportError, RuntimeError
        For arrays in GPU memory, as for `Posterior`.

    Examples
    --------
    >>> mean, rho = np.zeros(3), np.full(3, -2.0)
    >>> rb.reparameterize(mean, rho, 5, seed=0).shape
    (5, 3)
    """
    name = "reparameterize"
    if is_device_array(mean):
        mean = from_device(name, "mean", mean)
        rho = from_device(name, "rho", rho) if is_device_array(rho) else rho
    elif not isinstance(mean, np.ndarray):
        got = checks.summary(mean)
        raise DTypeError(f"[{name}] expected mean as a float32 or float64 array, got {got}")
    xp = namespace(mean)
    dtype = host_dtype(mean)
    if dtype not in (np.float32, np.float64):
        got = checks.summary(mean)
        raise DTypeError(f"[{name}] expected mean as a float32 or float64 array, got {got}")
    if mean.ndim != 1:
        raise ShapeError(f"[{name}] expected mean of shape (P,), got {checks.summary(mean)}")
    dim = mean.shape[0]
    first, _ = positions_.position(xp, name, "mean", mean, dtype, dim)
    second, single = positions_.position(xp, name, "rho", rho, dtype, dim)
    if not single or dim == 0:
        raise ShapeError(
            f"[{name}] expected mean and rho of shape (P,) with P >= 1, "
            f"got {checks.summary(mean)} and {checks.summary(rho)}"
        )
    samples = checks.integer(name, "num_samples", num_samples, minimum=1, maximum=2**32 - 1)
    number = checks.seed(name, seed)
    place = checks.integer(name, "step", step, minimum=0, maximum=2**40 - 1)
    require_memory(name, xp, samples * dim, dtype, f"{samples} samples of {dim} weights")
    return random_numbers.reparameterize(
        xp, first[0, :], second[0, :], samples, seed=number, step=place
    )


explain(globals())
