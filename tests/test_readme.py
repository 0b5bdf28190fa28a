"""The README's examples run as they stand."""

import re
import sys
from pathlib import Path

import pytest

import cpu_device

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.slow
@pytest.mark.skipif(not README.is_file(), reason="needs the source tree")
def test_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, *rest = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = {}
    exec(compile(first, "README.md", "exec"), names)
    assert (tmp_path / "draws.npz").is_file()
    assert names["draws"].positions.shape[:2] == (4, 500)
    y = names["y"].reshape(-1, 1)
    constant = abs(y - y.mean()).mean()  # the control: what a model that learned nothing gets
    assert abs(names["p"].mean - y).mean() < 0.7 * constant
    assert "R-hat" in capsys.readouterr().out
    assert rest
    # what the README does with CuPy, on a device made of the CPU
    monkeypatch.setitem(sys.modules, "cupy", cpu_device.register())
    for code in rest:
        exec(compile(code, "README.md", "exec"), names)
    on_device = names["on_device"]
    theta = on_device.init()
    lp, _ = names["target"].value_and_grad(theta.get())
    assert float(on_device.value_and_grad(theta)[0]) == pytest.approx(float(lp), rel=1e-6)
    x, y = names["x"], names["y"].reshape(-1, 1)
    constant = abs(y - y.mean()).mean()
    for found in ("fit", "dropout", "ensemble", "draws"):
        assert abs(names[found].predict(x).mean - y).mean() < 0.4 * constant, found
