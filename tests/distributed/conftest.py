"""Ranks that are threads."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def short_turns() -> Iterator[None]:
    """Threads that wait for each other hand the interpreter over at once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)
