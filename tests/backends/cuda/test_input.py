"""Arrays that say they lie in device memory, and what is said when a part of a device is missing.

Nothing here needs a device: CuPy and the CUDA module are stood in for where they are asked.
"""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import checks
from ribbit._arrays import namespace as namespace_module
from ribbit._arrays.namespace import device_of, from_device, is_device_array
from tests.support.rubbish import MODEL, ROWS, X, Y, target

GOOD = {"shape": (ROWS, 2), "typestr": "<f8", "data": (4096, False), "version": 3}


class Foreign:
    """An array of another library in device memory."""

    def __init__(self, **changes):
        self.__cuda_array_interface__ = {**GOOD, **changes}


class Raises:
    """What PyTorch's tensors do that require grad."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("requires grad\nmore lines")


class Meta:
    """What PyTorch's tensors do that have no memory."""

    __array__ = None

    def __dlpack_device__(self):
        raise ValueError("no such device")


def with_interface(value):
    array = Foreign()
    array.__cuda_array_interface__ = value
    return array


def posterior(x, y=Y, **options):
    return rb.Posterior(MODEL, x, y, prior=rb.Normal(1), likelihood=rb.Gaussian(1), **options)


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (Foreign(typestr="<f9"), "its typestr is '<f9'"),
        (Foreign(typestr=">f8"), "its typestr is '>f8'"),
        (Foreign(data=(0, False)), "its pointer is null"),
        (Foreign(data=None), "its data is None"),
        (Foreign(shape=(-1, 2)), "its shape is (-1, 2)"),
        (Foreign(shape=[ROWS, 2]), f"its shape is [{ROWS}, 2]"),
        (Foreign(strides=(8,)), "its strides are (8,)"),
        (with_interface({}), "its __cuda_array_interface__ lacks 'shape', 'typestr', 'data'"),
        (with_interface(None), "its __cuda_array_interface__ is NoneType, not dict"),
        (Raises(), "requires grad"),
        (Raises, "its __cuda_array_interface__ is property, not dict"),
    ],
)
def test_malformed_interfaces(array, why):
    """Refused before CuPy is asked for, with the reason and the caller."""
    assert is_device_array(array)
    with pytest.raises(rb.errors.DTypeError) as error:
        posterior(array, array)
    text = str(error.value)
    assert text.startswith("[Posterior] expected x as an array in device memory, got ")
    assert f"({why}" in text
    assert "\n" not in text


def test_sound_interfaces():
    """The control; empty arrays may have a null pointer."""
    assert checks.malformed(Foreign()) == ""
    assert checks.malformed(Foreign(strides=None)) == ""
    assert checks.malformed(Foreign(strides=(16, 8))) == ""
    assert checks.malformed(Foreign(shape=tuple(np.array([ROWS, 2])))) == ""
    assert checks.malformed(Foreign(shape=(0, 2), data=(0, False))) == ""


def test_arrays_that_lie_nowhere():
    assert not is_device_array(Meta())
    with pytest.raises(TypeError, match=r"^\[Posterior\] expected x as an array of real numbers"):
        posterior(Meta())


def test_the_reason_of_a_library_is_told():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("Can't call numpy() on a tensor that requires grad.\nmore")

    with pytest.raises(TypeError, match=r"Tensor \(Can't call numpy\(\) .* grad\.\)$"):
        posterior(Tensor())


def test_a_library_that_refuses(monkeypatch):
    """Whatever CuPy raises for another library's memory names the caller and the argument."""

    def refuse(value):
        raise ValueError("no such memory")

    cupy = ModuleType("cupy")
    cupy.ndarray, cupy.asarray = type("ndarray", (), {}), refuse
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(namespace_module, "device_of", lambda xp, function: None)
    with pytest.raises(rb.errors.DTypeError, match=r"^\[f\] expected x .*\(no such memory\)$"):
        from_device("f", "x", Foreign())


def test_a_host_target_says_where_x_should_be():
    draws = rb.HMC(target(), step_size=0.01, num_leapfrog_steps=2).sample(5, progress=False)
    fit = rb.BBB(target(), batch_size=ROWS).fit(1, progress=False)
    for function, call in (("Draws.predict", draws.predict), ("MeanField.predict", fit.predict)):
        with pytest.raises(rb.errors.DTypeError) as error:
            call(Foreign())
        expected = f"[{function}] expected x in host memory, where the draws are, got "
        assert str(error.value).startswith(expected)


def test_diagnostics_of_arrays_that_are_not_cupys(device, rng):
    """Those with `get` are copied to the host; others go through CuPy, which is missing here."""
    a = rng.standard_normal((2, 100, 3))
    np.testing.assert_array_equal(rb.diagnostics.rhat(device.asarray(a)), rb.diagnostics.rhat(a))
    with pytest.raises(rb.errors.DTypeError, match=r"^\[rhat\] expected a .*pointer is null"):
        rb.diagnostics.rhat(Foreign(data=(0, False)))


@pytest.mark.parametrize("precision", ["mixed", "tf32"])
def test_tensor_cores_need_device_memory(precision):
    with pytest.raises(ValueError, match=r"for data in host memory, got .*cupy\.asarray"):
        posterior(X, dtype=np.float32, precision=precision)


# ---- what is missing ----


@pytest.fixture
def cupy(monkeypatch):
    """A CuPy with a device and NVRTC; tests take away."""
    nvrtc = SimpleNamespace(getVersion=lambda: (13, 1), getSupportedArchs=lambda: [75, 80, 90])
    device = SimpleNamespace(compute_capability="90")
    modules = {
        "cupy": ModuleType("cupy"),
        "cupy.cuda": SimpleNamespace(nvrtc=nvrtc, Device=lambda: device),
    }
    modules["cupy"].cuda = modules["cupy.cuda"]
    modules["cupy"].is_available = lambda: True
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(namespace_module, "_devices", {})
    return SimpleNamespace(modules=modules, nvrtc=nvrtc, device=device, set=monkeypatch.setitem)


def missing(kind):
    with pytest.raises(kind) as error:
        posterior(Foreign(), Foreign())
    assert str(error.value).startswith("[Posterior] expected ")
    assert ", got " in str(error.value)
    return str(error.value)


def test_no_cupy(cupy):
    cupy.set(sys.modules, "cupy", None)
    assert 'pip install "cupy-cuda13x>=14.2,<16"' in missing(ImportError)


def test_no_driver(cupy):
    cupy.modules["cupy"].is_available = lambda: False
    assert "is a driver installed?" in missing(RuntimeError)


def test_a_device_that_is_too_old(cupy):
    cupy.device.compute_capability = "75"
    assert "of compute capability 8.0 or more, got 7.5" in missing(RuntimeError)


def test_a_device_that_is_newer_than_nvrtc(cupy):
    cupy.device.compute_capability = "120"
    text = missing(ImportError)
    assert "an NVRTC that compiles for compute capability 12.0, got 13.1: update" in text


def test_no_nvrtc(cupy):
    def fail():
        raise RuntimeError("libnvrtc.so.13: cannot open")

    cupy.nvrtc.getVersion = fail
    text = missing(ImportError)
    assert "libnvrtc.so.13: cannot open" in text
    assert 'pip install "cupy-cuda13x>=14.2,<16"' in text


def test_nothing_missing(cupy):
    """The control."""
    device = device_of(cupy.modules["cupy"], "f")
    assert device.xp is cupy.modules["cupy"]
