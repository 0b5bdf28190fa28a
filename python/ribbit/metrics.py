"""Scores of predictions against observations; each returns a float, computed in float64.

Labels are integers 0 ... K-1 of shape (N,) or (N, 1). Class probabilities are (N, K); two classes
may also be (N,) or (N, 1), the probability of class 1. A single output may be (N,) or (N, 1) on
either side; nothing is broadcast. You can pass a Prediction for probabilities or means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit.errors import DataError, DTypeError, ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["accuracy", "auroc", "brier", "coverage", "crps", "ece", "nll", "rmse"]

Array: TypeAlias = "npt.NDArray[np.float64]"
Labels: TypeAlias = "npt.NDArray[np.int64]"


def rmse(y: npt.ArrayLike, mean: Any) -> float:
    """Return the root mean squared error over all rows and outputs.

    Parameters
    ----------
    y : (N,) or (N, K) array_like
        Observations.
    mean : (N,) or (N, K) array_like, or a Prediction

    Returns
    -------
    float
        In units of y.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not real, finite, of one shape and non-empty.

    Examples
    --------
    >>> round(rb.metrics.rmse([1.0, 2.0], [1.0, 4.0]), 4)
    1.4142
    """
    observed, predicted = _columns("rmse", y=y, mean=mean)
    with np.errstate(over="ignore"):
        errors = observed - predicted
        # A power of two, which rounds nothing: squares of 1e200 are no numbers.
        power = int(np.frexp(np.max(np.abs(errors)))[1])
        return float(np.ldexp(np.sqrt(np.mean(np.ldexp(errors, -power) ** 2)), power))


def accuracy(y: npt.ArrayLike, probs: Any) -> float:
    """Return the fraction of rows whose most probable class is the label; a tie goes to the first.

    Parameters
    ----------
    y : (N,) array_like of int
    probs : (N, K) array_like, or a Prediction

    Returns
    -------
    float

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.4, 0.6]])
    >>> rb.metrics.accuracy([0, 0], p)
    0.5
    """
    labels, p = labelled("accuracy", y, probs)
    return float(np.mean(p.argmax(axis=1) == labels))


def nll(y: npt.ArrayLike, probs: Any) -> float:
    """Return the negative log likelihood per row: the mean of -log(probability of the label).

    Parameters
    ----------
    y : (N,) array_like of int
    probs : (N, K) array_like, or a Prediction
        For a regression or counts, y has observations, and the result is
        ``-prediction.log_likelihood(y)``.

    Returns
    -------
    float
        In nats; infinite if a label has probability 0 (nothing is clipped).

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.4, 0.6]])
    >>> round(rb.metrics.nll([0, 1], p), 4)
    0.3081
    """
    if _predicts(probs) and probs.kind in ("regression", "count"):
        return -float(probs.log_likelihood(y))
    labels, p = labelled("nll", y, probs)
    with np.errstate(divide="ignore"):
        value = -np.mean(np.log(p[np.arange(len(p)), labels]))
    return float(value) + 0.0  # no -0.0


def ece(y: npt.ArrayLike, probs: Any, *, bins: int = 20) -> float:
    """Return the expected calibration error of the top label.

    Rows are put into `bins` bins of equal width on [0, 1] by their largest probability (a bin
    includes its upper edge). The result is the mean over rows of the absolute difference of
    accuracy and mean confidence in their bin (Guo et al. 2017, eq. 3; 20 bins as in Izmailov et al.
    2021).

    Parameters
    ----------
    y : (N,) array_like of int
    probs : (N, K) array_like, or a Prediction
    bins : int

    Returns
    -------
    float
        In [0, 1].

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.4, 0.6]])
    >>> round(rb.metrics.ece([0, 1], p), 4)
    0.25
    """
    labels, p = labelled("ece", y, probs)
    count = checks.integer("ece", "bins", bins, minimum=1, maximum=2**48)
    checks.memory("ece", 4 * count, np.float64, f"{count} bins")
    confidence, correct, rows = calibration_bins(labels, p, count)
    with np.errstate(invalid="ignore"):
        gap = np.where(rows > 0, np.abs(correct - confidence), 0.0)  # sums, not means
    return float(gap.sum() / len(p))


def brier(y: npt.ArrayLike, probs: Any) -> float:
    """Return the Brier score: the mean squared distance of the probabilities to the one-hot label.

    Parameters
    ----------
    y : (N,) array_like of int
    probs : (N, K) array_like, or a Prediction

    Returns
    -------
    float
        Three classes or more: the sum over classes, in [0, 2] (Brier 1950). Two classes: half of
        the sum, mean (p - y)^2, in [0, 1]. Both as scikit-learn's default.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.4, 0.6]])
    >>> round(rb.metrics.brier([0, 1], p), 4)
    0.085
    """
    labels, p = labelled("brier", y, probs)
    one_hot = np.zeros_like(p)
    one_hot[np.arange(len(p)), labels] = 1.0
    value = np.mean(((p - one_hot) ** 2).sum(axis=1))
    return float(0.5 * value if p.shape[1] == 2 else value)


def coverage(y: npt.ArrayLike, lower: npt.ArrayLike, upper: npt.ArrayLike) -> float:
    """Return the fraction of observations inside their intervals, ends included.

    Parameters
    ----------
    y, lower, upper : (N,) or (N, K) array_like
        Observations and interval ends, lower <= upper; ends may be infinite.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If the arrays are not real, of one shape and non-empty, y is not finite, or an interval is
        upside down.

    Examples
    --------
    >>> rb.metrics.coverage([1.0, 2.0], lower=[0.0, 3.0], upper=[2.0, 4.0])
    0.5
    """
    observed, low, high = _columns("coverage", y=y, lower=lower, upper=upper)
    ordered = "lower <= upper in coverage(y, lower, upper)"
    checks.all_true("coverage", ordered, "lower", low, np.less_equal(low, high))
    return float(np.mean((low <= observed) & (observed <= high)))


def crps(y: npt.ArrayLike, p: Any) -> float:
    """Return the continuous ranked probability score, averaged over rows and outputs.

    E|Y - y| - E|Y - Y'| / 2 for independent Y and Y' of the predictive distribution (Gneiting and
    Raftery 2007, eq. 21); smaller is better. Without spread it is the mean absolute error.

    Parameters
    ----------
    y : (N,) or (N, K) array_like
        Observations.
    p : Prediction, or (S, N) or (S, N, K) array_like
        Prediction of a regression, or S samples of y. The score of samples is larger than the exact
        one by 1 / S of the spread.

    Returns
    -------
    float
        In units of y.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not real, finite and of matching shapes, or p is not a Prediction of a
        regression.

    Examples
    --------
    >>> from ribbit import metrics
    >>> metrics.crps([1.0], [[0.0], [2.0]])
    0.5
    """
    if hasattr(type(p), "crps"):
        return float(p.crps(y))
    in_order("crps", y, "p")
    (observed,) = _columns("crps", y=y)
    samples = checks.numeric("crps", "p", p)
    if samples.ndim not in (2, 3) or samples.size == 0:
        raise ShapeError(
            "[crps] expected p as a Prediction or samples (S, N) in crps(y, p), got "
            f"{checks.summary(samples)}"
        )
    checks.finite("crps", "p", samples)
    size, rows = samples.shape[:2]
    drawn = np.sort(samples.astype(np.float64).reshape(size, rows, -1), axis=0)
    if drawn.shape[1:] != observed.shape:
        raise ShapeError(
            f"[crps] expected p (S, N) for y of shape {observed.shape}, got {samples.shape}"
        )
    distance = np.abs(drawn - observed).mean(axis=0)
    # sum over pairs of |x_i - x_j| from sorted values: x_(i) counts 2 i - S - 1 times
    weight = (2.0 * np.arange(1, size + 1) - size - 1.0) / size**2
    return float(np.mean(distance - np.tensordot(weight, drawn, axes=1)))


def auroc(label: npt.ArrayLike, score: npt.ArrayLike) -> float:
    """Return the area under the ROC curve: P(a positive has the larger score), ties count half.

    Parameters
    ----------
    label : (N,) array_like of bool or 0/1
        Both kinds must occur.
    score : (N,) array_like
        Larger means more likely positive; infinite values are allowed.

    Returns
    -------
    float

    Examples
    --------
    >>> rb.metrics.auroc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    if _swapped(label, score):
        raise TypeError("[auroc] expected auroc(label, score), got them in the other order")
    values = checks.numeric("auroc", "score", score)
    marks = class_labels("auroc", "label", label, classes=2)
    if values.shape not in ((len(marks),), (len(marks), 1)):
        raise ShapeError(
            f"[auroc] expected score of shape ({len(marks)},) like label, got {values.shape}"
        )
    flat = values.reshape(-1).astype(np.float64)
    checks.all_true("auroc", "score without NaN", "score", flat, ~np.isnan(flat))
    positives = int(marks.sum())
    negatives = len(marks) - positives
    if positives == 0 or negatives == 0:
        raise DataError(
            f"[auroc] expected labels of both kinds, got {positives} positives and "
            f"{negatives} negatives"
        )
    _, place, counts = np.unique(flat, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - 0.5 * (counts - 1)  # mean rank of each distinct score, from 1
    rank_sum = float(rank[place.reshape(-1)][marks == 1].sum())
    return (rank_sum - 0.5 * positives * (positives + 1)) / (positives * negatives)


def calibration_bins(labels: Labels, probs: Array, bins: int) -> tuple[Array, Array, Labels]:
    """Return sums of top-label confidences, of correct rows and of rows, (bins,) each."""
    confidence = probs.max(axis=1)
    correct = probs.argmax(axis=1) == labels
    # (b / bins, (b + 1) / bins] is bin b
    place = np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], confidence, side="left")
    sums = [np.bincount(place, weights=w, minlength=bins) for w in (confidence, correct)]
    return sums[0].astype(float), sums[1].astype(float), np.bincount(place, minlength=bins)


