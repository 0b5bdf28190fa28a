"""Counts of `benchmarks.paper`: against plain arithmetic, against the device that runs, its budget.

A change of the host's launches or of a kernel may lower a count, not raise it; the budget is
written by ``python -m benchmarks.paper --write``.
"""

from __future__ import annotations

import copy
import ctypes
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.studies import gpu_rows, paper, paper_kernels, paper_ptx
from tests.support.cuda import cpu_device, nvrtc
from tests.support.cuda.recorder import recording

needs_nvrtc = pytest.mark.skipif(nvrtc.library() is None, reason="needs nvidia-cuda-nvrtc")
COMMITTED = json.loads(paper.BUDGET.read_text())
# Of the table at full size; the others record for a minute.
QUICK = ("bbb-sampling", "leapfrog-update", "hmc-1000-chains", "hmc-58368-rows", "hmc-wide", "sgld")
QUICK += ("mc-forward-tf32",)
RAISE = "run: python -m benchmarks.paper --write, and say why in the commit"

WALK = r"""
struct Walk { const float* x; float* out; const long long* steps; long long n; long long cut; };
extern "C" __global__ void __launch_bounds__(64) walk(const Walk w) {
  __shared__ float some[64];
  const long long first = (long long)blockIdx.x * 64 + threadIdx.x - w.cut / 3;
#pragma unroll 1
  for (long long i = first; i < w.n; i += (long long)gridDim.x * 64) {
    if (i < 0) continue;
    some[threadIdx.x] = w.x[i];
    const int most = (int)(i % 5) - 1;
#pragma unroll 1
    for (int j = 0; j < most; ++j) w.out[i * 4 + j] = some[threadIdx.x] * 2.0f;
  }
  __syncthreads();
#pragma unroll 1
  for (long long s = 0; s < w.steps[blockIdx.y]; ++s) atomicAdd(w.out, some[63 - threadIdx.x]);
}
"""


