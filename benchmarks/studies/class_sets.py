"""Tables with labels for `benchmarks.studies.sklearn_defaults`: clean ones, and ones with noise.

Shapes: N rows, D columns. A loader returns x, y of the training rows and x, y of the test rows.
Made tables have 2,000 test rows; a quarter of the rows of real ones is for the test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

__all__ = ["CLEAN", "NOISY"]

Split: TypeAlias = tuple[Any, Any, Any, Any]
_TEST = 2_000


def _real(name: str, split: int, share: float = 0.0) -> Split:
    """Return a table of scikit-learn; `share` of its labels (N,) becomes another class."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    if name == "diabetes":
        y = (y > np.median(y)).astype(np.int64)
    if share:
        rng = np.random.default_rng(100 + split)
        classes, hit = len(np.unique(y)), rng.random(len(y)) < share
        y = y.copy()
        y[hit] = (y[hit] + rng.integers(1, classes, hit.sum())) % classes
    x, x_test, y, y_test = train_test_split(x, y, random_state=split, stratify=y)
    return x, y, x_test, y_test


def _cut(x: Any, y: Any, rows: int) -> Split:
    return x[:rows], y[:rows], x[rows:], y[rows:]


def _clusters(rows: int, split: int, **how: Any) -> Split:
    from sklearn.datasets import make_classification

    found = make_classification(n_samples=rows + _TEST, random_state=split, **how)
    return _cut(*found, rows)


def _moons(rows: int, split: int) -> Split:
    from sklearn.datasets import make_moons

    return _cut(*make_moons(rows + _TEST, noise=0.35, random_state=split), rows)


def _gaussians(rows: int, columns: int, gap: float, split: int) -> Split:
    """Return two normal clouds `gap` sds apart; 0 is labels without any signal."""
    rng = np.random.default_rng(split)
    y = rng.integers(0, 2, rows + _TEST)
    x = rng.normal(size=(rows + _TEST, columns)) + gap * y[:, None] / columns**0.5
    return _cut(x, y, rows)


def _logits(
    rows: int, columns: int, split: int, spread: float, base: float, product: float = 0.0
) -> Split:
    """Return labels of a sparse linear logit of correlated columns, every third one skewed."""
    rng = np.random.default_rng(split)
    mixing = np.eye(columns) + rng.normal(size=(columns, columns)) / columns**0.5
    x = rng.normal(size=(rows + _TEST, columns)) @ mixing
    x[:, ::3] = np.exp(0.5 * x[:, ::3])
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    weights = rng.normal(size=columns) * (rng.random(columns) < 0.5)
    weights[0] = 1.0
    logit = z @ weights
    logit = spread * logit / logit.std() + product * z[:, 0] * z[:, 1] + base
    y = (rng.random(rows + _TEST) < 1.0 / (1.0 + np.exp(-logit))).astype(np.int64)
    return _cut(x, y, rows)


CLEAN: dict[str, Callable[[int], Split]] = {
    "iris": lambda s: _real("iris", s),
    "wine cultivars": lambda s: _real("wine", s),
    "breast cancer": lambda s: _real("breast_cancer", s),
    "digits": lambda s: _real("digits", s),
}
NOISY: dict[str, Callable[[int], Split]] = {
    "clusters, 10 % flipped": lambda s: _clusters(
        200, s, n_features=10, n_informative=4, flip_y=0.1
    ),
    "clusters, 30 % flipped": lambda s: _clusters(
        600, s, n_features=20, n_informative=5, flip_y=0.3
    ),
    "clusters, 45 idle columns": lambda s: _clusters(
        300, s, n_features=50, n_informative=5, flip_y=0.2
    ),
    "clusters, three classes": lambda s: _clusters(
        1000, s, n_features=6, n_informative=4, n_redundant=0, n_classes=3, flip_y=0.2
    ),
    "clusters, 90 to 10": lambda s: _clusters(
        500, s, n_features=10, n_informative=3, weights=[0.9], flip_y=0.1
    ),
    "overlapping Gaussians": lambda s: _gaussians(400, 2, 1.0, s),
    "labels without signal": lambda s: _gaussians(150, 10, 0.0, s),
    "moons": lambda s: _moons(400, s),
    "logits, 3 columns": lambda s: _logits(230, 3, s, 0.7, -1.0),
    "logits, 8 columns": lambda s: _logits(576, 8, s, 1.5, -0.8, 0.3),
    "logits, 24 columns": lambda s: _logits(750, 24, s, 1.2, -1.0),
    "diabetes above the median": lambda s: _real("diabetes", s),
    "wine, 20 % flipped": lambda s: _real("wine", s, 0.2),
    "cancer, 20 % flipped": lambda s: _real("breast_cancer", s, 0.2),
    "digits, 20 % flipped": lambda s: _real("digits", s, 0.2),
}
