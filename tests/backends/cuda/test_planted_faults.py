"""Faults planted in the kernels that ship, one at a time: each is noticed.

A header is changed in one place and the kernel compiled from that; what it computes must differ
from what it computes as it ships, or no thread reaches the end. `test_faults.py` has what any
kernel may do wrong; the numbers of the kernels as they ship are judged elsewhere.
"""

from dataclasses import dataclass

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import device_kernels, kernel_sources
from ribbit._arrays.device import pack
from ribbit._backends.cuda.forward import Forward, _Moments
from ribbit._backends.cuda.layers import few_rows, products
from ribbit._backends.cuda.samples import Stored
from ribbit._backends.cuda.steps import DeviceSteps, UpdateRule
from tests.support.cuda.compiler import FIBERS, Compiler, digest, folder, written
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.problems import (
    evaluate,
    problem,
    program_of,
    rows_program_of,
    starts,
    tables_of,
)
from tests.support.cuda.thread_orders import ORDERS, compiler
from tests.support.layer_problems import SILU, net
from tests.support.paths import CPP

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(FIBERS not in dict(ORDERS), reason="sanitizers know no fibers"),
]


def program(*, rows, precision="float32", small=False, **options):
    """A gradient launch by launch."""

    def run(device):
        if small:
            device.block_shared = 99 * 1024
        target = problem(np.random.default_rng(3), rows=rows, dtype="float32", **options)
        theta = starts(np.random.default_rng(4), target, 2)
        return evaluate(program_of(target, 2, device=device, precision=precision), theta)

    return run


def by_rows(device):
    """A gradient of all rows by one kernel, and what adds up its partial sums."""
    target = problem(np.random.default_rng(3), "learned", rows=150, hidden=(7,), dtype="float32")
    theta = starts(np.random.default_rng(4), target, 2)
    return evaluate(rows_program_of(target, 2, device=device), theta)


def images(device):
    """Direct convolutions of two steps of channels."""
    rng = np.random.default_rng(3)
    layers = rb.Conv2D(32, 1), SILU, rb.Conv2D(32, 3, padding="same"), rb.Conv2D(1, 8)
    model = net((8, 8, 1), *layers)
    target = rb.Posterior(
        model,
        rng.standard_normal((5, *model.input_shape)).astype("f"),
        rng.standard_normal((5, *model.output_shape)).astype("f"),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )
    return evaluate(program_of(target, 2, device=device), starts(rng, target, 2))


def steps(device):
    """SGLD whose arrays of parameters begin inside of fours."""
    rng = np.random.default_rng(3)
    target = problem(rng, rows=17, hidden=(3,), dtype="float32", prior="several")
    rule = UpdateRule(0, False, 0.1, 0.9, 0.99, 1e-5)
    data = xp.asarray(target.x), xp.asarray(target.y)
    options = {"chains": 2, "batch_rows": 5, "prior": 1.0, "rule": rule}
    position, *_ = DeviceSteps(device, tables_of(target), *data, **options).run(
        xp.asarray(starts(rng, target, 2)),
        (None,) * len(rule.moments),
        seed=5,
        ids=np.array([0, 4], dtype=np.uint32),
        first_step=2,
        step_size=np.full(4, 1e-3),
        noise=np.ones(4),
        previous=1e-3,
        adapt_until=5,
    )
    return [position.get()]


def few(device):
    """A product whose terms eight warps share out, in two turns."""
    rng = np.random.default_rng(3)
    m, n, k = 32, 16, 260
    a, b = (xp.asarray(rng.normal(size=shape).astype("f")) for shape in ((m, k), (k, n)))
    out = xp.empty((m, n), np.float32)
    left, right = (
        products.matrix("float", device.pointer(one), 0, width) for one, width in ((a, k), (b, n))
    )
    fields = (device.pointer(out), None, m * n, n, None, 0, 0)
    sink = products.Operand("DeltaSink<float>", fields, plain=True, aligned=True)
    launch = few_rows.product(left, right, sink, m=m, n=n, k=k)
    kernel = device.kernels([launch.name])[launch.name]
    kernel(launch.grid_of(1), pack(device, launch.fields), launch.shared)
    return [out.get()]


