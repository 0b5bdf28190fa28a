"""Methods that hand arrays to native code, of targets and of the native module itself.

Those of targets are public: what is refused is refused with a sentence that names the argument. Of
the native module nothing but the Python layer is called: there nothing may end the process.
"""

import functools
from typing import Any

import numpy as np

import ribbit as rb
from ribbit import _core
from tests.support.fuzz import malformed as m
from tests.support.fuzz.problem import (
    DROPPING,
    MODEL,
    NOISE,
    TARGET,
    THETA,
    Argument,
    Call,
    D,
    N,
    P,
    X,
    Y,
    choice,
    flag,
    seed,
)

C, STEPS = 2, 3
MASKED = DROPPING.masked()
INTEGRATED = rb.Posterior(
    MODEL,
    X,
    Y,
    prior=rb.Normal(1.0),
    likelihood=rb.Gaussian(),
    dtype=np.float64,
    marginalize="last_layer",
)
POSITIONS = np.tile(THETA, (C, 1))
SIZES, ALL_STEPS = np.full(C, 0.01), np.full(STEPS, 0.01)
IDS = np.arange(C, dtype=np.uint32)
LEAPS = np.full(C, 2)
NAN = "NaN", "inf", "-inf", "NumPy NaN", "half inf"  # a number too, to a run that goes astray


def without(values: m.Values, *labels: str) -> m.Values:
    """All but some, of which some may not be there."""
    return [(label, value) for label, value in values if label not in labels]


def exact(value: Any, *labels: str, also: tuple[str, ...] = (), **options: Any) -> Argument:
    """An array that nothing converts: its values do not matter, nor a mask of them.

    `also` are arrays that must be as long: an error may name one of them.
    """
    wrong = m.arrays(value.shape, dtype=value.dtype, exact=True, finite=False, **options)
    return value, without(wrong, "masked array", "huge broadcast", *labels), also


# pybind11 takes these for numbers.
LOOSE = "True", "NumPy True", "fraction", "decimal", "masked"


def real(value: float) -> Argument:
    return value, without(m.reals(), *NAN, *LOOSE, "beyond floats", "beyond below")


def count(value: int, low: int = 1, high: int = 2**39) -> Argument:
    return value, without(m.integers(low, high), *LOOSE)


INTERRUPT: Argument = (None, m.no("none"))
STEP = count(5, 0, 2**40 - 1)
SEED = count(0, 0, 2**64 - 1)
ADDRESS = {"seed": SEED, "chains": exact(IDS)}
LONGER = ("chains", "step_size", "momentum")  # an error of one with a row more names another
STARTS = exact(POSITIONS, also=LONGER)
POSITION: Argument = (THETA, m.arrays((P,), finite=False))
SUBSET = choice("all")


