"""Gate "gradient" on random problems, and on every width with every number of rows."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oracle.reference import ACTIVATIONS, LIKELIHOODS
from tests.support.gradient_check import CHAINS, ROWS, WIDTHS, check
from tests.support.problems import build_reference

cases = st.fixed_dictionaries(
    {
        "num_in": st.integers(1, 40),
        "hidden": st.lists(st.integers(1, 70), max_size=3).map(tuple),
        "num_out": st.integers(1, 6),
        "activation": st.sampled_from(ACTIVATIONS),
        "likelihood": st.integers(0, len(LIKELIHOODS) - 1),
        "prior": st.integers(0, 4),
        "num_rows": st.integers(1, 130),
        "chains": st.integers(1, 4),
        "seed": st.integers(0, 5),
        "temperature": st.sampled_from([1.0, 0.1, 3.0]),
        "likelihood_temperature": st.sampled_from([1.0, 0.25]),
    }
)


def random_case(case, dtype, data):
    if LIKELIHOODS[case["likelihood"]].startswith("heteroscedastic"):
        case = {**case, "num_out": 2 * case["num_out"]}
    if case["likelihood"] == 3:
        case = {**case, "num_out": case["num_out"] + 1}
    reference, theta = build_reference(**case)
    rows = data.draw(
        st.none() | st.lists(st.integers(0, case["num_rows"] - 1), min_size=1, max_size=80)
    )
    check(reference, theta, dtype, None if rows is None else np.array(rows))


quick = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
slow = settings(quick, max_examples=2000)


@quick
@given(cases, st.sampled_from([np.float64, np.float32]), st.data())
def test_random_problems(case, dtype, data):
    random_case(case, dtype, data)


@pytest.mark.slow
@slow
@given(cases, st.sampled_from([np.float64, np.float32]), st.data())
def test_many_random_problems(case, dtype, data):
    random_case(case, dtype, data)


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_with_every_number_of_rows(width, num_rows):
    for dtype in (np.float64, np.float32):
        for chains in CHAINS:
            reference, theta = build_reference(
                num_in=width,
                hidden=(width,),
                num_out=2,
                activation="gelu" if num_rows < 900 else "tanh",
                num_rows=num_rows,
                chains=chains,
            )
            check(reference, theta, dtype)
