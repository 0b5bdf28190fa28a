"""Chains in far worse modes, and chains that share starts, in the summary of draws."""

import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.results.modes import far_below, superchains_of
from tests.support.targets import Gaussian


def test_a_chain_far_below_is_found(rng):
    lp = 300.0 + 60.0 * rng.normal(size=(10, 1)) + 20.0 * rng.normal(size=(10, 50))
    assert far_below(lp).size == 0
    lp[7] -= 4000.0
    lp[2] -= 9000.0
    assert far_below(lp).tolist() == [2, 7]
    assert far_below(-lp).size == 0  # far above is nobody's fault


def test_agreeing_chains_are_judged_by_their_own_spread(rng):
    lp = rng.normal(size=(8, 200))
    assert far_below(lp).size == 0
    lp[3] -= 8.0
    assert far_below(lp).size == 0
    lp[3] -= 8.0
    assert far_below(lp).tolist() == [3]


@pytest.mark.parametrize("chains", [4, 5, 7, 8, 10])
def test_modes_of_one_law_are_no_finding(rng, chains):
    """Means from one normal law, ten times as wide as a chain: under 1 % of runs are named."""
    runs = 400
    lp = 10.0 * rng.normal(size=(runs, chains, 1)) + rng.normal(size=(runs, chains, 20))
    found = sum(far_below(one).size > 0 for one in lp)
    assert found <= 20  # at a share of 1 %: 21 or more of 400 with probability 1e-9


def test_few_chains_or_no_density_say_nothing():
    assert far_below(np.array([[0.0, 1.0], [0.0, 1.0], [-1e9, -1e9]])).size == 0
    assert far_below(np.full((5, 9), np.nan)).size == 0
    assert far_below(np.full((5, 9), -np.inf)).size == 0
    assert far_below(np.zeros((5, 1))).size == 0


class Wells(Gaussian):
    """Two wells; the left one is 5,000 deeper in log density."""

    def value_and_grad(self, theta, rows=None):
        left = theta[:, 0] < 0
        centre = np.where(left[:, None], -20.0, 20.0)
        lp = -0.5 * np.sum((theta - centre) ** 2, axis=1) - 5000.0 * left
        return lp, centre - theta


def run(start, **options):
    hmc = rb.HMC(Wells([1.0]), step_size=0.5, num_leapfrog_steps=5, jitter=0.3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        draws = hmc.sample(100, warmup=20, init=start, seed=1, progress=False, **options)
    return draws, " ".join(str(w.message) for w in found)


def test_the_summary_names_the_chain_and_the_warning_too(tmp_path):
    start = np.array([[20.0], [20.1], [-20.0], [20.3], [20.4]])
    draws, warned = run(start, chains=[3, 5, 8, 9, 11])
    for summary in (draws.summary(), saved(draws, tmp_path).summary()):
        row = next(row for row in summary.rows if row.name == "chains far below the others")
        assert (row.value, row.good) == ("8", False)
        assert "Chain 8 (-5,0" in summary.verdict
    assert "Chain 8 (-5,0" in warned
    fine, warned = run(np.abs(start))  # the control
    assert not any("far below" in row.name for row in fine.summary().rows)
    assert "far below" not in warned


def saved(draws, folder):
    draws.save(folder / "draws")
    return rb.load_draws(folder / "draws")


def test_chains_that_share_starts_are_judged_by_nested_rhat(tmp_path):
    start = np.array([[20.0], [-20.0], [20.0], [-20.0]])
    draws, warned = run(start)
    assert draws.settings["start"] == {"superchains": [0, 1, 0, 1]}
    assert "nested R-hat <=" in warned
    summary = draws.summary()
    assert summary.converged is False
    assert summary.rows[0].name == "nested R-hat of the parameters"
    assert saved(draws, tmp_path).summary().rows == summary.rows
    hmc = rb.HMC(Wells([1.0]), step_size=0.5, num_leapfrog_steps=5, jitter=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        more = hmc.sample(20, resume=draws, progress=False)
    assert more.settings["start"] == {"superchains": [0, 1, 0, 1]}


@pytest.mark.parametrize(
    "start", [None, 3, [0], {"superchains": [0]}, {"superchains": "ab"}, {"superchains": [0, "b"]}]
)
def test_settings_that_say_nothing_of_starts(start):
    assert superchains_of({"start": start}, 2) is None
    assert superchains_of({"start": {"superchains": [4, 1]}}, 2).tolist() == [1, 0]


def test_nested_rhat_lets_independent_draws_pass():
    """Two starts of one well, four chains each."""
    start = np.repeat([[19.0], [21.0]], 4, axis=0)
    draws, warned = run(start)
    summary = draws.summary()
    assert warned == ""
    assert summary.converged is True
    assert summary.verdict.startswith("Converged: nested R-hat is at most")


def test_starts_of_their_own_and_a_single_start_have_the_usual_one():
    own, _ = run(np.array([[19.0], [20.0], [21.0], [22.0]]))
    assert "start" not in own.settings
    assert own.summary().rows[0].name == "R-hat of the parameters"
    one, _ = run(np.array([20.0]))
    assert one.settings["start"] == {"superchains": [0, 0, 0, 0]}
    assert one.summary().rows[0].name == "R-hat of the parameters"