NATIVE: dict[str, Call] = {
    "Posterior.advance": Call(
        TARGET.advance,
        {
            "position": STARTS,
            "first": exact(POSITIONS),
            "second": exact(POSITIONS),
            "first_step": STEP,
            "batch_size": count(3, 1, N),
            "step_size": exact(ALL_STEPS, also=("noise",)),
            "noise": exact(ALL_STEPS),
            "rule": choice("kinetic"),
            "prior": real(1.0),
            "friction": real(0.1),
            "previous_step_size": real(0.01),
            "decay": ((0.9, 0.99), m.without(m.no(), "tuple")),
            "epsilon": real(1e-8),
            "adapt_until": count(0, 0, 2**64 - 1),
            "interrupt": INTERRUPT,
            **ADDRESS,
        },
    ),
    "Posterior.advance_variational": Call(
        TARGET.advance_variational,
        {
            "state": exact(np.zeros((6, P))),
            "seed": SEED,
            "first_step": STEP,
            "batch_size": count(3, 1, N),
            "num_samples": count(2, 1, 2**32),
            "estimator": choice("flipout"),
            "closed": flag(),
            "step_size": exact(ALL_STEPS, also=("kl_weight",)),
            "kl_weight": exact(ALL_STEPS),
            "decay": ((0.9, 0.99), m.without(m.no(), "tuple")),
            "epsilon": real(1e-8),
            "interrupt": INTERRUPT,
        },
    ),
    "Posterior.isokinetic": Call(
        TARGET.isokinetic,
        {
            "position": STARTS,
            "velocity": exact(POSITIONS),
            "grad": exact(POSITIONS),
            "terms": exact(np.zeros((C, 2))),
            "first_step": STEP,
            "integrator": choice("leapfrog"),
            "step_size": exact(SIZES),
            "decoherence_length": exact(SIZES),
            "num_steps": exact(LEAPS),
            "scale": exact(np.ones(P), none=True),
            "turns": flag(),
            "interrupt": INTERRUPT,
            **ADDRESS,
        },
    ),
    "Posterior.leapfrog of all arguments": Call(
        functools.partial(TARGET.leapfrog, step_size=SIZES, num_steps=LEAPS),
        {
            "position": STARTS,
            "momentum": exact(POSITIONS),
            "grad": exact(POSITIONS, none=True),
            "inverse_mass": exact(np.ones(P), none=True),
            "made": exact(np.zeros(C, np.int64), none=True),
            "interrupt": INTERRUPT,
        },
    ),
    "Posterior.complete": Call(
        INTEGRATED.complete,
        {
            "position": exact(np.zeros((C, INTEGRATED.dim)), also=LONGER),
            "seed": seed(),
            "step": STEP,
            "chains": (IDS, m.arrays((C,), dtype=np.int64)),
            "interrupt": INTERRUPT,
        },
    ),
    "Posterior.gauss_newton": Call(
        lambda theta, subset, interrupt: list(TARGET.gauss_newton(theta, subset, interrupt)),
        {"theta": POSITION, "subset": SUBSET, "interrupt": INTERRUPT},
    ),
    "Posterior.prior_curvature": Call(
        TARGET.prior_curvature, {"theta": POSITION, "subset": SUBSET}
    ),
    "Posterior.rescaled": Call(
        TARGET.rescaled,
        {
            "prior_sd": ({"0.weight": 2.0}, m.without(m.no(), "empty dict")),
            "noise_sd": (0.5, m.reals(0.0, none=True)),
        },
    ),
    "Posterior.residuals": Call(TARGET.residuals, {"theta": exact(THETA)}),
    "Posterior.prior_groups": Call(
        lambda subset: TARGET.prior_groups("prior_groups", subset), {"subset": SUBSET}
    ),
    "Posterior.subset": Call(
        TARGET.subset, {"rows": (np.arange(3), m.arrays((3,), dtype=np.int64, rows=True))}
    ),
    "Posterior.inputs": Call(
        TARGET.inputs,
        {
            "count": (
                2,
                without(
                    m.integers(),
                    "below",
                    "far below",
                    "longest",
                    "above",
                    "far above",
                    "NumPy above",
                ),
            )
        },
    ),
    "Posterior.predictive_moments": Call(
        TARGET.predictive_moments,
        {
            "positions": exact(
                POSITIONS[None],
                "a row more",
                "many rows",
                "a column more",
                "float32 array",
                also=("theta",),
            ),
            "x": (X, m.arrays((N, D), rows=True)),
        },
    ),
    "MaskedPosterior.masked_value_and_grad": Call(
        MASKED.masked_value_and_grad,
        {
            "theta": exact(MASKED.init(0)),
            "rows": (np.arange(3), m.arrays((3,), dtype=np.int64, rows=True, none=True)),
            "seed": seed(),
            "step": STEP,
        },
    ),
    "MaskedPosterior.mask_predictive": Call(
        MASKED.mask_predictive,
        {
            "seed": seed(),
            "masks": choice("row"),
            "rates": (np.array([0.2]), m.arrays((1,))),
        },
    ),
}

