"""Gradients of small networks on many rows, and of wide ones with a short end, step by step.

Bounds as in test_gradients.py. What a device adds up has a shape that the rows alone decide, so
chains, orders of threads and panels change no bit.
"""

from threading import Event

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.namespace import device_of
from ribbit._arrays.threads import Interrupted
from ribbit._backends.cuda.layers import tail
from ribbit._backends.cuda.programs import persistent, plan, rows
from ribbit._backends.cuda.programs.gradient import Program
from ribbit._backends.cuda.programs.join import Join, Source, Step
from ribbit._backends.cuda.programs.rows import RowsProgram
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.problems import (
    PRIORS,
    check,
    compare,
    evaluate,
    problem,
    program_of,
    rows_program_of,
    starts,
)
from tests.support.cuda.thread_orders import in_every_order


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200, 1100])
def test_sizes(rng, monkeypatch, count, dtype):
    """Edges of panels and of groups of them."""
    monkeypatch.setattr(rows, "_GROUPS", 4)
    target = problem(rng, "learned", rows=count, hidden=(7,), dtype=dtype, prior="several")
    theta = starts(rng, target)
    compare(target, theta, evaluate(rows_program_of(target, 3), theta))


@pytest.mark.parametrize("hidden", [(7,), (50, 50)])
def test_chains_change_no_bit(rng, monkeypatch, hidden):
    """One chain, seven, and its place among them; the control: another number of rows."""
    monkeypatch.setattr(rows, "_GROUPS", 3)
    target = problem(rng, "categorical", rows=700, hidden=hidden, dtype="float32")
    theta = starts(rng, target, chains=7)
    terms, grad = evaluate(rows_program_of(target, 7), theta)
    for chain in (0, 6):
        alone = evaluate(rows_program_of(target, 1), theta[chain : chain + 1])
        np.testing.assert_array_equal(alone[0], terms[chain : chain + 1])
        np.testing.assert_array_equal(alone[1], grad[chain : chain + 1])
    monkeypatch.setattr(rows, "_GROUPS", 11)
    assert (evaluate(rows_program_of(target, 7), theta)[1] != grad).any()


def test_groups_are_those_of_the_rows():
    assert rows.groups_of(58_368, 64) == (2, 456)
    assert rows.groups_of(64, 64) == (1, 1)
    for count in (1, 1000, 10**6, 10**7 + 1):
        each, groups = rows.groups_of(count, 64)
        assert groups <= 528
        assert (groups - 1) * each * 64 < count <= groups * each * 64


def test_who_takes_them(device):
    """Many rows of a small network, no masks, no bytes: by shapes alone."""

    def taken(hidden, count, **options):
        x, y = np.zeros((count, 22), "f"), np.zeros((count, 1), "f")
        data = device.asarray(x), device.asarray(y)
        model = rb.mlp(22, hidden, 1)
        options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.1)} | options
        return rb.Posterior(model, *data, **options)._native

    native = taken((40,), 5000)
    assert native._persistent is None
    assert isinstance(native._groups(1, None)[0][0], RowsProgram)
    some = np.arange(3000)
    assert not isinstance(native._groups(1, some)[0][0], RowsProgram)
    few = taken((40,), 500)
    assert few._persistent is not None
    assert not isinstance(few._groups(1, None)[0][0], RowsProgram)
    assert type(taken((400,), 5000)._groups(1, None)[0][0]) is Program


def test_trajectories(device, rng, monkeypatch):
    """Many rows, launch by launch: the ends are the core's, and the launches two of a step."""
    monkeypatch.setattr(persistent, "MOST_WORK", 0)
    monkeypatch.setattr(persistent, "fits", lambda *_: False)
    monkeypatch.setattr(rows, "MOST_WORK", 0)
    x, y = rng.normal(size=(300, 5)), rng.normal(size=(300, 1))
    model, options = rb.mlp(5, (6,), 1), {"prior": rb.Normal(0.7), "dtype": "float64"}
    host = rb.Posterior(model, x, y, likelihood=rb.Gaussian(), **options)
    data = device.asarray(x), device.asarray(y)
    on_device = rb.Posterior(model, *data, likelihood=rb.Gaussian(), **options)
    q, p = 0.3 * rng.normal(size=(2, 3, host.dim))
    mass = rng.uniform(0.5, 2, size=(3, host.dim))
    for given in (None, mass[0], mass):
        of_device = None if given is None else device.asarray(given)
        arrays = device.asarray(q), device.asarray(p)
        found = on_device.leapfrog(*arrays, None, 0.01, [4, 1, 7], inverse_mass=of_device)
        expected = host.leapfrog(q, p, None, 0.01, [4, 1, 7], inverse_mass=given)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.get(), b, rtol=0, atol=1e-12 * np.abs(b).max())
    own = device_of(device)
    if not isinstance(own, CpuDevice):
        return
    launches = []
    for steps in (8, 9):
        before = own.launches
        on_device.leapfrog(device.asarray(q[:1]), device.asarray(p[:1]), None, 0.01, [steps])
        launches.append(own.launches - before)
    assert launches[1] - launches[0] == 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("prior", PRIORS)
