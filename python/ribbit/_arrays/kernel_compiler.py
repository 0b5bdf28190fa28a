"""Machine code of device kernels: compiled at run time, once, and kept in files."""

# A kernel is a program of its own. Its file is named by all that the code depends on: text, name,
# options, compiler, architecture.

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ribbit._arrays import kernel_sources
from ribbit._arrays.warning import warn

_PATIENCE = 1.0  # seconds of compiling until a line says so


@dataclass(frozen=True)
class Code:
    """A compiled kernel."""

    symbol: str  # its name in the machine code
    cubin: bytes

    def packed(self) -> bytes:
        """Return what a file holds: a digest of the rest, the symbol, the machine code."""
        rest = self.symbol.encode() + b"\n" + self.cubin
        return _digest(rest).encode() + b"\n" + rest

    @classmethod
    def of(cls, data: bytes) -> Code | None:
        """Return the kernel of a file; None where the file is damaged."""
        digest, _, rest = data.partition(b"\n")
        symbol, _, cubin = rest.partition(b"\n")
        return cls(symbol.decode(), cubin) if digest == _digest(rest).encode() else None


def cache_folder() -> Path:
    """Return where compiled kernels are kept: ``ribbit`` below ``$XDG_CACHE_HOME``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ribbit"


class KernelCompiler:
    """Compiles kernels for one architecture."""

    def __init__(
        self, nvrtc: Any, architecture: str, say: Callable[[str], None] | None = None
    ) -> None:
        self._nvrtc, self._architecture = nvrtc, architecture
        self._version = nvrtc.getVersion()
        self._options = (*kernel_sources.OPTIONS, f"--gpu-architecture={architecture}")
        self._say = _to_standard_error if say is None else say
        self._warned = False

    def __call__(self, names: Sequence[str]) -> dict[str, Code]:
        """Return kernels by name, from files where they have been compiled before."""
        found, missing = {}, []
        for name in names:
            code = self._read(self._path(name))
            if code is None:
                missing.append(name)
            else:
                found[name] = code
        begin, said = time.monotonic(), False
        for number, name in enumerate(missing):
            found[name] = self._compiled(name)
            self._write(self._path(name), found[name])
            if not said and time.monotonic() - begin > _PATIENCE and number + 1 < len(missing):
                said = True
                self._say(
                    f"ribbit: compiling {len(missing)} of {len(names)} kernels for "
                    f"{self._architecture} (once)"
                )
        return found

    def _path(self, name: str) -> Path:
        ingredients = (kernel_sources.of_kernel(name), name, *self._options, repr(self._version))
        return cache_folder() / f"{_digest(chr(0).join(ingredients).encode())}.cubin"

    def _compiled(self, name: str) -> Code:
        nvrtc, entry = self._nvrtc, kernel_sources.entry(name)
        program = nvrtc.createProgram(kernel_sources.of_kernel(name), "kernel.cu", [], [])
        try:
            nvrtc.addNameExpression(program, entry)
            try:
                nvrtc.compileProgram(program, list(self._options))
            except Exception as error:  # CuPy's own
                log = nvrtc.getProgramLog(program)
                raise RuntimeError(
                    f"[ribbit] expected kernel {name} to compile for {self._architecture}, got "
                    f"{error}:\n{log}"
                ) from error
            return Code(nvrtc.getLoweredName(program, entry), nvrtc.getCUBIN(program))
        finally:
            nvrtc.destroyProgram(program)

    def _read(self, path: Path) -> Code | None:
        try:
            return Code.of(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            self._cannot_keep(error)
            return None

    def _write(self, path: Path, code: Code) -> None:
        """Write a file by renaming: nobody reads half of one."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, made = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(code.packed())
                os.replace(made, path)
            except BaseException:
                os.unlink(made)
                raise
        except OSError as error:
            self._cannot_keep(error)

    def _cannot_keep(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warn(
                f"[ribbit] expected to keep compiled kernels in {cache_folder()}, got "
                f"{type(error).__name__}: {error}; they are compiled again in every process "
                "(XDG_CACHE_HOME sets another folder)",
            )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
