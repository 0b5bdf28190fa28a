"""Cold posteriors: does tempering help?
=====================================

A cold posterior is the posterior raised to the power 1/T with a temperature T below 1. Wenzel et
al. (2020, "How good is the Bayes posterior in deep neural networks really?") found that cold
posteriors predict better than the true one, T = 1. This page repeats the question on a small
network that HMC can sample accurately. Cold posteriors help on real digits, but not when the model
is correct.

The network has one hidden layer of 10 units, a normal prior with standard deviation 1, and 100 of
scikit-learn's digits. There are three kinds of data:

- **digits**: the images with their true labels.
- **own labels**: the same images with labels from a network that is drawn from the prior. Here the
  model is correct, so T = 1 has the best expected log likelihood.
- **shifted copies**: each image together with copies moved one pixel left and right, each with a
  third of the weight. Data augmentation in minibatches does this on average.

Run it with ``python examples/cold_posteriors.py``. It needs scikit-learn and takes a minute.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import ribbit as rb

TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
ROWS = 100
MODEL = rb.Model([rb.Flatten(), *rb.mlp(64, (10,), 10).layers], input_shape=(8, 8, 1))
KINDS = ("digits", "own labels", "shifted copies")


# %%
# The tempered posterior
# ----------------------
# ``temperature`` applies to the whole posterior. ``likelihood_temperature`` divides the likelihood
# alone: with three copies of each image, each copy counts as a third.


def posterior(x: np.ndarray, y: np.ndarray, temperature=1.0, copies=1) -> rb.Posterior:
    """Each of the `copies` of a row counts as a share of it."""
    return rb.Posterior(
        MODEL,
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Categorical(),
        temperature=temperature,
        likelihood_temperature=copies,
    )


# %%
# Three kinds of data
# -------------------


def with_copies(x: np.ndarray) -> np.ndarray:
    """Return images (N, 8, 8, 1) and behind them the same moved left and right."""
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    return np.concatenate([wide[:, :, k : k + 8] for k in (1, 2, 0)])


def own_labels(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a network from the prior and labels from what it says."""
    theta = rng.normal(size=(1, MODEL.dim))
    outputs = posterior(x, np.zeros(len(x), int)).outputs(theta, x)[0]
    return np.argmax(outputs + rng.gumbel(size=outputs.shape), axis=1)


# %%
# The sweep
# ---------
# HMC with its default settings samples at each temperature, with two chains for each split of the
# data. The largest R-hat of the log density over the splits is in the last column of the table. At
# T = 0.01 the two chains may stay at different peaks, and then R-hat is large.


def sweep(kind: str, temperatures: Sequence[float], seed: int, count: int) -> np.ndarray:
    """Log likelihood per test row, accuracy and R-hat at each temperature, (T, 3), one split."""
    x, y = load_digits(return_X_y=True)
    x = (x * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)  # bytes, which are read as [0, 1]
    rng = np.random.default_rng(seed)
    if kind == "own labels":
        y = own_labels(x, rng)
    order = rng.permutation(len(y))
    train, test = order[:ROWS], order[ROWS:]
    x_train, y_train, copies = x[train], y[train], 1
    if kind == "shifted copies":
        x_train, y_train, copies = with_copies(x_train), np.tile(y_train, 3), 3
    rows = []
    for temperature in temperatures:
        hmc = rb.HMC(posterior(x_train, y_train, temperature, copies))
        with warnings.catch_warnings():
            # What it would say of short runs is in the column of R-hat.
            warnings.simplefilter("ignore", rb.errors.ConvergenceWarning)
            draws = hmc.sample(count, warmup=count, chains=2, seed=seed, progress=False)
        p = np.asarray(draws.predict(x[test]).probs)
        rhat = float(np.max(rb.diagnostics.rhat(draws.stats["lp"])))
        rows.append((-rb.metrics.nll(y[test], p), rb.metrics.accuracy(y[test], p), rhat))
    return np.array(rows)


# %%
# The comparison
# --------------
# All differences are to T = 1 on the same split. The error bars are standard errors over the
# splits.


def main(
    folder: str | Path = ".", scale: float = 1.0, temperatures: Sequence[float] = TEMPERATURES
) -> dict[str, np.ndarray]:
    """Sweep; `scale` shortens the runs. What is returned: (splits, temperatures, 3) per kind."""
    splits, count = max(2, round(4 * scale)), max(30, int(80 * scale))
    tables = {
        kind: np.stack([sweep(kind, temperatures, s, count) for s in range(splits)])
        for kind in KINDS
    }
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    print(f"{'':<16}{'T':>6}{'log lik.':>10}{'accuracy':>10}{'minus T = 1':>19}{'R-hat':>8}")
    for kind, table in tables.items():
        change = table - table[:, [temperatures.index(1.0)]]
        mean, error = change.mean(0), change.std(0, ddof=1) / np.sqrt(splits)
        for i, temperature in enumerate(temperatures):
            log_lik, accuracy = table[:, i, :2].mean(0)
            print(
                f"{kind:<16}{temperature:>6g}{log_lik:>10.3f}{accuracy:>10.3f}"
                f"{mean[i, 0]:>+10.3f} +- {error[i, 0]:.3f}{table[:, i, 2].max():>8.2f}"
            )
        for j, ax in enumerate(axes):
            ax.errorbar(temperatures, mean[:, j], error[:, j], marker="o", capsize=3, label=kind)
    for ax, name in zip(axes, ("test log likelihood per row", "test accuracy"), strict=True):
        ax.axhline(0, color="0.6", linewidth=0.8)
        ax.axvline(1, color="0.6", linewidth=0.8, linestyle="--")
        ax.set(xscale="log", xlabel="temperature T", ylabel="minus that at T = 1", title=name)
    axes[0].legend(frameon=False)
    path = Path(folder) / "cold_posteriors.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")
    return tables


if __name__ == "__main__":
    main()

# %%
# What it shows
# -------------
#
# - On **own labels** T = 1 is best. So the sampler is not the reason for a cold posterior effect.
# - On **digits** the log likelihood improves down to the coldest temperature, by about 0.15 for
#   each digit. The accuracy changes by about 0.01. True labels are more certain than this prior
#   expects.
# - With **shifted copies** the temperature matters more than twice as much. Each image counts as
#   three views with a third of the evidence each, so the data say less about the weights.
#
# In short, a cold posterior helps if the model is wrong in this way, and not if it is right. The
# reason for the effect in large networks is a question of its own. Izmailov et al. (2021, "What are
# Bayesian neural network posteriors really like?") find that it needs data augmentation. Aitchison
# (2021, "A statistical theory of cold posteriors in deep neural networks") explains it by labels on
# which several people had to agree.
