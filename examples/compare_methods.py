"""Five methods on one network
===========================

HMC, SGLD, Bayes by Backprop, MC dropout and a deep ensemble fit the same small network to the same
points. HMC is the reference, because its error shrinks with more draws. A table shows how close the
others come to it, and a picture shows where they differ.

Run it with ``python examples/compare_methods.py``. It takes some ten seconds.
"""

import matplotlib.pyplot as plt
import numpy as np

import ribbit as rb

DRAWS = 200  # per chain
EPOCHS = 4_000  # passes over the data
THIN = 100  # steps of SGLD for each draw
BATCH = 50  # rows in a batch

# %%
# Data and model
# --------------
# Two moons, 200 points to fit and 500 for the test. The network has 50 tanh units. MC dropout needs
# a dropout layer in the network, so it has a target of its own.

x, y = rb.datasets.two_moons(200, seed=0)
x_test, y_test = rb.datasets.two_moons(500, seed=1)


def posterior(*dropout: rb.Dropout) -> rb.Posterior:
    """Return the target of all methods, with or without a dropout layer."""
    layers = [rb.Dense(50), rb.Activation("tanh"), *dropout, rb.Dense(2)]
    model = rb.Model(layers, input_shape=(2,))
    return rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Categorical())


target = posterior()

# %%
# Sampling
# --------
# HMC uses all rows for each gradient and chooses its step size itself. SGLD uses a batch of rows,
# so a step is cheaper and its result is slightly biased. It keeps every 100th step.

runs = {}
runs["HMC"] = rb.HMC(target).sample(DRAWS, chains=4, seed=0, progress=False)
sgld = rb.SGLD(target, step_size=2e-3, batch_size=BATCH)
runs["SGLD"] = sgld.sample(DRAWS, warmup=4000, thin=THIN, chains=4, seed=0, progress=False)
for name, run in runs.items():
    print(f"{name}: {run.summary(x_test).outcome}")

# %%
# Training
# --------
# The other three methods are trained like ordinary networks: Bayes by Backprop learns a mean and a
# standard deviation for each weight, MC dropout keeps dropout on when it predicts, and the ensemble
# trains ten networks from different starts. The learning rate falls to zero.

common = {"batch_size": BATCH, "schedule": rb.schedules.cosine(EPOCHS * len(x) // BATCH)}
fits = {
    "Bayes by Backprop": rb.BBB(target, **common),
    "MC dropout": rb.MCDropout(posterior(rb.Dropout(0.1)), **common),
    "ensemble": rb.DeepEnsemble(target, members=10, **common),
}
for name, method in fits.items():
    runs[name] = method.fit(EPOCHS, seed=0, progress=False)
    print(f"{name}: {runs[name].summary().outcome}")

# %%
# The table
# ---------
# Agreement is the share of test points with the same label as under HMC. Total variation is the
# mean distance of the probabilities from HMC's, 0 to 1 (both as in Izmailov et al. 2021). The last
# three columns compare with the true labels: accuracy, negative log likelihood (NLL, in nats) and
# calibration error (ECE).

probs = {name: np.asarray(run.predict(x_test).probs) for name, run in runs.items()}
table = {}
print(f"{'method':<18}{'agreement':>10}{'total var.':>12}{'accuracy':>10}{'NLL':>8}{'ECE':>8}")
for name, p in probs.items():
    table[name] = row = {
        "agreement": rb.diagnostics.agreement(probs["HMC"], p),
        "total_variation": rb.diagnostics.total_variation(probs["HMC"], p),
        "accuracy": rb.metrics.accuracy(y_test, p),
        "nll": rb.metrics.nll(y_test, p),
        "ece": rb.metrics.ece(y_test, p),
    }
    print(
        f"{name:<18}{row['agreement']:>10.3f}{row['total_variation']:>12.3f}"
        f"{row['accuracy']:>10.3f}{row['nll']:>8.3f}{row['ece']:>8.3f}"
    )

# %%
# The picture
# -----------
# Colour is the probability of class 1, and the lines are at 0.1, 0.5 and 0.9. Near the points all
# five agree. They differ where the boundary leaves the points. There the region between the outer
# lines opens wide for HMC and SGLD and less for Bayes by Backprop. It hardly opens for MC dropout
# and the ensemble.

figure, axes = plt.subplots(2, 3, figsize=(11, 6.4), layout="constrained")
for ax, (name, run) in zip(axes.flat, runs.items(), strict=False):
    rb.plots.decision_boundary(run, x, y, ax=ax, margin=1.5)
    ax.set(title=name, xlabel="x[0]", ylabel="x[1]")
axes[1, 2].axis("off")
figure.savefig("compare_methods.png", dpi=100)
