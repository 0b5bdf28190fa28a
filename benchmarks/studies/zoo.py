"""Every sampler on every network of `ribbit.zoo`: a short run each, and what it is held to.

Data, starting points and float64 references are those of the workloads resnet20, lenet5, cnn-lstm
and hmc-small-1. A first step on all of a few rows is recomputed from the reference gradient before
anything is timed. What is timed is a run on 64 rows: four steps on half of them (HMC and NUTS: two
transitions), building the sampler included; two runs must have the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ribbit as rb
from benchmarks.harness.workload import WrongAnswerError, check_errors, check_scores, relative_error
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.network_gradient import NetworkGradient
from benchmarks.workloads.random_weights import check_normal
from benchmarks.workloads.table import WORKLOADS

F64 = NDArray[np.float64]
SEED = 7
ROWS = 64
EPOCHS, STEPS = 2, 4  # of a timed fit, of a timed sampler: on half the rows the same work
TOLERANCE = 1e-4  # of float32 gradients against the reference, 2-norms


@dataclass(frozen=True)
class Problem:
    """A network of the zoo, the rows of a workload, a place to start, and the reference there."""

    make: Callable[..., rb.Model]
    workload: NetworkGradient | Leapfrog

    @cached_property
    def model(self) -> rb.Model:
        """As its user makes it."""
        if isinstance(self.workload, Leapfrog):
            inputs, *hidden, outputs = self.workload.sizes
            return self.make(inputs, hidden, outputs, activation=self.workload.activation)
        return self.make()

    def posterior(self, *, masked: bool = False) -> rb.Posterior:
        """Its posterior; `masked`: with dropout of 0.05 before the last layer."""
        workload, model = self.workload, self.model
        if masked:
            *below, last = model.layers
            model = rb.Model((*below, rb.Dropout(0.05), last), input_shape=model.input_shape)
        gaussian = isinstance(workload, Leapfrog)
        return rb.Posterior(
            model,
            *workload.data,
            prior=rb.Normal(workload.prior_scale),
            likelihood=rb.Gaussian(workload.noise_scale) if gaussian else rb.Categorical(),
            dtype=np.float32,
        )

    @property
    def half(self) -> int:
        """Batch size of two steps per epoch."""
        return self.workload.rows // 2

    @property
    def start(self) -> NDArray[np.float32]:
        """Position (P,)."""
        start: NDArray[np.float32] = (
            self.workload.start[0][0]
            if isinstance(self.workload, Leapfrog)
            else self.workload.start
        )
        return start

    def reference(self, theta: Any) -> tuple[float, F64]:
        """Value () and gradient (P,) of the log posterior in float64, by NumPy."""
        workload, theta = self.workload, np.asarray(theta, np.float64)
        judge = workload.density if isinstance(workload, Leapfrog) else workload
        return judge.value_and_grad(theta)

    @cached_property
    def first(self) -> tuple[float, F64]:
        """The reference at the start."""
        return self.reference(self.start)


@dataclass(frozen=True)
class Network:
    """A network on `ROWS` rows, which are timed, and on `few`, where the reference looks."""

    make: Callable[..., rb.Model]
    workload_name: str
    few_rows: int
    hmc_step: float

    @cached_property
    def timed(self) -> Problem:
        """What is timed."""
        return Problem(self.make, replace(WORKLOADS[self.workload_name], rows=ROWS))

    @cached_property
    def few(self) -> Problem:
        """What a first step is checked on."""
        return Problem(self.make, replace(WORKLOADS[self.workload_name], rows=self.few_rows))


NETWORKS = {
    "mlp": Network(rb.mlp, "hmc-small-1", 64, 2e-4),
    "lenet5": Network(rb.lenet5, "lenet5", 16, 2e-3),
    "resnet20_frn": Network(rb.resnet20_frn, "resnet20", 4, 1e-3),
    "cnn_lstm": Network(rb.cnn_lstm, "cnn-lstm", 8, 2e-3),
}

Check = Callable[[Any], dict[str, float]]
Work = tuple[Callable[[], Any], Check]  # what is timed; holds its result and a first step


def same_bits(name: str, *pairs: tuple[Any, Any]) -> None:
    """Raise unless the arrays of each pair are finite and equal to the last bit."""
    for a, b in pairs:
        if not np.isfinite(a).all() or np.asarray(a).tobytes() != np.asarray(b).tobytes():
            raise WrongAnswerError(f"[{name}] expected two runs with equal, finite results")


def standard(name: str, drift: F64, noise: F64) -> dict[str, float]:
    """Hold noise (P,) to N(0, 1), also along `drift`, where a wrong drift would show."""
    check_normal(name, iter([noise]))
    along = {"noise_along_drift": float(noise @ drift / np.linalg.norm(drift))}
    check_scores(name, along, 5.5)
    return along


def states(sampler: rb.Sampler, problem: Problem, steps: int) -> tuple[Any, Any]:
    """Return the states before and after some steps of one chain."""
    chains = rb.Chains(sampler, problem.start, chains=1, seed=SEED, warmup=0)
    before = chains._chains.state
    chains.advance(steps)
    return before, chains._chains.state


def hmc(network: Network) -> Work:
    """Two transitions of three leapfrogs: accepted, and log densities rise as the reference's."""

    def sample(problem: Problem) -> rb.Draws:
        sampler = rb.HMC(
            problem.posterior(),
            step_size=network.hmc_step,
            num_leapfrog_steps=3,
            randomize_length=False,
        )
        return sampler.sample(2, warmup=0, chains=1, seed=SEED, init=problem.start, progress=False)

    def check(found: rb.Draws) -> dict[str, float]:
        same_bits("HMC", (found.positions, sample(network.timed).positions))
        rates = float(np.min(found.stats["acceptance_rate"]))
        if not rates > 0.5 or np.array_equal(found.positions[0, -1], network.timed.start):
            raise WrongAnswerError(f"[HMC] expected moves accepted above 0.5, got {rates:.3g}")
        draws, begun = sample(network.few), network.few.first[0]
        wanted = network.few.reference(draws.positions[0, -1])[0] - begun
        risen = float(draws.stats["lp"][0, -1]) - begun
        errors = {"lp": relative_error(risen, wanted)}
        check_errors("HMC", errors, TOLERANCE)
        return errors | {"acceptance": rates}

    return lambda: sample(network.timed), check


