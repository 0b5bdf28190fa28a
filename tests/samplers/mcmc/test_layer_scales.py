"""Scales of MCLMC for each array of parameters: the formula, what warmup finds, what it saves."""

import dataclasses
import itertools

import numpy as np
import pytest

import ribbit as rb
from ribbit.density import Density
from ribbit.errors import RibbitWarning
from ribbit.results.state import GradientSquares, Welford
from ribbit.samplers import MCLMC
from ribbit.samplers.mcmc.energy_tuning import OF_GRADIENTS, block_end
from ribbit.samplers.mcmc.layer_scales import LayerScales
from tests.support.stepwise import started, stepped
from tests.support.targets import Gaussian, equal, posterior, same

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")


class Grouped(Gaussian):
    """Independent normals that say which parameters belong together."""

    def __init__(self, sd, starts, **options):
        super().__init__(sd, **options)
        self.parameter_groups = np.array(starts)


def slow(variance, gradients, starts):
    """Inverse mass (C, P) of variances (C, P) and gradients (S, C, P), one array at a time."""
    steps, chains, dim = gradients.shape
    bounds = [*starts, dim]
    out = np.zeros((chains, dim))
    for c in range(chains):
        overall = np.mean(gradients[:, c] ** 2)
        for a, b in itertools.pairwise(bounds):
            seen = (b - a) * steps
            v, g = np.mean(variance[c, a:b]), np.mean(gradients[:, c, a:b] ** 2)
            g = (seen * g + 5.0 * overall) / (seen + 5.0)
            out[c, a:b] = np.sqrt(v / g)
    return out


def test_scales_are_those_of_the_formula():
    rng = np.random.default_rng(3)
    starts, dim = [0, 7, 8], 12
    gradients = rng.normal(size=(9, 2, dim)) * np.geomspace(0.1, 100.0, dim)
    variance = rng.uniform(0.01, 3.0, size=(2, dim))
    scales = LayerScales(Density(Grouped(np.ones(dim), starts), function="test"))
    found = scales.start(2)
    for one in gradients:
        found = scales.update(np, found, one)
    expected = slow(variance, gradients, starts)
    np.testing.assert_allclose(scales.inverse_mass(np, variance, found), expected, rtol=1e-12)
    assert len(np.unique(expected)) == 6


def test_scales_in_another_library_are_the_same():
    strict = pytest.importorskip("array_api_strict")
    rng = np.random.default_rng(4)
    grad, variance = rng.normal(size=(3, 9)), rng.uniform(0.1, 1.0, size=(3, 9))
    masses = []
    for xp in (np, strict):
        target = Grouped(np.ones(9), [0, 4], xp=xp)
        scales = LayerScales(Density(target, function="test"))
        found = scales.update(xp, scales.start(3), xp.asarray(grad))
        masses.append(scales.inverse_mass(xp, xp.asarray(variance), found))
        draws = MCLMC(target).sample(
            2, warmup=200, thin=1, init=xp.zeros((2, 9)), chains=2, progress=False
        )
        assert draws.settings["inverse_mass_matrix"] == "layers"
        assert draws.state.inverse_mass.shape == (2, 9)
    np.testing.assert_array_equal(*masses)


@pytest.mark.parametrize("starts", [[1, 2], [0, 2, 2], [0, 3], [0, 4], []])
def test_groups_that_are_none_are_refused(starts):
    with pytest.raises(
        ValueError, match=r"\[MCLMC\] expected the target's parameter_groups to asc"
    ):
        MCLMC(Grouped(np.ones(3), starts))


@pytest.mark.parametrize("bad", [0.0, np.inf, np.nan])
def test_what_says_nothing_has_no_scale(bad):
    scales = LayerScales(Density(Grouped(np.ones(3), [0, 2]), function="test"))
    found = GradientSquares(np.full((2, 2), bad), 4)
    assert np.isnan(scales.inverse_mass(np, np.ones((2, 3)), found)).all()
    moved = scales.inverse_mass(
        np, np.array([[0.0] * 3, [1.0] * 3]), GradientSquares(np.ones((2, 2)), 4)
    )
    assert np.isnan(moved[0]).all()
    assert np.isfinite(moved[1]).all()


def test_a_chain_that_does_not_move_keeps_its_scales():
    sampler = MCLMC(Grouped(np.ones(3), [0, 2]))
    state = started(sampler, np.zeros((2, 3)), warmup=400)
    before = np.array([[4.0, 4.0, 9.0], [1.0, 1.0, 25.0]])
    state = dataclasses.replace(state, inverse_mass=before)
    still = Welford.start(np, (2, 3)).update(np, np.ones((2, 3))).update(np, np.ones((2, 3)))
    found = sampler._moves.tuning.inverse_mass(still, GradientSquares(np.ones((2, 2)), 2), state)
    np.testing.assert_array_equal(found, before)


