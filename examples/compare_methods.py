"""One network, five ways
======================

``python examples/compare_methods.py``

HMC is taken as the truth; the others are compared with it by the agreement of their labels and
the total variation of their probabilities (Izmailov et al. 2021, section 5), and by their
calibration on held-out points.
"""

from __future__ import annotations

import numpy as np

import ribbit as rb


def main(scale: float = 1.0) -> dict[str, dict[str, float]]:
    """Fit two moons; `scale` shortens every run."""
    x, y = rb.datasets.two_moons(200, seed=0)
    x_test, y_test = rb.datasets.two_moons(500, seed=1)

    def posterior(*, dropout: bool = False) -> rb.Posterior:
        layers = [rb.Dense(50), rb.Activation("tanh")]
        if dropout:
            layers.append(rb.Dropout(0.1))
        model = rb.Model([*layers, rb.Dense(2)], input_shape=(2,))
        return rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Categorical())

    target = posterior()
    count = max(20, int(200 * scale))
    epochs = max(50, int(1000 * scale))
    hmc = rb.HMC(target, step_size=0.01, num_leapfrog_steps=150)
    runs = {
        "HMC": hmc.sample(count, warmup=count, chains=4, seed=0, progress=False),
        "SGLD": rb.SGLD(target, step_size=2e-3, batch_size=50).sample(
            count, warmup=20 * count, thin=20, chains=4, seed=0, progress=False
        ),
        "BBB": rb.BBB(target, batch_size=50).fit(epochs, seed=0, progress=False).draws(400),
        "MC dropout": rb.MCDropout(posterior(dropout=True), batch_size=50)
        .fit(epochs, seed=0, progress=False)
        .draws(400),
        "ensemble": rb.DeepEnsemble(target, members=10, batch_size=50)
        .fit(epochs, seed=0, progress=False)
        .draws(),
    }
    probs = {name: np.asarray(draws.predict(x_test).probs) for name, draws in runs.items()}
    truth = probs["HMC"]
    table = {}
    print(f"{'method':<12}{'agreement':>10}{'total var.':>12}{'accuracy':>10}{'NLL':>8}{'ECE':>8}")
    for name, p in probs.items():
        row = {
            "agreement": rb.diagnostics.agreement(truth, p),
            "total_variation": rb.diagnostics.total_variation(truth, p),
            "accuracy": rb.metrics.accuracy(y_test, p),
            "nll": rb.metrics.nll(y_test, p),
            "ece": rb.metrics.ece(y_test, p),
        }
        table[name] = row
        print(
            f"{name:<12}{row['agreement']:>10.3f}{row['total_variation']:>12.3f}"
            f"{row['accuracy']:>10.3f}{row['nll']:>8.3f}{row['ece']:>8.3f}"
        )
    return table


if __name__ == "__main__":
    main()