def nuts(network: Network) -> Work:
    """Grow two trees of at most seven leapfrogs: log densities rise as the reference's."""

    def sample(problem: Problem) -> rb.Draws:
        sampler = rb.NUTS(
            problem.posterior(),
            step_size=network.hmc_step,
            max_tree_depth=3,
            inverse_mass_matrix=None,
        )
        return sampler.sample(2, warmup=0, chains=1, seed=SEED, init=problem.start, progress=False)

    def check(found: rb.Draws) -> dict[str, float]:
        same_bits("NUTS", (found.positions, sample(network.timed).positions))
        rates = float(np.min(found.stats["acceptance_rate"]))
        if not rates > 0.5 or np.array_equal(found.positions[0, -1], network.timed.start):
            raise WrongAnswerError(
                f"[NUTS] expected moves of acceptance above 0.5, got {rates:.3g}"
            )
        draws, begun = sample(network.few), network.few.first[0]
        wanted = network.few.reference(draws.positions[0, -1])[0] - begun
        risen = float(draws.stats["lp"][0, -1]) - begun
        errors = {"lp": relative_error(risen, wanted)}
        check_errors("NUTS", errors, TOLERANCE)
        return errors | {"acceptance": rates}

    return lambda: sample(network.timed), check


def mclmc(network: Network) -> Work:
    """Make steps of length eps; where one leads the gradient is the reference's."""

    def step(problem: Problem, steps: int) -> NDArray[Any]:
        sampler = rb.MCLMC(problem.posterior(), step_size=network.hmc_step, decoherence_length=1.0)
        _, state = states(sampler, problem, steps)
        return np.stack([np.asarray(state.position[0]), np.asarray(state.grad[0])])

    def check(found: NDArray[Any]) -> dict[str, float]:
        same_bits("MCLMC", (found, step(network.timed, STEPS)))
        position, gradient = step(network.few, 1).astype(np.float64)
        length = float(np.linalg.norm(position - network.few.start))
        errors = {
            "length": abs(length / network.hmc_step - 1.0),
            "gradient": relative_error(gradient, network.few.reference(position)[1]),
        }
        check_errors("MCLMC", errors, TOLERANCE)
        return errors

    return lambda: step(network.timed, STEPS), check


