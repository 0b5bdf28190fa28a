"""Any rubbish at any entry point of layers, models, priors and densities: see ``rubbish.py``.

200 cases each, 2,000 in the slow set.
"""

import ctypes
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import ribbit as rb
from ribbit.models.model import Model
from ribbit.targets.priors import Prior
from tests.support.rubbish import (
    DIM,
    MODEL,
    Entry,
    X,
    arrays,
    check_rubbish,
    inputs,
    is_,
    lp_and_grad,
    numbers,
    options,
    positions,
    seeds,
    some,
    start,
    things,
)

layers = some(
    st.sampled_from([rb.Dense(2), rb.Activation("relu"), rb.Dropout(0.5), rb.Dense(1, bias=False)])
)


def finite_scale(prior: Prior) -> bool:
    return prior._spread() > 0 and all(math.isfinite(v) for v in prior._table_values())


def evaluate(result: Any) -> Any:
    density = rb.CallableDensity(lambda _: result, 3)
    return density.value_and_grad(np.zeros(3))


def from_pointer(address: Any, **arguments: Any) -> Any:
    # An integer that is no address would crash; only those that are refused are tried.
    if isinstance(address, int | np.integer) and not isinstance(address, bool) and address > 0:
        address = 0
    return rb.CallableDensity.from_pointer(address, **arguments)


POINTER = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)

ENTRIES: dict[str, Entry] = {
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
    "GammaPrecision": (
        rb.GammaPrecision,
        {"concentration": things, "rate": things},
        lambda r: np.isfinite(r._table_values()[0]) and r._table_values()[0] > 0,
    ),
    "InverseGamma": (
        rb.InverseGamma,
        {"concentration": things, "rate": things},
        lambda r: np.isfinite(r._table_values()[1]) and r._table_values()[1] > 0,
    ),
    "HalfNormal": (rb.HalfNormal, {"scale": things}, finite_scale),
    "Normal of a learned scale": (
        rb.Normal,
        {"scale": some(st.just(rb.HalfNormal(1.0))), "per": things, "mean": things},
        finite_scale,
    ),
    "Horseshoe": (
        rb.Horseshoe,
        {"global_scale": things, "slab_scale": things, "slab_df": things, "per": things},
        finite_scale,
    ),
    "HalfCauchy": (rb.HalfCauchy, {"scale": things}, finite_scale),
    "Gaussian": (
        rb.Gaussian,
        {
            "scale": some(st.just([0.1, 2.0])),
            "log_noise_prior": some(st.just(rb.Normal(1))),
            "per_output": things,
        },
        lambda r: min(r.scales((2,))) > 0,
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
    "Normal of a learned scale": {"scale": rb.HalfNormal(1.0)},
    "Horseshoe": {"global_scale": 1.0},
    "GammaPrecision": {"concentration": 3.0, "rate": 1.0},
    "InverseGamma": {"concentration": 3.0, "rate": 1.0},
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
    check_rubbish(ENTRIES[entry], RIGHT.get(entry), cases)


def test_the_check_catches_untyped_errors():
    """Control: the same loop must fail on an entry point without checks."""
    unchecked = (lambda scale: float(scale), {"scale": things}, lambda r: r > 0)
    with pytest.raises((AssertionError, TypeError, ValueError, BaseExceptionGroup)):
        check_rubbish(unchecked, None, 200)


def test_nothing_is_computed_before_the_checks():
    calls = []
    density = rb.CallableDensity(lambda t: calls.append(t), 3)
    for theta in (np.zeros(2), np.zeros(3, np.float32), [0.0] * 3):
        with pytest.raises((TypeError, ValueError)):
            density.value_and_grad(theta)
    assert not calls