def class_probabilities(function: str, name: str, values: Any) -> Array:
    """Return checked class probabilities (N, K) float64, K >= 2; (N,) is class 1 of two."""
    raw = checks.numeric(function, name, _of_prediction(values, "probs"))
    if raw.ndim not in (1, 2) or raw.size == 0:
        raise ShapeError(
            f"[{function}] expected {name} of shape (N, K) or (N,), got {checks.summary(raw)}"
        )
    p = raw.astype(np.float64).reshape(len(raw), -1)
    good = (p >= 0.0) & (p <= 1.0 + 1e-6)  # False for NaN
    checks.all_true(function, f"{name} in [0, 1]", name, p, good)
    if p.shape[1] == 1:
        p = np.minimum(p, 1.0)
        return np.concatenate([1.0 - p, p], axis=1)
    total = p.sum(axis=1)
    good_rows = np.abs(total - 1.0) <= 1e-3
    checks.all_true(function, f"rows of {name} that sum to 1", f"sum of {name}", total, good_rows)
    return p


def _of_prediction(value: Any, statistic: str) -> Any:
    """Return a statistic of a Prediction, and anything else as it is."""
    return (
        getattr(value, statistic) if _predicts(value) and hasattr(type(value), statistic) else value
    )


def _predicts(value: Any) -> bool:
    """Whether a value is a Prediction, which has these three; a Posterior has the first alone."""
    return all(hasattr(type(value), name) for name in ("kind", "log_likelihood", "num_draws"))


