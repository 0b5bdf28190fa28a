"""Which slow checks of `.ci/run` have passed on the very files that are here.

``python -m tools.checked native-avx2`` ends with 0 where native tests passed under sanitizers, with
kernels of that width, and for AArch64 under an emulator; ``kernels`` where the tests with that mark
passed, which are of the device's kernels alone: their answers on the CPU, AddressSanitizer, limits
by nvcc, texts by NVRTC; with 1 where they must run. `.ci/run` makes them then, and says what
records it: the same with ``--write``, which is committed like any other change. One byte of the
files below, and they run again.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["FILE", "SOURCES", "digest", "main"]

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / ".ci" / "checked.json"
# What a check depends on: what is compiled, what compiles it, what says what runs and on which
# problems. Compilers, Debian's packages and the rest of the package are not among it.
NATIVE = (
    ".ci/native",
    "CMakeLists.txt",
    "cmake",
    "cpp",
    "docs/guide/c_abi.md",
    "python/ribbit/_backends/codes.py",
    "tests/embedding",
    "tests/support/c_library.py",
    "tests/support/paths.py",
)
SOURCES = {
    "native-avx2": NATIVE,
    "native-avx512": NATIVE,
    "kernels": (
        "cpp/bindings",
        "cpp/core",
        "cpp/cuda",
        "python/ribbit/_arrays",
        "python/ribbit/_backends",
        "python/ribbit/errors.py",
        "python/ribbit/models",
        "python/ribbit/protocols.py",
        "python/ribbit/targets",
        "tests/backends/cuda",
        "tests/conftest.py",
        "tests/oracle",
        "tests/support",
        "tools/kernel_budget.json",
        "tools/kernel_budget.py",
    ),
}


def files(root: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield the files under some names in the order of their paths, without compiled modules.

    Raises
    ------
    FileNotFoundError
        For a name that is not there: what moved would no longer be looked at.
    """
    for name in names:
        path = root / name
        if not path.exists():
            raise FileNotFoundError(f"[checked] expected {name}, which a check depends on")
        found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        yield from (p for p in found if "__pycache__" not in p.parts)


def digest(check: str) -> str:
    """SHA-256 of the paths and contents that a check depends on, in hexadecimal."""
    total = hashlib.sha256()
    for path in files(ROOT, SOURCES[check]):
        for part in (path.relative_to(ROOT).as_posix().encode(), path.read_bytes()):
            total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Say whether a check has passed on these files, or write down that it has."""
    parser = argparse.ArgumentParser(prog="python -m tools.checked", description=__doc__)
    parser.add_argument("check", choices=SOURCES)
    parser.add_argument("--write", action="store_true", help="it has just passed on these files")
    chosen = parser.parse_args(arguments)
    record = json.loads(FILE.read_text()) if FILE.exists() else {}
    now = digest(chosen.check)
    if chosen.write:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        record[chosen.check] = {"sha256": now, "date": today}
        FILE.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    last = record.get(chosen.check, {})
    if last.get("sha256") == now:
        print(f"{chosen.check}: passed on these very files on {last['date']} ({FILE.name})")
        return 0
    print(
        f"{chosen.check}: runs, its files are not those of {last.get('date', 'any run')}; where it"
        f" passes, `python -m tools.checked {chosen.check} --write` records it"
    )
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
