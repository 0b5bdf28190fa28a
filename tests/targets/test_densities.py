"""Log densities given by callables and by compiled functions."""

import ctypes

import numpy as np
import pytest

import ribbit as rb
from tests.oracle import reference

POINTER = ctypes.POINTER(ctypes.c_double)
SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_size_t, POINTER, POINTER, POINTER, ctypes.c_void_p
)


@SIGNATURE
def gaussian(n, x, grad, lp, user):
    """N(0, sd^2) with the sd from the user data, sd 1 without; code 3 when x[0] is above 100."""
    if x[0] > 100:
        return 3
    sd = ctypes.cast(user, POINTER)[0] if user else 1.0
    lp[0] = sum(-0.5 * (x[i] / sd) ** 2 for i in range(n))
    for i in range(n):
        grad[i] = -x[i] / sd**2
    return 0


def quadratic(theta):
    return -0.5 * np.sum(theta**2, axis=-1), -theta


THETA = np.array([[1.0, 2.0, 3.0], [-1.0, 0.0, 0.5]])


@pytest.mark.parametrize("batched", [False, True])
def test_callable(batched):
    density = rb.CallableDensity(quadratic, 3, batched=batched)
    lp, grad = density.value_and_grad(THETA)
    np.testing.assert_array_equal(lp, [-7.0, -0.625])
    np.testing.assert_array_equal(grad, -THETA)
    lp, grad = density.value_and_grad(THETA[0])
    assert np.shape(lp) == ()
    assert lp == -7.0
    np.testing.assert_array_equal(grad, -THETA[0])


def test_callable_may_change_its_argument_and_reuse_its_result():
    buffer = np.empty(3)

    def rude(theta):
        buffer[...] = -theta
        theta[...] = np.nan
        return 0.0, buffer

    theta = THETA.copy()
    _, grad = rb.CallableDensity(rude, 3).value_and_grad(theta)
    np.testing.assert_array_equal(theta, THETA)
    np.testing.assert_array_equal(grad, -THETA)


@pytest.mark.parametrize(
    "result",
    [
        (1, [0, 0, 0]),
        [np.float32(1), np.zeros(3, np.float32)],
        (np.array(1.0), np.zeros(3, ">f8")),
        (np.nan, np.zeros(3)),
        (-np.inf, np.full(3, np.nan)),
    ],
)
def test_what_a_callable_may_return(result):
    lp, grad = rb.CallableDensity(lambda _: result, 3).value_and_grad(np.zeros(3))
    assert lp.dtype == grad.dtype == np.float64
    np.testing.assert_array_equal(lp, float(result[0]))
    np.testing.assert_array_equal(grad, result[1])


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (None, TypeError, r"\(lp, grad\), got None"),
        (1.0, TypeError, r"\(lp, grad\), got float 1.0"),
        ((1.0,), TypeError, "tuple of length 1"),
        ((1.0, np.zeros(3), 0), TypeError, "tuple of length 3"),
        (np.zeros(2), TypeError, r"float64 array of shape \(2,\)"),
        ((np.zeros(1), np.zeros(3)), ValueError, r"lp from fn of shape \(\)"),
        ((1.0, np.zeros(2)), ValueError, r"grad from fn of shape \(3,\), .* \(2,\)"),
        ((1.0, np.zeros((1, 3))), ValueError, "grad from fn"),
        ((1j, np.zeros(3)), TypeError, "lp from fn"),
        (("1", np.zeros(3)), TypeError, "lp from fn"),
        ((True, np.zeros(3)), TypeError, "lp from fn .* got bool"),
        ((None, np.zeros(3)), TypeError, "lp from fn"),
        ((1.0, [None] * 3), TypeError, "grad from fn"),
        ((1.0, [[1], [1, 2]]), TypeError, "grad from fn"),
    ],
)
def test_rubbish_from_a_callable_is_named(result, error, text):
    density = rb.CallableDensity(lambda _: result, 3)
    with pytest.raises(error, match=rf"^\[CallableDensity\] expected .*{text}"):
        density.value_and_grad(np.zeros(3))


def test_batched_callable_must_return_a_batch():
    density = rb.CallableDensity(lambda t: (-1.0, -t), 3, batched=True)
    with pytest.raises(ValueError, match=r"lp from fn of shape \(2,\)"):
        density.value_and_grad(THETA)


def test_an_exception_is_the_same_object():
    raised = RuntimeError("mine")

    def fails(theta):
        raise raised

    with pytest.raises(RuntimeError) as info:
        rb.CallableDensity(fails, 3).value_and_grad(np.zeros(3))
    assert info.value is raised
    assert any(entry.name == "fails" for entry in info.traceback)


def test_init_is_standard_normals_by_chain():
    for density in (rb.CallableDensity(quadratic, 5), rb.CallableDensity.from_pointer(gaussian, 5)):
        start = density.init(3, 4)
        expected = reference.normal(5, seed=3, step=0, chain=2, purpose=reference.INIT)
        np.testing.assert_allclose(start[2], expected, rtol=1e-12)
        np.testing.assert_array_equal(density.init(3), start[0])
        np.testing.assert_array_equal(density.init(3, [2]), start[2:3])


