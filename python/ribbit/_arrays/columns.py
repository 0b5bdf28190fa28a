"""Where the columns of data lie and how wide they are."""

# A column of images (N, H, W, C) and sequences (N, T, C) is a channel: a pixel of the margin, dark
# in nearly every image, would be hundreds where it is lit if its own sd divided it.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays.checks import row_blocks
from ribbit._arrays.mapped import MappedRows
from ribbit._arrays.namespace import errstate, from_host, namespace, to_host
from ribbit._arrays.warning import warn
from ribbit.errors import ScaleWarning

if TYPE_CHECKING:
    import numpy.typing as npt

Array64: TypeAlias = "npt.NDArray[np.float64]"

# A column is constant if its values span at most this many units in the last place of the largest
# one. A constant that is computed in several ways, such as 0.3 and 0.1 + 0.2, spans one to four;
# the error of a sum of shares that should be 1 grows with the root of their number, not with the
# rows. Real differences span more: sd 1e-6 around 1e9 spans some 40 in float64.
_ULPS = 8
# Differences of a constant column are divided by this many of their range, or by 1 if that is more.
_QUIET = 2.0**20
_LARGE, _SMALL = 2.0**400, 2.0**-400  # beyond them squares overflow or vanish
_CLOSE = 2.0**-40  # of the largest number: a mean of columns in a narrower range loses their digits

_FLAT = 0.01  # sds: rows closer than this to one another are nearly equal to a network
_GAP = 100.0  # a far cell is so many times farther out than the farthest of the other rows
_FAR = 0.1  # of the rows at most are far
_TEN = 10  # rows at least; of the others so many for each far one differ from the median
_LOOKED = 256  # rows that give the median


def counted(weights: Array64) -> npt.NDArray[np.bool_]:
    """Return which rows (N,) count: next to the largest weight, rounding loses all other ones."""
    return np.asarray(weights > 2.0**-52 * weights.max())


def moments(array: Any) -> tuple[Array64, Array64]:
    """Return mean and sd, (J,) or (), of the columns of an array (N, ..., J) or (N,), float64."""
    return _moments(array, None, *_extremes(array))


def moved(array: Any, mean: Array64, scale: Array64) -> Any:
    """Return (array - mean) / scale in float64, in the library of the array."""
    xp = namespace(array)
    rows = xp.astype(array, xp.float64)  # a copy, which is changed in place
    # The difference of two numbers close to the largest float may overflow.
    factor = np.where(scale > 2.0**1000, 0.25, 1.0)
    if (factor < 1.0).any():
        rows *= from_host(xp, factor)
        mean, scale = mean * factor, scale * factor
    rows -= from_host(xp, mean)
    rows /= from_host(xp, scale)
    return rows


def blocks(array: Any, weights: Array64 | None = None) -> Iterator[tuple[Any, Any]]:
    """Yield rows and weights that count, block by block in C order; on a device all at once."""
    if isinstance(array, MappedRows):
        yield from ((rows, None) for _, rows in array.blocks())
    elif not isinstance(array, np.ndarray):
        yield array, None
    else:
        kept = None if weights is None else np.flatnonzero(counted(weights))
        count = len(array) if kept is None else kept.size
        for part in row_blocks(count, math.prod(array.shape[1:])):
            rows: Any = part if kept is None else kept[part]
            yield np.ascontiguousarray(array[rows]), None if weights is None else weights[rows]


def _extremes(array: Any, weights: Array64 | None = None) -> tuple[Array64, Array64]:
    """Return the least and the largest number (...) over the rows of an array (N, ...)."""
    low, high = np.full(array.shape[1:], np.inf), np.full(array.shape[1:], -np.inf)
    for rows, _ in blocks(array, weights):
        xp = namespace(rows)
        low = np.minimum(low, to_host(xp.min(rows, axis=0)))
        high = np.maximum(high, to_host(xp.max(rows, axis=0)))
    return low, high


def _of_channels(low: Array64, high: Array64) -> tuple[Array64, Array64]:
    """Return the least and the largest numbers (J,) over all places of (..., J)."""
    places = tuple(range(low.ndim - 1))
    return low.min(axis=places), high.max(axis=places)


def _over_places(mean: Array64, sd: Array64) -> tuple[Array64, Array64]:
    """Return mean and sd (J,) of channels, of those (..., J) over rows at each place."""
    places = tuple(range(mean.ndim - 1))
    if not places:
        return mean, sd
    with np.errstate(over="ignore", invalid="ignore"):
        middle = mean.mean(axis=places)
        return middle, np.sqrt((sd**2 + (mean - middle) ** 2).mean(axis=places))


