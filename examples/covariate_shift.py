"""Test images under growing noise
===============================

A network is trained on clean images and tested on noisy ones. As the noise grows, every method
becomes less accurate. A good one also becomes less sure, so its calibration error (ECE) stays
small. Averaging over weights often helps, but not always (Izmailov et al. 2021).

Here the images are generated, and the run is short. For Fashion-MNIST, give its folder::

    python examples/covariate_shift.py --data FOLDER
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from fashion_mnist import arguments, fits, images

import ribbit as rb

STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.5)  # sd of the noise; black is 0, white is 1
METRICS = {
    "accuracy": rb.metrics.accuracy,
    "NLL (nats)": rb.metrics.nll,
    "ECE": rb.metrics.ece,
}
COLORS = ("#2f6db3", "#e08214", "#2a9d6f")


# %%
# The noise
# ---------
# Only the test images get noise.


def noisy(x: np.ndarray, strength: float, seed: int = 0) -> np.ndarray:
    """Add the noise and cut what is darker than black or brighter than white."""
    noise = np.random.default_rng(seed).normal(0, 255 * strength, size=x.shape)
    return np.clip(np.rint(x + noise), 0, 255).astype(np.uint8)


# %%
# Fit once, test at each strength
# -------------------------------
# The functions for data and fits come from the example :doc:`fashion_mnist`.


def main(
    folder: str | Path = ".", data: str | Path | None = None, *, rows: int = 10_000, quick=False
) -> dict[str, dict[str, list[float]]]:
    """Fit, predict and draw; `quick` shortens the runs to seconds."""
    rows, tests, epochs, draws = (800, 500, 10, 10) if quick else (rows, 2_000, 20, 50)
    found = images(data, rows, tests)
    runs = fits(found, epochs, draws)
    table: dict[str, dict[str, list[float]]] = {
        name: {metric: [] for metric in METRICS} for name in runs
    }
    print(f"{'method':<12}{'noise':>7}" + "".join(f"{metric:>12}" for metric in METRICS))
    for name, run in runs.items():
        for strength in STRENGTHS:
            p = np.asarray(run.predict(noisy(found.x_test, strength)).probs)
            row = {metric: of(found.y_test, p) for metric, of in METRICS.items()}
            for metric, value in row.items():
                table[name][metric].append(value)
            print(f"{name:<12}{strength:>7.1f}" + "".join(f"{v:>12.3f}" for v in row.values()))

    figure, axes = plt.subplots(1, len(METRICS), figsize=(11, 3.4), layout="constrained")
    for ax, metric in zip(axes, METRICS, strict=True):
        for (name, columns), color in zip(table.items(), COLORS, strict=True):
            ax.plot(STRENGTHS, columns[metric], "o-", color=color, label=name)
        ax.set(xlabel="sd of the noise (white = 1)", ylabel=metric)
        ax.set_ylim(0, 1.03 if metric == "accuracy" else None)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    path = Path(folder) / "covariate_shift.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")
    return table


if __name__ == "__main__":
    given = arguments(__doc__).parse_args()
    main(given.folder, given.data, rows=given.rows, quick=given.quick)

# %%
# What it shows
# -------------
# Accuracy falls and the negative log likelihood rises with the noise for all methods. The images
# here are generated and few, so the numbers do not rank the methods. :doc:`/developer/results` has
# the table for Fashion-MNIST.
