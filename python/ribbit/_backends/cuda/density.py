"""The log posterior of a network in device memory: what ``ribbit._core`` does for NumPy arrays."""

# Same methods as the native log densities. Nothing here waits for the device. Shapes: C chains, P
# parameters, N rows, J columns of y.

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from ribbit._arrays import positions as positions_
from ribbit._arrays.device import Device
from ribbit._arrays.namespace import host_dtype, to_host
from ribbit._backends.cuda.programs import persistent
from ribbit._backends.cuda.programs.gradient import MOST_CHAINS, Program, bytes_per_chain
from ribbit._backends.cuda.programs.persistent import Persistent
from ribbit._backends.cuda.programs.rows import RowsProgram, partial_sums
from ribbit._backends.cuda.steps import DeviceSteps, UpdateRule, bytes_per_chain_of_steps
from ribbit._backends.cuda.variational import DeviceVariational
from ribbit._backends.density_table import DensityTable
from ribbit.errors import ShapeError
from ribbit.protocols import Array

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _alone(
    method: Callable[Concatenate[DeviceDensity, _P], _R],
) -> Callable[Concatenate[DeviceDensity, _P], _R]:
    """Let one call at a time use the density's memory, whatever threads and streams they are of."""
    # On the device a call waits for the previous one if that was put on another stream.

    @functools.wraps(method)
    def run(self: DeviceDensity, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._lock:
            if self._last_call is not None:
                self._device.wait(self._last_call)
            try:
                return method(self, *args, **kwargs)
            finally:
                self._last_call = self._device.mark()

    return run


class DeviceDensity:
    """Log likelihood, log prior and gradient of a network on rows in device memory."""

    def __init__(
        self,
        device: Device,
        tables: DensityTable,
        x: Array,  # (N, D): in the scalar's dtype, or bytes of images
        y: Array,  # (N, J): in the scalar's dtype
        # (N,) float64 or None: part of each row's log likelihood that depends on y alone and that
        # kernels leave out
        row_constants: npt.NDArray[np.float64] | None,
    ) -> None:
        network = persistent.network_of(tables.table)
        other = host_dtype(y) != host_dtype(x) or tables.likelihood.per_output  # or bytes of images
        if network is not None and (
            other or not persistent.fits(network, int(x.shape[0]), _itemsize(y))
        ):
            network = None
        self._by_rows = RowsProgram.takes(tables, x, y)
        if network is not None or self._by_rows:  # tiles of tensor cores would be mostly padding
            tables = replace(tables, precision="float32")
        self._device, self._tables, self._x, self._y = device, tables, x, y
        self._constants = row_constants
        self._lock = threading.RLock()
        self._last_call: Any = None  # where the device is done with it
        self._programs: dict[int, Program] = {}  # by rows of a minibatch; 0: all rows
        self._asked: dict[int, int] = {}  # the most chains that each was made for
        self._steps: DeviceSteps | None = None  # the last ones, and what they were made for
        self._steps_for: tuple[tuple[int, float, UpdateRule], int] | None = None
        self._variational = DeviceVariational(device, tables, x, y, row_constants)
        self._persistent: Persistent | None = None
        if network is not None and tables.rates is None and tables.centre is None:
            self._persistent = Persistent(device, network, tables, x, y)

    @property
    def dim(self) -> int:
        """P."""
        return self._tables.dim

    @property
    def precision(self) -> str:
        """How products are computed: "float32" for small networks, whatever was asked for."""
        return self._tables.precision

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self._x.shape[0])

    @_alone
    def value_and_grad(
        self, theta: Array, rows: npt.NDArray[np.int64] | None = None
    ) -> tuple[Array, Array, Array]:
        """Return untempered log likelihood and log prior (C,) and tempered gradient (C, P)."""
        if rows is None and self._persistent is not None:
            # What trajectories end with: a state that is evaluated again has the same bits.
            terms, grad = self._persistent.value_and_grad(theta)
            return (*self._split(terms, None), grad)
        return self._value_and_grad(theta, rows, None)

    @_alone
    def masked_value_and_grad(
        self,
        theta: Array,
        rows: npt.NDArray[np.int64] | None,
        seed: int,
        step: int,
        sample: int = 0,
    ) -> tuple[Array, Array, Array]:
        """Return the same under masks of (seed, step); chain c takes those of sample + c."""
        return self._value_and_grad(theta, rows, (seed, step, sample))

    def _value_and_grad(
        self,
        theta: Array,
        rows: npt.NDArray[np.int64] | None,
        masks: tuple[int, int, int] | None,
    ) -> tuple[Array, Array, Array]:
        xp = self._device.xp
        terms, grads = [], []
        for program, begin, end in self._groups(theta.shape[0], rows):
            count = end - begin
            program.theta[:count, :] = theta[begin:end, :]
            if masks is not None and program.masks is not None:
                seed, step, sample = masks
                address = np.array([seed, step, sample + begin], dtype=np.uint64)
                program.masks[...] = xp.asarray(address)
            program.run(count, gradient=True, values=True)
            terms.append(xp.asarray(program.terms[:count, :], copy=True))
            grads.append(xp.asarray(program.grad[:count, :], copy=True))
        likelihood, prior = self._split(_joined(xp, terms), rows)
        return likelihood, prior, _joined(xp, grads)

    @_alone
    def value(self, theta: Array, rows: npt.NDArray[np.int64] | None = None) -> tuple[Array, Array]:
        """Return untempered log likelihood and log prior (C,)."""
        xp = self._device.xp
        terms = []
        for program, begin, end in self._groups(theta.shape[0], rows):
            count = end - begin
            program.theta[:count, :] = theta[begin:end, :]
            program.run(count, gradient=False, values=True)
            terms.append(xp.asarray(program.terms[:count, :], copy=True))
        return self._split(_joined(xp, terms), rows)

    @_alone
    def leapfrog(
        self,
        position: Array,
        momentum: Array,
        grad: Array,
        step_size: Array,
        num_steps: npt.NDArray[np.int64],
        inverse_mass: Array | None,
        interrupt: Any = None,
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Run trajectories as `NativeDensity.leapfrog`; terms (C,) are untempered."""
        xp = self._device.xp
        if self._persistent is not None:
            arguments = position, momentum, grad, step_size, num_steps, inverse_mass
            q, p, terms, g = self._persistent.leapfrog(*arguments, interrupt)
            return (q, p, *self._split(terms, None), g)
        # Chains that go on longest come first: those still on their way are always the first ones.
        order = np.argsort(-num_steps, kind="stable")
        sorted_already = bool((order == np.arange(order.size)).all())
        if not sorted_already:
            index = xp.asarray(order)
            position, momentum, grad, step_size = (
                xp.take(a, index, axis=0) for a in (position, momentum, grad, step_size)
            )
            if inverse_mass is not None and inverse_mass.ndim == 2:
                inverse_mass = xp.take(inverse_mass, index, axis=0)
        ends: list[tuple[Array, ...]] = []
        for program, begin, end in self._groups(position.shape[0], None):
            some = slice(begin, end)
            mass = inverse_mass
            if mass is not None and mass.ndim == 2:
                mass = mass[some, :]
            program.trajectory.load(
                position[some, :], momentum[some, :], grad[some, :], step_size[some], mass
            )
            _run(program, num_steps[order[some]], interrupt)
            ends.append(program.trajectory.ends(end - begin))
        q, p, terms, g = (_joined(xp, [end[i] for end in ends]) for i in range(4))
        if not sorted_already:
            back = xp.asarray(np.argsort(order))
            q, p, terms, g = (xp.take(a, back, axis=0) for a in (q, p, terms, g))
        return (q, p, *self._split(terms, None), g)

    @_alone
    def advance(
        self,
        position: Array,
        first: Array | None,
        second: Array | None,
        seed: int,
        chains: npt.NDArray[np.uint32],
        first_step: int,
        batch_rows: int,
        step_size: npt.NDArray[np.float64],
        noise: npt.NDArray[np.float64],
        rule: int,
        prior: float,
        friction: float,
        previous: float,
        decay1: float,
        decay2: float,
        epsilon: float,
        adapt_until: int,
        interrupt: Any = None,
    ) -> tuple[
        Array,
        Array | None,
        Array | None,
        npt.NDArray[np.int64],
        npt.NDArray[np.float64],
    ]:
        """Make steps as `NativeSteps.advance`; waits for the device once, at the end."""
        xp, count = self._device.xp, step_size.shape[0]
        kind = UpdateRule(rule, rule == 0 and second is not None, friction, decay1, decay2, epsilon)
        self._check_steps(position, (first, second), chains, first_step, batch_rows, count)
        steps = self._steps_of(position.shape[0], batch_rows, prior, kind)
        ends: list[tuple[Array | None, ...]] = []
        for begin in range(0, position.shape[0], steps.chains):
            some = slice(begin, begin + steps.chains)
            end, moments, outcome = steps.run(
                position[some, :],
                (
                    None if first is None else first[some, :],
                    None if second is None else second[some, :],
                ),
                seed=seed,
                ids=chains[some],
                first_step=first_step,
                step_size=step_size,
                noise=noise,
                previous=previous,
                adapt_until=adapt_until,
                interrupt=interrupt,
            )
            ends.append((end, *moments, outcome))
        moved, *made, outcome = (
            None if parts[0] is None else _joined(xp, list(parts))
            for parts in zip(*ends, strict=True)
        )
        found = to_host(outcome)
        stopped = found[:, 0] >= 0.0
        failed = np.where(stopped, found[:, 0] - first_step, -1.0).astype(np.int64)
        # moments that the rule does not have come back as they were
        m, v = (
            xp.asarray(given, copy=True) if end is None and given is not None else end
            for end, given in zip(made, (first, second), strict=True)
        )
        return moved, m, v, failed, np.where(stopped, found[:, 1], 0.0)

    def _steps_of(
        self, chains: int, batch_rows: int, prior: float, rule: UpdateRule
    ) -> DeviceSteps:
        """Return what makes such steps of `chains` chains, or of as many as memory allows."""
        key, known = (batch_rows, prior, rule), self._steps_for
        if self._steps is None or known is None or known[0] != key or known[1] < chains:
            self._steps = None  # its memory goes back before more is asked for
            each = bytes_per_chain_of_steps(
                self._tables,
                self.num_rows,
                batch_rows,
                int(self._x.shape[1]),
                _itemsize(self._y),
            )
            self._steps = DeviceSteps(
                self._device,
                self._tables,
                self._x,
                self._y,
                chains=min(chains, self._most_chains(each)),
                batch_rows=batch_rows,
                prior=prior,
                rule=rule,
            )
            self._steps_for = key, chains
        return self._steps

    def _check_steps(
        self,
        position: Array,
        moments: tuple[Array | None, Array | None],
        chains: npt.NDArray[np.uint32],
        first_step: int,
        batch_rows: int,
        count: int,
    ) -> None:
        """Raise for what the bindings of the CPU raise for."""
        name = "Posterior.advance"
        given = [("position", position), ("first", moments[0]), ("second", moments[1])]
        for what, array in given:
            if array is None and what != "position":  # the rule has none: Posterior.advance looked
                continue
            dtype = host_dtype(self._y)
            positions_.position(self._device.xp, name, what, array, dtype, self.dim)
            if array.shape != (len(chains), self.dim):
                raise ShapeError(
                    f"[{name}] expected {what} ({len(chains)}, {self.dim}), got {array.shape}"
                )
        if not (1 <= batch_rows <= self.num_rows and count >= 1 and first_step + count < 1 << 40):
            raise ValueError(f"[{name}] expected 1 <= batch_size <= N, steps < 2^40")

    @_alone
    def advance_variational(
        self, *arguments: Any
    ) -> tuple[Array, npt.NDArray[np.float64], int, float]:
        """Make steps of a mean-field Gaussian; see :meth:`DeviceVariational.advance`."""
        return self._variational.advance(self._most_chains, *arguments)

    def _groups(
        self, chains: int, rows: npt.NDArray[np.int64] | None
    ) -> list[tuple[Program, int, int]]:
        """Return a program and the chains it runs, as many times as memory asks for."""
        count = self.num_rows if rows is None else len(rows)
        key = 0 if rows is None else count
        program = self._programs.get(key)
        # One that memory kept small is not made again for as many chains as it was made for.
        if program is None or self._asked[key] < min(chains, MOST_CHAINS):
            self._programs.pop(key, None)
            self._asked[key] = chains
            program = None  # its memory goes back before more is asked for
            most = self._most_chains(self._bytes_per_chain(count, all_rows=rows is None))
            program = self._program(min(chains, most), count, all_rows=rows is None)
            if key:
                self._programs = {k: p for k, p in self._programs.items() if k == 0}
            self._programs[key] = program
        if rows is not None:
            program.choose(rows)
        size = program.chains
        return [(program, b, min(b + size, chains)) for b in range(0, chains, size)]

    def _program(self, chains: int, count: int, *, all_rows: bool) -> Program:
        data = self._device, self._tables, self._x, self._y
        if all_rows and self._by_rows:
            return RowsProgram(*data, chains=chains)
        xp = self._device.xp
        subset = None if all_rows else xp.empty((count,), dtype=xp.int64)
        return Program(*data, chains=chains, count=count, subset=subset)

    def _bytes_per_chain(self, count: int, *, all_rows: bool) -> int:
        itemsize = _itemsize(self._y)
        if all_rows and self._by_rows:
            return itemsize * (partial_sums(self._tables, count, itemsize) + 4 * self.dim)
        return bytes_per_chain(self._tables, count, itemsize)

    def _most_chains(self, each: int) -> int:
        """Return how many chains of `each` bytes one program may have."""
        free = self._device.free_bytes()
        if each > free:
            raise MemoryError(
                f"[Posterior] expected {each / 1e9:.3g} GB of free device memory for one chain, "
                f"got {free / 1e9:.3g} GB"
            )
        return max(1, min(MOST_CHAINS, free // (2 * each)))

    def _split(self, terms: Array, rows: npt.NDArray[np.int64] | None) -> tuple[Array, Array]:
        constant = 0.0
        if self._constants is not None:
            some = self._constants if rows is None else self._constants[rows]
            constant = float(some.sum()) * self.num_rows / len(some)
        return terms[:, 0] + constant, terms[:, 1]


def _run(program: Program, num_steps: npt.NDArray[np.int64], interrupt: Any) -> None:
    """Run trajectories of `num_steps` (n,), which never grow from chain to chain."""
    trajectory = program.trajectory
    active = len(num_steps)
    trajectory.begin(active)
    done = 0
    while active:
        last = int(num_steps[active - 1])  # of the chains that end next
        trajectory.steps(active, last - done - 1, interrupt)
        done = last
        staying = int(np.count_nonzero(num_steps > last))
        trajectory.arrive(active, staying)
        active = staying


def _joined(xp: Any, parts: list[Array]) -> Array:
    """Return new arrays of groups of chains as one; a single one is not copied once more."""
    joined: Array = parts[0] if len(parts) == 1 else xp.concat(parts, axis=0)
    return joined


def _itemsize(array: Array) -> int:
    return int(host_dtype(array).itemsize)
