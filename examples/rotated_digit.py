"""A digit that is turned around
=============================

``python examples/rotated_digit.py``

Gal and Ghahramani (2016, "Dropout as a Bayesian approximation", section 5.2) turn a 1 in steps
and send each picture a hundred times through a network under dropout masks: where it stops looking
like a 1 the classes' outputs scatter and overlap, though single passes may be sure of themselves.
Here one of scikit-learn's digits, 8x8, is turned through 180 degrees before a 64-200-200-10 network
with dropout of a half before its last layer, as in the paper, and of a half after the first.

The picture has inputs (less their mean over classes) and outputs of the softmax of each pass for
the classes that lead at some angle, and the entropy of the mean probabilities in nats with the part
of it that passes disagree on, the mutual information.

What is seen: upright and after a half turn the passes agree on a 1. On the way to a quarter turn
and back from it the inputs of several classes overlap, and both numbers rise fiftyfold, though a
single pass still gives its favourite 0.75 or more: that the favourite changes from pass to pass is
what shows. Lying flat the digit is a 4 for all but every pass, and the numbers are low again.
So masks tell of pictures between the classes, and not of all that were never seen: at 8x8 pixels a
flat stroke looks enough like the bar of a 4.

Rates and widths, 200 epochs and their cosine schedule are chosen here; the rest is the default.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

import ribbit as rb

ANGLES = np.arange(0, 181, 15)
LAYERS = [
    rb.Flatten(),
    rb.Dense(200),
    rb.Activation("relu"),
    rb.Dropout(0.5),
    rb.Dense(200),
    rb.Activation("relu"),
    rb.Dropout(0.5),
    rb.Dense(10),
]


def turned(image: np.ndarray) -> np.ndarray:
    """Return the image (8, 8, 1) of bytes at each angle, (A, 8, 8, 1)."""
    turns = [rotate(image[..., 0].astype(float), a, reshape=False, order=1) for a in ANGLES]
    return np.clip(np.round(turns), 0, 255).astype(np.uint8)[..., None]


def main(folder: str | Path = ".", scale: float = 1.0) -> dict[str, np.ndarray]:
    """Fit and turn; `scale` shortens the fit. Returns numbers at each angle (A,)."""
    x, y = load_digits(return_X_y=True)
    x = (x * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)  # bytes, which are read as [0, 1]
    x_test, y_test = x[1500:], y[1500:]
    model = rb.Model(LAYERS, input_shape=(8, 8, 1))
    target = rb.Posterior(
        model, x[:1500], y[:1500], prior=rb.Normal(1.0), likelihood=rb.Categorical()
    )
    epochs = int(200 * scale)
    dropout = rb.MCDropout(target, schedule=rb.schedules.cosine(epochs * -(-1500 // 128)))
    fit = dropout.fit(epochs, seed=0, progress=False)
    draws = fit.draws(100)
    p = draws.predict(x_test)
    accuracy = rb.metrics.accuracy(y_test, p.probs)
    # Of the 1s of the test set the one that is known best.
    ones = np.flatnonzero(y_test == 1)
    images = turned(x_test[ones[np.argmax(p.probs[ones, 1])]])
    p = draws.predict(images, keep=True)
    passes = np.asarray(p.samples)[0]  # (S, A, 10) probabilities
    table = {
        "accuracy": np.full(len(ANGLES), accuracy),
        "label": p.probs.argmax(1),
        "probability": p.probs.max(1),
        "of one pass": passes.max(-1).mean(0),
        "entropy": p.entropy,
        "mutual information": p.mutual_information,
    }
    print(f"accuracy on test digits: {accuracy:.3f}")
    print(
        f"{'angle':>5}{'label':>7}{'probability':>13}{'of one pass':>13}{'entropy':>9}{'mutual':>8}"
    )
    for i, angle in enumerate(ANGLES):
        _, label, *numbers = (column[i] for column in table.values())
        print(f"{angle:>5}{label:>7}{numbers[0]:>13.3f}{numbers[1]:>13.3f}", end="")
        print(f"{numbers[2]:>9.3f}{numbers[3]:>8.3f}")
    path = Path(folder) / "rotated_digit.png"
    draw(images, passes, table).savefig(path, dpi=120)
    plt.close("all")
    print(f"picture: {path}")
    return table


def draw(images: np.ndarray, passes: np.ndarray, table: dict[str, np.ndarray]):
    """Thumbnails above, what the passes say below."""
    figure = plt.figure(figsize=(12, 5.2), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1, 4))
    for ax, image, angle in zip(above.subplots(1, len(ANGLES)), images, ANGLES, strict=True):
        ax.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=255)
        ax.set(xticks=[], yticks=[], title=f"{angle}\N{DEGREE SIGN}")
    axes = below.subplots(1, 3)
    inputs = np.log(np.maximum(passes, 1e-12))
    inputs -= inputs.mean(-1, keepdims=True)
    leading = np.unique(table["label"])
    for j, k in enumerate(leading):
        away = 4 * (j - (len(leading) - 1) / 2)  # degrees, so that classes lie side by side
        x = np.broadcast_to(ANGLES + away, passes.shape[:2])
        for ax, values in zip(axes, (inputs, passes), strict=False):
            ax.plot(x.ravel(), values[..., k].ravel(), "_", color=f"C{j}", alpha=0.35)
            ax.plot([], [], "s", color=f"C{j}", label=f"class {k}")
    axes[2].plot(ANGLES, table["entropy"], marker="o", label="entropy of the mean")
    axes[2].plot(ANGLES, table["mutual information"], marker="o", label="mutual information")
    titles = ("inputs of the softmax, 100 passes", "its outputs", "nats")
    for ax, title in zip(axes, titles, strict=True):
        ax.set(title=title, xlabel="degrees", xticks=ANGLES[::2])
    for ax in (axes[0], axes[2]):
        ax.legend(fontsize="small")
    return figure


if __name__ == "__main__":
    main()
