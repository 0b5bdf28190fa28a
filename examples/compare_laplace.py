"""Laplace approximation or sampling, on a PyTorch network
=======================================================

A small PyTorch network is trained on points with a gap. The package laplace-torch puts a Gaussian
around the trained weights, Ribbit's own Laplace approximation finds the same Gaussian, and Ribbit's
HMC samples the posterior itself. In the gap the samples are wider than the Gaussian, and they
predict new points better.

Run it with ``python examples/compare_laplace.py``. It needs PyTorch and laplace-torch.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from laplace import Laplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ribbit as rb
import ribbit.torch

DRAWS = 1000  # per chain
STEPS = 2000  # of the optimisers
NOISE, PRIOR = 0.1, 1.0  # standard deviations (sd)

# %%
# The data
# --------
# A noisy wave. The 60 training points have a gap in the middle third; the 500 test points have
# none.


def rows(count: int, seed: int, *, gap: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return points (count, 1) and their y (count,)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (count, 1))
    if gap:
        x = (x + np.sign(x) * 0.5) / 1.5
    return x, np.sin(4.0 * x[:, 0]) + NOISE * rng.standard_normal(count)


x, y = rows(60, 0, gap=True)
x_test, y_test = rows(500, 1, gap=False)
between = np.abs(x_test[:, 0]) < 1.0 / 3.0

# %%
# Training in PyTorch
# -------------------
# The loss is minus the log posterior. Adam comes first, then L-BFGS, because the Laplace
# approximation needs an accurate peak.

torch.manual_seed(0)
torch.set_num_threads(1)  # the network is too small for more
net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()
inputs, outputs = torch.from_numpy(x), torch.from_numpy(y)
adam = torch.optim.Adam(net.parameters(), lr=1e-2)
last = torch.optim.LBFGS(net.parameters(), max_iter=STEPS, line_search_fn="strong_wolfe")
for optimizer, times in ((adam, STEPS), (last, 1)):

    def closure(optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        squares = sum((p**2).sum() for p in net.parameters()) / PRIOR**2
        loss = 0.5 * (((net(inputs)[:, 0] - outputs) / NOISE) ** 2).sum() + 0.5 * squares
        loss.backward()
        return loss

    for _ in range(times):
        optimizer.step(closure)

# %%
# laplace-torch
# -------------

theirs = Laplace(
    net,
    "regression",
    subset_of_weights="all",
    hessian_structure="full",
    sigma_noise=NOISE,
    prior_precision=PRIOR**-2,
)
theirs.fit(DataLoader(TensorDataset(inputs, outputs[:, None]), batch_size=60))

# %%
# Ribbit
# ------
# :func:`ribbit.torch.posterior` takes the same network. The Laplace approximation starts at
# the trained weights. The chains of HMC start at random weights, so they check each other.

target = rb.torch.posterior(
    net, rb.Gaussian(NOISE), (x, y), prior=rb.Normal(PRIOR), dtype=np.float64
)
laplace = rb.LaplaceApproximation(target, batch_size=None, polish=0)
ours = laplace.fit(0, init=target.trained, progress=False)
hmc = rb.HMC(target)
draws = hmc.sample(DRAWS, warmup=DRAWS // 2, seed=0, progress=False)
print(draws.summary(x_test).message)

# %%
# The comparison
# --------------
# NLL is the negative log likelihood of the test points in nats. The sd is the sd of a new y.


def predict(x: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return mean and sd of y by each method."""
    mean, variance = (v.detach().numpy().reshape(-1) for v in theirs(torch.from_numpy(x)))
    laplace, sampled = ours.predict(x), draws.predict(x)
    return {
        "laplace-torch": (mean, np.sqrt(variance + NOISE**2)),
        "Ribbit, Laplace": (laplace.mean, laplace.std),
        "Ribbit, HMC": (sampled.mean, sampled.std),
    }


table = {}
print(f"{'':16} {'NLL':>8} {'RMSE':>8} {'sd near data':>13} {'sd in the gap':>14}")
for name, (mean, sd) in predict(x_test).items():
    nll = float(np.mean(0.5 * ((y_test - mean) / sd) ** 2 + np.log(sd * np.sqrt(2 * np.pi))))
    near, gap = float(sd[~between].mean()), float(sd[between].mean())
    rmse = rb.metrics.rmse(y_test, mean)
    table[name] = {"nll": nll, "rmse": rmse, "near": near, "gap": gap}
    print(f"{name:16} {nll:8.3f} {rmse:8.3f} {near:13.3f} {gap:14.3f}")

# %%

grid = np.linspace(-1.5, 1.5, 200)[:, None]
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
for ax, (name, (mean, sd)) in zip(axes, predict(grid).items(), strict=True):
    ax.plot(x, y, "k.", ms=4)
    ax.plot(grid, mean)
    ax.fill_between(grid[:, 0], mean - 2 * sd, mean + 2 * sd, alpha=0.25, lw=0)
    ax.set(title=name, xlabel="x", ylim=(-3, 3))
axes[0].set_ylabel("y: mean and 2 sd")
figure.savefig("compare_laplace.png", dpi=100)

# %%
# The recorded output::
#
#     Converged: R-hat is at most 1.002 (predictions), with at least 2459 effective
#     draws (predictions). Agreement cannot show modes that no chain visited.
#                           NLL     RMSE  sd near data  sd in the gap
#     laplace-torch      -0.433    0.157         0.105          0.137
#     Ribbit, Laplace    -0.433    0.157         0.105          0.137
#     Ribbit, HMC        -0.590    0.139         0.105          0.169
#
# .. image:: /_static/gallery/compare_laplace.png
#    :alt: Three bands: two Laplace approximations, which are the same, and a wider one of HMC.

# sphinx_gallery_thumbnail_path = "_static/gallery/compare_laplace.png"
