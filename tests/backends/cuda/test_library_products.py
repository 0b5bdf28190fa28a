"""cuBLASLt where it is installed, its stand-in where the device is made of the CPU.

The stand-in (``cublaslt_on_cpu.cpp``) rounds factors to TF32, to nearest, and adds in float32. A
device may cut factors instead, in whatever order it adds. So a sum of k products may be off by
2^-9 of sum |a| |b| for two cut factors, the stand-in by 2^-10, and both by k roundings of 2^-23.
"""

import contextlib
import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import cublaslt as binding
from ribbit._arrays.device import WORKSPACE_BYTES, pack, product_name
from ribbit._arrays.namespace import device_of
from tests.support.cuda import cpu_device, cublaslt
from tests.support.cuda.precision_problem import build

RELU = rb.mlp(100, (96, 80), 2, activation="relu")


def bound(a, b):
    """Of each sum, for what the library and its stand-in may differ by."""
    size = np.abs(a).astype(float) @ np.abs(b).astype(float)
    return (2.0**-9 + 2.0**-10 + a.shape[-1] * 2.0**-23) * size


@pytest.fixture
def library(device, monkeypatch):
    """A device with the library."""
    found = device_of(device, "test")
    if device is cpu_device.NAMESPACE:
        monkeypatch.setattr(found, "products", cublaslt.stand_in(), raising=False)
    elif found.products is None:
        pytest.skip("no cuBLASLt")
    yield found
    cublaslt.behave()


def without(library, patch):
    """Take the library away."""
    patch.setattr(type(library), "products", None)
    if "products" in vars(library):
        patch.delattr(library, "products")


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


class Product:
    """A product of batches of (m, k) and (k, n) and what it wrote, which begins as NaN."""

    def __init__(self, device, a, b, bias=None, *, relu=False):
        (batches, rows, k), n = a.shape, b.shape[-1]
        self.batches = batches = max(batches, b.shape[0])
        self.name = product_name(n, k, relu=relu, bias=bias is not None)
        xp = device.xp
        given = [None if array is None else xp.asarray(array) for array in (a, b, bias)]
        self.value = xp.full((batches, rows, n), float("nan"), dtype=xp.float32)
        self.space = xp.empty((WORKSPACE_BYTES,), dtype=xp.uint8)
        shared = [array is not None and len(array) > 1 for array in (a, b, bias)]
        strides = [size * own for size, own in zip((rows * k, k * n, n), shared, strict=True)]
        fields = [one for pair in zip(given, strides, strict=True) for one in pair]
        fields += [self.value, rows * n, rows, self.space, WORKSPACE_BYTES]
        assert device.products.takes(self.name, (rows,), (batches,), (*strides[:2], rows * n))
        kernel = device.kernels([self.name])[self.name]
        self.given, self.arguments = given, pack(device, fields)
        self.put = lambda: kernel((1, 1, batches), self.arguments)

    def made(self):
        self.put()
        return self.value.get()


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("shape", [(400, 784, 130, 1), (400, 400, 33, 3), (96, 100, 1, 5)], ids=str)
def test_conformance(library, rng, shape, cuts):
    """The library against its stand-in, with and without bias and ReLU, inputs shared or not."""
    n, k, rows, batches = shape
    a, b, bias = (
        numbers(rng, batches, rows, k),
        numbers(rng, batches, k, n),
        numbers(rng, batches, n),
    )
    host = cpu_device.CpuDevice()
    host.products = cublaslt.stand_in()
    for relu, some, left in ((False, None, a), (True, bias, a), (True, bias, a[:1])):
        cublaslt.behave()
        expected = Product(host, left, b, some, relu=relu).made()
        cublaslt.behave(cuts=cuts)  # what a device might do
        got = Product(library, left, b, some, relu=relu).made()
        allowed = bound(left, b) + (0 if some is None else 2.0**-22 * np.abs(some)[:, None])
        assert (np.abs(got - expected) <= allowed).all()
        exact = left.astype(float) @ b.astype(float)
        exact += 0 if some is None else some[:, None]
        exact = np.maximum(exact, 0) if relu else exact
        assert np.abs(got - exact).max() > 1e-5 * np.abs(exact).max()  # it is not float32
    if library is not host and isinstance(library, cpu_device.CpuDevice):
        assert cublaslt.alive() == 0


