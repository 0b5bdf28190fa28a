"""Many steps of a target of torch: minibatch steps, and those of a mean-field Gaussian."""

# Shapes: C chains, P parameters, n rows of a batch.

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks, random_numbers, records
from ribbit._arrays.batches import Batches
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.positions import host_position
from ribbit._arrays.threads import Interrupted
from ribbit._arrays.update_rules import RULES, check_moments
from ribbit.density import Density
from ribbit.results.state import StochasticState
from ribbit.samplers.sgmcmc.python_steps import python_steps, rows_of
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.targets.likelihoods import Array64
from ribbit.torch.evaluation import Evaluation

if TYPE_CHECKING:
    import numpy.typing as npt


_HALF_LOG_2PI_E = 0.5 * (1.0 + math.log(2.0 * math.pi))


class _Flag:
    """What the Python loop asks of a guard, of the flag of native code."""

    def __init__(self, interrupt: Any) -> None:
        self._interrupt = interrupt
        self.foreign = False

    @property
    def requested(self) -> bool:
        return self._interrupt is not None and bool(self._interrupt.is_set())

    def begin_foreign(self) -> None:
        """Torch ends its call before the flag is looked at."""


class _View:
    """A target as one step sees it: with the prior or without, under the step's masks."""

    rows_per_chain = True

    def __init__(self, target: Any, prior: float, seed: int) -> None:
        self.dim, self.dtype, self.num_rows = target.dim, target.dtype, target.num_rows
        self._target, self._prior, self._seed, self.step = target, prior, seed, 0

    def value_and_grad(self, theta: FloatArray, rows: Any = None) -> tuple[Any, FloatArray]:
        terms, grad = self._target._terms_at(
            theta, rows, prior=self._prior, seed=self._seed, step=self.step
        )
        return terms[:, 0] + terms[:, 1], grad


