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


DATA = []  # x and y of the last target that was made


def kept(x, y, dtype):
    """Return data in the dtype of the target, and keep them for the C library."""
    DATA[:] = [(x.astype(dtype), y.astype(dtype))]
    return DATA[0]


def regression(dtype=np.float32, outputs=1, scale=1.0, **options):
    """A small network on a wave."""
    x = np.linspace(-1, 1, 70)[:, None] * np.array([1.0, 0.5, -1.0]) * scale + (scale - 1.0)
    y = np.sin(3 * x[:, 0]) if outputs == 1 else np.sin(x[:, :1] * np.arange(1, outputs + 1))
    x, y = kept(x, y * scale - (scale - 1.0), dtype)
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3), **options}
    return rb.Posterior(rb.mlp(3, (9, 7), outputs), x, y, dtype=dtype, **options)


def images(dtype=np.float32, **options):
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
    x, y = kept(x, rng.integers(0, 3, 20), dtype)
    return rb.Posterior(
        model, x, y.astype(int), prior=prior, likelihood=rb.Categorical(), dtype=dtype, **options
    )


def sentences(dtype=np.float32, **options):
    """Embedding and LSTM, counts."""
    rng = np.random.default_rng(1)
    model = rb.Model([rb.Embedding(11, 4), rb.LSTM(5), rb.Dense(1)], input_shape=(6,))
    x = rng.integers(0, 11, (25, 6))
    _, y = kept(x, rng.poisson(2.0, 25), dtype)
    return rb.Posterior(
        model, x, y.astype(int), prior=rb.StudentT(4.0, 0.8), likelihood=rb.Poisson(),
        dtype=dtype, temperature=0.5, **options,
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
KERNELS = {"hmc": rb.HMC, "nuts": rb.NUTS}


def in_python(kernel, target, given, draws, **run):
    """Draws of Python with the same options."""
    return KERNELS[kernel](target, **given).sample(draws, progress=False, **run)


def check_same(found, expected):
    """Check the bits of draws and of all statistics."""
    positions, stats, _ = found
    assert np.array_equal(positions, expected.positions)
    assert set(stats) == set(expected.stats)
    for name, values in stats.items():
        assert np.array_equal(values, expected.stats[name]), name


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


STEPS = {
    "hmc": {"step_size": 0.03, "num_leapfrog_steps": 6, "step_size_jitter": 0.2},
    "nuts": {"step_size": 0.03, "max_tree_depth": 4},
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_draws_and_statistics(target, kernel):
    """A whole run: warmup, thinning, random lengths, random step sizes, a mass."""
    ours, start = lib.posterior(target), target.init(SEED, 3)
    mass = np.linspace(0.5, 2.0, target.dim).astype(target.dtype)
    given = {**STEPS[kernel], "inverse_mass_matrix": mass}
    run = {"warmup": 4, "thin": 2}
    expected = in_python(kernel, target, given, 6, chains=3, seed=SEED, init=start, **run)
    found = lib.sample(ours, kernel, start, 6, given, seed=SEED, **run)
    check_same(found, expected)
    draws, stats, chains = found
    assert np.array_equal(chains.position(), draws[:, -1])
    summary = chains.summary()
    assert (summary.chains, summary.step, summary.warming_up) == (3, 16, 0)
    assert 0.0 < summary.acceptance_rate < 1.0
    assert summary.gradients > stats["n_steps"].sum()
    other = lib.sample(ours, kernel, start, 6, given, seed=SEED + 1, **run)[0]
    assert not np.array_equal(draws, other)  # the control


@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # of noise that vanishes
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["mlp", "mlp, float64", "centred", "learned noise", "images"])
def test_nothing_set(name, kernel):
    """Step sizes, lengths and masses of the defaults, with warmup saved and not."""
    target = TARGETS[name]()
    text, x, y = json.dumps(target.describe()).encode(), target._spec.x, target._spec.y
    dtype = int(target.dtype == np.float64)
    ours = lib.Handle("target", "target_create_json", text, dtype, x, y, len(x))
    start, run = target.init(SEED, 2), {"warmup": 160, "seed": SEED}
    expected = in_python(kernel, target, {}, 4, chains=2, init=start, save_warmup=True, **run)
    check_same(lib.sample(ours, kernel, start, 4, **run), expected)
    warm, more = lib.sample(ours, kernel, start, 160, save_warmup=1, **run)[::2]
    assert np.array_equal(warm, expected.warmup_positions)
    assert np.array_equal(more.sample(4)[0], expected.positions)


# Values of each option other than its default.
OPTIONS = {
    "hmc": {
        "step_size": [0.02, [0.02, 0.04], "auto"],
        "trajectory_length": [0.3],
        "num_leapfrog_steps": [5],
        "randomize_length": [False],
        "inverse_mass_matrix": ["prior", "adapt", np.linspace(0.5, 2.0, 114), None],
        "step_size_jitter": [0.3],
        "target_accept": [0.7],
        "max_num_leapfrog_steps": [9],
        "divergence_threshold": [0.01],
    },
    "nuts": {
        "step_size": [0.02, [0.02, 0.04]],
        "max_tree_depth": [3],
        "inverse_mass_matrix": ["auto", "prior", "adapt", np.linspace(0.5, 2.0, 114), None],
        "target_accept": [0.7],
        "divergence_threshold": [0.01],
    },
}
VALUES = [
    pytest.param(kernel, name, value, id=f"{kernel}, {name} {np.ravel(value)[:2]}")
    for kernel, named in OPTIONS.items()
    for name, values in named.items()
    for value in values
]


@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # of capped trajectories
@pytest.mark.parametrize(("kernel", "name", "value"), VALUES)
def test_each_option(kernel, name, value):
    target = regression()
    start, run = target.init(SEED, 2), {"warmup": 60, "seed": SEED}
    python = np.array(value) if isinstance(value, list) else value
    expected = in_python(kernel, target, {name: python}, 3, chains=2, init=start, **run)
    found = lib.sample(lib.posterior(target), kernel, start, 3, {name: value}, **run)
    check_same(found, expected)


def test_the_options_are_those_of_the_table():
    table = lib.option_table()
    assert [(row["kernel"], row["name"]) for row in table] == [
        (kernel, name) for kernel, named in OPTIONS.items() for name in named
    ]
    assert all(row["must_be"] and row["documentation"] for row in table)
    defaults = {row["name"]: row["default_value"] for row in table if row["kernel"] == "nuts"}
    assert defaults["step_size"] == '"auto"'
    assert defaults["target_accept"] == "0.8"


@pytest.mark.parametrize(
    ("kernel", "name"), [(k, n) for k, named in OPTIONS.items() for n in named]
)
def test_the_text_none_is_the_default(kernel, name):
    """Of every option but the mass of NUTS, where it is ones."""
    target = regression()
    ours, start, run = lib.posterior(target), target.init(SEED, 1), {"warmup": 20, "seed": SEED}
    found = lib.sample(ours, kernel, start, 2, {name: None}, **run)[0]
    default = lib.sample(ours, kernel, start, 2, {}, **run)[0]
    assert np.array_equal(found, default) == ((kernel, name) != ("nuts", "inverse_mass_matrix"))


def test_a_summary_counts_warmup():
    """Its means and sums are over all transitions, unlike the statistics of draws."""
    target = regression()
    run = {"chains": 2, "warmup": 30, "seed": SEED, "save_warmup": 1}
    chains = lib.Chains(lib.posterior(target), "nuts", **run).start(target.init(SEED, 2))
    parts = [chains.advance(most)[1] for most in (30, 10)]
    rates, diverging = (
        np.concatenate([part[name] for part in parts], axis=1)
        for name in ("acceptance_rate", "diverging")
    )
    found = chains.summary()
    assert rates.shape == (2, found.step) == (2, 40)
    assert found.acceptance_rate == pytest.approx(rates.mean())
    assert found.acceptance_rate != pytest.approx(parts[1]["acceptance_rate"].mean())
    assert found.divergences == diverging.sum()


def test_a_description_makes_the_same_target(target):
    """As it is saved with draws; without data it predicts alone."""
    text = json.dumps(target.describe()).encode()
    x, y = target._spec.x, target._spec.y
    create, dtype = "target_create_json", int(target.dtype == np.float64)
    same = lib.Handle("target", create, text, dtype, x, y, len(x))
    start = target.init(SEED, 2)
    how = {"step_size": 0.03, "num_leapfrog_steps": 3}
    draws = lib.sample(lib.posterior(target), "hmc", start, 4, how, seed=SEED)[0]
    assert np.array_equal(lib.sample(same, "hmc", start, 4, how, seed=SEED)[0], draws)

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
        lib.sample(alone, "hmc", start, 4, how)
    with pytest.raises(CError, match=f"dtype {target.dtype.name}"):
        lib.Handle("target", create, text, 1 - dtype, x, y, len(x))


STANDARDIZED = {
    "regression": lambda: regression(standardize=True),
    "regression, float64": lambda: regression(np.float64, standardize=True),
    "two targets": lambda: regression(
        outputs=2, likelihood=rb.Gaussian(), standardize=True, scale=30.0
    ),
    "images": lambda: images(standardize=True),
    "counts": lambda: sentences(standardize=True),
}


@pytest.mark.parametrize("name", STANDARDIZED)
def test_a_description_with_units(name):
    """The target gets data of the user, and predictions are in the user's units."""
    target, (x, y) = STANDARDIZED[name](), DATA[0]
    dtype = target.dtype
    x = np.ascontiguousarray(x.reshape(len(x), -1), dtype)
    y = np.ascontiguousarray(y.reshape(len(y), -1), dtype)
    text = json.dumps(target.describe()).encode()
    create = "target_create_json", text, int(dtype == np.float64)
    ours = lib.Handle("target", *create, x, y, len(x))
    start, given = target.init(SEED, 2), {"step_size": 0.02, "num_leapfrog_steps": 3}
    expected = in_python("hmc", target, given, 4, chains=2, warmup=5, seed=SEED, init=start)
    found = lib.sample(ours, "hmc", start, 4, given, warmup=5, seed=SEED)
    check_same(found, expected)

    new = np.ascontiguousarray(x[:7] * dtype.type(1.0))
    p = expected.predict(new.reshape(7, *target.model.input_shape))
    classes = isinstance(target.likelihood, rb.Categorical)
    for handle in ours, lib.Handle("target", *create, None, None, 0):
        mean = np.empty((7, target.model.output_shape[0]))
        spread = np.empty_like(mean)
        extra = np.empty(7) if classes else np.empty_like(mean)
        call("predict", handle.value, found[0].copy(), 2, 4, new, 7, mean, spread, extra, None)
        if classes:
            mean = mean / mean.sum(axis=-1, keepdims=True)
        else:
            assert np.array_equal(extra.reshape(p.mean.shape), p.aleatoric_std)
        wanted = p.probs if classes else p.mean
        assert np.array_equal(mean.reshape(wanted.shape), wanted)
        assert np.array_equal(spread.reshape(wanted.shape), p.epistemic_std)


@pytest.mark.parametrize("kernel", KERNELS)
def test_chain_ids(kernel):
    target, ids = regression(), np.array([4, 2], np.uint32)
    start, given = target.init(SEED, ids), {"step_size": 0.04}
    expected = in_python(kernel, target, given, 5, warmup=0, chains=ids, seed=SEED, init=start)
    found = lib.sample(
        lib.posterior(target), kernel, start, 5, given, warmup=0, seed=SEED, chain_ids=ids
    )
    check_same(found, expected)


def test_a_start_of_the_target():
    """Where the caller gives no position, chains start at ribbit_target_start()."""
    target, ids = regression(), np.array([4, 2], np.uint32)
    how, given = {"seed": SEED, "chains": 2, "chain_ids": ids}, {"step_size": 0.03}
    chains = lib.Chains(lib.posterior(target), "hmc", given, **how)
    assert np.array_equal(chains.start().position(), target.init(SEED, ids))


@pytest.mark.parametrize("length", [{"num_leapfrog_steps": 4}, {"trajectory_length": 0.3}])
@pytest.mark.parametrize("warmup", [130, 510])
@pytest.mark.parametrize("name", ["mlp", "centred", "images", "sentences, float64"])
def test_step_sizes_that_are_found(name, warmup, length):
    """Dual averaging, short trajectories while it begins."""
    target = TARGETS[name]()
    start, given = target.init(SEED, 3), {"target_accept": 0.8, "step_size_jitter": 0.1, **length}
    run = {"warmup": warmup, "seed": SEED}
    expected = in_python("hmc", target, given, 5, chains=3, init=start, **run)
    check_same(lib.sample(lib.posterior(target), "hmc", start, 5, given, **run), expected)
    assert len(set(expected.stats["step_size"][:, 0])) == 3


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
    for kernel, given in (
        ("hmc", {"step_size": 0.4, "num_leapfrog_steps": 3}),
        ("hmc", {"num_leapfrog_steps": 3}),
        ("hmc", {}),
        ("nuts", {"step_size": 0.4}),
        ("nuts", {}),
    ):
        run = {"warmup": 60, "seed": SEED}
        start = same.init(SEED, 3)
        expected = in_python(kernel, same, given, 20, chains=3, init=start, **run)
        check_same(lib.sample(ours, kernel, start, 20, given, **run), expected)
    ours = lib.Handle(
        "target", create, normal, 4, SEED, int(threadsafe)
    )  # an address that is not 0
    with pytest.raises(CError, match=r"log density to return 0, got 3") as failed:
        call("value_and_grad", ours.value, np.full(4, 2e3), 1, None, 0, np.empty(2), None, None)
    assert failed.value.status == 3
    with pytest.raises(CError, match=r"\[ribbit_chains_start\] .* return 0, got 3") as failed:
        lib.Chains(ours, "nuts").start(np.full((1, 4), 2e3))
    assert failed.value.status == 3


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_run_in_parts_has_the_bits_of_one(kernel):
    """Short calls, an interrupt, and chains that are saved and loaded."""
    target = regression()
    ours, start = lib.posterior(target), target.init(SEED, 2)
    run = {"warmup": 60, "thin": 2, "seed": SEED, "save_warmup": 1}
    given = {"inverse_mass_matrix": "adapt"}
    whole = lib.sample(ours, kernel, start, 70, given, **run)
    flag = lib.Handle("interrupt", "interrupt_create")

    chains = lib.Chains(ours, kernel, given, chains=2, **run).start(start)
    parts = []
    while (made := sum(part[0].shape[1] for part in parts)) < 70:
        parts.append(chains.advance(min(7, 70 - made), 0.0 if made % 2 else np.inf))
        before = chains.save()
        lib.LIB.ribbit_interrupt_set(flag.value)
        with pytest.raises(CError) as stopped:
            chains.advance(5, interrupt=flag.value)
        assert stopped.value.status == 5
        assert chains.save() == before
        lib.LIB.ribbit_interrupt_clear(flag.value)
        chains = lib.Chains(ours, kernel, given, saved=before, chains=2, thin=2, save_warmup=1)
    assert np.array_equal(np.concatenate([p[0] for p in parts], axis=1), whole[0])
    for name, values in whole[1].items():
        assert np.array_equal(np.concatenate([p[1][name] for p in parts], axis=1), values), name
    assert chains.save() == whole[2].save()
    assert chains.summary().step == 80
    assert np.array_equal(chains.position(), whole[2].position())


def test_draws_are_written_where_a_loop_wants_them():
    """Rows of each chain lie `stride` apart, and a call never crosses the end of warmup."""
    target = regression()
    ours, start = lib.posterior(target), target.init(SEED, 2)
    given, run = {"step_size": 0.03}, {"warmup": 3, "seed": SEED}
    expected = lib.sample(ours, "hmc", start, 9, given, **run)[0]
    chains = lib.Chains(ours, "hmc", given, chains=2, **run).start(start)
    draws, count, made, counts = np.zeros_like(expected), c.c_int64(), 0, []
    while made < 9:
        place = draws.ctypes.data + made * target.dim * draws.itemsize
        call("chains_advance", chains.value, min(4, 9 - made), 60.0, place, 9, c.byref(count), None)
        counts.append(count.value)
        made += count.value
    assert counts == [0, 4, 4, 1]
    assert np.array_equal(draws, expected)
    call("chains_advance", chains.value, 2, 60.0, None, 0, c.byref(count), None)
    assert count.value == 2


@pytest.mark.parametrize("kernel", KERNELS)
def test_python_and_c_continue_bytes_of_each_other(kernel):
    target = regression()
    ours, run = lib.posterior(target), {"warmup": 30, "seed": SEED}
    whole = rb.Chains(KERNELS[kernel](target), chains=2, **run)
    whole.advance(36)
    saved, (expected, _) = whole.save(), whole.advance(5)
    there = lib.Chains(ours, kernel, saved=saved, chains=2)
    assert np.array_equal(there.sample(5)[0], expected)
    back = rb.Chains.load(KERNELS[kernel](target), there.save())
    assert np.array_equal(back.advance(5)[0], whole.advance(5)[0])


FAN_IN = {
    "Normal": rb.Normal(1.1, fan_in=True),
    "Laplace": rb.Laplace(1.1, fan_in=True),
    "Logistic": rb.Logistic(1.1, fan_in=True),
    "StudentT": rb.StudentT(5.3, 0.8, fan_in=True),
    "ScaleMixture": rb.ScaleMixture(0.3, 1.2, 0.4, fan_in=True),
}


@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # of a short warmup
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("prior", FAN_IN)
def test_masses_of_the_prior_are_the_same_in_both_languages(prior, dtype, kernel):
    target = regression(dtype, prior=FAN_IN[prior], marginalize=None)
    ours, given = lib.posterior(target), {"inverse_mass_matrix": "prior"}
    here = rb.Chains(KERNELS[kernel](target, **given), chains=2, warmup=3)
    here.advance(4)
    there = lib.Chains(ours, kernel, given, saved=here.save(), chains=2)
    assert np.array_equal(there.sample(2)[0], here.advance(2)[0])
    back = rb.Chains.load(KERNELS[kernel](target, **given), there.save())
    assert np.array_equal(back.advance(2)[0], here.advance(2)[0])


OTHERS = {
    "data": {"scale": 2.0},
    "prior": {"prior": rb.Normal(2.0)},
    "noise": {"likelihood": rb.Gaussian(0.4)},
    "temperature": {"temperature": 0.5},
}


@pytest.mark.parametrize("name", OTHERS)
def test_bytes_of_another_language_and_another_target_are_refused(name):
    """The two languages identify a target by other parts, so values are compared."""
    target, other = regression(marginalize=None), regression(marginalize=None, **OTHERS[name])
    given = {"step_size": 0.03, "num_leapfrog_steps": 3}
    start = target.init(SEED, 2)
    here = rb.Chains(rb.HMC(target, **given), start, warmup=0)
    there = lib.Chains(lib.posterior(target), "hmc", given, chains=2, warmup=0).start(start)
    lib.Chains(lib.posterior(target), "hmc", given, saved=here.save(), chains=2)
    rb.Chains.load(rb.HMC(target, **given), there.save())
    number = r"-?[0-9]+\.[0-9]+"
    message = f"another target: chain 0 had the log density {number}, here it is {number}"
    with pytest.raises(CError, match=message):
        lib.Chains(lib.posterior(other), "hmc", given, saved=here.save(), chains=2)
    with pytest.raises(ValueError, match=message):
        rb.Chains.load(rb.HMC(other, **given), there.save())
    with pytest.raises(ValueError, match=message):
        rb.HMC(other, **given).sample(2, resume=rb.samplers.State(there.save()), progress=False)


def test_new_options_for_loaded_chains():
    """They keep what warmup has found, and take the options of the call."""
    target = regression()
    ours, start = lib.posterior(target), target.init(SEED, 2)
    run = {"warmup": 60, "seed": SEED}
    _, stats, chains = lib.sample(ours, "nuts", start, 1, **run)
    saved = chains.save()
    more = lib.Chains(ours, "nuts", {"max_tree_depth": 1}, saved=saved, chains=2).sample(5)[1]
    assert more["tree_depth"].max() == 1
    assert np.array_equal(more["step_size"][:, 0], stats["step_size"][:, 0])


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
        given, run = {"step_size": 0.03}, {"warmup": 20, "seed": SEED}
        found += [[lib.sample(ours, kernel, start, 4, given, **run)[0] for kernel in KERNELS]]
    call("set_num_threads", before)
    assert np.array_equal(*found)


def test_facts():
    assert lib.LIB.ribbit_version().decode() == rb.__version__
    assert lib.LIB.ribbit_abi_version() == 1
    assert lib.LIB.ribbit_instruction_set().decode() == rb._core.isa()
