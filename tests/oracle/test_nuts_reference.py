"""The oracle of the no-U-turn sampler leaves its law alone, exactly: no random number is drawn.

A trajectory through one state is a list of states, each with its weight exp(-energy). From every
one of them a transition with given directions ends in any other with a known probability; averaged
over all directions these must keep the weights. The faults that break it are the controls.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from tests.oracle import nuts_reference as oracle
from tests.oracle.reference import leapfrog

DEPTH = 3  # doublings: 7 leapfrog steps to either side at most
AROUND = 2 * 2**DEPTH  # states to either side of the first


@dataclass(frozen=True)
class Uneven:
    """A Gaussian with a quartic direction: energies differ along a trajectory."""

    sd = np.array([1.0, 0.4])

    def terms(self, q):
        return np.array([[-0.5 * np.sum((q / self.sd) ** 2), -0.1 * q[0] ** 4]])

    def gradient(self, q):
        return -q / self.sd**2 - 0.4 * q**3 * [1.0, 0.0]


@dataclass(frozen=True)
class Given:
    """Directions, and uniforms that do not matter to the probabilities."""

    directions: tuple[float, ...]

    def direction(self, depth):
        return self.directions[depth]

    def leaf(self, number):
        return 0.5

    def doubling(self, depth):
        return 0.5


def trajectory(step_size, inverse_mass):
    """States (q, p) of a trajectory and their weights, the first in the middle."""
    target = Uneven()
    start = np.array([0.9, -0.3]), np.array([0.4, 1.1]) / np.sqrt(inverse_mass)
    states = [start]
    for sign in (-1, 1):
        q, p = start
        for _ in range(AROUND):
            q, p = leapfrog(target.gradient, q, p, sign * step_size, 1, inverse_mass)
            states = [(q, p), *states] if sign < 0 else [*states, (q, p)]
    energy = [0.5 * np.sum(inverse_mass * p**2) - float(np.sum(target.terms(q))) for q, p in states]
    return states, np.exp(-np.array(energy) + min(energy))


def error(step_size=0.55, inverse_mass=1.0, threshold=1000.0):
    """Largest relative change of a weight by one transition, and the depths that were met."""
    states, weights = trajectory(step_size, inverse_mass)
    after, depths = np.zeros_like(weights), set()
    for i, (q, p) in enumerate(states):
        for directions in itertools.product((0.25, 0.75), repeat=DEPTH):
            found = oracle.grow(
                Uneven(),
                q,
                p,
                Given(directions),
                step_size=step_size,
                inverse_mass=inverse_mass,
                max_tree_depth=DEPTH,
                divergence_threshold=threshold,
            )
            depths.add((found.depth, found.diverging))
            assert math.isclose(sum(found.probability.values()), 1.0)
            for index, probability in found.probability.items():
                if 0 <= i + index < len(states):
                    after[i + index] += weights[i] * probability / 2**DEPTH
    # those from which and to which every state within reach is on the list
    inner = slice(2**DEPTH, -(2**DEPTH))
    return float(np.max(np.abs(after[inner] / weights[inner] - 1.0))), depths


CASES = {
    "coarse": {},
    "fine": {"step_size": 0.2},
    "mass": {"inverse_mass": np.array([1.5, 0.2])},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_the_law_stays(options):
    found, depths = error(**options)
    assert found < 1e-10
    if "step_size" not in options:
        assert len({depth for depth, _ in depths}) > 1  # turns are met


def test_a_low_threshold_of_divergence_is_a_bias():
    """It compares with the start: what is left out must have no weight, exp(-1000) by default."""
    found, depths = error(threshold=0.2)
    assert any(diverging for _, diverging in depths)
    assert found > 0.1


def test_a_part_that_is_not_looked_into_is_noticed(monkeypatch):
    def build(self, leaf, sign, depth):
        leaves = []
        for _ in range(2**depth):
            made = self.step(leaf, sign)
            leaf = made.leaves[0]
            leaves.append(leaf)
            if made.diverging:
                return oracle.Part(tuple(leaves), diverging=True)
        return oracle.Part(tuple(leaves))

    monkeypatch.setattr(oracle.Tree, "build", build)
    assert error()[0] > 1e-3


def test_a_wrong_weight_is_noticed(monkeypatch):
    monkeypatch.setattr(oracle, "weight_of", lambda leaves: math.log(len(leaves)))
    with pytest.raises(AssertionError):
        assert error()[0] < 1e-3


def test_the_seam_matters():
    """A whole turn in two parts: it ends where it began, and the sum of it has that direction."""
    angle = np.linspace(0, 2 * np.pi, 8, endpoint=False) + 0.3
    momenta = np.stack([0.05 + np.cos(angle), np.sin(angle)], axis=1)
    leaves = [oracle.Leaf(i, p, p, 0.0) for i, p in enumerate(momenta)]
    first, second = oracle.Part(tuple(leaves[:4])), oracle.Part(tuple(leaves[4:]))
    assert not oracle.turned(first, second, 1.0, seam=False)
    assert oracle.turned(first, second, 1.0)
    assert not oracle.turned(oracle.Part((leaves[0],)), oracle.Part((leaves[1],)), 1.0)
