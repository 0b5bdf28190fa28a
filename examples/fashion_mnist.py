"""Four methods on images: LeNet-5 on Fashion-MNIST
================================================

Bayes by Backprop, MC dropout, SGLD and a short run of HMC use the same convolutional network. The
page compares error, negative log likelihood (NLL) and calibration error (ECE) on the test images.
HMC starts at a trained network and is too short to leave its neighbourhood, so its result says
little about the whole posterior.

Here ten kinds of generated images replace Fashion-MNIST, and the run is short. For the real images,
give the folder of the four IDX files (Xiao, Rasul and Vollgraf 2017), compressed or not, or an .npz
file with x_train, y_train, x_test and y_test. By default the program looks where Debian's package
dataset-fashion-mnist installs them::

    python examples/fashion_mnist.py --data FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import ribbit as rb

FASHION = "/usr/share/datasets/fashion-mnist"
BATCH = 50
STEP, LEAP = 0.1, 0.06  # step sizes times rows of SGLD, times the square root of rows of HMC


# %%
# The data
# --------
# Fashion-MNIST from files, or generated images: each class has five spots of light that move
# together.


class Images(NamedTuple):
    """Images (N, 28, 28, 1) of bytes and labels (N,), for training and for tests."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def stand_in(rows: int, tests: int, seed: int = 0) -> Images:
    """Ten classes: each its own five spots of light, shifted by up to 3 pixels, under noise.

    Another seed gives other classes.
    """
    rng = np.random.default_rng(seed)
    spots = rng.uniform(5, 23, size=(10, 5, 2))
    sizes = rng.uniform(1.5, 3.5, size=(10, 5))
    y = rng.integers(10, size=rows + tests)
    grid = np.stack(np.mgrid[:28, :28], axis=-1)
    shifts = rng.uniform(-3, 3, size=(len(y), 1, 1, 2))
    x = np.zeros((len(y), 28, 28))
    for k in range(5):
        away = grid - spots[y, k][:, None, None] - shifts
        x += np.exp(-0.5 * (away**2).sum(-1) / sizes[y, k][:, None, None] ** 2)
    x = 180 * x + rng.normal(0, 40, size=x.shape)
    x = np.clip(x, 0, 255).astype(np.uint8)[..., None]
    return Images(x[:rows], y[:rows], x[rows:], y[rows:])


