"""MCLMC against the oracle: native steps, the loop over gradients, and what both do with NaN."""

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit.results.state import MicrocanonicalState, State
from ribbit.samplers import MCLMC
from tests.oracle import isokinetic_reference as reference
from tests.oracle.reference import ACCEPT, JITTER, normal, words
from tests.support.chain_states import fields
from tests.support.stepwise import started, stepped
from tests.support.targets import SDS, START, Foreign, Gaussian, equal, posterior, same

# what is compared here are bits and figures of short runs, whose draws have not converged
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")

INTEGRATORS = tuple(reference.SCHEMES)
FIXED = {"step_size": 0.3, "decoherence_length": 1.5}


class Oracle:
    """A target of one chain, by its value and its gradient."""

    def __init__(self, target):
        self.target = target

    def value(self, q):
        return self.target.value_and_grad(q[None].astype(self.target.dtype))[0][0]

    def gradient(self, q):
        return self.target.value_and_grad(q[None].astype(self.target.dtype))[1][0].astype(float)


def start_of(target, chains=2, seed=0):
    return 0.1 * np.random.default_rng(seed).normal(size=(chains, target.dim)) + 0.2


def expected(target, start, count, *, seed, chain, eps, length, **options):
    u = normal(target.dim, seed=seed, step=0, chain=chain, purpose=reference.REFRESH, layer=1)
    return reference.run(
        Oracle(target), start, u, eps, length, count, seed=seed, chain=chain, **options
    )


