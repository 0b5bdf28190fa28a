"""Find the step size of HMC on a ResNet-20
========================================

HMC on a large network needs a small step size, and each trajectory takes many gradients. This
program runs one chain with growing step sizes and prints acceptance and energy errors, until the
mean acceptance falls below 0.6. Then it measures how fast the energy error grows with the step
size.

In theory the energy error grows with the square of the step size if the density is smooth. The
normalisation of this network contains max(y, threshold), which has a kink, so the measured power is
lower. With ``--smooth`` there are no thresholds, and the power is 2.

The page shows ``--quick``, on tiny generated images. The full run uses 100 images of 32 x 32 pixels
and takes some ten minutes on two cores. IMAGES is an .npz file with x_train (N, H, W, C) and
y_train (N,), or a folder with one folder of PNG files for each class::

    python examples/resnet_hmc.py --data IMAGES --json found.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

import ribbit as rb

STEP_SIZES = tuple(1e-5 * 2**k for k in range(7, 14))
ORDER_STEP_SIZES = tuple(1e-5 * 2**k for k in range(1, 6))
PRIOR = rb.Normal(0.2**0.5)  # variance 1/5, as in Izmailov et al. (2021)
ENOUGH = 0.6


# %%
# The images
# ----------
# By default they are generated: a blurred spot, with one colour and place for each class.


def blobs(rows: int, side: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ten classes (N, side, side, 3): a colour and a place each, both blurred, under noise."""
    rng = np.random.default_rng(seed)
    colors, places = rng.uniform(60, 220, size=(10, 3)), rng.uniform(0.25, 0.75, size=(10, 2))
    y = np.arange(rows) % 10
    grid = np.stack(np.mgrid[:side, :side], axis=-1) / side
    centres = places[y] + rng.normal(0, 0.08, size=(rows, 2))
    away = ((grid - centres[:, None, None]) ** 2).sum(-1, keepdims=True)
    x = np.exp(-away / 0.05) * (colors[y] + rng.normal(0, 25, size=(rows, 3)))[:, None, None]
    return np.clip(x + rng.normal(30, 15, size=x.shape), 0, 255).astype(np.uint8), y