def low_level_callable(*arguments):
    return pytest.importorskip("scipy").LowLevelCallable(*arguments)


@pytest.mark.parametrize(
    "address",
    [
        lambda: gaussian,
        lambda: ctypes.cast(gaussian, ctypes.c_void_p).value,
        lambda: low_level_callable(gaussian),
        lambda: tuple.__getitem__(low_level_callable(gaussian), 0),
    ],
    ids=["ctypes", "integer", "scipy", "capsule"],
)
@pytest.mark.parametrize("threadsafe", [False, True])
def test_pointer(address, threadsafe):
    density = rb.CallableDensity.from_pointer(address(), 3, threadsafe=threadsafe)
    lp, grad = density.value_and_grad(THETA)
    np.testing.assert_array_equal(lp, [-7.0, -0.625])
    np.testing.assert_array_equal(grad, -THETA)
    lp, grad = density.value_and_grad(THETA[1])
    assert lp == -0.625
    assert grad.shape == (3,)


def test_numba_pointer():
    numba = pytest.importorskip("numba")
    types = numba.types

    @numba.cfunc(
        types.intc(
            types.size_t,
            types.CPointer(types.double),
            types.CPointer(types.double),
            types.CPointer(types.double),
            types.voidptr,
        )
    )
    def compiled(n, x, grad, lp, user):
        lp[0] = 0.0
        for i in range(n):
            lp[0] -= 0.5 * x[i] ** 2
            grad[i] = -x[i]
        return 0

    density = rb.CallableDensity.from_pointer(compiled, 3)
    lp, grad = density.value_and_grad(THETA)
    np.testing.assert_array_equal(lp, [-7.0, -0.625])
    np.testing.assert_array_equal(grad, -THETA)


class Settings(ctypes.Structure):
    _fields_ = (("sd", ctypes.c_double),)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([2.0]),
        lambda: (ctypes.c_double * 1)(2.0),
        lambda: Settings(2.0),
        lambda: ctypes.pointer(ctypes.c_double(2.0)),
    ],
)
def test_user_data_is_passed_and_kept_alive(make):
    density = rb.CallableDensity.from_pointer(gaussian, 3, make())
    np.testing.assert_array_equal(density.value_and_grad(THETA)[0], [-1.75, -0.15625])


def test_user_data_without_an_address_of_its_own_is_refused():
    with pytest.raises(TypeError, match="a ctypes pointer, structure or array, or a NumPy array, "):
        rb.CallableDensity.from_pointer(gaussian, 3, ctypes.c_double(2.0))


def test_user_data_of_a_low_level_callable():
    data = ctypes.c_double(2.0)
    user = ctypes.cast(ctypes.pointer(data), ctypes.c_void_p)
    low_level = low_level_callable(gaussian, user)
    density = rb.CallableDensity.from_pointer(low_level, 3)
    np.testing.assert_array_equal(density.value_and_grad(THETA)[0], [-1.75, -0.15625])
    with pytest.raises(ValueError, match="got both"):
        rb.CallableDensity.from_pointer(low_level, 3, np.array([1.0]))


def test_code_of_a_failed_function():
    density = rb.CallableDensity.from_pointer(gaussian, 3)
    with pytest.raises(ValueError, match="got 3"):
        density.value_and_grad(np.full(3, 101.0))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: rb.CallableDensity(3, 3), TypeError),
        (lambda: rb.CallableDensity(quadratic, 0), ValueError),
        (lambda: rb.CallableDensity(quadratic, 3.0), TypeError),
        (lambda: rb.CallableDensity(quadratic, 3, batched=1), TypeError),
        (lambda: rb.CallableDensity.from_pointer(0, 3), ValueError),
        (lambda: rb.CallableDensity.from_pointer(-1, 3), ValueError),
        (lambda: rb.CallableDensity.from_pointer(2**64, 3), ValueError),
        (lambda: rb.CallableDensity.from_pointer(None, 3), TypeError),
        (lambda: rb.CallableDensity.from_pointer(True, 3), TypeError),
        (lambda: rb.CallableDensity.from_pointer(quadratic, 3), TypeError),
        (lambda: rb.CallableDensity.from_pointer(gaussian, True), TypeError),
        (lambda: rb.CallableDensity.from_pointer(gaussian, 3, "data"), TypeError),
        (lambda: rb.CallableDensity.from_pointer(gaussian, 3, np.ones((2, 2)).T), ValueError),
        (lambda: rb.CallableDensity.from_pointer(gaussian, 3, threadsafe="no"), TypeError),
        (lambda: rb.CallableDensity(quadratic, 3).value_and_grad(THETA, [0]), ValueError),
        (lambda: rb.CallableDensity(quadratic, 3).value_and_grad(THETA[:, :2]), ValueError),
        (lambda: rb.CallableDensity(quadratic, 3).value_and_grad([1.0, 2.0, 3.0]), TypeError),
        (lambda: rb.CallableDensity(quadratic, 3).value_and_grad(THETA.astype("f4")), TypeError),
        (lambda: rb.CallableDensity(quadratic, 3).init(chains=0), ValueError),
    ],
)
def test_refuses(make, error):
    with pytest.raises(error, match=r"^\[.+\] expected .+, got "):
        make()
