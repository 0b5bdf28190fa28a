"""What training returns: approximations that give draws."""

# Shapes: P parameters, S draws, E epochs.

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks, overrides, random_numbers, records
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import (
    from_host,
    host_dtype,
    namespace,
    refuse_device_array,
    require_memory,
    to_host,
)
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array, Predictive
from ribbit.results import archive
from ribbit.results.draws import Draws
from ribbit.results.outcome import History, summary_of_fit
from ribbit.results.prediction import Prediction
from ribbit.results.summary import Row, Summary

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["DropoutFit", "EnsembleFit", "Fit", "MeanField", "drawn", "packed_weights"]


def _nothing() -> npt.NDArray[np.float64]:
    return np.zeros(0)


class Fit:
    """Base class of fits: summary, file and notebook table."""

    complete: bool
    settings: dict[str, Any]
    _packed: Callable[[], tuple[dict[str, Any], dict[str, Any]]]  # header and arrays of a file
    _facts: Callable[[], str]  # size and result, for `repr`

    def __repr__(self) -> str:
        end = "" if self.complete else ", INCOMPLETE"
        return f"{type(self).__name__}({self._facts()}{end})"

    def summary(self) -> Summary:
        """Return a table that says whether the objective has settled, and what to do next."""
        return summary_of_fit(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to one file, as :meth:`Draws.save` does; :func:`ribbit.load` reads it.

        The fit that is read predicts and can be resumed.

        Parameters
        ----------
        path
            Path of the file; no suffix is added. An existing file is replaced.

        Raises
        ------
        TypeError
            If `path` is not a path.
        OSError
            If the folder is missing or cannot be written to.
        """
        archive.write(f"{type(self).__name__}.save", path, *self._packed())

    def _repr_html_(self) -> str:
        """Return the method and the summary for a notebook."""
        found = self.summary()
        method = Row("method", str(self.settings.get("sampler", "not known")))
        return replace(found, rows=(method, *found.rows))._repr_html_()


@dataclass(frozen=True, eq=False, repr=False)
class MeanField(Fit):
    """A Gaussian with independent parameters, fitted by :class:`ribbit.BBB`.

    Parameters
    ----------
    mean, scale : (P,) array
        float32 or float64, both the same; scale > 0 is the standard deviation.
    elbo : (E,) array
        Evidence lower bound, tempered as the target is, one number per epoch: the sum of its steps'
        shares, each estimated at the parameters before the step.
    expected_log_likelihood : (E,) array
        E_q[log likelihood] of all rows, untempered.
    kl : (E,) array
        E_q[log q] - E_q[log prior] / temperature.
    complete : bool
        False if the fit was interrupted.
    settings : dict
        Options, seed and versions: plain values.
    predictive : Predictive or None
        The target, or another object that predicts.
    state : tuple or None
        State from which ``fit(resume=...)`` continues.

    Raises
    ------
    TypeError, ValueError
        If the arrays do not fit, or a scale is not positive and finite.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> fit = rb.BBB(target).fit(20, progress=False)
    >>> fit.mean.shape, bool((fit.scale > 0).all())
    ((10,), True)
    >>> fit.sample(5).shape
    (5, 10)
    """

    mean: Array
    scale: Array
    elbo: npt.NDArray[np.float64] = field(default_factory=_nothing)
    expected_log_likelihood: npt.NDArray[np.float64] = field(default_factory=_nothing)
    kl: npt.NDArray[np.float64] = field(default_factory=_nothing)
    complete: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    predictive: Predictive | None = None
    state: Any = None

    def __post_init__(self) -> None:
        name = "MeanField"
        xp = namespace(self.mean, self.scale, function=name)
        for array, what in ((self.mean, "mean"), (self.scale, "scale")):
            if array.ndim != 1 or array.shape[0] == 0:
                raise ShapeError(f"[{name}] expected {what} (P,), got shape {tuple(array.shape)}")
            if array.dtype not in (xp.float32, xp.float64):
                raise DTypeError(
                    f"[{name}] expected {what} as float32 or float64, got {array.dtype}"
                )
        if self.mean.shape != self.scale.shape or self.mean.dtype != self.scale.dtype:
            raise ShapeError(
                f"[{name}] expected mean and scale alike, got {self.mean.dtype} "
                f"{self.mean.shape} and {self.scale.dtype} {self.scale.shape}"
            )
        records.check(self, elbo="E", expected_log_likelihood="E", kl="E")
        host = to_host(self.scale)
        checks.all_true(name, "scale finite and > 0", "scale", host, np.isfinite(host) & (host > 0))

    def _facts(self) -> str:
        text = f"{self.mean.shape[0]} parameters"
        if len(self.elbo):
            text += f", {len(self.elbo)} epochs, elbo {self.elbo[-1]:.4g}"
        return text

    @property
    def history(self) -> History:
        """The bound and its parts, (E,) each: epoch, elbo, expected_log_likelihood, kl."""
        return {
            "epoch": np.arange(1.0, len(self.elbo) + 1.0),
            "elbo": self.elbo,
            "expected_log_likelihood": self.expected_log_likelihood,
            "kl": self.kl,
        }

    def _packed(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a file holds: header and arrays."""
        fields = ("mean", "scale", "elbo", "expected_log_likelihood", "kl")
        arrays: dict[str, Any] = {name: to_host(getattr(self, name)) for name in fields}
        header = _header(self, "MeanField", self.predictive)
        if self.state is not None:
            moments, step, seed, records = self.state
            arrays |= {"state/arrays": to_host(moments), "state/records": records}
            header["steps"] = {"step": step, "seed": seed}
        return header, arrays

    def sample(self, num_samples: int, seed: checks.Seed = 0) -> Array:
        """Draw weights mean + scale * eps (Blundell et al. 2015, section 3.2).

        Parameters
        ----------
        num_samples : int
            S, >= 1.
        seed : int, Generator, SeedSequence or None
            64-bit key; sample s depends on (seed, s) alone.

        Returns
        -------
        (S, P) array
        """
        name = "MeanField.sample"
        count = checks.integer(name, "num_samples", num_samples, minimum=1, maximum=2**32 - 1)
        xp = namespace(self.mean)
        key = checks.seed(name, seed)
        dim = int(self.mean.shape[0])
        what = f"{count} draws of {dim} parameters"
        require_memory(name, xp, count * dim, host_dtype(self.mean), what)
        return random_numbers.draw_weights(xp, self.mean, self.scale, count, seed=key)

    def _starts(self, chains: npt.NDArray[np.uint32] | None, seed: int) -> Array:
        """Return a draw (C, P) for each of the chain ids; four chains when None."""
        ids = np.arange(4, dtype=np.uint32) if chains is None else chains
        size, dtype = int(self.mean.shape[0]), host_dtype(self.mean)
        noise = fit_noise(
            namespace(self.mean), size, dtype, seed=seed, numbers=ids, stream="weights"
        )
        return self.mean + self.scale * noise

    def draws(self, num_draws: int, *, seed: checks.Seed = 0) -> Draws:
        """Return independent draws of the approximation as one chain.

        Parameters
        ----------
        num_draws : int
            S, >= 1.
        seed : int, Generator, SeedSequence or None
            64-bit key.

        Returns
        -------
        Draws
            positions (1, S, P); ``predict`` works if the fit had a target.
        """
        count, seed = draws_and_seed("MeanField.draws", num_draws, seed)
        positions = self.sample(count, seed)[None, ...]
        return drawn(self, positions, self.predictive, seed)

    def predict(self, x: Array, num_draws: int = 1000, *, seed: checks.Seed = 0) -> Prediction:
        """Return predictions at new inputs, from draws made on the fly.

        Equal to ``draws(num_draws, seed=seed).predict(x)``, without an array (S, P).

        Parameters
        ----------
        x : (N, ...) array
        num_draws : int
            S, >= 1.
        seed : int, Generator, SeedSequence or None
            64-bit key.

        Returns
        -------
        Prediction

        Raises
        ------
        TypeError
            If the fit has no network, such as a MeanField made from arrays.
        """
        name = "MeanField.predict"
        count, key = draws_and_seed(name, num_draws, seed)
        predictive = network_predictive_of(name, self.predictive).drawn(self.mean, self.scale, key)
        xp = namespace(self.mean)
        positions = xp.broadcast_to(self.mean, (1, count, self.mean.shape[0]))
        refuse_device_array(name, "x", x, positions)
        predictive.check_inputs(x)  # a wrong x is an error here
        return Prediction(predictive, x, positions=positions)


def draws_and_seed(function: str, num_draws: int, seed: checks.Seed) -> tuple[int, int]:
    """Return the number of draws and the key of their random numbers, checked."""
    count = checks.integer(function, "num_draws", num_draws, minimum=1, maximum=2**32 - 1)
    return count, checks.seed(function, seed)


def network_predictive_of(function: str, predictive: Any) -> Any:
    """Return the predictive of a fit's network: a Posterior, or the parts of one from a file."""
    overrides.needed(function, predictive, "network_predictive", overrides.PREDICTION)
    network = getattr(predictive, "network_predictive", None)
    if network is None:
        got = checks.summary(predictive)
        raise TypeError(f"[{function}] expected a fit of a Posterior, got {got}")
    return network


def fit_noise(
    xp: ModuleType,
    size: int,
    dtype: np.dtype[Any],
    *,
    seed: int,
    numbers: npt.NDArray[np.uint32],
    stream: str,
) -> Array:
    """Return normals (S, size) for draws of a fit by number; stream: a name in `FIT_LAYERS`."""
    own = {"purpose": random_numbers.FIT_DRAW, "layer": random_numbers.FIT_LAYERS[stream]}
    shape = len(numbers), size
    return random_numbers.normal(xp, shape, dtype, seed=seed, step=0, chains=numbers, **own)


def _header(fit: Any, kind: str, predictive: Any) -> dict[str, Any]:
    """Return what a file says of a fit beside its arrays."""
    return {
        "fit": kind,
        "complete": fit.complete,
        "settings": fit.settings,
        "predictive": overrides.described(predictive),
        "state": None,
    }


def packed_weights(
    fit: Any, predictive: Any, arrays: dict[str, Any], **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header, with `more`, and arrays of a fit of weights, its history and its state."""
    header = {**_header(fit, type(fit).__name__, predictive), **more}
    archive.put(arrays, "history", fit.history)
    if fit.state is not None:
        archive.put_state(arrays, header, fit.state)
    return header, arrays


def drawn(
    fit: Any, positions: Array, predictive: Predictive | None, seed: int, **more: Any
) -> Draws:
    """Draws of a fit: positions (C, S, P), no statistics, no state to go on from."""
    found = fit.summary()
    own = {"seed": seed, "chains": list(range(positions.shape[0]))}
    return Draws(
        positions=positions,
        stats={},
        complete=True,
        state=None,
        settings={**fit.settings, **more, **own, "fit": [found.outcome, found.message]},
        predictive=predictive,
    )


@dataclass(frozen=True, eq=False, repr=False)
class DropoutFit(Fit):
    """Weights trained under dropout masks, fitted by :class:`ribbit.MCDropout`.

    Attributes
    ----------
    theta : (P,) array
    rates : (L,) array
        Rate of each Dropout layer, learned or given.
    complete : bool
        False if the fit was interrupted.
    settings : dict
        Options, seed and versions: plain values.
    target : MaskedPosterior
        The target; for a fit from a file the network alone, without data.
    state : StochasticState
        State from which ``fit(resume=...)`` continues.
    history : dict of arrays
        "epoch" (E,) and "objective" (E, 1): the log density under fixed masks on fixed rows, at
        about twenty epochs.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> model = rb.Model([rb.Dense(8), rb.Dropout(0.1), rb.Dense(1)], input_shape=(1,))
    >>> target = rb.Posterior(model, x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
    >>> fit = rb.MCDropout(target, batch_size=10).fit(20, progress=False)
    >>> fit.predict(x).std.shape
    (20, 1)
    """

    theta: Array
    rates: npt.NDArray[np.float64]
    complete: bool
    settings: dict[str, Any]
    target: Any
    state: Any = None
    history: History = field(default_factory=dict)

    def __post_init__(self) -> None:
        records.check(self, theta="P", rates="L")

    def _packed(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a file holds: header and arrays."""
        arrays = {"theta": to_host(self.theta), "rates": self.rates}
        return packed_weights(self, self.target.network_predictive, arrays)

    def _facts(self) -> str:
        rates = ", ".join(f"{r:g}" for r in self.rates)
        return f"{self.theta.shape[0]} parameters, rates {rates}"

    def _starts(self, chains: npt.NDArray[np.uint32] | None, seed: int) -> Array:
        """Return the weights (P,), the start of every chain."""
        return self.theta

    def draws(self, num_draws: int, *, seed: checks.Seed = 0, masks: str = "row") -> Draws:
        """Return draws: one vector of weights under `num_draws` masks.

        Parameters
        ----------
        num_draws : int
            S, >= 1.
        seed : int, Generator, SeedSequence or None
            64-bit key of the masks; draw s depends on (seed, s) alone.
        masks : {"row", "shared"}
            "row": a mask per draw, row of x (by its index) and unit. "shared": a mask per draw and
            unit, so that a draw is one function.

        Returns
        -------
        Draws
            positions (1, S, P) are a view of `theta`; masks take no memory.
        """
        name = "DropoutFit.draws"
        count, seed = draws_and_seed(name, num_draws, seed)
        checks.choice(name, "masks", masks, ("row", "shared"))
        xp = namespace(self.theta)
        positions = xp.broadcast_to(self.theta, (1, count, self.theta.shape[0]))
        predictive = self.target.mask_predictive(seed, masks, self.rates)
        return drawn(self, positions, predictive, seed, masks=masks)

    def predict(
        self, x: Array, num_draws: int = 1000, *, seed: checks.Seed = 0, masks: str = "row"
    ) -> Prediction:
        """Return ``draws(num_draws, seed=seed, masks=masks).predict(x)``."""
        return self.draws(num_draws, seed=seed, masks=masks).predict(x)


@dataclass(frozen=True, eq=False, repr=False)
class EnsembleFit(Fit):
    """Trained members, fitted by :class:`ribbit.DeepEnsemble`.

    Attributes
    ----------
    theta : (M, P) array
    complete : bool
        False if the fit was interrupted.
    settings : dict
        Options, seed and versions: plain values.
    predictive : Predictive or None
        The target, or another object that predicts.
    state : StochasticState
        State from which ``fit(resume=...)`` continues.
    history : dict of arrays
        "epoch" (E,) and "objective" (E, M): the objective of each member on fixed rows, at about
        twenty epochs.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> fit = rb.DeepEnsemble(target, members=3, batch_size=10).fit(20, progress=False)
    >>> fit.draws().positions.shape
    (1, 3, 10)
    """

    theta: Array
    complete: bool
    settings: dict[str, Any]
    predictive: Predictive | None = None
    state: Any = None
    history: History = field(default_factory=dict)

    def _packed(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a file holds: header and arrays."""
        return packed_weights(self, self.predictive, {"theta": to_host(self.theta)})

    def __post_init__(self) -> None:
        records.check(self, theta="M P")

    def _facts(self) -> str:
        members, dim = self.theta.shape
        return f"{members} members, {dim} parameters"

    def _starts(self, chains: npt.NDArray[np.uint32] | None, seed: int) -> Array:
        """Return a member (C, P) for each of the chain ids, in turn; all members when None."""
        return self.theta if chains is None else self._members(chains % self.theta.shape[0])

    def draws(self, num_draws: int | None = None, *, seed: checks.Seed = 0) -> Draws:
        """Return the members as draws.

        Parameters
        ----------
        num_draws : int, optional
            None: every member once. A number S: S members picked with replacement.
        seed : int, Generator, SeedSequence or None
            64-bit key of the picks.

        Returns
        -------
        Draws
            positions (1, M, P) or (1, S, P).
        """
        name = "EnsembleFit.draws"
        seed = checks.seed(name, seed)
        positions = self.theta
        if num_draws is not None:
            count = checks.integer(name, "num_draws", num_draws, minimum=1, maximum=2**31)
            u = random_numbers.uniform(
                np,
                (1, count),
                seed=seed,
                step=0,
                chains=np.zeros(1, np.uint32),
                purpose=random_numbers.FIT_DRAW,
                layer=random_numbers.FIT_LAYERS["members"],
            )
            members = positions.shape[0]
            positions = self._members(np.minimum((u[0] * members).astype(np.int64), members - 1))
        return drawn(self, positions[None, ...], self.predictive, seed)

    def predict(self, x: Array) -> Prediction:
        """Return ``draws().predict(x)``: every member once."""
        return self.draws().predict(x)

    def _members(self, numbers: npt.NDArray[Any]) -> Array:
        xp = namespace(self.theta)
        return xp.take(self.theta, from_host(xp, numbers.astype(np.int64)), axis=0)


explain(globals())
