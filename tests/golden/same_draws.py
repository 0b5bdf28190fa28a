"""Ways to make the draws of a recorded run: threads, stores, restarts, the C library.

A way returns draws whose positions and statistics must equal the record. "no draws" has
statistics alone; "until" has more draws than the record, and tells where it stopped.
"""

from __future__ import annotations

import concurrent.futures
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ribbit as rb
from tests.golden import targets
from tests.golden.play import on, plain, sampled, sha
from tests.golden.table import Option, Run, named

__all__ = ["record_of"]

BRIEF = {"max_seconds": 1e-9}  # a run ends after its first step, or after one call of several


def two_threads(run: Run, sampler: rb.Sampler) -> Any:
    """Return draws of two threads of the core."""
    rb.set_num_threads(2)
    try:
        return sampled(sampler, run.call)
    finally:
        rb.set_num_threads(1)


def executor(run: Run, sampler: rb.Sampler) -> Any:
    """Return draws that two threads of an executor made."""
    with concurrent.futures.ThreadPoolExecutor(2) as workers:
        return sampled(sampler, run.call, executor=workers)


def cut_store(run: Run, sampler: rb.Sampler) -> Any:
    """Return draws of a run in a folder that ended early five times."""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(5):
            part = sampled(sampler, run.call, store=Path(folder) / "run", **BRIEF)
            assert not part.complete, "a cut came after the end"
        draws = sampled(sampler, run.call, store=Path(folder) / "run")
        return {"positions": draws.positions[...], "stats": dict(draws.stats)}


def resumed_at_a_draw(run: Run, sampler: rb.Sampler) -> Any:
    """Return draws of two runs, the second from draw 7 on."""
    first = sampled(sampler, run.call, num=7)
    rest = sampled(sampler, {"num": run.call["num"] - 7}, resume=first)
    return rb.concatenate([first, rest])


def resumed_in_warmup(run: Run, sampler: rb.Sampler) -> Any:
    """Return draws of a run that went on from the midst of warmup."""
    # Kept warmup makes its transitions one by one.
    first = sampled(sampler, run.call, save_warmup=True, **BRIEF)
    assert 0 < first.state.step < run.call["warmup"]
    return sampled(sampler, {"num": run.call["num"]}, resume=first)


def predict_at(run: Run, sampler: rb.Sampler) -> Any:
    """Return draws of a run that predicts at every draw."""
    return sampled(sampler, run.call, predict_at=targets.NEW[run.target.split()[0]]())


def no_draws(run: Run, sampler: rb.Sampler) -> Any:
    """Return statistics of a run that keeps no draws."""
    x, _ = targets.NEW[run.target.split()[0]]()
    return {"stats": sampled(sampler, run.call, predict_at=x, save_draws=False).stats}


def until(run: Run, sampler: rb.Sampler) -> Any:
    """Return the first draws of a run that ends when it has converged, and where it stopped."""
    rule = rb.Converged(rhat=1.05, ess=100)
    draws = sampled(sampler, run.call, until=rule, max_draws=5000)
    count = run.call["num"]
    return {
        "positions": draws.positions[:, :count],
        "stats": {name: values[:, :count] for name, values in draws.stats.items()},
        "stopped": draws.settings["stopped"],
    }


def saved(run: Run, sampler: rb.Sampler) -> Any:
    """Return draws from a file; going on from them gives what the record says."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "draws"
        sampled(sampler, run.call).save(file)
        draws = rb.load(file)
    return {
        "positions": draws.positions,
        "stats": draws.stats,
        "more": on(run, sampler, draws).positions,
    }


def concatenated(run: Run, sampler: rb.Sampler) -> Any:
    """Return chains of two runs."""
    parts = [sampled(sampler, run.call, chains=[chain]) for chain in range(run.call["chains"])]
    return rb.concatenate(parts, axis="chains")


def c_library(run: Run, sampler: rb.Sampler) -> Any:
    """Return draws of the C library."""
    from tests.support import c_library as lib

    target, call = targets.make(run.target), run.call
    given = {name: run.options[name] for name in ("step_size", "num_leapfrog_steps")}
    start = target.init(call["seed"], call["chains"])
    positions, stats, _ = lib.sample(
        lib.posterior(target), "hmc", start, call["num"], given, warmup=call["warmup"],
        seed=call["seed"],
    )  # fmt: skip
    kinds = sampler._statistics_of(thinned=False)
    return {"positions": positions, "stats": {k: v.astype(kinds[k]) for k, v in stats.items()}}


def background(run: Run, sampler: rb.Sampler) -> Any:
    """Return draws of a run in the background."""
    call = dict(run.call)
    return sampler.sample(call.pop("num"), **call, blocking=False).wait()


WAYS: dict[str, Callable[[Run, rb.Sampler], Any]] = {
    "two threads": two_threads,
    "executor": executor,
    "cut store": cut_store,
    "resumed at a draw": resumed_at_a_draw,
    "resumed in warmup": resumed_in_warmup,
    "predict_at": predict_at,
    "no draws": no_draws,
    "until": until,
    "saved": saved,
    "concatenated": concatenated,
    "c library": c_library,
    "background": background,
}


def record_of(option: Option) -> dict[str, Any]:
    """Return the fields that must equal the record of the option's run."""
    run = named(option.run)
    sampler = getattr(rb, run.kernel)(targets.make(run.target), **run.options)
    found = WAYS[option.name](run, sampler)
    if isinstance(found, rb.Draws):
        found = {"positions": found.positions, "stats": found.stats}
    record = {field: sha(found[field]) for field in ("positions", "more") if field in found}
    record["stats"] = {name: sha(values) for name, values in found["stats"].items()}
    if "stopped" in found:
        record["stopped"] = plain(found["stopped"])
    return record
