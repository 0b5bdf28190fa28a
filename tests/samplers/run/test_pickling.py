"""Samplers and fits travel between processes: a copy makes the same draws."""

import pickle

import numpy as np
import pytest

import ribbit as rb

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
OPTIONS = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian()}
PLAIN = rb.Posterior(rb.mlp(2, (3,), 1), X, X[:, 0], **OPTIONS)
LAYERS = [rb.Dense(3), rb.Dropout(0.1), rb.Dense(1)]
DROPPING = rb.Posterior(rb.Model(LAYERS, input_shape=(2,)), X, X[:, 0], **OPTIONS)
HMC = {"step_size": 1e-2, "num_leapfrog_steps": 3}
SAMPLERS = {
    "hmc": rb.HMC(PLAIN, **HMC),
    "nuts": rb.NUTS(PLAIN, step_size=1e-2, max_tree_depth=3),
    "sgld": rb.SGLD(PLAIN, batch_size=7),
    "sghmc": rb.SGHMC(PLAIN, batch_size=7),
    "baoab": rb.BAOAB(PLAIN, step_size=1e-2, batch_size=7),
    "mclmc": rb.MCLMC(PLAIN, step_size=0.01, decoherence_length=1.0),
}
FITS = {
    "bbb": rb.BBB(PLAIN, batch_size=7),
    "mc_dropout": rb.MCDropout(DROPPING, batch_size=7, rate="concrete"),
    "ensemble": rb.DeepEnsemble(PLAIN, members=2, batch_size=7),
    "swag": rb.SWAG(PLAIN, members=2, batch_size=7),
    "laplace": rb.LaplaceApproximation(PLAIN, batch_size=7),
}


def copy(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_copy_of_a_sampler_makes_the_same_draws(name):
    run = {"warmup": 3, "chains": 2, "progress": False}
    draws, again = (s.sample(4, **run) for s in (SAMPLERS[name], copy(SAMPLERS[name])))
    assert draws.positions.tobytes() == again.positions.tobytes()
    other = SAMPLERS[name].sample(4, seed=1, **run)
    assert draws.positions.tobytes() != other.positions.tobytes()


# a few epochs, whose objective rises: what they converge to does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
@pytest.mark.parametrize("name", FITS)
def test_a_copy_of_a_fit_predicts_the_same(name):
    fit, again = (f.fit(2, progress=False) for f in (FITS[name], copy(FITS[name])))
    predictions = [f.draws(5).predict(X[:3]).mean for f in (fit, again, copy(fit))]
    assert predictions[0].tobytes() == predictions[1].tobytes() == predictions[2].tobytes()
