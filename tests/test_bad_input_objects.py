"""Any rubbish at any entry point of the objects gives a typed error, or a sound result.

An entry point gets one argument after another replaced by arbitrary objects and arrays. What comes
must be a TypeError or ValueError that reads ``[function] expected ..., got ...``; when nothing is
raised, the result is checked. Warnings are errors in this suite. 200 cases each, 2,000 in the slow
set.
"""

import ctypes
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ribbit as rb
from ribbit.likelihoods import Likelihood
from ribbit.model import Model
from ribbit.posterior import Posterior, predictive_from_description
from ribbit.priors import Prior

MESSAGE = re.compile(r"^\[[^\]]+\] expected .+, got .+", re.DOTALL)

MODEL = rb.mlp(2, (3,), 1)
DIM = MODEL.dim  # 13
ROWS = 4
X, Y = np.arange(8.0).reshape(ROWS, 2) / 8, np.array([0.0, 1.0, 1.0, 0.0])


def target(likelihood: Likelihood | None = None, **options: Any) -> Posterior:
    options = {"prior": rb.Normal(1.0), "dtype": np.float64, **options}
    return rb.Posterior(MODEL, X, Y, likelihood=likelihood or rb.Gaussian(0.5), **options)


TARGET = target()

# --- arbitrary arguments -------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(-3, 5),
    st.sampled_from([2**31, 2**32, 2**63, 2**64, -(2**63), 10**400]),
    st.floats(-2, 2),
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-320, 1e300, 0.5, 1.0]),
    st.sampled_from([np.float32(0.5), np.float64("nan"), np.int8(2), np.uint64(3), np.bool_(1)]),
)
things = st.one_of(
    numbers,
    st.none(),
    st.booleans(),
    st.text(max_size=4),
    st.binary(max_size=3),
    st.complex_numbers(max_magnitude=2),
    st.sampled_from(
        [Fraction(1, 2), object(), int, float, np.float32, np.nan, ..., len, {}, set()]
    ),
    st.lists(st.one_of(numbers, st.text(max_size=2), st.lists(numbers, max_size=3)), max_size=5),
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), numbers, max_size=2),
)
dtypes = st.one_of(
    hnp.floating_dtypes(),
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.boolean_dtypes(),
    hnp.complex_number_dtypes(),
    hnp.unicode_string_dtypes(max_len=2),
    hnp.datetime64_dtypes(),
    st.just(np.dtype(object)),
    st.just(np.dtype([("a", "f4")])),
)


@st.composite
def arrays(draw: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = None) -> Any:
    """Arrays of likely or arbitrary shapes, any dtype, byte order and strides."""
    right = draw(st.integers(0, 9))
    shape = draw(st.sampled_from(shapes))
    if right == 0:
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    kind = np.dtype(dtype or np.float64) if right > 2 else draw(dtypes)
    array = np.zeros(shape, dtype=kind)
    if kind.kind in "iufb":
        values = hnp.arrays(np.float64, shape, elements=st.sampled_from([0.0, 1.0, 2.0, 0.5]))
        array = draw(values).astype(kind)
        if kind.kind == "f" and array.size and draw(st.integers(0, 4)) == 0:
            place = draw(st.integers(0, array.size - 1))
            array.flat[place] = draw(st.sampled_from([math.nan, math.inf, -math.inf, 1e4]))
    layout = draw(st.sampled_from(["c", "c", "f", "step", "reverse", "swap"]))
    if layout == "f":
        array = np.asfortranarray(array)
    elif layout == "step" and array.ndim:
        array = np.repeat(array, 2, axis=0)[::2]
    elif layout == "reverse" and array.ndim:
        array = array[::-1]
    elif layout == "swap":
        array = array.astype(array.dtype.newbyteorder())
    return array


def some(*strategies: Any) -> Any:
    """Mostly one of the strategies, else any thing."""
    # An index, because one_of flattens its arguments and would drown them in things.
    pick = st.integers(0, 4 * len(strategies))
    return pick.flatmap(lambda i: (strategies * 4 + (things,))[i])


