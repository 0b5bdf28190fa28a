"""MC dropout: one weight vector trained and used under random masks."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

from ribbit import schedules
from ribbit._arrays import checks, overrides
from ribbit._arrays.namespace import from_host, is_array
from ribbit.density import Density, sums_over_rows
from ribbit.distributed.ranks import agreement
from ribbit.errors import ShapeError
from ribbit.progress import ProgressOption
from ribbit.protocols import Array
from ribbit.results.fits import DropoutFit
from ribbit.results.outcome import History
from ribbit.results.state import StochasticState
from ribbit.samplers.fit.training import Fitter, begin, epochs_of
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.samplers.sgmcmc.stepper import Stepper
from ribbit.store import Store

__all__ = ["MCDropout"]


class MCDropout(Fitter):
    """MC dropout (Gal and Ghahramani 2016): Dropout layers stay active in predictions.

    Maximises log likelihood / likelihood_temperature + log prior, over temperature, under fresh
    masks at every step, by Adam.

    Parameters
    ----------
    target
        A :class:`ribbit.Posterior` of a model with Dropout layers in any place, also on the input.
    rate : float or "concrete", optional
        Rate of all Dropout layers, in (0, 1); default: their own. "concrete": learned, starting
        from their own (Gal, Hron and Kendall 2017). Training then draws relaxed masks; predictions
        drop with the learned rates.
    length_scale : float, optional
        l of the prior N(0, l^-2) of the weights as they act. The precision is l^2 / (1 - rate) for
        weights behind a Dropout layer (masks are 0 or 1 / (1 - rate)) and l^2 for the rest.
        Default: the target's prior.
    precision : float, optional
        tau of the Gaussian noise, also of the predictions; default: the target's likelihood.
    learning_rate : float
        Learning rate of Adam, multiplied by the schedule.
    batch_size : int or None
        Largest number of rows per step; the batches of an epoch differ by at most one. None: all
        rows, also if there are fewer than the default.
    schedule : Schedule, optional
        From :mod:`ribbit.schedules`. Default: constant.

    Raises
    ------
    TypeError, ValueError
        For a model without Dropout layers, and for arguments of the wrong type or out of range.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> model = rb.Model([rb.Dense(8), rb.Dropout(0.1), rb.Dense(1)], input_shape=(1,))
    >>> target = rb.Posterior(model, x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
    >>> fit = rb.MCDropout(target, learning_rate=1e-2, batch_size=10).fit(50, progress=False)
    >>> fit.draws(100).predict(x).mean.shape
    (20, 1)
    """

    _name = "MCDropout"

    def __init__(
        self,
        target: Any,
        *,
        rate: float | Literal["concrete"] | None = None,
        length_scale: float | None = None,
        precision: float | None = None,
        learning_rate: float = 1e-3,
        batch_size: int | None = 128,
        schedule: schedules.Schedule | None = None,
    ) -> None:
        name = self._name
        overrides.needed(name, target, "masked", overrides.WHOLE)
        if not callable(getattr(target, "masked", None)):
            raise TypeError(
                f"[{name}] expected a target with masks, such as Posterior, "
                f"got {checks.summary(target)}"
            )
        sums_over_rows(name, target)
        self._masked = target.masked(rate=rate, length_scale=length_scale, precision=precision)
        learning_rate = checks.positive(name, "learning_rate", learning_rate)
        self._density = Density(self._masked, function=name)
        self._stepper = Stepper(
            name,
            self._density,
            Rule("adam"),
            step_size=learning_rate,
            batch_size=batch_size,
            schedule=schedule,
        )
        self.settings: dict[str, Any] = {
            "rate": rate,
            "rates": self._masked.rates.tolist(),
            "length_scale": length_scale,
            "precision": precision,
            "learning_rate": learning_rate,
            "batch_size": self._stepper.batch_size,
            "schedule": repr(self._stepper.schedule),
        }

    def __repr__(self) -> str:  # the target is one of its own, with masks
        knobs = ", ".join(f"{k}={v!r}" for k, v in self.settings.items())
        return f"MCDropout({knobs})"

    def fit(
        self,
        num_epochs: int | None = None,
        *,
        seed: checks.Seed = 0,
        init: Array | None = None,
        resume: DropoutFit | None = None,
        progress: ProgressOption = None,
        store: Store | str | os.PathLike[str] | None = None,
    ) -> DropoutFit:
        """Return trained weights.

        Parameters
        ----------
        num_epochs : int, optional
            Passes over the data; 0 keeps the weights of `init`. Default: the length of a cosine or
            cyclical schedule, else 10,000 steps. If a step takes more than 1,024 rows there are
            fewer steps, but at least 2,000.
        seed : int, Generator, SeedSequence or None
            64-bit key of batches and masks.
        init : (P,) or (1, P) array, or a fit, optional
            Start of the weights; default ``target.init``.
        resume : DropoutFit, optional
            A fit of the same settings to continue, bit-identically; its seed is used.
        progress : bool or callable, optional
            As for :meth:`ribbit.HMC.sample`.
        store : path or Store, optional
            Folder for checkpoints. The same call again resumes an interrupted fit, bit-identically.

        Returns
        -------
        DropoutFit
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
        name = "MCDropout.fit"
        seed = checks.seed(name, seed)
        with agreement(name, self._density.group) as ranks:
            # What is learned is not a setting.
            settings = {k: v for k, v in self.settings.items() if k != "rates"}
            if not self._masked.learns_rates:
                settings["rates"] = self._masked.rates.tolist()
            epochs = epochs_of(
                name, num_epochs, self._stepper, init=init, resume=resume, store=store
            )
            start = begin(name, init, resume, DropoutFit, settings, 1, seed)
            fit: DropoutFit = self._trained(
                name,
                ranks,
                store,
                num_epochs=epochs,
                seed=seed,
                init=init,
                resume=resume,
                start=start,
                members=1,
                fit=self._fit,
                progress=progress,
            )
            return fit

    def _fit(
        self, state: StochasticState, *, complete: bool, history: History | None = None
    ) -> DropoutFit:
        theta, rates = self._masked.split(state.position[0, :])
        return DropoutFit(
            theta=self._density.xp.asarray(theta, copy=True),
            rates=rates.copy(),
            complete=complete,
            target=self._masked,
            **self._fields(state, history, rates=rates.tolist()),
        )

    def _start(self, name: str, init: Array | None) -> Array | None:
        """Return the weights (P,), followed by the dropout rates if they are learned."""
        if init is None or not self._masked.learns_rates:
            return init
        xp, dim = self._density.xp, self._masked.num_weights
        weights = init
        if xp is np or not is_array(init):
            raw = checks.numeric(name, "init", init)
            checks.memory(name, raw.size, np.float64, f"init of shape {raw.shape}")
            host = np.asarray(raw, np.float64)
            weights = from_host(xp, host)
        if weights.shape not in ((dim,), (1, dim)):
            raise ShapeError(f"[{name}] expected init ({dim},) or (1, {dim}), got {weights.shape}")
        return self._masked.with_rates(weights if weights.ndim == 1 else weights[0, :])
