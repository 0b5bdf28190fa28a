"""What the C library computes is what Python computes, bit for bit."""

import ctypes as c
import json

import numpy as np
import pytest

import ribbit as rb
from tests.support import c_library as lib
from tests.support.c_library import CError, call

SEED = 7
# Bits of a few draws are compared, whatever they have converged to.
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")


def regression(dtype=np.float32, outputs=1, **options):
    """A small network on a wave."""
    x = np.linspace(-1, 1, 70)[:, None] * np.array([1.0, 0.5, -1.0])
    y = np.sin(3 * x[:, 0]) if outputs == 1 else np.sin(x[:, :1] * np.arange(1, outputs + 1))
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3), **options}
    return rb.Posterior(rb.mlp(3, (9, 7), outputs), x, y, dtype=dtype, **options)


def images(dtype=np.float32):
    """Convolution, norms, pooling, a residual, labels."""
    layers = [
        rb.Conv2D(4, 3, padding="same"),
        rb.FilterResponseNorm(),
        rb.Residual([rb.Conv2D(4, 3, padding="same"), rb.Activation("silu")]),
        rb.MaxPool2D(2),
        rb.Flatten(),
        rb.Dense(3),
    ]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 6, 6, 2))
    model = rb.Model(layers, input_shape=(6, 6, 2))
    prior = {"*.bias": rb.Laplace(0.5), "*": rb.Normal(1.0)}
    return rb.Posterior(
        model, x, rng.integers(0, 3, 20), prior=prior, likelihood=rb.Categorical(), dtype=dtype
    )


def sentences(dtype=np.float32):
    """Embedding and LSTM, counts."""
    rng = np.random.default_rng(1)
    model = rb.Model([rb.Embedding(11, 4), rb.LSTM(5), rb.Dense(1)], input_shape=(6,))
    x = rng.integers(0, 11, (25, 6))
    return rb.Posterior(
        model, x, rng.poisson(2.0, 25), prior=rb.StudentT(4.0, 0.8), likelihood=rb.Poisson(),
        dtype=dtype, temperature=0.5,
    )  # fmt: skip


TARGETS = {
    "mlp": regression,
    "mlp, float64": lambda: regression(np.float64),
    "learned noise": lambda: regression(likelihood=rb.Gaussian(), likelihood_temperature=0.5),
    "centred": lambda: regression(prior=rb.Normal(0.7, mean=0.1)),
    "student": lambda: regression(likelihood=rb.StudentTNoise(4.0, 0.2)),
    "noise of each output": lambda: regression(outputs=2, likelihood=rb.Gaussian()),
    "noise of all outputs": lambda: regression(outputs=2, likelihood=rb.Gaussian(per_output=False)),
    "known noises": lambda: regression(outputs=2, likelihood=rb.StudentTNoise(4.0, [0.1, 0.6])),
    "images": images,
    "sentences": sentences,
    "sentences, float64": lambda: sentences(np.float64),
}


@pytest.fixture(params=TARGETS)
def target(request):
    """One target of each kind."""
    return TARGETS[request.param]()


def test_starts_values_and_trajectories(target):
    ours = lib.posterior(target)
    chains = np.array([3, 0, 9], np.uint32)
    position = np.empty((3, target.dim), target.dtype)
    call("target_start", ours.value, SEED, chains, 3, position)
    assert np.array_equal(position, target.init(SEED, chains))

    terms, grad = np.empty((3, 2)), np.empty_like(position)
    call("value_and_grad", ours.value, position, 3, None, 0, terms, grad, None)
    expected = target.terms_and_grad(position)
    assert np.array_equal(terms, expected[0])
    assert np.array_equal(grad, expected[1])

    rows = np.array([5, 1, 1, 17], np.int64)
    call("value_and_grad", ours.value, position, 3, rows, 4, terms, grad, None)
    value, slope = target.value_and_grad(position, rows)
    assert np.array_equal(terms.sum(axis=1), value)
    assert np.array_equal(grad, slope)

    momentum = rb.random.normal((3, target.dim), seed=1, dtype=target.dtype)
    steps, eps = np.array([3, 1, 11], np.int64), np.array([0.01, 0.02, 0.005])
    mass = np.linspace(0.5, 2.0, target.dim).astype(target.dtype)
    grad = target.terms_and_grad(position)[1]
    end = target.leapfrog(position, momentum, grad, eps, steps, inverse_mass=mass)
    q, p = position.copy(), momentum.copy()
    call("leapfrog", ours.value, 3, q, p, grad, mass, eps, steps, terms, None)
    for found, wanted in zip((q, p, terms, grad), end, strict=True):
        assert np.array_equal(found, wanted)


