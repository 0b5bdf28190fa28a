"""Ribbit's entries of `benchmarks.effective`: a sampler by its name, and nothing set."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import ribbit as rb
from benchmarks.ours.entries import versions
from benchmarks.workloads.effective_problems import Problem
from benchmarks.workloads.effective_run import NotStatedError, Run


def posterior(problem: Problem, dtype: type = np.float32, **options: Any) -> rb.Posterior:
    """State the problem as a Ribbit target."""
    noises: dict[str, Any] = {
        "normal": rb.Gaussian,
        "outputs": rb.HeteroscedasticGaussian,
        "classes": rb.Categorical,
    }
    if problem.noise == "gamma":
        if not hasattr(rb, "GammaPrecision"):
            raise NotStatedError("Ribbit cannot state a Gamma prior of the precision")
        precision = rb.GammaPrecision(3.0, 1.0)
        noises["gamma"] = lambda: rb.Gaussian(log_noise_prior=precision)
    if problem.sizes:
        layers: list[Any] = []
        for width in problem.sizes[1:-1]:
            layers += [rb.Dense(width, bias=problem.bias), rb.Activation("tanh")]
        layers.append(rb.Dense(problem.sizes[-1], bias=problem.bias))
        model = rb.Model(layers, input_shape=problem.sizes[:1])
    else:
        model = rb.lenet5()
    return rb.Posterior(
        model,
        problem.data.x,
        problem.data.y,
        prior=rb.Normal(problem.prior_scale),
        likelihood=noises[problem.noise](),
        dtype=dtype,
        **options,
    )


class Ours(Run):
    """`getattr(rb, sampler)(target, **options).sample(n, **sample)`, then on by `resume`."""

    def __init__(
        self,
        problem: Problem,
        seed: int,
        threads: int,
        *,
        sampler: str,
        options: dict[str, Any] | None = None,
        target: dict[str, Any] | None = None,
        sample: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        rb.set_num_threads(threads)
        self.problem, self.seed, self.arguments = problem, seed, sample or {}
        with self.compiling():
            self.target = posterior(problem, **(target or {}))
            self.sampler: Any = getattr(rb, sampler)(self.target, **(options or {}))
        self.state: Any = None
        self.form = f"rb.{sampler}, float32, {threads} threads"
        self.versions = versions()

    def density(self, theta: Any) -> tuple[Any, Any]:
        """In float64."""
        return posterior(self.problem, np.float64).value_and_grad(theta)

    def start(self) -> None:
        """Nothing: the first call of `sample` warms up."""

    def draw(self, count: int) -> Any:
        """`count` draws of every chain."""
        how: dict[str, Any] = {"resume": self.state}
        if self.state is None:
            how = {"chains": self.problem.chains, "seed": self.seed, "save_warmup": True}
            how |= self.arguments
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of chains that do not agree yet: this judges them
            draws = self.sampler.sample(count, progress=False, **how)
        self.state = draws.state
        # Statistics of a draw are of its last step: of several, each costs as much.
        thin = int(self.sampler._default_thin)
        self.gradients += thin * self._spent(draws.stats)
        if draws.warmup_stats:
            self.gradients += self._spent(draws.warmup_stats)
        return np.asarray(draws.positions)

    def _spent(self, stats: Any) -> float:
        """Gradients of all chains: a leapfrog is one.

        Not in it: those of finding a first step size, some ten per chain, on no side.
        """
        return float(np.asarray(stats["n_steps"]).sum())
