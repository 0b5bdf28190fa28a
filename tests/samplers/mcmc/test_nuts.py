"""NUTS against the oracle, state by state; what ends its trees, its rejections and its purity."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.samplers import NUTS
from tests.oracle import nuts_reference
from tests.oracle.reference import Target, mlp_table
from tests.support.targets import SDS, START, Gaussian, Scripted, posterior, same, state_of

# short runs that are compared with others: whether they have converged does not matter
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")


class Oracle:
    """The Gaussian as the oracle wants it: one chain, one term."""

    def __init__(self, sds=SDS):
        self.sds = np.array(sds)

    def gradient(self, q):
        return -q / self.sds**2

    def terms(self, q):
        return np.array([[-0.5 * np.sum(np.square(q / self.sds))]])


class Foreign:
    """The same density without native transitions; chains are counted."""

    def __init__(self, inner):
        self.inner, self.dim, self.dtype = inner, inner.dim, inner.dtype
        self.batches = []

    def value_and_grad(self, theta, rows=None):
        self.batches.append(len(theta))
        return self.inner.value_and_grad(theta)

    def terms_and_grad(self, theta):
        self.batches.append(len(theta))
        return self.inner.terms_and_grad(theta)


def compare(draws, expected, tolerance, chain=0):
    """Draws of one chain are those of the oracle, and so are its statistics."""
    stats = draws.stats
    positions = np.array([found.drawn.position for found in expected])
    np.testing.assert_allclose(draws.positions[chain], positions, rtol=0, atol=tolerance)
    for name, values in {
        "n_steps": [found.num_steps for found in expected],
        "tree_depth": [found.depth for found in expected],
        "diverging": [found.diverging for found in expected],
        "reached_max_treedepth": [found.at_max_depth for found in expected],
    }.items():
        assert stats[name][chain].tolist() == values, name
    for name, values in {
        "acceptance_rate": [found.acceptance for found in expected],
        "energy_error": [found.drawn.error for found in expected],
    }.items():
        np.testing.assert_allclose(stats[name][chain], values, rtol=0, atol=100 * tolerance)


SETTINGS = {
    "plain": {"step_size": 0.35},
    "shallow": {"step_size": 0.1, "max_tree_depth": 3},
    "one doubling": {"step_size": 0.5, "max_tree_depth": 1},
    "diverging": {"step_size": 0.95, "divergence_threshold": 0.1},
}


@pytest.mark.parametrize("mass", [None, np.array([1.0, 3.0, 0.2])], ids=["unit", "diagonal"])
@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
def test_draws_from_gradients_are_those_of_the_oracle(options, mass):
    seed = 2**63 + 5
    draws = NUTS(Gaussian(SDS), inverse_mass_matrix=mass, **options).sample(
        60, init=START, seed=seed, warmup=0
    )
    for chain in range(2):
        expected = nuts_reference.nuts_run(
            Oracle(),
            START[chain],
            60,
            seed=seed,
            chain=chain,
            inverse_mass=1.0 if mass is None else mass,
            **options,
        )
        compare(draws, expected, 1e-10, chain)


ROWS, INPUTS, HIDDEN, PRIOR, NOISE = 37, 2, 4, 0.8, 0.4


def network(dtype=np.float64, **temperatures):
    """A posterior and the oracle's form of it."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, INPUTS))
    y = np.sin(x[:, :1]) + NOISE * rng.normal(size=(ROWS, 1))
    target = rb.Posterior(
        rb.mlp(INPUTS, (HIDDEN,), 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(PRIOR),
        likelihood=rb.Gaussian(NOISE),
        dtype=dtype,
        **temperatures,
    )
    table, dim = mlp_table(INPUTS, (HIDDEN,), 1, "tanh")
    prior = np.array([[0, dim, 0, PRIOR, 0, 0]], float)
    return target, Target(table, prior, 0, x, y, scale=NOISE, **temperatures)


NATIVE = {
    "plain": {"step_size": 0.05},
    "prior's mass": {"step_size": 0.06, "inverse_mass_matrix": "prior"},
    "shallow": {"step_size": 0.02, "max_tree_depth": 4},
    "diverging": {"step_size": 0.05, "divergence_threshold": 1.0},
}


@pytest.mark.parametrize("temperatures", [{}, {"temperature": 0.5, "likelihood_temperature": 2.0}])
@pytest.mark.parametrize("options", NATIVE.values(), ids=NATIVE)
def test_native_draws_are_those_of_the_oracle(options, temperatures):
    target, known = network(**temperatures)
    start = target.init(seed=3)
    mass = PRIOR**2 * target.temperature if "inverse_mass_matrix" in options else 1.0
    options = {"inverse_mass_matrix": None} | options
    draws = NUTS(target, **options).sample(20, init=start, chains=[7], seed=9, warmup=0)
    given = {k: v for k, v in options.items() if k != "inverse_mass_matrix"}
    expected = nuts_reference.nuts_run(
        known, start, 20, seed=9, chain=7, inverse_mass=mass * np.ones(target.dim), **given
    )
    compare(draws, expected, 1e-7)
    assert ("divergence_threshold" in options) == any(found.diverging for found in expected)
    assert ("max_tree_depth" in options) == any(found.at_max_depth for found in expected)


@pytest.mark.parametrize("mass", [None, "adapt"])
def test_native_and_python_trees_are_the_same(mass):
    """Chains of different depths leave the batch one by one."""
    target, _ = network()
    foreign = Foreign(target)
    step_size = (
        np.array([0.03, 0.1, 0.01, 0.06]) if mass is None else np.array([0.2, 0.1, 0.5, 0.3])
    )
    options = {"step_size": step_size, "inverse_mass_matrix": mass, "max_tree_depth": 6}
    start, warmup = target.init(seed=3, chains=4), 0 if mass is None else 20
    native, python = (
        NUTS(t, **options).sample(12, init=start, seed=2, warmup=warmup) for t in (target, foreign)
    )
    np.testing.assert_allclose(native.positions, python.positions, rtol=0, atol=1e-8)
    for name in native.stats:
        np.testing.assert_allclose(native.stats[name], python.stats[name], rtol=0, atol=1e-7)
    assert mass is not None or len(set(native.stats["tree_depth"].ravel().tolist())) > 2
    assert {1, 2, 3, 4} >= set(foreign.batches) > {4}


def test_terms_and_gradient_are_those_of_the_position():
    """So that another run, or another sampler, goes on from the state as it is."""
    for dtype in (np.float32, np.float64):
        target, _ = network(dtype, temperature=0.7, likelihood_temperature=1.3)
        chains = rb.Chains(NUTS(target, step_size=0.06), chains=3, seed=1, warmup=0)
        stats, state = chains.advance(5)[1], state_of(chains)
        terms, grad = target.terms_and_grad(state.position)
        assert same(state.terms, terms)
        assert same(state.grad, grad)
        assert same(stats["lp"][:, -1], terms[:, 0] + terms[:, 1])


def test_statistics_fit_together():
    draws = NUTS(Gaussian(SDS), step_size=0.3).sample(200, init=START, warmup=0, seed=1)
    s = draws.stats
    np.testing.assert_allclose(
        s["lp"], -0.5 * np.sum((draws.positions / SDS) ** 2, axis=-1), rtol=1e-12
    )
    assert ((s["acceptance_rate"] > 0) & (s["acceptance_rate"] <= 1)).all()
    assert (s["energy"] + s["lp"] > 0).all()  # kinetic energy
    assert (s["n_steps"] >= 2 ** s["tree_depth"] - 1).all()
    assert (s["n_steps"] < 2 ** (s["tree_depth"] + 1)).all()
    assert s["tree_depth"].max() <= 10
    assert not s["reached_max_treedepth"].any()
    assert (s["step_size"] == 0.3).all()
    assert not s["diverging"].any()
    assert draws.settings["sampler"] == "NUTS"


# --- what is not finite --------------------------------------------------------------------------


def spoil(which, value):
    def end(q, p, terms, g):
        if len(q) == 3:  # the first step, of all chains
            array = {"position": q, "momentum": p, "terms": terms, "gradient": g}[which]
            array[1, -1] = value
        return q, p, terms, g

    return end


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["position", "momentum", "terms", "gradient"])
def test_a_state_that_is_not_finite_ends_the_tree(which, value, dtype):
    nuts = NUTS(Scripted(4, spoil(which, value), dtype=dtype), step_size=0.1, max_tree_depth=2)
    chains = rb.Chains(nuts, np.full((3, 4), -0.125), warmup=0)
    before = state_of(chains)
    info = {name: values[:, 0] for name, values in chains.advance()[1].items()}
    after = state_of(chains)
    assert info["diverging"].tolist() == [False, True, False]
    assert info["n_steps"].tolist() == [3, 1, 3]
    assert info["acceptance_rate"][1] == 0.0
    assert info["energy_error"][1] == 0.0  # of the state that was drawn: the old one
    assert np.isfinite(info["energy"]).all()
    for name in ("position", "grad", "terms"):
        assert same(getattr(after, name)[1], getattr(before, name)[1])


