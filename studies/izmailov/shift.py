"""Corruptions of test images: kinds at five strengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from studies.izmailov.problems import Split
from studies.izmailov.study import Study

Array = np.ndarray


def _noise(x: Array, strength: int, rng: np.random.Generator) -> Array:
    return np.asarray(x + rng.normal(0, 0.1 * strength, x.shape))


def _salt_and_pepper(x: Array, strength: int, rng: np.random.Generator) -> Array:
    hit = rng.random(x.shape) < 0.06 * strength
    return np.where(hit, rng.integers(0, 2, x.shape), x)


def _blur(x: Array, strength: int, rng: np.random.Generator) -> Array:
    """Mix with the mean of the 3 x 3 neighbours, `strength` times, at the scale of 8 pixels."""
    for _ in range(strength * max(1, x.shape[1] // 8)):
        wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
        around = sum(
            wide[:, i : i + x.shape[1], j : j + x.shape[2]] for i in range(3) for j in range(3)
        )
        x = 0.5 * x + 0.5 * around / 9
    return x


def _contrast(x: Array, strength: int, rng: np.random.Generator) -> Array:
    mean = x.mean(axis=(1, 2, 3), keepdims=True)
    return mean + (x - mean) * (1 - 0.17 * strength)


def _brightness(x: Array, strength: int, rng: np.random.Generator) -> Array:
    return x + 0.1 * strength


def _move(x: Array, strength: int, rng: np.random.Generator) -> Array:
    """Shift each image by up to `strength` eighths of a pixel in 8, between pixels linearly."""
    side = x.shape[1]
    out = np.empty_like(x)
    for i, (down, right) in enumerate(rng.uniform(-1, 1, (len(x), 2)) * strength * side / 16):
        image = x[i]
        for axis, by in ((0, down), (1, right)):
            whole, part = int(np.floor(by)), by - np.floor(by)
            index = np.arange(side) - whole
            near = np.take(image, np.clip(index, 0, side - 1), axis=axis)
            far = np.take(image, np.clip(index - 1, 0, side - 1), axis=axis)
            image = (1 - part) * near + part * far
        out[i] = image
    return out


def _occlusion(x: Array, strength: int, rng: np.random.Generator) -> Array:
    """Black out a square of `strength` eighths of a side at a random place."""
    x, side = x.copy(), strength * x.shape[1] // 8
    for i, (top, left) in enumerate(rng.integers(0, x.shape[1] - side + 1, (len(x), 2))):
        x[i, top : top + side, left : left + side] = 0
    return x


CORRUPTIONS: dict[str, Callable[[Array, int, np.random.Generator], Array]] = {
    "noise": _noise,
    "salt and pepper": _salt_and_pepper,
    "blur": _blur,
    "contrast": _contrast,
    "brightness": _brightness,
    "movement": _move,
    "occlusion": _occlusion,
}


def corrupt(x: Array, kind: str, strength: int) -> Array:
    """Corrupt images (N, H, W, C) in [0, 1]; strengths 1 to 5, the same noise every time."""
    rng = np.random.default_rng([list(CORRUPTIONS).index(kind), strength])
    return np.asarray(np.clip(CORRUPTIONS[kind](x, strength, rng), 0, 1))


def shifted_predictions(study: Study, split: Split, draws: Any) -> Array:
    """Probabilities under each corruption, (kinds, strengths, N, K)."""
    return np.stack(
        [
            [
                np.asarray(draws.predict(split.scaled(corrupt(split.x_test, kind, s))).probs)
                for s in study.size.strengths
            ]
            for kind in CORRUPTIONS
        ]
    )
