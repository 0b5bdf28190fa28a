"""PyTorch: Bayes by Backprop, Monte Carlo predictions and SGLD.

Bayes by Backprop in eager mode is what blog posts show: a module per layer that draws each of its
tensors, a plain training loop; the compiled variants take flat vectors, and normals from outside
(compiled ones are slow).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.harness.framework import Prepared, fastest
from benchmarks.rivals.torch_net import batch_logdensity, outputs, ravel, unravel
from benchmarks.workloads.langevin import Langevin
from benchmarks.workloads.predictive import MaskDraws, WeightDraws
from benchmarks.workloads.variational import BayesByBackprop


def kl(mean: Any, scale: Any, prior: float) -> Any:
    """KL of N(mean, scale^2) from N(0, prior^2), summed."""
    return (torch.log(prior / scale) + 0.5 * (scale**2 + mean**2) / prior**2 - 0.5).sum()


class BayesLinear(nn.Module):
    """A dense layer whose weights are drawn in every call."""

    def __init__(self, mean: tuple[Any, Any], rho: tuple[Any, Any], prior: float) -> None:
        super().__init__()
        self.weight_mean, self.bias_mean = (nn.Parameter(a.clone()) for a in mean)
        self.weight_rho, self.bias_rho = (nn.Parameter(a.clone()) for a in rho)
        self.prior = prior

    def forward(self, x: Any, noise: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
        """Compute the outputs (N, K) and the layer's KL."""
        scales = F.softplus(self.weight_rho), F.softplus(self.bias_rho)
        if noise is None:
            noise = torch.randn_like(scales[0]), torch.randn_like(scales[1])
        weight = self.weight_mean + scales[0] * noise[0]
        bias = self.bias_mean + scales[1] * noise[1]
        own = kl(self.weight_mean, scales[0], self.prior) + kl(
            self.bias_mean, scales[1], self.prior
        )
        return torch.addmm(bias, x, weight), own


class BayesNet(nn.Module):
    """A stack of them."""

    def __init__(self, workload: BayesByBackprop) -> None:
        super().__init__()
        mean, rho = (unravel(torch.from_numpy(a), workload.sizes) for a in workload.start)
        pairs = zip(mean, rho, strict=True)
        self.layers = nn.ModuleList(BayesLinear(m, r, workload.prior_scale) for m, r in pairs)

    def forward(self, x: Any, noise: Any = None) -> tuple[Any, Any]:
        """Compute the outputs (N, K) and the KL."""
        total = x.new_zeros(())
        for k, layer in enumerate(self.layers):
            x, own = layer(x, None if noise is None else noise[k])
            x = F.relu(x) if k < len(self.layers) - 1 else x
            total = total + own
        return x, total

    def flat(self, what: str) -> Any:
        """Join "mean", "rho" or "grad" of them to (P,) or (2, P)."""
        if what == "grad":
            both = [[(a.grad, b.grad) for a, b in self._pairs(p)] for p in ("mean", "rho")]
            return torch.stack([ravel(layers) for layers in both])
        return ravel(self._pairs(what))

    def _pairs(self, part: str) -> list[tuple[Any, Any]]:
        names = f"weight_{part}", f"bias_{part}"
        return [(getattr(a, names[0]), getattr(a, names[1])) for a in self.layers]


