"""A numba function sampled without the GIL
========================================

``python examples/embed_numba.py``
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types

import ribbit as rb

# int f(size_t n, const double* x, double* grad, double* lp, void* user), 0 = ok
SIGNATURE = types.int32(
    types.uint64,
    types.CPointer(types.float64),
    types.CPointer(types.float64),
    types.CPointer(types.float64),
    types.voidptr,
)


@numba.cfunc(SIGNATURE, nopython=True)
def chain_of_normals(n, x, grad, lp, user):
    """Evaluate a Gaussian random walk: x[0] ~ N(0, 1), x[i] ~ N(x[i-1], 0.25)."""
    total = -0.5 * x[0] * x[0]
    for i in range(n):
        grad[i] = 0.0
    grad[0] = -x[0]
    for i in range(1, n):
        r = (x[i] - x[i - 1]) / 0.25
        total -= 0.5 * (x[i] - x[i - 1]) * r
        grad[i] -= r
        grad[i - 1] += r
    lp[0] = total
    return 0


def main(num_draws: int = 4000) -> dict[str, float]:
    dim = 5
    target = rb.CallableDensity.from_pointer(chain_of_normals.address, dim, threadsafe=True)
    hmc = rb.HMC(target, step_size=0.3, num_leapfrog_steps=12, step_size_jitter=0.2)
    draws = hmc.sample(num_draws, warmup=100, chains=4, seed=0, init=np.zeros(dim), progress=False)
    variance = draws.positions[..., -1].var()
    print(f"variance of the last value {variance:.2f} (exact {1 + 0.25 * (dim - 1):.2f})")
    return {"variance": float(variance), "exact": 1 + 0.25 * (dim - 1)}


if __name__ == "__main__":
    main()
