"""The oracle of ChEES against differences of the criterion along exact trajectories."""

import numpy as np
import pytest

from tests.oracle import chees_reference as oracle

SD = np.array([1.0, 0.3, 2.0])


def flow(q, p, t):
    """Exact trajectories of independent normals: ellipses."""
    w = 1.0 / SD
    return q * np.cos(w * t) + p / w * np.sin(w * t), p * np.cos(w * t) - q * w * np.sin(w * t)


@pytest.mark.parametrize("mean", [0.2, 1.0, 2.5])
def test_gradient_is_that_of_the_criterion(mean):
    """By differences of the log mean length; lengths are fixed multiples of it."""
    rng = np.random.default_rng(0)
    q, p = SD * rng.normal(size=(7, 3)), rng.normal(size=(7, 3))
    share = rng.uniform(0.0, 2.0, size=(7, 1))

    def value(log_mean):
        return oracle.criterion(q, flow(q, p, share * np.exp(log_mean))[0])

    h = 1e-5
    slope = (value(np.log(mean) + h) - value(np.log(mean) - h)) / (2 * h)
    ends, velocities = flow(q, p, share * mean)
    found = oracle.gradient(list(q), list(ends), list(velocities), share[:, 0] * mean, np.ones(7))
    # The formula leaves out how the mean of the ends moves, which is of order 1 / C; so does this:
    centred = ends - ends.mean(axis=0)
    change = np.sum(centred**2, axis=1) - np.sum((q - q.mean(axis=0)) ** 2, axis=1)
    drift = (share * mean * velocities).mean(axis=0)
    exact = found - np.mean(change * (centred @ drift))
    np.testing.assert_allclose(slope, exact, rtol=1e-6)
    assert abs(slope) > 1e-3


def test_weights_and_chains_that_are_lost():
    rng = np.random.default_rng(1)
    q, e, v = rng.normal(size=(3, 4, 2))
    t = np.ones(4)
    some = oracle.gradient(list(q), list(e), list(v), t, [1.0, 0.5, 0.0, 1.0])
    lost = e.copy()
    lost[2] = np.nan
    assert oracle.gradient(list(q), list(lost), list(v), t, [1.0, 0.5, 0.0, 1.0]) == some
    assert oracle.gradient(list(q), list(e), list(v), t, np.zeros(4)) == 0.0
    assert oracle.gradient(list(q), list(e), list(v), t, np.ones(4)) != some
