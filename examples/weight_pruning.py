"""Which weights does a network need?
==================================

Bayes by Backprop learns a mean and a standard deviation for each weight. If a mean is small
compared with its standard deviation, the weight can be set to zero. On small images of digits, 95 %
of the weights can go without a loss of accuracy, while an ordinary network loses a quarter of its
accuracy at 90 %.

The idea is from Blundell et al. (2015, "Weight uncertainty in neural networks", section 5.1). The
network has two hidden layers of 100 units and learns 1,200 digits. After pruning it is not trained
again. There are two controls: the same fit pruned by the size of the mean alone, and an ordinary
network (MAP) pruned by the size of its weights.

Run it with ``python examples/weight_pruning.py``. It needs scikit-learn and takes half a minute.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import ribbit as rb

KEPT = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)  # shares of the weights
RULES = ("fit, by |mu| / sigma", "fit, by |mu|", "plain network, by |w|")
ROWS = 1200
MODEL = rb.Model([rb.Flatten(), *rb.mlp(64, (100, 100), 10).layers], input_shape=(8, 8, 1))


# %%
# Data and pruning
# ----------------


def data(seed: int) -> tuple[np.ndarray, ...]:
    """Images and labels for training, images and labels for tests."""
    x, y = load_digits(return_X_y=True)
    x = (x * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)  # bytes, which are read as [0, 1]
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:ROWS], order[ROWS:]
    return x[train], y[train], x[test], y[test]


def pruned(weights: np.ndarray, score: np.ndarray, kept: float) -> np.ndarray:
    """Return weights (S, P) with all but the share `kept` of highest score (P,) set to zero."""
    order = np.argsort(score)
    copy = weights.copy()
    copy[:, order[: round((1 - kept) * len(score))]] = 0
    return copy


def accuracy(target: rb.Posterior, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Accuracy of the mean of the probabilities of weights (S, P)."""
    outputs = target.outputs(weights, x)  # (S, N, 10)
    p = np.exp(outputs - outputs.max(-1, keepdims=True))
    return rb.metrics.accuracy(y, (p / p.sum(-1, keepdims=True)).mean(0))


# %%
# The fits
# --------
# The standard deviations of 17,510 weights start at 0.05 and grow slowly towards the prior sd.
# So the objective of Bayes by Backprop still rises a little at the end of the fit.


def curves(seed: int, scale: float) -> tuple[dict[str, list[float]], np.ndarray]:
    """Accuracies at each share for each rule, and |mu| / sigma (P,), of one split and fit."""
    x, y, x_test, y_test = data(seed)
    target = rb.Posterior(MODEL, x, y, prior=rb.Normal(1.0), likelihood=rb.Categorical())
    epochs, steps = int(2000 * scale), -(-ROWS // 128)  # steps of an epoch
    bbb = rb.BBB(target, batch_size=128, schedule=rb.schedules.cosine(epochs * steps))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rb.errors.FitWarning)  # the slow growth named above
        fit = bbb.fit(epochs, seed=seed, progress=False)
    plain = rb.DeepEnsemble(target, members=1, schedule=rb.schedules.cosine(200 * steps))
    member = plain.fit(200, seed=seed, progress=False).theta  # (1, P)
    draws, ratio = fit.sample(100, seed=seed), np.abs(fit.mean) / fit.scale
    table = {}
    for name, weights, score in zip(
        RULES, (draws, draws, member), (ratio, np.abs(fit.mean), np.abs(member[0])), strict=True
    ):
        table[name] = [accuracy(target, pruned(weights, score, k), x_test, y_test) for k in KEPT]
    return table, ratio


# %%
# The comparison
# --------------


def main(folder: str | Path = ".", scale: float = 1.0) -> dict[str, np.ndarray]:
    """Fit, prune and draw; `scale` shortens the fits. Returns (fits, shares) for each rule."""
    seeds = range(2 if scale >= 0.5 else 1)
    found, ratios = zip(*(curves(seed, scale) for seed in seeds), strict=True)
    tables = {name: np.array([table[name] for table in found]) for name in RULES}
    print(f"{'weights kept':<24}" + "".join(f"{k:>8.0%}" for k in KEPT))
    for name, table in tables.items():
        print(f"{name:<24}" + "".join(f"{a:>8.3f}" for a in table.mean(0)))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, table in tables.items():
        (line,) = left.plot(KEPT, table.mean(0), marker="o", label=name)
        left.plot(KEPT, table.T, color=line.get_color(), linewidth=0.6, alpha=0.6)
    left.set(xscale="log", xlabel="share of the weights that is kept", ylabel="test accuracy")
    left.set_xticks(KEPT, [f"{k:.0%}" for k in KEPT])
    left.minorticks_off()
    left.invert_xaxis()
    left.legend(frameon=False)
    decibel = 10 * np.log10(np.maximum(ratios[0], 1e-3))  # pixels that are never lit have mean 0
    right.hist(decibel, bins=np.linspace(-30, 20, 81), color="0.6")
    at = np.quantile(decibel, 0.95)
    right.axvline(at, color="0.2", linewidth=0.8, linestyle="--")
    right.text(at + 0.7, 0.9 * right.get_ylim()[1], "5% are right of the line")
    right.set(xlabel="10 log10(|mu| / sigma)", ylabel="weights")
    path = Path(folder) / "weight_pruning.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")
    return tables


if __name__ == "__main__":
    main()

# %%
# What it shows
# -------------
# Sorted by ``|mu| / sigma``, 95 % of the weights can go without a visible loss, and at 98 % the
# accuracy falls by 0.07. Sorted by ``|mu|`` alone, accuracy falls sooner: a small mean matters if
# it is certain. The ordinary network is as accurate with all its weights and loses a quarter at 90
# %. Its training never asks which weights matter, but Bayes by Backprop pays for each weight
# through the Kullback-Leibler term of its objective.
#
# The histogram shows why it works: few weights have a ratio above 1 (0 decibels). The hump at -4
# decibels has weights into hidden units that are switched off.
