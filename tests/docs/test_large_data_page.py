"""The page on rows that no memory holds: its lines run as they stand."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "guide" / "large_data.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="needs the source tree")
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # a short run
def test_the_lines_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr = pytest.importorskip("zarr")
    x = np.random.default_rng(0).normal(3.0, 2.0, size=(600, 4)).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.sin(x[:, 0].astype(float)))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(64, 4))
    monkeypatch.chdir(tmp_path)
    first, more = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in first.splitlines() if line]) == 10
    names: dict[str, object] = {}
    exec(compile(first, "large_data.md", "exec"), names)
    out = capsys.readouterr().out
    assert "rows 600 of MappedRows" in out
    assert "test (5,)" in out
    exec(compile(more, "large_data.md, second block", "exec"), names)
    assert np.array_equal(names["x"], x)
