"""Extrapolation: four methods beyond the data
===========================================

Four years of a series are known, and the methods predict the next six years. MC dropout with relu
units and HMC become less sure with the distance. MC dropout with tanh units stays as sure as at the
end of the data, although it is wrong.

The question is from Gal and Ghahramani (2016, "Dropout as a Bayesian approximation", section 5.1),
who used CO2 measurements of Mauna Loa. Here the series is generated: a trend, a yearly cycle and
noise with standard deviation (sd) 0.08. All methods take the noise as known, with sd 0.1.

- **MC dropout**: four hidden layers of 100 relu or tanh units, with a dropout rate of 0.05
- **HMC**: two hidden layers of 50 tanh units and a normal prior with sd 0.3
- **Gaussian process**: squared exponential covariance, exact

Run it with ``python examples/dropout_extrapolation.py``. It takes half a minute.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import ribbit as rb

NOISE = 0.1
YEARS, FUTURE = 4.0, 10.0


# %%
# The series and the networks
# ---------------------------
# The inputs of the networks are half years, counted from the middle of the data.


def truth(t: np.ndarray) -> np.ndarray:
    """Return a trend and a yearly cycle; t in years."""
    return 0.4 * (t - YEARS / 2) + 0.5 * np.sin(2 * np.pi * t)


def inputs(t: np.ndarray) -> np.ndarray:
    """Half years from the middle of the data, (N, 1)."""
    return 2 * (t - YEARS / 2)[:, None]


def posterior(t, y, widths, activation, prior, *, dropout: bool = False) -> rb.Posterior:
    """Return that of a network of one input; with dropout behind each hidden layer."""
    layers = []
    for width in widths:
        layers += [rb.Dense(width), rb.Activation(activation)]
        layers += [rb.Dropout(0.05)] if dropout else []
    model = rb.Model([*layers, rb.Dense(1)], input_shape=(1,))
    x = inputs(t)
    return rb.Posterior(model, x, y[:, None], prior=prior, likelihood=rb.Gaussian(NOISE))


# %%
# The Gaussian process
# --------------------
# It has a closed form. Height and length of its covariance maximise the likelihood on a grid.


def gaussian_process(t, y, grid) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd (G,) of the function; height and length of the covariance by the likelihood."""

    def covariance(a, b, height, length):
        return height**2 * np.exp(-0.5 * ((a[:, None] - b) / length) ** 2)

    best = (-np.inf,)
    for height in (0.25, 0.5, 1.0, 2.0):
        for length in (0.1, 0.15, 0.2, 0.3, 0.5, 1.0):
            lower = np.linalg.cholesky(covariance(t, t, height, length) + NOISE**2 * np.eye(len(t)))
            white = np.linalg.solve(lower, y)
            evidence = -0.5 * white @ white - np.log(np.diag(lower)).sum()
            if evidence > best[0]:
                best = (evidence, height, length, lower, white)
    _, height, length, lower, white = best
    across = np.linalg.solve(lower, covariance(t, grid, height, length))  # (N, G)
    return across.T @ white, np.sqrt(np.maximum(height**2 - (across**2).sum(0), 0))


# %%
# Fits and picture
# ----------------
# The table has the sd of the function inside the data and one, three and six years later. "Inside"
# is the share of the true curve beyond the data that lies within two sds of the mean, with noise.


def main(folder: str | Path = ".", scale: float = 1.0) -> dict[str, dict[str, float]]:
    """Fit and draw; `scale` shortens the runs. The sds are those of the function."""
    rng = np.random.default_rng(0)
    t = rng.uniform(0, YEARS, 200)
    y = truth(t) + 0.08 * rng.normal(size=t.shape)
    grid = np.linspace(0, FUTURE, 401)
    epochs, count = int(3000 * scale), max(20, int(300 * scale))
    found = {}
    for activation in ("relu", "tanh"):
        target = posterior(t, y, (100,) * 4, activation, rb.Normal(1.0), dropout=True)
        schedule = rb.schedules.cosine(epochs * 4)  # four batches of 50 an epoch
        fit = rb.MCDropout(target, batch_size=50, schedule=schedule)
        with warnings.catch_warnings():
            # The objective still rises at the end, from -141.5 to -141.3 nats per row.
            warnings.simplefilter("ignore", rb.errors.FitWarning)
            draws = fit.fit(epochs, seed=0, progress=False).draws(200, masks="shared")
        found[f"MC dropout, {activation}"] = draws.predict(inputs(grid))
    hmc = rb.HMC(posterior(t, y, (50, 50), "tanh", rb.Normal(0.3)))
    draws = hmc.sample(count, warmup=count, chains=2, seed=0, progress=False)
    found["HMC, tanh"] = draws.predict(inputs(grid))
    bands = {name: (p.mean[:, 0], p.epistemic_std[:, 0]) for name, p in found.items()}
    bands["Gaussian process"] = gaussian_process(t, y, grid)

    figure, axes = plt.subplots(2, 2, figsize=(11, 6), sharex=True, sharey=True, layout="tight")
    table = {}
    print(
        f"{'sd of the function':<20}{'in data':>9}{'1 year':>9}{'3 years':>9}{'6 years':>9}", end=""
    )
    print(f"{'RMSE in data':>15}{'inside':>9}")
    for ax, (name, (mean, sd)) in zip(axes.flat, bands.items(), strict=True):
        inside, behind = grid < YEARS, grid > YEARS
        error = np.abs(mean - truth(grid))
        row = {"in data": float(sd[inside].mean())}
        for years in (1, 3, 6):
            row[f"{years} years"] = float(np.interp(YEARS + years, grid, sd))
        row["rmse"] = float(np.sqrt(np.mean(error[inside] ** 2)))
        row["inside"] = float(np.mean(error[behind] < 2 * np.hypot(sd[behind], NOISE)))
        table[name] = row
        print(f"{name:<20}" + "".join(f"{value:>9.3f}" for value in list(row.values())[:4]), end="")
        print(f"{row['rmse']:>15.3f}{row['inside']:>9.0%}")
        ax.plot(t, y, ".", color="0.5", markersize=3, label="data")
        ax.plot(grid, truth(grid), color="0.2", linewidth=0.8, linestyle=":", label="truth")
        (line,) = ax.plot(grid, mean, label="mean")
        for k in (1, 2):
            ax.fill_between(
                grid, mean - k * sd, mean + k * sd, color=line.get_color(), alpha=0.2, linewidth=0
            )
        ax.axvline(YEARS, color="0.4", linewidth=0.8, linestyle="--")
        ax.set(title=name, ylim=(-4, 6))
    axes[0, 0].legend(frameon=False, loc="upper left")
    for ax in axes[-1]:
        ax.set_xlabel("years")
    figure.supylabel("series; bands: one and two sds of the function", fontsize="medium")
    path = Path(folder) / "dropout_extrapolation.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")
    return table


if __name__ == "__main__":
    main()

# %%
# What it shows
# -------------
# With relu units the sd of MC dropout grows in proportion to the distance, because the masks change
# slopes. Any posterior of a relu network does this, so it is no merit of dropout. Tanh units
# saturate soon after the data end, and then the sd stays constant at any distance.
#
# The Gaussian process returns to its prior: mean zero and a constant sd. The sd of HMC grows for
# some years and then more slowly. No method knows about cycles or trends, so none predicts the
# future. A method can only say that it is unsure, and MC dropout with tanh units does not.