def test_single_products_are_of_ten_bits(library, rng):
    """Rows with one term each: two factors that are at most cut. Seven bits are found out."""
    n, k, rows = 96, 100, 64
    a, b = np.zeros((1, rows, k), np.float32), numbers(rng, 1, k, n)
    a[0, np.arange(rows), rng.integers(0, k, rows)] = numbers(rng, rows)
    exact = a.astype(float) @ b.astype(float)

    def worst():
        error = np.abs(Product(library, a, b).made() - exact)
        return (error / np.maximum(np.abs(exact), 1e-30)).max()

    for cuts in (False, True):
        cublaslt.behave(cuts=cuts)
        assert 2.0**-13 < worst() <= 2.0**-9
    if isinstance(library, cpu_device.CpuDevice):
        for cuts in (False, True):  # the control
            cublaslt.behave(bits=7, cuts=cuts)
            assert worst() > 2.0**-9


def test_bits(library, rng):
    """The same ones run after run, of a row among any others and of a batch among any others."""
    large = not isinstance(library, cpu_device.CpuDevice)
    n, k, most = (400, 784, 2048) if large else (96, 100, 64)
    a, b, bias = numbers(rng, 1, most, k), numbers(rng, 64, k, n), numbers(rng, 64, n)
    runs = [Product(library, a, b[:2], bias[:2], relu=True).made() for _ in range(3)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])
    for rows in (most // 16, most // 2, most - 7):
        alone = Product(library, a[:, :rows], b[:2], bias[:2], relu=True).made()
        np.testing.assert_array_equal(alone, runs[0][:, :rows])
    for batches in (1, 64):
        some = Product(library, a[:, :128], b[:batches], bias[:batches], relu=True).made()
        np.testing.assert_array_equal(some[:1], runs[0][:1, :128])


def test_recorded(library, rng):
    """Captured as a graph and replayed on new inputs."""
    a, b, bias = numbers(rng, 2, 40, 100), numbers(rng, 2, 100, 96), numbers(rng, 2, 96)
    product = Product(library, a, b, bias, relu=True)
    replay = library.record(product.put)
    assert np.isnan(product.value.get()).all()
    replay()
    expected = Product(library, a, b, bias, relu=True).made()
    np.testing.assert_array_equal(product.value.get(), expected)
    product.given[0][...] = library.xp.asarray(2 * a)
    replay()
    expected = Product(library, 2 * a, b, bias, relu=True).made()
    np.testing.assert_array_equal(product.value.get(), expected)


@pytest.mark.parametrize("relu", [False, True])
def test_nan_passes(library, rng, relu):
    a, b = numbers(rng, 1, 40, 100), numbers(rng, 1, 100, 96)
    name = product_name(96, 100, relu=relu, bias=False)
    if not library.products.takes(name, (40,), (1,), (0, 0, 0)):
        assert relu  # its ReLU makes 0 of NaN: the kernels of ribbit's own are used
        return
    a[0, 7, 3] = np.nan
    found = np.isnan(Product(library, a, b, relu=relu).made()[0])
    np.testing.assert_array_equal(found, np.broadcast_to(np.arange(40)[:, None] == 7, (40, 96)))


def outputs(device, model, precision="tf32", rows=300, samples=3):
    target = build(device, model, precision, rows=rows)
    return target.outputs(target.init(1, chains=samples), target.x).get()


def test_predictions(device, library, monkeypatch):
    """By the library close to float32, in panels and passes too, with other bits than without."""
    exact, found = outputs(device, RELU, "float32"), outputs(device, RELU)
    size = np.abs(exact).max()
    assert 1e-5 * size < np.abs(found - exact).max() < 2.0**-8 * size
    with monkeypatch.context() as patch:
        patch.setattr("ribbit._backends.cuda.forward._PANEL_ROWS", 128)
        patch.setattr("ribbit._backends.cuda.forward._MOST_SAMPLES", 2)
        np.testing.assert_array_equal(outputs(device, RELU), found)
    without(library, monkeypatch)
    assert np.abs(outputs(device, RELU) - found).max() > 1e-6 * size


def test_weights_that_are_drawn_when_needed(device, library, rng):
    """The bits of predictions with the same weights stored; no multiple of 4 is needed of them."""
    target = build(device, RELU, "tf32")
    assert target.dim % 4 == 2
    mean, scale = 0.1 * numbers(rng, target.dim), np.full(target.dim, 0.01, np.float32)
    fit = rb.MeanField(device.asarray(mean), device.asarray(scale), predictive=target)
    drawn, stored = fit.predict(target.x, 6, seed=4), fit.draws(6, seed=4).predict(target.x)
    np.testing.assert_array_equal(drawn.mean.get(), stored.mean.get())
    if isinstance(library, cpu_device.CpuDevice):
        assert len(library.products._known) == 2


def test_masked_predictions(device, library):
    """Of MC dropout: layers below the first mask once for all samples."""
    layers = [rb.Dense(96), rb.Activation("relu"), rb.Dropout(0.2), rb.Dense(80)]
    model = rb.Model([*layers, rb.Activation("relu"), rb.Dense(1)], input_shape=(100,))
    means = {}
    for precision in ("float32", "tf32"):
        target = build(device, model, precision)
        masked = target.masked(precision=4.0)
        theta = masked.init(0, chains=1)
        fit = rb.MCDropout(target, precision=4.0, batch_size=8).fit(
            1, init=theta[0], progress=False
        )
        means[precision] = fit.predict(target.x, 5).mean.get()
    size = np.abs(means["float32"]).max()
    assert 0 < np.abs(means["tf32"] - means["float32"]).max() < 2.0**-7 * size
    if isinstance(library, cpu_device.CpuDevice):  # asked about nothing else than is launched,
        fitting = library.products._fitting  # but for 8 rows: whether NaN passes
        assert {(kind.k, many) for kind, rows, many, _ in fitting if rows != 8} == {
            (100, 1),
            (96, 5),
        }


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        (rb.mlp(100, (96, 80), 2, activation="silu"), "tf32"),  # not the library's
        (rb.mlp(64, (100, 64), 2, activation="relu"), "tf32"),  # narrow
        (rb.mlp(100, (98, 70), 2, activation="relu"), "tf32"),  # not by 16 bytes
        (RELU, "mixed"),
        (RELU, "float32"),
    ],
)
def test_what_stays(device, library, monkeypatch, model, precision):
    """The same bits with and without the library."""
    found = outputs(device, model, precision, rows=40)
    without(library, monkeypatch)
    np.testing.assert_array_equal(outputs(device, model, precision, rows=40), found)


