"""bde: deep ensembles by Adam, then unadjusted MCLMC from each member (Sommer et al. 2025).

Its lengths, and relu (it has no tanh), are those of its authors' own experiments on UCI tables
(github.com/EmanuelSommer/MILE, experiments/replicate_uci/mclmc.yaml); its README runs fewer steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bde import BdeRegressor
from bde.loss import GaussianNLL
from bde.models import Fnn
from bde.sampler.prior import PriorDist
from bde.sampler.probabilistic import ProbabilisticModel
from bde.task import TaskType

from benchmarks.workloads.effective_problems import Problem
from benchmarks.workloads.effective_run import Run

EPOCHS, PATIENCE = 500, 10  # of the ensemble, on all rows but 15 %
WARMUP, STEPS, THIN = 50_000, 10_000, 10
GRADIENTS = 2  # in a step of McLachlan's integrator


class BDE(Run):
    """All at once: `BdeRegressor.fit`, and its draws one after the other.

    What it compiles is within its seconds, which fall due with its gradients.
    """

    most = STEPS // THIN

    def __init__(self, problem: Problem, seed: int, threads: int) -> None:
        super().__init__()
        self.problem, self.at = dataclasses.replace(problem, activation="relu"), 0
        self.form = f"pmap over {threads} devices; compilation is in its seconds"
        self.versions = {"bde": metadata.version("sklearn-contrib-bde"), "jax": jax.__version__}
        self.regressor = BdeRegressor(
            n_members=problem.chains,
            hidden_layers=list(problem.sizes[1:-1]),
            activation="relu",
            seed=seed,
            loss=GaussianNLL(),
            epochs=EPOCHS,
            patience=PATIENCE,
            warmup_steps=WARMUP,
            n_samples=STEPS,
            n_thinning=THIN,
        )

    def density(self, theta: Any) -> tuple[Any, Any]:
        """Of its probabilistic model, of flat parameters."""
        model = Fnn(list(self.problem.sizes), act_fn="relu")
        prior = PriorDist.STANDARDNORMAL.get_prior()
        stated = ProbabilisticModel(model, model.params, prior, TaskType.REGRESSION)
        x, y = self.problem.data.x, self.problem.data.y
        rows = jnp.asarray(x, jnp.float32), jnp.asarray(y[:, None], jnp.float32)

        def value(flat: Any) -> Any:
            layers, at = [], 0
            for weight, bias in model.params:
                shaped = flat[at : at + weight.size].reshape(weight.shape)
                at += weight.size + bias.size
                layers.append((shaped, flat[at - bias.size : at]))
            return stated.log_unnormalized_posterior(layers, *rows)

        found: tuple[Any, Any] = jax.vmap(jax.value_and_grad(value))(
            jnp.asarray(theta, jnp.float32)
        )
        return found

    def start(self) -> None:
        """Train, warm up and sample."""
        data, begun = self.problem.data, time.perf_counter()
        x, y = np.asarray(data.x, np.float32), np.asarray(data.y, np.float32)
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars
            self.regressor.fit(x, y)
        self.spent = time.perf_counter() - begun
        members = self.problem.chains
        leaves = [np.asarray(a) for layer in self.regressor.positions_eT_ for a in layer]
        flat = [a.reshape(*a.shape[:2], -1) for a in leaves]
        self.drawn = np.concatenate(flat, axis=2)
        # The epochs at most: how many were run before it stopped is not told.
        self.warmup = members * (EPOCHS + GRADIENTS * WARMUP)
        self.total = self.warmup + members * GRADIENTS * STEPS
        self._due()

    def _due(self) -> None:
        steps = min(self.at * THIN, STEPS)
        self.gradients = float(self.warmup + self.problem.chains * GRADIENTS * steps)
        self.ahead = self.spent * (1.0 - self.gradients / self.total)

    def draw(self, count: int) -> Any:
        """Return the next of its draws."""
        found = self.drawn[:, self.at : self.at + count]
        self.at += count
        self._due()
        return found
