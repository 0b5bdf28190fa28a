"""The child of the first-draw workload.

``python -m benchmarks.harness.first_draw_child MODULE SPEC`` reads data and start from SPEC,
samples, and prints the statistics that the workload checks as one JSON line. MODULE is the rival's;
empty for ribbit. Imports nothing that a user's script would not, since the clock of
`benchmarks.harness.first_draw` runs.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def statistics(start: Any, positions: Any, values: Any, rate: float) -> dict[str, float]:
    """Reduce one run of draws (draws, P) to the numbers that are compared."""
    half = values[len(values) // 2 :]
    travelled = positions[-1] - start
    return {
        "logdensity": float(sum(half) / len(half)),
        "distance": float((travelled @ travelled) ** 0.5),
        "acceptance": float(rate),
    }


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


def main(module: str, path: str) -> None:
    """Sample and print."""
    import numpy as np

    with np.load(path) as data:
        settings = json.loads(str(data["settings"]))
        if not module:
            positions, values, rate = ours(data, settings)
        else:
            from benchmarks.workloads.table import WORKLOADS

            sample = importlib.import_module(module).first_draw
            workload = WORKLOADS[settings["name"]]
            positions, values, rate = sample(workload, data["x"], data["y"], data["start"])
        answer = statistics(data["start"], positions, values, rate)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
