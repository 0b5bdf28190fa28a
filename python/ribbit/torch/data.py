"""Rows of data for a PyTorch module: tensors, arrays, a Dataset or a DataLoader, read by row."""

# Shapes: N rows, n rows of a batch.

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from ribbit._arrays import checks
from ribbit._arrays.warning import warn
from ribbit.errors import ModuleWarning, ShapeError
from ribbit.targets.spec import digest
from ribbit.torch.randomness import same, watched

if TYPE_CHECKING:
    import numpy.typing as npt


_WIDER = (torch.uint16, torch.uint32, torch.uint64)
_SEEN = 16  # rows that are read twice, to see whether they stay as they are


def tensor(function: str, name: str, value: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return finite values on the host, detached: floats in `dtype`, whole numbers as they are."""
    if not isinstance(value, torch.Tensor):
        array = checks.numeric(function, name, value)
        value = torch.from_numpy(array.astype(_native(array.dtype), order="C", subok=False))
    kinds = (
        (value.is_nested, "a nested tensor: pad its rows to one shape"),
        (value.is_quantized, f"{value.dtype}: give {name}.dequantize()"),
        (value.layout is not torch.strided, f"layout {value.layout}: give {name}.to_dense()"),
        (value.device.type == "meta", "a tensor on the meta device, which holds no values"),
        (value.is_complex(), f"{value.dtype}"),
    )
    for found, got in kinds:
        if found:
            raise TypeError(f"[{function}] expected {name} as real numbers, got {got}")
    value = value.detach().cpu().resolve_neg()
    if value.dtype in _WIDER:
        value = value.to(torch.int64)  # torch cannot choose rows of these
    if value.is_floating_point():
        value = value.to(dtype)
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"[{function}] expected finite {name}, got NaN or infinity in it")
    return value


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype that torch has: the machine's byte order, no wide floats."""
    if dtype.kind == "f" and dtype.itemsize > 8:
        return np.dtype(np.float64)
    return np.dtype(f"{dtype.kind}{dtype.itemsize}")


class Rows:
    """N rows (x, y), in memory or read from a Dataset whenever they are asked for."""

    columns: tuple[str | int, ...] | None = None  # names of the columns of x, if it was a frame

    def __init__(
        self,
        # returns x (n, ...) and y (n, ...) as tensors on the host; None: all rows, in memory alone
        take: Callable[[npt.NDArray[np.int64]], tuple[torch.Tensor, torch.Tensor]],
        num_rows: int,
        batch_size: int | None,  # batch size of the DataLoader
        fingerprint: str,  # says which data they are
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
        with _collating(self.function):
            items = [self.dataset[int(row)] for row in rows]
            x, y = _pair(self.function, self.collate(items), self.dtype)
        return _every(self.function, len(rows), x, y)


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
    """Return the rows of `data`: a pair of tensors or arrays, a Dataset or a DataLoader."""
    size = None
    collate: Any = torch.utils.data.default_collate
    workers, given = 0, data
    if isinstance(data, DataLoader):
        collate, workers = data.collate_fn, data.num_workers
        size = _check_sampler(function, data)
        data = data.dataset
    if isinstance(data, IterableDataset):
        raise TypeError(
            f"[{function}] expected a Dataset whose rows can be chosen (a draw depends on the rows "
            f"of its batch), got an IterableDataset, {type(data).__name__}: read it into tensors"
        )
    if not isinstance(given, DataLoader | Dataset):
        x, y = _pair(function, data, dtype)
        pair = _whole(x, y, size)
        pair.columns = checks.column_names(function, "x", data[0])
        return pair
    count: int = len(data)
    if count == 0:
        raise ShapeError(f"[{function}] expected a Dataset of at least one row, got none")
    rows = _Read(function, data, collate, dtype)
    seen = np.arange(min(count, _SEEN))
    size = min(size, count) if size else None
    if in_memory:
        found = _read_all(function, data, collate, workers, dtype)
        first = tuple(part[: len(seen)] for part in found)
    else:
        first = rows(seen)
    with watched() as drawn:
        again = rows(seen)
    if drawn() or not all(map(same, first, again)):
        instead = "the rows of one reading are used" if in_memory else "no draw can be repeated"
        warn(
            f"[{function}] expected a Dataset whose rows stay as they are, got "
            f"{type(data).__name__}, whose rows are random or depend on their batch: {instead}",
            ModuleWarning,
        )
    if in_memory:
        return _whole(*found, size)
    mark = digest(type(data).__qualname__, count, *(part[:1].numpy() for part in first))
    return Rows(rows, count, size, mark)


def _read_all(
    function: str, data: Any, collate: Any, workers: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all rows of a Dataset."""
    count = len(data)
    order = DataLoader(data, batch_size=min(count, 256), collate_fn=collate, num_workers=workers)
    with _collating(function):
        pairs = [_pair(function, batch, dtype) for batch in order]
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return _every(function, count, x, y)


def _every(
    function: str, count: int, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return collated rows; ShapeError unless they are all that were read."""
    if len(x) != count:
        raise ShapeError(
            f"[{function}] expected a collate function that keeps every row, got {len(x)} rows of "
            f"{count}"
        )
    return x, y


@contextlib.contextmanager
def _collating(function: str) -> Iterator[None]:
    """Say whose error it is when torch cannot make a batch of rows."""
    try:
        yield
    except (RuntimeError, TypeError, KeyError) as error:
        if str(error).startswith("["):
            raise
        raise TypeError(
            f"[{function}] expected a Dataset whose rows (x, y) make batches, got "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_sampler(function: str, loader: DataLoader[Any]) -> int | None:
    """Return a loader's batch size; ValueError unless it gives every row once."""
    batches = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset):
        return loader.batch_size
    if batches is None:
        raise ValueError(
            f"[{function}] expected a DataLoader that makes batches, got batch_size=None: give its "
            "dataset"
        )
    count = len(loader.dataset)
    sampler: Any = batches
    size = getattr(batches, "batch_size", None)
    if type(batches) is BatchSampler:
        sampler = batches.sampler
        if batches.drop_last and count % batches.batch_size:
            warn(
                f"[{function}] expected a DataLoader with drop_last=False, got True: all {count} "
                "rows count, also those that it drops",
                ModuleWarning,
            )
    if type(sampler) is SequentialSampler:
        return size
    if not getattr(sampler, "replacement", False):
        if type(sampler) is RandomSampler and sampler.num_samples == count:
            return size
        with torch.random.fork_rng(devices=[]):
            given: Any = iter(sampler)
            if sampler is batches:
                given = itertools.chain.from_iterable(given)
            order = sorted(int(i) for i in itertools.islice(given, count + 1))
        if order == list(range(count)):
            return size
    raise ValueError(
        f"[{function}] expected a DataLoader whose sampler gives each of the {count} rows once, "
        f"got {type(sampler).__name__}: every row counts once in a posterior. Give its dataset, "
        "or a torch.utils.data.Subset of the rows that are meant"
    )


def _whole(x: torch.Tensor, y: torch.Tensor, size: int | None) -> Rows:
    x, y = x.clone(), y.clone()  # changing what was passed changes nothing
    mark = digest(x.numpy(), y.numpy())
    return Rows(_Memory(x, y), len(x), size, mark)
