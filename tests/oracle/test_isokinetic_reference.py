"""The oracle of microcanonical dynamics against the equations themselves."""

import numpy as np
import pytest

from tests.oracle import isokinetic_reference as reference

P = 7
RNG = np.random.default_rng(5)
SD = RNG.uniform(0.5, 2.0, P)
START = RNG.normal(size=P) * SD
MATRIX = RNG.normal(size=(P, P)) / P


def gradient(q):
    """Of a log density that is neither Gaussian nor symmetric."""
    return -q / SD**2 - 0.3 * MATRIX.T @ np.sin(MATRIX @ q) - 0.1 * q**3


def value(q):
    return -0.5 * np.sum((q / SD) ** 2) + 0.3 * np.sum(np.cos(MATRIX @ q)) - 0.025 * np.sum(q**4)


def direction(seed=1):
    u = np.random.default_rng(seed).normal(size=P)
    return u / np.linalg.norm(u)


def test_the_gradient_is_that_of_the_value():
    for i in range(P):
        h = 1e-6 * np.eye(P)[i]
        slope = (value(START + h) - value(START - h)) / 2e-6
        assert slope == pytest.approx(gradient(START)[i], abs=1e-7)


def test_a_kick_solves_its_differential_equation():
    u, g = direction(), gradient(START)
    turned, gained = reference.kick(u, g, 0.7)
    path, logs, steps = u.copy(), 0.0, 20_000

    def slope(v):
        return (g - v * (v @ g)) / (P - 1)

    for _ in range(steps):  # midpoint rule: error 1e-9
        middle = path + 0.5 * 0.7 / steps * slope(path)
        path = path + 0.7 / steps * slope(middle)
        logs += 0.7 / steps * (middle @ g)
    np.testing.assert_allclose(turned, path, atol=1e-8)
    assert gained == pytest.approx(logs, abs=1e-8)
    assert np.linalg.norm(turned) == pytest.approx(1.0, abs=1e-14)


def test_the_gain_is_minus_the_log_jacobian():
    # The flow of u on the sphere: tangent vectors (P, P - 1) before and after, by differences.
    u, g, h = direction(), gradient(START), 1e-6
    basis = np.linalg.svd(u[None])[2][1:].T
    turned, gained = reference.kick(u, g, 0.7)

    def moved(t):
        v = u + basis @ t
        return reference.kick(v / np.linalg.norm(v), g, 0.7)[0]

    eye = np.eye(P - 1)
    columns = [(moved(h * e) - moved(-h * e)) / (2 * h) for e in eye]
    after = np.linalg.svd(turned[None])[2][1:].T
    jacobian = after.T @ np.column_stack(columns)
    assert np.linalg.slogdet(jacobian)[1] == pytest.approx(-gained, abs=1e-7)


@pytest.mark.parametrize("integrator", reference.SCHEMES)
def test_a_step_turned_round_leads_back(integrator):
    q, u = START, direction()
    scale = np.linspace(0.5, 2.0, P)
    new, turned, gained = reference.step(q, u, gradient, 0.4, scale=scale, integrator=integrator)
    back, home, lost = reference.step(
        new, -turned, gradient, 0.4, scale=scale, integrator=integrator
    )
    np.testing.assert_allclose(back, q, atol=1e-13)
    np.testing.assert_allclose(home, -u, atol=1e-13)
    assert gained == pytest.approx(-lost, abs=1e-12)


@pytest.mark.parametrize(("integrator", "smaller"), [("leapfrog", 1.0), ("mclachlan", 0.3)])
def test_the_energy_error_is_of_third_order(integrator, smaller):
    def error(eps):
        q, _, gained = reference.step(START, direction(), gradient, eps, integrator=integrator)
        return gained - (value(q) - value(START))

    errors = np.abs([error(0.04), error(0.02), error(0.01)])
    np.testing.assert_allclose(errors[:-1] / errors[1:], 8.0, rtol=0.15)
    q, _, gained = reference.step(START, direction(), gradient, 0.04)
    assert errors[0] <= smaller * abs(gained - (value(q) - value(START))) * 1.001


def test_a_refreshed_direction_forgets_itself():
    # u.u' = exp(-eps / length) in many dimensions: 20,000 of them, error of the order 1/sqrt(P).
    u = np.zeros(20_000)
    u[0] = 1.0
    z = np.random.default_rng(3).normal(size=u.size)
    for eps in (0.1, 1.0):
        found = u @ reference.refresh(u, z, eps, 2.0)
        assert found == pytest.approx(np.exp(-eps / 2.0), abs=0.03)
