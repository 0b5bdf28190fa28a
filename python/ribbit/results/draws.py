"""What a sampler returns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks, overrides
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import host_dtype, refuse_device_array, to_host
from ribbit._arrays.tables import html_table
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array, Predictive
from ribbit.results import archive
from ribbit.results.datatree import to_datatree
from ribbit.results.outcome import divergences, summary_of_draws
from ribbit.results.prediction import Prediction
from ribbit.results.summary import Summary
from ribbit.results.zarr_group import to_zarr

if TYPE_CHECKING:
    from ribbit.results.state import AnyState

__all__ = ["Draws"]


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """Draws of C chains, with statistics and the state after the last step.

    Attributes
    ----------
    positions : (C, D, P) array
        In the memory of the target's arrays. D = 0 with ``save_draws=False``. All parameters, also
        those that the target integrates out.
    stats : dict of (C, D) arrays
        HMC: lp, acceptance_rate, accepted, diverging, energy, energy_error, n_steps, step_size,
        capped. NUTS: lp, acceptance_rate (mean over the leapfrog steps), diverging, energy,
        energy_error, n_steps, tree_depth, reached_max_treedepth, step_size. MCLMC: lp,
        energy_error, energy_variance (mean squared error since warmup, divided by P), diverging,
        n_steps (gradients), step_size, decoherence_length; adjusted: lp, acceptance_rate, accepted,
        diverging, energy_error, n_steps, step_size, trajectory_length, capped. SGLD, SGHMC and
        BAOAB: lp (NaN unless tracked), step_size. With ``thin`` also divergences, the number of
        divergent transitions since the previous draw.
    complete : bool
        False if the run was interrupted or ran out of time.
    state : State, MicrocanonicalState, StochasticState or None
        State after the last step; ``sample(..., resume=draws)`` continues from it. None for draws
        of a fit.
    settings : dict
        Sampler, its options, seed, versions: plain values.
    predictive : Predictive or None
        The target, or another object that :meth:`predict` uses.
    prediction : Prediction or None
        Predictions collected while sampling with ``predict_at=``.
    warmup_positions : (C, W, P) array or None
        Positions of warmup, with ``save_warmup=True``.
    warmup_stats : dict of (C, W) arrays or None
        Statistics of warmup, with ``save_warmup=True``.
    seconds : float or None
        Duration of the run.
    monitored : (C, D', M) array or None
        Quantities that decide the outcome, of all draws or of evenly spaced ones;
        ``settings["monitored"]`` counts predictions, noise and weights.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> draws = rb.HMC(target).sample(50, warmup=50, seed=1, progress=False)
    >>> draws.positions.shape, len(draws)
    ((4, 50, 10), 50)
    >>> draws.predict(x).mean.shape
    (20, 1)
    >>> sorted(draws.stats)[:3]
    ['acceptance_rate', 'accepted', 'capped']
    """

    positions: Array
    stats: dict[str, Array]
    complete: bool
    state: AnyState | None
    settings: dict[str, Any]
    predictive: Predictive | None = None
    prediction: Prediction | None = None
    warmup_positions: Array | None = None
    warmup_stats: dict[str, Array] | None = None
    seconds: float | None = None
    monitored: Array | None = None

    def __post_init__(self) -> None:
        name = "Draws"
        chains, _, dim = _three_axes(name, "positions", self.positions)
        if chains == 0 or dim == 0:
            raise ShapeError(f"[{name}] positions must have a chain and a parameter, got none")
        if host_dtype(self.positions).kind != "f":
            got = checks.summary(self.positions)
            raise DTypeError(f"[{name}] positions must be real floats, got {got}")
        _check_statistics(name, "stats", self.stats, chains)
        if self.warmup_positions is not None:
            warmed = _three_axes(name, "warmup_positions", self.warmup_positions)
            if warmed[0] != chains or warmed[2] != dim:
                raise ShapeError(
                    f"[{name}] warmup_positions must have shape ({chains}, W, {dim}), got {warmed}"
                )
        if self.warmup_stats is not None:
            _check_statistics(name, "warmup_stats", self.warmup_stats, chains)
        checks.boolean(name, "complete", self.complete)
        if not isinstance(self.settings, dict) or set(map(type, self.settings)) - {str}:
            checks.mapping(name, "settings", self.settings)
        for what, value, member in (
            ("state", self.state, "position"),
            ("predictive", self.predictive, "predictive"),
            ("prediction", self.prediction, "num_draws"),
        ):
            # A member of the class needs no look at the object: a state would read its bytes.
            known = hasattr(type(value), member) or hasattr(value, member)
            if value is not None and (isinstance(value, type) or not known):
                raise TypeError(
                    f"[{name}] {what} must be None or an object with {member}, got "
                    f"{checks.summary(value)}"
                )
        own = getattr(self.predictive, "dim", dim)
        wanted = getattr(self.predictive, "full_dim", own)
        if isinstance(wanted, int) and wanted != dim:
            raise ShapeError(
                f"[{name}] positions must have the {wanted} parameters of predictive, got {dim}"
            )

    def __len__(self) -> int:
        """Draws per chain, D."""
        for values in self.stats.values():
            return int(values.shape[1])
        return int(self.positions.shape[1])

    def _check_lengths(self, function: str) -> None:
        """Raise if the statistics are of other draws than the positions that were put in."""
        kept, count = self.positions.shape[1], len(self)
        if kept not in (0, count):
            raise ShapeError(
                f"[{function}] positions hold {kept} draws, stats hold {count}. "
                "Give stats={} with new positions."
            )

    def _facts(self) -> dict[str, str]:
        """Return what is known without reading positions, which may be on the disk."""
        chains, kept, dim = self.positions.shape
        size = f"{chains} chains x {len(self)} draws x {dim} parameters"
        more = "" if kept == len(self) else f", positions of {kept} draws"
        more = ", positions not kept" if kept == 0 < len(self) else more
        facts = {
            "sampler": str(self.settings.get("sampler", "?")),
            "draws": size + more,
            "dtype": str(host_dtype(self.positions)),
        }
        if len(self) and "acceptance_rate" in self.stats:
            facts["acceptance"] = f"{np.nanmean(to_host(self.stats['acceptance_rate'])):.2f}"
        if "diverging" in self.stats:
            facts["divergences"] = str(int(to_host(divergences(self.stats)).sum()))
        return facts

    def __repr__(self) -> str:
        facts = self._facts()
        parts = [facts["draws"], facts["dtype"]]
        if "acceptance" in facts:
            parts.append(f"acceptance {facts['acceptance']}")
        if (count := facts.get("divergences")) is not None:
            parts.append(f"{count} divergence{'' if count == '1' else 's'}")
        if not self.complete:
            parts.append("INCOMPLETE")
        return f"Draws({facts['sampler']}: {', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        facts = {**self._facts(), "complete": "yes" if self.complete else "no"}
        if self.seconds is not None:
            facts["seconds"] = f"{self.seconds:.1f}"
        return html_table("Draws", facts.items())

    def summary(self, x: Array | None = None, *, weights: bool = False) -> Summary:
        """Return a table that says whether the chains have converged, and what to do next.

        Parameters
        ----------
        x : (N, ...) array, optional
            Further inputs whose predictions are checked, or evenly spaced ones of many
            (`diagnostics.predictive_rhat` takes all). The summary always checks predictions at some
            training inputs and at points between them.
        weights : bool
            Add R-hat and effective draws of the weights of every layer to the table.

        Returns
        -------
        Summary
            A table (``print``, ``rich.print``, notebooks) with ``outcome``, ``message``,
            ``converged``, ``rows`` and ``text``. A chain has not converged if R-hat
            (rank-normalised, split chains; Vehtari et al. 2021) of a monitored quantity is above
            1.05, or if another row fails. Fewer than 100 effective draws, bulk or tail, are "too
            short to tell".

        Raises
        ------
        TypeError, ValueError
            For x as in :meth:`predict`.

        Examples
        --------
        >>> x = np.linspace(-1, 1, 20)[:, None]
        >>> target = rb.Posterior(
        ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
        ... )
        >>> draws = rb.HMC(target).sample(500, seed=1, progress=False)
        >>> found = draws.summary()
        >>> found.outcome in ("converged", "predictions converged, weights did not")
        True
        >>> print(found.title)
        HMC: 4 chains x 500 draws
        """
        self._check_lengths("Draws.summary")
        if x is not None:
            self.predict(x)  # checks both
        return summary_of_draws(self, x, weights=weights)

    def predict(self, x: Array, *, keep: bool = False) -> Prediction:
        """Return predictions at new inputs, from all draws of all chains.

        Statistics are computed on first use, in one pass over the draws and O(N K) memory.

        Parameters
        ----------
        x : (N, ...) array
            Columns of a frame are matched by name if the data were a frame.
        keep : bool
            Keep the predictions of every draw, (S, N, K): later quantiles need no forward pass.

        Returns
        -------
        Prediction

        Raises
        ------
        TypeError
            If the target has no predictions (a CallableDensity), or `x` is in GPU memory and the
            draws are not.
        ValueError
            If no draws were kept; for a frame that lacks a column of the data or has others.
        """
        if self.predictive is None:
            held = ": a file holds no module, rb.torch.attach(draws, target) gives it back"
            raise TypeError(
                "[Draws.predict] expected draws of a target with predictions, such as Posterior, "
                f"got a target without `predictive`{held if 'module' in self.settings else ''}"
            )
        if self.positions.shape[1] == 0:
            raise ValueError(
                "[Draws.predict] expected at least one draw, got none "
                "(sampled with save_draws=False: see draws.prediction; on a rank that writes no "
                "folder: rank 0 has them, or rb.load(folder); or interrupted at once)"
            )
        refuse_device_array("Draws.predict", "x", x, self.positions)
        # A wrong x is an error here, not when a statistic is first read.
        check = getattr(self.predictive, "check_inputs", None)
        if check is not None:
            check(x)
        else:
            self.predictive.outputs(self.positions[:1, 0, :], x)
        return Prediction(self.predictive, x, positions=self.positions, keep=keep)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write draws, statistics, state and the description of the model to one file.

        The file is complete or absent, even if the process is killed meanwhile. It contains no
        pickle; read it with :func:`ribbit.load`.

        Parameters
        ----------
        path
            Path of the file; no suffix is added. An existing file is replaced and keeps its
            permissions; a symbolic link is followed.

        Raises
        ------
        TypeError
            If `path` is not a path.
        OSError
            If the folder is missing or not writable, or `path` exists and is not a regular file.
        """
        self._check_lengths("Draws.save")
        positions = to_host(self.positions)
        # Draws that differ by their number alone, as dropout masks do, share one position.
        repeated = positions.shape[1] if positions.strides[1] == 0 and len(positions[0]) > 1 else 0
        arrays: dict[str, Any] = {"positions": positions[:, :1] if repeated else positions}
        archive.put(arrays, "stats", self.stats)
        if self.warmup_positions is not None:
            arrays["warmup_positions"] = to_host(self.warmup_positions)
            archive.put(arrays, "warmup_stats", self.warmup_stats or {})
        if self.monitored is not None:
            arrays["monitored"] = to_host(self.monitored)
        running = None if self.prediction is None else self.prediction.running
        gathered: dict[str, Any] | None = None
        if running is not None:
            gathered, found = running.pack()
            archive.put(arrays, "prediction", found)
        header: dict[str, Any] = {
            "complete": self.complete,
            "seconds": self.seconds,
            "settings": self.settings,
            "predictive": overrides.described(self.predictive),
            "prediction": gathered,
            "state": None,
            "repeated": repeated,
        }
        if self.state is not None:
            archive.put_state(arrays, header, self.state)
        archive.write("Draws.save", path, header, arrays)

    def to_datatree(
        self,
        x: Array | None = None,
        y: Array | None = None,
        *,
        predict_at: Array | None = None,
        seed: checks.Seed = 0,
    ) -> Any:
        """Convert to an ``xarray.DataTree`` in the form that ArviZ uses.

        Groups: posterior, with a variable per parameter block ("0.weight": chain, draw,
        0.weight_in, 0.weight_out; "theta" for a target without layers), and sample_stats, and the
        warmup of both if it was kept. With `x` and `y` also log_likelihood (chain, draw, row),
        posterior_predictive, observed_data and constant_data; with `predict_at` predictions and
        predictions_constant_data.

        Parameters
        ----------
        x, y : (N, ...) and (N,) or (N, K) array, optional
            Observed rows, usually the posterior's; draws do not keep them.
        predict_at : (M, ...) array, optional
            Inputs to draw new y at, one per draw.
        seed : int, Generator, SeedSequence or None
            Seed of the noise in drawn y.

        Returns
        -------
        xarray.DataTree

        Raises
        ------
        ImportError
            Without arviz-base (extra ``arviz``).
        TypeError, ValueError
            For data as in :meth:`predict`, for x without y, and for data if the draws were not kept
            or the target has no predictions.

        Examples
        --------
        >>> tree = draws.to_datatree(x, y)  # doctest: +SKIP
        >>> arviz_stats.summary(tree, var_names=["log_noise"])  # doctest: +SKIP
        >>> arviz_stats.loo(tree)  # doctest: +SKIP
        """
        self._check_lengths("Draws.to_datatree")
        return to_datatree(self, x, y, predict_at, seed)

    def to_zarr(self, path: str | os.PathLike[str]) -> None:
        """Write draws and statistics to a new Zarr v3 group, which xarray and ArviZ read.

        Groups: posterior, with theta (chain, draw, theta_dim), and sample_stats, and the warmup of
        both if it was kept; predictions with mean (chain, draw, row, output) after a run with
        ``Store(keep="predictions")``.

        Parameters
        ----------
        path
            Folder of the group, which must not exist yet.

        Raises
        ------
        ImportError
            Without zarr (extra ``zarr``).
        TypeError, ValueError
            If `path` is not a path.
        OSError
            If the folder exists or cannot be written to.

        Examples
        --------
        >>> draws.to_zarr("run.zarr")  # doctest: +SKIP
        >>> xarray.open_datatree("run.zarr", engine="zarr")  # doctest: +SKIP
        """
        self._check_lengths("Draws.to_zarr")
        to_zarr(self, path)


def _three_axes(function: str, name: str, value: Any) -> tuple[int, int, int]:
    """Return the shape of an array (chains, draws, parameters)."""
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(value, "dtype"):
        got = checks.summary(value)
        raise TypeError(f"[{function}] {name} must be an array (C, D, P), got {got}")
    if len(shape) != 3:
        raise ShapeError(f"[{function}] {name} must have shape (C, D, P), got {shape}")
    return shape[0], shape[1], shape[2]


def _check_statistics(function: str, name: str, stats: Any, chains: int) -> None:
    """Raise unless statistics are arrays (C, D) of numbers, of one D."""
    count = None
    for key, values in checks.mapping(function, name, stats).items():
        shape = getattr(values, "shape", None)
        dtype = values.dtype if type(values) is np.ndarray else None
        if dtype is None and isinstance(shape, tuple):
            dtype = host_dtype(values)
        if dtype is None or dtype.kind not in "biuf" or shape is None:
            got = checks.summary(values)
            raise TypeError(f"[{function}] {name}[{key!r}] must be an array of numbers, got {got}")
        count = shape[1] if count is None and len(shape) == 2 else count
        if shape != (chains, count):
            wanted = "D" if count is None else count
            raise ShapeError(
                f"[{function}] {name}[{key!r}] must have shape ({chains}, {wanted}), got {shape}"
            )


explain(globals())