class TorchSteps(Evaluation):
    """Minibatch and variational steps of a target, for `ModuleDensity`."""

    prior_mean: Array64
    prior_sd: Array64
    _masked: bool = False

    def _terms_at(
        self, theta: FloatArray, rows: Any, *, prior: float, seed: int, step: int
    ) -> tuple[Array64, FloatArray]:
        """Return tempered terms (C, 2) and gradient (C, P) as the step `step` has them."""
        del seed, step  # masks have addresses
        return self._evaluate("advance", theta, rows, prior=prior)[:2]

    def advance(
        self,
        position: FloatArray,
        first: FloatArray | None,
        second: FloatArray | None,
        *,
        seed: int,
        chains: npt.NDArray[np.uint32],
        first_step: int,
        batch_size: int,
        step_size: Array64,
        noise: Array64,
        rule: str,
        prior: float,
        friction: float,
        previous_step_size: float,
        decay: tuple[float, float],
        epsilon: float,
        adapt_until: int,
        interrupt: Any = None,
    ) -> tuple[FloatArray, FloatArray | None, FloatArray | None, npt.NDArray[np.int64], Array64]:
        """Make stochastic-gradient steps of every chain, as `NativeSteps.advance`."""
        name = f"{type(self).__name__}.advance"
        checks.choice(name, "rule", rule, RULES)
        position, _ = host_position(name, "position", position, self.dtype, self.dim)
        check_moments("advance", rule, first, second)
        for what, one in (("first", first), ("second", second)):
            if one is not None:
                records.check_axes(name, what, one, "C P", {"C": len(position), "P": self.dim})
        _check_steps(
            name, seed, first_step, batch_size, decay, epsilon, step_size=step_size, noise=noise
        )
        checks.integer(name, "adapt_until", adapt_until, minimum=0)
        checks.integer_array(name, "chains", chains, below=2**32)
        for what, number in (
            ("prior", prior),
            ("friction", friction),
            ("previous_step_size", previous_step_size),
        ):
            checks.real(name, what, number)
        moved = Rule(
            rule,  # type: ignore[arg-type]
            friction=friction,
            preconditioned=rule == "langevin" and second is not None,
            prior=prior,
            decay1=decay[0],
            decay2=decay[1],
            epsilon=epsilon,
        )
        view = _View(self, prior, seed)
        density = Density(view, function="advance")
        batches = Batches(self.num_rows, batch_size, rule == "kinetic")
        state = StochasticState(
            position=position,
            logdensity=np.zeros(len(position)),
            first_moment=first,
            second_moment=second,
            step=first_step,
            seed=seed,
            chains=chains,
            warmup=adapt_until,
        )
        guard: Any = _Flag(interrupt)
        before = previous_step_size
        # Under masks every step has a density of its own.
        block = 1 if self._masked else len(step_size)
        failed, largest = np.full(len(position), -1), np.zeros(len(position))
        for low in range(0, len(step_size), block):
            view.step = first_step + low
            part = slice(low, low + block)
            arrays, failed, largest = python_steps(
                density, moved, batches, state, step_size[part], noise[part], before, guard
            )
            position, first, second = arrays
            failed = np.where(failed >= 0, failed + low, failed)
            if (failed >= 0).any():
                break
            before = float(step_size[low + len(step_size[part]) - 1])
            step = first_step + low + block
            state = dataclasses.replace(
                state, position=position, first_moment=first, second_moment=second, step=step
            )
        return position, first, second, failed, largest

    def advance_variational(
        self,
        state: FloatArray,
        *,
        seed: int,
        first_step: int,
        batch_size: int,
        num_samples: int,
        estimator: str,
        closed: bool,
        step_size: Array64,
        kl_weight: Array64,
        decay: tuple[float, float],
        epsilon: float,
        interrupt: Any = None,
    ) -> tuple[FloatArray, Array64, int, float]:
        """Make steps on a mean-field Gaussian, as `NativeDensity.advance_variational`."""
        # Whole weight vectors are drawn (Blundell et al. 2015, section 3.2), the samples of a step
        # in one call.
        if not isinstance(estimator, str) or estimator != "reparam":
            raise ValueError(
                "[BBB] expected estimator='reparam' for a module that torch runs, got "
                f"{estimator!r}, which draws noise for each row inside its layers"
            )
        name = f"{type(self).__name__}.advance_variational"
        records.check_axes(name, "state", state, "K P", {"K": 6, "P": self.dim})
        _check_steps(
            *(name, seed, first_step, batch_size, decay, epsilon),
            step_size=step_size,
            kl_weight=kl_weight,
        )
        checks.integer(name, "num_samples", num_samples, minimum=1)
        checks.boolean(name, "closed", closed)
        batches = Batches(self.num_rows, batch_size)
        arrays = state.copy()
        found = np.zeros((3, len(step_size)))
        failed, largest = -1, 0.0
        for i, (rate, weight) in enumerate(
            zip(step_size.tolist(), kl_weight.tolist(), strict=True)
        ):
            if interrupt is not None and interrupt.is_set():
                raise Interrupted
            step = first_step + i
            batch = rows_of(batches, step, seed, [0])
            rows = None if batch is None else batch[0]
            by_mean, by_rho, found[:, i] = self._ascent(
                arrays, rows, seed, step, num_samples, closed, weight
            )
            moved = arrays.copy()
            for k, slope in enumerate((by_mean, by_rho)):
                _adam(moved, k, slope, rate, decay, epsilon, step + 1)
            if not np.isfinite(moved).all():
                sizes = np.abs(by_mean)
                failed, largest = i, float(np.max(np.where(np.isfinite(sizes), sizes, np.inf)))
                break
            arrays = moved
        return arrays, found, failed, largest

    def _ascent(
        self,
        arrays: FloatArray,
        rows: npt.NDArray[np.int64] | None,
        seed: int,
        step: int,
        num_samples: int,
        closed: bool,
        weight: float,
    ) -> tuple[Array64, Array64, Array64]:
        """Return gradients by mean and rho (P,) of a step's bound, and its record (3,)."""
        # The batch's log likelihood is not scaled to all rows: the KL term has the `weight`.
        mean, rho = (arrays[k].astype(np.float64) for k in (0, 1))
        sd = np.logaddexp(0.0, rho)
        ids = np.arange(num_samples, dtype=np.uint32)
        eps = random_numbers.normal(
            np,
            (num_samples, self.dim),
            self.dtype,
            seed=seed,
            step=step,
            chains=ids,
            purpose=random_numbers.WEIGHT_NOISE,
        )
        theta = (mean + sd * eps).astype(self.dtype)
        terms, grad, _ = self._evaluate("advance_variational", theta, rows, prior=0.0)
        share = 1.0 if rows is None else len(rows) / self.num_rows
        slope = share * grad.astype(np.float64)
        tempered = self.likelihood_temperature * self.temperature
        likelihood = float(np.mean(terms[:, 0])) * share * tempered
        log_q = -float(np.sum(np.log(sd))) - _HALF_LOG_2PI_E * self.dim
        centre, spread = self.prior_mean, self.prior_sd
        if closed:  # all priors are normal
            log_prior = -float(
                np.sum(0.5 * ((mean - centre) ** 2 + sd**2) / spread**2 + np.log(spread))
            ) - 0.5 * self.dim * math.log(2.0 * math.pi)
        else:
            values, by_prior = self._log_prior.value_and_grad(theta)
            log_prior = float(np.mean(values))
            slope += weight * by_prior
        by_mean = slope.mean(axis=0)
        by_sd = (slope * eps).mean(axis=0)
        if closed:
            shrink = weight / (spread**2 * self.temperature)
            by_mean -= shrink * (mean - centre)
            by_sd -= shrink * sd
        # d sd / d rho is the sigmoid; the entropy is the sum of log sd.
        sigmoid = np.exp(-np.logaddexp(0.0, -rho))
        by_rho = by_sd * sigmoid + weight * sigmoid / sd
        return by_mean, by_rho, np.array([likelihood, log_q, log_prior])


def _check_steps(
    function: str,
    seed: Any,
    first_step: Any,
    batch_size: Any,
    decay: Any,
    epsilon: Any,
    **arrays: Any,
) -> None:
    """Raise unless what all steps share are numbers, and `arrays` have one number for each step."""
    checks.seed(function, seed)
    checks.integer(function, "first_step", first_step, minimum=0)
    checks.integer(function, "batch_size", batch_size, minimum=0)
    if not isinstance(decay, tuple | list) or len(decay) != 2:
        raise TypeError(f"[{function}] decay must be two numbers, got {checks.summary(decay)}")
    for number in (*decay, epsilon):
        checks.real(function, "decay and epsilon", number)
    lengths: dict[str, int] = {}
    for name, value in arrays.items():
        records.check_axes(function, name, value, "S", lengths)


def _adam(
    arrays: FloatArray,
    k: int,
    slope: Array64,
    rate: float,
    decay: tuple[float, float],
    epsilon: float,
    count: int,
) -> None:
    """Move mean (k = 0) or rho (k = 1) of `arrays` (6, P) uphill, and its moments."""
    first, second = arrays[2 + 2 * k], arrays[3 + 2 * k]
    first[...] = decay[0] * first + (1.0 - decay[0]) * slope
    second[...] = decay[1] * second + (1.0 - decay[1]) * slope * slope
    mean = first / (1.0 - decay[0] ** count)
    spread = second / (1.0 - decay[1] ** count)
    with np.errstate(over="ignore", invalid="ignore"):
        arrays[k] += rate * mean / (np.sqrt(spread) + epsilon)
