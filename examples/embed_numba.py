"""Sample your own density, compiled by numba
==========================================

Ribbit samples any log density, not only networks. A numba function is compiled to machine code, so
the sampler calls it without Python, and the chains run in parallel threads. The example is a random
walk whose exact variance is known.

Run it with ``python examples/embed_numba.py``. It needs numba and takes some seconds.
"""

import matplotlib.pyplot as plt
import numba
import numpy as np
from numba import types

import ribbit as rb

DRAWS = 4000  # per chain

# %%
# The density
# -----------
# The function takes the position ``x`` of length ``n``, writes the gradient and the log density,
# and returns 0 for success. The density is a Gaussian random walk: ``x[0]`` is normal with
# variance 1, and each step ``x[i] - x[i - 1]`` is normal with variance 0.25.

# int f(size_t n, const double* x, double* grad, double* lp, void* user)
SIGNATURE = types.int32(
    types.uint64,
    types.CPointer(types.float64),
    types.CPointer(types.float64),
    types.CPointer(types.float64),
    types.voidptr,
)


@numba.cfunc(SIGNATURE, nopython=True)
def random_walk(n, x, grad, lp, user):
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


# %%
# Sampling
# --------
# ``threadsafe=True`` says that several threads may call the function at once.

DIM = 5
target = rb.CallableDensity.from_pointer(random_walk.address, DIM, threadsafe=True)
hmc = rb.HMC(target, step_size=0.3, num_leapfrog_steps=12, step_size_jitter=0.2)
draws = hmc.sample(DRAWS, warmup=100, chains=4, seed=0, init=np.zeros(DIM), progress=False)

# %%
# The variance grows by 0.25 with each step, and the draws show it.

variance = draws.positions.reshape(-1, DIM).var(axis=0)
exact = 1 + 0.25 * np.arange(DIM)
print(f"variance of the last value {variance[-1]:.2f} (exact {exact[-1]:.2f})")

figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
ax.plot(draws.positions[0, :60].T, color="C0", alpha=0.3, lw=1)
ax.plot(2 * np.sqrt(exact), "k--", label="exact: 2 sd")
ax.plot(-2 * np.sqrt(exact), "k--")
ax.plot(2 * np.sqrt(variance), "C1o", label="draws: 2 sd")
ax.plot(-2 * np.sqrt(variance), "C1o")
ax.set(xlabel="step of the walk", ylabel="value", title="60 draws of the random walk")
ax.set_xticks(range(DIM))
ax.legend(frameon=False)
figure.savefig("embed_numba.png", dpi=120)
