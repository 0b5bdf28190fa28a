"""Matrices of MCLMC for the inputs of each layer: steps, what warmup finds, what it saves."""

import dataclasses
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.threads import num_threads
from ribbit.density import Density
from ribbit.results.state import InputProducts, MicrocanonicalState
from ribbit.samplers import MCLMC
from ribbit.samplers.mcmc.input_scales import InputScales
from ribbit.samplers.mcmc.isokinetic import Dynamics, Path
from ribbit.targets.spec import blocks_of
from tests.oracle import isokinetic_reference as reference
from tests.oracle.reference import normal
from tests.support.stepwise import started, stepped
from tests.support.targets import Foreign, equal, posterior, same

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")

CHAINS = 3
NONE = np.zeros(0)


def wide(dtype=np.float64):
    """More than one chunk of 2,048 parameters, and a block in two of them."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20, 3))
    return rb.Posterior(
        rb.mlp(3, (60, 40), 2, activation="tanh"),
        x,
        x[:, 0],
        prior=rb.Normal(1.0),
        likelihood=rb.HeteroscedasticGaussian(),
        dtype=dtype,
    )


def mixing_of(target, chains=CHAINS, seed=2):
    """Symmetric matrices (C, M), not far from the identity."""
    rng, parts = np.random.default_rng(seed), []
    for a in target.parameter_blocks[:, 1]:
        some = rng.normal(size=(chains, a, a)) / a**0.5
        parts.append((np.eye(a) + 0.3 * (some + some.transpose(0, 2, 1))).reshape(chains, -1))
    return np.concatenate(parts, axis=1).astype(target.dtype)


def dense(target, mixing, scale):
    """Matrix (P, P) of one chain: theta = matrix @ z."""
    out, at = np.eye(target.dim), 0
    for first, a, b in target.parameter_blocks.tolist():
        matrix = mixing[at : at + a * a].reshape(a, a)
        out[first : first + a * b, first : first + a * b] = np.kron(matrix, np.eye(b))
        at += a * a
    return scale[:, None] * out


def run(target, steps, integrator="leapfrog", *, mixing=None, scale=None, native=True):
    density = Density(target, function="test")
    rng = np.random.default_rng(5)
    q = target.init(seed=1, chains=CHAINS)
    u = rng.normal(size=q.shape).astype(target.dtype)
    terms, grad = density.terms_and_grad(q, None)
    dynamics = Dynamics(density, integrator)
    if not native:
        dynamics._native = None
    return dynamics.run(
        Path(q, u, grad, terms, NONE, NONE),
        seed=5,
        chains=np.arange(CHAINS, dtype=np.uint32),
        first_step=3,
        step_size=np.full(CHAINS, 0.05),
        decoherence_length=np.full(CHAINS, 3.0),
        num_steps=np.array(steps),
        inverse_mass=None if scale is None else scale**2,
        turns=True,
        guard=None,
        mixing=mixing,
    )


# --- steps ---------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("integrator", reference.SCHEMES)
@pytest.mark.parametrize("make", [posterior, wide])
def test_steps_are_those_of_the_oracle(make, integrator):
    """Scales that are the same within each block, as warmup finds them: then both commute."""
    target = make(np.float64)
    mixing, count = mixing_of(target), 9
    scale = np.ones((CHAINS, target.dim))
    for k, (first, a, b) in enumerate(target.parameter_blocks.tolist()):
        scale[:, first : first + a * b] = 0.6 + 0.3 * k
    start = target.init(seed=1, chains=CHAINS)
    directions = np.random.default_rng(5).normal(size=start.shape)
    for native in (True, False):
        found = run(target, [count] * CHAINS, integrator, mixing=mixing, scale=scale, native=native)
        for c in range(CHAINS):
            q, u = start[c], directions[c] / np.linalg.norm(directions[c])
            whitening = dense(target, mixing[c], scale[c])

            def gradient(at):
                return target.value_and_grad(at[None])[1][0]

            for i in range(count):
                q, u, _ = reference.step(
                    q, u, gradient, 0.05, scale=whitening, integrator=integrator
                )
                z = normal(target.dim, seed=5, step=3 + i, chain=c, purpose=reference.REFRESH)
                u = reference.refresh(u, z, 0.05, 3.0)
            np.testing.assert_allclose(found.position[c], q, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("integrator", reference.SCHEMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [posterior, wide])
def test_an_identity_changes_no_bit_and_nor_do_threads(make, dtype, integrator):
    target, steps = make(dtype), [7, 9, 9]
    ones = InputScales(Density(target, function="test")).identity(CHAINS).astype(dtype)
    plain, found = run(target, steps, integrator), run(target, steps, integrator, mixing=ones)
    for a, b in zip(plain, found, strict=True):
        assert same(a, b)
    mixing = mixing_of(target)
    mixed = run(target, steps, integrator, mixing=mixing)
    assert not same(mixed.position, found.position)
    threads = num_threads()
    try:
        for count in (1, 2, 3):
            rb.set_num_threads(count)
            for a, b in zip(mixed, run(target, steps, integrator, mixing=mixing), strict=True):
                assert same(a, b)
    finally:
        rb.set_num_threads(threads)


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([[0, 4, 9], [30, 10, 1]], "ascending"),
        ([[0, 4, 12]], "ascending"),
        ([[-1, 4, 9]], "ascending"),
        ([[0, 0, 9]], "ascending"),
    ],
)
def test_native_blocks_lie_in_the_position(blocks, text):
    target = posterior(np.float64)
    assert target.dim == 46
    q = target.init(seed=1, chains=1)
    terms, grad = Density(target, function="test").terms_and_grad(q, None)
    given = np.array(blocks)
    matrices = np.ones((1, int((given[:, 1] ** 2).sum())))
    with pytest.raises(ValueError, match=text):
        target.isokinetic(
            *(q, grad, grad, terms),
            seed=0,
            chains=np.zeros(1, np.uint32),
            first_step=0,
            integrator="leapfrog",
            step_size=np.full(1, 0.1),
            decoherence_length=np.full(1, 1.0),
            num_steps=np.ones(1, np.int64),
            blocks=given,
            mixing=matrices,
        )


# --- blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "shape", "expected"),
    [
        ([rb.Dense(5), rb.Dense(2, bias=False)], (3,), [[0, 4, 5], [20, 5, 2]]),
        ([rb.Dense(5), rb.LayerNorm(), rb.Dense(2)], (3,), [[0, 4, 5], [30, 6, 2]]),
        ([rb.Dense(2)], (65,), []),
        ([rb.Dense(2)], (64,), [[0, 65, 2]]),  # with the bias
        ([rb.Dense(2, bias=False)], (64,), [[0, 64, 2]]),
        ([rb.Dense(2, bias=False)], (1,), []),
        ([rb.Conv2D(4, 3), rb.Flatten(), rb.Dense(2)], (4, 4, 2), [[0, 19, 4], [76, 17, 2]]),
        ([rb.Conv2D(4, 1, groups=2), rb.Flatten(), rb.Dense(2)], (2, 2, 4), [[12, 17, 2]]),
        ([rb.Embedding(5, 3), rb.LSTM(4)], (6,), [[15, 8, 16]]),
    ],
)
def test_blocks_are_weights_and_biases_of_one_layer(layers, shape, expected):
    model = rb.Model(layers, input_shape=shape)
    assert blocks_of(model.parameters).tolist() == expected


# --- what warmup finds ---------------------------------------------------------------------------


class Correlated:
    """Normals of `units` units with one covariance (a, a) for each block, and two numbers more."""

    array_namespace, dtype = np, np.dtype(np.float64)

    def __init__(self, covariances, units):
        self.units, sizes = units, [len(c) * units for c in covariances]
        self.precisions = [np.linalg.inv(c) for c in covariances]
        starts = np.cumsum([0, *sizes])
        self.dim = int(starts[-1]) + 2
        self.parameter_groups = starts
        self.parameter_blocks = np.array(
            [[s, len(c), units] for s, c in zip(starts[:-1], covariances, strict=True)]
        )

    def value_and_grad(self, theta, rows=None):
        grad = -4.0 * theta
        blocks = np.array(self.parameter_blocks).tolist()
        for (first, a, b), precision in zip(blocks, self.precisions, strict=True):
            own = theta[:, first : first + a * b].reshape(-1, a, b)
            grad[:, first : first + a * b] = -(precision @ own).reshape(-1, a * b)
        return 0.5 * np.sum(theta * grad, axis=1), grad


def covariance(a, condition, seed):
    vectors, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(a, a)))
    return (vectors * np.geomspace(1.0, condition, a) / condition**0.5) @ vectors.T


@pytest.mark.full
def test_of_a_gaussian_the_matrices_are_the_covariances():
    covariances = [covariance(4, 30.0, 1), 0.01 * covariance(6, 100.0, 2)]
    target = Correlated(covariances, units=8)
    alone = {"step_limit": None}  # which here is shorter
    draws = MCLMC(target, inverse_mass_matrix="inputs", **alone).sample(
        40, warmup=20_000, init=np.zeros((2, target.dim)), chains=2, seed=3, progress=False
    )
    state, at = draws.state, 0
    for (first, a, b), expected in zip(target.parameter_blocks.tolist(), covariances, strict=True):
        for c in range(2):
            scale = state.inverse_mass[c, first]
            assert (state.inverse_mass[c, first : first + a * b] == scale).all()
            root = state.mixing[c, at : at + a * a].reshape(a, a)
            np.testing.assert_allclose(root, root.T, atol=1e-12)
            assert np.trace(root @ root) == pytest.approx(a)
            whitened = np.linalg.solve(root, np.linalg.solve(root, expected).T) / scale
            # Of conditions of 30 and 100; a window has some hundred vectors, which go together.
            assert np.linalg.cond(whitened) < 2.0
        at += a * a
    plain = MCLMC(target, inverse_mass_matrix="layers", **alone).sample(
        40, warmup=20_000, init=np.zeros((2, target.dim)), chains=2, seed=3, progress=False
    )
    # A step along all directions alike: with one scale for each block it is as short as the
    # narrowest of a block wants it.
    assert (draws.stats["step_size"][:, -1] > 2.0 * plain.stats["step_size"][:, -1]).all()


def test_moments_are_those_of_the_formula():
    target = Correlated([covariance(3, 10.0, 1)], units=5)
    scales = InputScales(Density(target, function="test"))
    rng = np.random.default_rng(7)
    positions, grads = rng.normal(size=(2, 30, 2, target.dim))
    found, mean = scales.start(2), np.zeros((2, target.dim))
    for k, (q, g) in enumerate(zip(positions, grads, strict=True)):
        found = scales.update(found, mean, q, g)
        mean = mean + (q - mean) / (k + 1)
    for c in range(2):
        own = (positions[:, c] - positions[:, c].mean(axis=0))[:, :15].reshape(30, 3, 5)
        expected = np.einsum("nik,njk->ij", own, own) / 5.0
        np.testing.assert_allclose(found.positions[c].reshape(3, 3), expected, rtol=1e-10)
        slopes = grads[:, c, :15].reshape(30, 3, 5)
        expected = np.einsum("nik,njk->ij", slopes, slopes) / 5.0
        np.testing.assert_allclose(found.gradients[c].reshape(3, 3), expected, rtol=1e-10)


def test_a_geometric_mean_has_the_right_law():
    """Of V and the inverse of R: M R M = V; that of a Gaussian is its covariance."""
    target = Correlated([covariance(4, 10.0, 1)], units=50)
    scales = InputScales(Density(target, function="test"))
    v, r = covariance(4, 20.0, 3), covariance(4, 5.0, 4)
    count = 10**7  # vectors beyond which none is doubted
    found = InputProducts((v * (count - 1.0)).reshape(1, -1), (r * count).reshape(1, -1), count)
    variance, mass = np.ones((1, target.dim)), np.ones((1, target.dim))
    white = scales.whitening(found, variance, mass)
    root = white.mixing.reshape(4, 4) * white.inverse_mass[0, 0] ** 0.5
    metric = root @ root
    np.testing.assert_allclose(metric @ r @ metric, v, rtol=1e-5, atol=1e-6)
    inverse = np.linalg.inv(root)
    expected = 50 * np.trace(inverse @ v @ inverse) + 2
    assert white.spread[0] ** 2 == pytest.approx(expected, rel=1e-9)
    again = scales.spread(found, variance, white.inverse_mass, white.mixing)
    np.testing.assert_allclose(again, white.spread, rtol=1e-9)
    same_place = white.inverse_mass, white.mixing
    assert scales.growth(same_place, same_place)[0] == pytest.approx(1.0)
    double = 4.0 * white.inverse_mass, white.mixing
    assert scales.growth(same_place, double)[0] == pytest.approx(2.0)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_units_of_parameters_change_nothing(unit):
    """Of R, whose unit is that of 1 / theta^2, a root is taken, too."""
    target = Correlated([covariance(4, 10.0, 1)], units=50)
    scales = InputScales(Density(target, function="test"))
    v, count = covariance(4, 20.0, 3) * unit**2, 10**7
    r = np.linalg.inv(v)
    found = InputProducts((v * (count - 1.0)).reshape(1, -1), (r * count).reshape(1, -1), count)
    white = scales.whitening(found, np.ones((1, target.dim)), np.ones((1, target.dim)))
    root = white.mixing.reshape(4, 4) * white.inverse_mass[0, 0] ** 0.5
    np.testing.assert_allclose(root @ root / unit**2, v / unit**2, rtol=1e-4, atol=1e-5)


def test_a_chain_that_has_not_moved_keeps_its_scales():
    target = Correlated([covariance(3, 10.0, 1)], units=5)
    scales = InputScales(Density(target, function="test"))
    nothing = dataclasses.replace(scales.start(2), count=9)
    mass = np.full((2, target.dim), 0.5)
    white = scales.whitening(nothing, np.ones((2, target.dim)), mass)
    assert same(white.inverse_mass, mass)
    assert same(white.mixing, scales.identity(2))


# --- runs ----------------------------------------------------------------------------------------


def inputs(target):
    return MCLMC(target, inverse_mass_matrix="inputs")


@pytest.mark.parametrize(
    ("likelihood", "outputs", "floor"),
    [
        (rb.Gaussian(0.3), 1, 0.0),
        (rb.Gaussian(), 1, 0.0),
        (rb.HeteroscedasticGaussian(), 2, 0.0),
        (rb.HeteroscedasticGaussian(min_sd=0.049), 2, 0.049),
        (rb.HeteroscedasticGaussian(min_sd=0.05), 2, 0.05),
        (rb.HeteroscedasticGaussian(min_sd=3.0), 2, 3.0),
        (rb.Categorical(), 2, 0.0),
    ],
    ids=repr,
)
def test_inputs_are_mixed_by_default_where_the_noise_has_a_floor(likelihood, outputs, floor):
    x, y = np.linspace(-1.0, 1.0, 12)[:, None], np.arange(12) % 2
    target = rb.Posterior(
        rb.mlp(1, (3,), outputs), x, y, prior=rb.Normal(1.0), likelihood=likelihood
    )
    assert target.noise_floor == floor
    options = {"warmup": 100, "chains": 1, "progress": False}
    draws, mixes = MCLMC(target).sample(2, **options), floor >= 0.05
    assert draws.settings["inverse_mass_matrix"] == ("inputs" if mixes else "layers")
    assert (draws.state.mixing is not None) == mixes
    said = MCLMC(target, inverse_mass_matrix="layers" if mixes else "inputs")
    assert (said.sample(2, **options).state.mixing is None) == mixes


def test_a_floor_without_blocks_or_beside_a_stated_step_has_no_matrices():
    floor = rb.HeteroscedasticGaussian(min_sd=0.1)
    x = np.eye(65)
    one = rb.Posterior(rb.mlp(65, (3,), 2), x, x[:, 0], prior=rb.Normal(1.0), likelihood=floor)
    assert MCLMC(one).settings["inverse_mass_matrix"] == "inputs"
    for options in ({"step_size": 0.01}, {"decoherence_length": 1.0}, {"adjusted": True}):
        assert MCLMC(one, **options).settings["inverse_mass_matrix"] is None
    # Begun without them, a run goes on with what its warmup found.
    options = {"chains": 2, "progress": False}
    layers = MCLMC(one, inverse_mass_matrix="layers")
    begun = layers.sample(2, warmup=100, **options)
    goes_on = MCLMC(one).sample(3, resume=begun, progress=False)
    equal(layers.sample(3, resume=begun, progress=False), goes_on)
    assert goes_on.state.mixing is None
    wide = rb.Posterior(
        rb.Model([rb.Dense(2)], input_shape=(65,)),
        x,
        x[:, 0],
        prior=rb.Normal(1.0),
        likelihood=floor,
    )
    assert MCLMC(wide).settings["inverse_mass_matrix"] == "layers"


@pytest.mark.parametrize(("floor", "found"), [(None, "layers"), (0, "layers"), (1, "inputs")])
def test_floors_of_foreign_targets(floor, found):
    target = Correlated([covariance(3, 10.0, 1)], units=5)
    target.noise_floor = floor
    assert MCLMC(target).settings["inverse_mass_matrix"] == found
    target.noise_floor = np.zeros(2)
    with pytest.raises(TypeError, match=r"\[MCLMC\] expected noise_floor"):
        MCLMC(target)


@pytest.mark.parametrize("warmup", [100, 101, 1000, 3000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_run_cut_in_warmup_is_the_same(warmup, dtype):
    sampler = inputs(posterior(dtype))
    whole = sampler.sample(4, warmup=warmup, thin=3, chains=2, seed=4, progress=False)
    q = sampler._density.target.init(seed=4, chains=2)
    state = started(sampler, q, seed=4, warmup=warmup)
    for count in (1, 13, warmup // 2, warmup - warmup // 2 - 14, 3):
        state, _ = stepped(sampler, state, num_steps=count)
    assert same(state.position, whole.positions[:, 0])
    assert same(state.mixing, whole.state.mixing)
    assert isinstance(state, MicrocanonicalState)


def test_chains_do_not_depend_on_those_beside():
    sampler = inputs(posterior())
    several = sampler.sample(5, warmup=400, chains=3, seed=4, progress=False)
    alone = sampler.sample(5, warmup=400, chains=[1], seed=4, progress=False)
    equal(several, alone, slice(1, 2))
    assert same(several.state.mixing[1:2], alone.state.mixing)


@pytest.mark.parametrize("done", [0, 37, 250])
def test_a_warmup_goes_on_from_a_file(done, tmp_path):
    sampler = inputs(posterior())
    whole = sampler.sample(6, warmup=300, thin=2, chains=2, seed=1, progress=False)
    state = started(sampler, sampler._density.target.init(seed=1, chains=2), seed=1, warmup=300)
    if done:
        state, _ = stepped(sampler, state, num_steps=done)
    short = dataclasses.replace(
        sampler.sample(1, warmup=300, thin=2, chains=2, seed=1, progress=False), state=state
    )
    short.save(tmp_path / "draws.npz")
    loaded = rb.load(tmp_path / "draws.npz").state
    assert (loaded.adaptation.products is None) == (state.adaptation.products is None)
    left = 302 - done
    assert same(stepped(sampler, loaded, num_steps=left)[0].position, whole.positions[:, 0])


def test_states_of_other_scales_are_refused():
    target = posterior()
    mixed = inputs(target).sample(2, warmup=200, chains=2, progress=False).state
    for mass in ("auto", "layers", "adapt", None, "prior"):
        with pytest.raises(ValueError, match="got one of other scales"):
            MCLMC(target, inverse_mass_matrix=mass).sample(2, resume=mixed, progress=False)
    both = {"step_size": 0.05, "decoherence_length": 0.5}
    state, _ = stepped(MCLMC(target, **both), mixed)
    assert state.mixing is None
    # One of scales for arrays alone keeps them after warmup.
    layers = MCLMC(target, inverse_mass_matrix="layers")
    before = layers.sample(2, warmup=200, chains=2, progress=False)
    goes_on = inputs(target).sample(3, resume=before, progress=False)
    equal(layers.sample(3, resume=before, progress=False), goes_on)
    other = dataclasses.replace(mixed, mixing=mixed.mixing[:, 1:])
    with pytest.raises(
        ValueError, match=r"a state with matrices .* of the target's parameter_blocks"
    ):
        stepped(inputs(target), other)
    early = started(inputs(target), target.init(seed=1, chains=2), warmup=200)
    early, _ = stepped(inputs(target), early, num_steps=20)
    sums = early.adaptation.products
    sums = dataclasses.replace(sums, gradients=sums.gradients[:, 1:])
    adaptation = dataclasses.replace(early.adaptation, products=sums)
    with pytest.raises(ValueError, match="a state with matrices"):
        stepped(inputs(target), dataclasses.replace(early, adaptation=adaptation))


@pytest.mark.parametrize("done", [1, 595, 599, 650, 799, 900])
@pytest.mark.parametrize("mass", [None, "prior", "adapt", "layers"])
def test_a_warmup_begun_with_other_scales_goes_on(mass, done):
    """Sums of a window begin together; where none is renewed any more, scales stay."""
    target = posterior(np.float64)
    before = MCLMC(target, inverse_mass_matrix=mass)
    state = started(before, target.init(seed=4, chains=2), seed=4, warmup=1000)
    state, _ = stepped(before, state, num_steps=done)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end, _ = stepped(inputs(target), state, num_steps=1000 - done + 5)
    assert np.isfinite(end.position).all()
    if done < 600:
        ones = InputScales(Density(target, function="test")).identity(2)
        assert (end.mixing is None or same(end.mixing, ones)) == (done >= 595)
    else:
        assert end.mixing is None
        if mass is None:
            assert end.inverse_mass is None
        else:
            assert same(end.inverse_mass, state.inverse_mass)


def test_states_with_matrices_keep_scales_where_step_and_length_are_given():
    mixed = inputs(posterior()).sample(2, warmup=200, chains=2, progress=False).state
    both = {"step_size": 0.05, "decoherence_length": 0.5}
    for mass in ("layers", "adapt"):
        state, _ = stepped(MCLMC(posterior(), inverse_mass_matrix=mass, **both), mixed)
        assert state.mixing is None
        assert same(state.inverse_mass, mixed.inverse_mass)


@pytest.mark.parametrize("change", ["none", "one of a block", "a chain less"])
def test_scales_that_do_not_commute_with_matrices_are_refused(change):
    sampler = inputs(posterior())
    mixed = sampler.sample(2, warmup=200, chains=2, progress=False).state
    mass = {"none": None, "a chain less": mixed.inverse_mass[0]}.get(change, mixed.inverse_mass)
    if change == "one of a block":
        mass = mass.copy()
        mass[1, 1] *= 1.5
    with pytest.raises(ValueError, match="same within each of the target's parameter_blocks"):
        stepped(sampler, dataclasses.replace(mixed, inverse_mass=mass))


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([[0.0, 3.0, 5.0]], "as .B, 3. ints, got float64"),
        ([0, 3, 5], "as .B, 3. ints, got int64 .3,."),
        ([[0, 3]], "as .B, 3. ints, got int64 .1, 2."),
        ([[0, 3, 6]], "to ascend from 0, below P = 17"),
    ],
)
def test_blocks_of_a_target_are_checked(blocks, text):
    target = Correlated([covariance(3, 10.0, 1)], units=5)
    target.parameter_blocks = blocks
    with pytest.raises(ValueError, match=text):
        inputs(target)


def test_blocks_may_be_a_list():
    target = Correlated([covariance(3, 10.0, 1)], units=5)
    options = {"warmup": 200, "chains": 2, "init": np.zeros((2, 17)), "progress": False}
    whole = inputs(target).sample(3, **options)
    target.parameter_blocks = target.parameter_blocks.tolist()
    equal(whole, inputs(target).sample(3, **options))


def test_what_has_no_blocks_is_refused():
    with pytest.raises(ValueError, match="expected a target with parameter_blocks"):
        MCLMC(Foreign(posterior()), inverse_mass_matrix="inputs")
    wide_inputs = rb.Posterior(
        rb.mlp(100, (70,), 1),
        np.ones((4, 100)),
        np.ones(4),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(1.0),
    )
    with pytest.raises(ValueError, match="got no layer of at most 64 inputs: 'layers'"):
        inputs(wide_inputs)
    other = Correlated([covariance(3, 10.0, 1)], units=5)
    other.array_namespace = pytest.importorskip("array_api_strict")
    with pytest.raises(ValueError, match="got arrays of another library than NumPy"):
        inputs(other)
    with pytest.raises(ValueError, match="with adjusted=True, got 'inputs'"):
        MCLMC(posterior(), adjusted=True, inverse_mass_matrix="inputs")
