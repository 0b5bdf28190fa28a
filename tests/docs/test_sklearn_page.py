"""The page on scikit-learn: its lines run as they stand."""

import re

import pytest

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "sklearn.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="needs the source tree")
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # the page speaks of it
def test_the_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", minversion="1.6", reason="needs scikit-learn 1.6 or newer")
    text = PAGE.read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert len([line for line in code.splitlines() if line]) <= 10
    names: dict[str, object] = {}
    exec(compile(code, "sklearn.md", "exec"), names)
    inside = float(re.search(r"intervals: ([0-9.]+)", capsys.readouterr().out).group(1))
    # one seed and one split: 111 rows at 0.9 have an sd of 0.028
    assert 0.75 < inside <= 1.0
