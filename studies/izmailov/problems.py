"""Data sets and networks, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb

CLASSES = {"digits": 10, "blobs": 4, "cifar10": 10, "imdb": 2}
SHAPES: dict[str, tuple[int, ...]] = {
    "digits": (8, 8, 1),
    "blobs": (8, 8, 1),
    "cifar10": (32, 32, 3),
    "imdb": (100,),
}
FILES = {"cifar10": "cifar10.npz", "imdb": "imdb.npz"}
VOCABULARY = 20_000


class MissingDataError(FileNotFoundError):
    """The file of a data set that does not ship is missing."""


@dataclass(frozen=True)
class Split:
    """Training and test rows: images (N, H, W, C) in [0, 1], or tokens (N, T); labels (N,)."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    mean: float
    sd: float

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Images in units of the training pixels, float32; tokens stay."""
        if x.dtype.kind in "iu":
            return x
        return ((x - self.mean) / self.sd).astype(np.float32)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's 1,797 images of 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.data / 16.0).reshape(-1, 8, 8, 1), found.target.astype(np.int64)


def blobs(rows: int = 1200) -> tuple[np.ndarray, np.ndarray]:
    """Make images of 8 x 8 pixels: a blurred spot about one of four places, under noise."""
    rng = np.random.default_rng(0)
    y = np.arange(rows, dtype=np.int64) % 4
    centre = np.stack([y // 2, y % 2], axis=1) * 3.0 + 2.0 + rng.normal(0, 0.8, (rows, 2))
    grid = np.stack(np.mgrid[:8, :8], axis=-1)
    away = ((grid - centre[:, None, None]) ** 2).sum(axis=-1, keepdims=True)
    return np.clip(np.exp(-away / 4) + rng.normal(0, 0.15, away.shape), 0, 1), y


def from_file(name: str, folder: Path) -> list[np.ndarray]:
    """Read x_train, y_train, x_test, y_test of a data set that does not ship."""
    path = folder / FILES[name]
    what = "images (N, 32, 32, 3) of bytes" if name == "cifar10" else "tokens (N, 100) < 20,000"
    if not path.is_file():
        raise MissingDataError(
            f"[studies.izmailov] expected {path} with the arrays x_train, y_train, x_test and "
            f"y_test ({what}, whole labels): put it there, or name its folder by --data-folder"
        )
    with np.load(path) as archive:
        found = [archive[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    if name == "cifar10":
        found[0], found[2] = found[0] / np.float32(255), found[2] / np.float32(255)
    return found


def load(name: str, rows: int, tests: int, seed: int, folder: Path) -> Split:
    """Split by `seed`; data sets with own test rows shuffle only their training rows."""
    rng = np.random.RandomState(seed)
    if name in FILES:
        x, y, x_test, y_test = from_file(name, folder)
        order = rng.permutation(len(y))[:rows]
        parts = x[order], y.reshape(-1)[order], x_test[:tests], y_test.reshape(-1)[:tests]
    else:
        x, y = digits() if name == "digits" else blobs()
        order = rng.permutation(len(y))
        train, test = order[:rows], order[rows : rows + tests]
        parts = x[train], y[train], x[test], y[test]
    return Split(*parts, float(parts[0].mean()), float(parts[0].std()))


def stand_in(name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise with the shape of a data set (float32 or tokens), to time a gradient."""
    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES[name], size=rows)
    if name == "imdb":
        return rng.integers(VOCABULARY, size=(rows, *SHAPES[name])), y
    return rng.normal(size=(rows, *SHAPES[name])).astype(np.float32), y


def _dense(*widths: int) -> Callable[[tuple[int, ...], int, float], Any]:
    def build(shape: tuple[int, ...], classes: int, rate: float) -> Any:
        layers: list[Any] = [rb.Flatten()]
        for width in widths:
            layers += [rb.Dense(width), rb.Activation("silu")]
            layers += [rb.Dropout(rate)] if rate else []
        return rb.Model([*layers, rb.Dense(classes)], input_shape=shape)

    return build


def _conv(shape: tuple[int, ...], classes: int, rate: float) -> Any:
    layers: list[Any] = [rb.Conv2D(8, 3, padding="same"), rb.Activation("silu"), rb.MaxPool2D(2)]
    layers += [rb.Conv2D(12, 3, padding="same"), rb.Activation("silu"), rb.Flatten()]
    layers += [rb.Dropout(rate)] if rate else []
    return rb.Model([*layers, rb.Dense(classes)], input_shape=shape)


def _last_dropout(model: Any, rate: float) -> Any:
    """Put a Dropout layer before the last layer."""
    if not rate:
        return model
    *before, last = model.layers
    return rb.Model([*before, rb.Dropout(rate), last], input_shape=model.input_shape)


NETWORKS: dict[str, Callable[[tuple[int, ...], int, float], Any]] = {
    "mlp": _dense(20),
    "mlp2": _dense(20, 20),
    "small": _dense(4),
    "conv": _conv,
    "resnet20_frn": lambda shape, classes, rate: _last_dropout(
        rb.resnet20_frn(classes, input_shape=(shape[0], shape[1], shape[2])), rate
    ),
    "cnn_lstm": lambda shape, classes, rate: _last_dropout(
        rb.cnn_lstm(vocab_size=VOCABULARY, length=shape[0]), rate
    ),
}
