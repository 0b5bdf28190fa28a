"""Quantities that show whether chains agree: predictions, noise, some weights.

Shapes: S draws, C chains, D draws of a chain, P parameters, M quantities.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays.namespace import host_dtype, namespace, to_host
from ribbit.results.convergence import as_host
from ribbit.results.running import by_chain, inputs

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[np.float64]"

KEPT = 8192  # draws of all chains: enough for the ends of intervals, and a few MB
LEAST = 128  # draws of each chain, of many chains
_PREDICTIONS = 32  # monitored predictions of a draw
_WEIGHTS, _PARAMETERS = ("weights", 16), ("parameters", 128)  # of a network, of a density
_GIVEN = 1 << 21  # predictions of all draws at inputs that a user gives


class Monitor:
    """Computes the monitored quantities of positions."""

    # Predictions are taken at some of the training inputs and at points between them, because
    # chains may agree at the rows and disagree between them.

    def __init__(self, function: str, target: Any, at: Any = None, theta: Any = None) -> None:
        """Choose the inputs, `at` if given; positions theta (C, P) show if they are right."""
        self.predictive = target if callable(getattr(target, "predictive", None)) else None
        self.x: Any = None
        self._function, self._width = function, 0  # predictions of a draw at one input
        if self.predictive is not None and theta is not None:
            self._choose(at, theta)

    def _choose(self, at: Any, theta: Any) -> None:
        shown = getattr(self.predictive, "inputs", None)
        rows = shown(_PREDICTIONS) if at is None and callable(shown) else at
        if rows is None:
            return
        x, own = rows, at is None and isinstance(rows, np.ndarray) and rows.dtype.kind in "fiu"
        check = getattr(self.predictive, "check_inputs", None)
        if not own or check is None:  # else the target knows its own inputs
            x = inputs(self._function, rows, self.predictive)
        if not own and check is not None:
            check(x)
        self._width = _predicted(self.predictive, theta[:1, :], x[:1, ...]).shape[1]
        most = max(1, _PREDICTIONS // self._width)
        # There is nothing between two tokens.
        between = at is None and not getattr(getattr(self.predictive, "model", None), "tokens", 0)
        if between:
            x = _with_midpoints(x, most)
        elif x.shape[0] > most:
            x = x[:: -(-x.shape[0] // most), ...]
        self.x = x

    def counts(self, theta: Any) -> dict[str, int]:
        """Return how many quantities of each kind positions (S, P) have."""
        predicted = self._width * self.x.shape[0] if self.x is not None else 0
        parts = self._parts(theta[:1, :], np.empty((1, predicted)))
        return {name: values.shape[1] for name, values in parts.items()}

    def values(self, theta: Any) -> Array:
        """Return quantities (S, M) of positions (S, P)."""
        predicted = None if self.x is None else _predicted(self.predictive, theta, self.x)
        parts = self._parts(theta, predicted)
        return np.concatenate(list(parts.values()), axis=1, dtype=np.float64)

    def _parts(self, theta: Any, predicted: Array | None) -> dict[str, Array]:
        """Return the quantities by kind, with these predictions."""
        dim, parts = theta.shape[1], dict[str, Array]()
        if self.x is not None and predicted is not None:
            parts["predictions"] = predicted
        if getattr(getattr(self.predictive, "likelihood", None), "learns_noise", False):
            first = getattr(self.predictive, "noise_at", dim - 1)
            count = getattr(self.predictive, "noises", 1)
            parts["log noise"] = to_host(theta[:, first : first + count])
        kind, most = _PARAMETERS if self.predictive is None else _WEIGHTS
        some = _some_weights(self.predictive, theta)
        parts[kind if dim <= most else f"{kind} ({some.shape[1]} of {dim:,})"] = some
        return parts

    def describe(self) -> dict[str, Any]:
        """Return shape and checksum of the inputs, as plain values."""
        if self.x is None:
            return {}
        x = np.ascontiguousarray(to_host(self.x))
        return {"at": list(x.shape), "checksum": zlib.crc32(x.tobytes())}


def _some_weights(predictive: Any, theta: Any) -> Array:
    """Return the monitored weights (S, M) of positions (S, P), evenly spaced."""
    most = (_PARAMETERS if predictive is None else _WEIGHTS)[1]
    some: Array = to_host(theta[:, :: -(-theta.shape[1] // most)])
    return some


def _belong(draws: Any, values: Array, every: int) -> bool:
    """Return whether quantities (C, D', M) are of these positions: their last weights agree."""
    last = (values.shape[1] - 1) * every
    if draws.positions.shape[1] == 0 or last < 0:
        return True
    if last >= draws.positions.shape[1]:
        return False
    own = _some_weights(draws.predictive, draws.positions[:, last, :])
    kept = values[:, -1, -own.shape[1] :]
    # Positions may be stored in fewer bits.
    return np.allclose(kept, own, rtol=1e-2, atol=1e-6, equal_nan=True)


def _predicted(predictive: Any, theta: Any, x: Any) -> Array:
    """Return the predictions (S, M) of positions (S, P)."""
    terms = predictive.predictive(theta, x)
    values = as_host(terms.probs if terms.probs is not None else terms.mean)
    flat: Array = values.reshape(theta.shape[0], -1).astype(np.float64)
    return flat


def _with_midpoints(x: Any, most: int) -> Any:
    """Return some rows of x, evenly spaced, and midpoints of neighbours and of distant rows."""
    rows = x[:: -(-x.shape[0] // max(1, most // 2)), ...]
    count = rows.shape[0]
    if count < 2 or host_dtype(rows).kind != "f":
        return rows
    xp = namespace(rows)
    other = (np.arange(count) + 1 + np.arange(count) % 2 * (count // 3)) % count
    pairs = [0.5 * (rows[i : i + 1, ...] + rows[j : j + 1, ...]) for i, j in enumerate(other)]
    return xp.concat([rows, *pairs], axis=0)


def monitored(draws: Any, x: Any = None) -> tuple[Array | None, dict[str, int]]:
    """Return quantities (C, D', M) of draws and their counts; with x also predictions there."""
    found = dict(draws.settings.get("monitored", {}))
    values, every = draws.monitored, int(found.get("every", 1))
    counts = {k: v for k, v in found.items() if k not in ("every", "at", "checksum")}
    positions = draws.positions
    chains, size, _ = positions.shape
    known = values is not None and sum(counts.values()) == values.shape[2]
    if not known or not _belong(draws, values, every):
        if size == 0:
            return None, {}
        every = -(-size * chains // max(KEPT, LEAST * chains))
        monitor = Monitor("Draws.summary", draws.predictive, theta=positions[:, 0, :])
        counts = monitor.counts(positions[:, 0, :])
        wide = sum(counts.values())
        values = by_chain(positions, wide, lambda _, theta: monitor.values(theta), every)
    if x is not None:
        rows = inputs("Draws.summary", x, draws.predictive)
        most = max(1, _GIVEN // (chains * values.shape[1]))
        rows = rows[:: -(-rows.shape[0] // most), ...]
        given = by_chain(
            positions, len(rows), lambda _, theta: _predicted(draws.predictive, theta, rows), every
        )[:, : values.shape[1]]
        values = np.concatenate([given, values], axis=2)
        counts = {"predictions": counts.pop("predictions", 0) + given.shape[2], **counts}
    return values, counts