def sgld(network: Network) -> Work:
    """Make steps on half the rows; one on all rows is drift plus noise.

    Its step size makes the drift 40 standard deviations of the noise along it: a drift 14 % off is
    rejected.
    """

    def step(problem: Problem, eps: float, batch_size: int | None, steps: int) -> NDArray[Any]:
        sampler = rb.SGLD(problem.posterior(), step_size=eps, batch_size=batch_size)
        return np.asarray(states(sampler, problem, steps)[1].position[0])

    def run() -> NDArray[Any]:
        return step(network.timed, 1e-6, network.timed.half, STEPS)

    def check(found: NDArray[Any]) -> dict[str, float]:
        same_bits("SGLD", (found, run()))
        gradient = network.few.first[1]
        eps = (80.0 / float(np.linalg.norm(gradient))) ** 2
        drift = 0.5 * eps * gradient
        moved = step(network.few, eps, None, 1).astype(np.float64) - network.few.start
        return standard("SGLD", drift, (moved - drift) / eps**0.5)

    return run, check


def sghmc(network: Network) -> Work:
    """As `sgld`, by the velocity: v = (1 - a) v + eps g + sqrt(2 a eps) xi with a = 0.1."""

    def step(problem: Problem, eps: float, batch_size: int | None, steps: int) -> tuple[Any, Any]:
        sampler = rb.SGHMC(problem.posterior(), step_size=eps, friction=0.1, batch_size=batch_size)
        return states(sampler, problem, steps)

    def run() -> NDArray[Any]:
        return np.asarray(step(network.timed, 1e-7, network.timed.half, STEPS)[1].position)

    def check(found: NDArray[Any]) -> dict[str, float]:
        same_bits("SGHMC", (found, run()))
        gradient = network.few.first[1]
        eps = 0.2 * (40.0 / float(np.linalg.norm(gradient))) ** 2
        before, after = step(network.few, eps, None, 1)
        velocity, drift = after.first_moment[0].astype(np.float64), eps * gradient
        noise = (velocity - 0.9 * before.first_moment[0] - drift) / (0.2 * eps) ** 0.5
        moved = after.position[0].astype(np.float64) - network.few.start
        errors = {"moved": relative_error(moved, velocity)}
        check_errors("SGHMC", errors, TOLERANCE)
        return errors | standard("SGHMC", drift, noise)

    return run, check


def baoab(network: Network) -> Work:
    """As `sgld`, with a half drift along the velocity before and after friction and noise.

    Without scales u += h g, theta += h/2 u, u = c u + sqrt(1 - c^2) xi, theta += h/2 u.
    """
    friction = 2.0

    def step(problem: Problem, h: float, batch_size: int | None, steps: int) -> tuple[Any, Any]:
        target = problem.posterior()
        ones = np.ones(target.dim)
        sampler = rb.BAOAB(
            target, step_size=h, friction=friction, batch_size=batch_size, inverse_mass_matrix=ones
        )
        return states(sampler, problem, steps)

    def run() -> NDArray[Any]:
        return np.asarray(step(network.timed, 1e-4, network.timed.half, STEPS)[1].position)

    def check(found: NDArray[Any]) -> dict[str, float]:
        same_bits("BAOAB", (found, run()))
        gradient = network.few.first[1]
        h = 2.0 * friction * (40.0 / float(np.linalg.norm(gradient))) ** 2
        before, after = step(network.few, h, None, 1)
        first, last = (s.first_moment[0].astype(np.float64) for s in (before, after))
        kept = np.exp(-friction * h)
        drift = kept * h * gradient
        noise = (last - kept * first - drift) / np.sqrt(-np.expm1(-2.0 * friction * h))
        moved = after.position[0].astype(np.float64) - network.few.start
        errors = {"moved": relative_error(moved, 0.5 * h * (first + h * gradient + last))}
        check_errors("BAOAB", errors, TOLERANCE)
        return errors | standard("BAOAB", drift, noise)

    return run, check


