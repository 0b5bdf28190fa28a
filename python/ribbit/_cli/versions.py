"""What is installed and what it runs on, for bug reports."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from ribbit import _core

_FALLBACK = ("numpy", "matplotlib", "rich", "scikit-learn", "arviz-base", "arviz-stats")
_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")  # wheels; conda and source say "cupy"


def versions() -> dict[str, str]:
    """Collect versions and facts about the machine, in the order in which they are shown."""
    info = _core.build_info()
    rows = {
        "ribbit": _version("ribbit") or f"{info.get('version', 'unknown')} (not installed)",
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": f"{_usable_cores()} usable of {os.cpu_count()}",
        "threads": str(_core.num_threads()),
        "instruction set": f"{_core.isa()} (available: {', '.join(_core.available_isas())})",
        "compiler": str(info.get("compiler", "unknown")),
        "cuda": _cuda(),
        "nvrtc": _nvrtc(),
        "cupy": _cupy(),
    }
    for name in _requirements():
        rows[name] = _version(name) or "not installed"
    for name in ("RIBBIT_ISA", "RIBBIT_NUM_THREADS"):
        if name in os.environ:
            rows[name] = os.environ[name]
    return rows


def show_versions() -> None:
    """Print versions and facts about the machine for a bug report."""
    rows = versions()
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[str]:
    """Names of the packages that ribbit or one of its extras asks for."""
    try:
        lines = metadata.requires("ribbit") or []
    except metadata.PackageNotFoundError:
        return list(_FALLBACK)
    names: list[str] = []
    for line in lines:
        found = re.match(r"[A-Za-z0-9._-]+", line)
        if found and found.group() not in (*names, *_CUPY, "cuda-toolkit", "ribbit"):
            names.append(found.group())
    return names


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    if sys.platform == "linux":
        try:
            text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        found = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
        if found:
            return found.group(1).strip()
    return platform.processor() or platform.machine() or "unknown"


def device_status() -> str:
    """Return the reason why kernels cannot run on a device; "" if they can."""
    lacks = [] if _driver() else ["no driver"]
    if _cupy() == "not installed":
        return "; ".join([*lacks, "no CuPy"])
    from ribbit._arrays.cupy import problem

    try:
        found = problem()
    except ImportError as error:
        return "; ".join([*lacks, f"a CuPy that cannot be loaded ({error})"])
    if found is not None:
        lacks.append(f"expected {found}")
    elif lacks:  # one that /proc does not show
        return ""
    return "; ".join(lacks)


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", text)
    return f"driver {found.group(1)}" if found else "a driver is loaded"


def _cuda() -> str:
    driver = _driver() or "no driver"
    if _cupy() == "not installed":
        return f"{driver}, devices not looked for (no CuPy)"
    from ribbit._arrays.cupy import devices

    try:
        count, name = devices()
    except ImportError as error:
        return f"{driver}, devices not looked for (CuPy cannot be loaded: {error})"
    found = device_status() if count else ""
    named = f" ({name})" if name else ""
    return f"{driver}, {count} device{'' if count == 1 else 's'}{named}" + (found and f": {found}")


def _cupy() -> str:
    found = [f"{version} ({name})" for name in _CUPY if (version := _version(name))]
    return ", ".join(found) or "not installed"


def _nvrtc() -> str:
    if _cupy() == "not installed":
        return "not looked for (no CuPy)"
    from ribbit._arrays.cupy import nvrtc_version

    try:
        return nvrtc_version()
    except ImportError as error:
        return f"not found ({' '.join(str(error).split())})"