def test_draws_and_statistics(target):
    """A whole run: warmup, thinning, random lengths, random step sizes, a mass."""
    ours = lib.posterior(target)
    mass = np.linspace(0.5, 2.0, target.dim).astype(target.dtype)
    sampler = rb.HMC(
        target, step_size=0.03, num_leapfrog_steps=6, step_size_jitter=0.2, inverse_mass_matrix=mass
    )
    expected = sampler.sample(6, warmup=4, thin=2, chains=3, seed=SEED, progress=False)
    start = target.init(SEED, 3)
    draws, stats, last, made = lib.hmc(
        ours, start, 6, warmup=4, thin=2, seed=SEED, step_size=0.03, num_steps=6,
        step_size_jitter=0.2,
        inverse_mass=mass,
    )  # fmt: skip
    assert made == 16
    assert np.array_equal(draws, expected.positions)
    assert np.array_equal(last, expected.positions[:, -1])
    for name, values in stats.items():
        assert np.array_equal(values, expected.stats[name]), name
    assert 0.0 < stats["acceptance_rate"].mean() < 1.0
    other = lib.hmc(
        ours, start, 6, warmup=4, thin=2, seed=SEED + 1, step_size=0.03, num_steps=6,
        step_size_jitter=0.2,
        inverse_mass=mass,
    )[0]  # fmt: skip
    assert not np.array_equal(draws, other)  # the control


def test_a_description_makes_the_same_target(target):
    """As it is saved with draws; without data it predicts alone."""
    text = json.dumps(target.describe()).encode()
    x, y = target._spec.x, target._spec.y
    create, dtype = "target_create_json", int(target.dtype == np.float64)
    same = lib.Handle("target", create, text, dtype, x, y, len(x))
    start = target.init(SEED, 2)
    common = {"seed": SEED, "step_size": 0.03, "num_steps": 3}
    draws = lib.hmc(lib.posterior(target), start, 4, **common)[0]
    assert np.array_equal(lib.hmc(same, start, 4, **common)[0], draws)

    net = lib.Handle("network", "network_create_json", text)
    assert lib.LIB.ribbit_network_dim(net.value) == target.model.dim
    alone = lib.Handle("target", create, text, dtype, None, None, 0)
    assert lib.LIB.ribbit_target_dim(alone.value) == target.dim
    width = target.model.output_shape[0]
    found = np.empty((2, 5, width))
    for handle, mean in zip((same, alone), found, strict=True):
        call("predict", handle.value, draws, 2, 4, x, 5, mean, None, None, None)
    assert np.array_equal(*found)
    with pytest.raises(CError, match="got one that predicts alone"):
        lib.hmc(alone, start, 4, **common)
    with pytest.raises(CError, match=f"dtype {target.dtype.name}"):
        lib.Handle("target", create, text, 1 - dtype, x, y, len(x))


