"""Seconds of a gradient whose rows lie on several ranks, and of what the ranks say to each other.

    mpiexec -n 2 python -m mpi4py -m benchmarks.ranks resnet20 --rows 512 --latency 0 0.001

Rank 0 prints a line for each latency, which every message waits for on top of its own time: the
smallest of the rounds, of the wall clock, of what messages took of it, waiting included, and of the
seconds on cores. `RIBBIT_NUM_THREADS` decides the threads of each rank.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import ribbit as rb


class Delayed:
    """A communicator whose messages come later."""

    def __init__(self, link: Any, seconds: float) -> None:
        self._link, self.seconds, self.spent = link, seconds, 0.0
        self.rank, self.size = link.rank, link.size

    def gather(self, send: memoryview, receive: memoryview, sizes: Sequence[int]) -> None:
        """See `Communicator.gather`."""
        self._timed(self._link.gather, send, receive, sizes)

    def exchange(self, *buffers: Any) -> None:
        """See `Communicator.exchange`."""
        self._timed(self._link.exchange, *buffers)

    def _timed(self, call: Any, *arguments: Any) -> None:
        begin = time.perf_counter()
        call(*arguments)
        if self.seconds:
            time.sleep(self.seconds)
        self.spent += time.perf_counter() - begin


def problem(name: str, rows: int) -> tuple[Any, Any, Any]:
    """Return a network, and rows for it that mean nothing."""
    rng = np.random.default_rng(0)
    if name == "resnet20":
        model, x = rb.zoo.resnet20_frn(), rng.integers(0, 255, (rows, 32, 32, 3)).astype(np.uint8)
    elif name == "cnn-lstm":
        model = rb.zoo.cnn_lstm()
        x = rng.integers(0, 20_000, (rows, *model.input_shape))
    else:
        model, x = rb.mlp(8, (50, 50), 2), rng.normal(size=(rows, 8))
    return model, x, rng.integers(0, 2, rows)


def main() -> None:
    """Measure one network on the ranks that there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=["mlp", "resnet20", "cnn-lstm"])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency", type=float, nargs="+", default=[0.0])
    chosen = parser.parse_args()
    link = Delayed(rb.distributed.from_mpi()._link, 0.0)
    group = rb.distributed.Group(link)
    model, x, y = problem(chosen.network, chosen.rows)
    mine = group.rows(chosen.rows)
    target = rb.Posterior(
        *(model, x[mine], y[mine]),
        prior=rb.Normal(0.1),
        likelihood=rb.Categorical(),
        marginalize=None,
        group=group,
    )
    theta = target.init()
    target.value_and_grad(theta)
    for latency in chosen.latency:
        link.seconds = latency
        times, spent, used = [], [], []
        for _ in range(chosen.rounds):
            link.spent, begin, core = 0.0, time.perf_counter(), time.process_time()
            before = group.bytes_sent
            target.value_and_grad(theta)
            times.append(time.perf_counter() - begin)
            spent.append(link.spent)
            used.append(time.process_time() - core)
        if group.rank == 0:
            print(
                f"{chosen.network}, {chosen.rows} rows, P = {target.dim}, {group.size} ranks, "
                f"latency {1e3 * latency:g} ms: {1e3 * min(times):.2f} ms a gradient, "
                f"{1e3 * min(spent):.2f} ms of them messages, {1e3 * min(used):.2f} ms on cores, "
                f"{(group.bytes_sent - before) / 1e6:.3f} MB sent per rank",
                flush=True,
            )


if __name__ == "__main__":
    main()
