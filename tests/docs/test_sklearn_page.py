"""The page on scikit-learn: its lines run as they stand."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "guide" / "sklearn.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="needs the source tree")
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # the page speaks of it
def test_the_lines_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a CSV to a calibrated interval in eight lines, as somebody new would do it."""
    pytest.importorskip("sklearn", minversion="1.6", reason="needs scikit-learn 1.6 or newer")
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    header = ",".join([*data.feature_names, "progression"])
    table = np.c_[data.data, data.target]
    np.savetxt(tmp_path / "table.csv", table, "%.6g", ",", header=header, comments="")
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    first, more = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:2]
    assert len([line for line in first.splitlines() if line]) == 8
    names: dict[str, object] = {}
    exec(compile(first, "sklearn.md", "exec"), names)
    inside = float(re.search(r"intervals: ([0-9.]+)", capsys.readouterr().out).group(1))
    # one seed and one split: 111 rows at 0.9 have an sd of 0.028
    assert 0.75 < inside <= 1.0
    exec(compile(more, "sklearn.md, second block", "exec"), names)
    assert "log density per row: -5" in capsys.readouterr().out
