"""Tasks of the methods that are compared with HMC."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from studies.izmailov.chains import forward_passes, hmc, reference
from studies.izmailov.scores import log_likelihood
from studies.izmailov.shift import CORRUPTIONS, corrupt, shifted_predictions
from studies.izmailov.study import Arrays, Study, Task

RATE = 0.1
CYCLE = 800
"""Updates of a cycle of SGHMC with cyclical steps, at the size laptop."""


def _sgld(study: Study, target: Any, seed: int, store: Path) -> Any:
    sampler = rb.SGLD(target, step_size="auto", batch_size=study.size.batch_size)
    return _sample(study, sampler, seed, store)


def _sghmc(study: Study, target: Any, seed: int, store: Path) -> Any:
    sampler = rb.SGHMC(target, step_size="auto", batch_size=study.size.batch_size)
    return _sample(study, sampler, seed, store)


def _cycles(study: Study, target: Any, seed: int, store: Path) -> Any:
    size = study.size
    count = max(1, size.updates // CYCLE)
    length = size.updates // count
    schedule = rb.schedules.cyclical(count, length)
    sampler = rb.SGHMC(target, step_size="auto", batch_size=size.batch_size, schedule=schedule)
    warmup = max(1, count // 2) * length
    return sampler.sample(
        count, warmup=warmup, chains=size.chains, seed=seed, progress=False, store=store
    )


def _sample(study: Study, sampler: Any, seed: int, store: Path) -> Any:
    size = study.size
    return sampler.sample(
        size.draws,
        warmup=size.updates // 2,
        thin=max(1, size.updates // size.draws),
        chains=size.chains,
        seed=seed,
        progress=False,
        store=store,
    )


def _mclmc(study: Study, target: Any, seed: int, store: Path) -> Any:
    size = study.size
    more: dict[str, Any] = {"warmup": 500, "thin": 5} if size.name == "test" else {}
    return rb.MCLMC(target).sample(
        size.draws, chains=size.chains, seed=seed, progress=False, store=store, **more
    )


def _bbb(study: Study, target: Any, seed: int, store: Path) -> Any:
    fit = rb.BBB(target).fit(4 * study.size.epochs, seed=seed, progress=False, store=store)
    return fit.draws(study.size.draws, seed=seed)


def _dropout(study: Study, target: Any, seed: int, store: Path) -> Any:
    sampler = rb.MCDropout(target, batch_size=study.size.batch_size)
    fit = sampler.fit(study.size.epochs, seed=seed, progress=False, store=store)
    return fit.draws(study.size.draws, seed=seed)


def _swag(study: Study, target: Any, seed: int, store: Path) -> Any:
    sampler = rb.SWAG(target, batch_size=study.size.batch_size)
    fit = sampler.fit(study.size.epochs, seed=seed, progress=False, store=store)
    return fit.draws(study.size.draws, seed=seed)


def _laplace(study: Study, target: Any, seed: int, store: Path) -> Any:
    sampler = rb.LaplaceApproximation(target, batch_size=study.size.batch_size)
    # The fit, not its draws: it predicts by the linearized network.
    return sampler.fit(study.size.epochs, seed=seed, progress=False, store=store)


def _ensemble(study: Study, target: Any, seed: int, store: Path) -> Any:
    size = study.size
    sampler = rb.DeepEnsemble(target, members=size.members, batch_size=size.batch_size)
    return sampler.fit(size.epochs, seed=seed, progress=False, store=store).draws()


Make = Callable[[Study, Any, int, Path], Any]
# Methods whose predictions under corruptions are kept.
SHIFTED = ("ensemble", "sgld", "bbb", "mc dropout")
METHODS: dict[str, Make] = {
    "ensemble": _ensemble,
    "sgld": _sgld,
    "sghmc": _sghmc,
    "sghmc cyclical": _cycles,
    "bbb": _bbb,
    "mc dropout": _dropout,
    "swag": _swag,
    "laplace": _laplace,
    "mclmc": _mclmc,
}
AT_ANY_SIZE = ("ensemble", "sgld", "sghmc", "sghmc cyclical", "bbb", "mc dropout")
BY_HAND = (
    'SGLD and SGHMC: `step_size="auto"`, batches of {batch_size}, {updates:,} updates per chain '
    "after a warmup of half as many; "
    "cyclical SGHMC: one draw at the end of each cycle of 800 updates; "
    "deep ensemble: {members} networks, trained for {epochs:,} epochs of Adam; "
    "one network: mean score of the networks of the ensemble; "
    "the number of epochs was chosen on split 100, which no figure uses; "
    "the networks have the same prior as HMC, not tuned, while the paper tunes weight decay and "
    "trains by SGD; "
    "mean-field VI: {four:,} epochs; "
    "MC dropout: rate 0.1; "
    "MCLMC, SWAG and Laplace: default settings"
)


def names(study: Study) -> list[str]:
    """Return the methods of a size; SWAG, Laplace and MCLMC need a small network."""
    return list(METHODS if study.size.name == "laptop" else AT_ANY_SIZE)


def other_chains(study: Study, seed: int) -> Task:
    """Return HMC with another seed, which shows how far two runs of one posterior differ."""
    return hmc(study, seed, name="hmc2", chain_seed=500)


def tasks(study: Study) -> list[Task]:
    """Return two runs of HMC and a run of every method, on every split."""
    out = []
    for seed in study.size.splits:
        out += [reference(study, seed), other_chains(study, seed)]
        out += [task(study, name, seed) for name in names(study)]
    return out


def task(study: Study, name: str, seed: int, *, scale: float = 1.0) -> Task:
    """Fit or sample one method and keep its probabilities, also per member of an ensemble.

    Corruptions are predicted only under the prior of scale 1.
    """
    size = study.size
    shifts = name in SHIFTED and study.images and scale == 1
    other: dict[str, Any] = {} if scale == 1 else {"scale": scale}
    if name == "laplace":
        other["predict"] = "linearized"
    settings = study.settings(
        method=name,
        split=seed,
        shifts=shifts,
        epochs=size.epochs,
        members=size.members,
        updates=size.updates,
        batch_size=size.batch_size,
        rate=RATE,
        cycle=CYCLE,
        **other,
    )

    def make(store: Path) -> Arrays:
        split = study.split(seed)
        prior = rb.Normal(size.prior_sd * scale)
        rate = RATE if name == "mc dropout" else 0.0
        target = study.target(split, prior=prior, rate=rate)
        draws = METHODS[name](study, target, 1000 * seed, store)
        x = split.scaled(split.x_test)
        prediction = draws.predict(x, keep=True) if name == "ensemble" else draws.predict(x)
        out: Arrays = {"probs": np.asarray(prediction.probs, dtype=np.float64)}
        if name == "ensemble":
            each = np.asarray(prediction.samples, dtype=np.float64)
            out["members"] = each.reshape(-1, *out["probs"].shape)
        if shifts:
            out["shifted"] = shifted_predictions(study, split, draws)
        if shifts and name == "ensemble":
            out["shifted_members"] = shifted_members(study, split, draws)
        return out

    epoch = size.batch_size / size.rows  # an update in gradients on all rows
    gradients = {
        "ensemble": size.epochs * size.members,
        "bbb": 4 * size.epochs,
        "mclmc": size.chains * (max(10_000, 20 * size.draws) + 20 * size.draws),
        "sgld": 1.5 * size.updates * size.chains * epoch,
        "sghmc": 1.5 * size.updates * size.chains * epoch,
        "sghmc cyclical": 1.5 * size.updates * size.chains * epoch,
    }.get(name, size.epochs)
    share = 1 / size.chains if name in ("bbb", "mc dropout", "swag", "laplace") else 1.0
    gradients += share * forward_passes(study, shifts=shifts) * (name != "ensemble")
    label = name.replace(" ", "_") + ("" if scale == 1 else f"-scale{scale:g}")
    return Task(f"{label}-split{seed}", settings, gradients, make)


def shifted_members(study: Study, split: Any, draws: Any) -> np.ndarray:
    """Accuracy and log likelihood of each member alone, (2, kinds, strengths), averaged."""
    out = np.empty((2, len(CORRUPTIONS), len(study.size.strengths)))
    for i, kind in enumerate(CORRUPTIONS):
        for j, strength in enumerate(study.size.strengths):
            x = split.scaled(corrupt(split.x_test, kind, strength))
            each = np.asarray(draws.predict(x, keep=True).samples, dtype=np.float64)
            members = each.reshape(-1, *each.shape[2:])
            out[0, i, j] = np.mean([rb.metrics.accuracy(split.y_test, p) for p in members])
            out[1, i, j] = np.mean([log_likelihood(split.y_test, p) for p in members])
    return out
