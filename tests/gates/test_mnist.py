"""Gate "MNIST": BBB, MC dropout and SGLD on 10,000 digits, a network of 2 x 400 ReLU units.

Pixels are divided by 126 as Blundell et al. 2015 do, for MC dropout by 255; 2,000 test digits, no
augmentation, predictions averaged over draws. Gates on the error: BBB 5 %, MC dropout 4 %, SGLD
5 %; three standard errors of a rate of 5 % on 2,000 digits are 1.5 %.
"""

import numpy as np
import pytest

import ribbit as rb
from tests.gates.mnist import BATCH, STEPS, digits, figures, table


def load(folder, scale):
    x, y, x_test, y_test = digits(folder)
    rows, rows_test = ((a.reshape(-1, 784) / scale).astype(np.float32) for a in (x, x_test))
    return rows, y, rows_test, y_test


def posterior(x, y, prior_sd):
    model = rb.mlp(784, (400, 400), 10, activation="relu")
    return rb.Posterior(model, x, y, prior=rb.Normal(prior_sd), likelihood=rb.Categorical())


def bbb(folder):
    x, y, x_test, y_test = load(folder, 126)
    epochs = 40
    fit = rb.BBB(
        posterior(x, y, 0.3),
        batch_size=BATCH,
        learning_rate=1e-3,
        estimator="local",
        init_scale=0.01,
        schedule=rb.schedules.cosine(epochs * STEPS),
    ).fit(epochs, seed=0, progress=False)
    return fit.predict(x_test, 200, seed=1), y_test


def mc_dropout(folder):
    x, y, x_test, y_test = load(folder, 255)
    epochs = 100
    hidden = [[rb.Dense(400), rb.Activation("relu"), rb.Dropout(0.5)] for _ in range(2)]
    model = rb.Model([rb.Dropout(0.2), *hidden[0], *hidden[1], rb.Dense(10)], input_shape=(784,))
    target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Categorical())
    fit = rb.MCDropout(
        target,
        batch_size=BATCH,
        learning_rate=1e-3,
        schedule=rb.schedules.cosine(epochs * STEPS),
    ).fit(epochs, seed=0, progress=False)
    return fit.draws(200, seed=1).predict(x_test), y_test


def sgld(folder):
    """Two chains of 500 epochs from two trained members, 40 draws each of the last two thirds."""
    x, y, x_test, y_test = load(folder, 126)
    target = posterior(x, y, 0.3)
    warm, epochs = 20, 500
    start = rb.DeepEnsemble(
        target, members=2, batch_size=BATCH, schedule=rb.schedules.cosine(warm * STEPS)
    ).fit(warm, seed=0, progress=False)
    draws = rb.SGLD(target, step_size=2e-5, batch_size=BATCH).sample(
        40,
        warmup=epochs * STEPS // 3,
        thin=epochs * STEPS // 60,
        chains=2,
        seed=0,
        init=start.theta,
        progress=False,
    )
    return draws.predict(x_test), y_test


METHODS = {"BBB": (bbb, 0.05), "MC dropout": (mc_dropout, 0.04), "SGLD": (sgld, 0.05)}


# the recipes of papers: pixels as they scale them, and so many epochs
@pytest.mark.filterwarnings("ignore::ribbit.errors.ScaleWarning")
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_error(shared_data, name):
    method, gate = METHODS[name]
    error, nll, ece = figures(shared_data, method)
    assert error <= gate, (error, nll, ece)
    assert nll < 0.25
    assert ece < 0.05


def results(folder):
    return [table("MNIST, 10,000 digits, 784-400-400-10 ReLU", METHODS, folder)]
