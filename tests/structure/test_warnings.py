"""Every warning of the library is a RibbitWarning, and one function issues it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ribbit
from ribbit import errors

PACKAGE = Path(ribbit.__file__).resolve().parent
ISSUER = PACKAGE / "_arrays" / "warning.py"


def wrong(tree: ast.Module) -> Iterator[str]:
    """What a file says against the rule."""
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "ribbit._arrays.warning"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in ("warnings.warn", "warnings.warn_explicit"):
            yield f"line {node.lineno}: {name}"
        elif name == "warn":
            if name not in ours:
                yield f"line {node.lineno}: a warn of its own"
            given = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
            for one in given:
                if isinstance(one, ast.Name) and one.id == "category":  # handed on, typed
                    continue
                kind = getattr(errors, ast.unparse(one), None)
                if not (isinstance(kind, type) and issubclass(kind, errors.RibbitWarning)):
                    yield f"line {node.lineno}: {ast.unparse(one)} is no RibbitWarning"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "warnings":
            yield f"line {node.lineno}: an import from warnings"


def test_every_warning_is_issued_by_the_one_function() -> None:
    found, calls = [], 0
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "warn" not in text:
            continue
        tree = ast.parse(text)
        calls += sum("_arrays.warning" in ast.unparse(node) for node in tree.body)
        if path != ISSUER:
            found += [f"{path.relative_to(PACKAGE)}, {text}" for text in wrong(tree)]
    assert not found
    assert calls > 15  # files that warn


@pytest.mark.parametrize(
    "text",
    [
        "import warnings\nwarnings.warn('a')",
        "from warnings import warn\nwarn('a')",
        "from ribbit._arrays.warning import warn\nwarn('a', RuntimeWarning)",
        "from ribbit._arrays.warning import warn\nwarn('a', stacklevel=2)",
    ],
)
def test_a_planted_warning_is_noticed(text: str) -> None:
    assert list(wrong(ast.parse(text)))