def test_lengths_and_chain_ids():
    target = regression()
    ours, ids = lib.posterior(target), np.array([4, 2], np.uint32)
    options = {"step_size": 0.04, "trajectory_length": 0.2}
    for randomize_length in (True, False):
        sampler = rb.HMC(target, **options, randomize_length=randomize_length)
        expected = sampler.sample(5, warmup=0, chains=ids, seed=SEED, progress=False)
        draws, stats, *_ = lib.hmc(
            ours,
            target.init(SEED, ids),
            5,
            seed=SEED,
            chain_ids=ids,
            randomize_length=int(randomize_length),
            **options,
        )
        assert np.array_equal(draws, expected.positions)
        assert np.array_equal(stats["n_steps"], expected.stats["n_steps"])


@pytest.mark.parametrize("length", [{"num_leapfrog_steps": 4}, {"trajectory_length": 0.3}])
@pytest.mark.parametrize("warmup", [130, 510])
@pytest.mark.parametrize("name", ["mlp", "centred", "images", "sentences, float64"])
def test_step_sizes_that_are_found(name, warmup, length):
    """Dual averaging, short trajectories while it begins; then a run with what was found."""
    target = TARGETS[name]()
    ours, start = lib.posterior(target), target.init(SEED, 3)
    sampler = rb.HMC(target, target_accept=0.8, step_size_jitter=0.1, **length)
    expected = sampler.sample(5, warmup=warmup, chains=3, seed=SEED, init=start, progress=False)
    named = {key.replace("num_leapfrog", "num"): value for key, value in length.items()}
    found, common = np.zeros(3), {"seed": SEED, "step_size_jitter": 0.1, **named}
    draws, stats, _, made = lib.hmc(
        ours, start, 5, warmup=warmup, target_accept=0.8, step_sizes=found, **common
    )
    assert made == warmup + 5
    assert np.array_equal(draws, expected.positions)
    assert np.array_equal(stats["step_size"], expected.stats["step_size"])
    assert np.array_equal(found, expected.state.step_size)
    assert len(set(found)) == 3
    first, _, last, _ = lib.hmc(
        ours, start, 2, warmup=warmup, target_accept=0.8, step_sizes=found, **common
    )
    rest = lib.hmc(ours, last, 3, first_step=warmup + 2, step_sizes=found, **common)[0]
    assert np.array_equal(np.concatenate([first, rest], axis=1), draws)


def test_step_sizes_of_full_trajectories_alone():
    """Where the average of all of warmup lags behind them."""
    target = regression(likelihood=rb.Gaussian(0.03))
    sampler = rb.HMC(target, target_accept=0.8, trajectory_length=1.0)
    start, found = target.init(SEED, 3), np.zeros(3)
    state = sampler.init(start, seed=SEED, warmup=510)
    for _ in range(509):
        state, _ = sampler.step(state)
    dual = state.adaptation.dual
    assert (dual.settled, dual.count) == (50, 509)
    assert np.any(dual.log_average > dual.log_settled + np.log(1.45))
    state, _ = sampler.step(state)
    draws, *_ = lib.hmc(
        lib.posterior(target), start, 1, warmup=510, target_accept=0.8, seed=SEED,
        trajectory_length=1.0, step_sizes=found,
    )  # fmt: skip
    assert np.array_equal(found, state.step_size)
    state, _ = sampler.step(state)
    assert np.array_equal(draws[:, 0], state.position)