def bbb(network: Network) -> Work:
    """Epochs of two steps; Adam's moments after one on all rows are the bound's gradient.

    d/dmean = g - mean / s^2 and d/dscale = g xi - scale / s^2 + 1 / scale, with g the gradient of
    the log likelihood at w = mean + scale xi and s the prior's standard deviation.
    """

    def fit(problem: Problem, batch_size: int | None, epochs: int) -> rb.MeanField:
        sampler = rb.BBB(problem.posterior(), batch_size=batch_size, learning_rate=1e-4)
        return sampler.fit(epochs, seed=SEED, init=begin(problem), progress=False)

    def begin(problem: Problem) -> rb.MeanField:
        return rb.MeanField(problem.start, np.full_like(problem.start, 0.01))

    def run() -> rb.MeanField:
        return fit(network.timed, network.timed.half, EPOCHS)

    def check(found: rb.MeanField) -> dict[str, float]:
        again, few = run(), network.few
        same_bits("BBB", (found.mean, again.mean), (found.scale, again.scale))
        mean, scale = (np.asarray(a, np.float64) for a in (begin(few).mean, begin(few).scale))
        rho = (scale + np.log(-np.expm1(-scale))).astype(np.float32)
        weights = rb.reparameterize(few.start, rho, 1, SEED)[0].astype(np.float64)
        precision = few.workload.prior_scale**-2.0
        likelihood = few.reference(weights)[1] + precision * weights
        by_scale = likelihood * (weights - mean) / scale - precision * scale + 1.0 / scale
        moments = fit(few, None, 1).state[0]
        errors = {
            "by_mean": relative_error(-10.0 * moments[2], precision * mean - likelihood),
            "by_rho": relative_error(-10.0 * moments[4], by_scale * np.expm1(-scale)),
        }
        check_errors("BBB", errors, TOLERANCE)
        return errors

    return run, check


def mc_dropout(network: Network) -> Work:
    """Epochs of two steps; at a rate that drops nothing Adam's first moment is the gradient.

    At 0.05 masks move it, and the predictions.
    """

    def fit(
        problem: Problem, batch_size: int | None, epochs: int, rate: float = 0.05
    ) -> rb.DropoutFit:
        sampler = rb.MCDropout(problem.posterior(masked=True), rate=rate, batch_size=batch_size)
        return sampler.fit(epochs, seed=SEED, init=problem.start, progress=False)

    def run() -> rb.DropoutFit:
        return fit(network.timed, network.timed.half, EPOCHS)

    def check(found: rb.DropoutFit) -> dict[str, float]:
        same_bits("MCDropout", (found.theta, run().theta))
        few, error = network.few, {}
        for rate in (1e-8, 0.05):
            moments = fit(few, None, 1, rate).state.first_moment[0]
            error[rate] = relative_error(10.0 * moments, few.first[1])
        check_errors("MCDropout", {"gradient": error[1e-8]}, TOLERANCE)
        spread = float(np.mean(found.predict(few.workload.data[0], 10).epistemic_std))
        if not error[0.05] > 10.0 * TOLERANCE or not spread > 0.0:
            raise WrongAnswerError(
                "[MCDropout] expected masks to move gradient and predictions, got "
                f"{error[0.05]:.3g} and {spread:.3g}"
            )
        return {"gradient": error[1e-8], "masked": error[0.05], "spread": spread}

    return run, check