@pytest.mark.parametrize("precision", ["float32", "mixed", "tf32"])
def test_where_it_is_not_looked_for(device, monkeypatch, precision):
    """Neither for predictions nor for gradients but in "tf32", the control."""

    class Asked(Exception):
        pass

    def fail(self):
        raise Asked

    found = device_of(device, "test")
    monkeypatch.setattr(type(found), "products", property(fail))
    target = build(device, RELU, precision)
    target.value_and_grad(target.init(1, chains=2))
    with pytest.raises(Asked) if precision == "tf32" else contextlib.nullcontext():
        outputs(device, RELU, precision)


def test_gradients_stay(device, library, monkeypatch):
    """A force must not depend on how many chains there are, which the library does not promise."""

    def grad():
        target = build(device, RELU, "tf32")
        return target.value_and_grad(target.init(1, chains=2))[1].get()

    found = grad()
    without(library, monkeypatch)
    np.testing.assert_array_equal(grad(), found)


@pytest.fixture
def standing(library):
    if not isinstance(library, cpu_device.CpuDevice):
        pytest.skip("of the stand-in")
    return library


def test_refusals(device, standing, rng, monkeypatch):
    """What it cannot do as ribbit does stays with ribbit's own kernels; later it is an error."""
    with monkeypatch.context() as patch:
        without(standing, patch)
        own = outputs(device, RELU)
    for fault in ({"swallows": True}, {"most": 2}):
        monkeypatch.setattr(standing, "products", cublaslt.stand_in())
        cublaslt.behave(**fault)
        np.testing.assert_array_equal(outputs(device, RELU), own)
    monkeypatch.setattr(standing, "products", cublaslt.stand_in())
    a, b = numbers(rng, 1, 40, 100), numbers(rng, 2, 100, 96)
    product = Product(standing, a, b)
    kernel = standing.kernels([product.name])[product.name]
    with pytest.raises(RuntimeError, match=r"expected cuBLASLt to multiply \(40, 100\) by .* 3 at"):
        kernel((1, 1, 3), product.arguments)
    shifted = np.frombuffer(product.arguments, np.int64) + np.eye(1, 11, dtype=np.int64)[0] * 4
    with pytest.raises(
        RuntimeError, match=r"cublasLtMatmul of version \d+ .* \(an invalid value\)"
    ):
        kernel((1, 1, 2), shifted.tobytes())
    assert cublaslt.alive() == 0


