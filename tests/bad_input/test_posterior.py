"""Any rubbish at any entry point of a posterior: see ``rubbish.py``.

200 cases each, 2,000 in the slow set.
"""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ribbit as rb
from ribbit.targets.posterior import Posterior
from ribbit.targets.predictive import predictive_from_description
from tests.support.likelihoods import EVERY
from tests.support.rubbish import (
    DIM,
    MODEL,
    ROWS,
    Entry,
    X,
    Y,
    arrays,
    check_rubbish,
    inputs,
    is_,
    lp_and_grad,
    options,
    positions,
    seeds,
    some,
    start,
    target,
    things,
)

TARGET = target()
INTEGRATED: Any = rb.Posterior(
    MODEL,
    X,
    Y,
    prior=rb.Normal(1),
    likelihood=rb.Gaussian(),
    dtype=np.float64,
    marginalize="last_layer",
)

labels = some(arrays((ROWS,), (ROWS, 1), dtype=np.float64), arrays((ROWS,), dtype=np.int64))
priors = some(
    st.sampled_from([rb.Normal(1), {"*": rb.Laplace(1)}, {"0.*": rb.Normal(1)}]),
    st.dictionaries(st.sampled_from(["*", "0.*", "2.weight", "log_noise"]), things, max_size=2),
)
likelihoods = some(st.sampled_from(EVERY))


def float64_or_batch(result: Any) -> bool:
    return result.dtype == np.float64 and np.ndim(result) <= 1


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


ENTRIES: dict[str, Entry] = {
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
            "sample_weight": some(st.none(), st.just(np.arange(len(X)) + 0.5)),
            "dtype": options,
            "precision": options,
            "marginalize": some(st.none()),
        },
        lambda r: r.full_dim >= DIM and bool(np.isfinite(r.x).all()),
    ),
    "Posterior(marginalize)": (
        functools.partial(posterior, marginalize="last_layer"),
        {"model": some(st.just(MODEL)), "x": inputs, "prior": priors, "likelihood": likelihoods},
        lambda r: r.dim < r.full_dim >= DIM,
    ),
    "Posterior.complete": (
        INTEGRATED.complete,
        {
            "position": some(arrays((2, INTEGRATED.dim), dtype=np.float64)),
            "seed": seeds,
            "step": seeds,
            "chains": some(hnp.arrays(np.int64, (2,), elements=st.integers(-1, 3))),
        },
        lambda r: r.shape == (2, INTEGRATED.full_dim),
    ),
    "Posterior.reduce": (
        functools.partial(INTEGRATED.reduce, "Posterior.reduce"),
        {"position": some(arrays((2, INTEGRATED.full_dim), dtype=np.float64))},
        lambda r: r.shape[-1] == INTEGRATED.dim,
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
    "Posterior.subset": (
        TARGET.subset,
        {"rows": some(arrays((3,), dtype=np.int64))},
        lambda r: isinstance(r, Posterior) and r.num_rows >= 1,
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
}

# arguments that are right; {} where the call fills them in
RIGHT: dict[str, dict[str, Any]] = {
    "Posterior": {},
    "Posterior(marginalize)": {},
    "Posterior.complete": {
        "position": np.zeros((2, INTEGRATED.dim)),
        "seed": 0,
        "step": 0,
        "chains": np.arange(2),
    },
    "Posterior.leapfrog": {},
    "Posterior.value_and_grad": {"theta": np.zeros(DIM)},
    "Posterior.log_likelihood(x, y)": {"theta": np.zeros((2, DIM)), "x": X, "y": Y},
    "Posterior.outputs": {"theta": np.zeros(DIM), "x": X},
    "Posterior.predictive": {"theta": np.zeros((2, DIM)), "x": X},
}


# Rubbish may be numbers far from unit scale.
@pytest.mark.filterwarnings("ignore::ribbit.errors.ScaleWarning")
@pytest.mark.parametrize("cases", [200, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("entry", ENTRIES)
def test_rubbish_gives_a_typed_error_or_a_sound_result(entry, cases):
    check_rubbish(ENTRIES[entry], RIGHT.get(entry), cases)


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
