"""MCLMC from an ensemble against the ensemble: ``python -m benchmarks.ensemble_starts``.

Every UCI set of the development data, its first splits: a network of four hidden layers of 16 tanh
and an sd output, ten chains, ``rb.MCLMC(target).sample(1000, init="ensemble", chains=10)`` with
nothing else set. Printed as it goes and written with ``--write``: test NLL per row (y of sd 1) of
the ensemble that the chains start at, of a deep ensemble of ten on all rows, and of MCLMC.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ribbit as rb
from benchmarks.harness import machine
from benchmarks.harness.pages import Table, facts, markdown
from benchmarks.workloads.effective_problems import data_folder

DOCUMENT = machine.ROOT / "docs" / "ensemble_starts.md"
SETS = ("concrete", "energy", "yacht", "wine")
HIDDEN, CHAINS, DRAWS = (16, 16, 16, 16), 10, 1000
PRIOR_SD = 1.0
# What the warning for wine's six values advises: a step over the root of 12, in sds of y.
STEPPED = {"wine": 1.0}
WANTED = {"concrete": 0.3, "energy": 0.3, "yacht": 0.3, "wine": 0.0}
EPOCHS = 500  # of the deep ensemble on all rows, its learning rate falling from 0.01 to 0
TIMES_HELP = "also HMC from the same starts, with so many times MCLMC's gradients (10)"
PREAMBLE = """
Written by `python -m benchmarks.ensemble_starts --write`. Test negative log likelihood per row, y
standardised by its training rows, of networks of four hidden layers of 16 tanh with an sd output
and a prior `Normal(1.0)` on every weight. "starts" are the ten members that
`sample(init="ensemble")` fits and the chains begin at, a tenth of the rows held out to stop them;
"all rows" is `rb.DeepEnsemble(members=10)` on all training rows; MCLMC is
`rb.MCLMC(target).sample(1000, init="ensemble", chains=10)` and nothing else: 60,000 steps a chain.
Wine takes six values; its noise sd has the floor that the warning names. HMC, where it was run, is
`rb.HMC(target).sample(init="ensemble", chains=10)` for as many draws as make ten times MCLMC's
gradients, warmup included.
"""


@dataclass(frozen=True)
class Split:
    """A split of a set, standardised by its training rows."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    y_sd: float


@dataclass(frozen=True)
class Found:
    """Figures of one split.

    Attributes
    ----------
    starts, everything, mclmc : float
        Test NLL per row: of the starts, of an ensemble on all rows, of the chains.
    start_seconds, seconds : float
        Of the starts alone, and of the whole run.
    named : str
        Chains that the summary calls far below the others.
    hmc, hmc_seconds, hmc_gradients : float, optional
        Test NLL per row of HMC from the same starts, its time, and its gradients of all chains.
    """

    name: str
    split: int
    rows: int
    starts: float
    everything: float
    mclmc: float
    start_seconds: float
    seconds: float
    named: str
    hmc: float | None = None
    hmc_seconds: float = 0.0
    hmc_gradients: float = 0.0

    @property
    def gain(self) -> float:
        """Nats per row that MCLMC is better than its starts."""
        return self.starts - self.mclmc

    def cells(self) -> list[str]:
        """Return the row of the table."""
        values = (self.starts, self.everything, self.mclmc, self.gain)
        texts = [f"{v:.3f}" for v in values]
        times = [f"{self.start_seconds:.1f}", f"{self.seconds:.1f}"]
        cells = [self.name, str(self.split), str(self.rows), *texts, *times, self.named or "-"]
        if self.hmc is None:
            return [*cells, "-", "-", "-"]
        return [*cells, f"{self.hmc:.3f}", f"{self.hmc_gradients:.3g}", f"{self.hmc_seconds:.0f}"]


HEAD = ["set", "split", "N", "starts", "all rows", "MCLMC", "gain"]
HEAD += ["start s", "total s", "far below", "HMC", "its gradients", "its s"]


def load(name: str, split: int) -> Split:
    """Read a split."""
    with np.load(data_folder() / "uci" / f"{name}.npz") as file:
        x, y = file["X"], file["y"]
        train, test = file["train"][split], file["test"][split]
    centre, width = x[train].mean(axis=0), x[train].std(axis=0)
    x = (x - centre) / np.where(width > 0, width, 1.0)
    middle, sd = float(y[train].mean()), float(y[train].std())
    z = (y - middle) / sd
    return Split(x[train], z[train], x[test], z[test], sd)


def posterior(name: str, data: Split) -> rb.Posterior:
    """Return the target: wine with the floor that the warning asks for."""
    floor = STEPPED[name] / data.y_sd / 12.0**0.5 if name in STEPPED else 0.0
    return rb.Posterior(
        rb.mlp(data.x.shape[1], HIDDEN, 2, activation="tanh"),
        data.x,
        data.y,
        prior=rb.Normal(PRIOR_SD),
        likelihood=rb.HeteroscedasticGaussian(min_sd=floor),
    )


