"""One torch network, two ways to its posterior
============================================

``python examples/compare_laplace.py``

A module is trained to a mode; laplace-torch puts a Gaussian there, Ribbit's own Laplace
approximation the same one (the check that both mean the same posterior), and Ribbit's HMC samples
the posterior itself, through ``ribbit.torch``. Their predictions stand side by side on rows between
which the data has a gap. Needs ``pip install "ribbit[torch]" laplace-torch``.
"""

from __future__ import annotations

import numpy as np
import torch
from laplace import Laplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ribbit as rb
import ribbit.torch

NOISE, PRIOR = 0.1, 1.0  # sds


def rows(count: int, seed: int, *, gap: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a noisy wave; with a gap none in the middle third of [-1, 1]."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (count, 1))
    if gap:
        x = (x + np.sign(x) * 0.5) / 1.5
    return x, np.sin(4.0 * x[:, 0]) + NOISE * rng.standard_normal(count)


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    """Find a mode: minus the log posterior, by Adam, then by L-BFGS."""

    def loss() -> torch.Tensor:
        squares = sum((p**2).sum() for p in net.parameters()) / PRIOR**2
        return 0.5 * (((net(x)[:, 0] - y) / NOISE) ** 2).sum() + 0.5 * squares

    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    last = torch.optim.LBFGS(net.parameters(), max_iter=steps, line_search_fn="strong_wolfe")
    for optimizer, times in ((adam, steps), (last, 1)):

        def closure(optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        for _ in range(times):
            optimizer.step(closure)


def main(draws: int = 1000, steps: int = 2000) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    (x, y), (x_test, y_test) = rows(60, 0, gap=True), rows(500, 1, gap=False)
    between = np.abs(x_test[:, 0]) < 1.0 / 3.0
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    train(net, *tensors, steps)

    theirs = Laplace(
        net,
        "regression",
        subset_of_weights="all",
        hessian_structure="full",
        sigma_noise=NOISE,
        prior_precision=PRIOR**-2,
    )
    theirs.fit(DataLoader(TensorDataset(tensors[0], tensors[1][:, None]), batch_size=60))
    mean, variance = (v.detach().numpy().reshape(-1) for v in theirs(torch.from_numpy(x_test)))
    answers = {"laplace-torch": (mean, np.sqrt(variance + NOISE**2))}

    target = rb.torch.posterior(
        net, rb.Gaussian(NOISE), (x, y), prior=rb.Normal(PRIOR), dtype=np.float64
    )
    laplace = rb.LaplaceApproximation(target, batch_size=None, polish=0)
    ours = laplace.fit(0, init=target.trained, progress=False)
    hmc = rb.HMC(target).sample(
        draws, warmup=draws // 2, init=target.trained, seed=0, progress=False
    )
    summary = hmc.summary(x_test)
    for name, p in (
        ("Ribbit, Laplace", ours.predict(x_test)),
        ("Ribbit, HMC", hmc.predict(x_test)),
    ):
        answers[name] = p.mean, p.std

    table = {}
    print(f"{'':16} {'NLL':>8} {'RMSE':>8} {'sd near data':>13} {'sd in the gap':>14}")
    for name, (mean, sd) in answers.items():
        nll = float(np.mean(0.5 * ((y_test - mean) / sd) ** 2 + np.log(sd * np.sqrt(2 * np.pi))))
        near, gap = float(sd[~between].mean()), float(sd[between].mean())
        rmse = rb.metrics.rmse(y_test, mean)
        table[name] = {"nll": nll, "rmse": rmse, "near": near, "gap": gap}
        print(f"{name:16} {nll:8.3f} {rmse:8.3f} {near:13.3f} {gap:14.3f}")
    print(summary.message)
    return table


if __name__ == "__main__":
    main()
