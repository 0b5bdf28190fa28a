"""Trajectories in one launch, and launch by launch, against the CPU core's.

float64: rounding of sums alone, 1e-13 of the largest entry; float32: 1e-6 of it.
"""

import itertools
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.device import TogetherRefused
from ribbit._arrays.namespace import device_of
from ribbit._arrays.threads import Interrupted
from ribbit._backends.cuda import density as cuda_density
from ribbit._backends.cuda.programs import persistent
from tests.support import likelihoods
from tests.support.cuda.compiler import Compiler
from tests.support.cuda.cpu_device import NAMESPACE, CpuDevice, register
from tests.support.cuda.problems import program_of

BOUND = {"float64": 1e-13, "float32": 1e-6}
MIXED = {"0.*": rb.StudentT(4.0, 0.8), "*.bias": rb.Laplace(0.5), "*": rb.Normal(0.9)}
REST = {"0.*": rb.Logistic(0.8), "*": rb.ScaleMixture(0.4, 1.0, 0.1)}
CASES = {
    "gaussian": ((50, 50), 1, rb.Gaussian(0.5), 70, "silu", rb.Normal(0.7), True),
    "learned": ((17,), 1, rb.Gaussian(), 1, "tanh", REST, True),
    "heteroscedastic": ((), 4, rb.HeteroscedasticGaussian(), 65, "relu", rb.Normal(0.7), True),
    "categorical": ((12, 7), 3, rb.Categorical(), 33, "gelu", MIXED, True),
    "bernoulli": ((16,), 2, rb.Bernoulli(), 64, "softplus", rb.Normal(0.7), False),
    "poisson": ((5, 5, 5), 1, rb.Poisson(), 31, "sigmoid", rb.Normal(0.7), True),
    # two tiles of weights of a thread, or three; widths on both sides of fours
    "two tiles": ((64, 60), 3, rb.Gaussian(per_output=False), 40, "relu", MIXED, True),
    "three tiles": ((4, 91, 95), 2, rb.Gaussian(per_output=False), 20, "tanh", MIXED, True),
    "learned each": ((9,), 3, rb.Gaussian(), 33, "tanh", MIXED, True),
    "known each": ((9,), 2, rb.StudentTNoise(4.0, [0.3, 2.0]), 300, "tanh", MIXED, True),
}
CASES |= {
    name: ((9,), case.outputs, case.likelihood, 33, "tanh", REST, True)
    for name, case in likelihoods.CASES.items()
    if name not in CASES
}


def pair(device, name, dtype, rng):
    """The same posterior on NumPy and on the device."""
    hidden, outputs, likelihood, rows, activation, prior, bias = CASES[name]
    layers = [x for h in hidden for x in (rb.Dense(h, bias=bias), rb.Activation(activation))]
    model = rb.Model([*layers, rb.Dense(outputs, bias=bias)], input_shape=(5,))
    x = rng.normal(size=(rows, 5))
    columns = likelihood._columns("test", (outputs,))
    y = rng.normal(size=(rows, columns))
    if name in ("bernoulli", "poisson"):
        y = (y > 0).astype(float)
    if name == "categorical":
        y = rng.integers(0, outputs, size=rows)
    options = {"prior": prior, "likelihood": likelihood, "dtype": dtype, "temperature": 1.3}
    data = (x, y), (device.asarray(x), device.asarray(y))
    return [rb.Posterior(model, *d, likelihood_temperature=0.8, **options) for d in data]


@pytest.fixture(scope="module")
def _compiled(device):
    """What all cases launch, in a few libraries: a library for each case takes twice as long."""
    names = []
    for name, dtype in itertools.product(CASES, BOUND):
        host, there = pair(device, name, dtype, np.random.default_rng(0))
        names += program_of(host, 3).names
        if there._native._persistent is not None:
            names += there._native._persistent.names
    device_of(device).kernels(tuple(dict.fromkeys(names)))