def bbb(workload: BayesByBackprop, variant: str) -> Prepared:
    """Prepare one of the two variants."""
    torch.set_num_threads(workload.threads)
    torch.manual_seed(workload.seed)
    x, y = (torch.from_numpy(a) for a in workload.data)
    constant = math.log(workload.noise_scale) + 0.5 * math.log(2 * math.pi)

    def misfit(output: Any) -> Any:
        """Minus the log likelihood."""
        return 0.5 * (((y - output) / workload.noise_scale) ** 2).sum() + y.numel() * constant

    def eager_loss(net: BayesNet, noise: Any = None) -> Any:
        output, divergence = net(x, noise)
        return divergence + misfit(output)

    def run_eager() -> tuple[Any, Any, Any]:
        net = BayesNet(workload)
        optimizer = torch.optim.Adam(net.parameters(), lr=workload.learning_rate)
        elbo = []
        for _ in range(workload.epochs):
            optimizer.zero_grad()
            loss = eager_loss(net)
            loss.backward()
            optimizer.step()
            elbo.append(-loss.detach())
        return net.flat("mean"), net.flat("rho"), torch.stack(elbo)

    @torch.compile(fullgraph=True, dynamic=False)
    def flat_loss(mean: Any, rho: Any, noise: Any) -> Any:
        scale = F.softplus(rho)
        layers = unravel(mean + scale * noise, workload.sizes)
        return kl(mean, scale, workload.prior_scale) + misfit(outputs(layers, x))

    def begin() -> list[Any]:
        return [torch.from_numpy(a).clone().requires_grad_(True) for a in workload.start]

    def run_compiled() -> tuple[Any, Any, Any]:
        mean, rho = begin()
        optimizer = torch.optim.Adam([mean, rho], lr=workload.learning_rate, fused=True)
        elbo = []
        for _ in range(workload.epochs):
            optimizer.zero_grad()
            loss = flat_loss(mean, rho, torch.randn(workload.dim))
            loss.backward()
            optimizer.step()
            elbo.append(-loss.detach())
        return mean.detach(), rho.detach(), torch.stack(elbo)

    def gradient(noise: Any) -> Any:
        if variant == "eager":
            net = BayesNet(workload)
            eager_loss(net, unravel(noise, workload.sizes)).backward()
            return net.flat("grad")
        mean, rho = begin()
        flat_loss(mean, rho, noise).backward()
        return torch.stack([mean.grad, rho.grad])

    def answer(found: tuple[Any, Any, Any]) -> dict[str, Any]:
        mean, rho, elbo = (a.numpy() for a in found)
        noise = torch.cat([torch.from_numpy(workload.noise)[None], torch.randn(63, workload.dim)])
        return {
            "mean": mean,
            "rho": rho,
            "elbo": elbo,
            "noise": noise.numpy(),
            "gradient": gradient(noise[0]).numpy(),
        }

    if variant == "eager":
        return Prepared(
            run_eager,
            answer,
            "as in common tutorials: a module per layer draws its tensors, plain loop, Adam",
        )
    return Prepared(run_compiled, answer, "torch.compile of the loss, fused Adam")


