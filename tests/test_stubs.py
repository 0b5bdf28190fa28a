"""The stub of the native module is what the module says."""

import importlib.util

import pytest

import stubs

needed = ("pybind11_stubgen", "ruff")


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in needed),
    reason="needs pybind11-stubgen and ruff",
)
def test_stub_is_current() -> None:
    assert stubs.STUB.read_text() == stubs.generate(), "run: python -m tests.stubs"