def _moments(
    array: Any, weights: Array64 | None, low: Array64, high: Array64
) -> tuple[Array64, Array64]:
    """Return mean and sd (J,) of the columns of an array (N, ..., J), whose extremes are known."""
    # If squares would overflow or vanish, a column is divided by a power of 2, which changes no
    # bit. If its range is narrow and far from 0, its least number is subtracted, which is exact.
    low, high = _of_channels(low, high)
    with np.errstate(over="ignore", invalid="ignore"):
        top, width = np.maximum(np.abs(low), np.abs(high)), high - low
        offset = np.where((width > 0.0) & (width < _CLOSE * top), low, 0.0)
        top = np.where(offset == 0.0, top, width)
        unsafe = np.isfinite(top) & ((top > _LARGE) | ((top < _SMALL) & (top > 0.0)))
        exponent = np.where(unsafe, np.frexp(np.where(unsafe, top, 1.0))[1], 0)

    def near_one(rows: Any) -> Any:
        """Return (rows - offset) / 2^exponent, divided in two steps because 2^1073 is no float."""
        xp = namespace(rows)
        rows = xp.astype(rows, xp.float64)
        if offset.any():
            rows = rows - from_host(xp, offset)
        for part in (exponent // 2, exponent - exponent // 2) if exponent.any() else ():
            rows = rows * from_host(xp, np.ldexp(1.0, -part))
        return rows

    mean, sd = _over_places(*_over_rows(array, weights, near_one))
    return offset + np.ldexp(mean, exponent), np.ldexp(sd, exponent)


def _over_rows(
    array: Any, weights: Array64 | None, changed: Callable[[Any], Any]
) -> tuple[Array64, Array64]:
    """Return mean and sd (...) over the rows of an array (N, ...), each `changed` to float64."""
    if not isinstance(array, MappedRows | np.ndarray):
        rows = changed(array)
        xp = namespace(rows)
        with errstate(xp):
            mean, sd = xp.mean(rows, axis=0), xp.std(rows, axis=0)
        return np.asarray(to_host(mean)), np.asarray(to_host(sd))
    shares = None if weights is None else weights / weights.max()  # so that no sum overflows
    count = len(array) if shares is None else shares[counted(shares)].sum()

    def total(each: Callable[[Array64], Any]) -> Array64:
        """Return the sum over rows; blocks of rows are added one after another."""
        found: Any = None
        for rows, share in blocks(array, shares):
            terms = each(changed(rows))
            if share is not None:
                terms *= share.reshape(-1, *(1,) * (terms.ndim - 1))
            if found is not None:
                terms = np.concatenate([found[None], terms])
            found = np.add.reduce(terms, axis=0)
        return np.asarray(found)

    with np.errstate(over="ignore", invalid="ignore"):
        mean = total(lambda rows: rows) / count
        return mean, np.sqrt(total(lambda rows: (rows - mean) ** 2) / count)


def spread(array: Any, weights: Array64 | None = None) -> tuple[Array64, Array64]:
    """Return what to subtract from an array (N, ...) and to divide it by, (...) each."""
    # The two numbers are the same at all places of a channel. A constant column is divided by 1, or
    # by more if its rounding errors would be seen. Rows that `counted` leaves out do not count.
    low, high = _extremes(array, weights)
    shape = low.shape
    mean, sd = _moments(array, weights, low, high)
    low, high = _of_channels(low, high)
    with np.errstate(over="ignore", invalid="ignore"):
        constant, middle = _constant(array, weights, low, high), low + 0.5 * (high - low)
        quiet = np.maximum(1.0, _QUIET * (high - low))
    mean, sd = np.where(constant, middle, mean), np.where(constant, quiet, sd)
    sd = np.where(sd == 0.0, 1.0, sd)  # it was smaller than the least float
    return np.broadcast_to(mean, shape).copy(), np.broadcast_to(sd, shape).copy()


def _constant(
    array: Any, weights: Array64 | None, low: Array64, high: Array64
) -> npt.NDArray[np.bool_]:
    """Return which columns (J,), from `low` to `high`, differ by rounding alone."""
    # If a column is exact in float32, float32 rounding decides: such tables are often passed on as
    # float64. Whole numbers up to 2^24 or 2^53, such as years, are exact.
    constant = np.asarray(high == low)
    top = np.maximum(np.abs(low), np.abs(high))
    doubtful = np.flatnonzero(~constant & (high - low <= _ULPS * 2.0**-23 * top))
    if doubtful.size == 0:
        return constant
    single, whole = np.ones((2, doubtful.size), np.bool_)
    for values in _columns_of(array, weights, doubtful, top.size):
        single &= (values.astype(np.float32) == values).all(axis=0)
        whole &= (np.rint(values) == values).all(axis=0)
    top = top.reshape(-1)[doubtful]
    ulp = np.where(single, np.spacing(top.astype(np.float32)), np.spacing(top))
    exact = whole & (top <= np.where(single, 2.0**24, 2.0**53))
    near = ((high - low).reshape(-1)[doubtful] <= _ULPS * ulp) & ~exact
    constant = np.atleast_1d(constant).copy()
    constant[doubtful] = near
    return constant.reshape(low.shape)


def _columns_of(
    array: Any, weights: Array64 | None, chosen: npt.NDArray[np.intp], count: int
) -> Iterator[Array64]:
    """Yield the chosen ones of `count` columns or channels, block by block of rows (n, chosen)."""
    for rows, _ in blocks(array, weights):
        xp = namespace(rows)
        flat = xp.reshape(rows, (-1, count))
        yield np.asarray(to_host(xp.take(flat, from_host(xp, chosen), axis=1)), np.float64)


def warn_of_far_cells(
    function: str,
    name: str,
    array: Any,
    scale: Array64,
    weights: Array64 | None = None,
    *,
    titles: Any = None,
) -> None:
    """Warn of a few cells so far out that all other rows of their column become nearly equal."""
    found = _far_cells(array, scale, weights)
    if not found:
        return
    cells = []
    for column, row, text in found[:3]:
        title = column if titles is None else repr(titles[column])
        where = name if array.ndim == 1 else f"{name} column {title}"
        cells.append(f"row {row} of {where} is {text}")
    more = f"; and {len(found) - 3} more columns" if len(found) > 3 else ""
    warn(
        f"[{function}] {'; '.join(cells)}{more}. Standardizing makes those rows nearly equal. "
        "Correct the far cells, leave their rows out, or transform the column, for example with "
        "np.arcsinh",
        ScaleWarning,
    )


def _far_cells(array: Any, scale: Array64, weights: Array64 | None) -> list[tuple[int, int, str]]:
    """Return columns that a few far cells flatten: column, first far row, and its description."""
    # At most a tenth of the rows (or one) are far. All others lie within 0.01 sds of the median,
    # and far ones are 100 times farther out. The cells of a heavy tail leave no such gap. In a
    # column with a rare category the other rows are equal, so ten others for each far row (or half
    # of all) have to differ from the median.
    if weights is not None and len(weights) != array.shape[0]:
        return []  # the check of the data raises for it
    kept = None if weights is None else np.flatnonzero(counted(weights))
    rows = array.shape[0] if kept is None else kept.size
    if rows < _TEN or math.prod(array.shape) == 0:
        return []
    scale = np.atleast_1d(scale)[(0,) * (scale.ndim - 1)]  # of channels
    count, places, every = scale.size, math.prod(array.shape[1:-1]), -(-rows // _LOOKED)
    if isinstance(array, MappedRows):
        looked: Any = array.some(_LOOKED * math.prod(array.shape[1:]))
    else:
        looked = to_host(array[::every, ...] if kept is None else array[kept[::every]])
    with np.errstate(over="ignore", invalid="ignore"):
        looked = looked.reshape(-1, count).astype(np.float64)
        centre = np.median(looked, axis=0)
        near = (np.abs(looked - centre) < _FLAT * scale).mean(axis=0)
        chosen = np.flatnonzero(near > 1.0 - 2.0 * _FAR)
        if chosen.size == 0:
            return []
        centre, scale = centre[chosen], scale[chosen]
        first, value = np.full(chosen.size, -1), np.zeros(chosen.size)
        far, other = np.zeros((2, chosen.size), np.int64)
        inner, outer = np.zeros(chosen.size), np.full(chosen.size, np.inf)
        seen = 0
        for values in _columns_of(array, weights, chosen, count):
            away = np.abs(values - centre)
            out = away >= _FLAT * scale
            place = np.argmax(out, axis=0)
            fresh = (first < 0) & out.any(axis=0)
            first[fresh] = seen + place[fresh]
            value[fresh] = values[place, np.arange(chosen.size)][fresh]
            far += out.sum(axis=0)
            other += (~out & (away > _ULPS * 2.0**-23 * np.abs(centre))).sum(axis=0)
            inner = np.maximum(inner, np.where(out, 0.0, away).max(axis=0))
            outer = np.minimum(outer, np.where(out, away, np.inf).min(axis=0))
            seen += len(values)
        few = (far > 0) & (far <= max(1, int(_FAR * seen))) & (outer >= _GAP * inner)
        few &= other >= np.minimum((seen - far) // 2, _TEN * far)
    first //= places
    return [
        (
            int(chosen[j]),
            int(first[j] if kept is None else kept[first[j]]),
            f"{value[j]:.3g}{'' if far[j] == 1 else f' (one of {far[j]} far cells)'}, and all "
            f"other rows lie within {inner[j]:.3g} of {centre[j]:.3g}",
        )
        for j in np.flatnonzero(few)
    ]
