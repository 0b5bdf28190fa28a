"""Ctrl-C at random moments: time from the signal to the return of ``sample``.

A child process samples again and again and notes when each call begins and returns. Its parent
sends SIGINT. Both read the same monotonic clock.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ribbit as rb
from tests.support.paths import ROOT

MOST, MOST_WITH_EXECUTOR = 0.1, 0.15  # seconds, for 95 % of the signals
_LONGEST = 2.0  # seconds from the call to the signal


def mlp() -> rb.Posterior:
    """60 rows and 25 weights: a gradient takes microseconds."""
    x = np.linspace(-1, 1, 60)[:, None]
    return _posterior(rb.mlp(1, (8,), 1), x, np.sin(3 * x[:, 0]), rb.Gaussian(0.3))


def resnet() -> rb.Posterior:
    """ResNet-20 on 16 images of 32 x 32 pixels: a gradient takes a tenth of a second."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(16, 32, 32, 3)).astype(np.uint8)
    return _posterior(rb.resnet20_frn(10), x, rng.integers(0, 10, 16), rb.Categorical())


def lstm() -> rb.Posterior:
    """An LSTM of 64 units on 256 sequences of 50 steps."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 50, 4)).astype(np.float32)
    model = rb.Model([rb.LSTM(64), rb.Dense(1)], input_shape=(50, 4))
    return _posterior(model, x, x[:, :, 0].mean(axis=1), rb.Gaussian(0.3))


# With more draws than there is time for.
TARGETS: dict[str, tuple[Callable[[], rb.Posterior], int]] = {
    "MLP": (mlp, 1_000_000),
    "ResNet-20": (resnet, 100),
    "LSTM": (lstm, 10_000),
}


def _posterior(model: Any, x: Any, y: Any, likelihood: Any) -> rb.Posterior:
    return rb.Posterior(model, x, y, prior=rb.Normal(0.1), likelihood=likelihood)


@dataclass(frozen=True)
class Interrupts:
    """Seconds from each signal to the return, and how many came before a run had its start."""

    name: str
    executor: bool
    seconds: list[float]
    early: int

    @property
    def most(self) -> float:
        """The bound of the 95 % quantile."""
        return MOST_WITH_EXECUTOR if self.executor else MOST

    @property
    def p95(self) -> float:
        """The 95 % quantile, an observed value."""
        return float(np.quantile(self.seconds, 0.95, method="higher"))

    def line(self) -> str:
        """Return all figures."""
        p95, middle, most = (
            1e3 * s for s in (self.p95, np.median(self.seconds), max(self.seconds))
        )
        return (
            f"{self.name}{', executor=' if self.executor else ''}: 95 % within {p95:.0f} ms "
            f"(allowed {1e3 * self.most:.0f} ms), median {middle:.0f} ms, longest {most:.0f} ms, "
            f"{len(self.seconds)} signals, {self.early} before the start"
        )


def interrupt_often(name: str, times: int, seed: int, *, executor: bool) -> Interrupts:
    """Interrupt the runs of a target `times` times, each at a random moment.

    Raises
    ------
    AssertionError
        When a run does not end as interrupted.
    """
    rng = random.Random(f"{name} {executor} {seed}")
    command = [sys.executable, "-m", "tests.durability.interrupts", name, *["executor"] * executor]
    seconds, early = [], 0
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A process that a shell starts in the background ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(times):
            print("again", file=child.stdin, flush=True)
            assert child.stdout.readline() == "sampling\n"
            time.sleep(rng.uniform(0.0, _LONGEST))
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            note = json.loads(child.stdout.readline())
            assert note["reason"] in ("interrupted", "before the start"), note
            early += note["reason"] == "before the start"
            seconds.append(note["returned"] - sent)
        child.stdin.close()
    assert child.returncode == 0
    return Interrupts(name, executor, seconds, early)


def _sample_often(name: str, *, executor: bool) -> None:
    """Sample once for each line of the standard input, and print how and when it ended.

    Every other run resumes, because the start of a large network takes much of the time.
    """
    warnings.simplefilter("ignore")  # interrupted runs warn
    make, num_draws = TARGETS[name]
    hmc = rb.HMC(make(), step_size=1e-3, num_leapfrog_steps=5)
    options: dict[str, Any] = {"warmup": 0, "progress": False}
    first = hmc.sample(1, chains=2, **options)
    for number, _ in enumerate(sys.stdin):
        start = {"resume": first} if number % 2 else {"chains": 2}
        with contextlib.ExitStack() as stack:
            if executor:  # a new one, because tasks of an interrupted run go on for a while
                options["executor"] = stack.enter_context(concurrent.futures.ProcessPoolExecutor(2))
            try:
                print("sampling", flush=True)
                draws = hmc.sample(num_draws, **start, **options)
                reason = draws.settings["stopped"]["reason"]
            except KeyboardInterrupt as error:
                reason = "an exception" if hasattr(error, "draws") else "before the start"
            returned = time.monotonic()
        print(json.dumps({"returned": returned, "reason": reason}), flush=True)


if __name__ == "__main__":
    _sample_often(sys.argv[1], executor=len(sys.argv) > 2)
