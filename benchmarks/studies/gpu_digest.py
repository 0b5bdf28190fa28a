"""A digest of the sources that decide what a device runs, and what an evidence file says of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "cpp/core/*_hd.h",
    "cpp/cuda/*/*",
    "python/ribbit/_arrays/cupy.py",
    "python/ribbit/_arrays/device.py",
    "python/ribbit/_arrays/device_kernels.py",
    "python/ribbit/_arrays/kernel_compiler.py",
    "python/ribbit/_arrays/kernel_sources.py",
    "python/ribbit/_backends/cuda/**/*.py",
)


def digest() -> str:
    """Return the SHA-256 of the names and contents of all sources."""
    found = hashlib.sha256()
    for path in sorted({p for pattern in SOURCES for p in ROOT.glob(pattern) if p.is_file()}):
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def outcomes() -> list[str]:
    """Return one line for each evidence file: whether the sources are those it was made from."""
    lines = []
    for path in sorted((ROOT / "benchmarks" / "evidence" / "gpu").glob("*.json")):
        evidence = json.loads(path.read_text())
        same = evidence["digest"] == digest()
        commit = evidence["commit"][:10]
        state = f"verified at {commit}" if same else f"changed since {commit}"
        lines.append(f"{evidence['device']['name']}, {evidence['date'][:10]}: {state}")
    return lines or ["no device has run these sources yet"]


if __name__ == "__main__":
    print("\n".join(outcomes()))