def test_of_a_gaussian_scales_are_the_sds_of_each_group():
    sd = np.repeat([0.02, 1.0, 0.3], [10, 60, 20])
    target = Grouped(sd, [0, 10, 70])
    options = {"init": np.zeros(90), "chains": 3, "seed": 1, "progress": False}
    layers = MCLMC(target).sample(40, warmup=8000, **options)
    assert layers.settings["inverse_mass_matrix"] == "layers"
    found = layers.state.inverse_mass
    assert found.shape == (3, 90)
    np.testing.assert_allclose(np.sqrt(found), np.broadcast_to(sd, found.shape), rtol=0.5)
    # whitened coordinates are round: their norm is that of a standard normal
    np.testing.assert_allclose(layers.state.decoherence_length, np.sqrt(90), rtol=0.35)
    # the control: with one step for all a direction lasts many times as many steps
    ones = MCLMC(target, inverse_mass_matrix=None).sample(40, warmup=8000, **options)
    assert ones.state.inverse_mass is None

    def steps(draws):
        return draws.state.decoherence_length / draws.state.step_size

    assert np.all(steps(ones) > 3.0 * steps(layers))


def test_a_network_has_a_scale_for_each_array():
    target = posterior()
    draws = MCLMC(target).sample(5, warmup=400, chains=2, progress=False)
    groups = target.parameter_groups.tolist()
    assert groups == [p.offset for p in target.model.parameters] + (
        [target.model.dim] if target.likelihood.learns_noise else []
    )
    mass = draws.state.inverse_mass
    for chain in mass:
        values = [np.unique(part) for part in np.split(chain, groups[1:])]
        assert all(part.size == 1 for part in values)
        assert len(np.unique(np.concatenate(values))) == len(groups)


def test_groups_of_learned_noise_of_learned_scales_and_of_an_integrated_layer():
    x = np.linspace(-1, 1, 30)[:, None]
    model = rb.mlp(1, (3, 2), 1)
    ends = [0, 3, 6, 12, 14, 16]  # weights and biases of three layers: 3 + 3 + 6 + 2 + 2 + 1
    learned = rb.Posterior(model, x, x, prior=rb.Normal(1.0), likelihood=rb.Gaussian())
    assert learned.parameter_groups.tolist() == [*ends, 17]
    known = rb.Posterior(model, x, x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1))
    assert known.parameter_groups.tolist() == ends
    scaled = rb.Posterior(
        model, x, x, prior=rb.Normal(rb.HalfNormal(1.0)), likelihood=rb.Gaussian(0.1)
    )
    logs = len([name for name in scaled.unravel(scaled.init(seed=0)) if name.startswith("log_sc")])
    assert logs > 0
    assert scaled.parameter_groups.tolist()[:6] == ends
    assert scaled.parameter_groups.size == 6 + logs
    whole = rb.Posterior(
        model, x, x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(), marginalize="last_layer"
    )
    assert whole.integrated
    assert whole.parameter_groups.tolist() == [0, 3, 6, 12, 14]
    assert whole.dim == 15


def test_layers_are_the_default_where_step_and_length_are_found():
    target = posterior()
    assert MCLMC(target).settings["inverse_mass_matrix"] == "layers"
    for options in ({"step_size": 0.01}, {"decoherence_length": 1.0}, {"adjusted": True}):
        assert MCLMC(target, **options).settings["inverse_mass_matrix"] is None
        said = MCLMC(target, inverse_mass_matrix="layers", **options)
        assert said.settings["inverse_mass_matrix"] == "layers"
    assert MCLMC(Gaussian(np.ones(3))).settings["inverse_mass_matrix"] is None
    with pytest.raises(ValueError, match=r"\[MCLMC\] expected a target with parameter_groups"):
        MCLMC(Gaussian(np.ones(3)), inverse_mass_matrix="layers")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("adjusted", [False, True])
