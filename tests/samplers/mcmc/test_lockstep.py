"""Chains on arrays: against chains of the core, and what they promise the loop of a run."""

import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit.chains import Start, Thinning
from ribbit.density import Density
from ribbit.errors import PrecisionWarning
from ribbit.interrupt import InterruptGuard
from ribbit.lockstep.chains import LockstepChains
from ribbit.results.state import State
from tests.support.targets import Gaussian

CHAINS, SEED = np.arange(3, dtype=np.uint32), 7
STEPS = {"step_size": 0.05, "num_leapfrog_steps": 12}
SHORT = {"step_size": 0.3, "num_leapfrog_steps": 4}


def facts(dim):
    return {"dim": dim, "temperature": 1.0, "shared_prior_sd": 1.0, "prior_sd": np.ones(dim)}


def lockstep(target, kernel, options, *, warmup=0, thin=1, each=True, seed=SEED, state=None):
    """Make chains on arrays; started, unless they continue from a state."""
    density = Density(target, function="HMC")
    thinning = Thinning(thin, each=each)
    start = Start(None, seed, CHAINS, warmup, thinning)
    if state is not None:
        start = Start.at(state, thinning)
    chains = LockstepChains("HMC", density, kernel, options, start)
    if state is None:
        chains.start(target.init(seed=3, chains=len(CHAINS)), InterruptGuard())
    return chains


def native(target, kernel, options, *, warmup):
    """Make the same chains in the core, and start them."""
    chains = _core.Chains(
        target._native,
        kernel,
        options,
        facts=facts(target.dim),
        seed=SEED,
        chains=CHAINS,
        warmup=warmup,
        thinning=(1, 1, 1),
        save_warmup=True,
        fingerprint={},
    )
    chains.start(target.init(seed=3, chains=len(CHAINS)))
    return chains


def network(dtype):
    x = np.linspace(-1, 1, 40)[:, None]
    model = rb.mlp(1, (8, 5), 1, activation="tanh")
    return rb.Posterior(
        model,
        x,
        np.sin(3 * x),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
        dtype=dtype,
        marginalize=None,
    )


def normals(batched=True):
    def density(q):
        return -0.5 * (q * q).sum(axis=-1), -q

    return rb.CallableDensity(density, 5, batched=batched)


def distance(a, b):
    """Return the largest difference of blocks, relative to numbers above 1."""
    pairs = [(a[0], b[0]), *((a[1][name], b[1][name]) for name in a[1])]
    return max(
        float(np.max(np.abs(np.float64(u) - v) / np.maximum(1.0, np.abs(v)))) for u, v in pairs
    )


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-12), ("float32", 4e-6)])
@pytest.mark.parametrize(
    ("kernel", "options", "warmup"),
    [
        ("hmc", STEPS, 0),
        ("hmc", {**STEPS, "step_size_jitter": 0.3, "inverse_mass_matrix": "prior"}, 0),
        ("hmc", {}, 100),
        ("nuts", {"step_size": 0.05, "inverse_mass_matrix": None}, 0),
        ("nuts", {}, 100),
    ],
    ids=["hmc", "hmc mass", "hmc auto", "nuts", "nuts auto"],
)
def test_one_transition_is_that_of_the_core(kernel, options, warmup, dtype, limit):
    target = network(dtype)
    known = native(target, kernel, options, warmup=warmup).advance(1, np.inf)

    def found(options=options, seed=SEED):
        chains = lockstep(target, kernel, options, warmup=warmup, seed=seed)
        return chains.advance(1, np.inf, InterruptGuard())

    assert list(found()[1]) == list(known[1])
    for name, values in found()[1].items():
        assert values.dtype == known[1][name].dtype
    assert distance(found(), known) <= limit
    # Controls: another seed, and twice the step size.
    assert distance(found(seed=SEED + 1), known) > 1e-3
    if "step_size" in options:
        assert distance(found({**options, "step_size": 0.1}), known) > 1e-3


def test_bytes_are_those_of_the_core():
    """A state of either kind of chains has the same fields, and the core continues from both."""
    target, options = network("float64"), {"inverse_mass_matrix": "adapt"}
    known, found = (
        native(target, "hmc", options, warmup=40),
        lockstep(target, "hmc", options, warmup=40),
    )
    known.advance(10, np.inf)
    found.advance(10, np.inf, InterruptGuard())
    a, b = State(known.save()).fields, found.state.fields
    assert set(b) - {"target"} == set(a) - {"instruction set"}
    for name in set(a) & set(b):
        assert np.shape(a[name]) == np.shape(b[name])
        assert np.asarray(a[name]).dtype == np.asarray(b[name]).dtype


