"""A sampler of your own around init and step
==========================================

``python examples/own_loop.py``

``step`` is pure: it never changes its argument, so a state can be kept, compared or gone back to.
"""

from __future__ import annotations

import numpy as np

import ribbit as rb


def main(num_draws: int = 300) -> dict[str, float]:
    x, y = rb.datasets.toy_regression(100, seed=0)
    target = rb.Posterior(
        rb.mlp(1, (20,), 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(),
    )
    hmc = rb.HMC(target, step_size=2e-3, num_leapfrog_steps=100)
    state = hmc.init(target.init(seed=0, chains=2), seed=0)
    total, count, rates = np.zeros(len(x)), 0, []
    for draw in range(num_draws):
        state, info = hmc.step(state)
        rates.append(info["acceptance_rate"])
        if draw >= num_draws // 2:  # keep a running mean only: no draws in memory
            total += target.model.apply(state.position[:, : target.model.dim], x).mean(axis=0)[:, 0]
            count += 1
    error = float(np.sqrt(np.mean((total / count - y.reshape(-1)) ** 2)))
    print(f"acceptance {np.mean(rates):.2f}, RMSE on the data {error:.3f}")
    return {"acceptance": float(np.mean(rates)), "rmse": error}


if __name__ == "__main__":
    main()
