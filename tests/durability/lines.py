"""One line of every sampler and fit, small enough to be killed often."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb

X, Y = rb.datasets.toy_regression(24, seed=1)
AT = np.linspace(-1.0, 1.0, 3)[:, None]


def posterior(likelihood: Any = None) -> rb.Posterior:
    likelihood = rb.Gaussian() if likelihood is None else likelihood
    model = rb.mlp(1, (6,), 1)
    return rb.Posterior(model, X, Y, prior=rb.Normal(1.0), likelihood=likelihood, dtype=np.float64)


def dropout_posterior() -> rb.Posterior:
    layers = [rb.Dense(6), rb.Activation("tanh"), rb.Dropout(0.2), rb.Dense(1)]
    model = rb.Model(layers, input_shape=(1,))
    return rb.Posterior(model, X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.2))


def _sample(sampler: Any, store: Any, num_draws: int | None = 60, **options: Any) -> rb.Draws:
    options = {"warmup": 40, "chains": 2, "seed": 5, "progress": False, **options}
    draws: rb.Draws = sampler.sample(num_draws, store=store, **options)
    return draws


def _hmc(step_size: float | str = "auto") -> rb.HMC:
    return rb.HMC(posterior(), step_size=step_size, num_leapfrog_steps=5)


def _until(store: Any) -> rb.Draws:
    """Sample until a rule is met, at one of many looks."""
    hmc = rb.HMC(posterior(rb.Gaussian(0.3)), step_size="auto", num_leapfrog_steps=10)
    rule = rb.Converged(rhat=1.05, ess=200, at=AT)
    draws = _sample(hmc, store, None, warmup=100, until=rule, max_draws=8000)
    assert draws.settings["stopped"]["reason"] == "converged"
    return draws


def _keep_predictions(store: rb.Store | None) -> rb.Draws:
    """Sample without draws; the folder has the predictions of each draw."""
    if store is not None:
        store = dataclasses.replace(store, keep="predictions")
    return _sample(_hmc(), store, num_draws=700, predict_at=AT, save_draws=False)


def _on_processes(sampler: Any, store: Any, **options: Any) -> rb.Draws:
    """Sample on two forks, which have no modules to import."""
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as pool:
        return _sample(sampler, store, executor=pool, **options)


LINES: dict[str, Any] = {
    "hmc": lambda s: _sample(_hmc(), s, save_warmup=True),
    "hmc, predict_at": lambda s: _sample(_hmc(), s, predict_at=(AT, np.zeros(3))),
    "hmc, until": _until,
    "hmc, no draws": lambda s: _sample(
        _hmc(0.02), s, num_draws=700, predict_at=AT, save_draws=False
    ),
    "hmc, keep=predictions": _keep_predictions,
    "hmc, init=ensemble": lambda s: _sample(_hmc(), s, init="ensemble"),
    "hmc, executor": lambda s: _on_processes(_hmc(), s),
    "nuts": lambda s: _sample(rb.NUTS(posterior(), max_tree_depth=4), s),
    "mclmc": lambda s: _sample(rb.MCLMC(posterior()), s, warmup=300, thin=3),
    "mclmc, adjusted": lambda s: _sample(rb.MCLMC(posterior(), adjusted=True), s, warmup=100),
    "sgld": lambda s: _sample(rb.SGLD(posterior(), step_size=1e-4, batch_size=8), s, thin=5),
    "sgld, rmsprop": lambda s: _sample(
        rb.SGLD(posterior(), step_size=1e-4, batch_size=8, preconditioner="rmsprop"), s, thin=5
    ),
    "sghmc": lambda s: _sample(rb.SGHMC(posterior(), step_size=1e-5, batch_size=8), s, thin=5),
    "baoab": lambda s: _sample(rb.BAOAB(posterior(), batch_size=8), s, warmup=200, thin=5),
    "bbb": lambda s: rb.BBB(posterior(), batch_size=8).fit(1500, progress=False, store=s),
    "dropout": lambda s: rb.MCDropout(dropout_posterior(), batch_size=8).fit(
        1500, progress=False, store=s
    ),
    "concrete dropout": lambda s: rb.MCDropout(
        dropout_posterior(), rate="concrete", batch_size=8
    ).fit(1500, progress=False, store=s),
    "ensemble": lambda s: rb.DeepEnsemble(posterior(), members=2, batch_size=8).fit(
        1500, progress=False, store=s
    ),
    "laplace": lambda s: rb.LaplaceApproximation(posterior(), batch_size=8).fit(
        1500, progress=False, store=s
    ),
    "swag": lambda s: rb.SWAG(posterior(), members=2, batch_size=8).fit(
        200, swag_epochs=200, progress=False, store=s
    ),
}


def result(name: str, store: Any = None) -> dict[str, np.ndarray]:
    """Every array that a line gives, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # short runs have not converged
        return arrays_of(LINES[name](store))


def arrays_of(found: Any) -> dict[str, np.ndarray]:
    """Every array of draws or of a fit, by name."""
    if not isinstance(found, rb.Draws):
        header, arrays = found._packed()
        assert header["complete"]
        return {k: np.asarray(v) for k, v in arrays.items()}
    arrays = {"positions": np.asarray(found.positions), "state": found.state.position}
    arrays |= {f"stats/{k}": np.asarray(v) for k, v in found.stats.items()}
    if found.warmup_positions is not None:
        arrays["warmup"] = np.asarray(found.warmup_positions)
        arrays |= {f"warmup/{k}": np.asarray(v) for k, v in found.warmup_stats.items()}
    if found.prediction is not None:
        plain, gathered = found.prediction.running.pack()
        arrays |= {f"prediction/{k}": v for k, v in gathered.items()}
        arrays["prediction"] = np.array(repr(plain))
    if found.monitored is not None:
        arrays["monitored"] = found.monitored
        arrays["stopped"] = np.array(repr(found.settings["stopped"]))
    assert found.complete
    return arrays


def difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> str:
    """Name the first array that differs in a bit; "" where none does."""
    if a.keys() != b.keys():
        return f"names {sorted(a.keys() ^ b.keys())}"
    for name, values in a.items():
        other = b[name]
        if values.dtype != other.dtype or values.shape != other.shape:
            return f"{name}: {values.dtype} {values.shape}, {other.dtype} {other.shape}"
        if values.tobytes() != other.tobytes():
            return name
    return ""


def quick(path: Path, **options: Any) -> rb.Store:
    """Options of a folder whose checkpoints come as often as they can."""
    return rb.Store(path, flush_seconds=1e-3, **options)
