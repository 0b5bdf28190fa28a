"""Classes of a user where the core knows its own alone: a TypeError names the argument."""

import numpy as np
import pytest

import ribbit as rb

X = np.linspace(-1, 1, 20)[:, None]
LIKELIHOODS = {
    rb.Gaussian: (0.3,),
    rb.HeteroscedasticGaussian: (),
    rb.Categorical: (),
    rb.Bernoulli: (),
    rb.Poisson: (),
    rb.StudentTNoise: (3.0,),
    rb.Likelihood: (),
}
PRIORS = {
    rb.Prior: (),
    rb.Normal: (1.0,),
    rb.Laplace: (1.0,),
    rb.StudentT: (3.0, 1.0),
    rb.Horseshoe: (1.0,),
}
SCALE_PRIORS = {rb.ScalePrior: (), rb.HalfNormal: (1.0,), rb.InverseGamma: (3.0, 1.0)}


def posterior(**options):
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3), **options}
    return rb.Posterior(options.pop("model", rb.mlp(1, (3,), 1)), X, X[:, 0], **options)


def mine(kind, arguments):
    return type("Mine", (kind,), {})(*arguments)


@pytest.mark.parametrize("kind", LIKELIHOODS, ids=lambda kind: kind.__name__)
def test_likelihoods(kind):
    own = mine(kind, LIKELIHOODS[kind])
    with pytest.raises(TypeError, match=r"\[Posterior\] expected likelihood .*Mine: use one of"):
        posterior(likelihood=own)


@pytest.mark.parametrize("value", [None, "gaussian", rb.Gaussian, 0.3, rb.Normal(1.0)])
def test_what_is_no_likelihood(value):
    with pytest.raises(TypeError, match="expected likelihood as a likelihood object"):
        posterior(likelihood=value)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("kind", PRIORS, ids=lambda kind: kind.__name__)
def test_priors(kind, by_name):
    own = mine(kind, PRIORS[kind])
    prior = {"*.bias": own, "*": rb.Normal(1.0)} if by_name else own
    with pytest.raises(TypeError, match=r"\[Posterior\] expected prior.*Mine: use one of"):
        posterior(prior=prior)


@pytest.mark.parametrize("kind", SCALE_PRIORS, ids=lambda kind: kind.__name__)
def test_priors_of_scales(kind):
    own = mine(kind, SCALE_PRIORS[kind])
    with pytest.raises(TypeError, match=r"\[Normal\] expected scale as a prior, got .*Mine"):
        rb.Normal(own)
    with pytest.raises(TypeError, match=r"expected log_noise_prior as a prior, got .*Mine"):
        posterior(likelihood=rb.Gaussian(log_noise_prior=own))


class Compiles:
    def _compile(self, *arguments):
        return None


@pytest.mark.parametrize("layer", [Compiles(), mine(rb.Dense, (1,)), rb.Dense, "relu", None, 3])
def test_layers(layer):
    with pytest.raises(TypeError, match=r"\[Model\] expected layer 1 as a layer object"):
        rb.Model([rb.Dense(2), layer], input_shape=(1,))
    with pytest.raises(TypeError, match=r"\[Residual\] expected main\[0\] as a layer"):
        rb.Residual([layer])


def test_models():
    class Mine(rb.Model):
        def apply(self, theta, x):
            return 0.0

    with pytest.raises(TypeError, match="model of Mine replaces apply"):
        posterior(model=Mine([rb.Dense(1)], input_shape=(1,)))


@pytest.mark.parametrize("method", ["_starts", "_fitted"])
def test_starts(method):
    own = type("Mine", (), {method: lambda self, *arguments, **options: None})()
    with pytest.raises(TypeError, match=r"\[HMC.sample\] expected init as .* got .*Mine"):
        rb.HMC(posterior()).sample(2, init=own, progress=False)
    for fit in (rb.SWAG, rb.BBB, rb.LaplaceApproximation, rb.DeepEnsemble):
        with pytest.raises(TypeError, match=rf"\[{fit.__name__}.fit\] expected init as"):
            fit(posterior()).fit(1, init=own, progress=False)


@pytest.mark.parametrize("value", [object(), lambda step: 0.1, rb.schedules.constant()])
@pytest.mark.parametrize("sampler", [rb.HMC, rb.NUTS, rb.MCLMC, rb.SGLD, rb.SGHMC, rb.BAOAB])
def test_step_sizes(sampler, value):
    where = rf"^\[{sampler.__name__}\] (expected step_size|step_size must be a number)"
    with pytest.raises(TypeError, match=where):
        sampler(posterior(), step_size=value)


@pytest.mark.parametrize("value", [object(), lambda step: 0.1, rb.schedules.constant, 0.1])
@pytest.mark.parametrize("sampler", [rb.SGLD, rb.SGHMC, rb.BAOAB])
def test_schedules(sampler, value):
    with pytest.raises(TypeError, match=rf"\[{sampler.__name__}\] expected schedule"):
        sampler(posterior(), step_size=0.1, schedule=value)


@pytest.mark.parametrize("value", [object(), lambda draws: True, "converged", rb.Converged])
def test_ends(value):
    with pytest.raises(TypeError, match=r"\[HMC.sample\] expected until as rb.Converged"):
        rb.HMC(posterior()).sample(until=value, progress=False)