@pytest.mark.parametrize("kernel", ["hmc", "nuts"])
@pytest.mark.parametrize("thin", [1, 3])
def test_blocks_and_bytes_do_not_change_draws(kernel, thin):
    guard, run = InterruptGuard(), {"warmup": 30, "thin": thin}
    one = lockstep(normals(), kernel, {}, **run)
    whole = [one.advance(1000, np.inf, guard), one.advance(6, np.inf, guard)]
    assert one.step == 30 + 6 * thin
    other = lockstep(normals(), kernel, {}, **run)
    parts = []
    while other.step < one.step:
        parts.append(other.advance(3, np.inf, guard))
        assert parts[-1][0].shape[1] == 3
        other = lockstep(normals(), kernel, {}, state=State(bytes(other.state)), **run)
    assert bytes(other.state) == bytes(one.state)
    positions = np.concatenate([p for p, _ in parts], axis=1)
    assert np.array_equal(positions, np.concatenate([p for p, _ in whole], axis=1))
    for name in whole[0][1]:
        joined = [np.concatenate([s[name] for _, s in blocks], axis=1) for blocks in (parts, whole)]
        assert np.array_equal(*joined)


def test_rows_of_thinned_runs_count_divergences():
    run = {"options": {"step_size": 2.5, "num_leapfrog_steps": 3, "divergence_threshold": 0.5}}
    single = lockstep(normals(), "hmc", **run).advance(12, np.inf, InterruptGuard())
    _, stats = lockstep(normals(), "hmc", **run, thin=4).advance(3, np.inf, InterruptGuard())
    counts = single[1]["diverging"].reshape(3, 3, 4).sum(axis=2)
    assert counts.any()
    assert np.array_equal(stats["divergences"], counts)


def test_advance_ends_where_it_is_told():
    guard = InterruptGuard()
    chains = lockstep(normals(), "hmc", SHORT, warmup=10, thin=2, each=False)
    positions, stats = chains.advance(4, np.inf, guard)
    assert positions is None
    assert stats["lp"].shape == (3, 4)
    assert chains.calls[0][0] == 4
    chains.advance(100, np.inf, guard, stop=7)
    assert chains.step == 7
    chains.advance(100, np.inf, guard)
    assert chains.step == 10
    assert not chains.warming_up
    chains.largest = 2
    assert chains.advance(100, np.inf, guard)[0].shape == (3, 2, 5)
    assert chains.advance(100, 0.0, guard) == (None, {})  # a step without a draw
    step, stats = chains.calls[0]
    assert step == chains.step
    assert stats["lp"].shape == (3,)
    assert chains.advance(1, np.inf, guard)[1]["lp"].shape == (3, 1)
    guard.flag.set()
    assert chains.advance(1, np.inf, guard) == (None, {})
    assert chains.calls == []
    chains.raise_deferred()


def test_an_error_comes_after_the_rows_before_it():
    calls = 0

    def density(q):
        nonlocal calls
        calls += 1
        if calls in (30, 31):
            raise LookupError
        return -0.5 * (q * q).sum(axis=-1), -q

    target, guard = rb.CallableDensity(density, 5, batched=True), InterruptGuard()
    one = lockstep(target, "hmc", {**SHORT, "randomize_length": False})
    assert one.advance(100, np.inf, guard)[0].shape[1] == 7  # (29 - 1) / 4 transitions
    before = bytes(one.state)
    with pytest.raises(LookupError):
        one.advance(100, np.inf, guard)
    with pytest.raises(LookupError):  # the next call has no rows
        one.advance(100, np.inf, guard)
    assert bytes(one.state) == before
    known = lockstep(normals(), "hmc", {**SHORT, "randomize_length": False})
    known.advance(7, np.inf, guard)
    assert np.array_equal(one.advance(3, np.inf, guard)[0], known.advance(3, np.inf, guard)[0])


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_ends_a_call_of_user_code():
    """The function sleeps, the signal wakes it, and the rows before stay."""
    begun = threading.Event()

    def density(q):
        if begun.is_set():
            time.sleep(20)
        return -0.5 * (q * q).sum(axis=-1), -q

    target = rb.CallableDensity(density, 5, batched=True)
    chains = lockstep(target, "hmc", SHORT)
    guard = InterruptGuard()

    def press():
        begun.set()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with guard:
            chains.advance(3, np.inf, guard)
            before = bytes(chains.state)
            thread = threading.Thread(target=press)
            thread.start()
            start = time.perf_counter()
            chains.advance(10**9, np.inf, guard)
            assert time.perf_counter() - start < 5
            thread.join()
            assert guard.requested
            assert not guard.foreign
    finally:
        signal.signal(signal.SIGINT, old)
    chains.raise_deferred()
    assert chains.step >= 3
    assert chains.step > 3 or bytes(chains.state) == before