seeds = some(st.integers(-1, 2**64))
positions = some(arrays((DIM,), (2, DIM), dtype=np.float64))
inputs = some(arrays((ROWS, 2), (1, 2), dtype=np.float64))
labels = some(arrays((ROWS,), (ROWS, 1), dtype=np.float64), arrays((ROWS,), dtype=np.int64))
options = some(st.sampled_from([np.float32, np.float64, "float32", "f8", ">f4", "int", "x"]))
priors = some(
    st.sampled_from([rb.Normal(1), {"*": rb.Laplace(1)}, {"0.*": rb.Normal(1)}]),
    st.dictionaries(st.sampled_from(["*", "0.*", "2.weight", "log_noise"]), things, max_size=2),
)
likelihoods = some(
    st.sampled_from(
        [
            rb.Gaussian(1),
            rb.Gaussian(),
            rb.HeteroscedasticGaussian(),
            rb.Categorical(),
            rb.Bernoulli(),
            rb.Poisson(),
        ]
    )
)
layers = some(
    st.sampled_from([rb.Dense(2), rb.Activation("relu"), rb.Dropout(0.5), rb.Dense(1, bias=False)])
)

# --- entry points: what to call, how to draw each argument, what a result must be ----------------


def is_(kind: type) -> Callable[[Any], bool]:
    return lambda result: isinstance(result, kind)


def finite_scale(prior: Prior) -> bool:
    return prior.spread() > 0 and all(math.isfinite(v) for v in prior.table_values())


def lp_and_grad(result: Any) -> bool:
    lp, grad = result
    return lp.dtype == np.float64 and np.shape(lp) == grad.shape[:-1] and grad.shape[-1] == DIM


def float64_or_batch(result: Any) -> bool:
    return result.dtype == np.float64 and np.ndim(result) <= 1


def start(size: int) -> Callable[[Any], bool]:
    return lambda result: result.shape[-1] == size and bool(np.isfinite(result).all())


def posterior(**changes: Any) -> Posterior:
    arguments = {
        "model": MODEL,
        "x": X,
        "y": Y,
        "prior": rb.Normal(1),
        "likelihood": rb.Gaussian(1),
    }
    arguments.update(changes)
    return rb.Posterior(arguments.pop("model"), arguments.pop("x"), arguments.pop("y"), **arguments)


def leapfrog(**changes: Any) -> Any:
    theta = np.zeros((2, DIM))
    arguments = {"position": theta, "momentum": theta + 1, "grad": theta, "step_size": 1e-3}
    return TARGET.leapfrog(**{**arguments, "num_steps": 2, **changes})


def evaluate(result: Any) -> Any:
    density = rb.CallableDensity(lambda _: result, 3)
    return density.value_and_grad(np.zeros(3))


def from_pointer(address: Any, **arguments: Any) -> Any:
    # An integer that is no address would crash; only those that are refused are tried.
    if isinstance(address, int | np.integer) and not isinstance(address, bool) and address > 0:
        address = 0
    return rb.CallableDensity.from_pointer(address, **arguments)


POINTER = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)