def _columns(function: str, **arrays: npt.ArrayLike) -> list[Array]:
    """Arrays of one shape as (N, K) float64; y finite, the others without NaN."""
    y, *others = arrays
    in_order(function, arrays[y], *others)
    result: list[Array] = []
    for name, value in arrays.items():
        given = _of_prediction(value, "mean") if name == "mean" else value
        raw = checks.numeric(function, name, given)
        if raw.ndim not in (1, 2) or raw.size == 0:
            raise ShapeError(
                f"[{function}] expected {name} of shape (N,) or (N, K), got {checks.summary(raw)}"
            )
        column = raw.astype(np.float64).reshape(len(raw), -1)
        if result and column.shape != result[0].shape:
            raise ShapeError(
                f"[{function}] expected {name} of the shape of y, {result[0].shape}, "
                f"got {column.shape}"
            )
        if name in ("lower", "upper"):
            checks.all_true(function, f"{name} without NaN", name, raw, ~np.isnan(raw))
        else:
            checks.finite(function, name, raw)
        result.append(column)
    return result


def class_labels(function: str, name: str, value: npt.ArrayLike, *, classes: int = 2**31) -> Labels:
    """Check labels (N,) or (N, 1) in [0, classes) and give them as (N,) int64."""
    raw = checks.numeric(function, name, value)
    if raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    if raw.ndim != 1 or raw.size == 0:
        raise ShapeError(f"[{function}] expected {name} of shape (N,), got {checks.summary(raw)}")
    # 0.0 and 1.0 are labels, 0.5 is a probability in the wrong place
    if raw.dtype.kind == "f" and not np.all(raw == np.floor(raw)):
        order = ": the order is auroc(label, score)" if function == "auroc" else ""
        raise DTypeError(f"[{function}] expected {name} as integer labels, got {raw.dtype}{order}")
    good = (raw >= 0) & (raw < classes)
    checks.all_true(function, f"{name} in 0 ... {classes - 1}", name, raw, good)
    return raw.astype(np.int64)


def labelled(function: str, y: npt.ArrayLike, probs: Any) -> tuple[Labels, Array]:
    """Check labels and class probabilities of the same rows; (N,) int64 and (N, K) float64."""
    in_order(function, y, "probs")
    if _swapped(y, probs):
        raise TypeError(f"[{function}] expected {function}(y, probs), got them in the other order")
    p = class_probabilities(function, "probs", probs)
    labels = class_labels(function, "y", y, classes=p.shape[1])
    if len(labels) != len(p):
        raise ShapeError(
            f"[{function}] expected y and probs with as many rows, got {len(labels)} and {len(p)}"
        )
    return labels, p


def in_order(function: str, y: Any, *others: str) -> None:
    """Raise TypeError for a Prediction in the place of the observations, which come first."""
    if _predicts(y):
        raise TypeError(
            f"[{function}] expected {function}({', '.join(('y', *others))}), got a Prediction as y"
        )


def _swapped(y: Any, probs: Any) -> bool:
    """Whether integers stand where probabilities belong, and other numbers where labels do."""
    if _predicts(probs):
        return False
    try:
        first, second = np.asarray(y), np.asarray(probs)
    except Exception:  # no arrays: the checks say so
        return False
    fractions = first.dtype.kind == "f" and bool((first != np.floor(first)).any())
    return fractions and second.dtype.kind in "biu"


explain(globals())