def test_a_native_tree_ends_where_the_density_is_lost():
    target, _ = network(np.float32)
    nuts = NUTS(target, step_size=[1e30, 0.05])
    chains = rb.Chains(nuts, chains=2, seed=1, warmup=0)
    before = chains.position
    after, stats = chains.advance()
    assert stats["diverging"][:, 0].tolist() == [True, False]
    assert stats["n_steps"][0, 0] == 1
    assert same(after[0, 0], before[0])
    assert not same(after[1, 0], before[1])


def test_user_code_never_sees_what_is_not_finite():
    class Box(Gaussian):
        """NaN outside of |x| < 1; would raise on NaN input, as user code may."""

        def value_and_grad(self, theta, rows=None):
            assert np.isfinite(theta).all()
            lp, grad = super().value_and_grad(theta)
            out = np.abs(theta).max(axis=1) > 1
            return np.where(out, np.nan, lp), np.where(out[:, None], np.nan, grad)

    nuts = NUTS(Box([1.0, 1.0]), step_size=0.2)
    draws = nuts.sample(200, init=np.zeros((3, 2)), warmup=0)
    assert np.abs(draws.positions).max() <= 1
    assert draws.stats["diverging"].any()
    assert not draws.stats["diverging"].all()


# --- purity --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [posterior, lambda: Gaussian(SDS)], ids=["native", "python"])
def test_copies_continue_alone(make):
    target = make()
    nuts = NUTS(target, step_size=0.02, max_tree_depth=5)
    start = 0.1 * np.ones((2, target.dim))
    chains = rb.Chains(nuts, start, warmup=0)
    start[:] = 7.0
    saved, copies = chains.save(), [chains.copy(), chains.copy()]
    first, again = (copy.advance(3)[0] for copy in copies)
    assert same(first, again)
    assert not same(first[:, -1], chains.position)
    assert chains.save() == saved