def test_passes_are_asked_about(device, standing, monkeypatch):
    """Ten samples by fours: one that takes no two is not used at all."""
    monkeypatch.setattr("ribbit._backends.cuda.forward._MOST_SAMPLES", 4)
    found, fits = outputs(device, RELU, samples=10), binding.CublasLt._fits
    asked = {many for _, rows, many, _ in standing.products._fitting if rows != 8}
    assert asked == {4, 2}
    with monkeypatch.context() as patch:
        without(standing, patch)
        own = outputs(device, RELU, samples=10)
    for refused, expected in ((2, own), (3, found)):  # the control: none has three
        monkeypatch.setattr(
            binding.CublasLt,
            "_fits",
            lambda self, kind, rows, many, strides, no=refused: (
                many != no and fits(self, kind, rows, many, strides)
            ),
        )
        got = outputs(device, RELU, samples=10)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ({"create": 1}, "Create"),
        ({"heuristic": 14}, "MatmulAlgoGetHeuristic"),
        ({"heuristic": 7}, "MatmulAlgoGetHeuristic"),
        ({"check": 14}, "MatmulAlgoCheck"),
    ],
    ids=str,
)
def test_failures_are_errors(device, standing, monkeypatch, fault, name):
    """They name the way round and are forgotten."""
    with monkeypatch.context() as patch:
        without(standing, patch)
        own = outputs(device, RELU)
    found, products = outputs(device, RELU), cublaslt.stand_in()

    def tried():
        new = cublaslt.stand_in() if "create" in fault else products
        monkeypatch.setattr(standing, "products", new)
        return outputs(device, RELU)

    cublaslt.behave(**fault, swallows=True)
    with pytest.raises(RuntimeError, match=rf"cublasLt{name} of .* 'float32', or ribbit without"):
        tried()
    assert cublaslt.alive() == 0
    cublaslt.behave(swallows=True)  # whether NaN passes is asked after all
    np.testing.assert_array_equal(tried(), own)
    products = cublaslt.stand_in()
    cublaslt.behave()
    np.testing.assert_array_equal(tried(), found)


