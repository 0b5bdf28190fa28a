"""Ctrl-C in processes of their own; `python -m tests.durability --interrupts` has more targets."""

import pytest

from tests.durability.interrupts import MOST, MOST_WITH_EXECUTOR, interrupt_often


@pytest.mark.parametrize("executor", [False, True])
def test_a_run_ends_soon_after_ctrl_c(executor: bool) -> None:
    """The median, because machines are shared; every run ends as interrupted."""
    found = interrupt_often("MLP", 3, 0, executor=executor)
    assert sorted(found.seconds)[1] < (MOST_WITH_EXECUTOR if executor else MOST)
    assert found.early < 3
