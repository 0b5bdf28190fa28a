"""Bands of HMC and of Bayes by Backprop
=====================================

``python examples/regression_bands.py``

Writes regression_bands.png: the same network on data with a gap, where a good posterior widens.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import ribbit as rb


def main(folder: str | Path = ".", scale: float = 1.0) -> Path:
    """Fit and draw; `scale` shortens the runs."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-2, -0.7, 40), rng.uniform(0.5, 2, 40)])[:, None]
    y = np.sin(2.5 * x) + 0.1 * rng.normal(size=x.shape)
    grid = np.linspace(-3, 3, 200)[:, None]
    target = rb.Posterior(
        rb.mlp(1, (50,), 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.1),
    )
    count = max(20, int(300 * scale))
    epochs = max(100, int(5000 * scale))
    hmc = rb.HMC(target, step_size=1.5e-3, num_leapfrog_steps=500)
    bbb = rb.BBB(target, schedule=rb.schedules.cosine(epochs))
    runs = {
        "HMC": hmc.sample(count, warmup=count, chains=4, seed=0, progress=False),
        "Bayes by Backprop": bbb.fit(epochs, seed=0, progress=False).draws(1000),
    }
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for ax, (name, draws) in zip(axes, runs.items(), strict=True):
        rb.plots.regression_band(draws.predict(grid), grid, (x, y), ax=ax)
        ax.set(title=name, ylim=(-3, 3), xlabel="x (dimensionless)", ylabel="y (dimensionless)")
    path = Path(folder) / "regression_bands.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")
    return path


if __name__ == "__main__":
    main()