@pytest.mark.parametrize("refusal", [{"heuristic": 15}, {"check": 15}, {"check": 7}], ids=str)
def test_refusals_are_no_errors(device, standing, monkeypatch, refusal):
    """The control of the failures: what it has no algorithm for stays with ribbit's own kernels."""
    cublaslt.behave(**refusal)
    found = outputs(device, RELU)
    without(standing, monkeypatch)
    np.testing.assert_array_equal(outputs(device, RELU), found)


def test_finding(monkeypatch, tmp_path):
    """By CuPy's loader; a library that does not load is an error, none is none."""

    class Missing(RuntimeError):
        pass

    def load(name):
        assert name == "cublasLt"
        if isinstance(path, Exception):
            raise path
        return SimpleNamespace(abs_path=path)

    pathfinder = ModuleType("cuda.pathfinder")
    pathfinder.load_nvidia_dynamic_lib, pathfinder.DynamicLibNotFoundError = load, Missing
    package = ModuleType("cuda")
    package.pathfinder = pathfinder
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    path = cublaslt.path()
    assert binding.find() == path
    assert binding.version() == "13.0.0"
    path = Missing()
    assert binding.find() is None
    with pytest.raises(ImportError, match="no libcublasLt"):
        binding.version()
    for path in (RuntimeError("Failed to dlopen it"), OSError("it is too short")):
        for function in (binding.find, binding.version):
            with pytest.raises(
                RuntimeError, match=rf"cuBLASLt that .* finds to load, got {path}: use precision"
            ):
                function()
    monkeypatch.setitem(sys.modules, "cuda", None)
    assert binding.find() is None
    broken = tmp_path / "libcublasLt.so.13"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(binding, "find", lambda: str(broken))
    for function in (
        binding.version,
        lambda: binding.CublasLt(str(broken), cpu_device.NAMESPACE),
    ):
        with pytest.raises(
            RuntimeError, match=r"expected cuBLASLt in .*libcublasLt\.so\.13 to load, got .*: use"
        ):
            function()


def test_header(tmp_path):
    """Constants, sizes and prototypes are those of cublasLt.h, where it is installed."""
    folders = cublaslt.headers()
    if folders is None:
        pytest.skip("no cublasLt.h with the headers of the CUDA runtime")
    options = [f"-isystem{folder}" for folder in folders]
    checks = [f"static_assert({name} == {value});" for name, value in binding.CONSTANTS.items()]
    size = ctypes.sizeof(binding._Found)
    checks.append(f"static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == {size});")
    checked = tmp_path / "checked.h"
    checked.write_text("#include <cublasLt.h>\n" + "\n".join(checks) + "\n")
    flags = ["-DRIBBIT_CUBLASLT_HEADER", *options, "-include", str(checked)]
    cublaslt.compiled(tmp_path / "library.o", "-c", *flags)
    checked.write_text(checked.read_text().replace("_DEFAULT == 1", "_DEFAULT == 3"))
    with pytest.raises(RuntimeError, match="static assertion failed"):  # the control
        cublaslt.compiled(tmp_path / "library.o", "-c", *flags)


def test_descriptors_of_the_library(monkeypatch):
    """The library itself takes every attribute that is set, which needs no device."""
    path = binding.find()
    if path is None:
        pytest.skip("no cuBLASLt")
    call = binding.CublasLt._call
    monkeypatch.setattr(  # a handle needs a device
        binding.CublasLt, "_call", lambda self, name, *a: name == "Create" or call(self, name, *a)
    )
    found = binding.CublasLt(path, None)
    with found._described(binding._Kind(400, 784, 1, 1), 2048, 125) as handles:
        assert all(handles)
    with found._preferred() as preference:
        assert preference
        wrong = "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES"
        with pytest.raises(RuntimeError, match=r"PreferenceSetAttribute .* got status 7"):
            found._set("MatmulPreference", preference, wrong, ctypes.c_int(1))
