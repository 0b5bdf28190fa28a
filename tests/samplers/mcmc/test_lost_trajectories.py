"""Trajectories that are lost end early: what they cost, and that nothing else changes."""

import ctypes

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from tests.support.targets import same

POINTER = ctypes.POINTER(ctypes.c_double)
SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_size_t, POINTER, POINTER, POINTER, ctypes.c_void_p
)
CHECKED = 8  # steps between two looks of the core (cpp/cpu/density/leapfrog.h)
STEPS = 60

# The step is too large on purpose, so that nothing converges.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
]


def steep(units, rows=40):
    """A small network whose noise is so narrow that leapfrogs of 0.1 run away; one chunk or two."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3))
    y = np.sin(x[:, :1]) + 0.01 * rng.normal(size=(rows, 1))
    return rb.Posterior(
        rb.mlp(3, (units,), 1, activation="relu"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.01),
    )


def slow_trajectory(target, position, momentum, step_size, num_steps):
    """All steps of one chain (P,), in the target's dtype: the first lost one, and the end."""
    q, p = position.copy(), momentum.copy()
    half = np.array(step_size, q.dtype) / 2
    grad = target.value_and_grad(q)[1]
    first = None
    with np.errstate(all="ignore"):
        for step in range(1, num_steps + 1):
            p = p + half * grad
            q = q + 2 * half * p
            grad = target.value_and_grad(q)[1]
            p = p + half * grad
            if first is None and not np.isfinite(p).all():
                first = step
    return first, q, p


