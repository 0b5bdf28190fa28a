"""Targets that replace some members of others: what they define is sampled, or refused by name."""

import pickle
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import overrides
from ribbit._backends import cpu
from ribbit.density import Density

PLAIN = (rb.Dense(1),)
SD = 0.0995  # of N(0, 1) times N(0, 0.1^2)
X, Y = np.zeros((4, 1)), np.zeros(4)
FITS = {
    "BBB": rb.BBB,
    "LaplaceApproximation": rb.LaplaceApproximation,
    "MCDropout": rb.MCDropout,
}


def narrower(inner):
    """Return value_and_grad times N(0, 0.1^2)."""

    def value_and_grad(theta, rows=None):
        lp, grad = inner(theta)
        t = np.asarray(theta, np.float64)
        return lp - 0.5 * (t**2).sum(-1) / 0.01, (grad - t / 0.01).astype(grad.dtype)

    return value_and_grad


def arguments(layers=PLAIN, **options):
    likelihood = rb.Gaussian(10.0)
    model = rb.Model(list(layers), input_shape=(1,))
    return (model, X, Y), {"prior": rb.Normal(1.0), "likelihood": likelihood, **options}


def made(kind=rb.Posterior, layers=PLAIN, **options):
    data, terms = arguments(layers, **options)
    return kind(*data, **terms)


class Tight(rb.Posterior):
    def value_and_grad(self, theta, rows=None):
        return narrower(super().value_and_grad)(theta)


class Mixin:
    def value_and_grad(self, theta, rows=None):
        return narrower(super().value_and_grad)(theta)


class Mixed(Mixin, rb.Posterior):
    pass


class TightTerms(rb.Posterior):
    def terms_and_grad(self, theta):
        terms, grad = super().terms_and_grad(theta)
        t = np.asarray(theta, np.float64)
        more = -0.5 * (t**2).sum(-1, keepdims=True) / 0.01
        return np.concatenate([terms, more], -1), (grad - t / 0.01).astype(grad.dtype)


class Wrapper:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        if name == "inner":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)


class TightWrapper(Wrapper):
    def value_and_grad(self, theta, rows=None):
        return narrower(self.inner.value_and_grad)(theta)


def patched():
    target = made()
    object.__setattr__(target, "value_and_grad", narrower(target.value_and_grad))
    return target


TARGETS = {
    "subclass": lambda: made(Tight),
    "mixin": lambda: made(Mixed),
    "terms": lambda: made(TightTerms),
    "wrapper": lambda: TightWrapper(made()),
    "wrapper of a subclass": lambda: Wrapper(made(Tight)),
    "instance": patched,
    "float64": lambda: made(Tight, dtype=np.float64),
}