@pytest.mark.parametrize("batched", [True, False])
def test_lost_chains_end_early_and_nan_is_noted(batched):
    """No call of the function sees a number that is not finite."""

    def density(q):
        assert np.isfinite(q).all()
        bad = np.where(np.abs(q).max(axis=-1, keepdims=True) > 1e3, np.nan, 1.0)
        return -0.5 * (q * q * bad).sum(axis=-1), -q * bad

    target = rb.CallableDensity(density, 5, batched=batched)
    chains = lockstep(target, "hmc", {"step_size": 30.0, "num_leapfrog_steps": 9})
    _, stats = chains.advance(4, np.inf, InterruptGuard())
    assert stats["diverging"].any()
    assert stats["n_steps"].max() < 9
    assert chains._density.undefined


def test_a_state_may_continue_on_another_function():
    """Nothing identifies a function: its log density and gradient are computed again."""
    chains = lockstep(normals(), "hmc", SHORT)
    chains.advance(3, np.inf, InterruptGuard())
    wide = Gaussian([2.0] * 5)
    wide.init = normals().init
    found = lockstep(wide, "hmc", SHORT, state=chains.state)
    fresh = lockstep(wide, "hmc", SHORT)
    fresh._at = found._at._replace(grad=wide.value_and_grad(chains.state.position)[1])
    lp = wide.value_and_grad(chains.state.position)[0]
    fresh._at = fresh._at._replace(terms=lp[:, None])
    guard = InterruptGuard()
    assert np.array_equal(found.advance(2, np.inf, guard)[0], fresh.advance(2, np.inf, guard)[0])


def test_bad_starts_and_options():
    def fail(match, kernel="hmc", options=STEPS, **more):
        with pytest.raises(ValueError, match=match):
            lockstep(normals(), kernel, options, **more)

    fail(
        r"^\[HMC\] warmup must be at least 1 for step_size='auto', got 0",
        options={"num_leapfrog_steps": 2},
    )
    fail(
        r"^\[HMC\] warmup must be at least 20 to adapt the inverse mass matrix, got 5",
        options={"inverse_mass_matrix": "adapt"},
        warmup=5,
    )
    fail(r"^\[HMC\] step_size must be one number or one for each", options={"step_size": [0.1] * 2})
    tiny = {**STEPS, "inverse_mass_matrix": np.full(network("float32").dim, 1e-60)}
    with pytest.raises(ValueError, match=r"^\[HMC\] inverse_mass_matrix must be positive and fin"):
        lockstep(network("float32"), "hmc", tiny)
    flat = rb.CallableDensity(lambda q: (np.nan, q), 5)
    with pytest.raises(ValueError, match=r"^\[HMC\] expected a finite log density at the initial"):
        lockstep(flat, "hmc", STEPS)


def test_damaged_tuning_is_refused():
    chains = lockstep(normals(), "hmc", {}, warmup=20)
    chains.advance(5, np.inf, InterruptGuard())
    good = chains._tuner.fields()
    chains._tuner.load(good, 5, None)
    assert all(np.array_equal(good[name], v) for name, v in chains._tuner.fields().items())
    for name, value in [
        ("step_size", np.zeros((3, 1))),
        ("step_size", np.ones((2, 1))),
        ("dual.error", np.full((3, 1), np.nan)),
        ("dual.updates", np.full((3, 1), -1)),
        ("dual.settled", np.zeros((2, 1), np.int64)),
    ]:
        with pytest.raises(ValueError, match="the bytes hold no chains that can continue"):
            chains._tuner.load({**good, name: value}, 5, None)
    assert all(np.array_equal(good[name], v) for name, v in chains._tuner.fields().items())


class Rough(Gaussian):
    """A Gaussian whose log densities have errors of `noise`, as rounding makes them."""

    precision = "tf32"

    def __init__(self, noise):
        super().__init__([1.0] * 4)
        self.noise = noise
        self.precision_reference = Gaussian([1.0] * 4)

    def init(self, seed=0, chains=None):
        return np.random.default_rng(seed).normal(size=(chains, 4))

    def value_and_grad(self, theta, rows=None):
        lp, grad = super().value_and_grad(theta)
        return lp + self.noise * np.sin(1e6 * theta.sum(axis=1)), grad


def test_imprecise_gradients_give_a_warning():
    with pytest.warns(PrecisionWarning, match=r"got 0\.[1-9]\d* over 18 trajectories of 4 steps"):
        lockstep(Rough(0.5), "hmc", SHORT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lockstep(Rough(1e-3), "hmc", SHORT)
