"""The demo's second job: one curve, one network, five methods.

20,000 rows of the noisy curve of Blundell et al. (2015), 16,000 of them for training, a network
1-20-20-20-20-1 (five dense layers) with one learned noise sd, and 1,000 forward draws per method.

The settings were chosen on another data set of the same curve (another data seed): those of Bayes
by Backprop by its ELBO, the dropout rate by rows held out of that set, those of HMC and SGLD by the
log density of its training rows, divergences and R-hat. Rates and lengths of the Adam runs hardly
matter there (0.01 nats per row). The test rows of the demo chose nothing.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ribbit import datasets, diagnostics, metrics, schedules
from ribbit._cli.demo_scores import Array, Scores, score_draws
from ribbit.errors import ConvergenceWarning
from ribbit.models.layers import Activation, Dense, Dropout
from ribbit.models.model import Model
from ribbit.results.draws import Draws
from ribbit.results.fits import MeanField
from ribbit.samplers.fit.bbb import BBB
from ribbit.samplers.fit.ensemble import DeepEnsemble
from ribbit.samplers.fit.mc_dropout import MCDropout
from ribbit.samplers.mcmc.hmc import HMC
from ribbit.samplers.sgmcmc.sgld import SGLD
from ribbit.targets.likelihoods import Gaussian
from ribbit.targets.posterior import Posterior
from ribbit.targets.priors import Normal

__all__ = ["METHODS", "Comparison", "MethodResult", "compare_methods"]

METHODS = ("HMC", "SGLD", "Bayes by Backprop", "MC dropout", "deep ensemble")

_HIDDEN = (20, 20, 20, 20)
_CHAINS = 4
_MEMBERS = 5
_DROPOUT = 0.02
_BATCH = 128
_DATA_SEED = 0
_NOISE = 0.02  # sd of e in datasets.toy_regression


@dataclass(frozen=True)
class Sizes:
    """How long everything runs; steps are minibatches of 128 rows unless said otherwise."""

    rows: int = 20_000
    draws: int = 1_000
    bbb_steps: int = 12_500
    adam_steps: int = 5_000  # MC dropout, and each member of the ensemble
    hmc_warmup: int = 40
    sgld_warmup: int = 4_000  # of 512 rows
    sgld_thin: int = 150


_FULL = Sizes()
_QUICK = Sizes(
    rows=4_000,
    draws=200,
    bbb_steps=4_000,
    adam_steps=2_000,
    hmc_warmup=30,
    sgld_warmup=2_000,
    sgld_thin=100,
)


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What one method found.

    Attributes
    ----------
    scores : Scores
        On the test rows.
    seconds : float
        Of fitting or sampling and of predicting the test rows; for HMC and SGLD with the fit of
        Bayes by Backprop that they start from.
    draws : Draws
    rhat : (float, float) or None
        Median and largest R-hat of the predictions, for methods with chains.
    complete : bool
        False when Ctrl-C ended it.
    """

    scores: Scores
    seconds: float
    draws: Draws
    rhat: tuple[float, float] | None
    complete: bool


@dataclass(frozen=True, eq=False)
class Comparison:
    """What the methods found.

    Attributes
    ----------
    results : dict of MethodResult
        By name, in the order of `METHODS`; fewer after Ctrl-C.
    scaler : Scaler
        Made from the training rows.
    x_test, y_test : (N, 1) and (N,) array
        Neither is standardised.
    rmse_truth, rmse_constant : float
        On the test rows: of the true mean of y at x, and of the mean of the training rows.
    """

    results: dict[str, MethodResult]
    scaler: datasets.Scaler
    x_test: Array
    y_test: Array
    rmse_truth: float
    rmse_constant: float


def compare_methods(*, quick: bool, seed: int, progress: bool = True) -> Comparison:
    """Run the five methods, and stop at Ctrl-C with what there is.

    Parameters
    ----------
    quick : bool
        A fifth of the rows and of the draws.
    seed : int
        Of the methods; the data stay.
    progress : bool
        As for :meth:`ribbit.HMC.sample`.

    Returns
    -------
    Comparison
    """
    sizes = _QUICK if quick else _FULL
    x, y = datasets.toy_regression(sizes.rows, _DATA_SEED)
    train = sizes.rows * 4 // 5  # rows are independent, so the first ones are as good as any
    scaler = datasets.standardize(x[:train], y[:train])
    x_test, y_test = x[train:], y[train:]
    found: dict[str, MethodResult] = {}
    try:
        for name, draws, complete, seconds in _runs(scaler, sizes, seed, progress):
            if len(draws) >= 4:  # R-hat asks for four
                begin = time.perf_counter()
                scores, _ = score_draws(draws, scaler, scaler.transform(x_test), y_test)
                seconds += time.perf_counter() - begin
                rhat = _rhat(draws, scaler.transform(x_test)) if name in METHODS[:2] else None
                found[name] = MethodResult(scores, seconds, draws, rhat, complete)
            if not complete:
                break
    except KeyboardInterrupt:  # between two fits: those inside one come back incomplete
        pass
    return Comparison(
        results={name: found[name] for name in METHODS if name in found},
        scaler=scaler,
        x_test=x_test,
        y_test=y_test,
        rmse_truth=metrics.rmse(y_test, _true_mean(x_test[:, 0])),
        rmse_constant=metrics.rmse(y_test, np.full(len(y_test), y[:train].mean())),
    )


