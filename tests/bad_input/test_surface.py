"""Random calls of everything that is public (``tests/support/fuzz/surface.py``)."""

import pytest

from tests.support.fuzz.surface import run

CALLS = 4000  # the same ones each time


@pytest.mark.full
def test_no_call_crashes_hangs_or_ends_in_an_internal_error():
    found = list(run(CALLS))
    assert len(found) == CALLS
    assert [case for case in found if case["verdict"] in ("internal", "hang", "crash")] == []
    counts = [case["verdict"] for case in found]
    assert counts.count("fine") > CALLS // 5, "most calls end at their first check"
    assert counts.count("refused") > CALLS // 5
