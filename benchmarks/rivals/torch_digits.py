"""PyTorch on digits: Bayes by Backprop and SGLD in eager mode, with its fused Adam."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.rivals.torch_net import outputs, unravel, versions
from benchmarks.workloads.digits import Digits


def bound(problem: Digits, mean: Any, rho: Any, x: Any, y: Any) -> Any:
    """Negative bound of a batch, by local reparameterisation, KL by its share of the rows."""
    scale = F.softplus(rho)
    ratio = scale / problem.prior_scale
    kl = (0.5 * (ratio**2 + (mean / problem.prior_scale) ** 2 - 1.0) - torch.log(ratio)).sum()
    weight = len(x) / problem.rows
    last = len(problem.sizes) - 2
    pairs = zip(unravel(mean, problem.sizes), unravel(scale * scale, problem.sizes), strict=True)
    for k, ((w, b), (s, t)) in enumerate(pairs):
        centre = torch.addmm(b, x, w)
        x = centre + torch.addmm(t, x * x, s).sqrt() * torch.randn_like(centre)
        x = F.relu(x) if k < last else x
    return weight * kl + F.cross_entropy(x, y, reduction="sum")


def learn(problem: Digits, seed: int) -> dict[str, Any]:
    """Run epochs until the level is reached."""
    torch.set_num_threads(problem.threads)
    torch.manual_seed(seed)
    x, y, x_test, _ = (torch.from_numpy(a) for a in problem.data)
    theta = torch.from_numpy(problem.start(seed)).requires_grad_(True)
    rho = torch.full_like(theta, float(np.log(np.expm1(problem.init_scale)))).detach()
    rho.requires_grad_(True)
    adam = torch.optim.Adam([theta, rho], lr=problem.learning_rate, fused=True)
    eps = problem.step_size

    def bbb_step(rows: Any) -> None:
        adam.zero_grad()
        bound(problem, theta, rho, x[rows], y[rows]).backward()
        adam.step()

    def sgld_step(rows: Any) -> None:
        loss = F.cross_entropy(outputs(unravel(theta, problem.sizes), x[rows]), y[rows])
        (grad,) = torch.autograd.grad(loss, theta)
        with torch.no_grad():
            drift = 0.5 * eps
            theta.mul_(1.0 - drift / problem.prior_scale**2)
            theta.add_(grad, alpha=-drift * problem.rows)  # the loss is the mean over the batch
            theta.add_(torch.randn_like(theta), alpha=eps**0.5)

    def probabilities() -> Any:
        with torch.no_grad():
            if problem.method == "sgld":
                return torch.softmax(outputs(unravel(theta, problem.sizes), x_test), -1).numpy()
            total = torch.zeros(len(x_test), problem.sizes[-1])
            for _ in range(problem.draws):
                drawn = theta + F.softplus(rho) * torch.randn_like(theta)
                total += torch.softmax(outputs(unravel(drawn, problem.sizes), x_test), -1)
            return (total / problem.draws).numpy()

    step = bbb_step if problem.method == "bbb" else sgld_step
    seconds, errors, found = [], [], []
    for _ in range(problem.epochs):
        begun = time.perf_counter()
        for rows in torch.randperm(problem.rows).split(problem.batch):
            step(rows)
        seconds.append(time.perf_counter() - begun)
        found.append(probabilities())
        later = found[-1:] if problem.method == "bbb" else found
        errors.append(problem.error(np.mean(later[len(later) // 2 :], axis=0)))
        if errors[-1] <= problem.level:
            break
    return {
        "compile": 0.0,
        "seconds": seconds,
        "errors": errors,
        "form": "eager, flat parameters, fused Adam" if problem.method == "bbb" else "eager",
        "versions": versions(),
    }
