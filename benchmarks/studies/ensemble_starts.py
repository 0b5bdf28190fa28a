"""MCLMC from an ensemble against the ensemble: ``python -m benchmarks.ensemble_starts``.

Every UCI set of the development data, its first splits: a network of four hidden layers of 16 tanh
and an sd output, ten chains, ``rb.MCLMC(target).sample(1000, init="ensemble", chains=10)`` with
nothing else set. Test NLL per row (y of sd 1) of the ensemble that chains of HMC start at, of a
deep ensemble of ten on all rows, of MCLMC, and (``--parts mclmc-inputs``, ``mclmc-layers``) of
MCLMC with the matrix that is not its default, (``hmc``, ``hmc-default``) of HMC with ten times its
gradients, its leapfrog steps given or tuned; (``floor``, ``floor-layers``) of MCLMC with a
floor under the noise, which changes its default.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import ribbit as rb
from benchmarks.harness import machine
from benchmarks.harness.pages import Table, facts, markdown
from benchmarks.harness.stopping import until_stopped
from benchmarks.studies import effective_lines as lines_of
from benchmarks.workloads.digits import data_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sized

DOCUMENT = machine.ROOT / "docs" / "developer" / "ensemble_starts.md"
RESULTS = machine.ROOT / "benchmarks" / "results" / "ensemble_starts.jsonl"
Line: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, int, str, int]  # set, split, part, seed
SETS = ("concrete", "energy", "yacht", "wine")
HIDDEN, CHAINS, DRAWS = (16, 16, 16, 16), 10, 1000
STEPS = 2 * 20 * DRAWS  # of a chain, by default: half of them warmup
HMC_TIMES = 10
LEAPFROGS = 200  # of a trajectory of HMC, which by default are 1,024 tiny steps on average here
PRIOR_SD = 1.0
# What the warning for wine's six values advises: a step over the root of 12, in sds of y.
STEPPED = {"wine": 1.0}
# Of MCLMC: the matrix that is not its default, "inputs" where the noise has a floor like wine's.
OTHER = {name: "mclmc-layers" if name in STEPPED else "mclmc-inputs" for name in SETS}
# In sds of y, of parts that try a floor where there is none; each with its "-layers".
FLOORS = {"floor": 0.05, "small-floor": 0.01}
WANTED = {"concrete": 0.3, "energy": 0.3, "yacht": 0.3, "wine": 0.0}
EPOCHS = 500  # of the deep ensemble on all rows, its learning rate falling from 0.01 to 0
PREAMBLE = """
`python -m benchmarks.ensemble_starts --write` makes this page. It shows the test negative log
likelihood per row, with y standardised by the training rows. The networks have four hidden layers
of 16 tanh units, an output for the sd and the prior `Normal(1.0)` on every weight.

| column | method |
|---|---|
| starts | the ten members of `rb.EnsembleStart()`, stopped early on a tenth of the rows |
| all rows | `rb.DeepEnsemble(members=10)` on all training rows |
| MCLMC | `rb.MCLMC(target).sample(1000, init="ensemble", chains=10)`, 40,000 steps per chain |
| HMC | `rb.HMC(target, num_leapfrog_steps=200).sample(init="ensemble", chains=10)` |
| HMC default | `rb.HMC(target).sample(init="ensemble", chains=10)`, only on wine |
| other matrix | MCLMC with the inverse mass matrix that is not its default for the set |

- HMC starts from the members. For MCLMC they take 5,000 more steps on all training rows, in
  batches of 64 (`finish=5_000`). These steps are not counted.
- HMC has ten times as many gradients as MCLMC, warmup included. The first fifty draws measure what
  a draw costs and are left out. On concrete, energy and yacht HMC has 14 to 15 times as many,
  because MCLMC took 60,000 steps per chain at that time. These rows ran with AVX-512, so their
  seconds do not compare with MCLMC's. HMC default has 11 to 12 times as many gradients.
- Earlier rows of HMC on wine with 12 to 14 times as many gradients are in the file as superseded.
  MCLMC was 0.007 +- 0.003 above them.
- The default step sizes of HMC are so small that its trajectories reach the limit of 1,024 leapfrog
  steps on average, except on wine. HMC warns about it.
- Wine takes six values. Its noise sd has the floor that Ribbit's warning recommends.

By default MCLMC whitens the inputs of each layer (`inverse_mass_matrix="inputs"`) if the noise has
a floor of at least 0.05, as on wine. Otherwise it has one scale per array (`"layers"`). The seconds
of "other matrix" were taken next to other work. Its mean on concrete comes from one split, as the
second table shows.

