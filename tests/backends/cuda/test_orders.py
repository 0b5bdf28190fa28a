"""Runs of several kernels on shared memory of the device, in several orders of blocks and threads.

Their numbers are compared with the CPU core's elsewhere; here it is the same bits in any order.
"""

import numpy as np
import pytest

from ribbit._backends.cuda.forward import Forward, _Moments
from ribbit._backends.cuda.layers.row_noise import FLIPOUT, LOCAL, REPARAM
from ribbit._backends.cuda.samples import Masked, Stored
from ribbit._backends.cuda.steps import DeviceSteps, UpdateRule
from ribbit._backends.cuda.variational import DeviceVariational
from tests.support.cuda import kernel_list
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.kernel_list import PAIRED, paired_problem
from tests.support.cuda.problems import LIKELIHOODS, PRIORS, problem, tables_of
from tests.support.cuda.thread_orders import compile_all, in_every_order
from tests.support.layer_problems import COMPILED

pytestmark = pytest.mark.kernels

DTYPES = ("float32", "float64")
RULES = {  # code, preconditioned
    "langevin": (0, False),
    "preconditioned": (0, True),
    "friction": (1, False),
    "adam": (2, False),
}


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_all(kernel_list.names())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_steps(rng, rule, fails, dtype):
    """Two epochs of batches, the last one short; a chain that leaves all bounds is stopped."""
    target = problem(rng, rows=17, hidden=(3,), dtype=dtype)
    theta = (0.4 * rng.normal(size=(3, target.dim))).astype(dtype)
    if fails:
        theta[1, 2] = np.inf
    code, preconditioned = RULES[rule]
    settings = UpdateRule(code, preconditioned, 0.1, 0.9, 0.99, 1e-5)
    moments = [np.full_like(theta, 0.02) if has else None for has in settings.moments]

    def run(device):
        data = xp.asarray(target.x), xp.asarray(target.y)
        options = {"chains": 3, "batch_rows": 5, "prior": 1.0, "rule": settings}
        position, others, outcome = DeviceSteps(device, tables_of(target), *data, **options).run(
            xp.asarray(theta),
            tuple(None if m is None else xp.asarray(m) for m in moments),
            seed=5,
            ids=np.array([0, 4, 9], dtype=np.uint32),
            first_step=2,
            step_size=np.full(8, 1e-3),
            noise=np.ones(8),
            previous=1e-3,
            adapt_until=5,
        )
        return [a.get() for a in (position, *others, outcome) if a is not None]

    position, *_, outcome = in_every_order(run)
    assert np.isfinite(position[[0, 2]]).all()
    assert outcome[:, 0].tolist() == [-1.0, 2.0 if fails else -1.0, -1.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("prior", [None, *PRIORS])
def test_variational_steps(rng, prior, fails, dtype):
    """Two epochs of batches, the last one short; samples in two groups. None: closed forms."""
    target = problem(rng, rows=17, hidden=(3,), dtype=dtype, prior=prior or "normal")
    state = np.zeros((6, target.dim), dtype)
    state[0], state[1] = rng.normal(size=(2, target.dim)) - [[0], [2]]
    steps = np.full(8, 1e-3)
    if fails:
        steps[3] = np.inf

    moved, records, failed, _ = in_every_order(
        lambda device: fitted(device, target, state, steps, closed=prior is None)
    )
    assert int(failed) == (3 if fails else -1)
    assert np.isfinite(records).all()
    assert np.isfinite(moved).all() != fails


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("estimator", [LOCAL, FLIPOUT], ids=["local", "flipout"])
@pytest.mark.parametrize("name", PAIRED)
def test_steps_with_noise_for_each_row(name, estimator, closed, dtype):
    """Two epochs of batches, the last one short; samples in two groups."""
    made = paired_problem(name, dtype)
    target, theta = made.native(np.dtype(dtype)), made.theta
    state = np.stack([theta, np.full_like(theta, -2.0), *np.zeros((4, target.dim), dtype)])
    moved, records, failed, _ = in_every_order(
        lambda device: fitted(
            device, target, state, np.full(8, 1e-3), closed=closed, estimator=estimator
        )
    )
    assert int(failed) == -1
    assert np.isfinite(records).all()
    assert np.isfinite(moved).all()


def fitted(device, target, state, step_size, *, closed, estimator=REPARAM):
    """State, records up to a failure, the step that failed and its gradient after eight steps."""
    data = xp.asarray(target.x), xp.asarray(target.y)
    fit = DeviceVariational(device, tables_of(target), *data, None)
    moved, records, failed, largest = fit.advance(
        lambda size: 2, xp.asarray(state), 5, 2, 5, 3, estimator, closed, step_size,
        np.full(8, 0.3), 0.9, 0.99, 1e-5,
    )  # fmt: skip
    return moved.get(), records[:, : 8 if failed < 0 else failed + 1], np.array(failed), largest


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_moments(rng, likelihood, dtype):
    """Two groups of samples, added up in their order."""
    target = problem(rng, likelihood, rows=17, hidden=(3,), dtype=dtype)
    theta = (0.4 * rng.normal(size=(6, target.dim))).astype(dtype)
    model = target.model

    def run(device):
        samples = Stored(xp.asarray(theta))
        forward = Forward(device, model.table, xp.asarray(target.x), samples, 3)
        moments = _Moments(
            forward, target.likelihood._table("test", model.output_shape), model.output_shape[0]
        )
        for begin, _, first, rows, values in forward.passes(0, len(theta)):
            moments.add(first, rows, values, begin == 0)
        return [a.get() for a in moments.sums]

    sums = in_every_order(run)
    assert all(np.isfinite(a).all() for a in sums)
    assert (sums[2] > 0).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", COMPILED)
def test_masks_of_predictions(rng, name, shared, dtype):
    """Values before the masks are those of all samples; the outputs differ."""
    model = COMPILED[name]
    shape = 3, int(model.table[0, 1])
    x = rng.integers(0, 7, size=shape) if model.tokens else rng.normal(size=shape)
    theta = (0.4 * rng.normal(size=model.dim)).astype(dtype)

    def run(device):
        samples = Masked(xp.asarray(theta), model.rates, 2**64 - 3, shared, 5)
        forward = Forward(device, model.table, xp.asarray(x.astype(dtype)), samples, 4)
        return [values.get() for *_, values in forward.passes(3, 6)]

    outputs = in_every_order(run)
    assert [len(values) for values in outputs] == [4, 2]
    assert len(np.unique(np.concatenate(outputs), axis=0)) > 3  # five channels: masks may be alike