def test_predictions(target):
    ours = lib.posterior(target)
    draws = rb.HMC(target, step_size=0.03, num_leapfrog_steps=4).sample(
        5, warmup=3, chains=2, seed=SEED, progress=False
    )
    x = target._spec.x[:13]
    p = draws.predict(x.reshape(13, *target.model.input_shape))
    classes = isinstance(target.likelihood, rb.Categorical)
    expected = p.probs if classes else p.mean
    width = expected.size // 13
    mean, spread = np.empty((13, width)), np.empty((13, width))
    extra = np.empty(13 if classes else (13, width))
    positions = np.ascontiguousarray(draws.positions)
    call("predict", ours.value, positions, 2, 5, x, 13, mean, spread, extra, None)
    mean = mean.reshape(expected.shape)
    if classes:  # Python also divides rows by their sums, which are one to the last bits of a float
        mean = mean / mean.sum(axis=-1, keepdims=True)
    assert np.array_equal(mean, expected)
    assert np.array_equal(spread.reshape(expected.shape), p.epistemic_std)
    if classes:
        np.testing.assert_allclose(extra, p.entropy - p.mutual_information, rtol=1e-12)
    else:
        assert np.array_equal(extra.reshape(expected.shape), p.aleatoric_std)

    net, count = lib.network(target.model), target.model.dim
    theta = np.ascontiguousarray(positions[:, 0, :count])
    out = np.empty((2, 13, target.model.output_shape[0]), target.dtype)
    dtype = int(target.dtype == np.float64)
    call("network_apply", net.value, dtype, theta, 2, x, 13, out, None)
    assert np.array_equal(out, target.model.apply(theta, x.reshape(13, *target.model.input_shape)))


def test_a_multilayer_perceptron_by_its_widths():
    model = rb.mlp(3, (9, 7), 2, activation="tanh")
    hidden = np.array([9, 7], np.int64)
    net = lib.Handle("network", "network_create_mlp", 3, hidden, 2, 2, 2)
    assert lib.LIB.ribbit_network_dim(net.value) == model.dim
    assert lib.LIB.ribbit_network_inputs(net.value) == 3
    assert lib.LIB.ribbit_network_outputs(net.value) == 2
    theta, x = model.init(1), np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    out = np.empty((1, 4, 2), np.float32)
    call("network_apply", net.value, 0, theta, 1, x, 4, out, None)
    assert np.array_equal(out[0], model.apply(theta, x))


@lib.DENSITY
def normal(n, x, grad, lp, user):
    """N(0, i + 1) of each parameter i."""
    lp[0] = 0.0
    for i in range(n):
        grad[i] = -x[i] / (i + 1)
        lp[0] -= 0.5 * x[i] * x[i] / (i + 1)
    return 3 if user and x[0] > 1e3 else 0


@pytest.mark.parametrize("threadsafe", [False, True])
def test_a_function_of_the_caller(threadsafe):
    create = "target_create_function"
    ours = lib.Handle("target", create, normal, 4, None, int(threadsafe))
    same = rb.CallableDensity.from_pointer(normal, 4, threadsafe=threadsafe)
    expected = rb.HMC(same, step_size=0.4, num_leapfrog_steps=3).sample(
        20, warmup=5, chains=3, seed=SEED, progress=False
    )
    draws, stats, *_ = lib.hmc(
        ours, same.init(SEED, 3), 20, warmup=5, seed=SEED, step_size=0.4, num_steps=3
    )
    assert np.array_equal(draws, expected.positions)
    for name, values in stats.items():
        assert np.array_equal(values, expected.stats[name]), name
    found = np.zeros(3)
    lib.hmc(ours, same.init(SEED, 3), 1, warmup=30, seed=SEED, num_steps=3, step_sizes=found)
    auto = rb.HMC(same, num_leapfrog_steps=3)
    expected = auto.sample(1, warmup=30, chains=3, seed=SEED, progress=False)
    assert np.array_equal(found, expected.state.step_size)
    ours = lib.Handle(
        "target", create, normal, 4, SEED, int(threadsafe)
    )  # an address that is not 0
    with pytest.raises(CError, match=r"function to return 0, got 3") as failed:
        call("value_and_grad", ours.value, np.full(4, 2e3), 1, None, 0, np.empty(2), None, None)
    assert failed.value.status == 3


