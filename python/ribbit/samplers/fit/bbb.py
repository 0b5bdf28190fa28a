"""Bayes by Backprop: a mean-field Gaussian fitted by stochastic gradients."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit import schedules
from ribbit._arrays import checks, overrides
from ribbit._arrays.batches import Batches
from ribbit._arrays.namespace import from_host, host_dtype, namespace, to_host
from ribbit.density import Density
from ribbit.distributed.ranks import RankAgreement, agreement
from ribbit.errors import DTypeError, NonFiniteError, ShapeError
from ribbit.interrupt import InterruptGuard
from ribbit.progress import ProgressOption
from ribbit.protocols import Array
from ribbit.results.fits import MeanField
from ribbit.samplers.fit.training import (
    Fitter,
    begin,
    default_epochs,
    fitting,
    predictive_of,
    run_epochs,
    saved,
    warn_of_end,
    warn_of_rest,
)
from ribbit.store import Checkpoint, Store

__all__ = ["BBB"]

# In the order of the core's numbers.
ESTIMATORS = ("reparam", "local", "flipout")
_DECAY = (0.9, 0.999)
_EPSILON = 1e-8
_BLOCK = 1 << 16  # parameters that one function of NumPy works on


class BBB(Fitter):
    """Bayes by Backprop (Blundell et al. 2015): q(w) = N(mean, scale^2), scale = softplus(rho).

    Minimises E_q[log q] - (E_q[log likelihood] / likelihood_temperature + E_q[log prior]) /
    temperature by Adam, with the Kullback-Leibler term summed over the weights. A step on a batch
    of n of the N rows minimises its share: the KL term times the batch's weight, minus the batch's
    expected log likelihood. The weights of an epoch add up to one.

    Parameters
    ----------
    target
        A :class:`ribbit.Posterior`, or a posterior of :func:`ribbit.torch.posterior`.
    learning_rate : float
        Learning rate of Adam (decay 0.9 and 0.999, epsilon 1e-8), multiplied by the schedule. With
        a constant one the fit stays noisy; ``schedules.cosine`` settles.
    num_samples : int
        Weight samples per step.
    batch_size : int or None
        Largest number of rows per step, without replacement within an epoch of ceil(N / batch_size)
        batches. Batches differ by at most one row. None: all rows.
    kl : {"closed", "sampled"}
        "closed": E_q[log prior] in closed form, for normal priors. "sampled": from the weight
        samples of the step, for every prior. E_q[log q] is always in closed form.
    estimator : {"reparam", "local", "flipout"}
        Estimator of the likelihood's gradient. "reparam": one weight sample for all rows of a
        batch. "local": activations are drawn instead of weights, independently for each row
        (Kingma, Salimans and Welling 2015). "flipout": one weight sample whose deviations from the
        mean get random signs in each row (Wen et al. 2018). The last two cost twice the
        multiplications and have a smaller variance on large batches. They apply to dense layers and
        convolutions; parameters of other layers are drawn once for all rows. All are unbiased,
        except "local" for convolutions: it draws each output place independently, although the
        places share their weights.
    init_scale : float
        First standard deviation of every parameter.
    kl_weighting : {"uniform", "blundell"}
        Weight of the KL term in batch i of M: n / N, or 2^(M-i) / (2^M - 1) (their section 3.4).
    schedule : Schedule, optional
        From :mod:`ribbit.schedules`. Default: constant.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong type or out of range; a target that is not variational or has
        Dropout layers; ``kl="closed"`` with a prior that is not normal. Also for noise per row
        without a `batch_size` if the rows are on several ranks.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> fit = rb.BBB(target, learning_rate=0.05).fit(100, progress=False)
    >>> fit.predict(x, 200).mean.shape
    (20, 1)
    """

    _name = "BBB"

    def __init__(
        self,
        target: Any,
        *,
        learning_rate: float = 1e-2,
        num_samples: int = 1,
        batch_size: int | None = None,
        kl: str = "closed",
        estimator: str = "reparam",
        init_scale: float = 0.05,
        kl_weighting: str = "uniform",
        schedule: schedules.Schedule | None = None,
    ) -> None:
        name = self._name
        overrides.needed(name, target, "advance_variational")
        if not callable(getattr(target, "advance_variational", None)):
            raise TypeError(
                f"[{name}] expected a target with advance_variational, such as Posterior, got "
                f"{checks.summary(target)}: a plain log density has no likelihood to average"
            )
        self._density = Density(target, function=name, dropout=False, by_rows=True)
        self._learning_rate = checks.positive(name, "learning_rate", learning_rate)
        self._num_samples = checks.integer(
            name, "num_samples", num_samples, minimum=1, maximum=2**32 - 1
        )
        rows = self._density.num_rows
        assert rows is not None
        size = self._density.batch_size(batch_size)
        self._batch_size: int = rows if size is None else size
        self._num_rows: int = rows
        self._batches = Batches(rows, self._batch_size)
        self._kl = checks.choice(name, "kl", kl, ("closed", "sampled"))
        if kl == "closed" and not target.normal_prior:
            likelihood = getattr(target, "likelihood", None)
            noise = f" with {likelihood!r}" if getattr(likelihood, "learns_noise", False) else ""
            raise ValueError(
                f"[{name}] expected normal priors for kl='closed', got "
                f"{target.prior!r}{noise}: use kl='sampled'"
            )
        self._estimator = checks.choice(name, "estimator", estimator, ESTIMATORS)
        if self._density.group is not None and estimator != "reparam" and self._batch_size == rows:
            raise ValueError(
                f"[{name}] expected estimator='reparam' with group= where every step takes all "
                f"rows, got {estimator!r}, which draws noise for each row: give a batch_size"
            )
        self._init_scale = checks.positive(name, "init_scale", init_scale)
        if not 1e-30 <= self._init_scale <= 1e30:
            raise ValueError(f"[{name}] expected init_scale in [1e-30, 1e30], got {init_scale!r}")
        self._weighting = checks.choice(name, "kl_weighting", kl_weighting, ("uniform", "blundell"))
        self._schedule = schedules.check(name, schedule)
        self.settings: dict[str, Any] = {
            "learning_rate": self._learning_rate,
            "num_samples": self._num_samples,
            "batch_size": self._batch_size,
            "kl": kl,
            "estimator": estimator,
            "init_scale": self._init_scale,
            "kl_weighting": kl_weighting,
            "schedule": repr(self._schedule),
        }

    def fit(
        self,
        num_epochs: int | None = None,
        *,
        seed: checks.Seed = 0,
        init: MeanField | Array | None = None,
        resume: MeanField | None = None,
        progress: ProgressOption = None,
        store: Store | str | os.PathLike[str] | None = None,
    ) -> MeanField:
        """Return the fitted approximation.

        Parameters
        ----------
        num_epochs : int, optional
            Passes over the data, at least 1. Default: the length of a cosine or cyclical schedule,
            else 10,000 steps. If a step takes more than 1,024 rows there are fewer steps, but at
            least 2,000.
        seed : int, Generator, SeedSequence or None
            64-bit key of batches and weight noise.
        init : MeanField, (P,) array or another fit, optional
            Start: an approximation, or a mean with `init_scale`. Default: ``target.init``.
        resume : MeanField, optional
            A fit of the same settings to continue, bit-identically; its seed is used.
        progress : bool or callable, optional
            As for :meth:`ribbit.HMC.sample`.
        store : path or Store, optional
            Folder for checkpoints. The same call again resumes an interrupted fit, bit-identically.

        Returns
        -------
        MeanField
            ``complete=False`` after Ctrl-C, with a warning, and the fit so far.

        Raises
        ------
        TypeError, ValueError
            For bad arguments, before any work.
        NonFiniteError
            If a parameter becomes infinite or NaN; its ``state`` is the last finite MeanField.

        Warns
        -----
        FitWarning
            If the bound still moved at the end; ``fit.summary()`` says by how much.

        Notes
        -----
        An exception that ends a fit after its start carries the fit so far as its attribute
        ``fit``; ``resume=error.fit`` continues.
        """
        name = "BBB.fit"
        with agreement(name, self._density.group) as ranks:
            epochs = default_epochs(self._batches.count, self._batch_size, self._schedule)
            if num_epochs is not None:
                epochs = checks.integer(name, "num_epochs", num_epochs, minimum=1, maximum=2**39)
            seed = checks.seed(name, seed)
            start = init
            if resume is not None or not isinstance(init, MeanField):
                start = begin(name, init, resume, MeanField, self.settings, 1, seed)
            fit = self._resumed(name, resume) if resume is not None else None
            asked = {"num_epochs": epochs, "seed": seed, "init": init, "resume": resume}
            with (
                fitting(name, ranks, store, self._request(**asked)) as kept,
                InterruptGuard(ranks.group) as guard,
            ):
                ranks.guard = guard
                if kept is not None and kept.begun:
                    steps = kept.header["steps"]
                    arrays = from_host(self._density.xp, kept.arrays["state/arrays"])
                    step, seed = int(steps["step"]), int(steps["seed"])
                    records = kept.arrays["state/records"]
                elif fit is None:
                    arrays, step = self._first_arrays(name, seed, start), 0
                    records = np.zeros((3, 0))
                else:
                    arrays, step, seed, records = fit
                found = self._run(
                    name, epochs, seed, arrays, step, records, ranks, guard, progress, kept
                )
            if found.complete:
                warn_of_end(name, found)
            return found

    def _run(
        self,
        name: str,
        epochs: int,
        seed: int,
        arrays: Array,
        step: int,
        records: npt.NDArray[np.float64],
        ranks: RankAgreement,
        guard: InterruptGuard,
        progress: ProgressOption,
        store: Checkpoint | None,
    ) -> MeanField:
        held, found, last = arrays, [records], step
        first = int(store.header["loop"]["first"]) if store is not None and store.begun else step
        end = (first // self._batches.count + epochs) * self._batches.count
        warn_of_rest(name, self._schedule, end, self._batches.count)

        def fit(complete: bool) -> MeanField:
            return self._fit(held, seed, last, found, complete=complete)

        def advance(step: int, count: int) -> tuple[Array, int]:
            nonlocal held, last
            moved, new, failed, largest = self._advance(held, seed, step, count, guard)
            if failed > 0:
                held, new, _, _ = self._advance(held, seed, step, failed, guard)
                found.append(new)
            if failed >= 0:
                last += failed
                rate = float(self._rates(last, 1)[0])
                raise NonFiniteError(
                    f"[{name}] expected finite parameters, got others at step {last} with "
                    f"learning rate {rate:.3g}, "
                    f"{self._density.not_finite(held[0], largest, 'learning rate')} (the error's "
                    "`state` is the last finite fit)",
                    state=fit(complete=False),
                    step=last,
                    step_size=rate,
                    largest_gradient=largest,
                )
            held, last = moved, step + count
            found.append(new)
            return self._rates(last - 1, 1), count

        complete = run_epochs(
            name,
            self._name,
            first=first,
            epochs=epochs,
            batches=self._batches.count,
            members=1,
            gradients=self._num_samples,
            advance=advance,
            fit=lambda: fit(complete=False),
            guard=guard,
            progress=progress,
            at=step,
            store=store,
            save=lambda: saved(fit(last >= end), first=first),
            ranks=ranks,
            place=lambda: held,
        )
        return fit(complete)

    def _rates(self, step: int, count: int) -> npt.NDArray[np.float64]:
        return self._learning_rate * self._schedule.factors(step, count)

    def _weights(self, step: int, count: int) -> npt.NDArray[np.float64]:
        """Weights of the KL term, (count,); those of an epoch add up to one."""
        batches = self._batches.count
        steps = np.arange(step, step + count)
        if self._weighting == "blundell":
            halves: npt.NDArray[np.float64] = np.exp2(-(steps % batches + 1.0))
            halves /= -np.expm1(-batches * np.log(2.0))
            return halves
        weights: npt.NDArray[np.float64] = self._batches.counts(steps) / self._num_rows
        return weights

    def _advance(
        self, arrays: Array, seed: int, step: int, count: int, guard: InterruptGuard
    ) -> tuple[Array, npt.NDArray[np.float64], int, float]:
        out: tuple[Any, Any, int, float] = self._density.target.advance_variational(
            arrays,
            seed=seed,
            first_step=step,
            batch_size=self._batch_size,
            num_samples=self._num_samples,
            estimator=self._estimator,
            closed=self._kl == "closed",
            step_size=self._rates(step, count),
            kl_weight=self._weights(step, count),
            decay=_DECAY,
            epsilon=_EPSILON,
            interrupt=guard.flag,
        )
        return out

    def _first_arrays(self, name: str, seed: int, init: MeanField | Array | None) -> Array:
        """(6, P): mean, rho and their moments."""
        density = self._density
        scale = np.full(density.dim, self._init_scale)
        if isinstance(init, MeanField):
            self._same_library(name, "init", init.mean)
            mean, scale = to_host(init.mean), to_host(init.scale)
        elif init is None:
            mean = to_host(density.target.init(seed=seed))
        elif density.xp is np:
            mean = checks.numeric(name, "init", init)
        else:
            self._same_library(name, "init", init)
            mean = to_host(init)
        if mean.shape != (density.dim,):
            raise ShapeError(f"[{name}] expected init ({density.dim},), got shape {mean.shape}")
        checks.finite(name, "init", mean)
        arrays = np.zeros((6, density.dim), density.dtype)
        arrays[0] = mean
        for low in range(0, density.dim, _BLOCK):  # in parts that stay in the cache
            part = np.asarray(scale[low : low + _BLOCK], np.float64)
            # the inverse of softplus
            arrays[1, low : low + _BLOCK] = part + np.log(-np.expm1(-part))
        return from_host(density.xp, arrays)

    def _same_library(self, name: str, what: str, array: Array) -> None:
        """Raise for an array of another library than the target's."""
        xp = self._density.xp
        if namespace(array, function=name, name=what) is not xp:
            raise DTypeError(
                f"[{name}] expected {what} in {xp.__name__} arrays, got {checks.summary(array)} "
                "(nothing is copied silently)"
            )

    def _resumed(
        self, name: str, resume: MeanField
    ) -> tuple[Array, int, int, npt.NDArray[np.float64]]:
        arrays, step, seed, records = resume.state
        self._same_library(name, "resume", arrays)
        dtype = host_dtype(arrays)
        if arrays.shape[1] != self._density.dim or dtype != self._density.dtype:
            raise ShapeError(
                f"[{name}] expected a fit of {self._density.dim} parameters in "
                f"{self._density.dtype}, got {arrays.shape[1]} in {dtype}"
            )
        before = getattr(resume.predictive, "fingerprint", None)
        self._density.check_target(name, before)
        return arrays, step, seed, records

    def _fit(
        self,
        arrays: Array,
        seed: int,
        step: int,
        found: list[npt.NDArray[np.float64]],
        *,
        complete: bool,
    ) -> MeanField:
        target = self._density.target
        records = np.concatenate(found, axis=1)  # (3, steps): log likelihood, log q, log prior
        batches = self._batches.count
        epochs = records.shape[1] // batches
        shaped = records[:, : epochs * batches].reshape(3, epochs, batches)
        weights = self._weights(0, batches)
        likelihood = shaped[0].sum(axis=1)
        kl = ((shaped[1] - shaped[2] / target.temperature) * weights).sum(axis=1)
        xp = self._density.xp
        scale = _softplus(xp, arrays[1, :])
        tempered = likelihood / (target.likelihood_temperature * target.temperature)
        return MeanField(
            mean=xp.asarray(arrays[0, :], copy=True),
            scale=scale,
            elbo=tempered - kl,
            expected_log_likelihood=likelihood,
            kl=kl,
            complete=complete,
            settings={
                "sampler": self._name,
                **self.settings,
                "num_epochs": epochs,
                "num_rows": self._num_rows,
                "seed": seed,
            },
            predictive=predictive_of(target),
            state=(arrays, step, seed, records),
        )


def _softplus(xp: ModuleType, rho: Array) -> Array:
    """Return log(1 + exp(rho)) in rho's dtype, by way of float64."""
    # In parts that stay in the cache: Ctrl-C waits for this, and a network may have millions.
    # The core's does not go below exp(-limit) either.
    floor = float(np.exp(-86.0 if host_dtype(rho) == np.float32 else -700.0))
    size = rho.shape[0]
    block = _BLOCK if xp is np else size
    parts = []
    for low in range(0, size, block):
        part = xp.astype(rho[low : min(low + block, size)], xp.float64)
        # three times as fast as logaddexp, whose loop is not vectorised
        value = xp.where(part > 0.0, part, 0.0) + xp.log1p(xp.exp(-xp.abs(part)))
        value = xp.clip(value, floor, None)
        parts.append(xp.astype(value, rho.dtype))
    return xp.concat(parts)
