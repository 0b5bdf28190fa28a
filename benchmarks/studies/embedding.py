"""What a gradient costs inside other frameworks: ``python -m benchmarks.embedding``.

The same log density and gradient, called natively and from PyTorch and JAX, one thread each, in
one process: every round times all of them in turn, and an overhead is a difference within a round.
``--write`` puts the section at the end of docs/developer/benchmarks.md, which `benchmarks.report`
keeps.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from benchmarks.harness import machine, pages
from benchmarks.harness.pages import Table
from benchmarks.harness.stopping import until_stopped

DOCUMENT = machine.ROOT / "docs" / "developer" / "benchmarks.md"
COMMAND = "python -m benchmarks.embedding --write"
NETWORKS = {  # widths, rows
    "31 parameters, 10 rows": ((1, 10, 1), 10),
    "501 parameters, 100 rows": ((8, 50, 1), 100),
    "3,051 parameters, 1,000 rows": ((8, 50, 50, 1), 1000),
}
CHAINS, LENGTH = 8, 25  # of a batched call; steps of a program or a trajectory
LEAST = 0.002  # seconds of a timing, at least: short, so that other work disturbs few of them
NATIVE, BATCH, SCAN = "value_and_grad", f"value_and_grad, {CHAINS} chains", "jax, step of lax.scan"
STEP = "trajectory, step"
LIMIT = 3e-6  # of SCAN over the native call
PREAMBLE = f"""
`{COMMAND}` makes this section; `benchmarks.report` keeps it.
The times are microseconds of a log density with its gradient, in float32 on one thread. They are
medians over rounds, with the quartiles in brackets, and each round times all entries in turn. "Over
the native call" is the difference to `value_and_grad` of as many chains within a round. Both are
called from Python, except in the entries of loops.

- **value_and_grad**: `target.value_and_grad(theta)`, from Python.
- **{STEP}**: a leapfrog step of `target.leapfrog`, {LENGTH} of them in the core, no Python.
- **torch**: `f = rb.torch.torch_log_density(target)`; `f(theta)` without a gradient's graph, and
  `f(theta).backward()`. "torch alone" is `theta.sum().backward()`: the cost of an empty call.
- **jax, jit**: `jax.jit(jax.value_and_grad(rb.jax.jax_log_density(target)))(theta)` from Python;
  "jax alone" is the same call for `theta.sum()`. Batches are {CHAINS} chains under `jax.vmap`.
- **{SCAN}**: one of {LENGTH} steps uphill inside one compiled program.
- **jax, pure_callback**: the same with `jax.pure_callback` of `target.value_and_grad`.
"""
Entry = tuple[Callable[[], Any], int]  # what is timed, and how many units it does


def posterior(widths: tuple[int, ...], rows: int) -> Any:
    """Return a small regression network, float32."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, widths[0])), rng.normal(size=rows)
    net = rb.mlp(widths[0], widths[1:-1], widths[-1], activation="tanh")
    return rb.Posterior(net, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(1.0))


def native_entries(target: Any) -> dict[str, Entry]:
    """Ribbit alone."""
    one, many = target.init(seed=0), target.init(seed=0, chains=CHAINS)
    grad, steps = target.value_and_grad(one[None])[1], np.array([LENGTH])
    momentum, size = np.zeros_like(one[None]), np.array([1e-6])
    return {
        NATIVE: (lambda: target.value_and_grad(one), 1),
        BATCH: (lambda: target.value_and_grad(many), 1),
        STEP: (
            lambda: target.leapfrog(one[None], momentum, grad, size, steps),
            LENGTH,
        ),
    }


def torch_entries(target: Any) -> dict[str, Entry]:
    """Inside PyTorch."""
    import torch

    from ribbit.torch import torch_log_density

    torch.set_num_threads(1)
    f = torch_log_density(target)
    one = torch.from_numpy(target.init(seed=0))
    leaf = one.clone().requires_grad_(True)
    leaves = torch.from_numpy(target.init(seed=0, chains=CHAINS)).requires_grad_(True)

    def backward(loss: Callable[[Any], Any], theta: Any) -> Callable[[], None]:
        def run() -> None:
            theta.grad = None
            loss(theta).backward()

        return run

    return {
        "torch, forward": (lambda: f(one), 1),
        "torch, forward and backward": (backward(f, leaf), 1),
        f"torch, forward and backward, {CHAINS} chains": (
            backward(lambda q: f(q).sum(), leaves),
            1,
        ),
        "torch alone": (backward(lambda q: q.sum(), leaf), 1),
    }