TARGETS = {
    "native": lambda: posterior(np.float64),
    "tempered": lambda: posterior(np.float64, temperature=0.5, likelihood_temperature=3.0),
    "python": lambda: Foreign(posterior(np.float64)),
    "Gaussian": lambda: Gaussian(SDS),
}


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_draws_are_those_of_the_oracle(name, scaled, integrator):
    target = TARGETS[name]()
    eps, length, count = (0.3, 1.5, 25) if name == "Gaussian" else (0.05, 0.4, 25)
    scale = np.linspace(0.5, 2.0, target.dim) if scaled else 1.0
    sampler = MCLMC(
        target,
        step_size=eps,
        decoherence_length=length,
        integrator=integrator,
        inverse_mass_matrix=scale**2 if scaled else None,
    )
    start = start_of(target)
    draws = sampler.sample(count, warmup=0, thin=1, init=start, seed=2**63 + 9, chains=[4, 1])
    options = {"eps": eps, "length": length, "scale": scale, "integrator": integrator}
    for row, chain in enumerate((4, 1)):
        path, u, errors = expected(
            target, start[row], count, seed=2**63 + 9, chain=chain, **options
        )
        np.testing.assert_allclose(draws.positions[row], path, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(draws.stats["energy_error"][row], errors, atol=1e-8)
        found = draws.state.velocity[row]
        np.testing.assert_allclose(found / np.linalg.norm(found), u, rtol=1e-7, atol=1e-9)
        lp = [Oracle(target).value(q) for q in path]
        np.testing.assert_allclose(draws.stats["lp"][row], lp, rtol=1e-10)
        mean = np.cumsum(errors**2) / (np.arange(count) + 1) / target.dim
        np.testing.assert_allclose(draws.stats["energy_variance"][row], mean, rtol=1e-5, atol=1e-12)
    assert set(np.unique(draws.stats["n_steps"])) == {1 + INTEGRATORS.index(integrator)}
    assert not draws.stats["diverging"].any()


def test_single_precision_is_near_double():
    paths = []
    for dtype in (np.float32, np.float64):
        target = posterior(dtype)
        sampler = MCLMC(target, step_size=0.02, decoherence_length=0.5)
        draws = sampler.sample(10, warmup=0, thin=1, init=start_of(target), seed=3)
        paths.append(draws.positions.astype(float))
    assert 0 < np.abs(paths[0] - paths[1]).max() < 1e-5


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_native_errors_add_up(integrator):
    """The errors of single steps sum to what the kicks gained less what the log density did."""
    target = posterior(np.float64)
    q = start_of(target, 3)
    terms, grad = target.terms_and_grad(q)
    u = np.random.default_rng(1).normal(size=q.shape)
    counts = np.array([7, 1, 12])
    out = target.isokinetic(
        q,
        u,
        grad,
        terms,
        seed=1,
        chains=np.arange(3, dtype=np.uint32),
        first_step=0,
        integrator=integrator,
        step_size=np.array([0.05, 0.1, 0.02]),
        decoherence_length=np.array([np.inf, 1.0, np.inf]),
        num_steps=counts,
    )
    position, _, gradient, after, energy, errors = out
    again = target.terms_and_grad(position)
    assert same(after, again[0])
    assert same(gradient, again[1])
    whole = energy - (after - terms).sum(axis=1)
    np.testing.assert_allclose(errors.sum(axis=1), whole, atol=1e-11)
    for row, count in zip(errors, counts, strict=True):
        assert np.all(row[:count] != 0.0)
        assert not row[count:].any()


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_native_path_turned_round_leads_back(integrator):
    target = posterior(np.float64)
    q = start_of(target, 2)
    options = {
        "seed": 1,
        "chains": np.arange(2, dtype=np.uint32),
        "first_step": 0,
        "integrator": integrator,
        "step_size": np.array([0.05, 0.02]),
        "decoherence_length": np.full(2, np.inf),
        "num_steps": np.full(2, 40),
        "scale": np.linspace(0.5, 2.0, target.dim),
    }
    terms, grad = target.terms_and_grad(q)
    u = np.random.default_rng(1).normal(size=q.shape)
    there = target.isokinetic(q, u, grad, terms, **options)
    back = target.isokinetic(there[0], -there[1], there[2], there[3], **options)
    np.testing.assert_allclose(back[0], q, atol=1e-10)
    np.testing.assert_allclose(back[4], -there[4], atol=1e-8)
    assert np.abs(there[0] - q).max() > 0.1


# --- what is not finite --------------------------------------------------------------------------


class Walled(Gaussian):
    """A Gaussian whose log density or gradient is `beyond` where the first parameter is > 0.5."""

    def __init__(self, beyond, which):
        super().__init__(SDS)
        self.beyond, self.which, self.seen = beyond, which, []

    def value_and_grad(self, theta, rows=None):
        self.seen.append(theta)
        lp, grad = super().value_and_grad(theta)
        out = theta[:, 0] > 0.5
        if self.which == "value":
            lp = np.where(out, self.beyond, lp)
        else:
            grad = np.where(out[:, None], self.beyond, grad)
        return lp, grad


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("which", ["value", "gradient"])
@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf, -1e200])
def test_chains_turn_round_at_a_wall(beyond, which, integrator):
    target = Walled(beyond, which)
    sampler = MCLMC(target, **FIXED, integrator=integrator)
    draws = sampler.sample(300, warmup=0, thin=1, init=START, seed=3)
    lost = draws.stats["diverging"]
    assert lost.any(axis=1).all()
    assert (draws.positions[:, :, 0] <= 0.5).all()
    assert np.isinf(draws.stats["energy_error"][lost]).all()
    assert np.isfinite(draws.stats["energy_error"][~lost]).all()
    assert np.isfinite(draws.stats["lp"]).all()
    before = np.concatenate([START[:, None], draws.positions[:, :-1]], axis=1)
    assert same(before[lost], draws.positions[lost])  # undone, to the bit
    assert np.isfinite(np.concatenate(target.seen)).all()  # foreign code never sees the NaN
    for chain in range(2):
        path, _, errors = expected(
            target, START[chain], 300, seed=3, chain=chain, eps=0.3, length=1.5
        )
        if integrator == "leapfrog":
            assert np.array_equal(np.isnan(errors), lost[chain])
            np.testing.assert_allclose(draws.positions[chain], path, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_native_chains_turn_round_where_a_rate_overflows(dtype):
    x = np.linspace(-1.0, 1.0, 40)[:, None].astype(dtype)
    target = rb.Posterior(
        rb.mlp(1, (), 1),
        x,
        np.ones(40),
        prior=rb.Normal(1e15),
        likelihood=rb.Poisson(),
        dtype=dtype,
    )
    sampler = MCLMC(target, step_size=900.0, decoherence_length=1e4)
    draws = sampler.sample(60, warmup=0, thin=1, init=np.zeros(2), chains=3, seed=1)
    lost = draws.stats["diverging"]
    assert lost.any()
    assert np.isfinite(draws.positions).all()
    assert np.isfinite(draws.state.velocity).all()
    before = np.concatenate([np.zeros((3, 1, 2), dtype), draws.positions[:, :-1]], axis=1)
    assert same(before[lost], draws.positions[lost])
    assert not same(before[~lost], draws.positions[~lost]) or lost.all()


# --- the same bits -------------------------------------------------------------------------------

SHORT = {"max_num_leapfrog_steps": 20}  # so that the loop in Python takes a second
RUNS = {
    "defaults": ({}, {"warmup": 300, "thin": 7}),
    "adapted mass": ({"inverse_mass_matrix": "adapt"}, {"warmup": 200, "thin": 3}),
    "mclachlan": (
        {"integrator": "mclachlan", "inverse_mass_matrix": "prior"},
        {"warmup": 200, "thin": 5},
    ),
    "fixed": ({"step_size": 0.05, "decoherence_length": 1.0}, {"warmup": 20, "thin": 4}),
    "adjusted": ({"adjusted": True, **SHORT}, {"warmup": 40, "thin": 1}),
    "adjusted, adapted mass": (
        {"adjusted": True, "inverse_mass_matrix": "adapt", "integrator": "mclachlan", **SHORT},
        {"warmup": 40, "thin": 2},
    ),
}


def foreign():
    target = Foreign(posterior())
    target.prior_sd = target.inner.prior_sd
    return target


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("make", [posterior, foreign])
def test_nothing_but_seed_chain_and_step_decides(name, make, tmp_path):
    target, (options, how) = make(), RUNS[name]
    init = target.inner if isinstance(target, Foreign) else target
    start = init.init(seed=1, chains=3)
    sampler = MCLMC(target, **options)
    whole = sampler.sample(8, init=start, seed=5, progress=False, **how)
    assert same(whole.positions, sampler.sample(8, init=start, seed=5, **how).positions)
    # a chain alone
    alone = sampler.sample(8, init=start[1:2], chains=[1], seed=5, **how)
    equal(whole, alone, chains=slice(1, 2))
    # cut and resumed, through a file, by another sampler
    first = sampler.sample(3, init=start, seed=5, **how)
    first.save(tmp_path / "draws.npz")
    again = MCLMC(make(), **options)
    rest = again.sample(5, resume=rb.load(tmp_path / "draws.npz"), thin=how["thin"])
    equal(whole, rest, rows=slice(3, None))
    # step by step, warmup too; and cut in warmup, where a block has not ended
    kept = sampler.sample(8, init=start, seed=5, save_warmup=True, **how)
    equal(whole, kept)
    state = started(sampler, start, seed=5, warmup=how["warmup"])
    for count in (1, 4, 6, 8):
        state, _ = stepped(sampler, state, num_steps=count)
    assert same(state.position, kept.warmup_positions[:, 18])
    equal(whole, sampler.sample(8, resume=state, thin=how["thin"]))


@pytest.mark.parametrize("adjusted", [False, True])
@pytest.mark.parametrize("shape", [(50,), (64, 64)])
def test_threads_do_not_change_a_bit(adjusted, shape):
    # 1,100 rows are four shards; (64, 64) has three chunks of parameters
    x = rb.random.normal((1100, 8), seed=3)
    y = np.sin(x.sum(axis=1, keepdims=True)) + 0.1 * x[:, :1]
    model = rb.mlp(8, shape, 1, activation="silu")
    target = rb.Posterior(model, x, y, prior=rb.Normal(0.5), likelihood=rb.Gaussian(0.3))
    sampler = MCLMC(target, adjusted=adjusted, max_num_leapfrog_steps=5)
    before, runs = _core.num_threads(), []
    how = {"warmup": 20, "thin": 1} if adjusted else {"warmup": 100, "thin": 20}
    try:
        for count in (1, 2, 4, 3):
            rb.set_num_threads(count)
            runs.append(sampler.sample(2, chains=3, seed=4, progress=False, **how))
    finally:
        rb.set_num_threads(before)
    for run in runs[1:]:
        equal(runs[0], run)
    assert not same(runs[0].positions[:, 0], runs[0].positions[:, 1])


def test_chains_are_not_alike():
    draws = MCLMC(Gaussian(SDS), **FIXED).sample(5, warmup=0, init=np.zeros(3), chains=2)
    assert not same(draws.positions[0], draws.positions[1])


# --- the adjusted form ---------------------------------------------------------------------------


def uniform(seed, step, chain, purpose, layer=0):
    a, b = words([0], seed=seed, step=step, chain=chain, purpose=purpose, layer=layer)[0, :2]
    return (int(a >> 5) * 2.0**26 + int(b >> 6) + 0.5) * 2.0**-53


def test_adjusted_transitions_are_those_of_the_oracle():
    target, eps, length, seed = Gaussian(SDS), 2.0, 4.0, 7
    sampler = MCLMC(target, adjusted=True, step_size=eps, decoherence_length=length)
    draws = sampler.sample(60, warmup=0, init=START, seed=seed)
    oracle, met = Oracle(target), set()
    for chain in range(2):
        q = START[chain]
        for step in range(60):
            u = normal(3, seed=seed, step=step, chain=chain, purpose=reference.REFRESH, layer=1)
            u = u / np.linalg.norm(u)
            share = uniform(seed, step, chain, JITTER, 2)
            count = int(np.ceil(2.0 * share * np.ceil(length / eps)))
            new, energy = q, 0.0
            for _ in range(count):
                new, u, gained = reference.step(new, u, oracle.gradient, eps)
                energy += gained
            error = energy - (oracle.value(new) - oracle.value(q))
            accepted = np.log(uniform(seed, step, chain, ACCEPT)) < -error
            assert draws.stats["energy_error"][chain, step] == pytest.approx(error, abs=1e-9)
            assert draws.stats["accepted"][chain, step] == accepted
            assert draws.stats["n_steps"][chain, step] == count
            q = new if accepted else q
            met.add((bool(accepted), count))
            np.testing.assert_allclose(draws.positions[chain, step], q, rtol=1e-9, atol=1e-10)
    assert {a for a, _ in met} == {True, False}
    assert {n for _, n in met} == {1, 2, 3, 4}


@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf])
def test_an_adjusted_trajectory_beyond_a_wall_is_rejected(beyond):
    target = Walled(beyond, "value")
    sampler = MCLMC(target, adjusted=True, step_size=0.5, decoherence_length=2.0)
    draws = sampler.sample(100, warmup=0, init=START, seed=3)
    lost = draws.stats["diverging"]
    assert lost.any()
    assert not draws.stats["accepted"][lost].any()
    assert not draws.stats["acceptance_rate"][lost].any()
    assert (draws.positions[:, :, 0] <= 0.5).all()


def test_states_of_the_other_form_are_refused():
    target = Gaussian(SDS)
    one, other = MCLMC(target, **FIXED), MCLMC(target, adjusted=True, **FIXED)
    with pytest.raises(ValueError, match=r"\[MCLMC.step\] expected a state .* adjusted=True, got"):
        stepped(other, started(one, START))
    with pytest.raises(ValueError, match="adjusted=False, got"):
        stepped(one, started(other, START))
    with pytest.raises(TypeError, match="expected a MicrocanonicalState, got"):
        stepped(one, State._of(fields()))


def test_step_is_pure():
    sampler = MCLMC(posterior())
    state = started(sampler, start_of(posterior()), warmup=100)
    copies = {n: np.array(getattr(state, n)) for n in ("position", "velocity", "grad", "terms")}
    first, _ = stepped(sampler, state, num_steps=30)
    second, _ = stepped(sampler, state, num_steps=30)
    assert isinstance(first, MicrocanonicalState)
    for name, copy in copies.items():
        assert same(getattr(state, name), copy)
        assert same(getattr(first, name), getattr(second, name))
    assert "dim 46, step 30, warmup 30/100" in repr(first)
