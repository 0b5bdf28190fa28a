"""Kernels one by one and programs of every kernel, in several orders of blocks and threads."""

import numpy as np
import pytest

from ribbit import _core
from ribbit._arrays import device_kernels, random_numbers, transitions
from ribbit._arrays.device import blocks_of, numbers_at_once
from tests.oracle import reference
from tests.support.cuda import kernel_list
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.problems import BOUND, TF32_BOUND, compare, evaluate
from tests.support.cuda.thread_orders import compile_all, in_every_order

SEED, STEP, LAYER = 2**64 - 59, 2**39 + 2**33 + 12, 300
SIZES = (1, 2, 3, 4, 5, 1023, 1025)
IDS = np.array([0, 7, 2**32 - 1], dtype=np.uint32)
CASES = list(kernel_list.cases())
MOVING = [case for case in CASES if case.moves]
SCALARS = pytest.mark.parametrize("scalar", ["float", "double"])
DTYPES = {"float": np.float32, "double": np.float64}


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_all(kernel_list.names())


def output(name, grid, shape, dtype, *fields):
    """The array that a kernel's last member names."""

    def run(device):
        out = xp.empty(shape, dtype)
        device.launch(name, grid, *fields, out)
        return [out.get()]

    return in_every_order(run)[0]


def stream(purpose, chains=IDS, layer=LAYER):
    ids = None if chains is None else xp.asarray(chains)
    return SEED, STEP, purpose << 24 | layer << 8, ids


@pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])
def test_programs(case):
    """Every kernel of programs: the same bits in any order, and the CPU core's numbers."""
    found = in_every_order(lambda device: evaluate(case.program(device), case.theta))
    if not case.masked:
        bound = None if case.precision == "float32" else TF32_BOUND
        compare(case.target, case.theta, found, case.rows, bound)
        return
    native = case.target.masked(rate="concrete" if case.learns else None)._native
    *terms, slope = native.masked_value_and_grad(case.theta, None, *kernel_list.MASKS)
    bound = 3 * BOUND[str(case.target.dtype)]
    np.testing.assert_allclose(found[1], slope, rtol=0, atol=bound * np.abs(slope).max())
    np.testing.assert_allclose(found[0], np.stack(terms, 1), rtol=bound * 10, atol=bound)


@pytest.mark.parametrize("case", MOVING, ids=[case.label for case in MOVING])
def test_trajectories(rng, case):
    """Whole trajectories in one launch, likewise."""
    target, q = case.target, case.theta
    p = rng.normal(size=q.shape).astype(q.dtype)
    step, steps = np.array([0.003, 0.002]), np.array([2, 3])
    mass = rng.uniform(0.5, 2, size=q.shape).astype(q.dtype)
    g = target.value_and_grad(q)[1]

    def run(device):
        arrays = (xp.asarray(a) for a in (q, p, g, step))
        ends = case.persistent(device).leapfrog(*arrays, steps, xp.asarray(mass))
        return [a.get() for a in ends]

    found_q, found_p, _, found_g = in_every_order(run)
    end_q, end_p, _, end_g = target.leapfrog(q, p, g, step, steps, inverse_mass=mass)
    bound = BOUND[str(target.dtype)]
    for a, b in ((found_q, end_q), (found_p, end_p), (found_g, end_g)):
        np.testing.assert_allclose(a, b, rtol=0, atol=bound * np.abs(b).max())