def sampled(sampler, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sampler.sample(400, warmup=200, chains=4, seed=0, progress=False, **options)


@pytest.mark.parametrize(
    ("sampler", "kind"),
    [(rb.NUTS, "subclass"), (rb.MCLMC, "wrapper"), *((rb.HMC, kind) for kind in TARGETS)],
)
def test_the_density_that_a_target_defines_is_sampled(sampler, kind):
    """A fixed seed; the sd of the base is ten times as large."""
    sd = sampled(sampler(TARGETS[kind]())).positions.std((0, 1))
    assert (np.abs(sd / SD - 1) < 0.35).all(), sd


@pytest.mark.parametrize(
    "make",
    [
        lambda t: rb.MCLMC(t, adjusted=True),
        lambda t: rb.SGLD(t, step_size=1e-3, batch_size=None),
        lambda t: rb.SGHMC(t, step_size=1e-4, batch_size=None),
        lambda t: rb.BAOAB(t, step_size=1e-3, batch_size=None),
    ],
    ids=["adjusted", "SGLD", "SGHMC", "BAOAB"],
)
def test_other_samplers_do_too(make):
    sd = sampled(make(made(Tight))).positions.std((0, 1))
    assert (np.abs(sd / SD - 1) < 0.5).all(), sd


def test_a_marginal_of_another_density_is_not_moved():
    plain, own = (made(k, (rb.Dense(2), rb.Activation("tanh"), rb.Dense(1))) for k in KINDS)
    assert rb.HMC(plain)._marginal is not None
    assert rb.HMC(own)._marginal is None


KINDS = (rb.Posterior, Tight)


def test_what_remains_of_an_integrated_posterior_has_its_own_density():
    layers = (rb.Dense(2), rb.Activation("tanh"), rb.Dense(1))
    target = made(Tight, layers, marginalize="last_layer")
    positions = sampled(rb.HMC(target)).positions[:, :, : target.dim]
    sd = positions.std((0, 1))
    assert target.dim < target.full_dim
    assert (np.abs(sd / SD - 1) < 0.35).all(), sd


@pytest.mark.parametrize("fit", FITS)
def test_fits_of_another_density_are_refused(fit):
    layers = (rb.Dense(2), rb.Activation("tanh"), rb.Dropout(0.1), rb.Dense(1))
    target = made(Tight, layers if fit == "MCDropout" else layers[::3])
    with pytest.raises(TypeError, match=rf"\[{fit}\] Tight replaces value_and_grad but not"):
        FITS[fit](target)


def test_an_ensemble_start_of_another_density_is_refused():
    with pytest.raises(TypeError, match="Tight replaces value_and_grad but not advance"):
        rb.HMC(made(Tight)).sample(2, warmup=2, init="ensemble", progress=False)


@pytest.mark.parametrize("sampler", [rb.SGLD, rb.SGHMC, rb.BAOAB])
def test_minibatches_of_replaced_terms_are_refused(sampler):
    with pytest.raises(TypeError, match="replaces terms_and_grad but not value_and_grad"):
        sampler(made(TightTerms), step_size=1e-3)


@pytest.mark.parametrize("name", ["log_prior", "log_likelihood", "log_density", "outputs"])
@pytest.mark.parametrize("base", [rb.Posterior, Wrapper])
def test_what_the_density_does_not_call_is_refused(base, name):
    kind = type("Mine", (base,), {name: lambda self, *arguments: 0.0})
    target = kind(made()) if base is Wrapper else made(kind)
    with pytest.raises(TypeError, match=rf"\[HMC\] Mine replaces {name}, which"):
        rb.HMC(target)


def test_programs_of_xla_refuse_another_density():
    assert cpu.xla_number("jax_log_density", made(Harmless)) > 0
    with pytest.raises(TypeError, match=r"\[jax_log_density\] Tight replaces value_and_grad"):
        cpu.xla_number("jax_log_density", made(Tight))


def test_a_function_density_with_another_gradient_is_sampled():
    class Mine(rb.CallableDensity):
        def value_and_grad(self, theta, rows=None):
            return narrower(super().value_and_grad)(theta)

    target = Mine(lambda q: (-0.5 * (q**2).sum(), -q), 2)
    sd = sampled(rb.HMC(target, trajectory_length=0.3)).positions.std((0, 1))
    assert (np.abs(sd / SD - 1) < 0.35).all(), sd


def test_a_base_class_of_a_user_may_call_what_its_subclass_replaces():
    class Base:
        dim = 2

        def log_prior(self, theta):
            return 0.0

        def value_and_grad(self, theta, rows=None):
            return self.log_prior(theta) - 0.5 * (theta**2).sum(-1), -theta

    class Mine(Base):
        def log_prior(self, theta):
            return np.ones(len(theta))

    assert Density(Mine(), function="HMC").terms_and_grad(np.zeros((3, 2)))[0][0] == 1.0


class Harmless(rb.Posterior):
    def __repr__(self):
        return "Harmless()"

    def rmse(self, theta):
        return 0.0


@pytest.mark.parametrize("kind", [Harmless, Wrapper])
def test_harmless_ones_run_natively(kind):
    plain = made()
    target = Wrapper(plain) if kind is Wrapper else made(kind)
    density = Density(target, function="HMC")
    assert density.core is not None
    assert density.interruptible
    assert density.fingerprint == plain.fingerprint
    draws = [rb.HMC(t).sample(5, warmup=5, seed=1, progress=False) for t in (plain, target)]
    assert draws[0].positions.tobytes() == draws[1].positions.tobytes()
    rb.BBB(target)
    rb.LaplaceApproximation(target)


def test_no_target_of_ours_loses_a_member():
    target = made()
    for density in (target, target.joint, target.subset([0, 1])):
        names = [n for n in dir(type(density)) if getattr(density, n, None) is not None]
        assert all(overrides.followed(density, name) for name in names if name[:2] != "__")


def test_a_replaced_density_has_no_fingerprint():
    target = made(Tight)
    assert target.fingerprint  # is kept in the object from here on
    assert Density(target, function="HMC").fingerprint is None


@pytest.mark.parametrize("kind", ["subclass", "wrapper"])
def test_a_copy_in_another_process_has_the_same_density(kind):
    target = TARGETS[kind]()
    if kind == "subclass":
        object.__setattr__(target, "more", 3)
    there = pickle.loads(pickle.dumps(target))
    theta = target.init(0, chains=2)
    assert type(there) is type(target)
    assert getattr(there, "more", 3) == 3
    np.testing.assert_array_equal(there.value_and_grad(theta)[0], target.value_and_grad(theta)[0])


def test_some_rows_have_the_class_of_all():
    assert type(made(Tight).subset([0, 1])) is Tight


def test_replaced_predictions_are_those_of_draws(tmp_path):
    class Shifted(rb.Posterior):
        def predictive(self, theta, x):
            terms = super().predictive(theta, x)
            return rb.protocols.PredictiveTerms(mean=terms.mean + 100.0, noise_sd=terms.noise_sd)

    target = made(Shifted, (rb.Dense(2), rb.Activation("tanh"), rb.Dense(1)))
    draws = rb.HMC(target).sample(5, warmup=20, seed=0, progress=False)
    assert (draws.predict(X).mean > 50).all()
    draws.save(tmp_path / "draws.rbt")
    with pytest.raises(TypeError, match="expected draws of a target with predictions"):
        rb.load(tmp_path / "draws.rbt").predict(X)
    fit = rb.BBB(target).fit(1, progress=False)
    with pytest.raises(TypeError, match="replaces predictive but not network_predictive"):
        fit.predict(X)
    assert (fit.draws(5).predict(X).mean > 50).all()