def test_a_step_is_a_gradient_and_a_kick(rng, prior, dtype):
    """With the bits of both, one after the other; masses of all chains and of each."""
    target = problem(rng, "categorical", rows=1100, hidden=(33,), dtype=dtype, prior=prior)
    theta, p = starts(rng, target), starts(rng, target)
    for mass in (None, starts(rng, target)[0] ** 2, starts(rng, target) ** 2):
        arrays = [xp.asarray(a) for a in (theta, p, np.zeros_like(p))]
        step, given = xp.asarray(np.array([0.01, 0.02, 0.003])), None
        if mass is not None:
            given = xp.asarray(mass)
        found = []
        for joins in (True, False):
            program = program_of(target, 3)
            moving = program.trajectory
            moving.load(*arrays, step, given)
            if joins:
                moving.steps(3, 1)
            else:
                program.run(3, gradient=True, values=False)
                moving._kick_drift(0, 3, 1.0, 1.0)
            found.append((program.theta.get(), moving._momentum.get()))
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b)
        assert (found[0][0] != theta).any()


def test_steps_of_a_recording(rng, monkeypatch):
    """The bits of single steps, whatever the number of steps; an interrupt ends them."""
    target = problem(rng, "categorical", rows=300, hidden=(9,))
    theta, p, found = starts(rng, target), starts(rng, target), {}
    step = xp.asarray(np.array([0.01, 0.02, 0.003]))
    for together in (16, 1):
        monkeypatch.setattr(RowsProgram, "steps_together", together)
        program = rows_program_of(target, 3)
        moving = program.trajectory
        for count in (3, 16, 37, 37):  # the last ones are replays alone
            moving.load(*(xp.asarray(a) for a in (theta, p, np.zeros_like(p))), step, None)
            program.run(3, gradient=True, values=False)
            moving.steps(3, count)
            parts = program.theta.get(), moving._momentum.get()
            for a, b in zip(parts, found.setdefault(count, parts), strict=True):
                np.testing.assert_array_equal(a, b)
        assert set(moving._replays) == {(3, 1), (3, together)}
    assert (found[37][0] != found[16][0]).any()
    stop = Event()
    stop.set()
    with pytest.raises(Interrupted):
        moving.steps(3, 1, stop)


def reference(sums, slices, theta, momentum, step, precision):
    """Slices added in double, in order or in eight turns; a normal prior; a step."""
    parts = sums.astype(np.float64)
    lanes = [parts] if slices <= 64 else [parts[k::8] for k in range(8)]
    total = np.zeros(sums.shape[1:])
    for lane in lanes:
        own = np.zeros(sums.shape[1:])
        for part in lane:
            own += part
        total = total + own if len(lanes) > 1 else own
    grad = total - precision * theta
    p = momentum + step[:, None] * grad
    return p, theta + step[:, None] * p


