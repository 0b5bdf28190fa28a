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
    y = names["y"].reshape(-1, 1)
    constant = abs(y - y.mean()).mean()  # the control: what a model that learned nothing gets
    assert abs(names["p"].mean - y).mean() < 0.7 * constant
    assert "R-hat" in capsys.readouterr().out
