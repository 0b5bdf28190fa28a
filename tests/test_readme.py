"""The README's example runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.slow
@pytest.mark.skipif(not README.is_file(), reason="needs the source tree")
def test_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL).group(1)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert (tmp_path / "draws.npz").is_file()
    assert names["draws"].positions.shape[:2] == (4, 500)
    # A fit, not chance: a constant is off by 0.3 on average.
    assert abs(names["p"].mean - names["y"].reshape(-1, 1)).mean() < 0.2
    assert "R-hat" in capsys.readouterr().out
