"""Log densities between Ribbit and PyTorch
========================================

First, Ribbit's HMC samples a log density that is written in PyTorch. Then PyTorch's Adam maximises
the log density of a Ribbit network. For PyTorch modules you need neither: use
:func:`ribbit.torch.posterior`.

Run it with ``python examples/embed_torch.py``. It needs PyTorch and takes some seconds.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import ribbit as rb

DRAWS = 1000  # per chain

# %%
# Ribbit samples a PyTorch function
# ---------------------------------
# A target for Ribbit's samplers has ``dim`` and ``value_and_grad``. Positions reach PyTorch through
# DLPack, so no data are copied.


class TorchDensity:
    """A log density written in PyTorch, as a target of Ribbit's samplers."""

    def __init__(self, log_density, dim: int) -> None:
        self.log_density = log_density  # (C, P) -> (C,)
        self.dim = dim

    def value_and_grad(self, theta: np.ndarray, rows=None) -> tuple[np.ndarray, np.ndarray]:
        position = torch.from_dlpack(theta).requires_grad_(True)  # shares memory
        value = self.log_density(position)
        (grad,) = torch.autograd.grad(value.sum(), position)
        return value.detach().numpy(), grad.numpy()


def banana(theta: torch.Tensor) -> torch.Tensor:
    """Log density (C,) of a banana in two dimensions."""
    x, y = theta[:, 0], theta[:, 1]
    return -0.5 * x**2 - 5.0 * (y - x**2) ** 2


torch.set_num_threads(1)  # the functions are too small for more
hmc = rb.HMC(TorchDensity(banana, 2), step_size=0.1, num_leapfrog_steps=15)
draws = hmc.sample(DRAWS, warmup=100, chains=4, seed=0, init=np.zeros(2), progress=False)
mean = draws.positions.mean(axis=(0, 1))
print(f"mean of x {mean[0]:.2f} (exact 0), mean of y {mean[1]:.2f} (exact 1)")

# %%
# PyTorch optimises a Ribbit network
# ----------------------------------
# The log density becomes an autograd function. Ribbit has first derivatives only. So the gradient
# is a function of its own whose derivative raises; otherwise PyTorch would take a Hessian for zero.


class FirstDerivative(torch.autograd.Function):
    """The gradient, which cannot be differentiated again."""

    @staticmethod
    def forward(ctx, theta, grad):
        return grad.clone()

    @staticmethod
    def backward(ctx, upstream):
        raise RuntimeError("RibbitLogDensity is differentiable once: no second derivatives")


class RibbitLogDensity(torch.autograd.Function):
    """Ribbit's log density inside PyTorch: ``RibbitLogDensity.apply(theta, target)``."""

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


x, y = rb.datasets.toy_regression(100, seed=0)
network = rb.Posterior(
    rb.mlp(1, (20,), 1, activation="tanh"), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
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
print(f"log density of the network under Adam: {values[0]:.0f} -> {values[-1]:.0f}")

# %%
# The picture
# -----------

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(*draws.positions.reshape(-1, 2).T, ".", ms=2, alpha=0.4)
left.set(xlabel="x", ylabel="y", title="draws of the PyTorch density")
right.plot(values)
right.set(xlabel="step of Adam", ylabel="log density", title="a Ribbit network under Adam")
figure.savefig("embed_torch.png", dpi=100)

# %%
# The recorded output::
#
#     mean of x -0.09 (exact 0), mean of y 1.00 (exact 1)
#     log density of the network under Adam: -6913 -> -55
#
# .. image:: /_static/gallery/embed_torch.png
#    :alt: Left: draws that form a banana. Right: a log density that rises to a constant.

# sphinx_gallery_thumbnail_path = "_static/gallery/embed_torch.png"
