"""Weights that can go
===================

``python examples/weight_pruning.py``

Bayes by Backprop gives every weight a mean and a standard deviation. Blundell et al. (2015, "Weight
uncertainty in neural networks", section 5.1) sort the weights by ``|mu| / sigma`` and set the
lowest to zero: on MNIST 95 % of them went at almost no loss. Here it is done to a 64-100-100-10
network on 1,200 of scikit-learn's digits, without training again afterwards, beside two controls:
the same fit pruned by ``|mu|`` alone, and a plain network (MAP) pruned by ``|w|``.

What is seen: by ``|mu| / sigma`` 95 % go at no loss that could be told from none, and 98 % at seven
hundredths of accuracy. By ``|mu|`` alone it falls sooner: a small mean that is sure counts, a large
one that is not does not. A plain network of the same prior is as good when whole and has lost a
quarter at 90 %: nothing asked in training which weights matter, while the KL term of Bayes by
Backprop charges for each. The histogram says how it is possible: few ratios are above 1, 0
decibels. The hump at -4 is of weights into hidden units, nearly all below zero: they hold units off
whose outgoing weights are back at the prior. Both may go together.

Batches and learning rate of the plain network are defaults, as is the rate of Bayes by Backprop.
Set by hand: the prior N(0, 1), batches of 128 for both, the epochs, and cosine schedules. The bound
rises by some hundredths a row until the end, since sds of 17,510 weights grow slowly from 0.05
towards 1; `BBB` warns of it.
"""

from __future__ import annotations

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


def curves(seed: int, scale: float) -> tuple[dict[str, list[float]], np.ndarray]:
    """Accuracies at each share for each rule, and |mu| / sigma (P,), of one split and fit."""
    x, y, x_test, y_test = data(seed)
    target = rb.Posterior(MODEL, x, y, prior=rb.Normal(1.0), likelihood=rb.Categorical())
    epochs, steps = int(2000 * scale), -(-ROWS // 128)  # steps of an epoch
    bbb = rb.BBB(target, batch_size=128, schedule=rb.schedules.cosine(epochs * steps))
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
