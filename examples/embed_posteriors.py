"""Use a sampler of the package posteriors
=======================================

The PyTorch package posteriors has samplers of its own. Here its SGHMC samples a target of Ribbit:
Ribbit computes the log density and its gradient, and posteriors makes the moves. The target is a
linear regression, so the result can be compared with the exact posterior.

Run it with ``python examples/embed_posteriors.py``. It needs PyTorch and posteriors.
"""

import matplotlib.pyplot as plt
import numpy as np
import posteriors
import torch

import ribbit as rb
import ribbit.torch

STEPS = 5000
NOISE, PRIOR_SD = 1.0, 1.0

# %%
# The target
# ----------
# A linear layer on four waves of x: sines and cosines. Its posterior is normal and known.

rng = np.random.default_rng(0)
x = rng.uniform(-np.pi, np.pi, size=(60, 1))
y = np.sin(x) + NOISE * rng.normal(size=x.shape)
features = np.hstack([np.sin(x), np.cos(x), np.sin(2 * x), np.cos(2 * x)])
target = rb.Posterior(
    rb.Model([rb.Dense(1, bias=False)], input_shape=(4,)),
    features,
    y,
    prior=rb.Normal(PRIOR_SD),
    likelihood=rb.Gaussian(NOISE),
    dtype=np.float64,
)

# %%
# The sampler
# -----------
# :func:`ribbit.torch.torch_log_density` is a function that ``torch.func`` differentiates, which is
# all that posteriors needs.

log_density = rb.torch.torch_log_density(target)
sampler = posteriors.sgmcmc.sghmc.build(
    lambda theta, batch: (log_density(theta), torch.empty(0)), lr=0.02, alpha=5.0
)
torch.manual_seed(0)
state, draws = sampler.init(torch.from_numpy(target.init(seed=0))), []
for _ in range(STEPS):
    state, _ = sampler.update(state, None)
    draws.append(state.params)
found = torch.stack(draws[STEPS // 10 :]).numpy()

# %%
# The comparison
# --------------

covariance = np.linalg.inv(features.T @ features / NOISE**2 + np.eye(4) / PRIOR_SD**2)
exact, sd = covariance @ features.T @ y.reshape(-1) / NOISE**2, np.sqrt(np.diag(covariance))
error = float(np.abs((found.mean(axis=0) - exact) / sd).max())
spread = float(np.abs(found.std(axis=0) / sd - 1.0).max())
print(f"means within {error:.2f} sd of the exact ones, sds within {spread:.0%}")

figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
ax.errorbar(np.arange(4) - 0.1, exact, 2 * sd, fmt="ks", capsize=4, label="exact")
mean, deviation = found.mean(axis=0), found.std(axis=0)
ax.errorbar(np.arange(4) + 0.1, mean, 2 * deviation, fmt="o", capsize=4, label="SGHMC")
ax.set_xticks(range(4), ["sin x", "cos x", "sin 2x", "cos 2x"])
ax.set(ylabel="weight: mean and 2 sd")
ax.legend(frameon=False)
figure.savefig("embed_posteriors.png", dpi=120)

# %%
# The recorded output::
#
#     means within 0.09 sd of the exact ones, sds within 14%
#
# .. image:: /_static/gallery/embed_posteriors.png
#    :alt: Mean and two sds of four weights: SGHMC next to the exact ones, nearly the same.

# sphinx_gallery_thumbnail_path = "_static/gallery/embed_posteriors.png"
