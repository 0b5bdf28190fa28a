"""The stub of the native module is what the module says."""

import importlib.util

import pytest

from tools import stubs

needed = ("pybind11_stubgen", "ruff")


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in needed),
    reason="needs pybind11-stubgen and ruff",
)
def test_stub_is_current() -> None:
    text = (stubs.FOLDER / f"{stubs.MODULE}.pyi").read_text()
    assert text == stubs.generate(stubs.MODULE), "run: python -m tools.stubs"
