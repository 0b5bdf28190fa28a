"""NVRTC, CUDA's run-time compiler, from NVIDIA's wheel: needs neither a driver nor CuPy."""

import ctypes
import importlib.util
from collections.abc import Sequence
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


def compile_names(text: str, names: Sequence[str], options: Sequence[str]) -> tuple[str, list[str]]:
    """Return the compiler's log and the symbol of every name expression.

    RuntimeError with the log where the text does not compile.
    """
    lib, program = library(), ctypes.c_void_p()

    def call(function, *arguments):
        code = getattr(lib, f"nvrtc{function}")(*arguments)
        if code != 0:
            raise RuntimeError(f"[nvrtc] expected {function} to succeed, got code {code}\n{log()}")

    def log():
        size = ctypes.c_size_t()
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetProgramLog(program, buffer)
        return buffer.value.decode()

    call("CreateProgram", ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    try:
        for name in names:
            call("AddNameExpression", program, name.encode())
        encoded = [option.encode() for option in options]
        call("CompileProgram", program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        size, symbols = ctypes.c_size_t(), []
        call("GetCUBINSize", program, ctypes.byref(size))
        if size.value == 0:
            raise RuntimeError("[nvrtc] expected machine code, got none")
        for name in names:
            symbol = ctypes.c_char_p()
            call("GetLoweredName", program, name.encode(), ctypes.byref(symbol))
            symbols.append(symbol.value.decode())
        return log(), symbols
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))
