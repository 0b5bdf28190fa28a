"""Divergences of thinned runs: all are counted, whoever makes the steps and however they stop."""

import concurrent.futures
import dataclasses
import re
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.samplers import State

THIN, DRAWS, CHAINS = 5, 30, 2


def funnel(q):
    v, x = q
    scale = np.exp(-v)
    return (
        -v * v / 18 - 0.5 * x * x * scale - 0.5 * v,
        np.array([-v / 9 + 0.5 * x * x * scale - 0.5, -x * scale]),
    )


def cliff(q):
    """Return a normal density that is NaN beyond a cliff, where unadjusted steps diverge."""
    return (-0.5 * float(q @ q), -q) if q[0] < 0.5 else (np.nan, q * np.nan)


def network():
    x = np.linspace(-1, 1, 10)[:, None]
    return rb.Posterior(rb.mlp(1, (3,), 1), x, x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1))


OWN = {
    "HMC": lambda: rb.HMC(rb.CallableDensity(funnel, 2), step_size=0.5, num_leapfrog_steps=5),
    "NUTS": lambda: rb.NUTS(rb.CallableDensity(funnel, 2), step_size=0.9),
    "MCLMC": lambda: rb.MCLMC(rb.CallableDensity(cliff, 2), step_size=0.5, decoherence_length=2.0),
    "adjusted MCLMC": lambda: rb.MCLMC(
        rb.CallableDensity(funnel, 2),
        step_size=0.8,
        decoherence_length=4.0,
        adjusted=True,
        divergence_threshold=1.0,
    ),
    "HMC of a network": lambda: rb.HMC(
        network(), step_size=0.12, num_leapfrog_steps=5, divergence_threshold=2.0
    ),
    "NUTS of a network": lambda: rb.NUTS(network(), step_size=0.02, divergence_threshold=1.0),
}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def options(sampler):
    start = np.zeros(sampler._density.dim)
    return {"chains": CHAINS, "init": start, "warmup": 0, "seed": 3, "progress": False}


def run(name, draws, **more):
    sampler = OWN[name]()
    return sampler.sample(draws, **{**options(sampler), **more})


def expected(name):
    """Divergences of each chain in the steps before each draw, (C, D): of a run that keeps all."""
    every = run(name, THIN * DRAWS, thin=1).stats["diverging"]
    assert 0 < np.sum(every) < every.size
    return every.reshape(CHAINS, DRAWS, THIN).sum(axis=2)


def test_a_run_that_is_not_thinned_keeps_no_count():
    """Else the first draw of a later thinned run would count transitions of earlier draws."""
    fields = run("HMC", 1).state.fields | {"divergences": np.array([[3], [3]])}
    draws = OWN["HMC"]().sample(THIN, resume=State._of(fields), thin=1, progress=False)
    assert not draws.state.divergences.any()


@pytest.mark.parametrize("name", OWN)
def test_a_thinned_run_counts_those_of_all_steps(name):
    counts = expected(name)
    draws = run(name, DRAWS, thin=THIN)
    np.testing.assert_array_equal(draws.stats["divergences"], counts)
    assert f"{counts.sum()} divergence" in repr(draws)
    row = next(row for row in draws.summary().rows if row.name == "divergent transitions")
    worst = counts.sum(axis=1).max() / (THIN * DRAWS)
    assert row.value == f"{counts.sum()} (worst chain {worst:.1%})"


@pytest.mark.parametrize("name", OWN)
def test_workers_count_them_too(name):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        draws = run(name, DRAWS, thin=THIN, executor=pool)
    np.testing.assert_array_equal(draws.stats["divergences"], expected(name))


@pytest.mark.parametrize("name", [name for name in OWN if "MCLMC" in name])
@pytest.mark.parametrize("saved", [False, True])
def test_a_run_that_ends_between_draws_and_goes_on(name, saved, tmp_path):
    counts, sampler, left = expected(name), OWN[name](), THIN * DRAWS // 2 + 3
    advance = sampler._advance

    def stop(state, num_steps, guard):
        nonlocal left
        if left <= 0:
            raise KeyboardInterrupt
        num_steps = min(num_steps, left)
        left -= num_steps
        return advance(state, num_steps, guard)

    sampler._advance = stop
    with pytest.raises(KeyboardInterrupt) as caught:
        sampler.sample(DRAWS, thin=THIN, **options(sampler))
    first = caught.value.draws
    assert first.state.step % THIN == 3
    if saved:
        first.save(tmp_path / "draws")
        first = rb.load(tmp_path / "draws")
    rest = OWN[name]().sample(DRAWS - len(first), thin=THIN, resume=first, progress=False)
    found = np.concatenate([first.stats["divergences"], rest.stats["divergences"]], axis=1)
    np.testing.assert_array_equal(found, counts)


@pytest.mark.parametrize("name", [name for name in OWN if "MCLMC" not in name])
@pytest.mark.parametrize("saved", [False, True])
def test_a_state_between_draws_says_how_many_came_before(name, saved, tmp_path):
    left = THIN * DRAWS // 2 + 3
    first = run(name, left, thin=1)
    before = first.stats["diverging"][:, -3:].sum(axis=1, keepdims=True)
    state = State._of(first.state.fields | {"divergences": before})
    first = dataclasses.replace(first, state=state)
    if saved:
        first.save(tmp_path / "draws")
        first = rb.load(tmp_path / "draws")
    rest = OWN[name]().sample(DRAWS // 2, thin=THIN, resume=first, progress=False)
    np.testing.assert_array_equal(rest.stats["divergences"], expected(name)[:, -DRAWS // 2 :])


@pytest.mark.parametrize("name", ["HMC", "NUTS", "HMC of a network"])
def test_a_folder_keeps_them(name, tmp_path):
    half = run(name, DRAWS, thin=THIN, store=tmp_path / "run")
    np.testing.assert_array_equal(half.stats["divergences"], expected(name))
    again = rb.load(tmp_path / "run")
    assert re.search(r"(\d+) divergence", repr(again))[1] == str(expected(name).sum())


def test_a_run_that_keeps_every_step_has_no_such_statistic():
    assert "divergences" not in run("HMC", 5, thin=1).stats


def test_warmup_does_not_count():
    draws = run("HMC", 20, thin=THIN, warmup=50, save_warmup=True)
    late = run("HMC", 20 * THIN, thin=1, warmup=50)
    assert draws.stats["divergences"].sum() == late.stats["diverging"].sum()
    np.testing.assert_array_equal(
        draws.warmup_stats["divergences"], draws.warmup_stats["diverging"]
    )
