"""Laplace's approximation: a mode found by Adam and Newton steps, and the curvature there."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import schedules
from ribbit._arrays import checks, overrides
from ribbit._arrays.threads import Interrupted
from ribbit._arrays.warning import warn
from ribbit.density import Density
from ribbit.distributed.ranks import agreement
from ribbit.errors import ShapeError
from ribbit.interrupt import InterruptGuard, carrying, how_to_resume
from ribbit.progress import ProgressOption, check_progress
from ribbit.protocols import Array
from ribbit.results.laplace import LaplaceFit, near_mode
from ribbit.results.outcome import History
from ribbit.results.state import StochasticState
from ribbit.samplers.fit.curvature import SMALL, mode_near
from ribbit.samplers.fit.evidence import tuned
from ribbit.samplers.fit.training import (
    Fitter,
    as_position,
    begin,
    epochs_of,
    fitting,
    joined,
    predictive_of,
    saved,
    train,
    warn_of_end,
)
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.samplers.sgmcmc.stepper import Stepper
from ribbit.store import Folder, Store

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["LaplaceApproximation"]

_MOST = 5_000  # parameters of a covariance: a matrix of 200 MB, factors of 10^11 operations
_POLISH, _POLISH_LARGE = 100, 10  # steps by default
# They converge slowly if the network bends: with more parameters than these they end near the mode.
_EXACT, _NEAR = 100, 0.1  # share of the nats that the summary allows


class LaplaceApproximation(Fitter):
    """A Gaussian at a mode of the posterior (MacKay 1992; Daxberger et al. 2021).

    Its precision is the generalised Gauss-Newton matrix of the log likelihood plus the curvature of
    the prior, tempered as the target is. It is full, over all parameters or over the last layer.
    For a linear model with normal prior and noise it is the exact posterior. Predictions use the
    network linearized at the mode (Immer et al. 2021a). Everything except training is computed in
    float64.

    The curvature of a likelihood is the Fisher information of its outputs:
    `HeteroscedasticGaussian` and `StudentTNoise` use their distribution and not the given y. With
    ``subset="all"`` a learned noise is a parameter like any other. Its information is 2 per number
    in y (Student's t: 2 df / (df + 3)), independent of the weights. With ``subset="last_layer"`` it
    stays at its mode. Priors that are not normal have their own curvature at the mode, or 0 if it
    is negative; a Laplace prior has none.

    Parameters
    ----------
    target
        A :class:`ribbit.Posterior` in host memory.
    subset : {"all", "last_layer"}
        Parameters with a covariance, at most 5,000. "last_layer": weight and bias of the network's
        last Dense layer; the others stay at the mode.
    learning_rate : float
        Learning rate of Adam (decay 0.9 and 0.999, epsilon 1e-8), multiplied by the schedule.
    batch_size : int or None
        Largest number of rows per step. None: all rows, also if there are fewer than the default.
    schedule : Schedule, optional
        From :mod:`ribbit.schedules`. Default: constant.
    polish : int, optional
        Largest number of damped Newton steps after Adam; each costs as much as the curvature, and
        moves the subset's parameters alone. Default: 0 if the weights were given, else 100, or 10
        with more than 1,000 parameters.
    tune_prior : {"shared", "layers"}, optional
        Choose the sds of normal priors by the evidence: one factor for all of the subset, or an sd
        for each array of parameters ("0.weight", "0.bias", ...). The fit's ``predictive`` is the
        target with those sds.
    tune_noise : bool
        Choose the sd of `Gaussian` noise by the evidence, too.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong type or out of range; a target with Dropout layers, on a GPU or
        without curvature; more than 5,000 parameters in the subset; scales that cannot be tuned.

    References
    ----------
    MacKay (1992), "A practical Bayesian framework for backpropagation networks", Neural Computation
    4(3); its "Bayesian interpolation" in the same issue for the evidence. Daxberger et al. (2021),
    "Laplace redux", NeurIPS. Immer, Korzepa and Bauer (2021a), "Improving predictions of Bayesian
    neural nets via local linearization", AISTATS. Immer et al. (2021b), "Scalable marginal
    likelihood estimation for model selection in deep learning", ICML.

    Examples
    --------
    >>> import ribbit as rb
    >>> x, y = rb.datasets.toy_regression(100, seed=1)
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (20,), 1, activation="tanh"), x, y, prior=rb.Normal(1.0),
    ...     likelihood=rb.Gaussian(0.1))
    >>> options = {"learning_rate": 1e-2, "batch_size": 20}
    >>> laplace = rb.LaplaceApproximation(target, tune_prior="layers", **options)
    >>> fit = laplace.fit(300, progress=False)
    >>> bool((fit.predict(x).std > 0.1).all())
    True
    """

    _name = "LaplaceApproximation"

    def __init__(
        self,
        target: Any,
        *,
        subset: str = "all",
        learning_rate: float = 1e-3,
        batch_size: int | None = 128,
        schedule: schedules.Schedule | None = None,
        polish: int | None = None,
        tune_prior: str | None = None,
        tune_noise: bool = False,
    ) -> None:
        name = self._name
        Density(target, function=name)  # the kind of target first, then what it must not have
        overrides.needed(name, target, "gauss_newton")
        if not callable(getattr(target, "gauss_newton", None)):
            raise TypeError(
                f"[{name}] expected a target with gauss_newton, such as Posterior, got "
                f"{checks.summary(target)}"
            )
        density = Density(target, function=name, dropout=False, by_rows=True, group=False)
        self._density = density
        checks.choice(name, "subset", subset, ("all", "last_layer"))
        self._first, self._size = target.subset_size(name, subset)
        if self._size > _MOST:
            other = (
                ": subset='last_layer' takes the last layer alone"
                if subset == "all"
                else " in the last layer"
            )
            raise ValueError(
                f"[{name}] expected at most {_MOST} parameters, got {self._size}{other}"
            )
        if polish is not None:
            polish = checks.integer(name, "polish", polish, minimum=0, maximum=2**31 - 1)
        if tune_prior is not None:
            checks.choice(name, "tune_prior", tune_prior, ("shared", "layers"))
        checks.boolean(name, "tune_noise", tune_noise)
        if tune_noise and target.noise_scale is None:
            raise ValueError(
                f"[{name}] expected tune_noise=False for a likelihood without a known normal "
                "noise, got True"
            )
        if tune_prior is not None or tune_noise:
            target.prior_groups(name, subset)  # errors for what has no evidence
        target.prior_curvature(np.zeros(density.dim), subset)  # for priors without a curvature
        self._subset, self._polish = subset, polish
        self._tune_prior, self._tune_noise = tune_prior, tune_noise
        rate = checks.positive(name, "learning_rate", learning_rate)
        self._stepper = Stepper(
            name, density, Rule("adam"), step_size=rate, batch_size=batch_size, schedule=schedule
        )
        self.settings: dict[str, Any] = {
            "subset": subset,
            "learning_rate": rate,
            "batch_size": self._stepper.batch_size,
            "schedule": repr(self._stepper.schedule),
            "polish": polish,
            "tune_prior": tune_prior,
            "tune_noise": tune_noise,
        }

    def fit(
        self,
        num_epochs: int | None = None,
        *,
        seed: checks.Seed = 0,
        init: Array | None = None,
        resume: LaplaceFit | None = None,
        progress: ProgressOption = None,
        store: Store | str | os.PathLike[str] | None = None,
    ) -> LaplaceFit:
        """Find a mode and the curvature there, and return the Gaussian.

        Parameters
        ----------
        num_epochs : int, optional
            Passes over the data by Adam; 0 if `init` is the mode, or `resume` is trained. Default:
            the length of a cosine or cyclical schedule, else 10,000 steps. If a step takes more
            than 1,024 rows there are fewer steps, but at least 2,000.
        seed : int, Generator, SeedSequence or None
            64-bit key of start and batches.
        init : (P,) or (1, P) array, or a fit, optional
            Start of Adam, or with ``num_epochs=0`` the mode; for a fit its mean or first member.
            Default ``target.init``.
        resume : LaplaceFit, optional
            A fit of the same settings whose training continues, bit-identically; its seed is used.
        progress : bool or callable, optional
            Progress of the training; as for :meth:`ribbit.HMC.sample`.
        store : path or Store, optional
            Folder for checkpoints of the training, and for the fit at the end. The same call again
            resumes an interrupted training, bit-identically, and computes the curvature again.
            Needs epochs.

        Returns
        -------
        LaplaceFit
            ``complete=False`` after Ctrl-C, with a warning, and without a covariance if there was
            none yet.

        Raises
        ------
        TypeError, ValueError
            For bad arguments, before any work; for a curvature at the end that is not finite or not
            positive definite.
        NonFiniteError
            If a parameter becomes infinite or NaN; its ``state`` is the fit so far.
        MemoryError
            If the matrix does not fit into free memory.

        Warns
        -----
        FitWarning
            If the weights are more than half a nat from a mode, or scales did not settle.

        Notes
        -----
        An exception that ends a fit after its start carries the fit so far as its attribute
        ``fit``; ``resume=error.fit`` continues.
        """
        name = "LaplaceApproximation.fit"
        with agreement(name, self._density.group) as ranks:
            epochs = epochs_of(
                name, num_epochs, self._stepper, init=init, resume=resume, store=store
            )
            seed = checks.seed(name, seed)
            given = resume is None and epochs == 0
            start = begin(name, _mode_of(init), resume, LaplaceFit, self.settings, 1, seed)
            asked = {"num_epochs": epochs, "seed": seed, "init": init, "resume": resume}
            with fitting(name, ranks, store, self._request(**asked)) as found:
                kept = found if isinstance(found, Folder) else None  # there are no other ranks
                past: History = {} if resume is None else resume.history
                state, complete, history = None, True, past
                density = self._density
                if epochs:
                    state, complete, history = train(
                        name,
                        self._name,
                        self._stepper,
                        epochs,
                        seed=seed,
                        start=start,
                        members=1,
                        resume=resume,
                        progress=progress,
                        fit=lambda state: self._fit(
                            state.position[0], state, seed, past, complete=False
                        ),
                        finishes=False,
                        ranks=ranks,
                        store=kept,
                    )
                    theta = state.position[0]
                elif resume is not None:
                    check_progress(name, progress)
                    state = self._stepper.adopt(name, resume.state)
                    theta = state.position[0]
                else:
                    check_progress(name, progress)
                    theta = _row(name, density, as_position(name, density, start))
                whole = joined(resume, history) if epochs else history
                fit = self._fit(theta, state, seed, whole, complete=complete)
                if not complete:
                    return fit
                fit = self._curved(name, fit, theta, given=given, store=kept)
                if kept is not None and fit.complete:
                    first = 0 if resume is None else resume.state.step
                    first = kept.header["loop"]["first"] if kept.begun else first
                    # The folder has the history of its own training.
                    own = dataclasses.replace(fit, history=history)
                    with carrying(name, "fit", lambda: (own, "all epochs")):
                        kept.checkpoint(lambda: saved(own, first=first, taken=0), now=True)
                return fit

    def _curved(
        self, name: str, fit: LaplaceFit, theta: Any, *, given: bool, store: Folder | None
    ) -> LaplaceFit:
        """Find the mode near theta, the scales if asked for, and the Gaussian there."""
        usual = _POLISH if self._size <= SMALL else _POLISH_LARGE
        steps = (0 if given else usual) if self._polish is None else self._polish
        tunes = self._tune_prior is not None or self._tune_noise
        rough = self._polish is None and self._size > _EXACT and not tunes
        enough = _NEAR * near_mode(self._size) if rough else 0.0
        state, history = fit.state, fit.history
        seed = int(fit.settings["seed"])

        def so_far() -> tuple[LaplaceFit, str]:
            part = self._fit(theta, state, seed, history, complete=False)
            return part, "the training, before there was a covariance"

        with InterruptGuard() as guard, carrying(name, "fit", so_far):
            density = self._density
            tuning: dict[str, npt.NDArray[np.float64]] = {}
            try:
                mode = mode_near(name, density, self._subset, theta, steps, guard, enough=enough)
                if tunes:
                    density, mode, tuning = tuned(
                        name,
                        density,
                        self._subset,
                        mode,
                        prior=self._tune_prior,
                        noise=self._tune_noise,
                        steps=max(steps, usual),
                        guard=guard,
                    )
            except (Interrupted, KeyboardInterrupt):
                if not guard.requested:
                    raise
                words = "resume=fit" if state is not None else "init=fit.mean"
                on = how_to_resume(store) or f"continue with fit(0, {words})"
                warn(
                    f"[{name}] interrupted before there was a covariance; returning the weights so "
                    f"far ({on})",
                )
                return so_far()[0]
            fit = dataclasses.replace(
                fit,
                mean=mode.theta,
                factor=mode.factor,
                log_density=mode.log_density,
                newton_decrement=mode.decrement,
                effective_parameters=mode.effective,
                predictive=predictive_of(density.target),
                tuning=tuning,
            )
        warn_of_end(name, fit)
        return fit

    def _fit(
        self,
        theta: Any,
        state: StochasticState | None,
        seed: int,
        history: History,
        *,
        complete: bool,
    ) -> LaplaceFit:
        """Return the fit before there is a covariance."""
        return LaplaceFit(
            mean=np.array(theta),
            factor=np.zeros((0, 0)),
            first=self._first,
            log_density=math.nan,
            newton_decrement=math.nan,
            effective_parameters=math.nan,
            complete=complete,
            settings={
                "sampler": self._name,
                **self.settings,
                "num_epochs": 0 if state is None else state.step // self._stepper.batches,
                "num_rows": self._stepper.num_rows,
                "seed": seed if state is None else state.seed,
            },
            predictive=predictive_of(self._density.target),
            state=state,
            history=history,
        )


def _mode_of(init: Any) -> Any:
    """Return the weights of a fit that stand for its mode; anything else as it is."""
    if not callable(getattr(init, "_starts", None)):
        return init
    weights: Any = getattr(init, "mean", None)
    weights = getattr(init, "theta", None) if weights is None else weights
    if not hasattr(weights, "ndim"):
        return init
    return weights if weights.ndim == 1 else weights[0]


def _row(name: str, density: Density, position: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a finite position (P,) that came as (P,) or (1, P)."""
    if position.shape not in ((density.dim,), (1, density.dim)):
        raise ShapeError(
            f"[{name}] expected init ({density.dim},) or (1, {density.dim}), got shape "
            f"{position.shape}"
        )
    checks.finite(name, "init", position)
    return position.reshape(-1)
