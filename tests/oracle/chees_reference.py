"""ChEES, slowly: chain by chain, and whole warmups of HMC that adapt the trajectory length.

Hoffman, Radul and Sountsov (2021): "An Adaptive-MCMC Scheme for Setting Trajectory Lengths in
Hamiltonian Monte Carlo", section 3 and algorithm 1. Lengths of chains are uniform multiples of the
mean length, so that the derivative by its logarithm is the derivative by time, times time.
"""

import math
from dataclasses import dataclass

import numpy as np

from tests.oracle.reference import (
    ACCEPT,
    JITTER,
    MOMENTUM,
    kinetic_energy,
    leapfrog,
    normal,
    uniform,
)


def criterion(starts, ends):
    """ChEES itself, (|q' - m'|^2 - |q - m|^2)^2 / 4 averaged over chains (C, P)."""
    before, after = np.mean(starts, axis=0), np.mean(ends, axis=0)
    changes = [
        np.sum((e - after) ** 2) - np.sum((s - before) ** 2)
        for s, e in zip(starts, ends, strict=True)
    ]
    return float(np.mean(np.square(changes))) / 4


def gradient(starts, ends, velocities, times, acceptance, inverse_mass=1.0):
    """Its gradient by the log of the mean length, chains weighted by their acceptance (C,)."""
    chains = [c for c in range(len(starts)) if acceptance[c] > 0]
    total = sum(acceptance[c] for c in chains)
    if total == 0:
        return 0.0
    before = sum(starts) / len(starts)
    after = sum(acceptance[c] * ends[c] for c in chains) / total
    found = 0.0
    for c in chains:
        s, e = starts[c] - before, ends[c] - after
        change = np.sum(e * e / inverse_mass) - np.sum(s * s / inverse_mass)
        found += acceptance[c] * times[c] * change * np.sum(e / inverse_mass * velocities[c])
    return found / total


@dataclass
class LogLength:
    """Adam (beta1 = 0, beta2 = 0.95, rate 0.05) and the average of what it finds."""

    value: float
    average: float = 0.0
    square: float = 0.0
    count: int = 0
    kept: int = 0

    def climb(self, slope, least, most, keep):
        self.count += 1
        self.square = 0.95 * self.square + 0.05 * slope**2
        if self.square > 0:
            self.value += 0.05 * slope / math.sqrt(self.square / (1 - 0.95**self.count))
        self.value = min(max(self.value, math.log(least)), math.log(most))
        if keep:
            self.kept += 1
            weight = self.kept**-0.75
            self.average = weight * self.value + (1 - weight) * self.average


def warmup(target, starts, transitions, *, seed, step_size, length, most, inverse_mass=1.0):
    """Mean lengths before each transition and after all, at a fixed step size and `length` first.

    Before the last max(100, a fifth) of the transitions the mean length is 20 steps at most.
    """
    state = LogLength(math.log(min(length, step_size)))
    starts, lengths = [np.array(q, float) for q in starts], [math.exp(state.value)]
    for step in range(transitions):
        mean = math.exp(state.value)
        ends, velocities, times, rates, after = [], [], [], [], []
        for chain, q0 in enumerate(starts):
            address = {"seed": seed, "step": step, "chain": chain}
            p0 = normal(q0.size, **address, purpose=MOMENTUM) / np.sqrt(inverse_mass)
            u = uniform(1, **address, purpose=JITTER, layer=1)[0]
            steps = math.ceil(2 * u * max(1, math.ceil(mean / step_size * (1 - 1e-14))))
            steps = min(steps, most)
            q, p = leapfrog(
                lambda at: target.gradient(at)[0], q0, p0, step_size, steps, inverse_mass
            )
            error = float(np.sum(target.terms(q0)[0] - target.terms(q)[0]))
            error += kinetic_energy(p, inverse_mass) - kinetic_energy(p0, inverse_mass)
            rates.append(math.exp(min(0.0, -error)) if math.isfinite(error) else 0.0)
            accepted = math.log(uniform(1, **address, purpose=ACCEPT)[0]) < -error
            ends.append(q)
            velocities.append(inverse_mass * p)
            times.append(step_size * steps)
            after.append(q if accepted else q0)
        slope = gradient(starts, ends, velocities, times, rates, inverse_mass)
        left = transitions - (step + 1)
        short = left > max(100, 0.2 * transitions)
        state.climb(slope, step_size, step_size * (20 if short else most), keep=not short)
        starts = after
        lengths.append(math.exp(state.value))
    lengths[-1] = math.exp(state.average)
    return lengths