ENTRIES: dict[str, tuple[Callable[..., Any], dict[str, Any], Callable[[Any], bool]]] = {
    "Dense": (
        rb.Dense,
        {"units": some(st.integers(-1, 5)), "bias": some(st.booleans())},
        lambda r: r.units >= 1,
    ),
    "Activation": (
        rb.Activation,
        {"name": some(st.sampled_from(["relu", "tanh"]))},
        is_(rb.Activation),
    ),
    "Dropout": (rb.Dropout, {"rate": things}, lambda r: 0 <= r.rate < 1),
    "Model": (
        rb.Model,
        {
            "layers": some(st.lists(layers, max_size=3)),
            "input_shape": some(st.tuples(st.integers(-1, 3)), st.lists(things, max_size=2)),
        },
        lambda r: r.dim >= 1,
    ),
    "mlp": (
        rb.mlp,
        {
            "in_features": things,
            "hidden": some(st.lists(st.integers(0, 4), max_size=2), st.tuples(things)),
            "out_features": some(st.integers(0, 3)),
            "activation": some(st.sampled_from(["relu", "gelu"])),
        },
        is_(Model),
    ),
    "Model.init": (
        MODEL.init,
        {
            "seed": seeds,
            "chains": some(
                st.integers(-1, 4), arrays((2,), dtype=np.int64), st.lists(things, max_size=3)
            ).filter(lambda c: not isinstance(c, int) or c < 1000),
            "scheme": some(st.sampled_from(["he", "small"])),
            "dtype": options,
        },
        start(DIM),
    ),
    "Model.unravel": (MODEL.unravel, {"theta": positions}, is_(dict)),
    "Model.ravel": (
        MODEL.ravel,
        {
            "views": some(
                st.dictionaries(
                    st.sampled_from(["0.weight", "0.bias", "2.bias", "3.bias"]),
                    some(arrays((2, 3), (3,), (1,), (2, 2, 3), dtype="f4")),
                    max_size=2,
                ).map(lambda some_views: {**MODEL.unravel(np.zeros(DIM, "f4")), **some_views})
            )
        },
        lambda r: r.shape[-1] == DIM,
    ),
    "Model.apply": (
        MODEL.apply,
        {"theta": positions, "x": inputs},
        lambda r: r.ndim in (2, 3) and r.shape[-1] == 1,
    ),
    "Model.from_description": (
        Model.from_description,
        {
            "description": some(
                st.fixed_dictionaries(
                    {
                        "layers": some(
                            st.lists(
                                some(
                                    st.just({"layer": "Dense", "units": 2, "bias": True}),
                                    st.fixed_dictionaries({"layer": things, "units": things}),
                                    st.fixed_dictionaries(
                                        {"layer": st.just("Dense"), "units": things}
                                    ),
                                ),
                                max_size=2,
                            )
                        ),
                        "input_shape": some(st.just([2])),
                    }
                )
            )
        },
        is_(Model),
    ),
    "Normal": (rb.Normal, {"scale": things, "fan_in": some(st.booleans())}, finite_scale),
    "Laplace": (rb.Laplace, {"scale": things}, finite_scale),
    "Logistic": (rb.Logistic, {"scale": things}, finite_scale),
    "StudentT": (rb.StudentT, {"df": things, "scale": things}, finite_scale),
    "ScaleMixture": (
        rb.ScaleMixture,
        {"weight": some(st.floats(-0.5, 1.5)), "scale1": things, "scale2": things},
        finite_scale,
    ),
    "Gaussian": (
        rb.Gaussian,
        {"scale": things, "log_noise_prior": some(st.just(rb.Normal(1)))},
        lambda r: r.table_scale > 0,
    ),
    "Posterior": (
        posterior,
        {
            "model": some(st.just(MODEL)),
            "x": inputs,
            "y": labels,
            "prior": priors,
            "likelihood": likelihoods,
            "temperature": things,
            "likelihood_temperature": things,
            "dtype": options,
        },
        lambda r: r.dim >= DIM and bool(np.isfinite(r.x).all()),
    ),
    "Posterior.init": (
        target(rb.Gaussian()).init,
        {
            "seed": seeds,
            "chains": some(st.integers(-1, 4)).filter(lambda c: not isinstance(c, int) or c < 1000),
            "scheme": some(st.just("small")),
        },
        start(DIM + 1),
    ),
    "Posterior.unravel": (
        target(rb.Gaussian()).unravel,
        {"theta": some(arrays((DIM + 1,), (2, DIM + 1), (2, 3, DIM + 1)))},
        is_(dict),
    ),
    "Posterior.value_and_grad": (
        TARGET.value_and_grad,
        {"theta": positions, "rows": some(arrays((3,), dtype=np.int64), st.none())},
        lp_and_grad,
    ),
    "Posterior.terms_and_grad": (
        TARGET.terms_and_grad,
        {"theta": positions},
        lambda r: r[0].shape == (*r[1].shape[:-1], 2),
    ),
    "Posterior.log_likelihood": (TARGET.log_likelihood, {"theta": positions}, float64_or_batch),
    "Posterior.log_likelihood(x, y)": (
        TARGET.log_likelihood,
        {"theta": some(arrays((2, DIM), dtype=np.float64)), "x": inputs, "y": labels},
        lambda r: r.dtype == np.float64,
    ),
    "Posterior.log_prior": (TARGET.log_prior, {"theta": positions}, float64_or_batch),
    "Posterior.outputs": (
        TARGET.outputs,
        {"theta": positions, "x": inputs},
        lambda r: r.shape[-1] == 1,
    ),
    "Posterior.predictive": (
        TARGET.predictive,
        {"theta": some(arrays((2, DIM), dtype=np.float64)), "x": inputs},
        lambda r: r.mean.ndim == 3,
    ),
    "Posterior.leapfrog": (
        leapfrog,
        {
            "position": some(arrays((2, DIM), dtype=np.float64)),
            "momentum": some(arrays((2, DIM), dtype=np.float64)),
            "grad": some(arrays((2, DIM), dtype=np.float64)),
            "step_size": some(arrays((2,), (), dtype=np.float64)),
            "num_steps": some(
                st.integers(0, 5),
                hnp.arrays(np.int64, (2,), elements=st.integers(0, 3)),
                hnp.arrays(np.int8, st.integers(0, 3), elements=st.integers(-1, 3)),
            ).filter(lambda n: not isinstance(n, int | np.integer) or n < 100 or n > 2**62),
            "inverse_mass": some(arrays((DIM,), (2, DIM), dtype=np.float64)),
        },
        lambda r: r[0].shape == r[1].shape == r[3].shape == (2, DIM) and r[2].shape == (2, 2),
    ),
    "predictive_from_description": (
        predictive_from_description,
        {
            "description": some(
                st.fixed_dictionaries(
                    {
                        "model": some(st.just(MODEL.describe())),
                        "likelihood": some(
                            st.just(rb.Gaussian().describe()),
                            st.fixed_dictionaries({"likelihood": things}),
                        ),
                    }
                )
            )
        },
        lambda r: r.dim >= DIM,
    ),
    "random.normal": (
        rb.random.normal,
        {
            "shape": some(
                st.integers(-1, 9), st.tuples(st.integers(0, 3), st.integers(-1, 3))
            ).filter(lambda n: not isinstance(n, int) or not 1000 < n < 2**35),
            "seed": seeds,
            "stream": some(st.integers(-1, 2**32)),
            "dtype": options,
        },
        lambda r: bool(np.isfinite(r).all()),
    ),
    "reparameterize": (
        rb.reparameterize,
        {
            "mean": some(arrays((3,), dtype=np.float32)),
            "rho": some(arrays((3,), dtype=np.float32)),
            "num_samples": some(st.integers(-1, 4)).filter(
                lambda n: not isinstance(n, int) or n < 1000 or n >= 2**32
            ),
            "seed": seeds,
            "step": some(st.integers(-1, 2**40)),
        },
        lambda r: r.ndim == 2,
    ),
    "CallableDensity": (
        rb.CallableDensity,
        {"fn": some(st.just(len)), "dim": things, "batched": some(st.booleans())},
        lambda r: r.dim >= 1,
    ),
    "CallableDensity, what fn returns": (
        evaluate,
        {
            "result": some(
                st.tuples(some(numbers, arrays(())), some(arrays((3,)))),
                st.lists(things, max_size=3),
                arrays((2,), (2, 3)),
            )
        },
        lambda r: np.shape(r[0]) == () and r[1].shape == (3,),
    ),
    "CallableDensity.value_and_grad": (
        rb.CallableDensity(lambda t: (0.0, -t), DIM).value_and_grad,
        {"theta": positions, "rows": st.one_of(st.none(), st.none(), things)},
        lp_and_grad,
    ),
    "CallableDensity.from_pointer": (
        from_pointer,
        {
            "address": some(st.just(POINTER)),
            "dim": things,
            "user_data": some(st.just(np.zeros(2)), st.none(), arrays((2,))),
            "threadsafe": some(st.booleans()),
        },
        lambda r: r.dim >= 1,
    ),
}

