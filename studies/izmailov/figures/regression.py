"""Regression on a small table: HMC, one network, an ensemble, and approximations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from studies.izmailov.chains import RHAT_BAR
from studies.izmailov.figures.methods import LABELS
from studies.izmailov.outcomes import Claim, Outcome, above, every
from studies.izmailov.pictures import axes, bars
from studies.izmailov.scores import columns, minus
from studies.izmailov.study import Arrays, Study, Task

NAME = "regression"
TITLE = "Regression on a small table"


@dataclass(frozen=True)
class Plan:
    """Splits (split 0 served to choose settings), network, and lengths of runs."""

    splits: tuple[int, ...] = (1, 2, 3, 4, 5)
    hidden: int = 50
    rows: int = 691
    warmup: int = 100
    draws: int = 150
    chains: int = 4
    members: int = 10
    epochs: int = 5000
    updates: int = 100_000
    leapfrogs: int = 1000


QUICK = Plan((1, 2), 3, 60, 20, 12, 2, 2, 20, 60, 10)
BY_HAND = (
    "data: heating load of 768 buildings, a table that ships with Ribbit; "
    "splits: standard splits 1 to 5 (split 0 served to choose the lengths of runs); "
    "network: 8-50-1 with SiLU, `Normal(1.0, fan_in=True)`, learned noise; "
    "HMC: default settings, 100 trajectories of warmup, 150 draws, 4 chains; "
    "HMC's defaults limit trajectories to 1,024 leapfrogs here, with a warning; "
    "deep ensemble: 10 networks, 5,000 epochs; "
    'SGLD: `step_size="auto"`, 100,000 updates per chain; '
    "mean-field VI: 10,000 epochs; "
    "MC dropout: rate 0.1"
)


def plan_of(study: Study) -> Plan:
    """Return the runs of a size."""
    return QUICK if study.size.name == "test" else Plan()


def splits(study: Study) -> tuple[int, ...]:
    """Return the splits of this figure; the digits have other splits."""
    return plan_of(study).splits


def _hmc(target: Any, plan: Plan, seed: int, store: Path) -> Any:
    return rb.HMC(target).sample(
        plan.draws, warmup=plan.warmup, chains=plan.chains, seed=seed, progress=False, store=store
    )


def _ensemble(target: Any, plan: Plan, seed: int, store: Path) -> Any:
    sampler = rb.DeepEnsemble(target, members=plan.members, batch_size=min(128, plan.rows))
    return sampler.fit(plan.epochs, seed=seed, progress=False, store=store).draws()


def _one_net(target: Any, plan: Plan, seed: int, store: Path) -> Any:
    sampler = rb.DeepEnsemble(target, members=1, batch_size=min(128, plan.rows))
    return sampler.fit(plan.epochs, seed=seed, progress=False, store=store).draws()


def _sgld(target: Any, plan: Plan, seed: int, store: Path) -> Any:
    sampler = rb.SGLD(target, step_size="auto", batch_size=min(128, plan.rows))
    return sampler.sample(
        plan.draws,
        warmup=plan.updates // 2,
        thin=max(1, plan.updates // plan.draws),
        chains=plan.chains,
        seed=seed,
        progress=False,
        store=store,
    )


def _bbb(target: Any, plan: Plan, seed: int, store: Path) -> Any:
    fit = rb.BBB(target).fit(2 * plan.epochs, seed=seed, progress=False, store=store)
    return fit.draws(plan.draws, seed=seed)


def _dropout(target: Any, plan: Plan, seed: int, store: Path) -> Any:
    sampler = rb.MCDropout(target, batch_size=min(128, plan.rows))
    fit = sampler.fit(plan.epochs, seed=seed, progress=False, store=store)
    return fit.draws(plan.draws, seed=seed)


METHODS: dict[str, Callable[[Any, Plan, int, Path], Any]] = {
    "hmc": _hmc,
    "one net": _one_net,
    "ensemble": _ensemble,
    "sgld": _sgld,
    "bbb": _bbb,
    "mc dropout": _dropout,
}


def _task(study: Study, name: str, seed: int) -> Task:
    plan = plan_of(study)
    settings = {"plan": asdict(plan), "method": name, "split": seed, "ribbit": rb.__version__}

    def make(store: Path) -> Arrays:
        x, y = rb.datasets.energy_efficiency()
        train, test = rb.datasets.splits(len(y))[seed]
        train = train[: plan.rows]
        layers: list[Any] = [rb.Dense(plan.hidden), rb.Activation("silu")]
        layers += [rb.Dropout(0.1)] if name == "mc dropout" else []
        target = rb.Posterior(
            rb.Model((*layers, rb.Dense(1)), input_shape=(8,)),
            x[train],
            y[train],
            prior=rb.Normal(1.0, fan_in=True),
            likelihood=rb.Gaussian(),
            standardize=True,
        )
        draws = METHODS[name](target, plan, 1000 * seed, store)
        p = draws.predict(x[test])
        out = {
            "rmse": rb.metrics.rmse(y[test], p.mean),
            "log_likelihood": p.log_likelihood(y[test]),
        }
        if name == "hmc":
            rhat = np.asarray(rb.diagnostics.predictive_rhat(draws, x[test], method="split"))
            out["below"] = float((rhat < RHAT_BAR).mean())
        return {key: np.float64(value) for key, value in out.items()}

    table_size = plan.rows / study.size.rows  # in gradients of the study's own target, roughly
    count = {
        "hmc": plan.chains * (plan.warmup + plan.draws) * plan.leapfrogs,
        "ensemble": plan.members * plan.epochs,
        "sgld": 1.5 * plan.chains * plan.updates * 128 / plan.rows,
        "bbb": 2 * plan.epochs,
    }.get(name, plan.epochs)
    return Task(
        f"regression-{name.replace(' ', '_')}-split{seed}", settings, table_size * count, make
    )


def tasks(study: Study) -> list[Task]:
    """Every method on every split."""
    return [_task(study, name, seed) for seed in splits(study) for name in METHODS]


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Collect RMSE and log likelihood by method, lists over splits, in the units of y."""
    seeds, out = splits(study), {}
    for name in METHODS:
        each = [found[_task(study, name, seed).name] for seed in seeds]
        rows = [{k: float(v) for k, v in one.items() if k != "seconds"} for one in each]
        out[name] = columns(rows)
    return out


