"""The oracle of the no-U-turn sampler: slow, obvious, float64, one chain, all states kept.

Recursive (Hoffman and Gelman 2014, algorithm 3), with a multinomial draw instead of a slice, the
new half preferred (Betancourt 2017, appendix A.3.2) and the turn looked for by sums of momenta
(A.4.2), also across the seam of two halves.

Shapes: P parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tests.oracle.reference import MOMENTUM, normal, uniform

TREE = 18  # purpose
DIRECTION, LEAF, DOUBLING = range(3)  # its layers


@dataclass(frozen=True)
class Leaf:
    """A state of the trajectory."""

    index: int  # leapfrog steps from the start, negative backwards
    position: np.ndarray  # (P,)
    momentum: np.ndarray  # (P,)
    error: float  # energy minus that of the start


@dataclass(frozen=True)
class Part:
    """Consecutive states, in the order in which they were made."""

    leaves: tuple[Leaf, ...]
    diverging: bool = False
    turned: bool = False

    @property
    def holds(self):
        return not (self.diverging or self.turned)


@dataclass(frozen=True)
class Transition:
    """One transition; `probability`: of every index, given the directions."""

    drawn: Leaf
    probability: dict[int, float]
    acceptance: float
    num_steps: int
    depth: int
    diverging: bool
    at_max_depth: bool
    errors: tuple[float, ...]  # of all states that were made, in their order


def turned(first, second, inverse_mass, seam=True):
    """Whether two parts of equal length, the second made after the first, turn as one."""

    def turns(leaves):
        rho = np.sum([leaf.momentum for leaf in leaves], axis=0)
        ends = (inverse_mass * leaves[i].momentum @ rho for i in (0, -1))
        return not all(product > 0 for product in ends)

    a, b = first.leaves, second.leaves
    found = turns(a + b)
    if seam:
        found = found or turns((*a, b[0])) or turns((a[-1], *b))
    return found


class Tree:
    """The growth of one tree; numbers: direction(depth), leaf(number), doubling(depth) -> u."""

    def __init__(self, target, step_size, inverse_mass, threshold):
        self.target, self.step_size = target, step_size
        self.inverse_mass, self.threshold = inverse_mass, threshold
        self.errors = []

    def energy(self, terms, momentum):
        """Energy minus that of the start, as a sum of differences."""
        kinetic = 0.5 * np.sum(self.inverse_mass * momentum**2)
        error = (kinetic - self.kinetic) + float(np.sum(self.terms - terms))
        return error if math.isfinite(error) else math.inf

    def gradient(self, q):
        return np.reshape(self.target.gradient(q), -1)

    def start(self, position, momentum):
        self.kinetic = 0.5 * np.sum(self.inverse_mass * momentum**2)
        self.terms = self.target.terms(position)[0]
        return Leaf(0, position, momentum, 0.0)

    def step(self, leaf, sign):
        """The next state on that side."""
        eps = sign * self.step_size
        p = leaf.momentum + 0.5 * eps * self.gradient(leaf.position)
        q = leaf.position + eps * self.inverse_mass * p
        p = p + 0.5 * eps * self.gradient(q)
        error = self.energy(self.target.terms(q)[0], p)
        self.errors.append(error)
        new = Leaf(leaf.index + sign, q, p, error)
        return Part((new,), diverging=not error <= self.threshold)

    def build(self, leaf, sign, depth):
        """2^depth states behind a leaf, fewer where one diverges or a part turns."""
        if depth == 0:
            return self.step(leaf, sign)
        first = self.build(leaf, sign, depth - 1)
        if not first.holds:
            return first
        second = self.build(first.leaves[-1], sign, depth - 1)
        leaves = first.leaves + second.leaves
        if not second.holds:
            return Part(leaves, second.diverging, second.turned)
        return Part(leaves, turned=turned(first, second, self.inverse_mass))


def weight_of(leaves):
    return float(np.logaddexp.reduce([-leaf.error for leaf in leaves]))


def grow(target, position, momentum, numbers, *, step_size, inverse_mass=1.0, max_tree_depth=10,
         divergence_threshold=1000.0):  # fmt: skip
    """One transition from a position and a momentum (P,)."""
    growth = Tree(target, step_size, inverse_mass, divergence_threshold)
    drawn = growth.start(np.asarray(position, float), np.asarray(momentum, float))
    tree = Part((drawn,))
    probability = {0: 1.0}
    depth, diverging, ended = 0, False, False
    while depth < max_tree_depth and not ended:
        sign = 1 if numbers.direction(depth) < 0.5 else -1
        if sign * (tree.leaves[-1].index - tree.leaves[0].index) < 0:  # grow at the last leaf
            tree = Part(tree.leaves[::-1])
        made = len(growth.errors)
        new = growth.build(tree.leaves[-1], sign, depth)
        diverging = new.diverging
        if not new.holds:
            break
        proposal, weight = new.leaves[0], -math.inf
        for i, leaf in enumerate(new.leaves):  # a multinomial draw, one state after the other
            weight = np.logaddexp(weight, -leaf.error)
            if i == 0 or math.log(numbers.leaf(made + i)) < -leaf.error - weight:
                proposal = leaf
        ratio = weight_of(new.leaves) - weight_of(tree.leaves)
        move = math.exp(min(0.0, ratio))
        if math.log(numbers.doubling(depth)) < ratio:
            drawn = proposal
        probability = {k: (1.0 - move) * v for k, v in probability.items()}
        for leaf in new.leaves:
            probability[leaf.index] = move * math.exp(-leaf.error - weight_of(new.leaves))
        ended = turned(tree, new, inverse_mass)
        tree = Part(tree.leaves + new.leaves)
        depth += 1
    rates = [math.exp(min(0.0, -error)) for error in growth.errors]
    return Transition(
        drawn=drawn,
        probability=probability,
        acceptance=float(np.mean(rates)),
        num_steps=len(rates),
        depth=depth,
        diverging=diverging,
        at_max_depth=depth == max_tree_depth and not ended and not diverging,
        errors=tuple(growth.errors),
    )


@dataclass(frozen=True)
class Address:
    """Uniforms of one transition by their address."""

    seed: int
    chain: int
    step: int

    def _uniform(self, layer, element):
        at = {"seed": self.seed, "step": self.step, "chain": self.chain}
        return uniform(element + 1, **at, purpose=TREE, layer=layer)[element]

    def direction(self, depth):
        return self._uniform(DIRECTION, depth)

    def leaf(self, number):
        return self._uniform(LEAF, number)

    def doubling(self, depth):
        return self._uniform(DOUBLING, depth)


def nuts_transition(target, position, *, seed, chain, step, inverse_mass=1.0, **options):
    """One transition with all randomness by address."""
    at = {"seed": seed, "step": step, "chain": chain}
    momentum = normal(np.size(position), **at, purpose=MOMENTUM) / np.sqrt(inverse_mass)
    numbers = Address(seed, chain, step)
    return grow(target, position, momentum, numbers, inverse_mass=inverse_mass, **options)


def nuts_run(target, position, num_draws, *, seed, chain=0, first_step=0, **options):
    """Transitions of one chain."""
    found = []
    for step in range(first_step, first_step + num_draws):
        found.append(
            nuts_transition(target, position, seed=seed, chain=chain, step=step, **options)
        )
        position = found[-1].drawn.position
    return found
