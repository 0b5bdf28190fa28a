"""Targets of torch that replace their gradient: as those of the core, in samplers and in copies."""

import copy
import types

import numpy as np
import pytest

import ribbit as rb
from ribbit.density import Density

torch = pytest.importorskip("torch")
import ribbit.torch  # noqa: E402


def posterior(native, likelihood=None):
    x = torch.zeros(4, 1)
    net = torch.nn.Sequential(torch.nn.Linear(1, 1))
    likelihood = rb.Gaussian(10.0) if likelihood is None else likelihood
    return rb.torch.posterior(net, likelihood, (x, x), prior=rb.Normal(1.0), native=native)


def narrower(self, theta, rows=None):
    """Times N(0, 0.1^2)."""
    lp, grad = type(self).value_and_grad(self, theta)
    t = np.asarray(theta, np.float64)
    return lp - 0.5 * (t**2).sum(-1) / 0.01, (grad - t / 0.01).astype(grad.dtype)


@pytest.mark.parametrize("native", [True, False])
def test_a_replaced_gradient_is_what_samplers_call(native):
    target = posterior(native)
    object.__setattr__(target, "value_and_grad", types.MethodType(narrower, target))
    density, theta = Density(target, function="HMC"), target.init(0, chains=2)
    terms, grad = density.terms_and_grad(theta)
    np.testing.assert_array_equal(terms[:, 0], target.value_and_grad(theta)[0])
    np.testing.assert_array_equal(grad, density.on_batch(theta, np.arange(4))[-1])
    assert density.core is None
    assert not density.rows_per_chain
    with pytest.raises(TypeError, match="replaces value_and_grad but not advance_variational"):
        rb.BBB(target)


@pytest.mark.parametrize("native", [True, False])
def test_a_copy_keeps_what_replaced_its_gradient(native):
    target = posterior(native)
    object.__setattr__(target, "value_and_grad", types.MethodType(narrower, target))
    theta = target.init(0, chains=2)
    other = copy.copy(target)
    np.testing.assert_array_equal(other.value_and_grad(theta)[0], target.value_and_grad(theta)[0])


@pytest.mark.parametrize("native", [None, False])
def test_a_likelihood_of_a_user_is_refused(native):
    with pytest.raises(TypeError, match="expected likelihood as a likelihood object"):
        posterior(native, type("Mine", (rb.Gaussian,), {})(0.1))


@pytest.mark.parametrize("native", [True, False])
def test_one_that_replaces_nothing_keeps_its_members(native):
    from ribbit._arrays import overrides

    target = posterior(native)
    names = ["advance", "advance_variational", "terms_and_grad", "fingerprint", "log_likelihood"]
    names += ["leapfrog", "gauss_newton"] if native else []
    assert all(overrides.own(target, name) is not None for name in names)
    assert all(overrides.followed(target, name, overrides.WHOLE) for name in ("masked",))
    overrides.check("HMC", target)
