"""Turn a digit until the network is unsure
========================================

A network with dropout is trained on small images of digits. Then a 1 is turned in steps of 15
degrees, and 100 dropout masks predict each picture. Between the upright and the flat digit the
masks disagree, although each single mask stays sure of its answer.

The idea is from Gal and Ghahramani (2016, "Dropout as a Bayesian approximation", section 5.2). The
network has two hidden layers of 200 units with a dropout rate of one half behind each.

Run it with ``python examples/rotated_digit.py``. It needs scikit-learn and takes some seconds.
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


# %%
# The pictures
# ------------
# One digit of the test set is turned through 180 degrees.


def turned(image: np.ndarray) -> np.ndarray:
    """Return the image (8, 8, 1) of bytes at each angle, (A, 8, 8, 1)."""
    turns = [rotate(image[..., 0].astype(float), a, reshape=False, order=1) for a in ANGLES]
    return np.clip(np.round(turns), 0, 255).astype(np.uint8)[..., None]


# %%
# Training and prediction
# -----------------------
# ``draws(100)`` takes 100 dropout masks. ``predict(..., keep=True)`` keeps the probabilities of
# each mask and also gives their mean.


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

# %%
# What it shows
# -------------
# The left panel has the inputs of the softmax and the middle panel its outputs, for each of the 100
# masks. The right panel has the entropy of the mean probabilities, and the mutual information,
# which measures how much the masks disagree.
#
# The masks agree on a 1 at 0 and at 180 degrees. In between the classes overlap, and both numbers
# rise by a factor of about fifty. A single mask still gives its favourite class a probability of
# 0.75 or more. Only the comparison of masks shows the doubt.
#
# At 90 degrees the digit looks like a 4 to nearly every mask, and the numbers are low again. So
# dropout detects pictures between known classes, but not every picture that it has never seen.