The last table has a floor of the noise of 0.05 sds of y, from which on `"inputs"` is the default.
It also has a floor of 0.01 on two splits of energy. On the second of these, `"inputs"` without a
floor had 1.113, and `"layers"` had -1.310. All its rows have 50,000 steps per chain.

If a split has several seeds, its value is the mean over them. A difference uses the splits and
seeds that both methods have. Both start from the same members, except for HMC on concrete, energy
and yacht, whose members were computed with another instruction set. The "+-" of a difference is the
standard error over seeds of the mean over these splits; it says nothing about other splits. The
"+-" of a gain is the sd over splits.
"""


@dataclass(frozen=True)
class Split:
    """A split of a set, standardised by its training rows."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    y_sd: float


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


def posterior(name: str, data: Split, floor: float = 0.0) -> rb.Posterior:
    """Return the target: wine with the floor that the warning asks for."""
    if name in STEPPED:
        floor = STEPPED[name] / data.y_sd / 12.0**0.5
    return rb.Posterior(
        rb.mlp(data.x.shape[1], HIDDEN, 2, activation="tanh"),
        data.x,
        data.y,
        prior=rb.Normal(PRIOR_SD),
        likelihood=rb.HeteroscedasticGaussian(min_sd=floor),
    )


def run_mclmc(name: str, split: int, seed: int, matrix: str = "auto") -> Line:
    """Fit and sample one split; NLL per row of the starts, an ensemble on all rows, the chains."""
    data = load(name, split)
    target = posterior(name, data)
    begin = time.perf_counter()
    starts = rb.EnsembleStart().fit(target, CHAINS, seed=seed, progress=False)
    start_seconds = time.perf_counter() - begin
    whole = rb.DeepEnsemble(
        target,
        members=CHAINS,
        learning_rate=1e-2,
        batch_size=min(128, len(data.y)),
        schedule=rb.schedules.cosine(EPOCHS * -(-len(data.y) // 128)),
    ).fit(EPOCHS, seed=seed, progress=False)
    begin = time.perf_counter()
    found = rb.MCLMC(target, inverse_mass_matrix=matrix).sample(
        DRAWS, init="ensemble", chains=CHAINS, seed=seed, progress=False
    )
    seconds = time.perf_counter() - begin
    named = [r.value for r in found.summary().rows if r.name == "chains far below the others"]
    return {
        "starts": nll(starts, data),
        "everything": nll(whole, data),
        "nll": nll(found, data),
        "start_seconds": round(start_seconds, 2),
        "seconds": round(seconds, 2),
        "gradients": CHAINS * STEPS,
        "far below": named[0] if named else "",
    }


def run_floored(name: str, split: int, seed: int, floor: float, matrix: str) -> Line:
    """Return the NLL of MCLMC if the noise has a floor."""
    data = load(name, split)
    sampler = rb.MCLMC(posterior(name, data, floor), inverse_mass_matrix=matrix)
    begin = time.perf_counter()
    found = sampler.sample(DRAWS, init="ensemble", chains=CHAINS, seed=seed, progress=False)
    seconds = time.perf_counter() - begin
    return {"nll": nll(found, data), "seconds": round(seconds, 2), "gradients": CHAINS * STEPS}


def run_hmc(
    name: str, split: int, seed: int, leapfrogs: int | None = LEAPFROGS, first: int = 50
) -> Line:
    """NLL of HMC from the same kind of start with ten times the gradients.

    The first draws say how many more make that many, which alone are judged.
    """
    data = load(name, split)
    sampler = rb.HMC(posterior(name, data), num_leapfrog_steps=leapfrogs)

    def taken(draws: rb.Draws) -> int:
        return int(np.sum(draws.stats["n_steps"]))

    begin = time.perf_counter()
    draws = sampler.sample(
        first, init="ensemble", chains=CHAINS, seed=seed, progress=False, save_warmup=True
    )
    assert draws.warmup_stats is not None
    used = taken(draws) + int(np.sum(draws.warmup_stats["n_steps"]))
    # By hand the mean length is known. Lengths are random: a hundredth more, so as not to miss ten.
    each = CHAINS * leapfrogs if leapfrogs else taken(draws) / first
    more = int(1.01 * (HMC_TIMES * CHAINS * STEPS - used) / each)
    if more > 0:
        draws = sampler.sample(more, resume=draws, progress=False)
        used += taken(draws)
    seconds = time.perf_counter() - begin
    return {
        "nll": nll(draws, data),
        "seconds": round(seconds, 2),
        "gradients": used,
        "draws": len(draws),
    }


PARTS: dict[str, Callable[[str, int, int], Line]] = {
    "mclmc": run_mclmc,
    "mclmc-inputs": functools.partial(run_mclmc, matrix="inputs"),
    "mclmc-layers": functools.partial(run_mclmc, matrix="layers"),
    **{
        part + end: functools.partial(run_floored, floor=floor, matrix=matrix)
        for part, floor in FLOORS.items()
        for end, matrix in (("", "inputs"), ("-layers", "layers"))
    },
    "hmc": run_hmc,
    "hmc-default": functools.partial(run_hmc, leapfrogs=None, first=20),
}


def nll(found: Any, data: Split) -> float:
    """Test NLL per row of draws or a fit."""
    return -float(found.predict(data.x_test).log_likelihood(data.y_test))


def read(path: Path) -> dict[Key, Line]:
    """Last line of each set, split and part."""
    if not path.is_file():
        return {}
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    return {(line["set"], line["split"], line["part"], line["seed"]): line for line in lines}


def table(lines: dict[Key, Line]) -> Table:
    """One row per split and seed."""
    rows = []
    shown = [key for key in lines if key[2].removesuffix("-layers") not in FLOORS]
    places = {(name, split, seed) for name, split, _, seed in shown}
    for name, split, seed in sorted(places, key=lambda place: (SETS.index(place[0]), *place[1:])):
        own = lines.get((name, split, "mclmc", seed))
        cells = [name, str(split), str(seed)]
        if own is None:
            cells += 6 * ["-"]
        else:
            figures = own["starts"], own["everything"], own["nll"], own["starts"] - own["nll"]
            cells += [f"{value:.3f}" for value in figures]
            cells += [f"{own['seconds']:.1f}{_loaded(own)}", own["far below"] or "-"]
        other = lines.get((name, split, OTHER[name], seed))
        if other is None:
            cells += 2 * ["-"]
        else:
            cells += [f"{other['nll']:.3f}", f"{other['seconds']:.1f}{_loaded(other)}"]
        for part in ("hmc", "hmc-default"):
            hmc = lines.get((name, split, part, seed))
            if hmc is None:
                cells += 3 * ["-"]
            else:
                cells += [f"{hmc['nll']:.3f}", f"{hmc['gradients'] / (CHAINS * STEPS):.1f}x"]
                cells += [f"{hmc['seconds']:.0f}{_loaded(hmc)}"]
        rows.append(cells)
    head = ["set", "split", "seed", "starts", "all rows", "MCLMC", "gain", "seconds", "far below"]
    head += ["other matrix", "its seconds"]
    for part in ("HMC", "HMC default"):
        head += [part, "its gradients", "its seconds"]
    return "Every split", head, rows


def means(lines: dict[Key, Line]) -> Table:
    """Means over the splits, and whether they are what was wanted."""
    rows = []
    for name in SETS:
        own = _by_split(lines, name, "mclmc")
        if not own:
            continue
        gains = [_mean([line["starts"] - line["nll"] for line in of]) for of in own.values()]
        gain = _mean(gains)
        cells = [name, _counted(own)]
        for what in ("starts", "everything", "nll"):
            found = _mean([_mean([line[what] for line in of]) for of in own.values()])
            cells.append(f"{found:.3f}")
        cells += [f"{gain:.3f} +- {float(np.std(gains)):.3f}", f">= {WANTED[name]}"]
        cells += ["yes" if gain >= WANTED[name] else "no"]
        hmc, default = (_by_split(lines, name, part) for part in ("hmc", "hmc-default"))
        cells += [difference(own, hmc), difference(own, default)]
        other = _by_split(lines, name, OTHER[name])
        cells += [difference(other, own), difference(other, hmc)]
        rows.append(cells)
    head = ["set", "of", "starts", "all rows", "MCLMC", "gain", "wanted", "met"]
    head += ["MCLMC - HMC", "MCLMC - HMC default", "other matrix - MCLMC", "other matrix - HMC"]
    return "Means over the splits", head, rows


def floors(lines: dict[Key, Line]) -> Table:
    """Return what "inputs" and "layers" make of a floor, split by split."""
    rows = []
    for part, name in itertools.product(FLOORS, SETS):
        inputs, layers = (_by_split(lines, name, of) for of in (part, f"{part}-layers"))
        if not (inputs or layers):
            continue
        splits = sorted({*inputs, *layers})
        cells = [name, f"{FLOORS[part]}", ", ".join(map(str, splits))]
        for of in (inputs, layers):
            each = [_mean([line["nll"] for line in of.get(split, [])]) for split in splits]
            cells.append(", ".join(f"{value:.3f}" for value in each))
        rows.append([*cells, difference(inputs, layers)])
    head = ["set", "floor", "splits", '"inputs"', '"layers"', '"inputs" - "layers"']
    return "With a floor under the noise", head, rows


def difference(own: dict[int, list[Line]], other: dict[int, list[Line]]) -> str:
    """NLL of one part less another's on the splits and seeds of both, and its standard error.

    A seed has the same members in both, which is why it is compared with itself. The error is over
    seeds; the variance of a seed's difference is taken to be the same on every split.
    """
    pairs: dict[int, list[float]] = {}
    for split in sorted(own.keys() & other.keys()):
        by_seed = {line["seed"]: line["nll"] for line in other[split]}
        both = [line for line in own[split] if line["seed"] in by_seed]
        if both:
            pairs[split] = [line["nll"] - by_seed[line["seed"]] for line in both]
    if not pairs:
        return "-"
    said = f"{round(_mean([_mean(of) for of in pairs.values()]), 3) + 0.0:+.3f}"  # no -0.000
    freedom = sum(len(of) - 1 for of in pairs.values())
    if freedom > 0:
        pooled = sum(float(np.var(of)) * len(of) for of in pairs.values()) / freedom
        variance = pooled * sum(1.0 / len(of) for of in pairs.values()) / len(pairs) ** 2
        said += f" +- {variance**0.5:.3f}"
    return f"{said} ({_counted(pairs)})"


def _by_split(lines: dict[Key, Line], name: str, part: str) -> dict[int, list[Line]]:
    found: dict[int, list[Line]] = {}
    for (at, split, of, _), line in sorted(lines.items()):
        if (at, of) == (name, part):
            found.setdefault(split, []).append(line)
    return found


def _counted(part: Mapping[int, Sized]) -> str:
    """Say how many splits and seeds there are."""
    seeds = sorted({len(of) for of in part.values()})
    each = "-".join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))
    return f"{len(part)} split{'s' * (len(part) != 1)}, seeds: {each}"


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def origins(lines: dict[Key, Line]) -> list[str]:
    """Say of each part where, when and by which commits its rows were made."""
    said = []
    for part in PARTS:
        own = [line for (_, _, at, _), line in lines.items() if at == part]
        if own:
            where = ", ".join(sorted({line["machine"] for line in own}))
            dates = sorted({line["date"] for line in own})
            when = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
            commits = ", ".join(sorted({line["commit"] for line in own}))
            seeds = ", ".join(map(str, sorted({line["seed"] for line in own})))
            about = f"seeds {seeds}, {where}, {when}, commits {commits}"
            said.append(f"Rows of {part} (`--parts {part} --seeds`): {len(own)}, {about}")
    return said


