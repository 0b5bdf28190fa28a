"""Runs on arrays of a device: stopped, and gone on with from a folder."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ribbit as rb
from tests.durability.lines import X, Y

pytest.importorskip("zarr")
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # short runs


def _target(xp: ModuleType) -> rb.Posterior:
    return rb.Posterior(
        rb.mlp(1, (4,), 1),
        xp.asarray(X),
        xp.asarray(Y),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
        dtype=np.float64,
    )


@pytest.mark.parametrize("name", ["hmc", "sghmc"])
@pytest.mark.filterwarnings("ignore:.*expected at least one draw:ribbit.errors.RibbitWarning")
def test_goes_on_from_a_folder(device: ModuleType, tmp_path: Path, name: str) -> None:
    target = _target(device)
    sampler: Any = rb.SGHMC(target, step_size=1e-5, batch_size=8)
    if name == "hmc":
        sampler = rb.HMC(target, step_size="auto", num_leapfrog_steps=3)
    call = {"warmup": 8, "chains": 2, "seed": 1, "progress": False}
    alone = sampler.sample(8, **call)
    store = rb.Store(tmp_path / "run", flush_seconds=1e-4)
    calls = 0
    while not (draws := sampler.sample(8, store=store, max_seconds=1e-6, **call)).complete:
        calls += 1
    assert calls >= 8
    assert np.array_equal(draws.positions, alone.positions.get())
    assert np.array_equal(draws.state.position.get(), alone.state.position.get())
    assert np.array_equal(rb.load(tmp_path / "run").positions, draws.positions)