def read(path: str | Path) -> Images:
    """Read the four IDX files of a folder, or the four arrays of an .npz file."""
    if Path(path).is_file():
        with np.load(path) as archive:
            x, y, x_test, y_test = (archive[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    else:
        names = [
            f"{s}-{k}-ubyte" for s in ("train", "t10k") for k in ("images-idx3", "labels-idx1")
        ]
        found = [Path(path) / name for name in names]
        found = [p if p.exists() else p.with_name(f"{p.name}.gz") for p in found]
        x, y, x_test, y_test = (rb.datasets.read_idx(p) for p in found)
    return Images(x[..., None], y.astype(int), x_test[..., None], y_test.astype(int))


def images(data: str | Path | None, rows: int, tests: int, seed: int = 0) -> Images:
    """Return the first rows of the data, or of the stand-in when there is none."""
    folder = Path(FASHION if data is None else data)
    if data is None and not folder.exists():
        print(f"no Fashion-MNIST: {rows:,} generated images stand in (--data FOLDER)")
        return stand_in(rows, tests, seed)
    whole = read(folder)
    some = Images(whole.x[:rows], whole.y[:rows], whole.x_test[:tests], whole.y_test[:tests])
    print(f"{folder.name}: {len(some.x):,} training images, {len(some.x_test):,} for tests")
    return some


# %%
# The network and the fits
# ------------------------
# LeNet-5 has two convolutions and three dense layers. SGLD starts at a trained network.


def posterior(data: Images, *, dropout: bool = False) -> rb.Posterior:
    """LeNet-5; with dropout before both dense layers."""
    layers = list(rb.lenet5().layers)
    if dropout:
        layers[-3:-3] = [rb.Dropout(0.25)]
        layers[-1:-1] = [rb.Dropout(0.25)]
    model = rb.Model(layers, input_shape=(28, 28, 1))
    return rb.Posterior(model, data.x, data.y, prior=rb.Normal(0.2), likelihood=rb.Categorical())


def fits(data: Images, epochs: int, draws: int) -> dict[str, rb.Draws]:
    """Draws of Bayes by Backprop, MC dropout and SGLD; SGLD starts at a trained network."""
    target = posterior(data)
    steps = epochs * -(-len(data.x) // BATCH)
    common = {"batch_size": BATCH, "learning_rate": 2e-3, "schedule": rb.schedules.cosine(steps)}
    bbb = rb.BBB(target, estimator="flipout", init_scale=0.01, **common)
    dropout = rb.MCDropout(posterior(data, dropout=True), **common)
    trained = rb.DeepEnsemble(target, members=1, **common).fit(epochs, seed=0, progress=False)
    sgld = rb.SGLD(target, step_size=STEP / len(data.x), batch_size=BATCH)
    return {
        "BBB": bbb.fit(epochs, seed=0, progress=False).draws(draws),
        "MC dropout": dropout.fit(epochs, seed=0, progress=False).draws(draws),
        "SGLD": sgld.sample(
            draws,
            warmup=steps // 2,
            thin=max(1, steps // draws),
            chains=1,
            seed=0,
            init=trained,
            progress=False,
        ),
    }


# %%
# The comparison
# --------------
# A reliability diagram shows how often the network is right when it gives a certain probability.
# The closer to the diagonal, the better.


def main(
    folder: str | Path = ".", data: str | Path | None = None, *, rows: int = 10_000, quick=False
) -> dict[str, dict[str, float]]:
    """Fit, predict and draw; `quick` shortens the runs to seconds."""
    rows, tests, epochs, draws = (800, 500, 10, 10) if quick else (rows, 10_000, 20, 50)
    found = images(data, rows, tests)
    runs = fits(found, epochs, draws)
    step = LEAP / np.sqrt(len(found.x))
    hmc = rb.HMC(posterior(found), step_size=step, num_leapfrog_steps=draws // 2)
    runs["HMC, short"] = hmc.sample(
        max(4, draws // 5),
        warmup=0,
        chains=1,
        seed=0,
        init=runs["SGLD"].positions[:, -1],
        progress=False,
    )
    acceptance = runs["HMC, short"].stats["acceptance_rate"].mean()

    table = {}
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), sharey=True, layout="constrained")
    print(f"{'method':<12}{'draws':>7}{'error':>9}{'NLL':>8}{'ECE':>8}")
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        p = np.asarray(run.predict(found.x_test).probs)
        row = {
            "error": 1 - rb.metrics.accuracy(found.y_test, p),
            "nll": rb.metrics.nll(found.y_test, p),
            "ece": rb.metrics.ece(found.y_test, p),
        }
        table[name] = row
        print(
            f"{name:<12}{run.positions.shape[1]:>7}{row['error']:>9.2%}"
            f"{row['nll']:>8.3f}{row['ece']:>8.3f}"
        )
        rb.plots.reliability(found.y_test, p, ax=ax)
        ax.set_title(f"{name}: ECE {row['ece']:.3f}", fontsize="medium")
    print(f"acceptance of HMC: {acceptance:.2f}")
    for ax in axes[1:]:
        ax.get_legend().remove()
        ax.set_ylabel("")
    path = Path(folder) / "fashion_mnist.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")
    return table


def arguments(description: str) -> argparse.ArgumentParser:
    """Return what the examples on images take from the command line."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--data", help="folder of the four IDX files, or an .npz file")
    parser.add_argument("--rows", type=int, default=10_000, help="training images to use")
    parser.add_argument("--folder", default=".", help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="few images, seconds")
    return parser


if __name__ == "__main__":
    given = arguments(__doc__).parse_args()
    main(given.folder, given.data, rows=given.rows, quick=given.quick)

# %%
# With generated images and the short run the numbers do not rank the methods.
# :doc:`/developer/results` has the table for 3,000 garments of Fashion-MNIST.
