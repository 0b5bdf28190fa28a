"""The lines of docs/guide/jax.md run."""

import re

import pytest

from tests.support.paths import ROOT

PAGE = ROOT / "docs/guide/jax.md"
pytestmark = [
    pytest.mark.skipif(not PAGE.is_file(), reason="needs the source tree"),
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),  # short runs
]


@pytest.mark.parametrize("number", range(4))
def test_lines_of_the_page(number: int) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    code = blocks[number]
    needs = set(re.findall(r"\b(blackjax|numpyro|pymc)\b", code)) or {"jax"}
    for name in sorted(needs):
        pytest.importorskip(name, reason=f"needs {name}")
    space: dict = {}
    exec(compile(code, f"{PAGE.name}, block {number}", "exec"), space)
    if number == 0:
        assert space["info"].acceptance_rate > 0.3
    if number == 3:
        assert abs(space["samples"]["slope"].mean() - 0.98) < 0.1
    if number == 2:
        assert space["mcmc"].get_samples()["z"].shape == (200, space["target"].dim)