def gain(other: str) -> Callable[[dict[str, Any]], Outcome]:
    """Return a check that HMC has the higher log likelihood and the lower RMSE."""

    def judge(found: dict[str, Any]) -> Outcome:
        ours, theirs = found["hmc"], found[other]
        likelihood = minus(ours["log_likelihood"], theirs["log_likelihood"])
        return every(
            [
                above("log likelihood, HMC minus other method", likelihood, 0.0),
                above("RMSE, other method minus HMC", minus(theirs["rmse"], ours["rmse"]), 0.0),
            ]
        )

    return judge


_WORDS = "HMC's test log likelihood is higher, and its RMSE is lower"
CLAIMS = (
    Claim("HMC predicts better than one trained network.", _WORDS, gain("one net")),
    Claim("HMC predicts better than a deep ensemble.", _WORDS, gain("ensemble")),
)


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return a row per method."""
    head = ["method", "RMSE (kWh/m²)", "log likelihood", "predictions with R-hat < 1.1"]
    rows = [
        [LABELS[name], row["rmse"], row["log_likelihood"], row.get("below", "")]
        for name, row in found.items()
    ]
    return head, rows


def draw(found: dict[str, Any]) -> Any:
    """Draw RMSE and log likelihood, a row per method."""
    figure, panels = axes(2)
    titles = {"rmse": "RMSE (kWh/m²)", "log_likelihood": "log likelihood"}
    for ax, (key, title) in zip(panels, titles.items(), strict=True):
        names = [LABELS[name] if ax is panels[0] else "" for name in found]
        bars(ax, names, [row[key] for row in found.values()], title)
    return figure