def jax_entries(target: Any) -> dict[str, Entry]:
    """Inside JAX."""
    import jax
    import jax.numpy as jnp

    from ribbit.jax import jax_log_density

    both = jax.value_and_grad(jax_log_density(target))
    one, many = jnp.asarray(target.init(seed=0)), jnp.asarray(target.init(seed=0, chains=CHAINS))
    shapes = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct(one.shape, one.dtype)

    def called(theta: Any) -> tuple[np.float32, Any]:
        lp, grad = target.value_and_grad(np.array(theta))
        return np.float32(lp), grad

    def program(evaluate: Callable[[Any], Any]) -> Any:
        def step(theta: Any, _: Any) -> tuple[Any, Any]:
            lp, grad = evaluate(theta)
            return theta + 1e-9 * grad, lp

        return jax.jit(lambda theta: jax.lax.scan(step, theta, None, length=LENGTH))

    def ready(compiled: Any, theta: Any) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(compiled(theta))

    back = program(lambda theta: jax.pure_callback(called, shapes, theta))
    return {
        "jax, jit": (ready(jax.jit(both), one), 1),
        f"jax, jit, {CHAINS} chains": (ready(jax.jit(jax.vmap(both)), many), 1),
        "jax alone": (ready(jax.jit(jax.value_and_grad(jnp.sum)), one), 1),
        SCAN: (ready(program(both), one), LENGTH),
        "jax, pure_callback": (ready(back, one), LENGTH),
    }


def measure(entries: dict[str, Entry], rounds: int) -> dict[str, list[float]]:
    """Seconds per unit of every entry, round by round."""
    calls: dict[str, int] = {}
    for name, (run, _) in entries.items():
        run()  # compiles
        begin = time.perf_counter()
        run()
        calls[name] = max(1, math.ceil(LEAST / max(time.perf_counter() - begin, 1e-7)))
    found: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(rounds):
        for name, (run, units) in entries.items():
            begin = time.perf_counter()
            for _ in range(calls[name]):
                run()
            found[name].append((time.perf_counter() - begin) / (calls[name] * units))
    return found


def spread(seconds: Any) -> str:
    """Median and quartiles in microseconds."""
    low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75]) * 1e6
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def over(found: dict[str, list[float]], name: str) -> Any:
    """Seconds of an entry over the native call of as many chains, round by round."""
    base = BATCH if name.endswith("chains") else NATIVE
    return np.subtract(found[name], found[base])


def tables(found: dict[str, dict[str, list[float]]]) -> list[Table]:
    """Make the tables: the outcome, and every entry."""
    outcome, rows = [], []
    for network, by_entry in found.items():
        for name, seconds in by_entry.items():
            alone = name in (NATIVE, BATCH) or name.endswith("alone")
            rest = "-" if alone else spread(over(by_entry, name))
            rows.append([network, name, spread(seconds), rest])
        if SCAN in by_entry:
            more = [over(by_entry, SCAN), np.subtract(by_entry[SCAN], by_entry[STEP])]
            met = "yes" if np.median(more[0]) <= LIMIT else "NO"
            outcome.append([network, *map(spread, more), f"<= {LIMIT * 1e6:g} us", met])
    head = ["network", f"{SCAN}: over the native call, us", "over a step in the core, us"]
    head += ["wanted", "met"]
    every = ["network", "entry", "us", "over the native call, us"]
    return [("Outcome", head, outcome), ("Every entry", every, rows)]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; 1 where a program of JAX costs more than was wanted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedding", description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--write", nargs="?", type=Path, const=DOCUMENT, metavar="PATH")
    options = parser.parse_args(arguments)
    import jax
    import torch

    rb.set_num_threads(1)
    found = {}
    with until_stopped() as stop:
        for name in options.networks:
            target = posterior(*NETWORKS[name])
            entries = native_entries(target) | torch_entries(target) | jax_entries(target)
            found[name] = measure(entries, options.rounds)
    if not found:
        return stop.status
    made = tables(found)
    for table in made:
        pages.print_table(table)
    if options.write is not None and not stop.status:
        versions = {"ribbit": rb.__version__, "numpy": np.__version__, "jax": jax.__version__}
        lines = pages.facts(versions | {"torch": torch.__version__}, COMMAND)
        lines[-1] += f", {options.rounds} rounds"
        section = pages.markdown(pages.OVERHEAD, PREAMBLE, made, lines, level=2)
        old = options.write.read_text(encoding="utf-8") if options.write.is_file() else ""
        rest = old.removesuffix(pages.overhead_of(old)).rstrip()
        options.write.write_text(f"{rest}\n\n{section}".lstrip(), encoding="utf-8")
    return stop.status or (0 if all(row[-1] == "yes" for row in made[0][2]) else 1)
