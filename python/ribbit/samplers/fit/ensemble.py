"""Deep ensembles: several networks trained from different starts."""

from __future__ import annotations

import os
from typing import Any

from ribbit import schedules
from ribbit._arrays import checks
from ribbit.density import Density
from ribbit.distributed.ranks import agreement
from ribbit.progress import ProgressOption
from ribbit.protocols import Array
from ribbit.results.fits import EnsembleFit
from ribbit.results.outcome import History
from ribbit.results.state import StochasticState
from ribbit.samplers.fit.training import Fitter, begin, epochs_of, predictive_of
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.samplers.sgmcmc.stepper import Stepper
from ribbit.store import Store

__all__ = ["DeepEnsemble"]


class DeepEnsemble(Fitter):
    """Members trained by Adam from their own starts and batches (Lakshminarayanan et al. 2017).

    A member does not depend on the number of members.

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity`, such as :class:`ribbit.Posterior`.
    members : int
        Number of members M.
    learning_rate : float
        Learning rate of Adam (decay 0.9 and 0.999, epsilon 1e-8), multiplied by the schedule.
    batch_size : int or None
        Largest number of rows per step; the batches of an epoch differ by at most one. None: all
        rows, also if there are fewer than the default.
    objective : {"map", "likelihood"}
        Maximise the log density, or the log likelihood alone.
    schedule : Schedule, optional
        From :mod:`ribbit.schedules`. Default: constant.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong type or out of range, or a target with Dropout layers.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> fit = rb.DeepEnsemble(target, members=3, batch_size=10).fit(20, progress=False)
    >>> fit.predict(x).mean.shape
    (20, 1)
    """

    _name = "DeepEnsemble"

    def __init__(
        self,
        target: Any,
        *,
        members: int = 5,
        learning_rate: float = 1e-3,
        batch_size: int | None = 128,
        objective: str = "map",
        schedule: schedules.Schedule | None = None,
    ) -> None:
        name = self._name
        density = self._density = Density(target, function=name, dropout=False, by_rows=True)
        self._members = checks.integer(name, "members", members, minimum=1, maximum=2**32 - 1)
        checks.choice(name, "objective", objective, ("map", "likelihood"))
        learning_rate = checks.positive(name, "learning_rate", learning_rate)
        self._stepper = Stepper(
            name,
            density,
            Rule("adam", prior=1.0 if objective == "map" else 0.0),
            step_size=learning_rate,
            batch_size=batch_size,
            schedule=schedule,
        )
        self.settings: dict[str, Any] = {
            "members": self._members,
            "learning_rate": learning_rate,
            "batch_size": self._stepper.batch_size,
            "objective": objective,
            "schedule": repr(self._stepper.schedule),
        }

    def fit(
        self,
        num_epochs: int | None = None,
        *,
        seed: checks.Seed = 0,
        init: Array | None = None,
        resume: EnsembleFit | None = None,
        progress: ProgressOption = None,
        store: Store | str | os.PathLike[str] | None = None,
        executor: Any = None,
    ) -> EnsembleFit:
        """Return trained members.

        Parameters
        ----------
        num_epochs : int, optional
            Passes over the data; 0 keeps the weights of `init`. Default: the length of a cosine or
            cyclical schedule, else 10,000 steps. If a step takes more than 1,024 rows there are
            fewer steps, but at least 2,000.
        seed : int, Generator, SeedSequence or None
            64-bit key of starts and batches.
        init : (P,) or (M, P) array, or a fit, optional
            Starts of the members; default ``target.init`` per member. With one start, all rows in
            every step (or 0 epochs) would make the members copies, which is an error.
        resume : EnsembleFit, optional
            A fit of the same settings to continue, bit-identically; its seed is used.
        progress : bool or callable, optional
            As for :meth:`ribbit.HMC.sample`.
        store : path or Store, optional
            Folder for checkpoints. The same call again resumes an interrupted fit, bit-identically.
        executor : object with submit, or callable, optional
            Workers that train the members, with bit-identical results; as for
            :meth:`ribbit.HMC.sample`. History, progress and checkpoints stay in this process.

        Returns
        -------
        EnsembleFit
            ``complete=False`` after Ctrl-C, with a warning.

        Raises
        ------
        TypeError, ValueError
            For bad arguments, before any work.
        NonFiniteError
            If a parameter becomes infinite or NaN; its ``state`` is the fit so far.

        Warns
        -----
        FitWarning
            If the objective still moved at the end; ``fit.summary()`` says by how much.

        Notes
        -----
        An exception that ends a fit after its start carries the fit so far as its attribute
        ``fit``; ``resume=error.fit`` continues.
        """
        name = "DeepEnsemble.fit"
        seed = checks.seed(name, seed)
        with agreement(name, self._density.group) as ranks:
            epochs = epochs_of(
                name, num_epochs, self._stepper, init=init, resume=resume, store=store
            )
            start = begin(name, init, resume, EnsembleFit, self.settings, self._members, seed)
            fit: EnsembleFit = self._trained(
                name,
                ranks,
                store,
                num_epochs=epochs,
                seed=seed,
                init=init,
                resume=resume,
                start=start,
                members=self._members,
                fit=self._fit,
                progress=progress,
                likelihood_alone=self._stepper.rule.prior == 0.0,
                executor=executor,
            )
            return fit

    def _fit(
        self, state: StochasticState, *, complete: bool, history: History | None = None
    ) -> EnsembleFit:
        density = self._density
        return EnsembleFit(
            theta=density.xp.asarray(state.position, copy=True),
            complete=complete,
            predictive=predictive_of(density.target),
            **self._fields(state, history),
        )
