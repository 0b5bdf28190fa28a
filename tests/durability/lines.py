"""One line of every sampler and fit, small enough to be killed often."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb

X, Y = rb.datasets.toy_regression(24, seed=1)
AT = np.linspace(-1.0, 1.0, 3)[:, None]


def posterior() -> rb.Posterior:
    return rb.Posterior(
        rb.mlp(1, (6,), 1), X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(), dtype=np.float64
    )


def dropout_posterior() -> rb.Posterior:
    layers = [rb.Dense(6), rb.Activation("tanh"), rb.Dropout(0.2), rb.Dense(1)]
    model = rb.Model(layers, input_shape=(1,))
    return rb.Posterior(model, X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.2))


def _sample(sampler: Any, store: Any, num_draws: int = 60, **options: Any) -> rb.Draws:
    options = {"warmup": 40, "chains": 2, "seed": 5, "progress": False, **options}
    draws: rb.Draws = sampler.sample(num_draws, store=store, **options)
    return draws


LINES: dict[str, Any] = {
    "hmc": lambda s: _sample(
        rb.HMC(posterior(), step_size="auto", num_leapfrog_steps=5),
        s,
        save_warmup=True,
        predict_at=(AT, np.zeros(3)),
    ),
    "hmc, until": lambda s: rb.HMC(posterior(), step_size=0.01, num_leapfrog_steps=20).sample(
        until=rb.Converged(rhat=1.1, ess=60, at=AT),
        max_draws=3000,
        warmup=50,
        chains=2,
        seed=5,
        progress=False,
        store=s,
    ),
    "hmc, no draws": lambda s: _sample(
        rb.HMC(posterior(), step_size=0.02, num_leapfrog_steps=5),
        s,
        num_draws=700,
        predict_at=AT,
        save_draws=False,
    ),
    "hmc, ensemble": lambda s: _sample(
        rb.HMC(posterior(), step_size=0.02, num_leapfrog_steps=5), s, num_draws=400, init="ensemble"
    ),
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