@pytest.mark.parametrize("units", [9, 700])
def test_a_lost_trajectory_would_have_been_rejected(units):
    """The oracle makes all steps: if the core stops early, the oracle ends without a number."""
    target = steep(units)
    q = target.init(seed=1, chains=6)
    p = np.random.default_rng(2).normal(size=q.shape).astype(q.dtype)
    eps = np.array([1e-4, 0.02, 0.05, 0.1, 0.3, 1.0])
    made = np.zeros(6, np.int64)
    grad = target.value_and_grad(q)[1]
    steps = np.full(6, STEPS)
    end_q, end_p, terms, _ = target.leapfrog(q, p, grad, eps, steps, made=made)
    for c in range(6):
        first, slow_q, slow_p = slow_trajectory(target, q[c], p[c], eps[c], STEPS)
        if made[c] == STEPS:
            # One that is lost behind the last look is made to its end.
            assert first is None or first > STEPS - CHECKED
            if first is None and c == 0:
                np.testing.assert_allclose(end_q[c], slow_q, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(end_p[c], slow_p, rtol=1e-3, atol=1e-3)
            continue
        assert not np.isfinite(slow_p).all()  # rejected with all steps made
        assert not np.isfinite(end_p[c]).all()
        assert np.isnan(terms[c]).all()
        # Rounding may move the overflow by a step.
        assert made[c] in {CHECKED * -(-(first + k) // CHECKED) for k in (-1, 0, 1)}
    assert made[0] == STEPS  # one stays
    assert (made < STEPS // 2).sum() >= 3  # the control: most are lost


@pytest.mark.parametrize("units", [50, 500])
def test_steps_made_and_bits_do_not_depend_on_threads(units):
    """Four partitions of the rows, so large that calls use several threads."""
    target, found = steep(units, rows=1100), []
    threads = _core.num_threads()
    try:
        for count in (1, 2, 3):
            rb.set_num_threads(count)
            hmc = rb.HMC(target, step_size=[1e-5, 0.05, 0.1], num_leapfrog_steps=30)
            found.append(hmc.sample(5, warmup=0, chains=3, seed=3, progress=False))
    finally:
        rb.set_num_threads(threads)
    for draws in found[1:]:
        assert same(draws.positions, found[0].positions)
        for name in draws.stats:
            assert same(draws.stats[name], found[0].stats[name]), name
    assert found[0].stats["accepted"][0].any()  # the controls: one moves, one is lost
    assert (found[0].stats["n_steps"][2] <= 2 * CHECKED).all()


def test_nothing_changes_but_the_work():
    """Targets that make all steps give the same run, except for "n_steps"."""

    class AllSteps:
        """The posterior, whose trajectories are cut at every step: none can end early."""

        def __init__(self, target):
            self.target = target
            self.dim, self.dtype, self.init = target.dim, target.dtype, target.init
            self.shared_prior_sd = target.shared_prior_sd
            self.value_and_grad, self.terms_and_grad = target.value_and_grad, target.terms_and_grad
            self.interruptible = True
            self.made = 0

        def leapfrog(
            self, position, momentum, grad, step_size, num_steps, inverse_mass=None, interrupt=None
        ):
            made = np.zeros_like(num_steps)
            end = self.target.leapfrog(
                position, momentum, grad, step_size, num_steps, made=made, interrupt=interrupt
            )
            lost = made < num_steps
            for c in np.flatnonzero(lost):  # the steps that were left out
                first, q, p = slow_trajectory(
                    self.target, position[c], momentum[c], step_size[c], num_steps[c]
                )
                assert first is not None
                end[0][c], end[1][c] = q, p
            self.made += int(num_steps.sum())
            return end

    target = steep(9)
    options = {"step_size": [2e-4, 3e-3, 0.1], "num_leapfrog_steps": 30}
    all_steps = AllSteps(target)
    run = {"warmup": 0, "chains": 3, "seed": 4, "progress": False}
    ours = rb.HMC(target, **options).sample(40, **run)
    theirs = rb.HMC(all_steps, **options).sample(40, **run)
    assert same(ours.positions, theirs.positions)
    for name in ours.stats:
        if name != "n_steps":
            assert same(ours.stats[name], theirs.stats[name]), name
    work = ours.stats["n_steps"].sum(axis=1)
    full = theirs.stats["n_steps"].sum(axis=1)
    assert all_steps.made == full.sum()
    assert work[0] == full[0]
    assert work[2] < 0.5 * full[2]
    assert (ours.stats["n_steps"] <= theirs.stats["n_steps"]).all()
    assert ours.stats["diverging"][2].all()


@SIGNATURE
def quartic(n, x, grad, lp, user):
    """-sum x^4: leapfrogs of 1 run away, and the function never sees what is not finite."""
    lp[0] = 0.0
    for i in range(n):
        if not np.isfinite(x[i]):
            return 7
        lp[0] -= x[i] * x[i] * x[i] * x[i]
        grad[i] = -4.0 * x[i] * x[i] * x[i]
    return 0


def quartic_of(theta):
    if not np.isfinite(theta).all():
        raise AssertionError("a position that is not finite")
    with np.errstate(all="ignore"):
        return -np.sum(theta * theta * theta * theta, axis=-1), -4.0 * theta * theta * theta


def test_pointers_and_callables_stop_at_the_same_step():
    pointer = rb.CallableDensity.from_pointer(quartic, 2)
    plain = rb.CallableDensity(quartic_of, 2, batched=True)
    step_size = np.repeat([0.05, 1.0], 20)
    start = 0.5 * np.random.default_rng(6).normal(size=(40, 2))
    found = []
    for target in (pointer, plain):
        hmc = rb.HMC(target, step_size=step_size, num_leapfrog_steps=25, randomize_length=False)
        stats = rb.Chains(hmc, start, seed=5, warmup=0).advance()[1]
        found.append({name: values[:, 0] for name, values in stats.items()})
    assert np.array_equal(found[0]["n_steps"], found[1]["n_steps"])
    assert np.array_equal(found[0]["accepted"], found[1]["accepted"])
    lost = found[0]["diverging"]
    assert not lost[:20].any()
    assert (found[0]["n_steps"][:20] == 25).all()
    assert lost[20:].sum() > 10
    assert (found[0]["n_steps"][lost] < 25).all()
