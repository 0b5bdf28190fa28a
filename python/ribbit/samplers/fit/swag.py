"""SWAG: Gaussians around the iterates of an optimiser at a constant rate."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from ribbit import schedules
from ribbit._arrays import checks
from ribbit._arrays.namespace import namespace, require_memory, to_host
from ribbit.density import Density
from ribbit.distributed.ranks import agreement
from ribbit.progress import ProgressOption
from ribbit.protocols import Array
from ribbit.results.outcome import History
from ribbit.results.state import StochasticState
from ribbit.results.swag import SWAGFit
from ribbit.samplers.fit.collection import Collection
from ribbit.samplers.fit.training import Fitter, begin, epochs_of, predictive_of
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.samplers.sgmcmc.stepper import Stepper
from ribbit.store import Store

__all__ = ["SWAG"]

_KNOWN, _DRAWS, _ROWS = 10, 8, 512  # iterates whose spread is looked at, by draws and rows


class SWAG(Fitter):
    """Gaussians around the paths of an optimiser (Maddox et al. 2019), one for each member.

    Trains as :class:`ribbit.DeepEnsemble` does and continues at a constant learning rate. Keeps the
    mean, the variance and the last `max_rank` deviations of the weights at the ends of the epochs.
    Several members, each from its own start, are MultiSWAG (Wilson and Izmailov 2020), a mixture
    with equal weights.

    SWAG does not sample the posterior. The spread of the iterates is the spread of the optimiser's
    noise: it grows with the learning rate and falls with the batch size. On a linear model with
    Gaussian noise the mean is close to the posterior's, the variance is not. Batches without
    replacement nearly cancel over an epoch, so iterates at the ends of epochs spread little. With
    all rows in every step they do not spread at all. Choose `swag_learning_rate` by predictions on
    held-out rows.

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity`, such as :class:`ribbit.Posterior`.
    members : int
        Number of members M.
    learning_rate : float
        Learning rate of training, multiplied by the schedule. For "sgd": of the gradient of the log
        density divided by N.
    swag_learning_rate : float, optional
        Constant rate while weights are collected, in the same units. Default: `learning_rate`.
    max_rank : int
        Largest number of deviations kept, at least 2; they take M * max_rank * P numbers.
    batch_size : int or None
        Largest number of rows per step; the batches of an epoch differ by at most one. None, or
        fewer rows than the default: all, which leaves the optimiser no noise.
    optimizer : {"adam", "sgd"}
        "adam": decay 0.9 and 0.999, epsilon 1e-8. "sgd", as in the paper: v = momentum v + rate g /
        N, theta += v. Its rate depends on the target; if the noise of the likelihood is small, all
        but small rates diverge.
    momentum : float
        Momentum of "sgd", in [0, 1).
    schedule : Schedule, optional
        From :mod:`ribbit.schedules`, for training alone. Default: constant.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong type or out of range, or a target with Dropout layers.

    Examples
    --------
    >>> x, y = rb.datasets.toy_regression(100, seed=1)
    >>> model, prior = rb.mlp(1, (20,), 1), rb.Normal(1.0)
    >>> target = rb.Posterior(model, x, y, prior=prior, likelihood=rb.Gaussian(0.1))
    >>> swag = rb.SWAG(target, members=3, learning_rate=1e-2, batch_size=20)
    >>> fit = swag.fit(200, swag_epochs=40, progress=False)
    >>> fit.predict(x).mean.shape
    (100,)
    """

    _name = "SWAG"

    def __init__(
        self,
        target: Any,
        *,
        members: int = 1,
        learning_rate: float = 1e-3,
        swag_learning_rate: float | None = None,
        max_rank: int = 20,
        batch_size: int | None = 128,
        optimizer: str = "adam",
        momentum: float = 0.9,
        schedule: schedules.Schedule | None = None,
    ) -> None:
        name = self._name
        density = self._density = Density(target, function=name, dropout=False, by_rows=True)
        self._members = checks.integer(name, "members", members, minimum=1, maximum=2**32 - 1)
        rate = checks.positive(name, "learning_rate", learning_rate)
        late = rate
        if swag_learning_rate is not None:
            late = checks.positive(name, "swag_learning_rate", swag_learning_rate)
        self._max_rank = checks.integer(name, "max_rank", max_rank, minimum=2, maximum=2**31)
        checks.choice(name, "optimizer", optimizer, ("adam", "sgd"))
        momentum = checks.fraction(name, "momentum", momentum, zero=True)
        rule, unit = Rule("adam"), 1
        if optimizer == "sgd":
            rule = Rule("friction", friction=1.0 - momentum, noisy=False)
            unit = density.num_rows or 1
        common: dict[str, Any] = {"batch_size": batch_size}
        self._stepper = Stepper(
            name, density, rule, step_size=rate / unit, schedule=schedule, **common
        )
        self._collector = Stepper(
            name, density, rule, step_size=late / unit, schedule=None, **common
        )
        self.settings: dict[str, Any] = {
            "members": self._members,
            "learning_rate": rate,
            "swag_learning_rate": late,
            "max_rank": self._max_rank,
            "batch_size": self._stepper.batch_size,
            "optimizer": optimizer,
            "momentum": momentum,
            "schedule": repr(self._stepper.schedule),
        }

    def fit(
        self,
        num_epochs: int | None = None,
        *,
        swag_epochs: int = 40,
        seed: checks.Seed = 0,
        init: Array | None = None,
        resume: SWAGFit | None = None,
        progress: ProgressOption = None,
        store: Store | str | os.PathLike[str] | None = None,
        executor: Any = None,
    ) -> SWAGFit:
        """Train the members, collect their weights, and return the Gaussians.

        Parameters
        ----------
        num_epochs : int, optional
            Passes over the data before collecting; 0 if `init` or `resume` is trained. Default: the
            length of a cosine or cyclical schedule, else 10,000 steps. If a step takes more than
            1,024 rows there are fewer steps, but at least 2,000. 0 with a `resume` that has
            collected iterates.
        swag_epochs : int
            Passes at the constant rate; each ends with a collected iterate. A fit needs at least 2
            to give draws, and `max_rank` or more for the whole rank.
        seed : int, Generator, SeedSequence or None
            64-bit key of starts and batches.
        init : (P,) or (M, P) array, or a fit, optional
            Starts of the members; default ``target.init`` per member. With one start, all rows in
            every step would make the members copies, which is an error.
        resume : SWAGFit, optional
            A fit of the same settings to continue, bit-identically; its seed is used. One that has
            collected iterates collects more: `num_epochs` is 0 then.
        progress : bool or callable, optional
            As for :meth:`ribbit.HMC.sample`.
        store : path or Store, optional
            Folder for checkpoints. The same call again resumes an interrupted fit, bit-identically.
        executor : object with submit, or callable, optional
            Workers that train the members, with bit-identical results; as for
            :meth:`ribbit.HMC.sample`. History, progress and checkpoints stay in this process.

        Returns
        -------
        SWAGFit
            ``complete=False`` after Ctrl-C, with a warning.

        Raises
        ------
        TypeError, ValueError
            For bad arguments, before any work.
        MemoryError
            If the deviations do not fit into free memory.
        NonFiniteError
            If a parameter becomes infinite or NaN; its ``state`` is the fit so far.

        Warns
        -----
        FitWarning
            If the objective still moved at the end; ``fit.summary()`` says by how much. If ten
            iterates or more spread less than a fifth as far as the posterior, as the energy of
            draws shows.

        Notes
        -----
        An exception that ends a fit after its start carries the fit so far as its attribute
        ``fit``; ``resume=error.fit`` continues.
        """
        name = "SWAG.fit"
        seed = checks.seed(name, seed)
        with agreement(name, self._density.group) as ranks:
            if num_epochs is None and isinstance(resume, SWAGFit) and resume.count:
                num_epochs = 0
            # init=0: without epochs of Adam SWAG collects from any start
            epochs = epochs_of(name, num_epochs, self._stepper, init=0, resume=resume, store=None)
            more = checks.integer(name, "swag_epochs", swag_epochs, minimum=0, maximum=2**39)
            if epochs + more == 0:
                raise ValueError(
                    f"[{name}] expected num_epochs or swag_epochs >= 1, got 0 and 0: "
                    "the spread comes from the weights during training"
                )
            start = begin(name, init, resume, SWAGFit, self.settings, self._members, seed)
            if resume is not None and resume.count and epochs:
                raise ValueError(
                    f"[{name}] expected num_epochs=0 with a resume that has collected "
                    f"{resume.count} iterates, got {epochs}: to train on give it as init"
                )
            self._check_memory(name, more, resume)
            collected = Collection(self._collector, more, self._max_rank, resume)
            fit: SWAGFit = self._trained(
                name,
                ranks,
                store,
                num_epochs=epochs,
                seed=seed,
                init=init,
                resume=resume,
                also={"swag_epochs": swag_epochs},
                start=start,
                members=self._members,
                fit=functools.partial(self._fit, collected),
                progress=progress,
                collect=collected,
                executor=executor,
            )
            return fit

    def _note_spread(self, fit: SWAGFit) -> None:
        """Put the energy of the draws into the settings, as a share of the posterior's."""
        # Near a mode the mean energy of a Gaussian posterior lies half a nat per parameter above
        # the least; the data determine at most as many parameters as there are rows.
        target, members = self._density.target, self._members
        if fit.count < _KNOWN or not callable(getattr(target, "value_and_grad", None)):
            return
        every = self._stepper.num_rows
        rows = None if every is None else np.linspace(0, every - 1, min(every, _ROWS)).astype(int)
        mean, above = fit.mean, []
        for draw in range(_DRAWS):  # one of each member
            ids = np.arange(draw * members, (draw + 1) * members, dtype=np.uint32)
            theta = fit._drawn(ids, int(fit.settings["seed"]))
            mean = namespace(theta).astype(mean, theta.dtype)
            values = [to_host(target.value_and_grad(at, rows)[0]) for at in (mean, theta)]
            above.append(float(np.mean(values[0] - values[1])))
        dim = self._density.dim
        wanted = 0.5 * min(dim, every or dim)
        fit.settings["spread"] = max(0.0, float(np.mean(above))) / wanted

    def _check_memory(self, name: str, epochs: int, resume: SWAGFit | None) -> None:
        rank = min(self._max_rank, epochs + (0 if resume is None else resume.count))
        density = self._density
        # as they come, and once more in the fit
        numbers = 2 * self._members * rank * density.dim
        what = f"{rank} deviations of {self._members} members of {density.dim} parameters"
        require_memory(name, density.xp, numbers, density.dtype, what)

    def _fit(
        self,
        collected: Collection,
        state: StochasticState,
        *,
        complete: bool,
        history: History | None = None,
    ) -> SWAGFit:
        """Return the fit; of a complete one also the spread of its draws, which takes a while."""
        mean, squares, deviations, count = collected.moments_of(state)
        fit = SWAGFit(
            mean=mean,
            squares=squares,
            deviations=deviations,
            count=count,
            first_step=collected.first_step,
            complete=complete,
            predictive=predictive_of(self._density.target),
            **self._fields(state, history),
        )
        if complete:
            self._note_spread(fit)
        return fit
