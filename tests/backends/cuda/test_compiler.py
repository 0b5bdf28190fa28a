"""Kernels compiled at run time, by NVRTC from NVIDIA's wheel, and kept in files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import kernel_compiler, kernel_sources
from ribbit._arrays.kernel_compiler import Code, KernelCompiler, cache_folder
from ribbit.errors import RibbitWarning
from tests.support.cuda import cpu_device, kernel_list, nvrtc

NAMES = ("KickDrift<float, 4>", "Accept", "FillNormal<double>")


class Nvrtc:
    """The functions of ``cupy.cuda.nvrtc``, on the library of the wheel; counts programs."""

    def __init__(self, version: tuple[int, int] = (13, 1)) -> None:
        self.version, self.made = version, 0
        self._programs: dict[int, dict[str, Any]] = {}

    def getVersion(self) -> tuple[int, int]:
        return self.version

    def createProgram(self, text: str, name: str, headers: list[str], names: list[str]) -> int:
        assert headers == names == []
        self.made += 1
        self._programs[self.made] = {"text": text, "names": []}
        return self.made

    def addNameExpression(self, program: int, name: str) -> None:
        self._programs[program]["names"].append(name)

    def compileProgram(self, program: int, options: list[str]) -> None:
        one = self._programs[program]
        one["code"] = nvrtc.compiled(one["text"], one["names"], options)

    def getLoweredName(self, program: int, name: str) -> str:
        one = self._programs[program]
        return str(one["code"].symbols[one["names"].index(name)])

    def getCUBIN(self, program: int) -> bytes:
        return bytes(self._programs[program]["code"].cubin)

    def getProgramLog(self, program: int) -> str:
        return "the log"

    def destroyProgram(self, program: int) -> None:
        del self._programs[program]

    @property
    def left(self) -> int:
        return len(self._programs)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nvrtc:
    if nvrtc.library() is None:
        pytest.skip("needs nvidia-cuda-nvrtc")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Nvrtc()


def files() -> list[Path]:
    return sorted(cache_folder().iterdir())


def test_a_kernel_is_compiled_once(library: Nvrtc) -> None:
    first = KernelCompiler(library, "sm_90")(NAMES)
    assert set(first) == set(NAMES)
    assert library.made == len(NAMES)
    assert library.left == 0
    for name, code in first.items():
        assert kernel_list.template(name) in code.symbol
        assert code.cubin.startswith(b"\x7fELF")
    assert KernelCompiler(library, "sm_90")(NAMES) == first
    assert library.made == len(NAMES)
    assert len(files()) == len(NAMES)


def test_what_code_depends_on_is_in_its_name(
    library: Nvrtc, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = ["Accept"]
    KernelCompiler(library, "sm_90")(name)
    KernelCompiler(library, "sm_80")(name)
    newer = Nvrtc((13, 2))
    KernelCompiler(newer, "sm_90")(name)
    text = kernel_sources.of_kernel
    monkeypatch.setattr(kernel_sources, "of_kernel", lambda name: text(name) + "// more\n")
    KernelCompiler(library, "sm_90")(name)
    monkeypatch.undo()
    assert library.made + newer.made == 4


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_is_made_anew(library: Nvrtc, damage: str) -> None:
    compiler = KernelCompiler(library, "sm_90")
    code = compiler(["Accept"])["Accept"]
    (path,) = files()
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        {
            "cut": data[:-7],
            "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "empty": b"",
        }[damage]
    )
    again = compiler(["Accept"])
    assert library.made == 2
    # Two runs of the compiler may differ in what fills gaps.
    assert (again["Accept"].symbol, len(again["Accept"].cubin)) == (code.symbol, len(code.cubin))
    assert Code.of(path.read_bytes()) == again["Accept"]


def test_a_folder_that_cannot_be_written_is_said_once(
    library: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compiler = KernelCompiler(library, "sm_90")
    with pytest.warns(RibbitWarning, match="compiled again in every process") as found:
        assert set(compiler(NAMES)) == set(NAMES)
    assert len(found) == 1


def test_a_kernel_that_does_not_compile(library: Nvrtc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_sources, "of_kernel", lambda name: "no C++\n")
    with pytest.raises(RuntimeError, match="expected kernel Accept to compile for sm_90"):
        KernelCompiler(library, "sm_90")(["Accept"])
    assert library.left == 0
    assert not cache_folder().exists() or not files()


def test_a_line_where_it_takes_time(library: Nvrtc, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    KernelCompiler(library, "sm_90", said.append)(NAMES)
    assert said == []
    monkeypatch.setattr(kernel_compiler, "_PATIENCE", 0.0)
    KernelCompiler(library, "sm_80", said.append)(NAMES)
    assert said == ["ribbit: compiling 3 of 3 kernels for sm_80 (once)"]


def test_a_kernel_gets_the_headers_that_it_needs() -> None:
    for name in kernel_list.names():
        text = kernel_sources.of_kernel(name)
        assert f"struct {kernel_list.template(name)} " in text
        assert "#include" not in text
    assert len(kernel_sources.of_kernel("Accept")) < len(kernel_sources.source()) / 3


def test_packed_code_comes_back() -> None:
    code = Code("symbol", b"\n\0binary\n")
    assert Code.of(code.packed()) == code
    assert Code.of(code.packed() + b" ") is None


def test_compile_is_for_the_first_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run of HMC asks for no other kernel; on the CPU nothing happens."""
    xp = cpu_device.register()
    asked: set[str] = set()
    kernels = cpu_device.CpuDevice.kernels

    def noted(self: Any, names: Any) -> Any:
        asked.update(names)
        return kernels(self, names)

    monkeypatch.setattr(cpu_device.CpuDevice, "kernels", noted)
    x = np.linspace(-1, 1, 40)[:, None]
    options: dict[str, Any] = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3)}
    target = rb.Posterior(rb.mlp(1, (4,), 1), xp.asarray(x), xp.asarray(x), **options)
    target.compile()
    before = set(asked)
    hmc = rb.HMC(target, step_size=0.01, num_leapfrog_steps=3)
    hmc.sample(3, warmup=0, chains=2, progress=False)
    assert asked == before
    rb.Posterior(rb.mlp(1, (4,), 1), x, x, **options).compile()
    assert asked == before
