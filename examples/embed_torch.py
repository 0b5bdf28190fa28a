"""Ribbit and PyTorch, both ways
=============================

``python examples/embed_torch.py``

A torch closure is sampled by Ribbit's HMC: positions reach torch through DLPack, so nothing is
copied on the way in. And Ribbit's log density becomes a torch autograd Function, to be optimised
or sampled by torch code.
"""

from __future__ import annotations

import numpy as np
import torch

import ribbit as rb


class TorchDensity:
    """A log density written in torch, as Ribbit's samplers want it."""

    def __init__(self, log_density, dim: int) -> None:
        self.log_density = log_density  # (C, P) -> (C,)
        self.dim = dim

    def value_and_grad(self, theta: np.ndarray, rows=None) -> tuple[np.ndarray, np.ndarray]:
        position = torch.from_dlpack(theta).requires_grad_(True)  # shares memory
        value = self.log_density(position)
        (grad,) = torch.autograd.grad(value.sum(), position)
        return value.detach().numpy(), grad.numpy()


class FirstDerivative(torch.autograd.Function):
    """The gradient as a function of theta, whose own derivative Ribbit does not have.

    Without it torch would take the gradient for a constant, and a Hessian for zero.
    """

    @staticmethod
    def forward(ctx, theta, grad):
        return grad.clone()

    @staticmethod
    def backward(ctx, upstream):
        raise RuntimeError("RibbitLogDensity is differentiable once: no second derivatives")


class RibbitLogDensity(torch.autograd.Function):
    """Ribbit's log density inside torch: ``RibbitLogDensity.apply(theta, target)``."""

    @staticmethod
    def forward(ctx, theta, target):
        value, grad = target.value_and_grad(theta.detach().numpy())
        ctx.save_for_backward(theta, torch.from_numpy(grad))
        return torch.as_tensor(value, dtype=theta.dtype)

    @staticmethod
    def backward(ctx, upstream):
        theta, known = ctx.saved_tensors
        grad = FirstDerivative.apply(theta, known)
        return upstream[..., None] * grad if upstream.ndim else upstream * grad, None


def rosenbrock(theta: torch.Tensor) -> torch.Tensor:
    """Log density (C,) of a banana in two dimensions."""
    x, y = theta[:, 0], theta[:, 1]
    return -0.5 * x**2 - 5.0 * (y - x**2) ** 2


def main(num_draws: int = 1000) -> dict[str, float]:
    target = TorchDensity(rosenbrock, 2)
    hmc = rb.HMC(target, step_size=0.1, num_leapfrog_steps=15)
    draws = hmc.sample(num_draws, warmup=100, chains=4, seed=0, init=np.zeros(2), progress=False)
    mean = draws.positions.mean(axis=(0, 1))
    print(f"banana: mean of x {mean[0]:.2f} (exact 0), mean of y {mean[1]:.2f} (exact 1)")

    x, y = rb.datasets.toy_regression(100, seed=0)
    network = rb.Posterior(
        rb.mlp(1, (20,), 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.1),
    )
    theta = torch.from_numpy(network.init(seed=0)).requires_grad_(True)
    optimizer = torch.optim.Adam([theta], lr=0.02)
    values = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = -RibbitLogDensity.apply(theta, network)
        loss.backward()
        optimizer.step()
        values.append(-float(loss.detach()))
    print(f"log density of the network under torch's Adam: {values[0]:.0f} -> {values[-1]:.0f}")
    return {
        "mean_x": float(mean[0]),
        "mean_y": float(mean[1]),
        "first": values[0],
        "last": values[-1],
    }


if __name__ == "__main__":
    main()