def read(path: str | Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the first images of an .npz file, or of each class of a folder in turn."""
    if Path(path).is_file():
        with np.load(path) as archive:
            x, y = archive["x_train"][:rows], archive["y_train"][:rows]
        return x if x.ndim == 4 else x[..., None], y.reshape(-1).astype(int)
    classes = sorted(p for p in Path(path).iterdir() if p.is_dir())
    by_turns = itertools.zip_longest(*(sorted(p.glob("*.png")) for p in classes))
    files = [p for group in by_turns for p in group if p is not None][:rows]
    if not files:
        raise SystemExit(f"no PNG files in the folders of {path}")
    x = np.stack([np.rint(255 * plt.imread(p)).astype(np.uint8) for p in files])
    y = np.array([classes.index(p.parent) for p in files])
    return x[..., :3] if x.ndim == 4 else x[..., None], y


# %%
# Without thresholds
# ------------------


def smooth(layers: Sequence) -> tuple:
    """Take the thresholds out of filter response normalisation."""
    found = []
    for layer in layers:
        if isinstance(layer, rb.FilterResponseNorm):
            layer = rb.FilterResponseNorm(threshold=False)
        elif isinstance(layer, rb.Residual):
            layer = rb.Residual(smooth(layer.main), smooth(layer.shortcut))
        found.append(layer)
    return tuple(found)


# %%
# One chain and its energy errors
# -------------------------------
# HMC conserves an energy exactly only in the limit of small steps. The energy error of a trajectory
# decides whether it is accepted.


def chain(
    target: rb.Posterior, start: np.ndarray, step: float, count: int, leapfrogs: int, seed: int
) -> tuple[dict, np.ndarray]:
    """Run a short chain; return its acceptance and energy errors, and its last draw."""
    began = time.perf_counter()
    hmc = rb.HMC(target, step_size=step, num_leapfrog_steps=leapfrogs, randomize_length=False)
    draws = hmc.sample(count, warmup=0, chains=1, seed=seed, init=start, progress=False)
    error = draws.stats["energy_error"][0]
    row = {
        "step_size": step,
        "acceptance": float(draws.stats["acceptance_rate"].mean()),
        "energy_error": error.tolist(),
        "diverging": int(draws.stats["diverging"].sum()),
        "seconds": time.perf_counter() - began,
    }
    return row, np.asarray(draws.state.position)[0]


# %%
# The power of the step size
# --------------------------
# The slope of log energy error over log step size, in double precision.


def order(
    target: rb.Posterior, start: np.ndarray, step_sizes: tuple[float, ...], leapfrogs: int
) -> dict:
    """Mean |energy error| of four trajectories of one length at every step size, and its slope.

    The length is `leapfrogs` steps of the smallest step size.
    """
    position = np.tile(start, (4, 1))
    momentum = rb.random.normal(position.shape, seed=1, dtype=position.dtype)

    def energy(p: np.ndarray, lp: np.ndarray) -> np.ndarray:
        return 0.5 * (p**2).sum(axis=1) - lp

    first = energy(momentum, target.value_and_grad(position)[0])
    length = leapfrogs * min(step_sizes)
    counts = sorted({max(1, round(length / step)) for step in step_sizes}, reverse=True)
    steps, errors = [length / count for count in counts], []
    for step, count in zip(steps, counts, strict=True):
        _, p, terms, _ = target.leapfrog(position, momentum, None, step, count)
        errors.append(float(np.abs(energy(p, terms.sum(axis=1)) - first).mean()))
    finite = np.isfinite(errors)
    slope = np.polyfit(np.log(np.array(steps)[finite]), np.log(np.array(errors)[finite]), 1)[0]
    return {"length": length, "step_size": steps, "energy_error": errors, "order": float(slope)}


# %%
# The picture
# -----------


def draw(found: dict, path: Path) -> None:
    """Draw acceptance and energy errors over the step size."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    steps = [row["step_size"] for row in found["chains"]]
    left.plot(steps, [row["acceptance"] for row in found["chains"]], "o-", color="#2f6db3")
    left.axhline(ENOUGH, color="#90a4ae", ls="--", lw=1.2)
    left.set(ylim=(-0.02, 1.04), ylabel="mean acceptance")
    law = found["order"]
    right.plot(law["step_size"], law["energy_error"], "o-", color="#e08214")
    right.set(yscale="log", ylabel="mean |energy error| (nats)")
    right.set_title(f"length {law['length']:.3g}: order {law['order']:.2f}", fontsize="medium")
    right.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    right.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
    right.yaxis.set_minor_formatter(NullFormatter())
    for ax, ticks in ((left, steps), (right, law["step_size"])):
        ax.set(xscale="log", xlabel="step size (1e-5)")
        ax.set_xticks(ticks, [f"{1e5 * step:.0f}" for step in ticks])
        ax.set_xticks([], minor=True)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


# %%
# The run
# -------
# A network is trained, and a few trajectories at the smallest step size lead from there to typical
# weights. Without them the energy errors would be too large.


def main(
    folder: str | Path = ".",
    data: str | Path | None = None,
    *,
    rows: int = 100,
    trajectories: int = 20,
    leapfrogs: int = 200,
    warmup: int = 5,
    step_sizes: tuple[float, ...] = STEP_SIZES,
    epochs: int = 100,
    without_kinks: bool = False,
    quick: bool = False,
) -> dict:
    """Train a start, run the chains and measure the order; `quick` shortens all to seconds."""
    side = 32
    if quick:
        side, rows, trajectories, leapfrogs, epochs, warmup = 8, 20, 3, 8, 20, 1
    x, y = blobs(rows, side) if data is None else read(data, rows)
    model = rb.resnet20_frn(int(y.max()) + 1, input_shape=x.shape[1:])
    if without_kinks:
        model = rb.Model(smooth(model.layers), input_shape=x.shape[1:])
    single, double = (
        rb.Posterior(model, x, y, prior=PRIOR, likelihood=rb.Categorical(), dtype=dtype)
        for dtype in (np.float32, np.float64)
    )
    print(f"{len(x)} images {x.shape[1:]}, {model.dim:,} parameters")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rb.errors.FitWarning)  # a start need not be converged
        trained = rb.DeepEnsemble(single, members=1, batch_size=None).fit(
            epochs, seed=0, progress=False
        )
    start = trained.theta[0]
    fitted = rb.metrics.accuracy(y, np.asarray(trained.draws().predict(x).probs))
    print(f"start: {epochs} steps of Adam, accuracy {fitted:.2f} on the images")

    if warmup:
        row, position = chain(single, start, min(step_sizes), warmup, leapfrogs, seed=0)
        print(f"warmup: {warmup} trajectories at {row['step_size']:.3g}", end=", ")
        print(f"mean acceptance {row['acceptance']:.2f}", flush=True)
    else:
        position = start
    chains = []
    print(f"{'step size':>10}{'acceptance':>12}{'|energy error|':>16}{'largest':>10}{'s':>8}")
    for seed, step in enumerate(sorted(step_sizes), start=1):
        row, position = chain(single, position, step, trajectories, leapfrogs, seed)
        chains.append(row)
        errors = np.abs(row["energy_error"])
        print(
            f"{step:>10.3g}{row['acceptance']:>12.3f}{errors.mean():>16.4g}{errors.max():>10.3g}"
            f"{row['seconds']:>8.1f}",
            flush=True,
        )
        if not row["acceptance"] > ENOUGH:
            break
    good = [row["step_size"] for row in chains if row["acceptance"] > ENOUGH]
    largest = max(good, default=None)
    print(
        f"no step size has a mean acceptance above {ENOUGH}"
        if largest is None
        else f"largest step size with a mean acceptance above {ENOUGH}: {largest:.3g}"
    )
    law = order(double, start.astype(np.float64), ORDER_STEP_SIZES, 16)
    print(f"order of the energy error at length {law['length']:.3g}, float64: {law['order']:.2f}")

    found = {
        "images": list(x.shape),
        "smooth": without_kinks,
        "trajectories": trajectories,
        "leapfrogs": leapfrogs,
        "warmup": warmup,
        "chains": chains,
        "largest_step_size": largest,
        "order": law,
    }
    path = Path(folder) / "resnet_hmc.png"
    draw(found, path)
    print(f"picture: {path}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", help="an .npz file, or a folder of folders of PNG files")
    parser.add_argument("--rows", type=int, default=100, help="images to use")
    parser.add_argument("--trajectories", type=int, default=20)
    parser.add_argument("--leapfrogs", type=int, default=200, help="per trajectory")
    parser.add_argument("--warmup", type=int, default=5, help="trajectories before the grid")
    parser.add_argument("--step-sizes", type=float, nargs="+", default=STEP_SIZES)
    parser.add_argument("--epochs", type=int, default=100, help="steps of Adam before sampling")
    parser.add_argument("--smooth", action="store_true", dest="without_kinks", help="no thresholds")
    parser.add_argument("--folder", default=".", help="where the picture goes")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--quick", action="store_true", help="tiny images, seconds")
    given = vars(parser.parse_args())
    target_file = given.pop("json")
    given["step_sizes"] = tuple(given["step_sizes"])
    result = main(**given)
    if target_file:
        Path(target_file).write_text(json.dumps(result, indent=1) + "\n")

# %%
# This is the short run on 20 images of 8 x 8 pixels. With 100 images of 32 x 32 pixels the largest
# step size with a mean acceptance above 0.6 was 0.01 (:doc:`/developer/results`).
