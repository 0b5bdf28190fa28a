"""The oracle of learned scales against itself: its gradient is that of its value."""

import numpy as np
import pytest

from tests.support.scaled_targets import HYPER, NAMES, build


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hyper", HYPER)
def test_the_gradient_is_that_of_the_value(name, hyper, rng):
    oracle, _, _ = build(name, hyper, temperature=0.8, likelihood_temperature=1.3, fan_in=True)
    theta = 0.5 * rng.normal(size=oracle.dim)
    grad = oracle.parts(theta)[2]
    for i in range(oracle.dim):
        step = 1e-5 * (np.arange(oracle.dim) == i)
        central = (oracle.log_density(theta + step) - oracle.log_density(theta - step)) / 2e-5
        assert grad[i] == pytest.approx(central, rel=1e-7, abs=1e-7)


def test_a_slab_far_out_leaves_the_product_and_a_near_one_itself():
    oracle, _, _ = build("horseshoe weight")
    u = np.zeros(oracle.scales)
    u[oracle.slab[0]] = 12.0
    assert oracle.multiplier(0, u)[0] == pytest.approx(1.0, rel=1e-9)
    u[oracle.slab[0]] = -12.0
    assert oracle.multiplier(0, u)[0] == pytest.approx(np.exp(-12.0), rel=1e-9)
