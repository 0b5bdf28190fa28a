"""The child of the first-draw workload: ``python -m benchmarks.first_draw ENTRY SPEC``.

The clock is outside (`time_process`). The child reads data and start from SPEC, samples, prints
the statistics that the workload checks as one JSON line. For ribbit it imports nothing that a
user's script would not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.rivals import FRAMEWORKS, OURS

# Those whose module has `first_draw`, and ours.
ENTRIES = (OURS, "jax", "blackjax", "numpyro", "torch")


def statistics(start: Any, positions: Any, values: Any, rate: float) -> dict[str, float]:
    """Reduce one run of draws (draws, P) to the numbers that are compared."""
    half = values[len(values) // 2 :]
    travelled = positions[-1] - start
    return {
        "logdensity": float(sum(half) / len(half)),
        "distance": float((travelled @ travelled) ** 0.5),
        "acceptance": float(rate),
    }


def write_spec(workload: Any, path: Path) -> None:
    """Save what a child needs as an npz file."""
    import numpy as np

    x, y = workload.of.data
    of = workload.of
    settings = {
        "name": workload.name,
        "sizes": of.sizes,
        "activation": of.activation,
        "prior_scale": of.prior_scale,
        "noise_scale": of.noise_scale,
        "step_size": of.step_size,
        "num_steps": workload.num_steps,
        "draws": workload.draws,
    }
    np.savez(path, x=x, y=y, start=of.start[0][0], settings=json.dumps(settings))


def time_process(name: str, spec: Path, threads: int) -> tuple[float, dict[str, float]]:
    """Wall seconds of one fresh process from start to exit, and its answer."""
    environment = os.environ | machine.thread_environment(threads) | FRAMEWORKS[name].env
    command = [sys.executable, "-m", "benchmarks.first_draw", name, str(spec)]
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=machine.ROOT, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        last = (done.stderr.strip() or "nothing said").splitlines()[-1]
        raise RuntimeError(f"[first_draw] {name} exited with {done.returncode}: {last}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds, answer


def ours(data: Any, settings: dict[str, Any]) -> tuple[Any, Any, float]:
    """Sample as a user of Ribbit would."""
    import ribbit as rb

    sizes = settings["sizes"]
    target = rb.Posterior(
        rb.mlp(sizes[0], tuple(sizes[1:-1]), sizes[-1], activation=settings["activation"]),
        data["x"],
        data["y"],
        prior=rb.Normal(settings["prior_scale"]),
        likelihood=rb.Gaussian(settings["noise_scale"]),
    )
    hmc = rb.HMC(target, step_size=settings["step_size"], num_leapfrog_steps=settings["num_steps"])
    draws = hmc.sample(
        settings["draws"], warmup=0, chains=1, seed=1, init=data["start"], progress=False
    )
    rate = float(draws.stats["acceptance_rate"].mean())
    return draws.positions[0], draws.stats["lp"][0], rate


def main(name: str, path: str) -> None:
    """Sample and print."""
    import numpy as np

    with np.load(path) as data:
        settings = json.loads(str(data["settings"]))
        if name == OURS:
            positions, values, rate = ours(data, settings)
        else:
            from benchmarks.workloads import WORKLOADS

            sample = FRAMEWORKS[name].load().first_draw
            workload = WORKLOADS[settings["name"]]
            positions, values, rate = sample(workload, data["x"], data["y"], data["start"])
        answer = statistics(data["start"], positions, values, rate)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