def long_hmc(target: rb.Posterior, gradients: int, chains: int, seed: int) -> tuple[rb.Draws, int]:
    """Return HMC's draws from an ensemble, nothing set, and the gradients that all chains took.

    The first fifty draws say how many more make `gradients` of one chain.
    """
    sampler, first = rb.HMC(target), 50

    def taken(draws: rb.Draws) -> int:
        return int(np.sum(draws.stats["n_steps"]))

    begun = sampler.sample(
        first, init="ensemble", chains=chains, seed=seed, progress=False, keep_warmup=True
    )
    assert begun.warmup_stats is not None
    used = taken(begun) + int(np.sum(begun.warmup_stats["n_steps"]))
    more = int((gradients * chains - used) / (taken(begun) / first))
    if more <= 0:
        return begun, used
    draws = sampler.sample(more, resume=begun, progress=False)
    return draws, used + taken(draws)


def run(
    name: str,
    split: int,
    *,
    draws: int = DRAWS,
    chains: int = CHAINS,
    seed: int = 0,
    times: int = 0,
) -> Found:
    """Fit and sample one split; with HMC at `times` the gradients beside it where that is not 0."""
    data = load(name, split)
    target = posterior(name, data)

    def nll(predictive: rb.Prediction) -> float:
        return -float(predictive.log_likelihood(data.y_test))

    begin = time.perf_counter()
    starts = rb.EnsembleStart().fit(target, chains, seed=seed, progress=False)
    start_seconds = time.perf_counter() - begin
    steps = EPOCHS * -(-len(data.y) // 128)
    whole = rb.DeepEnsemble(
        target,
        members=chains,
        learning_rate=1e-2,
        batch_size=min(128, len(data.y)),
        schedule=rb.schedules.cosine(steps),
    ).fit(EPOCHS, seed=seed, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rb.errors.ConvergenceWarning)  # chains stay in their modes
        begin = time.perf_counter()
        found = rb.MCLMC(target).sample(
            draws, init="ensemble", chains=chains, seed=seed, progress=False
        )
        seconds = time.perf_counter() - begin
        hmc: dict[str, float] = {}
        if times:
            begin = time.perf_counter()
            steps = int(found.settings["warmup"]) + draws * int(found.settings["thin"])
            far, gradients = long_hmc(target, times * steps, chains, seed)
            hmc = {"hmc": nll(far.predict(data.x_test)), "hmc_gradients": gradients}
            hmc["hmc_seconds"] = time.perf_counter() - begin
    rows = [row for row in found.summary().rows if row.name == "chains far below the others"]
    return Found(
        name,
        split,
        len(data.y),
        nll(starts.predict(data.x_test)),
        nll(whole.predict(data.x_test)),
        nll(found.predict(data.x_test)),
        start_seconds,
        seconds,
        rows[0].value if rows else "",
        **hmc,
    )


def means(results: list[Found]) -> Table:
    """Means over the splits, and whether they are what was wanted."""
    rows = []
    for name in dict.fromkeys(one.name for one in results):
        own = [one for one in results if one.name == name]
        gain = float(np.mean([one.gain for one in own]))
        cells = [name, str(len(own))]
        cells += [
            f"{np.mean([getattr(one, what) for one in own]):.3f}"
            for what in ("starts", "everything", "mclmc")
        ]
        spread = float(np.std([one.gain for one in own]))
        wanted = f">= {WANTED[name]}"
        rows.append(
            [*cells, f"{gain:.3f} +- {spread:.3f}", wanted, "yes" if gain >= WANTED[name] else "no"]
        )
    head = ["set", "splits", "starts", "all rows", "MCLMC", "gain", "wanted", "met"]
    return "Means over the splits", head, rows


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 1 where a set misses what was wanted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ensemble_starts")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--splits", type=int, default=5, help="first splits of each set")
    parser.add_argument(
        "--hmc", type=int, nargs="?", const=10, default=0, metavar="TIMES", help=TIMES_HELP
    )
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--chains", type=int, default=CHAINS)
    parser.add_argument("--write", type=Path, nargs="?", const=DOCUMENT)
    given = parser.parse_args(arguments)
    print("  ".join(HEAD), flush=True)
    results = []
    for split in range(given.splits):
        for name in given.sets:
            one = run(name, split, draws=given.draws, chains=given.chains, times=given.hmc)
            results.append(one)
            print("  ".join(one.cells()), flush=True)
    summary = means(results)
    for row in summary[2]:
        print("  ".join(row))
    if given.write is not None:
        tables = [summary, ("Every split", HEAD, [one.cells() for one in results])]
        command = " ".join(["python -m benchmarks.ensemble_starts", *(arguments or sys.argv[1:])])
        lines = facts({"ribbit": rb.__version__, "numpy": np.__version__}, command)
        given.write.write_text(markdown("Ensemble starts", PREAMBLE, tables, lines))
    return 0 if all(row[-1] == "yes" for row in summary[2]) else 1
