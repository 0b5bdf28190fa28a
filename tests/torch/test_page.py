"""The page's lines run as they stand."""

import re

import numpy as np
import pytest

from tests.support.paths import ROOT

pytest.importorskip("torch", reason="needs PyTorch")
PAGE = ROOT / "docs" / "guide" / "torch.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="needs the source tree")
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::ribbit.errors.NoiseWarning")
def test_the_lines_run(capsys):
    import torch

    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    assert all(len([line for line in code.splitlines() if line]) <= 10 for code in blocks)
    space: dict[str, object] = {}
    for code in blocks:
        exec(compile(code, str(PAGE), "exec"), space)
    printed = capsys.readouterr().out
    assert "R-hat of the predictions" in printed
    assert np.isfinite(float(printed.split()[-1]))
