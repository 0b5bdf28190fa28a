"""The stubs of the native modules are what the modules say."""

import importlib.util

import pytest

from tools import stubs

needed = ("pybind11_stubgen", "ruff")


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in needed),
    reason="needs pybind11-stubgen and ruff",
)
@pytest.mark.parametrize("name", stubs.MODULES)
def test_stub_is_current(name: str) -> None:
    pytest.importorskip(f"ribbit.{name}", reason="built where a CUDA compiler is found")
    text = (stubs.FOLDER / f"{name}.pyi").read_text()
    assert text == stubs.generate(name), "run: python -m tools.stubs"
