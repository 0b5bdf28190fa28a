"""Counts lines of Python by package, of C++ and CUDA by folder, and of tests.

``python -m tools.size`` prints tables, with ``--json`` the same figures as JSON. "lines" are all
lines, as ``wc -l`` counts them. "code" leaves out blank lines, comments and docstrings. A package
or folder counts its own files, without its subfolders, so the rows add up.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "ribbit"
NATIVE = (".cpp", ".cu", ".cuh", ".h", ".hpp")

Size = dict[str, int]  # files, lines, code

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
# Strings come first, because what looks like a comment inside of one is none.
_C_TOKENS = re.compile(
    r'R"(?P<raw>[^()\\ ]*)\(.*?\)(?P=raw)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])'"
    r"|(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)",
    re.DOTALL,
)


def python_code(text: str) -> int:
    """Return the number of lines of Python that hold code."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                found.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    lines = text.split("\n")
    return sum(bool(lines[number - 1].strip()) for number in found)


def native_code(text: str) -> int:
    """Return the number of lines of C++ or CUDA that hold code."""

    def without(match: re.Match[str]) -> str:
        comment = match["comment"]
        return match[0] if comment is None else "\n" * comment.count("\n")

    return sum(bool(line.strip()) for line in _C_TOKENS.sub(without, text).splitlines())


def size(files: Iterable[Path]) -> Size:
    """Return how many files there are, and their lines."""
    total = {"files": 0, "lines": 0, "code": 0}
    for path in files:
        text = path.read_text(encoding="utf-8")
        total["files"] += 1
        total["lines"] += text.count("\n")
        total["code"] += native_code(text) if path.suffix in NATIVE else python_code(text)
    return total


def by_folder(files: Iterable[Path], root: Path) -> dict[str, Size]:
    """Return the size of each folder's own files, by the folder's path below `root`'s parent."""
    folders: dict[str, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent.relative_to(root.parent).as_posix(), []).append(path)
    return {name: size(folders[name]) for name in sorted(folders)}


def measured() -> dict[str, Any]:
    """Return the figures of this checkout."""
    python = sorted(PACKAGE.rglob("*.py"))
    native = sorted(path for path in (ROOT / "cpp").rglob("*") if path.suffix in NATIVE)
    return {
        "totals": {
            "python": size(python),
            "_core.pyi": size([PACKAGE / "_core.pyi"]),
            "cpp": size(native),
            "tests": size(sorted((ROOT / "tests").rglob("*.py"))),
        },
        "packages": by_folder(python, PACKAGE),
        "cpp": by_folder(native, ROOT / "cpp"),
    }


def table(title: str, rows: dict[str, Size]) -> list[str]:
    """Return a line for every row."""
    text = [f"{title:<34}{'files':>7}{'lines':>9}{'code':>9}"]
    for name, row in rows.items():
        text.append(f"{name:<34}{row['files']:>7}{row['lines']:>9,}{row['code']:>9,}")
    return text


def main(arguments: list[str] | None = None) -> int:
    """Print the tables, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.size", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    found = measured()
    if parser.parse_args(arguments).json:
        print(json.dumps(found, indent=1, sort_keys=True))
    else:
        titles = {"totals": "", "packages": "package", "cpp": "folder"}
        print("\n\n".join("\n".join(table(titles[name], rows)) for name, rows in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