def walked(n: int, cut: int, steps: list[int], block: tuple[int, int], thread: int) -> list[int]:
    """Return loads, stores and additions of one thread of WALK on a grid of (3, 2) blocks."""
    loads = stores = 0
    for i in range(block[0] * 64 + thread - cut // 3, n, 3 * 64):
        if i >= 0:
            loads += 1
            stores += max(0, i % 5 - 1)
    return [loads, stores, steps[block[1]]]


@needs_nvrtc
def test_threads_run_as_the_text_says() -> None:
    """Loops, signs, remainders and integers from memory, against the same walk in Python."""
    made = nvrtc.compiled(WALK, (), ("--std=c++17", "--gpu-architecture=sm_90"))
    function = paper_ptx.functions(made.ptx)["walk"]
    steps = np.array([3, 0], dtype=np.int64)
    space = np.zeros(2, np.int64)

    def read(address: int, size: int) -> int:
        return int.from_bytes(ctypes.string_at(address, size), "little")

    for n, cut in ((1000, 0), (1000, 300), (5, 700), (0, 0)):
        words = [space.ctypes.data, space.ctypes.data, steps.ctypes.data, n, cut]
        arguments = np.array(words, dtype=np.int64).tobytes()
        for block in ((0, 0), (2, 1), (1, 0)):
            for thread in (0, 31, 63):
                place = (thread, 0, 0, *block, 0, 64, 1, 1, 3, 2, 1)
                found = function.run(arguments, place, read)
                assert all(access.known for access in function.accesses)
                counts = Counter[str]()
                for (runs, _, _), access in zip(found.accesses, function.accesses, strict=True):
                    if access.width == 4:  # not the steps
                        counts["store" if access.store else "load"] += runs
                loads, stores, added = walked(n, cut, steps.tolist(), block, thread)
                ours = [counts["load"], counts["store"]]
                assert ours in ([loads, stores + added], [loads + added, stores]), (n, cut, block)
                assert found.guesses == 0


@needs_nvrtc
@pytest.mark.parametrize(
    ("m", "n", "k"), [(64, 64, 16), (130, 70, 100), (900, 9, 70), (300, 40, 7)]
)
def test_a_product_multiplies_what_its_tiles_hold(m: int, n: int, k: int) -> None:
    """Multiply-adds of all lanes: those of whole tiles and 16 terms; wide ones have one barrier."""
    from benchmarks.studies.paper_counts import counted
    from ribbit._arrays.device import pack
    from ribbit._arrays.namespace import _devices
    from ribbit._backends.cuda.layers.products import activation_sink, matrix, product

    with recording() as (xp, record):
        device: Any = _devices[cpu_device.NAMESPACE.__name__]
        a, b, out = (xp.zeros(size, dtype=xp.float32) for size in ((m, k), (k, n), (m, n)))
        at = [device.pointer(one) for one in (a, b, out)]
        launch = product(
            "float",
            matrix("float", at[0], 0, k),
            matrix("float", at[1], 0, n),
            activation_sink("float", 0, None, 0, at[2], None, 0, n),
            m=m,
            n=n,
            k=k,
            room=device.block_shared,
        )
        kernel = device.kernels([launch.name])[launch.name]
        kernel(launch.grid_of(1), pack(device, launch.fields))
    (one,) = counted(record)
    wide, sizes, steps = launch.name.startswith("Wide"), launch.name[:-1].split(", "), -(-k // 16)
    assert wide == (m * n * k >= 1 << 18)
    height, width = map(int, sizes[-5:-3] if wide else sizes[-3:-1])
    tiles = -(-m // height) * -(-n // width)
    assert one.blocks == tiles
    assert one.blocks * one.warps * one.fma * 32 == tiles * height * width * steps * 16
    assert one.barriers == (steps if wide else 2 * steps)
    assert one.guesses == 0
    # every input read and the output written, at least, and no byte beyond the three arrays
    assert 4 * m * n <= one.memory <= 4 * (m * k + k * n + m * n)
    assert one.issue > one.fma
    assert one.issue <= one.clocks < 2.0 * one.issue


def test_clocks_of_registers() -> None:
    """Two that are read of one bank take two clocks; what is still there is not read again."""
    code = [
        "FFMA.FTZ R102, R33, R8.reuse, R102",  # odd, even, even
        "FFMA.FTZ R103, R33, R8, R103",  # R8 is there: two odd ones
        "@!P0 FFMA R9, R8, R6, R4",  # three even ones
        "FFMA R9, R8, R8, R5",  # one even, one odd
        "FFMA R9, R8.reuse, 0.5, R5",
        "FMUL R1, R6, R8",  # it was kept in another place
        "LDS.128 R8, [R4+UR6+0x10]",
        "BRA `(.L_x_7)",
    ]
    assert paper_kernels.clocks_of(code) == [2, 2, 3, 1, 1, 2, 1, 1]
    between = ["FFMA R0, R1.reuse, R2, R3", "LDS R9, [R4]", "FFMA R0, R1, R2, R5"]
    assert paper_kernels.clocks_of(between) == [2, 1, 2]


@pytest.mark.parametrize("name", ["bbb-sampling", "hmc-58368-rows", "hmc-1-chain"])
def test_what_is_recorded_is_what_runs(name: str) -> None:
    """The same launches as on the device that runs the kernels, at a small size."""
    pytest.importorskip("pybind11")
    row = gpu_rows.ROWS[name]
    with recording() as (xp, record):
        call = row.prepare(xp, True)
        call(0)
        record.launches.clear()
        call(1)
    told = sum(record.launches.values())
    xp = cpu_device.register()
    device = next(d for n, d in _registered().items() if n == cpu_device.NAMESPACE.__name__)
    call = row.prepare(xp, True)
    call(0)
    before = device.launches
    call(1)
    ran = device.launches - before
    assert told == ran
    assert told >= 1


@pytest.mark.parametrize("name", ["mc-forward-tf32", "hmc-wide", "sgld", "resnet20-mixed"])
def test_small_devices_run_the_workloads(name: str) -> None:
    """No block asks for more shared memory than 8.6, 8.9 and 12.0 give; the recorder says so."""
    told = []
    for size in (227, 99):
        with recording(block_shared=size << 10) as (xp, record):
            paper.ROWS[name].prepare(xp, False)(0)
        told.append(record)
    large, small = told
    assert any(shared > 99 << 10 for *_, shared, _ in large.launches) or name != "hmc-wide"
    assert sum(large.launches.values()) == sum(small.launches.values())


def _registered() -> dict[str, Any]:
    from ribbit._arrays.namespace import _devices

    return _devices


@pytest.fixture(scope="module")
def quick() -> list[paper.Counts]:
    """Return counts of the rows that take a second or two."""
    return [paper.count(paper.ROWS[name]) for name in QUICK]


@needs_nvrtc
def test_budget(quick: list[paper.Counts]) -> None:
    assert paper.over(paper.budget(quick), COMMITTED) == [], RAISE
    assert set(COMMITTED["rows"]) == set(paper.ROWS)


@pytest.mark.slow  # some minutes: half a million launches, twice
@needs_nvrtc
@pytest.mark.parametrize("name", [name for name in paper.ROWS if name not in QUICK])
def test_budget_of_the_large(name: str) -> None:
    assert paper.over(paper.budget([paper.count(paper.ROWS[name])]), COMMITTED) == [], RAISE


def test_more_than_the_budget_is_noticed() -> None:
    assert paper.over(COMMITTED, COMMITTED) == []
    for key, factor in (("launches", 1.001), ("instructions", 1.03), ("model_us", 1.06)):
        more = copy.deepcopy(COMMITTED)
        more["rows"]["resnet20"][key] *= factor
        assert len(paper.over(more, COMMITTED)) == 1
        assert paper.over(COMMITTED, more) == []
    other = copy.deepcopy(COMMITTED) | {"nvrtc": "0.0"}
    other["rows"]["resnet20"]["instructions"] *= 2.0
    assert paper.over(other, COMMITTED) == []  # of another compiler
    other["rows"]["resnet20"]["launches"] += 1
    assert len(paper.over(other, COMMITTED)) == 1


@needs_nvrtc
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page says what it is; measured times stand beside the model, far ones marked."""
    lines = tmp_path / "accept.jsonl"
    page = tmp_path / "page.md"
    model = paper.count(gpu_rows.ROWS["bbb-sampling"], small=True).model("H100").seconds
    for factor in (1.1, 1.6):
        numbers = {"workload": "bbb-sampling", "seconds": factor * model}
        step = {"step": "row", "numbers": numbers, "device": "NVIDIA H100 80GB HBM3"}
        with lines.open("a") as file:
            file.write(json.dumps(step) + "\n" + json.dumps(step | {"rehearsal": True}) + "\n")
    arguments = ["--rows", "bbb-sampling", "--small", "--write", str(page), "--against", str(lines)]
    assert paper.main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    compared = [line for line in printed if "| H100 |" in line]
    assert [line.endswith("| beyond 1.5x |") for line in compared] == [False, True]
    text = page.read_text()
    assert "## By count, not measured" in text
    assert "| bbb-sampling | 1 | 1 | 1 | " in text


@needs_nvrtc
def test_machine_code_is_paired_with_its_source(quick: list[paper.Counts]) -> None:
    """Where nvdisasm is, loops of PTX and machine code agree for nearly all that runs."""
    if paper_kernels.disassembler() is None:
        pytest.skip("needs nvidia-cuda-nvdisasm")
    launches = [one for counts in quick for one in counts.launches]
    paired = sum(one.instructions for one in launches if one.paired)
    everything = sum(one.instructions for one in launches)
    trajectories = sum(one.instructions for one in launches if "Trajectory" in one.name)
    assert paired + trajectories > 0.99 * everything
    guessed = sum(one.instructions for one in launches if one.guesses)
    assert guessed < 0.01 * everything
