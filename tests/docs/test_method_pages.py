"""The tables of the method pages list the arguments of each class with their defaults."""

import inspect
import re

import pytest

import ribbit as rb
from tests.support.paths import ROOT

PAGES = ROOT / "docs/methods"
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \|", re.M)
CLASS = re.compile(r"These are the arguments of \{py:class\}`ribbit\.(\w+)`")

pytestmark = pytest.mark.skipif(not PAGES.is_dir(), reason="needs the source tree")


def listed(text: str) -> dict[str, object]:
    """Return the defaults in the table below the heading "Arguments"."""
    rows = ROW.findall(text.split("## Arguments")[1].split("\n## ")[0])
    return {name: eval(default.strip("`").replace(",", "")) for name, default in rows}


@pytest.mark.parametrize("page", sorted(PAGES.glob("[!i]*.md")), ids=lambda page: page.stem)
def test_the_defaults_are_those_of_the_class(page) -> None:
    text = page.read_text(encoding="utf-8")
    (name,) = CLASS.findall(text)
    has = inspect.signature(getattr(rb, name)).parameters.values()
    defaults = {one.name: one.default for one in has if one.kind is one.KEYWORD_ONLY}
    if name == "MCLMC":
        del defaults["batch_size"]  # exists to refuse minibatches
    assert listed(text) == defaults
    assert listed(ROW.sub(r"| `\1` | 77 |", text, count=1)) != defaults
