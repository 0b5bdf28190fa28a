"""The examples run, on reduced sizes, and give what they say they give."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run_here():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    text = Path(__file__).read_text()
    assert names == {name for name in names if f'load("{name}")' in text}


def test_own_loop(capsys):
    found = load("own_loop").main(num_draws=100)
    assert 0.5 < found["acceptance"] <= 1.0
    assert found["rmse"] < 0.5
    assert "acceptance" in capsys.readouterr().out


def test_numba():
    pytest.importorskip("numba")
    found = load("embed_numba").main()
    assert abs(found["variance"] / found["exact"] - 1) < 0.15


def test_torch():
    pytest.importorskip("torch")
    found = load("embed_torch").main(num_draws=500)
    assert abs(found["mean_x"]) < 0.3
    assert abs(found["mean_y"] - 1) < 0.5
    assert found["last"] > found["first"] + 100


def test_jax():
    pytest.importorskip("blackjax")
    found = load("embed_jax").main(num_draws=100)
    assert found["last"] > found["first"]
    assert found["rate"] > 0.5


def test_compare_methods():
    table = load("compare_methods").main(scale=0.2)
    assert set(table) == {"HMC", "SGLD", "BBB", "MC dropout", "ensemble"}
    assert table["HMC"]["agreement"] == 1.0
    for name, row in table.items():
        assert row["accuracy"] > 0.8, name
        assert row["agreement"] > 0.85, name


def test_cold_posteriors():
    table = load("cold_posteriors").main(scale=0.1)
    assert table[0.1]["spread"] < table[3.0]["spread"]


@pytest.mark.parametrize("name", ["regression_bands", "classification_boundary"])
def test_pictures(name, tmp_path):
    pytest.importorskip("matplotlib")
    module = (
        load("regression_bands") if name == "regression_bands" else load("classification_boundary")
    )
    path = module.main(tmp_path, scale=0.1)
    assert path.stat().st_size > 20_000