TABLE, RATES = MODEL.table, np.zeros(len(MODEL.table))
PRIOR = np.array([[0.0, P, 0.0, 1.0, 0.0, 0.0]])
DENSITY, KIND = TARGET._native, NOISE._table("core", (1,)).kind
SCALES = np.array([[0.0, 6, 0, 6, 1, -1, -1, 1.0]])
SOURCE = _core.WeightSource.stored(POSITIONS[None], None)


def poked(array: Any, value: Any) -> list[tuple[str, Any]]:
    """An array with one other number, everywhere."""
    found = []
    for place in np.ndindex(array.shape):
        other = array.copy()
        other[place] = value
        found.append((f"{value} at {place}", other))
    return found


def numbers(array: Any) -> Argument:
    """Arrays of wrong kinds, and right ones with a wrong number."""
    whole_numbers = (-(2**62), -2, -1, 2**33, 2**62)
    values = whole_numbers if array.dtype == np.int64 else (*whole_numbers, np.nan, np.inf, -0.5)
    wrong = [*m.arrays(array.shape, dtype=array.dtype, exact=True), ("None", None)]
    return array, wrong + [one for value in values for one in poked(array, value)]


ANY: Argument = (None, m.no())
ANY_INTEGER = -(2**63), -(2**31), -1, 0, 2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1
INTEGERS: m.Values = [*m.integers(-(2**63), 2**63), *((f"{n}", n) for n in ANY_INTEGER)]
ADVANCE = {
    **NATIVE["Posterior.advance"].arguments,
    "rule": (3, INTEGERS),
    "decay1": real(0.9),
    "decay2": real(0.99),
    "previous": real(0.01),
    "batch_size": (3, INTEGERS),
    "first_step": (0, INTEGERS),
    "keep": (np.array([0, 2]), m.arrays((2,), dtype=np.int64, exact=True, none=True)),
    "kept": exact(np.zeros((C, 2, P))),
}
del ADVANCE["decay"], ADVANCE["previous_step_size"]


def chains_of(**given):
    """Chains of the core, with what `given` leaves out."""
    return _core.Chains(**{"target": DENSITY, "kernel": "nuts", "options": {}, **RUN, **given})


def moved(most=3, seconds=1.0, interrupt=None):
    """Advance new chains."""
    chains = chains_of()
    chains.start(POSITIONS)
    return chains.advance(most, seconds, interrupt)


RUN = {
    "facts": {"dim": P, "temperature": 1.0, "shared_prior_sd": 1.0, "prior_sd": None},
    "seed": 0,
    "chains": IDS,
    "warmup": 20,
    "thinning": (1, 1, 1),
    "save_warmup": True,
    "fingerprint": {},
}
NO_DICT = [*m.no(), ("wrong names", {"step": 1, 3: "a"}), ("wrong values", dict.fromkeys(RUN, X))]

