"""What workers of an executor cost: ``python -m benchmarks.executors``.

A call: seconds of one draw with a pool that is warm, minus those without. A draw: what one more
costs without a pool, a step of SGLD on 32 rows. A look: a state that goes to a worker and comes
back, by a job that does nothing else; what every draw of a run has to pay at most. Megabytes: of
the job, which a worker is sent once, of a state, and what a worker's resident memory has grown by.
Each is the least of some runs, which other work on the machine has disturbed the least.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import pickle
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from ribbit.executor import Group, Workers


def small() -> tuple[rb.Posterior, int]:
    """60 rows, 25 parameters; and draws of a run."""
    x = np.linspace(-1, 1, 60)[:, None]
    likelihood = rb.Gaussian(0.3)
    return _posterior(rb.mlp(1, (8,), 1), x, np.sin(3 * x[:, 0]), likelihood), 400


def large() -> tuple[rb.Posterior, int]:
    """20,000 rows of 100 features, 20,401 parameters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 100)).astype(np.float32)
    return _posterior(rb.mlp(100, (200,), 1), x, np.sin(x[:, 0]), rb.Gaussian(0.3)), 40


def resnet() -> tuple[rb.Posterior, int]:
    """ResNet-20 of 272,762 parameters on 64 images (32, 32, 3)."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(64, 32, 32, 3)).astype(np.uint8)
    model = rb.resnet20_frn(10, input_shape=(32, 32, 3))
    return _posterior(model, x, rng.integers(0, 10, 64), rb.Categorical()), 8


TARGETS: dict[str, Callable[[], tuple[rb.Posterior, int]]] = {
    "small": small,
    "large": large,
    "resnet": resnet,
}


def _posterior(model: Any, x: Any, y: Any, likelihood: Any) -> rb.Posterior:
    return rb.Posterior(model, x, y, prior=rb.Normal(0.1), likelihood=likelihood)


def resident() -> int:
    """Bytes of the memory of a worker."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def idle(state: Any, end: int) -> tuple[Any, None]:
    """Give a state back: a job that does nothing else."""
    del end
    return state, None


def measured(run: Callable[[], Any], times: int) -> float:
    """Return the least of the seconds of some runs, behind one that warms up."""
    run()
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def study(name: str, times: int) -> dict[str, float]:
    """Return milliseconds and megabytes of one target."""
    target, draws = TARGETS[name]()
    sampler = rb.SGLD(target, step_size=1e-9, batch_size=32)
    state = sampler.sample(1, warmup=0, chains=1, progress=False).state
    density = sampler._density
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        before = pool.submit(resident).result()

        def run(count: int, executor: Any = None) -> Callable[[], Any]:
            return lambda: sampler.sample(
                *(count,), warmup=0, chains=1, progress=False, executor=executor
            )

        alone, elsewhere = measured(run(1), times), measured(run(1, pool), times)
        step = (measured(run(draws + 1), times) - alone) / draws
        after = pool.submit(resident).result()
        with Workers("study", density, idle, pool) as workers:
            workers.groups = [Group(state)]

            def look() -> None:
                workers.submit(workers.groups[0])
                while not list(workers.collect()):
                    pass

            there = measured(look, 20 * times)
    return {
        "call (ms)": 1e3 * (elsewhere - alone),
        "draw (ms)": 1e3 * step,
        "look (ms)": 1e3 * there,
        "job (MB)": len(pickle.dumps(sampler)) / 1e6,
        "state (MB)": len(pickle.dumps(state)) / 1e6,
        "worker (MB)": (after - before) / 1e6,
    }


def main(given: list[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.executors", description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="runs of which the least counts")
    parser.add_argument("--of", choices=TARGETS, action="append", help="targets (default: all)")
    arguments = parser.parse_args(given)
    warnings.simplefilter("ignore")  # short runs
    rb.set_num_threads(1)
    for number, name in enumerate(arguments.of or TARGETS):
        found = study(name, arguments.times)
        if number == 0:
            print("| target | " + " | ".join(found) + " |")
            print("|---|" + "---|" * len(found))
        print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in found.values()) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