# arguments that are right, used where a case leaves one alone
RIGHT: dict[str, dict[str, Any]] = {
    "Dense": {"units": 3},
    "Model": {"layers": [rb.Dense(2)], "input_shape": (2,)},
    "mlp": {"in_features": 2, "hidden": (3,), "out_features": 1},
    "Model.apply": {"theta": np.zeros(DIM), "x": X},
    "StudentT": {"df": 4, "scale": 1.0},
    "ScaleMixture": {"weight": 0.5, "scale1": 1.0, "scale2": 1.0},
    "Normal": {"scale": 1.0},
    "Posterior.value_and_grad": {"theta": np.zeros(DIM)},
    "Posterior.log_likelihood(x, y)": {"theta": np.zeros((2, DIM)), "x": X, "y": Y},
    "Posterior.outputs": {"theta": np.zeros(DIM), "x": X},
    "Posterior.predictive": {"theta": np.zeros((2, DIM)), "x": X},
    "random.normal": {"shape": 3, "seed": 0},
    "reparameterize": {
        "mean": np.zeros(3, np.float32),
        "rho": np.zeros(3, np.float32),
        "num_samples": 2,
        "seed": 0,
    },
    "CallableDensity": {"fn": len, "dim": 3},
    "CallableDensity.value_and_grad": {"theta": np.zeros(DIM)},
    "CallableDensity.from_pointer": {"address": POINTER, "dim": 3},
}


