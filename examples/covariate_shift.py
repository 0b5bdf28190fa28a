"""Test images under growing noise
===============================

``python examples/covariate_shift.py --data FOLDER``

LeNet-5 on Fashion-MNIST by three methods; Gaussian noise is added to the test images alone. Prints
accuracy, negative log likelihood and calibration error for each method and strength of the noise,
and writes covariate_shift.png. Averaging over weights helps where it makes a network less sure of
what it has not seen; Izmailov et al. (2021) show that it need not.

``--data`` is what fashion_mnist.py beside this file reads; generated images stand in.
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


def noisy(x: np.ndarray, strength: float, seed: int = 0) -> np.ndarray:
    """Add the noise and cut what is darker than black or brighter than white."""
    noise = np.random.default_rng(seed).normal(0, 255 * strength, size=x.shape)
    return np.clip(np.rint(x + noise), 0, 255).astype(np.uint8)


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
