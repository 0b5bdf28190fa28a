"""Runs read by another process while they go on, and arrays that stay on the disk."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit.results.store import layout
from ribbit.results.store.columns import decoded, encoded
from ribbit.results.store.stored import StoredStatistics
from tests.durability.lines import posterior
from tests.durability.reads import read_often, read_while, whole_run

pytest.importorskip("zarr")
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # short runs

CALL = {"warmup": 20, "chains": 3, "seed": 1, "progress": False}
AT = np.linspace(-1.0, 1.0, 5)[:, None]


def _hmc() -> rb.HMC:
    return rb.HMC(posterior(), step_size=0.02, num_leapfrog_steps=3)


KEYS = [
    np.s_[...],
    np.s_[1],
    np.s_[-1, -1],
    np.s_[:, 3],
    np.s_[:, 5:50:7],
    np.s_[1, 5:50, 3],
    np.s_[:, ::-3, 2],
    np.s_[:, :, ::5],
    np.s_[..., 2],
    np.s_[[0, 2]],
    np.s_[:, [1, 2]],
    np.s_[None],
    np.s_[:, 20:10],
]


@pytest.mark.parametrize("num_draws", [64, 70])
def test_lazy_draws_are_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_draws: int
) -> None:
    monkeypatch.setattr(layout, "_CHUNK_BYTES", 3 * posterior().dim * 8 * 16)
    ram = _hmc().sample(num_draws, **CALL)
    _hmc().sample(num_draws, store=tmp_path / "run", **CALL)
    disk = rb.load(tmp_path / "run")
    for key in KEYS:
        assert np.array_equal(ram.positions[key], disk.positions[key]), key
    with pytest.raises(IndexError):
        disk.positions[0, num_draws]
    with pytest.raises(AttributeError, match=r"got \.mean: .*numpy\.asarray"):
        disk.positions.mean()
    p, q = ram.predict(AT), disk.predict(AT)
    np.testing.assert_allclose(p.mean, q.mean, rtol=1e-12)
    np.testing.assert_allclose(p.std, q.std, rtol=1e-9)
    np.testing.assert_allclose(p.quantile([0.1, 0.9]), q.quantile([0.1, 0.9]), rtol=1e-9)
    assert np.array_equal(p.sample(7), q.sample(7))
    diagnostics = rb.diagnostics
    assert np.array_equal(
        diagnostics.predictive_rhat(ram, AT), diagnostics.predictive_rhat(disk, AT)
    )
    assert np.array_equal(diagnostics.weight_rhat(ram), diagnostics.weight_rhat(disk))
    now, then = (dataclasses.replace(draws, seconds=1.0) for draws in (ram, disk))
    assert now.summary(AT).text == then.summary(AT).text
    disk.save(tmp_path / "draws.npz")
    assert np.array_equal(rb.load(tmp_path / "draws.npz").positions, ram.positions)


def test_opening_a_folder_reads_no_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hmc().sample(5, store=tmp_path / "run", **CALL)
    asked: list[str] = []
    monkeypatch.setattr(StoredStatistics, "__getitem__", lambda _, name: asked.append(name))
    assert rb.load(tmp_path / "run").positions.shape[:2] == (3, 5)
    assert asked == []


def test_others_read_the_folder(tmp_path: Path) -> None:
    """zarr-python checks each chunk's CRC-32C as it reads; xarray and ArviZ see the groups."""
    import zarr

    xarray = pytest.importorskip("xarray")
    draws = _hmc().sample(40, save_warmup=True, store=tmp_path / "run", **CALL)
    group = zarr.open_group(str(tmp_path / "run"), mode="r")
    assert np.array_equal(group["posterior/theta"][...], draws.positions)
    assert np.array_equal(group["sample_stats/diverging"][...], draws.stats["diverging"])
    tree = xarray.open_datatree(str(tmp_path / "run"), engine="zarr")
    assert np.array_equal(tree["posterior/theta"].values, draws.positions)
    assert tree["warmup_sample_stats/lp"].dims == ("chain", "draw")
    assert "posterior" in rb.load(tmp_path / "run").to_datatree().children


@pytest.mark.parametrize(("dtype", "error"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_smaller_weights(tmp_path: Path, dtype: str, error: float) -> None:
    """Draws are rounded, the run is not."""
    ram = _hmc().sample(30, **CALL)
    disk = _hmc().sample(30, store=rb.Store(tmp_path / "run", dtype=dtype), **CALL)
    assert disk.positions.dtype == np.float64
    relative = np.abs(np.asarray(disk.positions) / ram.positions - 1.0)
    assert 0.0 < relative.max() <= error
    assert np.array_equal(disk.state.position, ram.state.position)
    assert np.array_equal(rb.load(tmp_path / "run").positions, disk.positions)


def test_bfloat16_rounds_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -0.0, np.inf, np.nan, 3.4e38], np.float32)
    found = decoded(encoded(values, "bfloat16"), "bfloat16", "float32")
    wanted = np.array([1.0, 1.0, 1.015625, -0.0, np.inf, np.nan, np.inf], np.float32)
    assert np.array_equal(found, wanted, equal_nan=True)


def test_predictions_in_place_of_weights(tmp_path: Path) -> None:
    store = rb.Store(tmp_path / "run", keep="predictions")
    with pytest.raises(ValueError, match="expected predict_at="):
        _hmc().sample(30, store=store, **CALL)
    disk = _hmc().sample(30, predict_at=AT, store=store, **CALL)
    ram = _hmc().sample(30, **CALL).predict(AT, keep=True)
    assert disk.positions.shape[1] == 0
    for found in (disk, rb.load(tmp_path / "run")):
        assert np.array_equal(found.prediction.samples, ram.samples)
        np.testing.assert_allclose(found.prediction.mean, ram.mean, rtol=1e-12)


def test_no_half_draw_while_it_goes_on(tmp_path: Path) -> None:
    counts = read_while(tmp_path / "run", whole_run(250_000), 60, 6)
    assert counts == sorted(counts)
    assert len(set(counts)) >= 6


@pytest.mark.slow
def test_no_half_draw_in_many_reads(tmp_path: Path) -> None:
    assert read_often(tmp_path, 10_000) >= 10_000
