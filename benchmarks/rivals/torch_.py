"""PyTorch: eager autograd, and the same step through torch.compile.

Variant "eager" batches chains by matmul's leading axis and updates flat vectors in place;
"compile" compiles one leapfrog step (gradient included, through torch.func) and loops in Python.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.harness.framework import Prepared
from benchmarks.rivals import torch_bayes, torch_networks
from benchmarks.rivals.torch_net import unravel, versions
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.random_weights import Normals, Reparam


def logdensity(workload: Leapfrog) -> Callable[[Any, Any, Any], Any]:
    """Normalised log density: f(theta (P,) or (C, P), x, y) -> () or (C,)."""
    half_log_2pi = 0.5 * math.log(2 * math.pi)
    prior_constant = workload.dim * (math.log(workload.prior_scale) + half_log_2pi)
    noise_constant = math.log(workload.noise_scale) + half_log_2pi
    act = {"silu": F.silu, "relu": F.relu}[workload.activation]

    def value(theta: Any, x: Any, y: Any) -> Any:
        layers = unravel(theta, workload.sizes)
        batched = theta.ndim == 2
        h = x
        for k, (weight, bias) in enumerate(layers):
            if batched and k > 0:
                h = torch.baddbmm(bias[:, None], h, weight)
            elif batched:
                h = h @ weight + bias[:, None]
            else:
                h = torch.addmm(bias, h, weight)
            h = act(h) if k < len(layers) - 1 else h
        if workload.likelihood == "gaussian":
            residual = (y - h) / workload.noise_scale
            loglik = -0.5 * (residual * residual).sum((-2, -1)) - y.numel() * noise_constant
        else:
            labels = y.expand(*h.shape[:-1])
            picked = torch.log_softmax(h, -1).gather(-1, labels[..., None])
            loglik = picked.sum((-2, -1))
        logprior = -0.5 * (theta * theta).sum(-1) / workload.prior_scale**2 - prior_constant
        return loglik + logprior

    return value


def leapfrog(workload: Leapfrog, variant: str) -> Prepared:
    """Prepare one of the two variants."""
    torch.set_num_threads(workload.threads)
    torch.compiler.reset()  # it compiles a function only some eight times in a process
    value = logdensity(workload)
    eps = workload.step_size
    x, y = (torch.from_numpy(a) for a in workload.data)
    position, momentum = (torch.from_numpy(a) for a in workload.start)
    if workload.chains == 1:
        position, momentum = position[0], momentum[0]

    def eager(q: Any) -> tuple[Any, Any]:
        q.requires_grad_(True)
        values = value(q, x, y)
        (grad,) = torch.autograd.grad(values.sum(), q)
        q.requires_grad_(False)
        return values.detach(), grad

    def run_eager() -> tuple[Any, Any]:
        q, p = position.clone(), momentum.clone()
        values, grad = eager(q)
        p.add_(grad, alpha=0.5 * eps)
        for left in range(workload.num_steps, 0, -1):
            q.add_(p, alpha=eps)
            values, grad = eager(q)
            p.add_(grad, alpha=eps if left > 1 else 0.5 * eps)
        return q, values

    def total(q: Any, x: Any, y: Any) -> tuple[Any, Any]:
        values = value(q, x, y)
        return values.sum(), values

    gradient = torch.func.grad(total, has_aux=True)

    @torch.compile(fullgraph=True, dynamic=False)
    def step(q: Any, p: Any, grad: Any, x: Any, y: Any) -> tuple[Any, Any, Any, Any]:
        p = p + 0.5 * eps * grad
        q = q + eps * p
        grad, values = gradient(q, x, y)
        return q, p + 0.5 * eps * grad, grad, values

    def run_compiled() -> tuple[Any, Any]:
        with torch.no_grad():
            q, p = position, momentum
            grad, values = gradient(q, x, y)
            for _ in range(workload.num_steps):
                q, p, grad, values = step(q, p, grad, x, y)
        return q, values

    def answer(result: tuple[Any, Any]) -> dict[str, Any]:
        return {"position": result[0].numpy(), "logdensity": result[1].numpy()}

    if variant == "eager":
        return Prepared(run_eager, answer, "autograd, chains as batched matmul, in-place updates")
    return Prepared(run_compiled, answer, "torch.compile of one step with torch.func.grad")


def reparam(workload: Reparam, variant: str) -> Prepared:
    """Fill reused memory with normals, then one fused multiply-add pass."""
    torch.set_num_threads(workload.threads)
    torch.manual_seed(workload.seed)
    mean, rho = (torch.from_numpy(a) for a in workload.variational)
    out = torch.empty(workload.samples, workload.dim)

    def eager() -> Any:
        out.normal_()
        return torch.addcmul(mean, F.softplus(rho), out, out=out)

    @torch.compile(dynamic=False)
    def compiled(mean: Any, rho: Any) -> Any:
        return mean + F.softplus(rho) * torch.randn(workload.samples, workload.dim)

    def answer(weights: Any) -> dict[str, Any]:
        return {"weights": weights.numpy()}

    if variant == "eager":
        return Prepared(eager, answer, "normal_, addcmul in place, memory reused")
    return Prepared(lambda: compiled(mean, rho), answer, "torch.compile of randn and scale")


def normals(workload: Normals, variant: str) -> Prepared:
    """Time `normal_` in place, or a compiled randn."""
    torch.set_num_threads(workload.threads)
    torch.manual_seed(workload.seed)
    out = torch.empty(workload.count)

    @torch.compile(dynamic=False)
    def compiled() -> Any:
        return torch.randn(workload.count)

    def answer(values: Any) -> dict[str, Any]:
        return {"normals": values.numpy()}

    if variant == "eager":
        return Prepared(out.normal_, answer, "normal_, memory reused")
    return Prepared(compiled, answer, "torch.compile of randn")


def first_draw(workload: Any, x: Any, y: Any, start: Any) -> tuple[Any, Any, float]:
    """Eager HMC: compiling would not pay within one second of work."""
    value = logdensity(workload.of)
    eps = workload.of.step_size
    rng = torch.Generator().manual_seed(workload.of.seed)
    x, y, q = (torch.from_numpy(np.asarray(a)) for a in (x, y, start))

    def gradient(q: Any) -> tuple[Any, Any]:
        q = q.requires_grad_(True)
        now = value(q, x, y)
        return now.detach(), torch.autograd.grad(now, q)[0]

    now, grad = gradient(q.clone())
    positions, values, rates = [], [], []
    for _ in range(workload.draws):
        p = torch.randn(q.shape, generator=rng)
        end, kinetic, new, new_grad = q, 0.5 * p.dot(p), now, grad
        for _ in range(workload.num_steps):
            p = p + 0.5 * eps * new_grad
            end = (end + eps * p).detach()
            new, new_grad = gradient(end)
            p = p + 0.5 * eps * new_grad
        rate = math.exp(min(0.0, float(new - now + kinetic - 0.5 * p.dot(p))))
        if float(torch.rand((), generator=rng)) < rate:
            q, now, grad = end.detach(), new, new_grad
        positions.append(q.numpy())
        values.append(float(now))
        rates.append(rate)
    return np.stack(positions), np.array(values), float(np.mean(rates))


@functools.cache
def obstacle(variant: str) -> str:
    """Say why torch.compile does not work here: it needs a C++ compiler with OpenMP."""
    if variant == "compile":
        try:
            torch.compile(lambda a: torch.sin(a) + 1.0, dynamic=False)(torch.ones(64))
        except Exception as error:  # whatever is missing: the compiler, a header, a library
            return f"torch.compile does not work here: {str(error).strip().splitlines()[0]}"
    return ""


PREPARE = {
    "leapfrog": leapfrog,
    "bbb": torch_bayes.bbb,
    "mc_forward": torch_bayes.mc_forward,
    "mc_dropout": torch_bayes.mc_dropout,
    "sgld": torch_bayes.sgld,
    "network": torch_networks.network,
    "reparam": reparam,
    "normals": normals,
}

__all__ = ["PREPARE", "obstacle", "versions"]
