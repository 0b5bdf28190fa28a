"""Every kernel compiles for both architectures, without a warning and within its budget."""

import json
import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path

import pytest

from ribbit._arrays import kernel_sources
from tests.support.cuda import kernel_list, nvrtc
from tests.support.cuda.compiler import kept
from tests.support.paths import CPP
from tools import kernel_budget

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on the PATH")
needs_nvrtc = pytest.mark.skipif(nvrtc.library() is None, reason="needs nvidia-cuda-nvrtc")
ARCHITECTURES = kernel_budget.ARCHITECTURES
MOST_SHARED = 163 * 1024  # bytes of a block on sm_80; sm_90 has more
FLOAT_ONLY = {"FewRowsProduct", "Tail", "TapGradient", "TensorProduct", "WideProduct"}
FLOAT_ONLY |= {"DirectConvolution", "DirectGradient", "LastLayers", "WideTensorProduct"}
RAISE = "run: python -m tools.kernel_budget, and say why in the commit"


def test_no_kernel_is_forgotten():
    listed = {kernel_list.template(name) for name in kernel_list.names()}
    assert listed == set(kernel_list.structs())
    assert len(listed) >= 15
    for name in listed:
        scalars = {kernel_budget.limit_of(n) for n in kernel_list.names() if n.startswith(name)}
        both = {f"{name}<float>"} if name in FLOAT_ONLY else {f"{name}<float>", f"{name}<double>"}
        assert name in scalars or both <= scalars


def test_no_operand_is_forgotten():
    found = {part for name in kernel_list.names() for part in re.findall(r"\w+", name)}
    operands = kernel_list.operands()
    assert {"Matrix", "ActivationSink"} <= operands
    assert operands <= found


def test_every_kernel_is_in_the_source():
    assert all(f"struct {name} {{" in kernel_sources.source() for name in kernel_list.structs())
    assert "#include" not in kernel_sources.source()


def test_every_header_is_installed():
    """The patterns of the build, beside what kernels include."""
    install = (CPP / "CMakeLists.txt").read_text().partition("install(DIRECTORY core cuda")[2]
    patterns = re.findall(r'PATTERN "([^"]+)"', install.partition("\n\n")[0])
    needed, seen = list(kernel_sources.HEADERS), set()
    while needed:
        name = needed.pop()
        if name not in seen:
            seen.add(name)
            needed += re.findall(r'#include "([^"]+)"', (CPP / name).read_text())
    assert len(seen) > len(kernel_sources.HEADERS) + 3
    assert [n for n in seen if not any(fnmatch(Path(n).name, p) for p in patterns)] == []


@pytest.mark.kernels
@pytest.mark.slow  # three minutes of nvcc; a step of its own in .ci/run
@needs_nvcc
def test_nvcc():
    """Every kernel, for every architecture, with the threads that its launches have."""
    measured = kernel_budget.measure(kernel_list.names())
    assert set(measured) == set(kernel_budget.ARCHITECTURES)
    for architecture, usages in measured.items():
        capability = int(architecture.removeprefix("sm_"))
        names = kernel_list.names()
        assert set(usages) == {n for n in names if kernel_sources.least_capability(n) <= capability}
        for name, usage in usages.items():
            assert usage["threads"] == kernel_list.threads_of(name), name
            # registers are given out eight at a time
            assert -(-usage["registers"] // 8) * 8 * usage["threads"] <= 65536, name
            assert usage["shared"] <= MOST_SHARED, name


@pytest.mark.kernels
@pytest.mark.slow
@needs_nvcc
def test_budget():
    committed = json.loads(kernel_budget.FILE.read_text())
    if committed.pop("nvcc") != kernel_budget.release():
        pytest.skip(f"the budget is not that of nvcc {kernel_budget.release()}")
    found = kernel_budget.limits(kernel_budget.measure(kernel_list.names()))
    assert {a: set(v) for a, v in found.items()} == {a: set(v) for a, v in committed.items()}, RAISE
    assert over(found, committed) == [], RAISE


def over(found, committed):
    """What uses more than its entry of the budget allows."""
    return [
        f"{name} on {architecture}: {usage[key]} {key}, allowed {allowed}"
        for architecture, usages in found.items()
        for name, usage in usages.items()
        for key, allowed in committed[architecture][name].items()
        if usage[key] > allowed
    ]


def test_more_than_the_budget_is_noticed():
    committed = json.loads(kernel_budget.FILE.read_text())
    committed.pop("nvcc")
    assert over(committed, committed) == []
    for key in ("registers", "shared", "spilled"):
        more = json.loads(json.dumps(committed))
        more["sm_90"]["KickDrift<float>"][key] += 1
        assert len(over(more, committed)) == 1


@needs_nvcc
def test_a_warning_is_an_error(monkeypatch):
    text = kernel_budget.unit(["FillUniform"]) + "__global__ void unused() { int never_read; }\n"
    monkeypatch.setattr(kernel_budget, "unit", lambda names: text)
    with pytest.raises(RuntimeError, match="never_read"):
        kernel_budget.measure(("FillUniform",))


@pytest.mark.kernels
@pytest.mark.slow  # a minute or two each; .ci/run has one beside nvcc, which compiles for both
@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc(architecture):
    """The texts that users compile, by the names that they are asked for: not a word in the log."""
    groups: dict[str, list[str]] = {}
    capability = int(architecture.removeprefix("sm_"))
    names = [n for n in kernel_list.names() if kernel_sources.least_capability(n) <= capability]
    for name in names:
        groups.setdefault(kernel_sources.of_kernel(name), []).append(kernel_sources.entry(name))
    assert len(groups) > 10
    programs = [(*one, architecture) for one in groups.items()]
    # processes: NVRTC compiles one program at a time in each
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = list(pool.map(nvrtc_of, *zip(*programs, strict=True)))
    for (_, names, _), (log, symbols) in zip(programs, found, strict=True):
        assert log == ""
        assert len(set(symbols)) == len(names)


def nvrtc_of(text, names, architecture):
    options = [
        *kernel_sources.OPTIONS,
        f"--gpu-architecture={architecture}",
        "-Werror",
        "all-warnings",
        "-diag-suppress=177",  # what a header has for other kernels is no mistake
    ]

    def make(path):
        path.write_text(json.dumps(nvrtc.compile_names(text, names, options)))

    return json.loads(kept(".json", make, text, nvrtc.version(), *names, *options).read_text())


@needs_nvrtc
def test_nvrtc_refuses_a_warning():
    text = kernel_sources.source() + "__global__ void unused() { int never_read; }\n"
    options = [*kernel_sources.OPTIONS, "--gpu-architecture=sm_80", "-Werror", "all-warnings"]
    with pytest.raises(RuntimeError, match="never_read"):
        nvrtc.compile_names(text, [kernel_sources.entry("FillUniform")], options)