def mc_forward(workload: WeightDraws, variant: str) -> Prepared:
    """Loop over draws, or chunks of draws as batched matrix products; deviations are summed."""
    torch.set_num_threads(workload.threads)
    torch.manual_seed(workload.seed)
    mean, scale = (torch.from_numpy(a) for a in workload.variational)
    x = torch.from_numpy(workload.x)

    def batched(weights: Any) -> Any:
        """(C, P) -> (C, N, K)."""
        h = x.expand(weights.shape[0], *x.shape)
        layers = unravel(weights, workload.sizes)
        for k, (weight, bias) in enumerate(layers):
            h = torch.baddbmm(bias[:, None], h, weight)
            h = F.relu(h, inplace=True) if k < len(layers) - 1 else h
        return h

    def chunk_sums(weights: Any, centre: Any) -> tuple[Any, Any]:
        d = batched(weights) - centre
        return d.sum(0), (d * d).sum(0)

    compiled = torch.compile(chunk_sums, fullgraph=True, dynamic=False)

    def sums(draws: int, chunk: int, single: Callable[..., Any]) -> tuple[Any, Any]:
        with torch.no_grad():
            centre = outputs(unravel(mean, workload.sizes), x)
            total, squares = torch.zeros_like(centre), torch.zeros_like(centre)
            for _ in range(draws // chunk):
                weights = mean + scale * torch.randn(chunk, workload.dim)
                first, second = single(weights, centre)
                total += first
                squares += second
            average = total / draws
            return centre + average, (squares / draws - average**2).sqrt()

    def one(weights: Any, centre: Any) -> tuple[Any, Any]:
        d = outputs(unravel(weights[0], workload.sizes), x) - centre
        return d, d * d

    choices = {f"chunks of {chunk} by bmm": (chunk, chunk_sums) for chunk in (10, 50)} | {
        "loop over draws": (1, one)
    }
    if variant == "compile":
        choices = {f"compiled, chunks of {chunk}": (chunk, compiled) for chunk in (1, 10)}
    few = max(50, workload.draws // 10)
    racers: dict[str, Callable[[], Any]] = {
        name: partial(sums, few, *choice) for name, choice in choices.items()
    }
    winner, wasted = fastest(racers, turns=2)

    def answer(found: tuple[Any, Any]) -> dict[str, Any]:
        weights = torch.from_numpy(workload.weights)
        single = outputs(unravel(weights, workload.sizes), x)
        return {"mean": found[0].numpy(), "sd": found[1].numpy(), "outputs": single.numpy()}

    return Prepared(lambda: sums(workload.draws, *choices[winner]), answer, winner, wasted)


def mc_dropout(workload: MaskDraws, variant: str) -> Prepared:
    """First layer once, then a loop over the samples."""
    torch.set_num_threads(workload.threads)
    torch.manual_seed(workload.seed)
    layers = unravel(torch.from_numpy(workload.weights), workload.sizes)
    x = torch.from_numpy(workload.x)

    def network(h: Any) -> Any:
        """From the first layer's activations to probabilities."""
        for k, (weight, bias) in enumerate(layers[1:]):
            h = torch.addmm(bias, F.dropout(h, workload.rate, training=True), weight)
            h = F.relu(h) if k < len(layers) - 2 else h
        return torch.softmax(h, -1)

    compiled = torch.compile(network, fullgraph=True, dynamic=False)

    def run() -> tuple[Any, Any]:
        sample = network if variant == "eager" else compiled
        with torch.no_grad():
            hidden = F.relu(torch.addmm(layers[0][1], x, layers[0][0]))
            total = torch.zeros(workload.rows, workload.sizes[-1])
            squares = torch.zeros_like(total)
            for _ in range(workload.samples):
                p = sample(hidden)
                total += p
                squares.addcmul_(p, p)
            mean = total / workload.samples
            return mean, (squares / workload.samples - mean**2).clamp_(min=0.0).sqrt()

    def answer(found: tuple[Any, Any]) -> dict[str, Any]:
        single = outputs(layers, x).numpy()
        return {"mean": found[0].numpy(), "sd": found[1].numpy(), "outputs": single}

    form = "F.dropout" if variant == "eager" else "torch.compile of a sample"
    return Prepared(run, answer, f"{form}, first layer hoisted, loop over samples")


def order(workload: Langevin) -> Iterator[Any]:
    """Row numbers of the batches, without replacement within an epoch."""
    for _ in range(workload.epochs):
        yield from torch.randperm(workload.rows).split(workload.batch)


def sgld(workload: Langevin, variant: str) -> Prepared:
    """Gradients by autograd or compiled; the update in place, normals into reused memory."""
    torch.set_num_threads(workload.threads)
    torch.manual_seed(workload.seed)
    value = batch_logdensity(workload)
    x, y = (torch.from_numpy(a) for a in workload.data)
    start = torch.from_numpy(workload.start)
    eps = workload.step_size
    theta, noise = torch.empty_like(start), torch.empty_like(start)
    layers = [
        (a.requires_grad_(True), b.requires_grad_(True)) for a, b in unravel(theta, workload.sizes)
    ]
    leaves = [a for layer in layers for a in layer]
    kicks = [a for layer in unravel(noise, workload.sizes) for a in layer]
    compiled = torch.compile(value, fullgraph=True, dynamic=False)

    def gradient(x: Any, y: Any) -> Any:
        density = value if variant == "eager" else compiled
        return torch.autograd.grad(density(layers, x, y), leaves)

    def run() -> Any:
        with torch.no_grad():
            theta.copy_(start)
        for rows, _ in zip(order(workload), range(workload.num_steps), strict=False):
            grads = gradient(x[rows], y[rows])
            with torch.no_grad():
                noise.normal_()
                torch._foreach_add_(leaves, grads, alpha=0.5 * eps)
                torch._foreach_add_(leaves, kicks, alpha=eps**0.5)
        return theta.detach().clone()

    def answer(found: Any) -> dict[str, Any]:
        with torch.no_grad():
            theta.copy_(start)
        grads = gradient(x[: workload.batch], y[: workload.batch])
        gradients = np.concatenate([g.numpy().ravel() for g in grads])
        return {"position": found.numpy(), "gradient": gradients}

    form = "autograd" if variant == "eager" else "torch.compile of the log density"
    return Prepared(run, answer, f"{form}, in-place update, permuted batches")
