"""A Ribbit posterior under the SGHMC of posteriors
================================================

``python examples/embed_posteriors.py``

posteriors samples what ``torch.func`` differentiates. The log density and its gradient are Ribbit's
own, computed by the native core; the sampler, its state and its noise are posteriors'.
"""

from __future__ import annotations

import numpy as np
import posteriors
import torch

import ribbit as rb
import ribbit.torch


def main(num_steps: int = 5000) -> dict[str, float]:
    noise, prior_sd = 1.0, 1.0
    rng = np.random.default_rng(0)
    x = rng.uniform(-np.pi, np.pi, size=(60, 1))
    y = np.sin(x) + noise * rng.normal(size=x.shape)
    # One layer on waves of x: its posterior is known.
    features = np.hstack([np.sin(x), np.cos(x), np.sin(2 * x), np.cos(2 * x)])
    target = rb.Posterior(
        rb.Model([rb.Dense(1, bias=False)], input_shape=(4,)),
        features,
        y,
        prior=rb.Normal(prior_sd),
        likelihood=rb.Gaussian(noise),
        dtype=np.float64,
    )
    log_density = rb.torch.torch_log_density(target)
    sampler = posteriors.sgmcmc.sghmc.build(
        lambda theta, batch: (log_density(theta), torch.empty(0)), lr=0.02, alpha=5.0
    )
    torch.manual_seed(0)
    state, draws = sampler.init(torch.from_numpy(target.init(seed=0))), []
    for _ in range(num_steps):
        state, _ = sampler.update(state, None)
        draws.append(state.params)
    found = torch.stack(draws[num_steps // 10 :]).numpy()

    covariance = np.linalg.inv(features.T @ features / noise**2 + np.eye(4) / prior_sd**2)
    exact, sd = covariance @ features.T @ y.reshape(-1) / noise**2, np.sqrt(np.diag(covariance))
    error = float(np.abs((found.mean(axis=0) - exact) / sd).max())
    spread = float(np.abs(found.std(axis=0) / sd - 1.0).max())
    print(f"means within {error:.2f} sd of the exact ones, sds within {spread:.0%}")
    return {"error": error, "spread": spread}


if __name__ == "__main__":
    main()
