"""The child of the first-draw workload.

``python -m benchmarks.harness.first_draw_child MODULE SPEC`` reads data and start from SPEC,
samples by MODULE's ``first_draw``, and prints the statistics that the workload checks as one JSON
line. Imports nothing that a user's script would not, since the clock of
`benchmarks.harness.first_draw` runs.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


class Given:
    """What an entry is given: `draws`, `num_steps`, and `of` with the fields of the posterior."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def statistics(start: Any, positions: Any, values: Any, rate: float) -> dict[str, float]:
    """Reduce one run of draws (draws, P) to the numbers that are compared."""
    half = values[len(values) // 2 :]
    travelled = positions[-1] - start
    return {
        "logdensity": float(sum(half) / len(half)),
        "distance": float((travelled @ travelled) ** 0.5),
        "acceptance": float(rate),
    }


def main(module: str, path: str) -> None:
    """Sample and print."""
    import numpy as np

    with np.load(path) as data:
        settings = json.loads(str(data["settings"]))
        of = settings.pop("of")
        of["sizes"] = tuple(of["sizes"])
        sample = importlib.import_module(module).first_draw
        given = Given(**settings, of=Given(**of))
        positions, values, rate = sample(given, data["x"], data["y"], data["start"])
        answer = statistics(data["start"], positions, values, rate)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