@pytest.mark.parametrize("cases", [200, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("entry", ENTRIES)
def test_rubbish_gives_a_typed_error_or_a_sound_result(entry, cases):
    call, strategies, sound = ENTRIES[entry]
    right = RIGHT.get(entry, {})

    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def check(data):
        # One or two wrong arguments at a time reach every check; all at once only the first.
        names = list(strategies)
        changed = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=2))
        if not right and entry not in ("Posterior", "Posterior.leapfrog"):
            changed = set(names)
        arguments = {**right, **{n: data.draw(strategies[n], label=n) for n in sorted(changed)}}
        try:
            result = call(**arguments)
        except (TypeError, ValueError) as error:
            if not MESSAGE.match(str(error)):
                raise
        else:
            assert sound(result), result

    check()


def test_the_check_catches_untyped_errors():
    """Control: the same loop must fail on an entry point without checks."""
    ENTRIES["unchecked"] = (lambda scale: float(scale), {"scale": things}, lambda r: r > 0)
    try:
        with pytest.raises((AssertionError, TypeError, ValueError, BaseExceptionGroup)):
            test_rubbish_gives_a_typed_error_or_a_sound_result("unchecked", 200)
    finally:
        del ENTRIES["unchecked"]


class ForeignArray:
    """What an array in another memory looks like to NumPy."""

    __cuda_array_interface__ = {"version": 3}  # noqa: RUF012
    shape, dtype, ndim = (ROWS, 2), np.dtype(np.float64), 2

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("copied between devices silently")


@pytest.mark.parametrize(
    "call",
    [
        lambda a: rb.Posterior(MODEL, a, Y, prior=rb.Normal(1), likelihood=rb.Gaussian(1)),
        lambda a: rb.Posterior(MODEL, X, a, prior=rb.Normal(1), likelihood=rb.Gaussian(1)),
        lambda a: MODEL.apply(np.zeros(DIM), a),
        lambda a: MODEL.apply(a, X),
        lambda a: TARGET.value_and_grad(a),
        lambda a: TARGET.value_and_grad(np.zeros(DIM), a),
        lambda a: TARGET.predictive(a, X),
        lambda a: rb.CallableDensity(len, 3).value_and_grad(a),
        lambda a: rb.reparameterize(a, np.zeros(3), 1, 0),
    ],
)
def test_arrays_of_another_memory_are_refused(call):
    with pytest.raises(TypeError, match=r"^\[.+\] expected .+, got .*ForeignArray"):
        call(ForeignArray())


def test_unknown_keywords_and_positional_options_are_errors():
    with pytest.raises(TypeError):
        rb.Posterior(MODEL, X, Y, rb.Normal(1), rb.Gaussian(1))
    with pytest.raises(TypeError):
        target(temprature=1.0)
    with pytest.raises(TypeError):
        rb.mlp(2, (3,), 1, "relu")
    with pytest.raises(TypeError):
        rb.Normal(1.0, True)


def test_nothing_is_computed_before_the_checks():
    calls = []
    density = rb.CallableDensity(lambda t: calls.append(t), 3)
    for theta in (np.zeros(2), np.zeros(3, np.float32), [0.0] * 3):
        with pytest.raises((TypeError, ValueError)):
            density.value_and_grad(theta)
    assert not calls
