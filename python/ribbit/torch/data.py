"""Rows of data for a PyTorch module: tensors, arrays, a Dataset or a DataLoader, read by row.

Shapes: N rows, n rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ribbit._arrays import checks
from ribbit.errors import ShapeError
from ribbit.targets.spec import digest

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Rows", "read", "tensor"]


def tensor(function: str, name: str, value: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return values on the host, detached: floats in `dtype`, whole numbers as they are.

    Raises
    ------
    TypeError, ValueError
        For what is no array of real numbers, or not finite.
    """
    if not isinstance(value, torch.Tensor):
        array = checks.numeric(function, name, value)
        value = torch.from_numpy(np.array(array, order="C", copy=True, dtype=_native(array.dtype)))
    value = value.detach().cpu()
    if value.is_complex():
        raise TypeError(f"[{function}] expected {name} as real numbers, got {value.dtype}")
    if value.is_floating_point():
        value = value.to(dtype)
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"[{function}] expected finite {name}, got NaN or infinity in it")
    return value


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype that torch has: the machine's byte order, no wide floats."""
    if dtype.kind == "f" and dtype.itemsize > 8:
        return np.dtype(np.float64)
    return dtype.newbyteorder("=")


class Rows:
    """N rows (x, y), in memory or read from a Dataset whenever they are asked for.

    Parameters
    ----------
    take : function of an int64 array (n,) or None
        Returns x (n, ...) and y (n, ...) as tensors on the host; None: all rows, in memory alone.
    num_rows : int
    batch_size : int or None
        That of the DataLoader.
    fingerprint : str
        Says which data they are.

    Attributes
    ----------
    columns : tuple or None
        Names of the columns of x, if it was a frame.
    """

    columns: tuple[str | int, ...] | None = None

    def __init__(
        self,
        take: Callable[[npt.NDArray[np.int64]], tuple[torch.Tensor, torch.Tensor]],
        num_rows: int,
        batch_size: int | None,
        fingerprint: str,
    ) -> None:
        self.take, self.num_rows = take, num_rows
        self.batch_size, self.fingerprint = batch_size, fingerprint

    def subset(self, rows: npt.NDArray[np.int64]) -> Rows:
        """Return some of the rows."""
        mark = digest(self.fingerprint, rows)
        part = Rows(_Chosen(self.take, rows), len(rows), self.batch_size, mark)
        part.columns = self.columns
        return part


class _Memory:
    """Rows in memory."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __call__(self, rows: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.from_numpy(np.ascontiguousarray(rows))
        return self.x[places], self.y[places]


class _Chosen:
    """Some rows of others."""

    def __init__(self, take: Any, rows: npt.NDArray[np.int64]) -> None:
        self.take, self.rows = take, rows

    def __call__(self, rows: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = self.take(self.rows[rows])
        return found


class _Read:
    """Rows of a map-style Dataset, read and collated anew every time."""

    def __init__(self, function: str, dataset: Any, collate: Any, dtype: torch.dtype) -> None:
        self.function, self.dataset, self.collate, self.dtype = function, dataset, collate, dtype

    def __call__(self, rows: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        items = [self.dataset[int(row)] for row in rows]
        return _pair(self.function, self.collate(items), self.dtype)


def _pair(function: str, batch: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x and y of what a loader or a user gives."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        what = f"{len(batch)} parts" if isinstance(batch, tuple | list) else checks.summary(batch)
        raise TypeError(
            f"[{function}] expected data as (x, y), or a Dataset or DataLoader of such pairs, "
            f"got {what}"
        )
    x, y = (tensor(function, name, value, dtype) for name, value in zip("xy", batch, strict=True))
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) == 0:
        raise ShapeError(
            f"[{function}] expected x and y with as many rows, at least one, "
            f"got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        )
    return x, y


def read(function: str, data: Any, dtype: torch.dtype, *, in_memory: bool) -> Rows:
    """Return the rows of `data`: a pair of tensors or arrays, a Dataset or a DataLoader.

    Raises
    ------
    TypeError, ValueError
        For anything else, among it an IterableDataset, whose rows cannot be chosen.
    """
    size = None
    collate: Any = torch.utils.data.default_collate
    if isinstance(data, DataLoader):
        size, collate, workers = data.batch_size, data.collate_fn, data.num_workers
        data = data.dataset
    else:
        workers = 0
    if isinstance(data, IterableDataset):
        raise TypeError(
            f"[{function}] expected a Dataset whose rows can be chosen (a draw depends on the rows "
            f"of its batch), got an IterableDataset, {type(data).__name__}: read it into tensors"
        )
    if not isinstance(data, Dataset):
        x, y = _pair(function, data, dtype)
        found = _whole(x, y, size)
        found.columns = checks.column_names(function, "x", data[0])
        return found
    count: int = len(data)
    if count == 0:
        raise ShapeError(f"[{function}] expected a Dataset of at least one row, got none")
    if not in_memory:
        rows = _Read(function, data, collate, dtype)
        first = rows(np.zeros(1, np.int64))
        mark = digest(type(data).__qualname__, count, *(part.numpy() for part in first))
        return Rows(rows, count, min(size, count) if size else None, mark)
    order = DataLoader(data, batch_size=min(count, 256), collate_fn=collate, num_workers=workers)
    pairs = [_pair(function, batch, dtype) for batch in order]
    x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return _whole(x, y, min(size, count) if size else None)


def _whole(x: torch.Tensor, y: torch.Tensor, size: int | None) -> Rows:
    x, y = x.clone(), y.clone()  # changing what was passed changes nothing
    mark = digest(x.numpy(), y.numpy())
    return Rows(_Memory(x, y), len(x), size, mark)
