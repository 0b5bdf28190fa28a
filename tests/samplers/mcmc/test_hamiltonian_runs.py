"""Many transitions of HMC in one call of the core: bit for bit those of single calls."""

import functools
import time

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core, sample
from ribbit.adapter import CallSize
from ribbit.errors import RibbitWarning
from ribbit.samplers.mcmc.hamiltonian import Tuning
from tests.support.targets import same

pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*expected at most 12 leapfrog steps:ribbit.errors.RibbitWarning"
    ),
]


def posterior(dtype=np.float32, **options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 3))
    y = np.sin(x[:, :1]) + 0.1 * rng.normal(size=(70, 1))
    model = rb.mlp(3, (4,), 1, activation="tanh")
    return rb.Posterior(
        model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(), dtype=dtype, **options
    )


@pytest.fixture
def together(monkeypatch):
    """Make calls of so many transitions, whatever the clock says; the sizes of the calls."""
    made, inner = [], rb.HMC._advance_several

    def noted(self, state, stops, kept, guard):
        made.append(len(stops))
        return inner(self, state, stops, kept, guard)

    monkeypatch.setattr(rb.HMC, "_advance_several", noted)
    monkeypatch.setattr(CallSize, "size", lambda self, left: min(left, 7))
    return made


def one_by_one(monkeypatch):
    monkeypatch.setattr(rb.HMC, "_several", property(lambda self: False))


def equal(a, b):
    for name in ("stats", "warmup_stats"):
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None)
        for key, values in (one or {}).items():
            assert values.dtype == other[key].dtype
            assert same(values, other[key]), (name, key)
    assert same(a.positions, b.positions)
    assert (a.warmup_positions is None) or same(a.warmup_positions, b.warmup_positions)
    for field in ("position", "grad", "terms", "logdensity", "step_size", "num_steps", "capped"):
        assert same(getattr(a.state, field), getattr(b.state, field)), field
    assert a.state.step == b.state.step
    assert a.state.adaptation is None
    assert b.state.adaptation is None