def _runs(
    scaler: datasets.Scaler, sizes: Sizes, seed: int, progress: bool
) -> Iterator[tuple[str, Draws, bool, float]]:
    """Name, draws, completeness and seconds of each method, HMC last because it takes longest."""
    target = _target(scaler)
    begin = time.perf_counter()
    fit = _fit_bbb(target, sizes, seed, progress)
    bbb_seconds = time.perf_counter() - begin
    yield "Bayes by Backprop", fit.draws(sizes.draws, seed=seed), fit.complete, bbb_seconds
    others: dict[str, Callable[[], tuple[Draws, bool]]] = {
        "MC dropout": lambda: _dropout(scaler, sizes, seed, progress),
        "deep ensemble": lambda: _ensemble(target, sizes, seed, progress),
        "SGLD": lambda: _sgld(target, fit, sizes, seed, progress),
        "HMC": lambda: _hmc(target, fit, sizes, seed, progress),
    }
    for name, run in others.items():
        begin = time.perf_counter()
        draws, complete = run()
        seconds = time.perf_counter() - begin
        yield name, draws, complete, seconds + (bbb_seconds if name in METHODS[:2] else 0.0)


def _target(scaler: datasets.Scaler, *, dropout: float | None = None) -> Posterior:
    layers: list[Dense | Activation | Dropout] = []
    for width in _HIDDEN:
        layers += [Dense(width), Activation("relu")]
        if dropout is not None:
            layers.append(Dropout(dropout))
    assert scaler.y is not None
    return Posterior(
        Model((*layers, Dense(1)), input_shape=(1,)),
        scaler.x,
        scaler.y,
        prior=Normal(math.sqrt(2.0), fan_in=True),  # He et al. (2015): the scale ReLU layers keep
        likelihood=Gaussian(),
    )


def _epochs(steps: int, target: Posterior) -> tuple[int, schedules.Schedule]:
    """Epochs of about `steps` batches, and a rate that falls to a hundredth over them."""
    batches = -(-target.num_rows // _BATCH)
    epochs = max(1, round(steps / batches))
    return epochs, schedules.cosine(epochs * batches, final=0.01)


def _fit_bbb(target: Posterior, sizes: Sizes, seed: int, progress: bool) -> MeanField:
    epochs, schedule = _epochs(sizes.bbb_steps, target)
    bbb = BBB(target, learning_rate=2e-2, batch_size=_BATCH, schedule=schedule)
    return bbb.fit(epochs, seed=seed, progress=progress)


def _dropout(
    scaler: datasets.Scaler, sizes: Sizes, seed: int, progress: bool
) -> tuple[Draws, bool]:
    target = _target(scaler, dropout=_DROPOUT)
    epochs, schedule = _epochs(sizes.adam_steps, target)
    mcd = MCDropout(target, learning_rate=5e-3, batch_size=_BATCH, schedule=schedule)
    fit = mcd.fit(epochs, seed=seed, progress=progress)
    # One mask per draw, not per row: the law of each row is the same, and a draw is a function.
    return fit.draws(sizes.draws, seed=seed, masks="shared"), fit.complete


def _ensemble(target: Posterior, sizes: Sizes, seed: int, progress: bool) -> tuple[Draws, bool]:
    epochs, schedule = _epochs(sizes.adam_steps, target)
    ensemble = DeepEnsemble(
        target, members=_MEMBERS, learning_rate=5e-3, batch_size=_BATCH, schedule=schedule
    )
    fit = ensemble.fit(epochs, seed=seed, progress=progress)
    return fit.draws(), fit.complete


def _sgld(
    target: Posterior, fit: MeanField, sizes: Sizes, seed: int, progress: bool
) -> tuple[Draws, bool]:
    # The posterior's variances, and with them the step, shrink as the rows grow.
    sgld = SGLD(target, step_size=0.016 / target.num_rows, batch_size=4 * _BATCH)
    with quiet():
        draws = sgld.sample(
            sizes.draws // _CHAINS,
            warmup=sizes.sgld_warmup,
            thin=sizes.sgld_thin,
            init=fit.sample(_CHAINS, seed),
            seed=seed,
            progress=progress,
        )
    return draws, draws.complete


def _hmc(
    target: Posterior, fit: MeanField, sizes: Sizes, seed: int, progress: bool
) -> tuple[Draws, bool]:
    # A trained network is no draw: it sits hundreds of nats above the typical log density, and the
    # many weights that the data leave free take long to spread. Draws of the mean-field fit have
    # spread, and its variances are the mass.
    hmc = HMC(
        target,
        step_size="auto",
        num_leapfrog_steps=16,
        inverse_mass_matrix=fit.scale.astype(np.float64) ** 2,
        jitter=0.1,
        target_acceptance=0.9,  # at 0.8 late draws diverge: steps fit where warmup was
    )
    with quiet():
        draws = hmc.sample(
            sizes.draws // _CHAINS,
            warmup=sizes.hmc_warmup,
            init=fit.sample(_CHAINS, seed),
            seed=seed,
            progress=progress,
        )
    return draws, draws.complete


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warning of chains that have not converged: the demo prints their R-hat itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _rhat(draws: Draws, x_test: Array) -> tuple[float, float]:
    values = diagnostics.predictive_rhat(draws, x_test[::20])
    return float(np.median(values)), float(np.max(values))


def _true_mean(x: Array) -> Array:
    """E[y] at x (N,): E[sin(a (x + e))] = sin(a x) exp(-(a sd)^2 / 2) for e ~ N(0, sd^2)."""
    total = x.copy()
    for rate in (2.0 * math.pi, 4.0 * math.pi):
        total += 0.3 * np.sin(rate * x) * math.exp(-0.5 * (rate * _NOISE) ** 2)
    return total
