"""Write your own sampling loop
============================

``sample`` runs the whole loop for you. If you need a loop of your own, for instance to stop on a
condition or to keep a running mean and no draws, use :class:`ribbit.Chains`. ``chains.copy()``
keeps a place to return to.

Run it with ``python examples/own_loop.py``. It takes some seconds.
"""

import matplotlib.pyplot as plt
import numpy as np

import ribbit as rb

STEPS = 400

# %%
# The target is a network of 20 tanh units, with a noise standard deviation that is learned.

x, y = rb.datasets.toy_regression(100, seed=0)
target = rb.Posterior(
    rb.mlp(1, (20,), 1, activation="tanh"), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian()
)

# %%
# Two chains move together. Each ``advance`` makes one trajectory of 100 leapfrog steps. It returns
# the positions (chains, 1, parameters) and statistics such as the acceptance rate.

hmc = rb.HMC(target, step_size=2e-3, num_leapfrog_steps=100)
chains = rb.Chains(hmc, chains=2, warmup=0, seed=0)
total, count = np.zeros(len(x)), 0
rates, values = [], []
for step in range(STEPS):
    positions, stats = chains.advance(1)
    rates.append(stats["acceptance_rate"][:, 0])
    values.append(stats["lp"][:, 0])
    if step >= STEPS // 2:  # the first half climbs to the posterior
        weights = positions[:, 0, : target.model.dim]
        total += target.model.apply(weights, x).mean(axis=0)[:, 0]
        count += 1
acceptance = float(np.mean(rates))
print(f"acceptance {acceptance:.2f}")

# %%
# The running mean is the posterior mean of the function at the data. The log density shows the
# warmup: both chains climb to the same level and stay there.

mean = total / count
rmse = float(np.sqrt(np.mean((mean - y.reshape(-1)) ** 2)))
print(f"RMSE on the data {rmse:.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(np.array(values), lw=1, label=["chain 1", "chain 2"])
left.set(xlabel="step", ylabel="log density")
left.set_ylim(np.quantile(values, 0.02) - 10)
left.legend(frameon=False)
order = np.argsort(x[:, 0])
right.plot(x, y, ".", color="0.5", label="data")
right.plot(x[order], mean[order], label="running mean")
right.set(xlabel="x", ylabel="y")
right.legend(frameon=False)
figure.savefig("own_loop.png", dpi=120)