CASES = {
    "default": {},
    "length": {"trajectory_length": 0.5},
    "steps": {"num_leapfrog_steps": 9, "randomize_length": False},
    "given": {"step_size": 0.02, "num_leapfrog_steps": 9},
    "mass": {"inverse_mass_matrix": "prior"},
    "capped": {"max_num_leapfrog_steps": 12},
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_single_calls(case, dtype, together, monkeypatch):
    # Trajectories are brief up to the transition 30 of warmup.
    run = {"warmup": 130, "chains": 3, "seed": 4, "progress": False, "save_warmup": True}
    sampler = rb.HMC(posterior(dtype), **CASES[case])
    assert sampler._several
    draws = sampler.sample(20, **run)
    assert max(together) == 7
    assert sum(together) >= 130  # a forecast looks at some by themselves
    one_by_one(monkeypatch)
    single = sampler.sample(20, **run)
    equal(draws, single)
    if case == "capped":
        assert draws.stats["capped"].any()


@pytest.mark.filterwarnings("ignore::ribbit.errors.NoiseWarning")
@pytest.mark.filterwarnings(
    "ignore:.*expected steps with which the default:ribbit.errors.RibbitWarning"
)
def test_step_sizes_of_full_trajectories_alone(together, monkeypatch):
    """Of little noise all chains need them; calls of 7 are cut where they begin."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 3))
    y = np.sin(2 * x[:, 0]) * x[:, 1] + 0.01 * rng.normal(size=70)
    model = rb.mlp(3, (12,), 1, activation="tanh")
    target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())
    sampler, start = rb.HMC(target), target.init(seed=3, chains=3)
    state = sampler.init(start, seed=4, warmup=510)
    for _ in range(509):
        state, _ = sampler.step(state)
    dual = state.adaptation.dual
    assert np.all(dual.log_average > dual.log_settled + np.log(1.45))
    assert np.array_equal(dual.average(), np.exp(dual.log_settled))
    run = {"warmup": 510, "init": start, "seed": 4, "progress": False, "save_warmup": True}
    draws = sampler.sample(3, **run)
    assert max(together) == 7
    assert sum(together) >= 510
    one_by_one(monkeypatch)
    equal(draws, sampler.sample(3, **run))


@pytest.mark.parametrize("thin", [1, 3])
@pytest.mark.parametrize("seconds", [0.0, 2e-4])
@pytest.mark.parametrize("case", ["default", "given"])
def test_a_call_that_ends_by_the_clock_gives_the_same(case, seconds, thin, together, monkeypatch):
    """The default integrates the last layer out, and completes fewer draws than it was given."""
    run = {"warmup": 60, "chains": 3, "seed": 4, "progress": False, "save_warmup": True}
    sampler = rb.HMC(posterior(), **CASES[case])
    one_by_one(monkeypatch)
    single = sampler.sample(12, thin=thin, **run)
    monkeypatch.undo()
    monkeypatch.setattr(CallSize, "size", lambda self, left: min(left, 7 * thin))
    monkeypatch.setattr(rb.HMC, "_call_seconds", seconds)
    together.clear()
    made, inner = [], rb.HMC._advance_several

    def noted(self, state, stops, kept, guard):
        found = inner(self, state, stops, kept, guard)
        made.append((len(stops), found[1]["lp"].shape[1]))
        return found

    monkeypatch.setattr(rb.HMC, "_advance_several", noted)
    equal(sampler.sample(12, thin=thin, **run), single)
    assert any(wanted > 1 for wanted, _ in made)
    if seconds == 0.0:
        assert {told for _, told in made} == {1}


def test_calls_get_shorter_when_transitions_get_slower(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ribbit.adapter.time.perf_counter", lambda: now[0])
    size = CallSize(0.02)
    for _ in range(6):  # of 10 us each
        count = size.size(1000)
        now[0] += 1e-5 * count
        size.made(count)
    assert count == 1000
    size.size(3)  # the last of a phase; each takes 50 ms from here on
    now[0] += 0.15
    size.made(3)
    assert size.size(1000) == 1


@pytest.mark.filterwarnings(
    "ignore:.*expected at least one draw within max_seconds:ribbit.errors.RibbitWarning"
)
def test_a_time_limit_holds_where_trajectories_get_long():
    """One transition takes a few ms; a call of hundreds, learned while they were brief, did not."""
    sampler = rb.HMC(posterior(), num_leapfrog_steps=1500)
    begin = time.perf_counter()
    draws = sampler.sample(30_000, warmup=200, chains=2, progress=False, max_seconds=0.25)
    # On a machine that others use, too.
    assert time.perf_counter() - begin < 4.0
    assert draws.state.step < 30_000


def test_a_sampler_that_makes_its_own_transitions_is_not_passed_by():
    class Standing(rb.HMC):
        calls = 0

        def _advance(self, state, num_steps, guard):
            Standing.calls += num_steps
            return super()._advance(state, num_steps, guard)

    class Other(rb.HMC):
        def _transition(self, state, guard):
            Standing.calls += 1
            return super()._transition(state, guard)

    for kind in (Standing, Other):
        Standing.calls = 0
        kind(posterior()).sample(20, warmup=30, chains=2, progress=False)
        assert Standing.calls == 50
    assert rb.HMC(posterior())._several


def test_a_wrapper_of_the_native_transitions_is_not_passed_by():
    class Wrapped(rb.Posterior):
        calls = 0

        @property
        def hamiltonian(self):
            @functools.wraps(self._hamiltonian)
            def counted(*arguments, **options):
                self.calls += 1
                return self._hamiltonian(*arguments, **options)

            return counted

    x = np.linspace(-1, 1, 20)[:, None]
    target = Wrapped(rb.mlp(1, (3,), 1), x, x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
    rb.HMC(target, step_size=0.1).sample(5, warmup=4, chains=2, progress=False)
    assert target.calls == 9


def test_a_display_is_told_of_all_divergences_of_thinned_draws(together, monkeypatch):
    run = {"warmup": 0, "chains": 2, "seed": 1, "thin": 3}
    sampler = rb.HMC(posterior(), step_size=0.05, num_leapfrog_steps=3, divergence_threshold=0.05)
    shown, alone = [], []
    sampler.sample(40, progress=shown.append, **run)
    one_by_one(monkeypatch)
    sampler.sample(40, progress=alone.append, **run)
    for key in ("done", "draws", "diverging"):
        assert shown[-1][key] == alone[-1][key], key
    assert sum(shown[-1]["diverging"]) > 0
    assert max(together) > 1


@pytest.mark.parametrize("fault", ["brief_until", "target", "most", "length"])
def test_a_planted_fault_is_seen(fault, together, monkeypatch):
    run = {"warmup": 130, "chains": 3, "seed": 4, "progress": False}
    right = rb.HMC(posterior()).sample(10, **run)
    rule = Tuning.rule

    def faulty(self, warmup):
        found = rule(self, warmup)
        found[fault] = {"brief_until": 29, "target": 0.9000001, "most": 3, "length": 1.01}[fault]
        return found

    monkeypatch.setattr(Tuning, "rule", faulty)
    assert not same(rb.HMC(posterior()).sample(10, **run).positions, right.positions)
    assert together


def test_thinned_resumed_and_not_kept(together, monkeypatch):
    sampler = rb.HMC(posterior())
    run = {"warmup": 60, "chains": 3, "seed": 4, "progress": False, "thin": 3}
    whole = sampler.sample(12, **run)
    parts = sampler.sample(5, **run)
    rest = sampler.sample(7, resume=parts, progress=False, thin=3)
    assert max(together) > 1
    assert same(np.concatenate([parts.positions, rest.positions], axis=1), whole.positions)
    one_by_one(monkeypatch)
    equal(whole, sampler.sample(12, **run))


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("chains", [1, 2, 3, 5])
def test_any_number_of_threads(chains, together):
    """Of small networks any thread makes the next transition of any chain."""
    found = []
    for threads in (1, 2, 3, 6):
        rb.set_num_threads(threads)
        found.append(rb.HMC(posterior()).sample(9, warmup=40, chains=chains, progress=False))
        equal(found[0], found[-1])
    assert together


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("chains", [1, 3])
def test_chains_that_several_threads_have(chains, together, monkeypatch):
    """Also where a team gets smaller in the middle of a run."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1500, 3)), rng.normal(size=1500)
    model = rb.mlp(3, (64, 64), 1, activation="tanh")
    target = rb.Posterior(model, x, y, prior=rb.Normal(0.3), likelihood=rb.Gaussian(1.0))
    sampler = rb.HMC(target, num_leapfrog_steps=6)
    run = {"warmup": 12, "chains": chains, "progress": False}
    found, halved = [], 0
    try:
        for threads, barriers in ((1, 0), (6, 0), (6, 5)):
            rb.set_num_threads(threads)
            _core.halve_teams(barriers)
            found.append(sampler.sample(8, **run))
            halved = _core.halve_teams(0)
            equal(found[0], found[-1])
    finally:
        _core.halve_teams(0)
    assert halved > 0
    assert together
    one_by_one(monkeypatch)
    equal(found[0], sampler.sample(8, **run))


@pytest.mark.parametrize(
    "options",
    [{"step_size_jitter": 0.1, "step_size": 0.1}, {"inverse_mass_matrix": "adapt"}],
    ids=["random step sizes", "mass"],
)
def test_what_changes_in_python_goes_one_by_one(options):
    assert not rb.HMC(posterior(), **options)._several


def test_a_target_that_replaces_the_transitions_is_not_passed_by():
    class Noted(rb.Posterior):
        calls = 0

        @property
        def hamiltonian(self):
            def counted(*arguments, **options):
                self.calls += 1
                return self._hamiltonian(*arguments, **options)

            return counted

    x = np.linspace(-1, 1, 20)[:, None]
    target = Noted(rb.mlp(1, (3,), 1), x, x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
    rb.HMC(target, step_size=0.1).sample(5, warmup=4, chains=2, progress=False)
    assert target.calls == 9


def test_a_target_that_replaces_what_completes_is_not_passed_by(monkeypatch):
    complete, calls = rb.Posterior._complete, []

    def noted(self, position, **place):
        calls.append(place["step"])
        return complete(self, position, **place)

    monkeypatch.setattr(rb.Posterior, "_complete", noted)
    sampler = rb.HMC(posterior())
    sampler.sample(5, warmup=4, chains=2, progress=False)
    assert calls == [0, 5, 6, 7, 8, 9]  # of the start, and of every draw


def test_every_transition_is_reported(together):
    shown = []
    rb.HMC(posterior()).sample(20, warmup=130, chains=2, progress=shown.append)
    assert max(together) == 7
    assert shown[-1]["done"] == 150
    assert shown[-1]["acceptance_rate"]


def test_the_forecast_sees_transitions_of_full_length(together, monkeypatch):
    """From half of a short warmup on; brief ones before them say nothing of the rest."""
    seen, inner = [], sample._Forecast.after

    def noted(self, state, before, stats, seconds):
        found = inner(self, state, before, stats, seconds)
        seen.append((state.step, self._count, found is None))
        return found

    monkeypatch.setattr(sample._Forecast, "after", noted)
    rb.HMC(posterior()).sample(20, warmup=130, chains=2, progress=False)
    assert max(together) == 7
    assert seen[-1][2]
    assert [count for _, count, _ in seen] == [max(0, step - 65) for step, _, _ in seen]
    assert seen[-1][1] >= 10


def test_ctrl_c_discards_the_call_and_resuming_makes_it_again(together, monkeypatch):
    sampler = rb.HMC(posterior())
    run = {"warmup": 40, "chains": 2, "seed": 1, "progress": False}
    whole = sampler.sample(30, **run)
    inner, left = rb.HMC._advance_several, [8]

    def interrupted(self, state, stops, kept, guard):
        left[0] -= 1
        if left[0] == 0:
            guard.flag.set()
        return inner(self, state, stops, kept, guard)

    monkeypatch.setattr(rb.HMC, "_advance_several", interrupted)
    assert together
    with pytest.warns(RibbitWarning, match="interrupted after"):
        part = sampler.sample(30, **run)
    left[0] = -1
    rest = sampler.sample(30 - len(part), resume=part, progress=False)
    assert same(np.concatenate([part.positions, rest.positions], axis=1), whole.positions)
