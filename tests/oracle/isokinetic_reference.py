"""The oracle for microcanonical dynamics: slow, float64, from the equations alone.

A position moves at speed one along a direction u; a gradient g turns it, du/dt = (1 - u u') g /
(P - 1). One chain; `scale` whitens, (P,) or a symmetric matrix (P, P). Judges the native steps and
the Python loop alike; ``test_isokinetic_reference.py`` judges this file.
"""

from __future__ import annotations

import math

import numpy as np

from tests.oracle.reference import normal

REFRESH = 17
SHORT = 0.1931833275037836
SCHEMES = {  # shares of the kicks and of the drifts between them
    "leapfrog": ((0.5, 0.5), (1.0,)),
    "mclachlan": ((SHORT, 1.0 - 2.0 * SHORT, SHORT), (0.5, 0.5)),
}


def kick(u, g, step):
    """Direction (P,) after `step` under a gradient that stands still, and log of the spread.

    The second is (P - 1) log(cosh d + e.u sinh d), d = step |g| / (P - 1): minus the log Jacobian
    of the flow on the sphere.
    """
    size = np.linalg.norm(g)
    if size == 0.0:
        return u, 0.0
    e, d = g / size, step * size / (len(u) - 1)
    below = math.cosh(d) + e @ u * math.sinh(d)
    turned = (u + e * (math.sinh(d) + e @ u * (math.cosh(d) - 1.0))) / below
    return turned, (len(u) - 1) * math.log(below)


def whitened(scale, values):
    """Multiply a vector (P,) by scales (P,), or by a matrix."""
    return scale @ values if np.ndim(scale) == 2 else scale * values


def step(q, u, gradient, eps, *, scale=1.0, integrator="leapfrog"):
    """Position and direction after a step, and what the kicks gained; gradient(q) -> (P,)."""
    kicks, drifts = SCHEMES[integrator]
    gained = 0.0
    for share, drift in zip(kicks, (*drifts, 0.0), strict=True):
        u, more = kick(u, whitened(scale, gradient(q)), share * eps)
        gained += more
        q = q + drift * eps * whitened(scale, u)
    return q, u, gained


def refresh(u, z, eps, length):
    """Direction (P,) that forgets itself over a time `length`; z: standard normals."""
    level = math.sqrt((math.exp(2.0 * eps / length) - 1.0) / len(u))
    v = u + level * z
    return v / np.linalg.norm(v)


def run(target, q, u, eps, length, count, *, seed, chain, scale=1.0, integrator="leapfrog"):
    """Positions (count, P), the direction and the energy errors (count,).

    target: ``value(q)`` and ``gradient(q)``. A step whose error has no finite square is undone and
    the chain turned round.
    """
    u = u / np.linalg.norm(u)
    path, errors = [], []
    for i in range(count):
        with np.errstate(all="ignore"):
            new, turned, gained = step(
                q, u, target.gradient, eps, scale=scale, integrator=integrator
            )
            error = gained - (target.value(new) - target.value(q))
            square = np.square(error)
        if np.isfinite(square) and np.isfinite(target.gradient(new)).all():
            q, u = new, turned
        else:
            error, u = np.nan, -u
        z = normal(len(q), seed=seed, step=i, chain=chain, purpose=REFRESH)
        u = refresh(u, z, eps, length)
        path.append(q)
        errors.append(error)
    return np.array(path), u, np.array(errors)