def ends(target, xp, arrays, steps, mass):
    q, p = (xp.asarray(a) for a in arrays)
    mass = None if mass is None else xp.asarray(mass)
    found = target.leapfrog(q, p, None, 0.003, steps, inverse_mass=mass)
    return [a if xp is np else a.get() for a in found]


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("one_launch", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_ends_are_those_of_the_core(device, monkeypatch, rng, name, dtype, one_launch):
    if not one_launch:
        monkeypatch.setattr(persistent, "fits", lambda *_: False)
    host, on_device = pair(device, name, dtype, rng)
    other = (name, dtype) == ("three tiles", "float64") or name.endswith(" each")
    assert (on_device._native._persistent is not None) == (one_launch and not other)
    arrays = [a.astype(dtype) for a in rng.normal(size=(2, 3, host.dim))]
    arrays[0] *= np.asarray(0.4, dtype)
    masses = None, np.linspace(0.5, 2, host.dim), rng.uniform(0.5, 2, size=(3, host.dim))
    for mass in masses:
        mass = None if mass is None else mass.astype(dtype)
        found = ends(on_device, device, arrays, [4, 1, 7], mass)
        for a, b in zip(found, ends(host, np, arrays, [4, 1, 7], mass), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=BOUND[dtype] * np.abs(b).max())
    # the control: one step more is another end
    other = ends(on_device, device, arrays, [4, 1, 8], mass)
    assert np.abs(other[0] - found[0]).max() > 1e-4


def form_of(target, monkeypatch, blocks):
    """Let a target's trajectories have so many blocks of a chain."""
    monkeypatch.setattr(target._native._persistent, "_blocks_for", lambda chains: blocks)


@pytest.fixture(params=["cluster", "grid"])
def together(request, device, monkeypatch):
    """How the blocks of a chain run at once."""
    own = device_of(device)
    if request.param == "cluster" and not own.clusters:
        pytest.skip("needs compute capability 9.0")
    monkeypatch.setattr(type(own), "clusters", request.param == "cluster")
    monkeypatch.setattr(persistent, "_MEETINGS", 0.0)  # it pays at every size
    return request.param


@pytest.mark.parametrize("rows", [31, 33, 65, 500, 512, 513, 1100])
@pytest.mark.parametrize(
    ("name", "dtype"), [("gaussian", "float32"), ("two tiles", "float32"), ("learned", "float64")]
)
def test_a_cluster_has_the_bits_of_a_block(device, together, monkeypatch, rng, name, dtype, rows):
    """Sections of half a panel, of one and of more, some with none; a chain alone, too."""
    monkeypatch.setattr(persistent, "fits", lambda *_: True)
    monkeypatch.setitem(CASES, name, (*CASES[name][:3], rows, *CASES[name][4:]))
    target = pair(device, name, dtype, rng)[1]
    arrays = [a.astype(dtype) for a in 0.3 * rng.normal(size=(2, 2, target.dim))]
    forms = list(target._native._persistent._forms)
    sections = persistent.sections_of(rows, target._native._persistent._lanes)
    assert forms == [1] + [16] * (sections > 8) + [8] * (sections > 4)
    kernels = {name.partition("<")[0] for name in target._native._persistent.names[1:]}
    assert kernels <= {f"{together.title()}Trajectory"}
    found = []
    for blocks in forms:
        form_of(target, monkeypatch, blocks)
        found.append(ends(target, device, arrays, [3, 2], None))
        alone = ends(target, device, [a[1:] for a in arrays], [2], None)
        for a, b in zip(found[-1], alone, strict=True):
            np.testing.assert_array_equal(a[1:], b)
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("least", [8, 1])
def test_a_cluster_that_is_refused_is_a_smaller_one(device, together, monkeypatch, rng, least):
    monkeypatch.setitem(CASES, "gaussian", (*CASES["gaussian"][:3], 500, *CASES["gaussian"][4:]))
    target = pair(device, "gaussian", "float32", rng)[1]
    own, asked = target._native._device, []
    arrays = 0.3 * rng.normal(size=(2, 1, target.dim)).astype(np.float32)
    expected = ends(target, device, arrays, [3], None)
    kernels = own.kernels

    def refusing(names):
        def launch(grid, arguments, shared=0):
            asked.append(grid[0])
            if grid[0] > least:
                raise TogetherRefused("no")
            found[names[0]](grid, arguments, shared)

        found = kernels(names)
        return dict.fromkeys(names, launch)

    monkeypatch.setattr(own, "kernels", refusing)
    for _ in range(2):
        for a, b in zip(ends(target, device, arrays, [3], None), expected, strict=True):
            np.testing.assert_array_equal(a, b)
    # two gradients and two trajectories; it asks once
    assert asked == ([16, 8, 8, 8, 8] if least == 8 else [16, 8, 1, 1, 1, 1])


@pytest.mark.parametrize("blocks", [1, 8, 16])
def test_a_trajectory_in_pieces_has_the_same_bits(device, together, monkeypatch, rng, blocks):
    """Launches of few steps each, and Ctrl-C between them."""
    monkeypatch.setitem(CASES, "learned", (*CASES["learned"][:3], 500, *CASES["learned"][4:]))
    target = pair(device, "learned", "float32", rng)[1]
    form_of(target, monkeypatch, blocks)
    arrays = 0.3 * rng.normal(size=(2, 3, target.dim)).astype(np.float32)
    mass = rng.uniform(0.5, 2, size=target.dim).astype(np.float32)
    own = target._native._persistent
    expected = ends(target, device, arrays, [4, 1, 7], mass)
    assert own._pieces(7, 3, blocks) == [(0, 7)]
    monkeypatch.setattr(persistent, "_MOST_SECONDS", 3.1 * (persistent._STEP + 1e-9))
    monkeypatch.setattr(own, "_rate", np.inf)
    assert own._pieces(7, 3, blocks) == [(0, 3), (3, 6), (6, 7)]
    for a, b in zip(ends(target, device, arrays, [4, 1, 7], mass), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    given = [device.asarray(a) for a in arrays]
    sizes, stop = device.asarray(np.full(3, 1e-3)), Event()
    stop.set()
    with pytest.raises(Interrupted):
        target._native.leapfrog(*given, given[0], sizes, np.array([4, 1, 7]), None, stop)


def test_pieces_are_of_twenty_milliseconds():
    """By the paper's model, half as fast: a launch of 1,000 chains has 28 steps."""
    xp = register()
    x, y = (xp.asarray(np.zeros((500, n), "f")) for n in (8, 1))
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.1)}
    own = rb.Posterior(rb.mlp(8, (50, 50), 1), x, y, **options)._native._persistent
    assert own._pieces(200, 1, 16) == [(0, 200)]
    pieces = own._pieces(100, 1000, 1)
    assert [last - first for first, last in pieces[:-1]] == [27] * 3
    assert own._pieces(0, 1, 1) == [(0, 0)]


