"""nutpie: its NUTS in Rust, over the density in JAX, called from Python."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
import nutpie
from nutpie.compiled_pyfunc import from_pyfunc

from benchmarks.rivals import jax_effective
from benchmarks.workloads.effective_problems import Problem
from benchmarks.workloads.effective_run import Run

DRAWS = 1000  # per chain of one run, its default; a longer one begins anew


class Nutpie(Run):
    """`nutpie.sample` with its defaults; a thread per chain, as many at once as there are cores.

    It has no way to go on from the end of a run: draws beyond those of the first run come from a
    second, twice as long, whose seconds and gradients take the place of the first's. Its seconds
    fall due with its gradients: what is not yet drawn is `ahead`.
    """

    def __init__(self, problem: Problem, seed: int, threads: int) -> None:
        super().__init__()
        self.problem, self.seed, self.threads = problem, seed, threads
        self.target = jax.jit(jax.value_and_grad(jax_effective.logdensity(problem)))
        self.form = f"density in JAX, float32, called from Python, {threads} chains at once"
        self.versions = jax_effective.versions() | {"nutpie": nutpie.__version__}
        with self.compiling():
            jax.block_until_ready(self.target(np.zeros(problem.dim, np.float32)))

    def density(self, theta: Any) -> tuple[Any, Any]:
        """Of what is sampled."""
        found = [self.target(np.asarray(row, np.float32)) for row in theta]
        return np.array([v for v, _ in found]), np.array([g for _, g in found])

    def start(self) -> None:
        """Build the model; the first draws warm up."""
        dim = self.problem.dim

        def make_logp() -> Any:
            def logp(x: Any) -> tuple[float, Any]:
                value, gradient = self.target(np.asarray(x, np.float32))
                return float(value), np.asarray(gradient, np.float64)

            return logp

        def make_expand(*_: Any) -> Any:
            return lambda x: {"theta": np.asarray(x, np.float64)}

        self.model = from_pyfunc(
            dim, make_logp, make_expand, [np.dtype(np.float64)], [(dim,)], ["theta"]
        )
        self.drawn = np.zeros((self.problem.chains, 0, dim))
        self.steps = np.zeros((self.problem.chains, 0))
        self.warmup, self.at = 0.0, 0
        self.spent = self.last = 0.0  # seconds of all runs, of the last

    def draw(self, count: int) -> Any:
        """Return the next draws of the run that is there, or of a longer one."""
        while self.at + count > self.drawn.shape[1]:
            self._sample(max(DRAWS, 2 * self.drawn.shape[1]))
        found = self.drawn[:, self.at : self.at + count]
        self.at += count
        self.gradients = self.warmup + float(self.steps[:, : self.at].sum())
        self.ahead = self.spent - self.last * self.gradients / (self.warmup + self.steps.sum())
        return found

    def _sample(self, draws: int) -> None:
        begun = time.perf_counter()
        trace = nutpie.sample(
            self.model,
            draws=draws,
            chains=self.problem.chains,
            cores=self.threads,
            seed=self.seed,
            progress_bar=False,
        )
        self.last = time.perf_counter() - begun
        self.spent += self.last
        self.drawn = np.asarray(trace.posterior["theta"])
        self.steps = np.asarray(trace.sample_stats["n_steps"], np.float64)
        self.warmup = float(np.asarray(trace.warmup_sample_stats["n_steps"]).sum())
