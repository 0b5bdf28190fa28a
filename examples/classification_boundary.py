"""Classification: less sure where the points end
==============================================

Two classes of points form two moons. A trained network leaves a narrow strip of doubt between the
classes, equally narrow far from all points. The posterior, sampled by HMC, is less sure where the
boundary leaves the points.

Run it with ``python examples/classification_boundary.py``. It takes some seconds.
"""

import matplotlib.pyplot as plt
import numpy as np

import ribbit as rb

EPOCHS = 2_000  # passes over the data when training
DRAWS = 200  # per chain of HMC

# %%
# Data and model
# --------------
# The network has two inputs, 50 tanh units and one output per class. The likelihood
# :class:`ribbit.Categorical` is the softmax of the outputs, so training minimises the cross entropy
# (with weight decay from the prior).

x, y = rb.datasets.two_moons(150, seed=0)
target = rb.Posterior(
    rb.mlp(2, (50,), 2, activation="tanh"),
    x,
    y,
    prior=rb.Normal(1.0),
    likelihood=rb.Categorical(),
)

# %%
# One trained network
# -------------------
# An ensemble with one member is an ordinary network, trained to a peak of the posterior (MAP).

steps = 2 * EPOCHS  # two batches in each epoch
one = rb.DeepEnsemble(target, members=1, schedule=rb.schedules.cosine(steps), learning_rate=0.01)
trained = one.fit(EPOCHS, seed=0, progress=False)

# %%
# The posterior
# -------------
# HMC draws many networks that all fit the points. The summary says whether its chains agree.

draws = rb.HMC(target).sample(DRAWS, chains=4, seed=0, progress=False)
print(draws.summary(x))

# %%
# The picture
# -----------
# Colour is the probability of class 1, and the lines are at 0.1, 0.5 and 0.9. The region between
# the outer lines is narrow for one network. For the posterior it opens like a fan where the
# boundary leaves the points, because the sampled networks disagree there. Above and below the
# points, all of them agree without any data. So a sure answer does not prove that data are near.

runs = {"one network (MAP)": trained, "posterior (HMC)": draws}
figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
for ax, (name, run) in zip(axes, runs.items(), strict=True):
    rb.plots.decision_boundary(run, x, y, ax=ax, margin=1.5)
    ax.set(title=name, xlabel="x[0]", ylabel="x[1]")
figure.savefig("classification_boundary.png", dpi=120)

# %%
# In numbers: the share of a square of side 8 where no class has a probability above 0.9.

square = np.random.default_rng(0).uniform(-4, 4, size=(4000, 2))
for name, run in runs.items():
    unsure = np.asarray(run.predict(square).probs).max(axis=1) < 0.9
    print(f"{name:<20}{unsure.mean():.0%} of the square is unsure")
