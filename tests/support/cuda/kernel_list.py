"""Kernels that must compile and run: those of representative posteriors, and all others.

A new layer adds networks to `COMPILED`, a kernel that samplers launch themselves its name to
`OUTSIDE_POSTERIORS`; a test fails for a kernel of ``cpp/cuda`` that is in neither.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

import ribbit as rb
from ribbit._arrays import kernel_sources
from ribbit._arrays.device import THREADS
from ribbit._backends.cuda.layers.row_noise import FLIPOUT, LOCAL
from ribbit._backends.cuda.programs.gradient import Program
from ribbit._backends.cuda.programs.persistent import Persistent
from ribbit.models.layers import ACTIVATIONS
from tests.support import layer_problems
from tests.support.cuda import direct_norms
from tests.support.cuda.cpu_device import NAMESPACE, CpuDevice
from tests.support.cuda.problems import (
    LIKELIHOODS,
    PRIORS,
    paired_of,
    persistent_of,
    problem,
    program_of,
    rows_program_of,
    starts,
)
from tests.support.layer_problems import COMPILED, SILU, TANH, net
from tests.support.likelihoods import CASES
from tests.support.paths import CPP

DTYPES = ("float32", "float64")
CHAINS = 2
RULES = ("LangevinRule", "PreconditionedRule", "FrictionRule", "AdamRule", "KineticRule")
_ROWS, _TURNED = "Matrix<float, false>", "Matrix<float, true>"
_WITH_ONES = f"WithOnes<float, {_TURNED}>"
# What dense layers make of wide products, aligned or not.
WIDE_PRODUCTS = (
    *(
        f"WideProduct<{_ROWS}, {_ROWS}, ActivationSink<float, 1>, {tile}, 1, {aligned}>"
        for tile in ("128, 128", "128, 64", "64, 64")
        for aligned in ("1, 1", "4, 4")
    ),
    *(
        f"WideProduct<{_ROWS}, {_ROWS}, ActivationSink<float, 1>, {tile}, {vectors}>"
        for tile, vectors in (
            ("256, 80", "1, 1, 1"),
            ("256, 80", "1, 4, 4"),
            ("128, 64", "1, 1, 4"),
            ("128, 64", "4, 4, 4"),  # of four terms at once: right, and not chosen
            ("128, 32", "4, 1, 1"),
            ("128, 16", "4, 1, 1"),
            ("64, 16", "4, 1, 1"),
        )
    ),
    f"WideProduct<{_ROWS}, {_TURNED}, DeltaSink<float>, 256, 80, 4, 1, 4>",
    f"WideProduct<{_WITH_ONES}, {_ROWS}, GradientSink<float>, 256, 80, 4, 4, 1>",
    f"WideProduct<{_ROWS}, {_TURNED}, DeltaSink<float>, 128, 128, 1, 1, 4>",
    f"WideProduct<{_ROWS}, {_TURNED}, DeltaSink<float>, 64, 64, 1, 1, 1>",
    *(
        f"WideProduct<{operands}, {tile}, 1, 1, 1>"
        for tile in ("128, 32", "128, 16", "64, 32", "64, 16", "32, 32", "32, 16")
        for operands in (
            f"{_ROWS}, {_TURNED}, DeltaSink<float>",
            f"{_ROWS}, {_ROWS}, ActivationSink<float, 1>",
            f"{_WITH_ONES}, {_ROWS}, GradientSink<float>",
        )
    ),
    *(
        f"WideProduct<{left}, {_ROWS}, GradientSink<float>, {tile}, {aligned}, 1>"
        for left in (_TURNED, _WITH_ONES)
        for tile in ("128, 128", "128, 64", "64, 64")
        for aligned in ("1, 1", "4, 4")
    ),
)
# The same on tensor cores; the largest in one pass alone.
_TENSOR_TILES = (
    *("256, 208, 2", "256, 128, 2", "256, 80, 2", "128, 128, 4", "256, 64, 2", "128, 80, 2"),
    *("128, 64, 2", "256, 32, 1", "128, 32, 1", "64, 64, 4", "64, 32, 2"),
)
WIDE_TENSOR_PRODUCTS = tuple(
    f"WideTensorProduct<{operands}, {passes}, {tile}, {vectors}>"
    for tile in _TENSOR_TILES
    for operands, passes, vectors in (
        (f"{_ROWS}, {_ROWS}, ActivationSink<float, 1>", 1, "4, 4, 2"),
        (f"{_ROWS}, {_ROWS}, ActivationSink<float, 1>", 3, "4, 4, 2"),
        (f"{_ROWS}, {_ROWS}, ActivationSink<float, 1>", 3, "1, 1, 1"),
        (f"{_ROWS}, {_TURNED}, DeltaSink<float>", 1, "4, 4, 2"),
        (f"{_ROWS}, {_TURNED}, DeltaSink<float>", 1, "1, 1, 1"),
        (f"{_TURNED}, {_ROWS}, GradientSink<float>", 1, "1, 1, 1"),
        (f"{_WITH_ONES}, {_ROWS}, GradientSink<float>", 1, "4, 4, 1"),
    )
    if passes == 1 or tile not in _TENSOR_TILES[:2]
)
# The last two layers of predictions.
LAST_LAYERS = tuple(
    f"LastLayers<1, ActivationSink<float, 0>, {tile}, {vectors}>"
    for tile in (
        *("32, 128", "64, 192", "128, 256", "64, 416"),
        *("256, 128", "256, 192", "128, 320", "128, 416"),
    )
    for vectors in ("4, 4", "1, 1")
)
# And of products of few rows.
FEW_ROWS_PRODUCTS = tuple(
    f"FewRowsProduct<{b}, {sink}, {left}, {right}, {into}>"
    for b in (_ROWS, _TURNED)
    for sink in ("DeltaSink<float>", "ActivationSink<float, 1>")
    for left in (1, 4)
    for right in (1, 4)
    for into in (1, 4)
)
# And convolutions of 3 x 3, on 8 x 8 cells of 16, 32 and 64 channels.
FOUND_PRODUCTS = tuple(
    f"WideProduct<{operands}, {rows}, {c}, {vectors}>"
    for rows, c in (
        *((rows, c) for c in (16, 32, 64) for rows in (64, 128)),
        (256, 16),
        (256, 32),
    )
    for four in [4 if max(rows // 2, c) >= 64 else 1]
    for window in [f"Sliding<8, 8, {c}, 3, 3, 1, 1, 1, 1, 8, 8, 1, 1>"]
    for operands, vectors in (
        (
            f"Patches<float, {window}, false, false>, {_ROWS}, ActivationSink<float, 0>",
            f"4, 1, {four}",
        ),
        (
            f"DeltaPatches<float, {window}, {c}>, TurnedKernel<float, {c}, {c}>, DeltaSink<float>",
            f"4, 1, {four}",
        ),
        *(
            (
                f"WithOnes<float, Patches<float, {window}, {flags}>>, {_ROWS}, GradientSink<float>",
                "4, 1, 1",
            )
            for flags in ("true, false", "true, true")
        ),
    )
)
# With strides: cells that the same taps meet side by side.
ORDERED_PRODUCTS = tuple(
    f"WideProduct<OrderedDeltaPatches<float, {window}, {c}>, TurnedKernel<float, {c}, {c}>, "
    f"OrderedDeltaSink<float, {window}>, 256, {c}, 4, 1, 4>"
    for c in (16, 32)
    for window in [f"Sliding<8, 8, {c}, 3, 3, 2, 2, 0, 0, 4, 4, 1, 1>"]
)
# Gradients of the weights of such convolutions.
TAP_GRADIENTS = tuple(
    f"TapGradient<Sliding<8, 8, {c}, 3, 3, {window}>, {outs}>"
    for c, window, outs in (
        (16, "1, 1, 1, 1, 8, 8, 1, 1", 16),
        (32, "1, 1, 1, 1, 8, 8, 1, 1", 32),
        (32, "2, 2, 0, 0, 4, 4, 1, 1", 64),
    )
)
# Direct convolutions: several images of a block, one, and part of one; of turned weights.
DIRECT_CONVOLUTIONS = tuple(
    f"DirectConvolution<{sizes}, {kind}>"
    for sizes in ("8, 8, 32, 64", "16, 8, 16, 16", "16, 16, 32, 96", "32, 32, 16, 32")
    for kind in ("false, ActivationSink<float, 0>", "true, DeltaSink<float>")
)
DIRECT_GRADIENTS = tuple(
    f"DirectGradient<{sizes}>"
    for sizes in (
        "8, 8, 32, 64, 64",
        "16, 8, 16, 32, 32",
        "8, 16, 16, 48, 16",
        "32, 32, 16, 16, 16",
    )
)
# Where a block has 99 KiB of shared memory.
SMALL_SHARED = (
    "DirectGradient<8, 32, 16, 32, 32, 1>",
    "DirectConvolution<8, 32, 16, 16, false, ActivationSink<float, 0>, 2>",
    "DirectConvolution<8, 32, 16, 16, true, DeltaSink<float>, 2>",
    "Tail<3, 256, 10, 64, true, 2>",
    "Tail<3, 320, 1, 64, false, 2>",
)
OUTSIDE_POSTERIORS = (
    *direct_norms.NAMES,
    *SMALL_SHARED,
    *DIRECT_GRADIENTS,
    *DIRECT_CONVOLUTIONS,
    *TAP_GRADIENTS,
    *WIDE_PRODUCTS,
    *WIDE_TENSOR_PRODUCTS,
    *LAST_LAYERS,
    *FEW_ROWS_PRODUCTS,
    *FOUND_PRODUCTS,
    *ORDERED_PRODUCTS,
    "FillUniform",
    "Accept",
    "VariationalRows",
    "VariationalRecord",
    *(
        f"{name}<{scalar}>"
        for scalar in ("float", "double")
        for name in (
            "FillNormal",
            "KineticEnergy",
            "FiniteRows",
            "Select",
            "NextStep",
            "VariationalScale",
            "VariationalUpdate",
        )
    ),
    *(f"KickDrift<{scalar}, {n}>" for scalar in ("float", "double") for n in (1, 2, 4)),
    *(f"Update<{scalar}, {r}<{scalar}>>" for scalar in ("float", "double") for r in RULES),
    *(
        f"Advance<{scalar}, {r}<{scalar}>, {kind}>"
        for scalar in ("float", "double")
        for r in RULES
        for kind in (-1, 0)
    ),
    *(
        f"Reparameterize<{s}, {rho}, {at_once}>"
        for s in ("float", "double")
        for rho in ("false", "true")
        for at_once in (1, 2, 4)
    ),
    *(
        f"NoiseGradient<{s}, {kind}, {gradients}>"
        for s in ("float", "double")
        for kind in range(-1, 5)
        for gradients in (
            f"DrawnGradient<{s}>",
            f"PathGradients<{s}, true>",
            f"PathGradients<{s}, false>",
        )
    ),
    *(f"DrawPaths<{s}, {flips}>" for s in ("float", "double") for flips in ("false", "true")),
    *(
        f"AddMoments<{scalar}, {kind}>"
        for scalar in ("float", "double")
        for kind in range(len(CASES))
    ),
)
PAIRED = {  # layers with noise for each row, and others between them
    "dense": net((3,), rb.Dense(20), TANH, rb.Dense(4), SILU),
    "images": net(
        (3, 2, 2),
        rb.Conv2D(17, 2, padding="same"),
        rb.Residual([rb.Conv2D(17, 3, padding="same"), TANH, rb.LayerNorm()]),
        SILU,
    ),
}
WIDE = {  # layers that tensor cores multiply
    "convolutions": net((4, 4, 2), rb.Conv2D(18, 2), SILU, rb.Conv2D(20, 2, padding="same"), TANH),
    "lstm": net((4, 18), rb.LSTM(17, sequence=True), rb.LSTM(20)),
}
RATES = net((3,), rb.Dropout(0.2), rb.Dense(5), TANH, rb.Dropout(0.4), outputs=2)  # all learned
MASKS = (2**64 - 3, 2**40 - 1, 5)  # seed, step and sample of the masks


@dataclass(frozen=True)
class Case:
    """A posterior and what is asked of its kernels.

    Attributes
    ----------
    label : str
    target : Posterior
    theta : (CHAINS, P) array
    rows : tuple of int, optional
        Of a minibatch; None: all.
    moves : bool
        Whole trajectories are run in one launch, too.
    clusters : bool
        The device has clusters.
    masked : bool
        Dropout is on.
    learns : bool
        Its rates are learned.
    precision : str
        Of products in float32.
    by_rows : bool
        One kernel makes the gradient of all rows.
    """

    label: str
    target: rb.Posterior
    theta: np.ndarray
    rows: tuple[int, ...] | None = None
    moves: bool = False
    clusters: bool = True
    masked: bool = False
    learns: bool = False
    precision: str = "float32"
    by_rows: bool = False

    def program(self, device=None) -> Program:
        """The program of `CHAINS` chains."""
        if self.by_rows:
            return rows_program_of(self.target, CHAINS, device=device)
        rates = self.target.model.rates if self.masked else None
        drops = np.flatnonzero(self.target.model.table[:, 0] == rb.Dropout.op)
        program = program_of(
            self.target,
            CHAINS,
            device=device,
            rows=self.rows,
            rates=rates,
            learned=tuple(drops.tolist()) if self.learns else (),
            precision=self.precision,
        )
        if self.masked:
            program.masks[...] = NAMESPACE.asarray(np.array(MASKS, dtype=np.uint64))
        return program

    def persistent(self, device=None) -> Persistent:
        """What runs whole trajectories in one launch."""
        device = device or CpuDevice()
        device.clusters = self.clusters
        return persistent_of(self.target, device=device)


def cases() -> Iterator[Case]:
    """Posteriors of the fewest rows and units that reach every kernel of posteriors."""
    for dtype in DTYPES:
        yield from _dense(dtype)
        for name, model in COMPILED.items():
            small = layer_problems.problem(model, num_rows=3, chains=CHAINS)
            target = small.native(np.dtype(dtype))
            yield Case(f"{name}-{dtype}", target, small.theta.astype(dtype), masked=True)
        small = layer_problems.problem(RATES, num_rows=17, chains=CHAINS)
        logits = np.array([[-1.2, 0.3], [0.7, -2.0]])
        theta = np.concatenate([small.theta, logits], axis=1).astype(dtype)
        target = small.native(np.dtype(dtype))
        yield Case(f"learned rates-{dtype}", target, theta, masked=True, learns=True)
    for precision in ("mixed", "tf32"):
        yield from _tensor(precision)


def _tensor(precision) -> Iterator[Case]:
    """Tiles of all shapes on tensor cores, whole and cut into slices."""
    rng = np.random.default_rng(8)
    for label, rows, hidden in (
        ("wide", 70, (3, 40, 33)),
        ("few rows", 5, (40, 33)),
        ("sliced", 2050, (17, 20)),
    ):
        target = problem(rng, rows=rows, hidden=hidden, dtype="float32")
        theta = starts(rng, target, CHAINS)
        yield Case(f"{label}-{precision}", target, theta, precision=precision)
    for name, model in WIDE.items():
        small = layer_problems.problem(model, num_rows=19, chains=CHAINS)
        target = small.native(np.dtype(np.float32))
        yield Case(f"{name}-{precision}", target, small.theta.astype("f"), precision=precision)


def paired_problem(name: str, dtype: str) -> layer_problems.Problem:
    """A network of `PAIRED` with learned noise, on 17 rows."""
    made = layer_problems.problem(PAIRED[name], likelihood=1, num_rows=17)
    return replace(made, theta=made.theta.astype(dtype))


def _dense(dtype) -> Iterator[Case]:
    """Likelihoods, priors, activations and tiles of all shapes."""
    rng = np.random.default_rng(7)

    def case(label, target, **options):
        return Case(f"{label}-{dtype}", target, starts(rng, target, CHAINS), **options)

    def made(*arguments, **options):
        return problem(rng, *arguments, dtype=dtype, **options)

    for activation in ACTIVATIONS:
        yield case(activation, made(rows=5, hidden=(17,), activation=activation))
    for name, activation in zip(LIKELIHOODS, itertools.cycle(ACTIVATIONS), strict=False):
        target = made(name, rows=20, hidden=(3,), activation=activation, prior="several")
        # trajectories are the largest kernels: not of every likelihood, nor of several noises
        moves = name == "categorical" or (name in CASES and target.likelihood.learns_noise)
        yield case(name, target, moves=moves)
    for prior in PRIORS:
        yield case(f"{prior} prior", made(rows=3, hidden=(3,), prior=prior))
    for name, rows in (("wide", 70), ("few rows", 5)):
        yield case(name, made(rows=rows, hidden=(3, 40, 33)))
    large = made(rows=300, hidden=(50, 50))  # several blocks of a chain
    yield case("large", large, moves=True)
    yield case("large without clusters", large, moves=True, clusters=False)
    # a block of 128 threads where it has room for the weights, else one of 256
    for name, hidden in (("learned", (7,)), ("categorical", (6, 5)), ("gaussian", (50, 50))):
        target = made(name, rows=150, hidden=hidden, prior="several")
        yield case(f"{name} by rows", target, by_rows=True)
    yield case("no bias by rows", _no_bias(rng, dtype), by_rows=True)
    yield case("steps below", made("categorical", rows=70, hidden=(9, 8), activation="relu"))
    sliced = made(rows=2050, hidden=(3,))
    yield case("sliced", sliced)
    yield case("minibatch", sliced, rows=(3, 2049, 3, 0, 17))
    yield case("bytes", _bytes(rng, dtype))
    yield case("no bias", _no_bias(rng, dtype))


def _bytes(rng, dtype):
    model = rb.Model([rb.Flatten(), rb.Dense(3)], input_shape=(3, 2, 2))
    x = rng.integers(0, 256, size=(9, 3, 2, 2), dtype=np.uint8)
    return rb.Posterior(
        model, x, rng.integers(0, 3, 9), prior=rb.Normal(0.7), likelihood=rb.Categorical(),
        dtype=dtype,
    )  # fmt: skip


def _no_bias(rng, dtype):
    """And an activation after the last layer."""
    layers = [rb.Dense(2, bias=False), rb.Activation("tanh")]
    model = rb.Model(layers, input_shape=(3,))
    return rb.Posterior(
        model, rng.normal(size=(9, 3)), rng.normal(size=(9, 2)), prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(0.4), dtype=dtype,
    )  # fmt: skip


@cache
def names() -> tuple[str, ...]:
    """Names of all kernels that must compile."""
    found = list(OUTSIDE_POSTERIORS)
    for case in cases():
        found += case.program().names
        if case.moves:
            found += case.persistent().names
    for dtype in DTYPES:
        precisions = ("float32", "mixed", "tf32") if dtype == "float32" else (dtype,)
        for name, precision in itertools.product(PAIRED, precisions):
            target = paired_problem(name, dtype).native(np.dtype(dtype))
            for estimator in (LOCAL, FLIPOUT):
                found += paired_of(target, CHAINS, estimator, precision=precision).names
    return tuple(dict.fromkeys(found))


def template(name: str) -> str:
    """Name of the struct behind a kernel such as ``FillNormal<float>``."""
    return name.partition("<")[0]


def structs() -> dict[str, int]:
    """Every kernel of ``cuda/kernels`` and its threads: the structs that say how many they need.

    0: the last argument says how many.
    """
    found = {}
    for path in sorted((CPP / "cuda/kernels").glob("*_kernels.h")):
        for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", path.read_text(), re.M | re.S):
            block = re.search(r"\bkBlock = (\w+)[;,]", body)
            if block:
                own = {"kThreads": THREADS, "Threads": 0}
                found[name] = own[block[1]] if block[1] in own else int(block[1])
    return found


def threads_of(name: str) -> int:
    """Threads of a kernel's blocks."""
    return structs()[template(name)] or kernel_sources.threads_of(name)


def operands() -> set[str]:
    """What kernels are made of: the structs that give or take an element of a matrix."""
    pattern = r"^struct (\w+) \{\n((?:(?!^\};).)*?RIBBIT_DEVICE \w+ (?:get|put)\()"
    texts = (path.read_text() for path in (CPP / "cuda/kernels").glob("*_kernels.h"))
    return {name for text in texts for name, _ in re.findall(pattern, text, re.M | re.S)}