CORE: dict[str, Call] = {
    "LogDensity": Call(
        lambda **given: _core.LogDensity(**given).value_and_grad(POSITIONS),
        {
            "table": numbers(TABLE),
            "rates": numbers(RATES),
            "prior": numbers(PRIOR),
            "kind": (KIND, INTEGERS),
            "noise_scales": (
                [0.5],
                [*m.no(), ("none", []), ("nan", [np.nan]), ("two", [0.5, 0.5])],
            ),
            "shape": (0.0, m.reals()),
            "x": exact(X),
            "y": exact(Y[:, None]),
            "temperature": (1.0, m.reals()),
            "likelihood_temperature": (1.0, m.reals()),
            "masks": flag(),
            "concrete": (False, [("True", True), *m.flags()]),
            "centre": (None, m.arrays((P,), exact=True, none=True)),
            "last": (None, [("parts", (True, False, np.ones(4), np.ones((4, 1)))), *m.no()]),
            "scales": (None, numbers(SCALES)[1]),
            "weights": (None, m.arrays((N,), exact=True, none=True)),
        },
    ),
    "LogDensity of learned scales": Call(
        lambda prior, scales: _core.LogDensity(
            *(TABLE, RATES, prior, KIND, [0.5], 0.0, X, Y[:, None], 1.0, 1.0, False, False, None),
            *(None, scales),
        ).value_and_grad(np.zeros((C, P + 1))),
        {"prior": numbers(PRIOR + np.eye(1, 6, 1)), "scales": numbers(SCALES)},
    ),
    "LogDensity of counts": Call(
        lambda y: _core.LogDensity(
            TABLE, RATES, PRIOR, rb.Poisson()._table("core", (1,)).kind, [1.0], 0.0, X, y, 1.0, 1.0
        ),
        {"y": (np.ones((N, 1)), [("no columns", np.ones((N, 0))), *m.arrays((N, 1), exact=True)])},
    ),
    "LogDensity.advance": Call(DENSITY.advance, ADVANCE),
    "Chains": Call(
        chains_of,
        {
            "target": (DENSITY, m.no()),
            "kernel": choice("hmc"),
            "options": ({"step_size": 0.1}, NO_DICT),
            "facts": (RUN["facts"], NO_DICT),
            "seed": (0, INTEGERS),
            "chains": exact(IDS),
            "warmup": (20, INTEGERS),
            "thinning": ((1, 1, 1), [*m.no(), ("zeros", (0, 0, 0)), ("gaps", (2, 9, 2**62))]),
            "save_warmup": flag(),
            "fingerprint": ({}, NO_DICT),
            "bytes": (None, [*m.no("none"), ("zeros", bytes(99)), ("magic", b"RIBBITCH")]),
        },
    ),
    "Chains.start": Call(
        lambda position: chains_of().start(position), {"position": exact(POSITIONS)}
    ),
    "Chains.advance": Call(
        moved, {"most": (3, INTEGERS), "seconds": (1.0, m.reals()), "interrupt": INTERRUPT}
    ),
    "Tuner": Call(
        lambda kernel, options, facts, chains: _core.Tuner(kernel, options, facts, 0, chains, 20),
        {
            "kernel": choice("hmc"),
            "options": ({"step_size": 0.1}, NO_DICT),
            "facts": (RUN["facts"], NO_DICT),
            "chains": exact(IDS),
        },
    ),
    "Tuner.load": Call(
        lambda **given: _core.Tuner("nuts", {}, RUN["facts"], 0, IDS, 20).load(**given),
        {
            "fields": ({"step_size": np.ones((C, 1))}, NO_DICT),
            "step": (0, INTEGERS),
            "inverse_mass": numbers(np.ones(D)),
        },
    ),
    "LogDensity.isokinetic": Call(
        DENSITY.isokinetic,
        {
            **NATIVE["Posterior.isokinetic"].arguments,
            "first_step": (0, INTEGERS),
            "integrator": (0, INTEGERS),
            "blocks": numbers(np.array([[0, D, 3]])),
            "mixing": exact(np.tile(np.eye(D).ravel(), (C, 1))),
        },
    ),
    "LogDensity.value_and_grad": Call(
        DENSITY.value_and_grad, {"theta": exact(POSITIONS), "rows": numbers(np.arange(3))}
    ),
    "LogDensity.masked_value_and_grad": Call(
        MASKED._native.masked_value_and_grad,
        {
            "theta": exact(MASKED.init(0)[None]),
            "rows": numbers(np.arange(3)),
            "seed": (0, INTEGERS),
            "step": (0, INTEGERS),
            "sample": (0, INTEGERS),
        },
    ),
    "a density with masks": Call(
        lambda method: getattr(MASKED._native, method)(
            *[np.zeros((C, MASKED.dim))] * (1 if method.startswith("value") else 3)
        ),
        {"method": ("dim", [(name, name) for name in dir(MASKED._native) if name[0] != "_"])},
    ),
    "a density without masks": Call(
        lambda theta: DENSITY.masked_value_and_grad(theta, None, 0, 0),
        {"theta": exact(POSITIONS)},
    ),
    "set_shards": Call(TARGET._native.set_shards, {"shards": (4, INTEGERS)}),
    "join": Call(
        lambda shards, rows, rank, size: MASKED._native.join(
            type("G", (), {"rank": rank, "size": size})(), shards, rows
        ),
        {
            "shards": (4, INTEGERS),
            "rows": (N, INTEGERS),
            "rank": (0, INTEGERS),
            "size": (1, INTEGERS),
        },
    ),
    "WeightSource.stored": Call(
        lambda theta, scales: _core.forward(
            TABLE, RATES, _core.WeightSource.stored(theta, scales), 0, C, X
        ),
        {
            "theta": exact(np.zeros((1, C, P + 1))),
            "scales": numbers(SCALES),
        },
    ),
    "forward": Call(
        lambda **given: _core.forward(source=SOURCE, **given),
        {
            "table": numbers(TABLE),
            "rates": numbers(RATES),
            "first": (0, INTEGERS),
            "samples": (C, INTEGERS),
            "x": exact(X),
        },
    ),
    "predictive_moments": Call(
        lambda **given: _core.predictive_moments(
            TABLE, RATES, SOURCE, scales=[1.0], shape=1.0, x=X, **given
        ),
        {"kind": (0, [*((str(k), k) for k in range(12)), *INTEGERS]), "samples": (C, INTEGERS)},
    ),
    "draw_weights": Call(
        _core.draw_weights,
        {
            "mean": exact(np.zeros(3)),
            "scale": exact(np.ones(3)),
            "seed": (0, INTEGERS),
            "samples": (2, INTEGERS),
        },
    ),
    "scaled_weights": Call(
        _core.scaled_weights,
        {
            "theta": exact(np.zeros((C, 7))),
            "scales": numbers(SCALES),
        },
    ),
    "jacobian": Call(
        _core.jacobian,
        {
            "table": numbers(TABLE),
            "rates": numbers(RATES),
            "theta": exact(THETA),
            "x": exact(X),
            "interrupt": ANY,
        },
    ),
    "epoch_rows": Call(
        _core.epoch_rows,
        {
            name: (
                value,
                m.without(INTEGERS, str(2**31), str(2**40)) if name == "count" else INTEGERS,
            )
            for name, value in (
                ("rows", 9),
                ("seed", 0),
                ("chain", 0),
                ("epoch", 0),
                ("begin", 2),
                ("count", 3),
            )
        },
    ),
    "reparameterize": Call(
        _core.reparameterize,
        {
            "mean": exact(np.zeros(3)),
            "rho": exact(np.zeros(3)),
            "samples": (2, INTEGERS),
            "seed": (0, INTEGERS),
            "step": (0, INTEGERS),
        },
    ),
    "kinetic_energy": Call(
        _core.kinetic_energy, {"momentum": exact(POSITIONS), "inverse_mass": exact(np.ones(P))}
    ),
    "fill_normal": Call(
        _core.fill_normal,
        {
            "out": exact(np.zeros((C, 3))),
            "seed": (0, INTEGERS),
            "step": (0, INTEGERS),
            "chains": exact(IDS),
            "purpose": (0, INTEGERS),
            "layer": (0, INTEGERS),
        },
    ),
    "put_draw": Call(
        _core.put_draw,
        {
            "draws": exact(np.zeros((C, 3, P))),
            "index": (1, INTEGERS),
            "position": exact(POSITIONS),
        },
    ),
    "prior_constants": Call(_core.prior_constants, {"prior": numbers(PRIOR)}),
    "likelihood_constants": Call(
        _core.likelihood_constants,
        {"kind": (0, INTEGERS), "scale": (1.0, m.reals()), "shape": (1.0, m.reals())},
    ),
    "PointerDensity": Call(
        _core.PointerDensity, {"address": (0, m.no("zero")), "dim": (3, INTEGERS)}
    ),
}
