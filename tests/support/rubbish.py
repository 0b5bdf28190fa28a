"""Rubbish for arguments, and the check that an entry point answers it well.

An entry point gets one argument after another replaced by arbitrary objects and arrays. What comes
must be a TypeError or ValueError that reads ``[function] expected ..., got ...``; when nothing is
raised, the result is checked. Warnings are errors in this suite.
"""

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ribbit as rb
from ribbit.targets.likelihoods import Likelihood
from ribbit.targets.posterior import Posterior

# what to call, how to draw each argument, what a result must be
Entry = tuple[Callable[..., Any], dict[str, Any], Callable[[Any], bool]]

MESSAGE = re.compile(r"^\[[^\]]+\] (expected|.+ must|\w+ and \w+ exclude) .+, got .+", re.DOTALL)

MODEL = rb.mlp(2, (3,), 1)
DIM = MODEL.dim  # 13
ROWS = 4
X, Y = np.arange(8.0).reshape(ROWS, 2) / 8, np.array([0.0, 1.0, 1.0, 0.0])


def target(likelihood: Likelihood | None = None, **options: Any) -> Posterior:
    options = {"prior": rb.Normal(1.0), "dtype": np.float64, **options}
    return rb.Posterior(MODEL, X, Y, likelihood=likelihood or rb.Gaussian(0.5), **options)


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
options = some(st.sampled_from([np.float32, np.float64, "float32", "f8", ">f4", "int", "x"]))

# --- what results must be ------------------------------------------------------------------------


def is_(kind: type) -> Callable[[Any], bool]:
    return lambda result: isinstance(result, kind)


def lp_and_grad(result: Any) -> bool:
    lp, grad = result
    return lp.dtype == np.float64 and np.shape(lp) == grad.shape[:-1] and grad.shape[-1] == DIM


def start(size: int) -> Callable[[Any], bool]:
    return lambda result: result.shape[-1] == size and bool(np.isfinite(result).all())


# --- the check -----------------------------------------------------------------------------------


def check_rubbish(entry: Entry, right: dict[str, Any] | None, cases: int) -> None:
    """Try `cases` cases; `right` are arguments for those left alone, None: none is left alone."""
    call, strategies, sound = entry

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
        if right is None:
            changed = set(names)
        arguments = {
            **(right or {}),
            **{n: data.draw(strategies[n], label=n) for n in sorted(changed)},
        }
        try:
            result = call(**arguments)
        except (TypeError, ValueError) as error:
            if not MESSAGE.match(str(error)):
                raise
        else:
            assert sound(result), result

    check()
