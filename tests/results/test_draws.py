"""Draws: shapes, what is kept, ArviZ."""

import builtins

import numpy as np
import pytest

from ribbit.errors import RibbitWarning
from ribbit.samplers import HMC
from tests.support.targets import OPTIONS, Gaussian, Line, same

NAMES = {
    "lp",
    "acceptance_rate",
    "accepted",
    "diverging",
    "energy",
    "energy_error",
    "n_steps",
    "step_size",
    "capped",
}


@pytest.fixture(scope="module")
def hmc():
    return HMC(Line([1.0, 2.0, 0.3], dtype=np.float32), **OPTIONS["adapted"])


@pytest.fixture(scope="module")
def draws(hmc):
    return hmc.sample(7, warmup=20, chains=2, seed=3, save_warmup=True)


def test_shapes_and_names(draws):
    assert draws.positions.shape == (2, 7, 3)
    assert draws.positions.dtype == np.float32
    assert set(draws.stats) == NAMES
    assert all(v.shape == (2, 7) for v in draws.stats.values())
    kinds = {name: draws.stats[name].dtype.kind for name in NAMES}
    assert {n for n, k in kinds.items() if k == "b"} == {"accepted", "diverging", "capped"}
    assert kinds["n_steps"] == "i"
    assert draws.stats["lp"].dtype == np.float64
    assert draws.complete
    assert len(draws) == 7
    assert draws.prediction is None


def test_settings_are_plain_values(draws):
    import json

    settings = json.loads(json.dumps(draws.settings))
    assert settings["sampler"] == "HMC"
    assert settings["step_size"] == "auto"
    assert settings["seed"] == 3
    assert settings["chains"] == [0, 1]
    assert settings["warmup"] == 20
    assert {"ribbit", "numpy", "python"} <= set(settings["versions"])


def test_repr_says_what_matters(draws, hmc):
    text = repr(draws)
    assert text.startswith("Draws(HMC: 2 chains x 7 draws x 3 parameters, float32, acceptance 0.")
    assert "divergence" in text
    assert "INCOMPLETE" not in text
    assert repr(hmc).startswith("HMC(Line, step_size='auto', trajectory_length=0.2")
    assert repr(draws.state) == "State(2 chains, dim 3, step 27, warm, seed 3)"


def test_warmup_is_kept_on_request(draws, hmc):
    assert draws.warmup_positions.shape == (2, 20, 3)
    assert set(draws.warmup_stats) == NAMES
    assert (draws.warmup_stats["step_size"][:, 0] != draws.stats["step_size"][:, 0]).all()
    plain = hmc.sample(7, warmup=20, chains=2, seed=3)
    assert plain.warmup_positions is None
    assert plain.warmup_stats is None
    none = HMC(Gaussian([1.0]), step_size=0.1, num_leapfrog_steps=1).sample(
        2, init=[0.0], save_warmup=True, warmup=0
    )
    assert none.warmup_positions.shape == (4, 0, 1)
    assert none.warmup_stats["lp"].shape == (4, 0)


def test_default_number_of_chains():
    hmc = HMC(Gaussian([1.0, 1.0]), step_size=0.1, num_leapfrog_steps=1)
    assert hmc.sample(1, init=np.zeros(2)).positions.shape[0] == 4
    assert hmc.sample(1, init=np.zeros((3, 2))).positions.shape[0] == 3
    assert hmc.sample(1, init=[0, 0], chains=2).positions.shape[0] == 2
    line = HMC(Line([1.0, 1.0]), step_size=0.1, num_leapfrog_steps=1)
    assert line.sample(1).positions.shape[0] == 4
    named = line.sample(1, chains=[7, 3])
    assert named.state.chains.tolist() == [7, 3]
    assert named.settings["chains"] == [7, 3]


def test_draws_are_frozen(draws):
    with pytest.raises(AttributeError):
        draws.complete = False


def test_to_datatree(draws):
    pytest.importorskip("arviz_base")
    tree = draws.to_datatree()
    theta = tree["posterior"]["theta"]
    assert theta.dims == ("chain", "draw", "theta_dim")
    assert theta.shape == (2, 7, 3)
    assert same(theta.values, draws.positions)
    assert set(tree["sample_stats"].data_vars) == NAMES
    assert same(tree["warmup_posterior"]["theta"].values, draws.warmup_positions)
    assert set(tree["warmup_sample_stats"].data_vars) == NAMES
    assert tree.attrs["inference_library"] == "ribbit"
    assert tree.attrs["complete"] == 1
    assert tree["posterior"]["chain"].values.tolist() == [0, 1]


def test_to_datatree_of_draws_that_were_not_kept(hmc):
    pytest.importorskip("arviz_base")
    run = hmc.sample(
        4, warmup=20, chains=2, predict_at=np.ones((2, 3), np.float32), save_draws=False
    )
    tree = run.to_datatree()
    assert tree["sample_stats"]["lp"].shape == (2, 4)
    assert "posterior" not in tree.children


def test_to_datatree_names_the_package(draws, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("arviz"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match='pip install "arviz-base'):
        draws.to_datatree()


def test_max_seconds_returns_what_there_is(hmc):
    with pytest.warns(RibbitWarning, match="at least one draw within max_seconds"):
        run = hmc.sample(10_000_000, warmup=10**9, chains=2, max_seconds=0.05, save_warmup=False)
    assert not run.complete
    assert len(run) == 0
    assert run.positions.shape == (2, 0, 3)
    assert run.stats["lp"].shape == (2, 0)
    assert run.state.step > 0
    assert "INCOMPLETE" in repr(run)
    with pytest.raises(ValueError, match="at least one draw"):
        run.predict(np.ones((2, 3)))