def test_who_waits_for_others_through_memory(monkeypatch):
    """Before clusters: where the multiply-adds that others take over outlast two barriers."""
    xp = register()
    monkeypatch.setattr(CpuDevice, "clusters", False)
    monkeypatch.setattr(CpuDevice, "processors", 108)
    monkeypatch.setattr(CpuDevice, "block_shared", 163 * 1024)

    def forms(rows, hidden):
        x, y = (xp.asarray(np.zeros((rows, n), "f")) for n in (8, 1))
        options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.1)}
        return rb.Posterior(rb.mlp(8, hidden, 1), x, y, **options)._native._persistent

    own = forms(500, (50, 50))
    assert list(own._forms) == [1, 16, 8]
    assert [own._blocks_for(chains) for chains in (1, 6, 7, 13, 14, 27, 28)] == [
        *(16, 16, 8, 8, 8, 8, 1)
    ]
    assert list(forms(927, (50,))._forms) == [1, 16, 8]
    assert list(forms(500, (4,))._forms) == [1]
    monkeypatch.setattr(CpuDevice, "cooperative", False)
    assert list(forms(500, (50, 50))._forms) == [1]


def test_order_of_threads_changes_nothing(device, rng):
    target = pair(device, "learned", "float32", rng)[1]
    arrays = rng.normal(size=(2, 2, target.dim)).astype(np.float32)
    instance = target._native._device
    found = []
    for seed in (3, 77, 1234):
        instance.seed = seed  # orders the threads of a device made of the CPU
        found.append(ends(target, device, arrays, [5, 3], None))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_who_takes_which_way():
    """By shapes alone, so that a chain's bits do not depend on the others."""
    small, large = (rb.mlp(8, hidden, 1) for hidden in ((50, 50), (400, 400)))
    network = persistent.network_of(small.table)
    assert network.units == [8, 50, 50, 1]
    assert persistent.fits(network, 500, 4)
    assert not persistent.fits(network, 50_000, 4)
    assert not persistent.fits(persistent.network_of(large.table), 500, 4)
    mixed = [rb.Dense(3), rb.Activation("tanh"), rb.Dense(3), rb.Activation("relu"), rb.Dense(1)]
    assert persistent.network_of(rb.Model(mixed, input_shape=(2,)).table) is None
    assert persistent.network_of(rb.lenet5().table) is None


PLACES = Compiler(headers=[str(Path(__file__).with_name("trajectory_places.h"))])
SHAPES = [(8, 50, 50, 1), (5, 64, 60, 3), (6, 16, 16, 16, 16, 2), (3, 5, 5, 1)]
PAIRED = [(units, 256) for units in SHAPES[:3]] + [((22, 40, 1), 128), ((8, 24, 24, 2), 128)]


def places_name(layer, weights, units, threads=256):
    what = f"{layer}, {'true' if weights else 'false'}, 64"
    return f"TrajectoryPlaces<{what}, UnitsOf<{', '.join(map(str, units))}>, {threads}>"


@pytest.fixture(scope="module")
def _places():
    """All of them in one library; with one for each the tests take ten times as long."""
    both = (False, True)
    names = [
        places_name(layer + (not weights), weights, units)
        for units in SHAPES
        for layer in range(len(units) - 1)
        for weights in both
    ]
    names += [
        places_name(layer, weights, units, threads)
        for units, threads in PAIRED
        for layer in range(1, len(units) - 1)
        for weights in both
    ]
    PLACES(list(dict.fromkeys(names)))


