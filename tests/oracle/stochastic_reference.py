"""The oracle for stochastic gradients: slow, float64, from the specification alone.

Order of an epoch's rows, and the update lines of SGLD, SGHMC and Adam as the public page states
them. Judges the native steps and the Python loop alike.
"""

from __future__ import annotations

import math

import numpy as np

from tests.oracle.reference import MOMENTUM, normal, words

BATCH_ORDER, UPDATE_NOISE = 7, 8
MASK64 = (1 << 64) - 1


def epoch_order(rows, *, seed, chain, epoch):
    """Order (rows,) of an epoch: a Feistel network of 8 rounds, walked until it is below rows."""
    half = 1
    while half < 31 and 1 << (2 * half) < rows:
        half += 1
    mask = (1 << half) - 1
    keys = words(np.arange(2), seed=seed, step=epoch, chain=chain, purpose=BATCH_ORDER).reshape(-1)

    def mixed(word, key):
        h = ((word ^ int(key)) * 0x9E3779B97F4A7C15) & MASK64
        h ^= h >> 32
        return (h * 0xD1342543DE82EF95 & MASK64) >> 32

    def once(i):
        left, right = i >> half, i & mask
        for key in keys:
            left, right = right, left ^ (mixed(right, key) & mask)
        return left << half | right

    order = []
    for i in range(rows):
        j = once(i)
        while j >= rows:
            j = once(j)
        order.append(j)
    return np.array(order)


def batch_of(step, rows, batch, *, seed, chain, and_back=False):
    """Rows of the batch of a step; those of an epoch differ by one row at most.

    and_back: an epoch goes through the batches of one order, and then back.
    """
    if batch is None or batch == rows:
        return np.arange(rows)
    batches = -(-rows // batch)
    turns = [*range(batches), *range(batches)[::-1]] if and_back else [*range(batches)]
    order = epoch_order(rows, seed=seed, chain=chain, epoch=step // len(turns))
    return np.array_split(order, batches)[turns[step % len(turns)]]


def first_velocity(size, step_size, *, seed, chain):
    """Of SGHMC: N(0, step_size) each, at layer 1 of the momentum stream; of BAOAB N(0, 1)."""
    z = normal(size, seed=seed, step=0, chain=chain, purpose=MOMENTUM, layer=1)
    return math.sqrt(step_size) * z


def kinetic_step(theta, velocity, gradient, h, *, friction, scale, xi):
    """Positions and whitened velocities after kick, half drift, friction and noise, half drift."""
    velocity = velocity + h * scale * gradient
    theta = theta + h / 2 * scale * velocity
    velocity = math.exp(-friction * h) * velocity + math.sqrt(1 - math.exp(-2 * friction * h)) * xi
    return theta + h / 2 * scale * velocity, velocity


def kinetic_law(hessians, forces, h, *, friction, scale=1.0):
    """Mean and covariance (2P,) of (position, velocity) at the end of a sweep, in stationarity.

    hessians (B, n, P, P), forces (B, n, P): gradient = force - hessian @ theta of the n steps of
    each of B equally likely sweeps.
    """
    count, steps, dim = np.shape(forces)
    size = 2 * dim + 1  # and a one for what does not depend on the state
    linear, added = np.zeros((size * size, size * size)), np.zeros((size, size))
    one, keep = np.eye(dim), math.exp(-friction * h)
    drift, rub, noise = np.eye(size), np.eye(size), np.zeros((size, size))
    place, speed = slice(0, dim), slice(dim, 2 * dim)
    drift[place, speed] = h / 2 * scale * one
    rub[speed, speed] = keep * one
    noise[speed, speed] = (1 - keep**2) * one
    for b in range(count):
        a, q = np.eye(size), np.zeros((size, size))
        for i in range(steps):
            kick = np.eye(size)
            kick[speed, place] = -h * scale * hessians[b][i]
            kick[speed, -1] = h * scale * forces[b][i]
            step = drift @ rub @ drift @ kick
            a, q = step @ a, step @ q @ step.T + drift @ noise @ drift.T
        linear += np.kron(a, a) / count
        added += q / count
    system, right = linear - np.eye(size * size), -added.reshape(-1)
    system[-1], right[-1] = 0, 1  # the square of the one
    system[-1, -1] = 1
    second = np.linalg.solve(system, right).reshape(size, size)
    mean = second[:-1, -1]
    return mean, second[:-1, :-1] - np.outer(mean, mean)


def run(gradient, theta, num_steps, *, rows, batch, seed, chain, factors=None, noises=None, rule):
    """Positions (num_steps, P): gradient(theta, rows of the batch) is scaled by N/n already.

    rule: dict with kind "sgld" (step_size, optional decay, epsilon, adapt_until), "sghmc"
    (step_size, friction, velocity), "kinetic" (the same, scale, warmup and cooling: what friction
    is multiplied by in three quarters of warmup) or "adam" (step_size, decay1, decay2, epsilon).
    """
    theta = np.array(theta, np.float64)
    velocity = np.array(rule.get("velocity", np.zeros_like(theta)), np.float64)
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    path, before = [], rule["step_size"]
    back = rule["kind"] == "kinetic"
    for step in range(num_steps):
        eps = rule["step_size"] * (1.0 if factors is None else factors[step])
        level = 1.0 if noises is None else noises[step]
        g = gradient(theta, batch_of(step, rows, batch, seed=seed, chain=chain, and_back=back))
        xi = level * normal(theta.size, seed=seed, step=step, chain=chain, purpose=UPDATE_NOISE)
        if rule["kind"] == "sghmc":
            a = rule["friction"]
            velocity = velocity * (math.sqrt(eps / before) if before > 0 else 0.0)
            velocity = (1 - a) * velocity + eps * g + math.sqrt(2 * a * eps) * xi
            before = eps
            theta = theta + velocity
        elif rule["kind"] == "kinetic":
            cooled = step < 3 * rule.get("warmup", 0) // 4
            friction = rule["friction"] * (rule["cooling"] if cooled else 1.0)
            constants = {"friction": friction, "scale": rule["scale"]}
            theta, velocity = kinetic_step(theta, velocity, g, eps, **constants, xi=xi)
        elif rule["kind"] == "adam":
            first = rule["decay1"] * first + (1 - rule["decay1"]) * g
            second = rule["decay2"] * second + (1 - rule["decay2"]) * g**2
            mean = first / (1 - rule["decay1"] ** (step + 1))
            spread = second / (1 - rule["decay2"] ** (step + 1))
            theta = theta + eps * mean / (np.sqrt(spread) + rule["epsilon"])
        else:
            metric = 1.0
            if "decay" in rule:
                if step < rule["adapt_until"]:
                    second = rule["decay"] * second + (1 - rule["decay"]) * (g / rows) ** 2
                metric = 1 / (rule["epsilon"] + np.sqrt(second))
            theta = theta + eps / 2 * metric * g + np.sqrt(eps * metric) * xi
        path.append(theta)
    return np.array(path)
