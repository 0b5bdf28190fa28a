"""Laplace's approximation from its definition: slow, in float64, sharing no code with the package.

Shapes: N rows, K outputs, J columns of y, P parameters, D columns of a design.
"""

import numpy as np

from tests.oracle.layer_reference import backward, network
from tests.oracle.reference import LIKELIHOODS, learns_noise, log_likelihood_terms

__all__ = [
    "evidence_of_regression",
    "gauss_newton",
    "information",
    "jacobian",
    "mode_of_linear_model",
    "predictive_of_regression",
]


def jacobian(table, theta, x):
    """Derivatives (N, K, P) of the outputs: a backward pass for each row and output."""
    rows = []
    for row in x:
        f, tape = network(table, theta, row[None])
        units = np.eye(f.shape[1])
        rows.append([backward(table, theta, tape, unit[None])[0] for unit in units])
    return np.array(rows)


def support(kind, f, scale, shape):
    """Values of y (M, J) with weights (M,) whose sum over a function is its expectation given f."""
    name = LIKELIHOODS[kind].removesuffix("-learned").removesuffix("-floored")
    if name == "categorical":
        y = np.arange(len(f))[:, None].astype(float)
        return y, np.ones(len(y))
    if name == "bernoulli":
        y = np.array(np.meshgrid(*[[0.0, 1.0]] * len(f))).reshape(len(f), -1).T
        return y, np.ones(len(y))
    if name == "poisson":
        counts = np.arange(0.0, 60.0)
        y = np.array(np.meshgrid(*[counts] * len(f))).reshape(len(f), -1).T
        return y, np.ones(len(y))
    # A regression with one column of y. t = sinh(u): tails of any weight on an even grid.
    centre = f[0]
    width = scale
    if name.startswith("heteroscedastic"):  # shape: the floor of the sd
        width = np.hypot(np.logaddexp(0.0, f[1]), shape)
    u = np.linspace(-18.0, 18.0, 8001)
    return (centre + width * np.sinh(u))[:, None], width * np.cosh(u) * (u[1] - u[0])


def information(kind, f, *, scale=1.0, log_noise=0.0, shape=0.0):
    """Fisher information of outputs (K,), and of "log_noise" as one more where it is learned.

    The expectation of the outer product of the scores, by summing over all y.
    """
    scale = np.exp(log_noise) if learns_noise(kind) else scale
    y, weights = support(kind, f, scale, shape)
    outputs = np.broadcast_to(f, (len(y), len(f)))
    value, score, slope = log_likelihood_terms(kind, scale, outputs, y, log_noise, shape)
    mass = np.exp(value) * weights
    assert abs(mass.sum() - 1.0) < 1e-7
    if learns_noise(kind):
        score = np.c_[score, slope]
    return np.einsum("m,mi,mj->ij", mass, score, score)


def gauss_newton(target, theta):
    """Sum (P, P) over rows of J^T (information of the outputs) J, tempered as the target is.

    target: a `reference.Target` with one column of y where the likelihood is a regression.
    """
    outputs, _ = network(target.table, theta, target.x)
    derivatives = jacobian(target.table, theta, target.x)
    found = np.zeros((target.dim, target.dim))
    for f, j in zip(outputs, derivatives, strict=True):
        known = {"scale": target.scale, "log_noise": theta[-1], "shape": target.shape}
        inner = information(target.kind, f, **known)
        whole = np.zeros((len(inner), target.dim))
        whole[: len(f), : j.shape[1]] = j[:, : target.dim]
        if learns_noise(target.kind):
            whole[:, -1] = 0.0
            whole[-1, -1] = 1.0
        found += whole.T @ inner @ whole
    return found / (target.temperature * target.likelihood_temperature)


# --- linear models -------------------------------------------------------------------------------


def mode_of_linear_model(design, y, outputs, family, prior_sd):
    """Mode (D, K) of the weights and covariance (D K, D K) there, by Newton's method.

    family: "categorical", "bernoulli" or "poisson"; the prior of all weights is N(0, prior_sd^2).
    """
    size = design.shape[1] * outputs
    theta = np.zeros(size)
    for _ in range(60):
        f = design @ theta.reshape(-1, outputs)
        if family == "categorical":
            p = np.exp(f - f.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            residual = np.eye(outputs)[y.astype(int)] - p
            inner = [np.diag(row) - np.outer(row, row) for row in p]
        else:
            bernoulli = family == "bernoulli"
            mean = 1.0 / (1.0 + np.exp(-f)) if bernoulli else np.exp(f)
            residual = y.reshape(mean.shape) - mean
            inner = [np.diag(row * (1.0 - row) if bernoulli else row) for row in mean]
        gradient = (design.T @ residual).ravel() - theta / prior_sd**2
        hessian = np.eye(size) / prior_sd**2
        for row, block in zip(design, inner, strict=True):
            hessian += np.kron(np.outer(row, row), block)
        step = np.linalg.solve(hessian, gradient)
        theta = theta + step / max(1.0, np.abs(step).max())
    return theta.reshape(-1, outputs), np.linalg.inv(hessian)


def evidence_of_regression(design, y, prior_sd, noise):
    """Log density of y (N,) under N(0, noise^2 + design diag(prior_sd^2) design^T)."""
    spread = noise**2 * np.eye(len(y)) + (design * prior_sd**2) @ design.T
    _, volume = np.linalg.slogdet(2.0 * np.pi * spread)
    return -0.5 * y @ np.linalg.solve(spread, y) - 0.5 * volume


def predictive_of_regression(design, y, new, prior_sd, noise):
    """Mean and sd (N',) of the function at new rows of the design."""
    precision = design.T @ design / noise**2 + np.eye(design.shape[1]) / prior_sd**2
    mean = np.linalg.solve(precision, design.T @ y / noise**2)
    spread = np.einsum("ij,ij->i", new, np.linalg.solve(precision, new.T).T)
    return new @ mean, np.sqrt(spread)
