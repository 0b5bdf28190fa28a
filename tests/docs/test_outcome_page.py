"""The page on outcomes names every check with its limit and its outcome, and no others."""

import re

import pytest

from ribbit.results.outcome import _CHECKS, _FIT_CHECKS
from tests.support.paths import ROOT

PAGE = ROOT / "docs/start/outcome.md"
ROW = re.compile(
    r"^\| (.*?) \| (at (?:most|least) \S+) \| (not converged|too short to tell) \|$", re.M
)


@pytest.mark.skipif(not PAGE.is_file(), reason="needs the source tree")
def test_the_limits_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    limits = []
    for check in (*_CHECKS, *_FIT_CHECKS):
        limit = f"at {'least' if check.least else 'most'} {check.shown.format(check.limit)}"
        limits.append((check.name, limit, check.outcome))
    assert ROW.findall(text) == limits
    assert ROW.findall(text.replace("at most 1.05", "at most 1.01")) != limits