def test_a_run_cut_in_warmup_is_the_same(adjusted, dtype):
    target = posterior(dtype)
    warmup, cuts = (400, (3, 30, 333)) if not adjusted else (40, (3, 9, 33))
    options = {"warmup": warmup, "seed": 5, "progress": False, "thin": 1}
    whole = MCLMC(target, adjusted=adjusted, inverse_mass_matrix="layers").sample(
        6, chains=3, **options
    )
    for cut in cuts:
        sampler = MCLMC(target, adjusted=adjusted, inverse_mass_matrix="layers")
        state = started(sampler, target.init(seed=5, chains=3), seed=5, warmup=warmup)
        state, _ = stepped(sampler, state, num_steps=cut)
        assert state.adaptation.gradients is not None
        state, _ = stepped(sampler, state, num_steps=warmup - cut)
        assert state.adaptation is None
        assert same(state.inverse_mass, whole.state.inverse_mass)
        state, _ = stepped(sampler, state, num_steps=6)
        assert same(state.position, whole.state.position)
    # chains alone
    for chain in range(3):
        alone = MCLMC(target, adjusted=adjusted, inverse_mass_matrix="layers").sample(
            6, chains=[chain], **options
        )
        equal(whole, alone, chains=slice(chain, chain + 1))
        assert same(whole.state.inverse_mass[chain : chain + 1], alone.state.inverse_mass)


def test_scales_do_not_depend_on_the_chains_beside():
    rng = np.random.default_rng(6)
    scales = LayerScales(Density(Grouped(np.ones(60), range(0, 60, 5)), function="test"))
    variance = rng.gamma(0.3, size=(40, 60))
    found = GradientSquares(rng.gamma(0.3, size=(40, 12)), 7)
    whole = scales.inverse_mass(np, variance, found)
    for some in (slice(3, 4), slice(0, 2), slice(10, 37)):
        part = GradientSquares(found.sums[some], 7)
        np.testing.assert_array_equal(scales.inverse_mass(np, variance[some], part), whole[some])


@pytest.mark.parametrize("adjusted", [False, True])
def test_a_warmup_goes_on_from_a_file(adjusted, tmp_path):
    sampler = MCLMC(posterior(), adjusted=adjusted, inverse_mass_matrix="layers")
    options = {"warmup": 20_000 if not adjusted else 200, "seed": 5, "progress": False}
    start = posterior().init(seed=5, chains=3)
    state = started(sampler, start, seed=5, warmup=options["warmup"])
    state, _ = stepped(sampler, state, num_steps=5_000 if not adjusted else 30)
    with pytest.warns(RibbitWarning, match="max_seconds"):
        first = sampler.sample(4, resume=state, max_seconds=1e-9, progress=False)
    assert first.state.adaptation.gradients.count > 0
    first.save(tmp_path / "draws")
    found = rb.load(tmp_path / "draws")
    assert same(found.state.adaptation.gradients.sums, first.state.adaptation.gradients.sums)
    assert found.state.adaptation.gradients.count == first.state.adaptation.gradients.count
    whole = sampler.sample(4, init=start, **options)
    rest = sampler.sample(4, resume=found, progress=False)
    equal(whole, rest)
    assert same(whole.state.inverse_mass, rest.state.inverse_mass)


def test_a_step_or_length_of_other_scales_is_refused():
    target = posterior()
    draws = MCLMC(target).sample(2, warmup=400, chains=2, progress=False)
    for options in (
        {"step_size": 0.01},
        {"decoherence_length": 1.0},
        {"inverse_mass_matrix": None},
    ):
        with pytest.raises(ValueError, match=r"\[MCLMC.sample\] expected a state whose step and"):
            MCLMC(target, **options).sample(2, resume=draws)
    both = MCLMC(target, step_size=0.01, decoherence_length=1.0)
    assert both.sample(2, resume=draws, progress=False).state.inverse_mass is None
    mine = MCLMC(target, inverse_mass_matrix=np.full(target.dim, 0.5))
    again = mine.sample(2, warmup=400, chains=2, progress=False)
    assert len(mine.sample(2, resume=again, progress=False)) == 2


def test_sums_of_another_network_are_refused():
    sampler = MCLMC(posterior())
    state = started(sampler, posterior().init(seed=1, chains=2), warmup=400)
    other = dataclasses.replace(state.adaptation, gradients=GradientSquares(np.ones((2, 3)), 1))
    with pytest.raises(ValueError, match=r"\[MCLMC\] expected sums of squared gradients \(2, "):
        stepped(sampler, dataclasses.replace(state, adaptation=other))


@pytest.mark.parametrize("warmup", [100, 500, 4097])
def test_windows_end_where_blocks_do(warmup):
    ends = {block_end(step, warmup, OF_GRADIENTS) for step in range(warmup)}
    assert all(int(last * warmup) in ends | {0} for _, last in OF_GRADIENTS)
