"""Functions that read, scale and split data, a small real set and two toy problems."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ribbit._arrays import checks, columns, random_numbers
from ribbit._arrays.keywords import explain
from ribbit.datasets.files import as_data, read_csv, read_idx, read_npz, write_npy
from ribbit.errors import ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = [
    "Scaler",
    "energy_efficiency",
    "read_csv",
    "read_idx",
    "read_npz",
    "splits",
    "standardize",
    "toy_regression",
    "two_moons",
    "write_npy",
]

Array: TypeAlias = "npt.NDArray[np.float64]"
Indices: TypeAlias = "npt.NDArray[np.int64]"

_DATA = Path(__file__).parent / "data"  # with the source and licence of each set
_PURPOSE = 12  # "dataset" in core/philox_hd.h


@dataclass(frozen=True, eq=False)
class Scaler:
    """Standardised data with their means and scales, made by :func:`standardize`.

    Attributes
    ----------
    x : (N, ...) ndarray
        Inputs with mean 0 and sd 1 in every column, or channel of images and sequences.
    y : (N,) or (N, K) ndarray, or None
        Targets with mean 0 and sd 1 in every column.
    x_mean, x_scale : ndarray of shape x.shape[1:]
        Mean and standard deviation of the inputs over N (and the places of a channel). A column is
        constant if it spans at most 8 units in the last place of its largest number (of float32 if
        all its numbers are float32 and not integers). Its scale is 1, or larger so that rounding
        does not show.
    y_mean, y_scale : () or (K,) ndarray, or None
        Mean and standard deviation of the targets, in their units.
    columns : tuple or None
        Column names of the inputs if they were a frame; `transform` matches new frames by them.

    Examples
    --------
    >>> x, y = rb.datasets.energy_efficiency()
    >>> scaler = rb.datasets.standardize(x, y)
    >>> scaler.x.mean().round(6) + 0.0, scaler.x.std().round(6)
    (np.float64(0.0), np.float64(1.0))
    >>> bool(np.allclose(scaler.inverse_y(scaler.y), y))
    True
    """

    x: Array
    y: Array | None
    x_mean: Array
    x_scale: Array
    y_mean: Array | None
    y_scale: Array | None
    columns: tuple[str | int, ...] | None = None

    def transform(self, x: npt.ArrayLike) -> Array:
        """Return new inputs (M, ...) in the units of `x`."""
        name = "Scaler.transform"
        raw = as_data(name, "x", checks.matched(name, x, self.columns))
        if raw.ndim != self.x.ndim or raw.shape[1:] != self.x.shape[1:]:
            shape = ", ".join(str(size) for size in self.x.shape[1:])
            raise ShapeError(
                f"[Scaler.transform] expected x of shape (N, {shape}), got {raw.shape}"
            )
        return np.asarray(columns.moved(raw, self.x_mean, self.x_scale))

    def transform_y(self, y: npt.ArrayLike) -> Array:
        """Return new targets in the units of `y`; (M,) and (M, 1) keep their shape."""
        mean, scale = self._y("transform_y")
        raw = as_data("Scaler.transform_y", "y", y)
        return np.asarray(columns.moved(raw, mean, scale))

    def inverse_y(
        self, mean: npt.ArrayLike, std: npt.ArrayLike | None = None
    ) -> Array | tuple[Array, Array]:
        """Return predictions in the units of the targets.

        Parameters
        ----------
        mean : (..., K) or, with one target, any array_like
            Means or quantiles of standardised targets.
        std : array_like, optional
            Standard deviations of standardised targets.

        Returns
        -------
        ndarray, or a pair of them when `std` is given
            To convert a log density per row, subtract ``np.log(scaler.y_scale).sum()``.
        """
        offset, scale = self._y("inverse_y")
        name = "Scaler.inverse_y"
        location = _real(name, "mean", mean) * scale + offset
        if std is None:
            return location
        return location, _real(name, "std", std) * scale

    def _y(self, function: str) -> tuple[Array, Array]:
        if self.y_mean is None or self.y_scale is None:
            raise ValueError(
                f"[Scaler.{function}] expected a scaler made with targets, got one made without y"
            )
        return self.y_mean, self.y_scale


def standardize(x: npt.ArrayLike, y: npt.ArrayLike | None = None) -> Scaler:
    """Shift and scale every column to mean 0 and standard deviation 1.

    Parameters
    ----------
    x : (N, ...) array_like
        Inputs, usually the training rows. For images (N, H, W, C) and sequences (N, T, C) a column
        is a channel, over all places.
    y : (N,) or (N, K) array_like, optional
        Real targets. Leave class labels out.

    Returns
    -------
    Scaler

    Raises
    ------
    TypeError, ValueError
        If an array is not real, not finite or empty, or the rows do not match.

    Warns
    -----
    ScaleWarning
        If a few extreme values flatten a column, such as 1e12 among numbers near one. At most a
        tenth of the rows are extreme, all others lie within 0.01 sds of the median and differ, and
        the extreme ones are 100 times farther from it. For tables of at least ten rows.

    Examples
    --------
    >>> scaler = rb.datasets.standardize(np.array([[1.0], [3.0]]))
    >>> scaler.x.ravel(), scaler.transform([[5.0]]).ravel()
    (array([-1.,  1.]), array([3.]))
    """
    names = checks.column_names("standardize", "x", x)
    inputs = as_data("standardize", "x", x)
    if inputs.ndim < 2 or inputs.size == 0:
        raise ShapeError(f"[standardize] expected x of shape (N, D) with rows, got {inputs.shape}")
    x_mean, x_scale = columns.spread(inputs)
    columns.warn_of_far_cells("standardize", "x", inputs, x_scale, titles=names)
    scaled = columns.moved(inputs, x_mean, x_scale)
    if y is None:
        return Scaler(scaled, None, x_mean, x_scale, None, None, names)
    targets = as_data("standardize", "y", y)
    if targets.ndim not in (1, 2) or len(targets) != len(inputs) or targets.size == 0:
        raise ShapeError(
            f"[standardize] expected y of shape ({len(inputs)},) or ({len(inputs)}, K), "
            f"got {targets.shape}"
        )
    y_mean, y_scale = columns.spread(targets)
    columns.warn_of_far_cells("standardize", "y", targets, y_scale)
    moved = columns.moved(targets, y_mean, y_scale)
    return Scaler(scaled, moved, x_mean, x_scale, y_mean, y_scale, names)


def splits(
    n: int, seed: checks.Seed = 1, *, num_splits: int = 20, train_fraction: float = 0.9
) -> list[tuple[Indices, Indices]]:
    """Return random splits into training and test rows, as in the UCI benchmark.

    One ``RandomState(seed)``, one ``choice(n, n, replace=False)`` per split; the first
    ``round(train_fraction * n)`` rows train (Hernandez-Lobato and Adams 2015; Gal and Ghahramani
    2016). The first splits do not depend on `num_splits`.

    Parameters
    ----------
    n : int
        Rows of the data set, at least 2.
    seed : int, Generator, SeedSequence or None
        As in :meth:`ribbit.Sampler.sample`; the published splits use 1.
    num_splits : int
    train_fraction : float
        In (0, 1).

    Returns
    -------
    list of (train, test)
        Row numbers, int64.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or a split would leave no training or no test rows.

    Examples
    --------
    >>> train, test = rb.datasets.splits(100)[0]
    >>> len(train), len(test)
    (90, 10)
    """
    n = checks.integer("splits", "n", n, minimum=2, maximum=2**48)
    seed = checks.seed("splits", seed)
    num_splits = checks.integer("splits", "num_splits", num_splits, minimum=1, maximum=2**62)
    fraction = checks.fraction("splits", "train_fraction", train_fraction)
    train = round(fraction * n)
    if not 0 < train < n:
        raise ValueError(
            f"[splits] expected training and test rows, got {train} and {n - train} of n = {n}"
        )
    what = f"num_splits = {num_splits} of n = {n} rows"
    checks.memory("splits", num_splits * n, np.int64, what)
    # The published splits are made with it; it takes no integer of more than 32 bits.
    state = np.random.RandomState(seed if seed < 2**32 else np.random.MT19937(seed))
    result = []
    for _ in range(num_splits):
        order = state.choice(n, n, replace=False).astype(np.int64)
        result.append((order[:train], order[train:]))
    return result


def energy_efficiency() -> tuple[Array, Array]:
    """Return the heating load of 768 simulated buildings, a data set that needs no download.

    Columns of x are relative compactness, surface area, wall area and roof area (m^2), and overall
    height (m). Then follow orientation (2 to 5), glazing area (share of the floor area) and
    distribution of the glazing (0: none, 1 to 5).

    Returns
    -------
    x : (768, 8) ndarray of float64
    y : (768,) ndarray of float64
        Heating load, kWh/m^2.

    Notes
    -----
    By Athanasios Tsanas and Angeliki Xifara, from the UCI Machine Learning Repository
    (https://doi.org/10.24432/C51307), under the licence CC BY 4.0: name the authors when you pass
    it on. The second target of the set, the cooling load, is left out.

    References
    ----------
    Tsanas and Xifara (2012), "Accurate quantitative estimation of energy performance of residential
    buildings using statistical machine learning tools", Energy and Buildings 49, 560-567.

    Examples
    --------
    >>> x, y = rb.datasets.energy_efficiency()
    >>> x.shape, float(y.max())
    ((768, 8), 43.1)
    """
    return read_csv(_DATA / "energy_efficiency.csv", target="heating_load")


def toy_regression(n: int, seed: checks.Seed = 0) -> tuple[Array, Array]:
    """Return points on the noisy curve of Blundell et al. (2015), section 5.2, on x in (0, 0.5).

    y = x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e with e ~ N(0, 0.02^2).

    Parameters
    ----------
    n : int
        Number of rows; the first rows do not depend on it.
    seed : int, Generator, SeedSequence or None

    Returns
    -------
    x : (n, 1) ndarray of float64
    y : (n,) ndarray of float64

    Examples
    --------
    >>> x, y = rb.datasets.toy_regression(5, seed=0)
    >>> x.shape, y.shape
    ((5, 1), (5,))
    """
    n = checks.integer("toy_regression", "n", n, minimum=1, maximum=2**32)
    uniform, normal = _random("toy_regression", n, seed, normals=1)
    x = 0.5 * uniform[:, 0]
    noise = 0.02 * normal[:, 0]
    phase = 2.0 * math.pi * (x + noise)
    y = x + 0.3 * np.sin(phase) + 0.3 * np.sin(2.0 * phase) + noise
    return x[:, None], y


def two_moons(
    n: int, seed: checks.Seed = 0, *, noise: float = 0.1
) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return points on two interleaved half circles of radius 1, with Gaussian noise.

    Parameters
    ----------
    n : int
        Number of rows; labels alternate 0, 1, 0, ... The first rows do not depend on it.
    seed : int, Generator, SeedSequence or None
    noise : float
        Standard deviation in both directions.

    Returns
    -------
    x : (n, 2) ndarray of float64
    y : (n,) ndarray of int64
        0: the upper half circle about (0, 0); 1: the lower one about (1, 0.5).

    Examples
    --------
    >>> x, y = rb.datasets.two_moons(5, seed=0)
    >>> x.shape, y
    ((5, 2), array([0, 1, 0, 1, 0]))
    """
    n = checks.integer("two_moons", "n", n, minimum=1, maximum=2**32)
    sd = checks.real("two_moons", "noise", noise)
    if sd < 0:
        raise ValueError(f"[two_moons] expected noise >= 0, got {noise!r}")
    uniform, normal = _random("two_moons", n, seed, normals=2)
    angle = math.pi * uniform[:, 0]
    y = np.arange(n, dtype=np.int64) % 2
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    lower = np.stack([1.0 - np.cos(angle), 0.5 - np.sin(angle)], axis=1)
    return np.where((y == 0)[:, None], upper, lower) + sd * normal, y


def _random(function: str, n: int, seed: checks.Seed, *, normals: int) -> tuple[Array, Array]:
    """Return uniforms (n, 1) and normals (n, normals), streams 0 and 1 of "dataset"."""
    # Every row has a counter of its own, so that a longer set begins with the shorter one.
    seed = checks.seed(function, seed)
    checks.memory(function, n * (normals + 4), np.float64, f"{n} rows")
    rows = np.arange(n, dtype=np.uint32)
    uniform = random_numbers.uniform(
        np, (n, 1), seed=seed, step=0, chains=rows, purpose=_PURPOSE, layer=0
    )
    normal = random_numbers.normal(
        np,
        (n, normals),
        np.dtype(np.float64),
        seed=seed,
        step=0,
        chains=rows,
        purpose=_PURPOSE,
        layer=1,
    )
    return uniform, normal


def _real(function: str, name: str, value: npt.ArrayLike) -> Array:
    """Return numbers as float64; NaN and infinity stay, as in predictions."""
    raw = checks.numeric(function, name, value)
    checks.memory(function, raw.size, np.float64, f"{name} of shape {raw.shape}")
    return raw.astype(np.float64)


explain(globals())