def test_a_run_in_parts_has_the_bits_of_one():
    """Ended by the callback, then by an interrupt, then to its end."""
    target = regression()
    ours, start = lib.posterior(target), target.init(SEED, 2)
    common = {"seed": SEED, "step_size": 0.03, "num_steps": 5}
    whole = lib.hmc(ours, start, 12, **common)[0]
    seen = []

    @lib.PROGRESS
    def five(progress, user):
        seen.append((progress[0].done, progress[0].total, progress[0].acceptance_rate))
        return progress[0].done == 5

    position, made = start.copy(), c.c_int64()
    draws = np.zeros((2, 12, target.dim), np.float32)
    given = lib.options(lib.HMCOptions, chains=2, draws=12, progress=five, **common)
    arguments = ours.value, c.byref(given), position, draws, None, c.byref(made)
    with pytest.raises(CError) as stopped:
        call("hmc", *arguments)
    assert stopped.value.status == 5
    assert made.value == 5
    assert [s[:2] for s in seen] == [(i + 1, 12) for i in range(5)]
    assert all(0.0 < s[2] <= 1.0 for s in seen)
    assert np.array_equal(draws[:, :5], whole[:, :5])
    assert not draws[:, 5:].any()

    flag = lib.Handle("interrupt", "interrupt_create")
    lib.LIB.ribbit_interrupt_set(flag.value)
    given = lib.options(
        lib.HMCOptions, chains=2, draws=7, first_step=5, interrupt=flag.value, **common
    )
    arguments = ours.value, c.byref(given), position, draws, None, c.byref(made)
    with pytest.raises(CError) as stopped:
        call("hmc", *arguments)
    assert (stopped.value.status, made.value) == (5, 0)
    lib.LIB.ribbit_interrupt_clear(flag.value)
    rest, _, _, made = lib.hmc(ours, position, 7, first_step=5, interrupt=flag.value, **common)
    assert made == 7
    assert np.array_equal(rest, whole[:, 5:])


@pytest.mark.parametrize("batch", [7, 70])
def test_stochastic_gradients(batch):
    """Minibatches and all rows, a schedule, thinning; whole, and in two parts."""
    target = regression()
    ours, start = lib.posterior(target), target.init(SEED, 2)
    schedule = rb.schedules.cosine(60, final=0.1)
    sampler = rb.SGLD(target, step_size=1e-4, batch_size=batch, schedule=schedule)
    expected = sampler.sample(10, warmup=20, thin=4, chains=2, seed=SEED, progress=False)
    factors = schedule.factors(0, 60)
    common = {"seed": SEED, "step_size": 1e-4, "batch_rows": batch, "thin": 4}
    draws, last, made = lib.sgld(ours, start, 10, warmup=20, factors=factors, **common)
    assert made == 60
    assert np.array_equal(draws, expected.positions)
    assert np.array_equal(last, expected.positions[:, -1])
    first, position, _ = lib.sgld(ours, start, 3, warmup=20, factors=factors[:32].copy(), **common)
    rest = lib.sgld(ours, position, 7, first_step=32, factors=factors[32:].copy(), **common)[0]
    assert np.array_equal(np.concatenate([first, rest], axis=1), draws)


def test_steps_that_leave_the_numbers():
    target = regression()
    with pytest.raises(CError, match="finite parameters, got others in row 0 at step") as failed:
        lib.sgld(lib.posterior(target), target.init(SEED, 1), 50, step_size=1e9, batch_rows=7)
    assert failed.value.status == 6


def test_threads_change_nothing():
    target = regression()
    ours, start = lib.posterior(target), target.init(SEED, 3)
    before = lib.LIB.ribbit_num_threads()
    found = []
    for count in (1, 2):
        call("set_num_threads", count)
        found.append(lib.hmc(ours, start, 4, seed=SEED, step_size=0.03, num_steps=5)[0])
    call("set_num_threads", before)
    assert np.array_equal(*found)


def test_facts():
    assert lib.LIB.ribbit_version().decode() == rb.__version__
    assert lib.LIB.ribbit_abi_version() == 1
    assert lib.LIB.ribbit_instruction_set().decode() == rb._core.isa()
