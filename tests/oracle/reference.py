"""The oracle: a slow, obvious float64 NumPy statement of what the native code must compute.

Written from the specification alone and sharing no code with the package, it judges every other
implementation. ``test_reference.py`` judges the oracle itself: against central differences, the
densities of ``scipy.stats`` and the published known answers of Random123.

Shapes: C chains, P parameters, N data rows, K network outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tests.oracle.activation_reference import ACTIVATIONS, activation, sigmoid, softplus
from tests.oracle.layer_reference import backward, network

__all__ = ["ACTIVATIONS", "activation", "network", "sigmoid", "softplus"]

# --- Philox4x32-10 (Salmon et al. 2011, section 3.3) ---------------------------------------------

MASK32 = np.uint64(0xFFFFFFFF)
MOMENTUM, ACCEPT, JITTER, INIT, WEIGHT_NOISE = 1, 2, 3, 4, 5


def philox4x32(counters, key, rounds=10):
    """Random words (n, 4) uint32 of the counters (n, 4) under the key (2,)."""
    c0, c1, c2, c3 = (np.asarray(counters, np.uint64)[:, i] for i in range(4))
    k0, k1 = (np.uint64(int(k)) for k in key)
    for _ in range(rounds):
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (product1 >> np.uint64(32)) ^ c1 ^ k0,
            product1 & MASK32,
            (product0 >> np.uint64(32)) ^ c3 ^ k1,
            product0 & MASK32,
        )
        k0 = (k0 + np.uint64(0x9E3779B9)) & MASK32
        k1 = (k1 + np.uint64(0xBB67AE85)) & MASK32
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def words(blocks, *, seed, step, chain, purpose, layer=0):
    """Words (len(blocks), 4) at one address: c0 = block, c1 and c3 = step, c2 = chain."""
    blocks = np.asarray(blocks, np.uint64)
    counters = np.empty((blocks.size, 4), np.uint64)
    counters[:, 0] = blocks
    counters[:, 1] = step & 0xFFFFFFFF
    counters[:, 2] = chain
    counters[:, 3] = purpose << 24 | layer << 8 | (step >> 32 & 0xFF)
    return philox4x32(counters, (seed & 0xFFFFFFFF, seed >> 32))


def normal(n, *, seed, step, chain, purpose, layer=0):
    """Normals (n,): element e is normal e % 4 of block e // 4 (Box and Muller 1958)."""
    w = words(
        np.arange(-(-n // 4)), seed=seed, step=step, chain=chain, purpose=purpose, layer=layer
    )
    u = (w + 0.5) * 2.0**-32
    radius, angle = np.sqrt(-2 * np.log(u[:, ::2])), 2 * np.pi * u[:, 1::2]
    z = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2)  # (blocks, 2, 2)
    return z.reshape(-1)[:n]


def uniform(n, *, seed, step, chain, purpose, layer=0):
    """Uniforms (n,) in (0, 1), 53 bits: element e from words 2 (e % 2) and the next of e // 2."""
    w = words(
        np.arange(-(-n // 2)), seed=seed, step=step, chain=chain, purpose=purpose, layer=layer
    )
    high, low = (w[:, ::2] >> 5).astype(np.float64), (w[:, 1::2] >> 6).astype(np.float64)
    u = (high * 2.0**26 + low + 0.5) * 2.0**-53  # 27 + 26 bits; the half rounds as doubles do
    return np.minimum(u, 1 - 2.0**-53).reshape(-1)[:n]


# --- priors: log density and its derivative, per parameter ---------------------------------------

LOG_2PI = math.log(2 * math.pi)
_lgamma = np.vectorize(math.lgamma, otypes=[float])
PRIORS = ("normal", "laplace", "studentt", "logistic", "scalemixture")  # by kind
SCALE_PRIORS = ("gammaprecision", "halfnormal", "halfcauchy")  # of a log scale, the kinds behind


def log_prior_terms(kind, a, b, c, x):
    """Normalised log density and derivative of one prior segment, each of the shape of x."""
    name = (PRIORS + SCALE_PRIORS)[int(kind)]
    if name in SCALE_PRIORS:
        return log_scale_prior_terms(name, a, b, x)
    if name == "normal":
        return -0.5 * (x / a) ** 2 - math.log(a) - 0.5 * LOG_2PI, -x / a**2
    if name == "laplace":
        return -np.abs(x) / a - math.log(2 * a), -np.sign(x) / a
    if name == "studentt":
        constant = math.lgamma((a + 1) / 2) - math.lgamma(a / 2) - 0.5 * math.log(a * math.pi)
        t = x / b
        return (
            constant - math.log(b) - 0.5 * (a + 1) * np.log1p(t**2 / a),
            -(a + 1) * t / (a + t**2) / b,
        )
    if name == "logistic":
        t = x / a
        return -np.abs(t) - 2 * np.log1p(np.exp(-np.abs(t))) - math.log(a), -np.tanh(t / 2) / a
    first = math.log(a) - 0.5 * (x / b) ** 2 - math.log(b) - 0.5 * LOG_2PI
    second = math.log1p(-a) - 0.5 * (x / c) ** 2 - math.log(c) - 0.5 * LOG_2PI
    total = np.logaddexp(first, second)
    weight1, weight2 = np.exp(first - total), np.exp(second - total)
    return total, -x * (weight1 / b**2 + weight2 / c**2)


def log_scale_prior_terms(name, a, b, u):
    """The same of u = log tau: the density of tau, times its Jacobian d tau / d u = tau."""
    tau = np.exp(u)
    if name == "gammaprecision":  # lambda = tau^-2 ~ Gamma(a, b), |d lambda / d u| = 2 lambda
        precision = tau**-2.0
        density = a * math.log(b) - math.lgamma(a) + (a - 1) * np.log(precision) - b * precision
        return density + np.log(2 * precision), -2 * a + 2 * b * precision
    if name == "halfnormal":
        density = math.log(2) - 0.5 * (tau / a) ** 2 - math.log(a) - 0.5 * LOG_2PI
        return density + u, 1 - (tau / a) ** 2
    square = (tau / a) ** 2  # half-Cauchy
    density = math.log(2 / (math.pi * a)) - np.log1p(square)
    return density + u, 1 - 2 * square / (1 + square)


# --- likelihoods: log density per row and its derivative in the outputs --------------------------

LIKELIHOODS = ("gaussian", "learned", "heteroscedastic", "categorical", "bernoulli", "poisson")
LIKELIHOODS += ("studentt", "studentt-learned", "heteroscedastic-floored")


def learns_noise(kind):
    return LIKELIHOODS[kind].endswith("learned")


def log_likelihood_terms(kind, scale, f, y, log_noise=0.0, shape=0.0):
    """Log density (N,), derivative (N, K) in the outputs f and (N,) or (N, K) in log_noise.

    scale: of the noise, where it is known; shape: what else a likelihood has a constant for. scale
    and log_noise are () for all outputs, or (K,).
    """
    name = LIKELIHOODS[kind]
    scale = np.exp(log_noise) if learns_noise(kind) else np.asarray(scale)
    nothing = np.zeros(len(f))

    def by_noise(slope):
        return slope if np.ndim(log_noise) else np.sum(slope, axis=1)

    if name in ("gaussian", "learned"):
        r = (y - f) / scale
        value = np.sum(-0.5 * r**2 - np.log(scale) - 0.5 * LOG_2PI, axis=1)
        slope = by_noise(r**2 - 1) if name == "learned" else nothing
        return value, r / scale, slope
    if name.startswith("studentt"):
        t = (y - f) / scale
        constant = _lgamma((shape + 1) / 2) - _lgamma(shape / 2) - 0.5 * math.log(shape * math.pi)
        value = constant - np.log(scale) - 0.5 * (shape + 1) * np.log1p(t**2 / shape)
        pull = (shape + 1) * t / (shape + t**2)
        slope = by_noise(t * pull - 1) if learns_noise(kind) else nothing
        return np.sum(value, axis=1), pull / scale, slope
    if name.startswith("heteroscedastic"):
        mean, raw = np.split(f, 2, axis=1)
        floor = shape if name.endswith("floored") else 0.0
        sd = np.sqrt(floor**2 + softplus(raw) ** 2)
        r = (y - mean) / sd
        value = np.sum(-0.5 * r**2 - np.log(sd) - 0.5 * LOG_2PI, axis=1)
        slope = (r**2 - 1) * softplus(raw) / sd**2 * sigmoid(raw)
        return value, np.concatenate([r / sd, slope], axis=1), nothing
    if name == "categorical":
        shifted = f - f.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
        hit = np.arange(f.shape[1]) == y.astype(int)
        return np.sum(np.where(hit, log_p, 0), axis=1), hit - np.exp(log_p), nothing
    if name == "bernoulli":
        return np.sum(y * f - softplus(f), axis=1), y - sigmoid(f), nothing
    rate = np.exp(f)
    return np.sum(y * f - rate - _lgamma(y + 1), axis=1), y - rate, nothing


# --- the layer table -----------------------------------------------------------------------------


def padded(rows):
    """Rows op, in, out, weight offset, bias offset, arg, layer index, input value as a table."""
    tail = (-1, -1, *15 * (0,))  # second value, third offset, no window, no number
    return np.array([(*row, *tail) for row in rows], np.int64).reshape(-1, 25)


def mlp_table(num_in, hidden, num_out, name):
    """Layer table (R, 25) int64, and P."""
    rows, offset, width = [], 0, num_in
    for i, out in enumerate((*hidden, num_out)):
        r = len(rows)
        rows.append((0, width, out, offset, offset + width * out, 0, r, r))
        offset += width * out + out
        if i < len(hidden):
            rows.append((1, out, out, -1, -1, ACTIVATIONS.index(name), r + 1, r + 1))
        width = out
    return padded(rows), offset


@dataclass(frozen=True)
class Target:
    """The posterior of a network: the layer table, the prior table, a likelihood and data.

    centre: (P,), what the prior is about; 0 where there is none. noises: how many log noises are
    learned, where any are: 1 for all outputs, or K.
    """

    table: np.ndarray  # (R, 25)
    prior: np.ndarray  # (G, 6): offset, size, kind, a, b, c
    kind: int
    x: np.ndarray  # (N, D)
    y: np.ndarray  # (N, Ky)
    scale: np.ndarray | float = 1.0
    shape: float = 0.0
    temperature: float = 1.0
    likelihood_temperature: float = 1.0
    centre: np.ndarray | float = 0.0
    noises: int = 1

    @property
    def dim(self):
        return int(np.sum(self.prior[:, 1]))

    def log_prior(self, theta):
        """Log prior () and gradient (P,)."""
        value, grad, away = 0.0, np.zeros(self.dim), theta - np.asarray(self.centre)
        for offset, size, kind, a, b, c in self.prior:
            part = slice(int(offset), int(offset + size))
            terms, grad[part] = log_prior_terms(kind, a, b, c, away[part])
            value += math.fsum(terms)
        return value, grad

    def log_likelihood(self, theta, rows=None, factors=None):
        """Log likelihood () scaled N/n, its gradient (P,), and sum over rows of their norms.

        factors: per table row, of what it gives for the n data rows; see `network`.
        """
        rows = np.arange(len(self.x)) if rows is None else np.asarray(rows)
        weight = len(self.x) / len(rows)
        f, tape = network(self.table, theta, self.x[rows], factors)
        log_noise = theta[-1] if self.noises == 1 else theta[-self.noises :]
        values, delta, slope = log_likelihood_terms(
            self.kind, self.scale, f, np.asarray(self.y, float)[rows], log_noise, self.shape
        )
        grad, square, _ = backward(self.table, theta, tape, delta, factors)
        if learns_noise(self.kind):
            slope = slope.reshape(len(f), self.noises)
            grad[-self.noises :] = np.sum(slope, axis=0)
            square += np.sum(slope**2, axis=1)
        return weight * math.fsum(values), weight * grad, weight * np.sum(np.sqrt(square))

    def terms(self, theta, rows=None, factors=None):
        """The tempered parts of the log density, (C, 2): likelihood and prior."""
        likelihood = [self.log_likelihood(t, rows, factors)[0] for t in np.atleast_2d(theta)]
        prior = [self.log_prior(t)[0] for t in np.atleast_2d(theta)]
        return (
            np.stack([np.divide(likelihood, self.likelihood_temperature), prior], axis=1)
            / self.temperature
        )

    def gradient(self, theta, rows=None, factors=None):
        """Gradient (C, P) of the tempered log density."""
        return np.stack(
            [
                (
                    self.log_likelihood(t, rows, factors)[1] / self.likelihood_temperature
                    + self.log_prior(t)[1]
                )
                / self.temperature
                for t in np.atleast_2d(theta)
            ]
        )

    def value_and_grad(self, theta, rows=None, factors=None):
        """Tempered log density (C,) and gradient (C, P)."""
        return np.sum(self.terms(theta, rows, factors), axis=1), self.gradient(theta, rows, factors)

    def gradient_scale(self, theta, rows=None, factors=None):
        """Sum of the norms of the summands of the gradient, (C,): rows and prior.

        A float32 sum cannot be better than its summands: the gate on float32 gradients is
        relative to this.
        """
        scales = []
        for t in np.atleast_2d(theta):
            row_norms = self.log_likelihood(t, rows, factors)[2] / self.likelihood_temperature
            scales.append((row_norms + np.linalg.norm(self.log_prior(t)[1])) / self.temperature)
        return np.array(scales)

    def rounded(self, dtype):
        """The same target with the data rounded to dtype, as the native code stores it."""
        return replace(
            self,
            x=np.asarray(self.x, dtype).astype(float),
            y=np.asarray(self.y, dtype).astype(float),
            centre=np.asarray(self.centre, dtype).astype(float),
        )


# --- leapfrog and HMC ----------------------------------------------------------------------------


def leapfrog(gradient, position, momentum, step_size, num_steps, inverse_mass=1.0):
    """End point (P,), (P,) of num_steps leapfrog steps of one chain."""
    q, p = np.array(position, float), np.array(momentum, float)
    p = p + 0.5 * step_size * gradient(q)
    for i in range(num_steps):
        q = q + step_size * inverse_mass * p
        p = p + (step_size if i + 1 < num_steps else 0.5 * step_size) * gradient(q)
    return q, p


def kinetic_energy(momentum, inverse_mass=1.0):
    return 0.5 * float(np.sum(np.asarray(momentum) ** 2 * inverse_mass))


@dataclass(frozen=True)
class Transition:
    """One HMC transition of one chain."""

    position: np.ndarray  # (P,) after accept or reject
    accepted: bool
    energy_error: float  # H(proposal) - H(start)
    momentum: np.ndarray = field(repr=False)  # (P,) as drawn


def hmc_transition(
    target,
    position,
    *,
    step_size,
    num_steps,
    seed,
    chain,
    step,
    inverse_mass=1.0,
    step_size_jitter=0.0,
    randomize_length=True,
):
    """Metropolis-adjusted leapfrog (Neal 2011, section 3) with all randomness by address.

    ``step`` is the number of transitions done before this one. randomize_length: num_steps is made
    uniform on 1, .., 2 num_steps (Mackenzie 1989).
    """
    z = normal(position.size, seed=seed, step=step, chain=chain, purpose=MOMENTUM)
    momentum = z / np.sqrt(inverse_mass)
    if step_size_jitter:
        u = uniform(1, seed=seed, step=step, chain=chain, purpose=JITTER)[0]
        step_size = step_size * (1 + step_size_jitter * (2 * u - 1))
    if randomize_length:
        u = uniform(1, seed=seed, step=step, chain=chain, purpose=JITTER, layer=1)[0]
        num_steps = math.ceil(2 * num_steps * u)

    def gradient(q):
        return target.gradient(q)[0]

    q, p = leapfrog(gradient, position, momentum, step_size, num_steps, inverse_mass)
    differences = target.terms(position)[0] - target.terms(q)[0]
    error = float(np.sum(differences)) + (
        kinetic_energy(p, inverse_mass) - kinetic_energy(momentum, inverse_mass)
    )
    u = uniform(1, seed=seed, step=step, chain=chain, purpose=ACCEPT)[0]
    accepted = bool(np.isfinite(error) and math.log(u) < -error)
    return Transition(q if accepted else position, accepted, error, momentum)


def hmc_run(target, position, num_draws, *, seed, chain=0, first_step=0, **options):
    """Positions (num_draws, P) and acceptance flags (num_draws,) of one chain."""
    positions, flags = [], []
    for step in range(first_step, first_step + num_draws):
        transition = hmc_transition(target, position, seed=seed, chain=chain, step=step, **options)
        position = transition.position
        positions.append(position)
        flags.append(transition.accepted)
    return np.array(positions), np.array(flags)
