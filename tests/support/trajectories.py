"""Trajectories of a target, native and with one fault, and the errors of their energies."""

import numpy as np


def native_trajectory(target, position, momentum, step_size, num_steps):
    """End point (C, P), (C, P) and log density (C,)."""
    position, momentum = np.atleast_2d(position), np.atleast_2d(momentum)
    chains = len(position)
    gradient = target.value_and_grad(position)[1]
    q, p, terms, _ = target.leapfrog(
        position, momentum, gradient, np.full(chains, step_size), np.full(chains, num_steps)
    )
    return q, p, terms


def faulty(fault):
    """A trajectory with one fault, on the target's own gradients."""

    def trajectory(target, position, momentum, step_size, num_steps):
        q, p = np.array(np.atleast_2d(position)), np.array(np.atleast_2d(momentum))
        gradient = target.value_and_grad(q)[1]
        for i in range(num_steps):
            if fault == "explicit Euler":
                q, p = q + step_size * p, p + step_size * gradient
                gradient = target.value_and_grad(q)[1]
                continue
            first = step_size if fault == "full first kick" and i == 0 else 0.5 * step_size
            p = p + first * gradient
            q = q + step_size * p
            gradient = target.value_and_grad(q)[1]
            p = p + 0.5 * step_size * gradient
        return q, p, target.terms_and_grad(q)[0]

    return trajectory


def energy_error(target, trajectory, position, momentum, step_size, num_steps):
    """Energy differences (C,), term by term."""
    terms = target.terms_and_grad(np.atleast_2d(position))[0]
    _, p, new_terms = trajectory(target, position, momentum, step_size, num_steps)
    kinetic = 0.5 * np.sum(np.asarray(p, float) ** 2 - np.atleast_2d(momentum) ** 2.0, axis=1)
    return np.sum(terms - new_terms, axis=1) + kinetic
