"""Small targets for the tests of the samplers; every array library, no network."""

from __future__ import annotations

import numpy as np

import ribbit as rb
from ribbit.protocols import PredictiveTerms

SDS = [1.0, 2.0, 0.5]
START = np.array([[0.3, -1.0, 0.2], [0.0, 0.5, 0.0]])  # (C, P): two chains on a Gaussian(SDS)


class Gaussian:
    """Independent normals with sds `sd`; only ``dim`` and ``value_and_grad`` are required."""

    def __init__(self, sd, xp=np, dtype=np.float64):
        self.array_namespace, self.dtype = xp, np.dtype(dtype)
        self.sd = xp.asarray(np.asarray(sd, dtype=dtype))
        self.dim = int(self.sd.shape[0])
        self.calls = 0

    def value_and_grad(self, theta, rows=None):
        xp = self.array_namespace
        self.calls += 1
        scaled = theta / self.sd
        return -0.5 * xp.sum(scaled * scaled, axis=1), -scaled / self.sd


class Line(Gaussian):
    """Gaussian prior on the P weights of y = x @ theta, with predictions."""

    kind = "regression"
    noise = 0.5

    def init(self, seed=0, chains=None):
        ids = np.arange(chains) if isinstance(chains, int) else np.asarray(chains)
        start = 0.1 * np.cos(ids[:, None] + np.arange(self.dim) + seed)
        return self.array_namespace.asarray(start.astype(self.dtype))

    def outputs(self, theta, x):
        xp = self.array_namespace  # no matmul: BLAS rounds by the shape of the whole call
        product = theta[:, None, :] * x[None, :, :]
        return xp.sum(product, axis=-1, keepdims=True)

    def predictive(self, theta, x):
        xp = self.array_namespace
        noise = xp.full((1, 1, 1), self.noise, dtype=theta.dtype)
        return PredictiveTerms(mean=self.outputs(theta, x), noise_sd=noise)

    def log_likelihood(self, theta, x, y):
        xp = self.array_namespace
        residual = (y[None, :, :] - self.outputs(theta, x)) / self.noise
        constant = np.log(self.noise) + 0.5 * np.log(2 * np.pi)
        value = xp.sum(-0.5 * residual * residual - float(constant), axis=-1)
        return xp.astype(value, xp.float64)

    def describe(self):
        return {"test": "line"}


class Classes(Line):
    """Two or more classes from theta reshaped to (K, features)."""

    kind = "classification"

    def __init__(self, sd, classes, *, binary=False):
        super().__init__(sd)
        self.classes, self.binary = classes, binary

    def predictive(self, theta, x):
        logits = np.einsum("skf,nf->snk", theta.reshape(len(theta), self.classes, -1), x)
        if self.binary:
            return PredictiveTerms(probs=1 / (1 + np.exp(-logits)), binary=True)
        e = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return PredictiveTerms(probs=e / e.sum(axis=-1, keepdims=True))

    def outputs(self, theta, x):
        return np.einsum("skf,nf->snk", theta.reshape(len(theta), self.classes, -1), x)

    def log_likelihood(self, theta, x, y):
        return np.log(self.predictive(theta, x).probs[:, np.arange(len(y)), y])


class Scripted(Gaussian):
    """A native trajectory that returns what the test wants, to reach every branch."""

    interruptible = True

    def __init__(self, dim, end, dtype=np.float64):
        super().__init__(np.ones(dim), dtype=dtype)
        self.end = end

    def leapfrog(
        self, position, momentum, grad, step_size, num_steps, *, inverse_mass=None, interrupt=None
    ):
        q, p = position + 0.25, momentum.copy()
        terms, g = -0.5 * np.sum(q**2, axis=1, dtype=np.float64)[:, None], -q
        return self.end(q, p, terms, g)


def state_of(chains):
    """The state of `rb.Chains` of HMC or NUTS."""
    return rb.samplers.State(chains.save())


def same(a, b):
    """Whether two arrays of any library hold the same bits."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def equal(a, b, chains=slice(None), rows=slice(None)):
    """The draws and statistics of b are those chains and rows of a, bit for bit."""
    assert same(a.positions[chains, rows], b.positions)
    thinned = {"divergences"} - set(a.stats)  # counts those of steps that b has not kept
    assert set(a.stats) == set(b.stats) - thinned
    for name in a.stats:
        assert same(a.stats[name][chains, rows], b.stats[name]), name


def posterior(dtype=np.float32, **temperatures):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 3))
    return rb.Posterior(
        rb.mlp(3, (9,), 1, activation="tanh"),
        x,
        np.sin(x[:, 0]) + 0.1 * rng.normal(size=70),
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(0.2),
        dtype=dtype,
        **temperatures,
    )


TARGETS = {"network": posterior, "python": lambda: Line([1.0, 2.0, 0.3], dtype=np.float32)}
OPTIONS = {
    "fixed": {"step_size": 0.02, "num_leapfrog_steps": 6},
    "adapted": {
        "step_size": "auto",
        "inverse_mass_matrix": "adapt",
        "step_size_jitter": 0.1,
        "trajectory_length": 0.2,
    },
}


def same_density(found, expected):
    """Values and gradients under the same masks are alike."""
    theta = np.random.default_rng(4).normal(size=expected.dim)
    pairs = zip(
        found.masked_value_and_grad(theta, seed=1, step=2),
        expected.masked_value_and_grad(theta, seed=1, step=2),
        strict=True,
    )
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-12)


class Foreign:
    """The same density without native steps."""

    def __init__(self, inner):
        self.inner, self.dim = inner, inner.dim
        self.dtype, self.num_rows = inner.dtype, inner.num_rows

    def value_and_grad(self, theta, rows=None):
        return self.inner.value_and_grad(theta, rows=rows)