def _loaded(line: Line) -> str:
    return " (loaded)" if lines_of.loaded(line) else ""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 1 where a set misses what was wanted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ensemble_starts")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--splits", type=int, default=5, help="first splits of each set")
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=["mclmc"], help="hmc takes ten times it"
    )
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--write", type=Path, nargs="?", const=DOCUMENT)
    given = parser.parse_args(arguments)
    lines = read(given.results)
    wanted = itertools.product(given.seeds, range(given.splits), given.sets, given.parts)
    with until_stopped() as stop:
        for seed, split, name, part in wanted:
            own_floor = name in STEPPED and part.removesuffix("-layers") in FLOORS
            if own_floor or (not given.again and (name, split, part, seed) in lines):
                continue
            begin = lines_of.header(name, part, seed)
            with warnings.catch_warnings():
                # Chains stay in their modes; a rate that has fallen to 0 ends the ensemble's fit.
                warnings.simplefilter("ignore", rb.errors.RibbitWarning)
                found = PARTS[part](name, split, seed)
            line = {**begin, "set": name, "split": split, "part": part, **found}
            line["load"] = [begin["load"][0], lines_of.load()]
            lines_of.append(line, given.results)
            lines[name, split, part, seed] = line
            print(name, split, part, seed, json.dumps(found), flush=True)
    summary = means(lines)
    for row in summary[2]:
        print("  ".join(row))
    if given.write is not None:
        command = f"python -m benchmarks.ensemble_starts --parts {' '.join(PARTS)} --write"
        about = facts({"ribbit": rb.__version__, "numpy": np.__version__}, command)
        about += origins(lines)
        given.write.write_text(
            markdown("Ensemble starts", PREAMBLE, [summary, table(lines), floors(lines)], about)
        )
    return stop.status or (0 if all("no" not in row for row in summary[2]) else 1)
