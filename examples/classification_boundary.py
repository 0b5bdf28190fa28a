"""Two moons: a trained network and its posterior
==============================================

``python examples/classification_boundary.py``

Writes classification_boundary.png: a trained network (MAP) is sure of itself everywhere, the
posterior only near the data.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import ribbit as rb


def main(folder: str | Path = ".", scale: float = 1.0) -> Path:
    """Fit and draw; `scale` shortens the runs."""
    x, y = rb.datasets.two_moons(150, seed=0)
    target = rb.Posterior(
        rb.mlp(2, (50,), 2, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Categorical(),
    )
    ensemble = rb.DeepEnsemble(target, members=1, batch_size=50, learning_rate=5e-3)
    count = max(20, int(300 * scale))
    hmc = rb.HMC(target, step_size=0.01, num_leapfrog_steps=150)
    runs = {
        "one network (MAP)": ensemble.fit(
            max(100, int(1000 * scale)), seed=0, progress=False
        ).draws(),
        "posterior (HMC)": hmc.sample(count, warmup=count, chains=4, seed=0, progress=False),
    }
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for ax, (name, draws) in zip(axes, runs.items(), strict=True):
        rb.plots.decision_boundary(draws, x, y, ax=ax, margin=1.5)
        ax.set(title=name, xlabel="x[0] (dimensionless)", ylabel="x[1] (dimensionless)")
    figure.suptitle("probability of class 1; lines at 0.1, 0.5 and 0.9", fontsize="medium")
    path = Path(folder) / "classification_boundary.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")
    return path


if __name__ == "__main__":
    main()
