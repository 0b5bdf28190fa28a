"""NVRTC, CUDA's run-time compiler, from NVIDIA's wheel: needs neither a driver nor CuPy."""

import ctypes
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@cache
def library() -> ctypes.CDLL | None:
    """The library of the nvidia-cuda-nvrtc wheel; None where it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            return ctypes.CDLL(str(path))
    return None


def version() -> str:
    """The library's version, such as 13.1."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@dataclass(frozen=True)
class Compiled:
    """The log, the symbol of every name expression, PTX text and machine code."""

    log: str
    symbols: list[str]
    ptx: str
    cubin: bytes


def compile_names(text: str, names: Sequence[str], options: Sequence[str]) -> tuple[str, list[str]]:
    """Return the compiler's log and the symbol of every name expression; see `compiled`."""
    made = compiled(text, names, options)
    return made.log, made.symbols


def compiled(text: str, names: Sequence[str], options: Sequence[str]) -> Compiled:
    """Compile the kernels of name expressions.

    RuntimeError with the log where the text does not compile.
    """
    lib, program = library(), ctypes.c_void_p()

    def call(function, *arguments):
        code = getattr(lib, f"nvrtc{function}")(*arguments)
        if code != 0:
            raise RuntimeError(f"[nvrtc] expected {function} to succeed, got code {code}\n{log()}")

    def bytes_of(what):
        size = ctypes.c_size_t()
        getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(lib, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    def log():
        return bytes_of("ProgramLog").rstrip(b"\0").decode()

    call("CreateProgram", ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    try:
        for name in names:
            call("AddNameExpression", program, name.encode())
        encoded = [option.encode() for option in options]
        call("CompileProgram", program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        symbols, cubin = [], bytes_of("CUBIN")
        if not cubin:
            raise RuntimeError("[nvrtc] expected machine code, got none")
        for name in names:
            symbol = ctypes.c_char_p()
            call("GetLoweredName", program, name.encode(), ctypes.byref(symbol))
            symbols.append(symbol.value.decode())
        return Compiled(log(), symbols, bytes_of("PTX").rstrip(b"\0").decode(), cubin)
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))
