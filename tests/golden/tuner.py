"""Inputs and outputs of MCLMC's tuner in each block of a warmup.

A tuner is checked block by block: it gets the recorded inputs, and must find the recorded outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import ribbit as rb
from ribbit.samplers.mcmc.energy_tuning import EnergyTuning
from tests.golden import targets
from tests.golden.play import sampled
from tests.golden.table import Run

__all__ = ["blocks_of", "write"]


class Blocks:
    """The blocks of a warmup, in their order."""

    def __init__(self) -> None:
        self._errors: list[np.ndarray] = []  # of the block that has not ended
        self.found: dict[str, list[Any]] = {}

    def observe(self, errors: Any) -> None:
        """Keep the energy errors (C, n) of steps of a block."""
        self._errors.append(np.array(errors))

    def close(self, before: Any, after: Any) -> None:
        """Keep a block: its inputs, and the state with what the tuner found."""
        block = {
            "end": before.step,
            "errors": np.concatenate(self._errors, axis=1),
            "position": before.position,
            "grad": before.grad,
            "step_size": after.step_size,
            "decoherence_length": after.decoherence_length,
        }
        for name in ("inverse_mass", "mixing"):  # at the ends of windows alone
            value = getattr(after, name)
            if value is not None and value is not getattr(before, name):
                block[f"{name} {before.step}"] = value
        for name, value in block.items():
            self.found.setdefault(name, []).append(value)
        self._errors = []

    def arrays(self) -> dict[str, np.ndarray]:
        """Return arrays with a row for each block; errors (C, steps) end to end."""
        found = {name: np.array(values) for name, values in self.found.items() if name != "errors"}
        return {**found, "errors": np.concatenate(self.found["errors"], axis=1)}


def blocks_of(run: Run) -> dict[str, np.ndarray]:
    """Return the blocks of the warmup of an MCLMC run."""
    blocks, observe, close = Blocks(), EnergyTuning.observe, EnergyTuning.close

    def observed(self: EnergyTuning, state: Any, errors: Any, first: int) -> Any:
        blocks.observe(errors)
        return observe(self, state, errors, first)

    def closed(self: EnergyTuning, state: Any) -> Any:
        after = close(self, state)
        blocks.close(state, after)
        return after

    with mock.patch.multiple(EnergyTuning, observe=observed, close=closed):
        sampled(rb.MCLMC(targets.make(run.target), **run.options), run.call)
    return blocks.arrays()


def write(file: Path, runs: list[Run]) -> None:
    """Write the blocks of some runs to one file."""
    arrays = {f"{run.name}/{name}": a for run in runs for name, a in blocks_of(run).items()}
    with file.open("wb") as out:
        np.savez_compressed(out, **arrays)