def ensemble(network: Network) -> Work:
    """Two members; Adam's first moment after a step on all rows is a tenth of the gradient.

    On all rows there is one: two from one start would be copies.
    """

    def fit(problem: Problem, batch_size: int | None, epochs: int) -> rb.EnsembleFit:
        members = 1 if batch_size is None else 2
        sampler = rb.DeepEnsemble(problem.posterior(), members=members, batch_size=batch_size)
        return sampler.fit(epochs, seed=SEED, init=problem.start, progress=False)

    def run() -> rb.EnsembleFit:
        return fit(network.timed, network.timed.half, EPOCHS)

    def check(found: rb.EnsembleFit) -> dict[str, float]:
        same_bits("DeepEnsemble", (found.theta, run().theta))
        moments = fit(network.few, None, 1).state.first_moment
        errors = {
            f"member_{i}": relative_error(10.0 * moment, network.few.first[1])
            for i, moment in enumerate(moments)
        }
        check_errors("DeepEnsemble", errors, TOLERANCE)
        return errors

    return run, check


def swag(network: Network) -> Work:
    """Train an epoch and collect another; the first step is that of `ensemble`."""

    def fit(problem: Problem, batch_size: int | None, swag_epochs: int) -> rb.SWAGFit:
        sampler = rb.SWAG(problem.posterior(), batch_size=batch_size)
        return sampler.fit(
            1, swag_epochs=swag_epochs, seed=SEED, init=problem.start, progress=False
        )

    def run() -> rb.SWAGFit:
        return fit(network.timed, network.timed.half, EPOCHS - 1)

    def check(found: rb.SWAGFit) -> dict[str, float]:
        same_bits("SWAG", (found.mean, run().mean))
        moment = fit(network.few, None, 0).state.first_moment[0]
        errors = {"gradient": relative_error(10.0 * moment, network.few.first[1])}
        check_errors("SWAG", errors, TOLERANCE)
        return errors

    return run, check


def laplace(network: Network) -> Work:
    """Weights as they are, the curvature of the last layer.

    Outputs are linear in it, so that the precision is a Hessian: what the reference gradient
    changes by along a random direction, the covariance turns into that direction.
    """

    def fit(problem: Problem) -> rb.LaplaceFit:
        sampler = rb.LaplaceApproximation(
            problem.posterior(), subset="last_layer", batch_size=None, polish=0
        )
        with warnings.catch_warnings():  # a start is no mode
            warnings.simplefilter("ignore", rb.errors.FitWarning)
            return sampler.fit(0, init=problem.start, progress=False)

    def check(found: rb.LaplaceFit) -> dict[str, float]:
        same_bits("LaplaceApproximation", (found.factor, fit(network.timed).factor))
        few, found = network.few, fit(network.few)
        own = slice(found.first, found.first + len(found.factor))
        direction = np.zeros(few.start.size)
        direction[own] = np.random.default_rng(SEED).normal(size=len(found.factor))
        step = 1e-4 * direction
        bend = few.reference(few.start - step)[1] - few.reference(few.start + step)[1]
        back = found.covariance @ (bend[own] / 2e-4)
        errors = {"covariance": relative_error(back, direction[own])}
        check_errors("LaplaceApproximation", errors, TOLERANCE)
        return errors

    return lambda: fit(network.timed), check


SAMPLERS: dict[str, Callable[[Network], Work]] = {
    "HMC": hmc,
    "NUTS": nuts,
    "MCLMC": mclmc,
    "SGLD": sgld,
    "SGHMC": sghmc,
    "BAOAB": baoab,
    "BBB": bbb,
    "MCDropout": mc_dropout,
    "DeepEnsemble": ensemble,
    "SWAG": swag,
    "LaplaceApproximation": laplace,
}