@pytest.mark.parametrize("slices", [1, 2, 64, 65, 130])
@pytest.mark.parametrize("size", [1, 5, 33, 1030])
def test_join(rng, slices, size):
    """Against sums in NumPy, which round alike, in every order of threads."""
    chains, offset, precision = 2, 3, 0.8
    dim = size + 2 * offset
    sums = rng.normal(size=(slices, chains, size))
    theta, momentum = rng.normal(size=(2, chains, dim))
    lying = rng.normal(size=(chains, dim))
    step = np.array([0.1, 0.02])
    constants = (precision**0.5, precision, 0.0, 0.0, -0.5)

    def run(device):
        q, p, g, partials = (xp.asarray(a) for a in (theta, momentum, lying, sums))
        terms = xp.empty((chains, 2))
        rows_sums = xp.asarray(np.ones((chains, 4)))
        place = device.pointer(partials)
        sources = [Source(offset, size, place, size, chains * size, slices)]
        ending = Join(
            device, "double", 8, q, g, None, sources, [(0, dim, 0, constants)], 1.0, None,
            rows_sums, (1.0, 2.0), None, terms,
        )  # fmt: skip
        steps = xp.asarray(step)
        moves = Step(device.pointer(p), None, 0, device.pointer(steps))
        for options in ({"values": True}, {"values": False, "step": moves}):
            launch = ending.launch(gradient=True, **options)
            device.launch(launch.name, launch.grid_of(chains), *launch.fields)
        return [a.get() for a in (p, q, g, terms)]

    p, q, g, terms = in_every_order(run)
    whole = np.zeros((slices, chains, dim))
    whole[0] = lying
    whole[:, :, offset : offset + size] = sums
    # what lay in the gradient was completed by the first launch, and is added to by the second
    expected = whole.copy()
    expected[0] -= precision * theta * (np.arange(dim) < offset)
    expected[0] -= precision * theta * (np.arange(dim) >= offset + size)
    ends = reference(expected, slices, theta, momentum, step, precision)
    for a, b in zip((p, q), ends, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * max(1, slices))
    total = whole.sum(axis=0) - precision * theta
    np.testing.assert_allclose(g, total, rtol=0, atol=1e-13 * max(1, slices))
    prior = (-0.5 * precision * theta**2 - 0.5).sum(axis=1)
    np.testing.assert_allclose(terms, np.stack([[8.0, 8.0], prior], 1), rtol=1e-12)


@pytest.mark.parametrize("count", [1, 15, 17, 64, 300, 2049, 2500])
@pytest.mark.parametrize("name", ["categorical", "learned", "heteroscedastic"])
def test_the_last_layer(rng, name, count):
    """Blocks of 16 rows and of 64; the launches are one for the end, and no likelihood's."""
    for hidden, activation in (((16, 20), "relu"), ((40,), "silu")):
        options = {"activation": activation, "dtype": "float32"}
        target = problem(rng, name, rows=count, hidden=hidden, **options)
        names = [one.name for one in program_of(target, 2)._gradient]
        assert not any(n.startswith("LikelihoodRows") for n in names)
        (last,) = [n for n in names if n.startswith("Tail<")]
        assert last.endswith("true>") == (activation == "relu")
        check(target, starts(rng, target, chains=2))


def test_the_last_layer_of_a_minibatch(rng):
    target = problem(rng, "categorical", rows=60, hidden=(20,), dtype="float32")
    check(target, starts(rng, target), rows=[3, 59, 3, 0, 17])


def test_the_last_layer_has_the_bits_of_any_panel_and_chains(rng):
    target = problem(rng, "learned", rows=2500, hidden=(20,), dtype="float32")
    theta = starts(rng, target, chains=7)
    terms, grad = evaluate(program_of(target, 7), theta)
    alone = evaluate(program_of(target, 1), theta[3:4])
    np.testing.assert_array_equal(alone[0], terms[3:4])
    np.testing.assert_array_equal(alone[1], grad[3:4])


def test_who_has_no_such_end(rng):
    """Double precision, many outputs, widths that are no fours, an activation behind."""
    for options in ({"dtype": "float64"}, {"hidden": (21,)}, {"hidden": ()}):
        given = {"hidden": (20,), "dtype": "float32"} | options
        target = problem(rng, rows=70, **given)
        names = [one.name for one in program_of(target, 2)._gradient]
        assert not any(n.startswith("Tail<") for n in names), options
    assert tail.shared_bytes(256, 10, 64) == 112 << 10  # two blocks of a multiprocessor, just


@pytest.mark.parametrize(("run", "count"), [(1024, 1500), (512, 400)])
def test_memory_changes_no_bit(rng, monkeypatch, run, count):
    """Panels of 256, 512 and all rows of a run, of blocks of 64 and of 16 or 8 rows."""
    monkeypatch.setattr(plan, "_PANEL_BYTES", 1)
    monkeypatch.setattr(plan, "_RUN", run)
    target = problem(rng, "learned", rows=count, hidden=(72, 20), dtype="float32")
    theta, each = starts(rng, target, 2), 4 * plan.scalars_of(plan.rows_of(target.model.table))
    found = []
    for panel in (256, 512, run):
        device = CpuDevice()
        monkeypatch.setattr(device, "free_bytes", lambda panel=panel: 2 * 2 * panel * each)
        program = program_of(target, 2, device=device)
        names = [one.name for one in program._gradient]
        panels = sum(
            -(-min(run, count - begin) // min(panel, run)) for begin in range(0, count, run)
        )
        assert sum(name.startswith("Tail<") for name in names) == panels
        found.append(evaluate(program, theta))
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(a, b)
    check(target, theta)
