"""Tables of docs/guide/long_runs.md against the keys that a run and its display have."""

import re

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import NonFiniteError
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "guide" / "long_runs.md").read_text(encoding="utf-8")
ALWAYS = {"sampler", "dtype", "monitored", "stopped", "faults", "versions", "save_draws"}


def names(heading: str, column: str) -> set[str]:
    """Return the code in the first column of the table with that column below a heading."""
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    table = section.split(f"| {column} |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.fixture(scope="module")
def seen() -> tuple[rb.Draws, list[dict[str, object]]]:
    x, y = rb.datasets.toy_regression(40, seed=0)
    target = rb.Posterior(
        rb.mlp(1, (5,), 1), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
    )
    told: list[dict[str, object]] = []
    start = np.concatenate([target.init(seed=0, chains=2)] * 2)
    rule = rb.Converged(rhat=1.5, ess=20)
    draws = rb.HMC(target).sample(
        until=rule, max_draws=40, warmup=60, init=start, progress=told.append
    )
    return draws, told


@pytest.mark.filterwarnings("ignore")
def test_settings(seen: tuple[rb.Draws, list[dict[str, object]]]) -> None:
    draws, _ = seen
    documented = names("Settings of a run", "key")
    found = set(draws.settings)
    options = set(rb.HMC(draws.predictive).settings)
    assert found - options <= documented
    assert documented - {"step_size", "precision", "instruction_set"} <= found
    assert found >= ALWAYS | options


@pytest.mark.filterwarnings("ignore")
def test_progress(seen: tuple[rb.Draws, list[dict[str, object]]]) -> None:
    _, told = seen
    documented = names("Show the progress your own way", "key")
    found = {key for one in told for key in one}
    assert found <= documented
    assert documented - found <= {"stopped", "step_size", "chain_gradients_per_second"}


def test_attributes_of_the_error() -> None:
    error = NonFiniteError("text", state=None, step=0, step_size=0.1, largest_gradient=1.0, chain=0)
    assert set(vars(error)) == names("Settings of a run", "attribute")