@pytest.mark.full
def test_trees_are_short_until_the_last_window_ends():
    """The last window ends at 90. Later trees are not cut, nor are trees of a given step size."""
    far, options = Gaussian(np.geomspace(1e-3, 1.0, 12)), {"init": np.zeros((2, 12))}
    warm = NUTS(far).sample(5, warmup=100, seed=3, save_warmup=True, **options)
    warm = warm.warmup_stats
    assert warm["tree_depth"][:, :90].max() == 6
    assert warm["tree_depth"][:, 90:].max() > 6
    assert warm["reached_max_treedepth"][:, :90].any()
    assert not warm["reached_max_treedepth"][:, 90:].any()
    given = {"step_size": 1e-3, "inverse_mass_matrix": "adapt"}
    warm = NUTS(far, **given).sample(1, warmup=20, save_warmup=True, **options).warmup_stats
    assert warm["tree_depth"][:, 0].max() > 6
    shallow = NUTS(far, max_tree_depth=3).sample(5, warmup=100, save_warmup=True, **options)
    assert shallow.warmup_stats["tree_depth"].max() == 3


def test_options():
    target, plain = posterior(), Gaussian(SDS)
    assert NUTS(target).settings["inverse_mass_matrix"] == "auto"
    assert "tree_depth=10" in repr(NUTS(target))
    for wrong in (
        {"max_tree_depth": 0},
        {"max_tree_depth": 21},
        {"step_size": 0.0},
        {"inverse_mass_matrix": "prior"},
        {"inverse_mass_matrix": [1.0]},
        {"target_accept": 1.0},
        {"divergence_threshold": -1.0},
    ):
        with pytest.raises(ValueError, match=rf"^\[NUTS\] .*{next(iter(wrong))}.*"):
            NUTS(plain, **wrong)
    with pytest.raises(TypeError, match="NUTS"):
        NUTS(3)
    with pytest.raises(ValueError, match=r"^\[NUTS.sample\] warmup must be at least 20"):
        NUTS(plain, inverse_mass_matrix="adapt").sample(5, warmup=3, init=START)
    assert NUTS(plain).sample(5, warmup=3, init=START).state.inverse_mass_matrix is None
    runs = [NUTS(target).sample(2, warmup=w, chains=2).state.inverse_mass_matrix for w in (3, 20)]
    moved = target.marginal
    assert np.array_equal(runs[0], (moved.prior_sd**2).astype(np.float32))
    assert runs[1].shape == (2, moved.dim)
    for one in (target, plain):
        with pytest.raises(ValueError, match=r"^\[Chains\] warmup must be at least "):
            rb.Chains(NUTS(one), np.zeros(one.dim), warmup=0)
