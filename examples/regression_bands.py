"""Regression: bands that widen where there are no data
====================================================

One small network is fitted to points with a gap in the middle. A single trained network is equally
sure everywhere. A deep ensemble and the posterior, sampled by HMC, say that they do not know the
curve in the gap and beyond the points.

Run it with ``python examples/regression_bands.py``. It takes some ten seconds.
"""

import matplotlib.pyplot as plt
import numpy as np

import ribbit as rb

MEMBERS = 20  # networks in the ensemble
EPOCHS = 5_000  # passes over the data when training them
DRAWS = 300  # per chain of HMC

# %%
# The data
# --------
# The points follow a sine with noise of standard deviation (sd) 0.2. No point has an x between
# -0.7 and 0.5.

rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-2, -0.7, 40), rng.uniform(0.5, 2, 40)])[:, None]
y = np.sin(2.5 * x) + 0.2 * rng.normal(size=x.shape)
grid = np.linspace(-3, 3, 200)[:, None]

# %%
# The model
# ---------
# The network has one hidden layer of 20 tanh units. Each weight has a normal prior with mean 0 and
# sd 1, and the sd of the noise is known. Network, data, prior and likelihood together define the
# posterior.

target = rb.Posterior(
    rb.mlp(1, (20,), 1, activation="tanh"),
    x,
    y,
    prior=rb.Normal(1.0),
    likelihood=rb.Gaussian(0.2),
)

# %%
# Training
# --------
# :class:`ribbit.DeepEnsemble` trains networks from different starts. One member is an ordinary
# trained network.

schedule = rb.schedules.cosine(EPOCHS)  # the learning rate falls to zero
one = rb.DeepEnsemble(target, members=1, learning_rate=0.01, schedule=schedule)
many = rb.DeepEnsemble(target, members=MEMBERS, learning_rate=0.01, schedule=schedule)
trained = one.fit(EPOCHS, seed=0, progress=False)
ensemble = many.fit(EPOCHS, seed=0, progress=False)

# %%
# Sampling
# --------
# :class:`ribbit.HMC` draws networks from the posterior. Four chains from different starts check
# each other, and the summary says whether they agree.

draws = rb.HMC(target).sample(DRAWS, chains=4, seed=0, progress=False)
print(draws.summary(grid))

# %%
# The bands
# ---------
# The inner band is two sds of the function, and the outer band adds the noise of a new y. The
# single network has no inner band, because it is one function. The other two widen in the gap and
# outside the data. The ensemble is narrower there, because each of its members ends at a peak of
# the posterior.

runs = {
    "one trained network": trained,
    f"ensemble of {MEMBERS}": ensemble,
    "posterior (HMC)": draws,
}
figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), sharey=True, layout="constrained")
for ax, (name, run) in zip(axes, runs.items(), strict=True):
    rb.plots.regression_band(run.predict(grid), grid, (x, y), ax=ax)
    ax.set(title=name, ylim=(-3, 3), xlabel="x", ylabel="")
axes[0].set_ylabel("y")
figure.savefig("regression_bands.png", dpi=120)

# %%
# In numbers: the sd of the function at a point next to data, in the gap, and outside.

places = np.array([[1.0], [-0.1], [3.0]])
print(f"{'sd of the function':<22}{'x = 1':>8}{'x = -0.1':>10}{'x = 3':>8}")
for name, run in runs.items():
    sd = run.predict(places).epistemic_std[:, 0]
    print(f"{name:<22}{sd[0]:>8.2f}{sd[1]:>10.2f}{sd[2]:>8.2f}")
