"""Runs the code of a page of the docs and compares its output with the page.

A page has ``python`` blocks, which run in order and share their names. A ``text`` block right after
one shows its output. A comment ``<!-- run ... -->`` holds code that readers do not see, such as
data for the page.
"""

import contextlib
import importlib.util
import io
import re
from pathlib import Path

__all__ = ["Block", "blocks", "is_missing", "run", "same_output"]

_BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?|<!-- run\n(.*?)-->", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
_SECONDS = re.compile(r"seconds +[\d.]+|[\d.]+ (?:seconds|s\b)")
OPTIONAL = (
    "blackjax|cupy|dask|jax|joblib|laplace|mapie|matplotlib|mpi4py|numpyro|pandas|pymc|ray|"
    "sklearn|torch|xarray|zarr"
)
_IMPORT = re.compile(rf"^\s*(?:import|from) ({OPTIONAL})\b|\brb\.(jax|numpyro|pymc|torch)\b", re.M)


class Block:
    """Code of a page, its output on the page (or None), and the packages it imports."""

    def __init__(self, code: str, output: str | None, line: int):
        self.code, self.output, self.line = code, output, line
        self.needs = sorted({a or b for a, b in _IMPORT.findall(code)})


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1] or found[3], found[2], text.count("\n", 0, found.start()) + 1)
        for found in _BLOCK.finditer(text)
    ]


def run(page: Path) -> tuple[dict[str, object], list[str]]:
    """Run a page in the current folder; return its names and the packages that are missing.

    Blocks that need a missing package do not run, nor do blocks that use their names.

    Raises
    ------
    AssertionError
        If the page shows another output.
    """
    names: dict[str, object] = {"__name__": "__main__"}
    missing: set[str] = set()
    for block in blocks(page):
        absent = [name for name in block.needs if is_missing(name)]
        missing.update(absent)
        if absent:
            continue
        out = io.StringIO()
        code = "\n" * block.line + block.code  # so that a traceback names the line of the page
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(code, str(page), "exec"), names)
        except NameError:
            if not missing:
                raise
            continue
        if block.output is not None:
            shown, got = block.output, out.getvalue()
            assert same_output(shown, got), f"{page.name} shows\n{shown}\nand prints\n{got}"
    return names, sorted(missing)


def is_missing(name: str) -> bool:
    """Return True if a package is not installed, or if CuPy has no GPU."""
    if importlib.util.find_spec(name) is None:
        return True
    return name == "cupy" and not importlib.import_module(name).is_available()


def same_output(shown: str, got: str) -> bool:
    """Return True if two outputs have the same words and about the same numbers.

    Draws differ between instruction sets. Numbers may differ by 10 % and two units of the last
    digit shown, whole numbers above 50 (effective draws, gradients) by half. Seconds are left out.
    """
    shown, got = (_SECONDS.sub("seconds", text) for text in (shown, got))
    words = [" ".join(_NUMBER.sub("#", text).split()) for text in (shown, got)]
    if words[0] != words[1]:
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(got), strict=True)
    return all(_near(a.replace(",", ""), b.replace(",", "")) for a, b in pairs)


def _near(shown: str, got: str) -> bool:
    digits = len(shown.partition("e")[0].partition(".")[2])
    a, b = float(shown), float(got)
    if not digits and "e" not in shown and abs(a) > 50:
        return abs(a - b) <= 0.5 * abs(a)
    return abs(a - b) <= 0.1 * abs(a) + (2 * 10**-digits if digits else 1)