def moments(device):
    """Sums of predictions whose probabilities other threads make."""
    target = problem(np.random.default_rng(3), "categorical", rows=17, hidden=(3,), dtype="float32")
    theta = starts(np.random.default_rng(4), target, 6)
    network, likelihood = target.model, target.likelihood
    forward = Forward(device, network.table, xp.asarray(target.x), Stored(xp.asarray(theta)), 3)
    sums = _Moments(
        forward, likelihood._table("test", network.output_shape), network.output_shape[0]
    )
    for begin, _, first, rows, values in forward.passes(0, len(theta)):
        sums.add(first, rows, values, begin == 0)
    return [a.get() for a in sums.sums]


def predicted(device):
    """Two layers of a prediction in TF32, of seven steps: the last one has the first tile again."""
    rng = np.random.default_rng(3)
    target = problem(rng, "categorical", rows=70, hidden=(100, 70), dtype="float32")
    theta, table = starts(np.random.default_rng(4), target, 2), target.model.table
    given = xp.asarray(target.x), Stored(xp.asarray(theta)), 2
    forward = Forward(device, table, *given, "tf32")
    return [values.get() for *_, values in forward.passes(0, 2)]


def weights(device):
    """Samples of a thread, with memory behind them that nobody may write."""
    rng, n, samples = np.random.default_rng(3), 5, 6
    mean, scale = (xp.asarray(rng.normal(size=n).astype("f")) for _ in range(2))
    out = xp.empty((samples * n + 4,), np.float32)  # NaN
    stream, keys = (7, 1, 0, None), device_kernels.round_keys(7)
    given = (*keys, *stream, None, 0, 3, samples, mean, scale, n, out)
    device.launch("Reparameterize<float, true, 1>", (1, 2, 1), *given)
    return [out.get()]


@dataclass(frozen=True)
class Fault:
    """Text of a header, what stands there instead, and the run of the kernel that notices."""

    header: str
    before: str
    after: str
    run: object