@SCALARS
@pytest.mark.parametrize("n", SIZES)
def test_normals(scalar, n):
    expected = np.empty((3, n), DTYPES[scalar])
    _core.fill_normal(expected, SEED, STEP, IDS, random_numbers.MOMENTUM, LAYER)
    for width in (1, blocks_of(-(-n // 4)), 3):
        name, purpose = f"FillNormal<{scalar}>", stream(random_numbers.MOMENTUM)
        found = output(name, (width, 3, 1), (3, n), DTYPES[scalar], *purpose, n)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("n", SIZES)
def test_uniforms(n):
    expected = np.empty((3, n))
    _core.fill_uniform(expected, SEED, STEP, IDS, random_numbers.JITTER, LAYER)
    for width in (1, 3):
        purpose = stream(random_numbers.JITTER)
        found = output("FillUniform", (width, 3, 1), (3, n), np.float64, *purpose, n)
        np.testing.assert_array_equal(found, expected)


def test_chains_count_from_zero():
    expected = np.empty((4, 6))
    _core.fill_uniform(expected, SEED, STEP, np.arange(4, dtype=np.uint32), 9, 0)
    found = output("FillUniform", (1, 4, 1), (4, 6), np.float64, *stream(9, None, layer=0), 6)
    np.testing.assert_array_equal(found, expected)


ROW_NOISE, SIGNS = 15, 16  # purposes
NUMBERS = np.array([3, 0, 701, 2**31 - 5, 3])  # of rows


def of_rows(purpose):
    """Members of RowAddress: chain c takes the noise of sample 5 + c in the listed rows."""
    where = np.array([SEED, STEP, 5], dtype=np.uint64)
    return xp.asarray(where), xp.asarray(NUMBERS), 0, 1, 0, purpose, LAYER


@SCALARS
@pytest.mark.parametrize("units", [1, 4, 6, 1023])
def test_normals_of_rows(scalar, units):
    """Of variance one around zero they are the CPU's; rows begin at the second."""
    dtype, rows, width = DTYPES[scalar], len(NUMBERS) - 1, 4 * -(-units // 4)

    def run(device):
        value, slope = (
            xp.asarray(np.zeros((2, rows, units), dtype)),
            xp.empty((2, rows, units), dtype),
        )
        slope[...] = 1.0
        fields = (*of_rows(ROW_NOISE), value, None, slope, rows * units, rows, units)
        device.launch(f"LocalNoise<{scalar}, 0>", (3, 2, 1), *fields)
        return value.get(), slope.get()

    value, slope = in_every_order(run)
    np.testing.assert_array_equal(slope, value / 2)
    samples = np.arange(5, 7, dtype=np.uint32)
    for r, number in enumerate(NUMBERS[1:]):
        if number > 701:  # the CPU makes all before it: this one's first block by hand
            where = {"seed": SEED, "step": STEP, "chain": 5, "purpose": ROW_NOISE}
            block = [int(number) * (width // 4) % 2**32]
            u = (reference.words(block, **where, layer=LAYER) + 0.5) * 2.0**-32
            first = np.sqrt(-2 * np.log(u[0, 0])) * np.cos(2 * np.pi * u[0, 1])
            np.testing.assert_allclose(value[0, r, 0], first, rtol=0, atol=1e-6)
            continue
        expected = np.empty((2, (number + 1) * width), dtype)
        _core.fill_normal(expected, SEED, STEP, samples, ROW_NOISE, LAYER)
        np.testing.assert_array_equal(value[:, r], expected[:, number * width :][:, :units])


@pytest.mark.parametrize("channels", [1, 32, 129, 700])
def test_signs_of_rows(channels):
    rows, blocks = len(NUMBERS) - 1, -(-channels // 128)

    def run(device):
        words = xp.empty((2, rows, 4 * blocks), np.uint32)
        fields = (*of_rows(SIGNS), words, rows * 4 * blocks, rows, blocks)
        device.launch("RowSigns", (2, 2, 1), *fields)
        return [words.get()]

    found = in_every_order(run)[0]
    number = ((NUMBERS[1:, None] * blocks + np.arange(blocks)) % 2**32).reshape(-1)
    where = {"seed": SEED, "step": STEP, "purpose": SIGNS, "layer": LAYER}
    for c in range(2):
        expected = reference.words(number, chain=5 + c, **where)
        np.testing.assert_array_equal(found[c].reshape(-1, 4), expected)


@SCALARS
@pytest.mark.parametrize("flipout", [False, True])
def test_weights_of_two_paths(rng, scalar, flipout):
    """The weights that reparameterised samples have, their deviations, and where they are."""
    dtype, n, first = DTYPES[scalar], 1025, 3
    mean, scale = rng.normal(size=n).astype(dtype), rng.uniform(0.5, 2, n).astype(dtype)
    clock = np.array([SEED, STEP - 4, 4], dtype=np.uint64)
    purpose = random_numbers.WEIGHT_NOISE << 24

    def run(device):
        out, where = xp.empty((2, 2 * n), dtype), xp.empty((3,), np.uint64)
        noise = 0, 0, purpose, None, xp.asarray(clock), first
        of_all = xp.asarray(mean), xp.asarray(scale), n
        flag = "true" if flipout else "false"
        device.launch(f"DrawPaths<{scalar}, {flag}>", (2, 2, 1), *noise, *of_all, out, where)
        plain = xp.empty((2, n), dtype)
        name = f"Reparameterize<{scalar}, false, 1>"
        device.launch(name, (2, 2, 1), *(0,) * 10, *noise, 1, 2, *of_all, plain)
        return out.get(), where.get(), plain.get()

    out, where, plain = in_every_order(run)
    np.testing.assert_array_equal(out[:, :n], plain)
    assert where.tolist() == [SEED, STEP, first]
    z = np.empty((2, n), dtype)
    _core.fill_normal(z, SEED, STEP, np.array([3, 4], np.uint32), random_numbers.WEIGHT_NOISE, 0)
    if flipout:
        np.testing.assert_array_equal(out[:, n:], scale * z)
    else:
        assert np.isnan(out[:, n:]).all()  # not written


AT_ONCE = [(1, 1), (5, 1), (1024, 1), (1027, 1), (2, 2), (1024, 2), (1026, 2), (4, 4), (1024, 4)]


@SCALARS
@pytest.mark.parametrize("from_rho", [False, True])
@pytest.mark.parametrize("each", [1, 3, 16])
@pytest.mark.parametrize(("n", "at_once"), AT_ONCE)
def test_weights_of_samples(rng, scalar, from_rho, each, n, at_once):
    """Bits of the core, however many samples a thread makes, and numbers it moves at once."""
    dtype, samples, first = DTYPES[scalar], 20, 2
    mean = rng.normal(size=n).astype(dtype)
    scale = rng.uniform(-2 if from_rho else 0.5, 2, n).astype(dtype)
    purpose, step = (
        (random_numbers.WEIGHT_NOISE, STEP) if from_rho else (random_numbers.FIT_DRAW, 0)
    )
    stream = SEED, step, purpose << 24, None

    def run(device):
        guard = xp.empty((samples * n + 16,), dtype)  # NaN before and behind
        out = guard[8 : 8 + samples * n]
        name = f"Reparameterize<{scalar}, {str(from_rho).lower()}, {at_once}>"
        keys, arrays = device_kernels.round_keys(SEED), (xp.asarray(mean), xp.asarray(scale))
        given = (*keys, *stream, None, first, each, samples, *arrays, n, out)
        device.launch(name, (2, -(-samples // each), 1), *given)
        return [guard.get()]

    guard = in_every_order(run)[0]
    found = guard[8:-8].reshape(samples, n)
    assert np.isnan(guard[:8]).all()
    assert np.isnan(guard[-8:]).all()
    if from_rho:
        expected = _core.reparameterize(mean, scale, first + samples, SEED, STEP)[first:]
    else:
        expected = _core.draw_weights(mean, scale, SEED, first + samples)[first:]
    if from_rho and dtype == np.float32:  # softplus is within 3.5 ulp, of deviations below 7 sd
        np.testing.assert_allclose(found, expected, rtol=0, atol=7 * 2.2 * 3.5 * 2.0**-23)
    else:
        np.testing.assert_array_equal(found, expected)


@SCALARS
@pytest.mark.parametrize("n", [7, 1026, 1028])
@pytest.mark.parametrize("samples", [3, 2000])
def test_draws_on_the_device(rng, scalar, n, samples):
    """The launches of `draw`: the core's bits where each thread makes one sample or several."""
    dtype, out = DTYPES[scalar], xp.empty((samples, n), DTYPES[scalar])
    mean, scale = rng.normal(size=n).astype(dtype), rng.uniform(0.5, 2, n).astype(dtype)
    where = SEED, 0, random_numbers.FIT_DRAW << 24, None
    arrays = xp.asarray(mean), xp.asarray(scale), out
    device_kernels.draw(CpuDevice(), where, *arrays, from_rho=False)
    expected = _core.draw_weights(mean, scale, SEED, samples)
    np.testing.assert_array_equal(out.get(), expected)


@SCALARS
def test_numbers_at_once(scalar):
    """Rows of n numbers from a multiple of 16 bytes on, and from one number and two behind it."""
    device, memory = CpuDevice(), xp.empty((64,), DTYPES[scalar])
    size = memory.dtype.itemsize
    by_two = 2 if scalar == "float" else 4  # two numbers: 8 bytes, or 16
    assert [numbers_at_once(device, n, size, memory) for n in (8, 6, 7)] == [4, 2, 1]
    assert numbers_at_once(device, 8, size, memory, memory[2:]) == by_two
    assert numbers_at_once(device, 8, size, memory[1:], memory) == 1


def masses(rng, dtype, n):
    """Inverse masses and the stride from chain to chain."""
    return {
        "none": (None, 0),
        "shared": (rng.uniform(0.5, 2, n).astype(dtype), 0),
        "each": (rng.uniform(0.5, 2, (3, n)).astype(dtype), n),
    }


@SCALARS
@pytest.mark.parametrize("mass", ["none", "shared", "each"])
@pytest.mark.parametrize(
    ("n", "at_once"), [(n, k) for n in (*SIZES, 5_000) for k in (1, 2, 4) if n % k == 0]
)
def test_leapfrog_step(rng, scalar, mass, n, at_once):
    """Products and sums rounded one by one, as the CPU core rounds them."""
    dtype = DTYPES[scalar]
    q, p, g = (rng.normal(size=(3, n)).astype(dtype) for _ in range(3))
    m, stride = masses(rng, dtype, n)[mass]
    step = np.array([0.1, 0.037, 1e-3])
    half, whole = 0.5, 1.0

    def run(device):
        position, momentum = xp.asarray(q), xp.asarray(p)
        fields = (position, momentum, xp.asarray(g), None if m is None else xp.asarray(m), stride)
        name = f"KickDrift<{scalar}, {at_once}>"
        device.launch(name, (2, 3, 1), *fields, xp.asarray(step), half, whole, n)
        return position.get(), momentum.get()

    found_q, found_p = in_every_order(run)
    eps = step.astype(dtype)[:, None]
    expected_p = p + (eps * dtype(half)) * g
    moved = expected_p if m is None else m * expected_p
    np.testing.assert_array_equal(found_p, expected_p)
    np.testing.assert_array_equal(found_q, q + (eps * dtype(whole)) * moved)


@SCALARS
@pytest.mark.parametrize("mass", ["none", "shared", "each"])
@pytest.mark.parametrize("n", SIZES)
def test_kinetic_energy(rng, scalar, mass, n):
    p = (10 * rng.normal(size=(3, n))).astype(DTYPES[scalar])
    m, stride = masses(rng, DTYPES[scalar], n)[mass]
    fields = (xp.asarray(p), None if m is None else xp.asarray(m), stride, n)
    found = output(f"KineticEnergy<{scalar}>", (1, 3, 1), (3,), np.float64, *fields)
    np.testing.assert_allclose(found, _core.kinetic_energy(p, m), rtol=1e-14)


@SCALARS
@pytest.mark.parametrize("n", [1, 5, 257, 1025])
def test_finite_rows(rng, scalar, n):
    """One number that is not finite, anywhere in either array, and the largest that are."""
    dtype = DTYPES[scalar]
    places = [(which, at) for which in (0, 1) for at in {0, n // 2, n - 1}]
    bad = [np.nan, np.inf, -np.inf]
    rows = len(places) * len(bad) + 1
    arrays = rng.normal(size=(2, rows, n)).astype(dtype)
    arrays[:, -1] = np.finfo(dtype).max
    arrays[1, -1, ::2] *= -1
    for row, (value, (which, at)) in enumerate((v, place) for v in bad for place in places):
        arrays[which, row, at] = value
    fields = (xp.asarray(arrays[0]), xp.asarray(arrays[1]), n)
    found = output(f"FiniteRows<{scalar}>", (1, rows, 1), (rows,), np.bool_, *fields)
    assert found.tolist() == [False] * (rows - 1) + [True]


def test_accept(rng):
    """The decisions of the CPU, NaN and infinities rejected, rates to rounding."""
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-300, -1e300, 745.0, 746.0, 1e308]
    error = np.concatenate([odd, rng.normal(scale=3, size=990), rng.exponential(size=1050)])
    n = len(error)
    chains = rng.permutation(n).astype(np.uint32)

    def run(device):
        accepted, rate = xp.empty(n, np.bool_), xp.empty(n)
        fields = (*stream(random_numbers.ACCEPT, chains, layer=0), xp.asarray(error), n)
        device.launch("Accept", (blocks_of(n), 1, 1), *fields, accepted, rate)
        return accepted.get(), rate.get()

    accepted, rate = in_every_order(run)
    with np.errstate(all="ignore"):
        expected = transitions.accept(np, error, seed=SEED, step=STEP, chains=chains)
    np.testing.assert_array_equal(accepted, expected[0])
    np.testing.assert_allclose(rate, expected[1], rtol=1e-15, atol=1e-300)
    assert 0.2 < accepted.mean() < 0.9


@SCALARS
@pytest.mark.parametrize("n", SIZES)
def test_select(rng, scalar, n):
    proposal, old = rng.normal(size=(2, 4, n)).astype(DTYPES[scalar])
    old[0, 0] = proposal[1, 0] = np.nan
    accepted = np.array([True, False, False, True])
    fields = (xp.asarray(accepted), xp.asarray(proposal), xp.asarray(old), n)
    found = output(f"Select<{scalar}>", (2, 4, 1), (4, n), DTYPES[scalar], *fields)
    np.testing.assert_array_equal(found, np.where(accepted[:, None], proposal, old))