def places(layer, weights, units, threads=256):
    """(1024, 2): row and column of every tile in the order of threads, -1 for none."""
    out = NAMESPACE.empty((1024, 2), np.int64)
    CpuDevice(PLACES).launch(places_name(layer, weights, units, threads), (1, 1, 1), out)
    return out.get()


def tiles(found):
    """Tiles as pairs, and how many rows and columns of them there are."""
    all_of_them = [tuple(pair) for pair in found if pair[0] >= 0]
    return all_of_them, *(max(tile[i] for tile in all_of_them) + 1 for i in (0, 1))


@pytest.mark.usefixtures("_places")
@pytest.mark.parametrize("units", SHAPES)
def test_every_tile_has_one_thread(units):
    owners = []
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(units)):
        found = places(layer, True, units)
        each, rows, columns = tiles(found)
        assert len(each) == len(set(each)) == rows * columns
        if persistent.owned(units, 4) % 16 == 0:
            assert (rows, columns) == (-(-(inputs + 1) // 4), -(-outputs // 4))
        owners += np.flatnonzero(found[:, 0] >= 0).tolist()

        each, rows, columns = tiles(places(layer + 1, False, units))  # the product that it makes
        assert len(each) == len(set(each)) == rows * columns
        assert columns == (1 if outputs < 3 else -(-outputs // 4))
        assert rows in (16, 32, 64)
    assert owners == sorted(set(owners))
    tile = 1 if units == SHAPES[-1] else 16
    if units in (SHAPES[-1], *SHAPES[:2]):
        assert persistent.owned(units, 4) == tile * -(-(owners[-1] + 1) // 256)


@pytest.mark.usefixtures("_places")
def test_pairs_of_lanes_read_the_same_sixteen_bytes():
    """Lanes n and n ^ 2 have one row of tiles, n and n ^ 1 one column, where there are several.

    In gradients but for the last of an odd number of rows, as docs/developer/gpu_paper.md says.
    Products give tiles to threads in the opposite order, which keeps pairs together.
    """
    lane = np.arange(1024)
    for units, threads in PAIRED:
        for layer in range(1, len(units) - 1):
            for weights in (False, True):
                found = places(layer, weights, units, threads)
                has = found[:, 0] >= 0
                _, rows, columns = tiles(found)
                if columns == 1:
                    continue
                if rows % 2 == 1:
                    has &= found[:, 0] < rows - 1
                for bit, what in ((2, 0), (1, 1)):
                    both = has & has[lane ^ bit]
                    assert both.sum() > 0.9 * has.sum()
                    np.testing.assert_array_equal(found[both, what], found[lane ^ bit, what][both])
    # the control: rows of 13 tiles one after the other
    assert (lane[:208] // 13 != (lane[:208] ^ 2) // 13).any()


def test_groups_of_chains(device, monkeypatch, rng):
    monkeypatch.setattr(persistent, "fits", lambda *_: False)
    arrays = None
    found = []
    for most in (1024, 2):
        monkeypatch.setattr(cuda_density, "MOST_CHAINS", most)
        target = pair(device, "gaussian", "float32", np.random.default_rng(3))[1]
        if arrays is None:
            arrays = rng.normal(size=(2, 5, target.dim)).astype(np.float32)
        found.append(ends(target, device, arrays, [5, 3, 1, 9, 3], None))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_program_that_memory_kept_small_is_made_once(device, monkeypatch, rng):
    monkeypatch.setattr(persistent, "fits", lambda *_: False)
    target = pair(device, "gaussian", "float32", rng)[1]
    monkeypatch.setattr(target._native, "_most_chains", lambda each: 2)
    arrays = rng.normal(size=(2, 5, target.dim)).astype(np.float32)
    ends(target, device, arrays, [5, 3, 1, 9, 3], None)
    program = target._native._programs[0]
    assert program.chains == 2
    ends(target, device, arrays, [5, 3, 1, 9, 3], None)
    assert target._native._programs[0] is program


def test_arguments_of_deep_networks(device, monkeypatch, rng):
    """A kernel has 4096 bytes of arguments at most; more need CUDA 12.1."""
    x, y = (device.asarray(rng.normal(size=shape)) for shape in ((9, 2), (9, 1)))
    sizes = []

    def kernels(names):
        return dict.fromkeys(names, lambda _grid, arguments, _shared: sizes.append(len(arguments)))

    monkeypatch.setattr(device_of(device), "kernels", kernels)
    for hidden, fits in ((33, True), (34, False)):
        model = rb.mlp(2, (3,) * hidden, 1)
        target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(1.0))
        one = target._native._persistent
        assert (one is not None) == fits
        if one is not None:
            one.value_and_grad(target.init(0, chains=1))
    assert 4096 - 112 < sizes[0] <= 4096