NO_BARRIER = "block.last([](int) {});"
SMALL_TAIL = program(name="learned", rows=20, hidden=(2080,), small=True)
FAULTS = {
    "WideTensorProduct: parts are not added": Fault(
        "wide_tensor_product_kernels.h",
        "sums(t)[place(i, j / 4) + j % 4] += parts",
        "sums(t)[place(i, j / 4) + j % 4] = parts",
        program(rows=70, hidden=(40, 33), precision="mixed"),
    ),
    "WideTensorProduct: nobody waits for what others copy": Fault(
        "wide_feed.h",
        "block.phase([](int) {});  // what others have asked for",
        f"{NO_BARRIER}  // what others have asked for",
        program(rows=70, hidden=(40, 33), precision="mixed"),
    ),
    "LastLayers: nobody waits for the last weights": Fault(
        "last_layers_kernels.h",
        "block.phase([](int) {});  // the last weights are there",
        f"{NO_BARRIER}  // the last weights are there",
        predicted,
    ),
    "LastLayers: the last weights come before all tiles are read": Fault(
        "last_layers_kernels.h",
        "block.phase([](int) {});  // no tile is read any more",
        f"{NO_BARRIER}  // no tile is read any more",
        predicted,
    ),
    "LastLayers: sums of parts that others have not written": Fault(
        "last_layers_kernels.h",
        "block.phase([&](int t) { add_columns(",
        "block.last([&](int t) { add_columns(",
        predicted,
    ),
    "LastLayers: two outputs have one place for their parts": Fault(
        "last_layers_kernels.h",
        "shared.parts[o / 2 % 2]",
        "shared.parts[0]",
        predicted,
    ),
    "DirectConvolution: channels come before the last ones are read": Fault(
        "direct_conv_kernels.h",
        "if (channel > 0) block.phase([](int) {});",
        "",
        images,
    ),
    "DirectGradient: teams hand over before the last stage is read": Fault(
        "direct_gradient_kernels.h",
        "block.phase([](int) {});  // the last stage is read",
        "// the last stage is read",
        images,
    ),
    "Join: one partial sum is left out": Fault(
        "join_kernels.h",
        "s + k < slices && j * kBlock < left",
        "s + k + 1 < slices && j * kBlock < left",
        by_rows,
    ),
    "Advance: a four has one array's prior": Fault(
        "advance_kernels.h",
        "while (segment->offset + segment->size <= e + i) ++segment;",
        "",
        steps,
    ),
    "RowGradient: sums of threads that have not written theirs": Fault(
        "row_kernels.h",
        "block.phase([&](int t) { m.sum.value[t] = sums(t)[which]; });",
        "block.last([&](int t) { m.sum.value[t] = sums(t)[which]; });",
        by_rows,
    ),
    "Tail: nobody waits for what others copy": Fault(
        "tail_kernels.h",
        "block.template wait<0>();\n    block.phase([](int) {});",
        "block.template wait<0>();",
        program(name="learned", rows=20, hidden=(20,)),
    ),
    "Tail: a part comes before the one before is read": Fault(
        "tail_kernels.h",
        "if (begin > 0) block.phase([](int) {});",
        "",
        SMALL_TAIL,
    ),
    "FewRowsProduct: nobody waits for what others copy": Fault(
        "few_rows_kernels.h",
        "block.phase([](int) {});  // all copies are there",
        f"{NO_BARRIER}  // all copies are there",
        few,
    ),
    "AddMoments: probabilities that others have not made": Fault(
        "predictive_kernels.h",
        "block.phase([&](int t) {\n        for (Index i = t; i < own * samples",
        "block.last([&](int t) {\n        for (Index i = t; i < own * samples",
        moments,
    ),
    "Reparameterize: samples of a thread have one noise": Fault(
        "variational_kernels.h",
        "sample + static_cast<Word>(s), own, z",
        "sample + static_cast<Word>(0 * s), own, z",
        weights,
    ),
    "Reparameterize: numbers behind the last": Fault(
        "variational_kernels.h",
        "inside[i] = i == 0 || N == 4 || 4 * b + i < n;",
        "inside[i] = true;",
        weights,
    ),
}


def planted(fault, kernel):
    """A compiler of one kernel whose headers have the fault; all others take longer to read."""
    text = (CPP / "cuda/kernels" / fault.header).read_text()
    assert text.count(fault.before) == 1, fault.before
    text = text.replace(fault.before, fault.after)
    place = folder("faults", digest(text))
    path = folder("faults", digest(text), "cuda", "kernels") / fault.header
    if not path.exists():
        written(path, lambda made: made.write_text(text))
    needs = (h for h in kernel_sources.HEADERS if f"struct {kernel} {{" in (CPP / h).read_text())
    return Compiler(flags=[f"-I{place}"], headers=(next(needs),), runner=FIBERS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name):
    fault, kernel = FAULTS[name], name.partition(":")[0]
    ships, faulty, asked = compiler(FIBERS, kernel_sources.HEADERS), planted(fault, kernel), []

    def mixed(names):
        mine = [n for n in names if n.startswith(f"{kernel}<")]
        asked.extend(mine)
        return ships([n for n in names if n not in mine]) | faulty(mine)

    expected = fault.run(CpuDevice())
    for a, b in zip(fault.run(CpuDevice(ships)), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    try:
        found = fault.run(CpuDevice(mixed))
    except RuntimeError as error:
        if "expected all threads at every barrier" not in str(error):
            raise  # it does not compile
    else:
        assert any(not np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert asked
