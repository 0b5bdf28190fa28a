"""A sweep of the temperature
==========================

``python examples/cold_posteriors.py``

The whole posterior to the power 1/T (Wenzel et al. 2020): log density / T. Prints how the fit of
held-out points and the spread of the predictions move with T.
"""

from __future__ import annotations

import numpy as np

import ribbit as rb


def main(scale: float = 1.0) -> dict[float, dict[str, float]]:
    """Sample at four temperatures; `scale` shortens the runs."""
    x, y = rb.datasets.toy_regression(100, seed=0)
    x_test, y_test = rb.datasets.toy_regression(200, seed=1)
    count = max(20, int(200 * scale))
    table = {}
    print(f"{'T':>6}{'RMSE':>8}{'log lik.':>10}{'spread':>9}{'acceptance':>12}")
    for temperature in (0.1, 0.3, 1.0, 3.0):
        target = rb.Posterior(
            rb.mlp(1, (50,), 1, activation="tanh"),
            x,
            y,
            prior=rb.Normal(1.0),
            likelihood=rb.Gaussian(0.2),
            temperature=temperature,
        )
        hmc = rb.HMC(target, step_size="auto", num_leapfrog_steps=200)
        draws = hmc.sample(count, warmup=count, chains=4, seed=0, progress=False)
        p = draws.predict(x_test)
        row = {
            "rmse": rb.metrics.rmse(y_test, p.mean),
            "log_likelihood": p.log_likelihood(y_test),
            "spread": float(np.mean(p.epistemic_std)),
            "acceptance": float(np.mean(draws.stats["acceptance_rate"])),
        }
        table[temperature] = row
        print(
            f"{temperature:>6g}{row['rmse']:>8.3f}{row['log_likelihood']:>10.3f}"
            f"{row['spread']:>9.3f}{row['acceptance']:>12.2f}"
        )
    return table


if __name__ == "__main__":
    main()
