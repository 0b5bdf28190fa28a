"""The log posterior of a network in device memory: what ``ribbit._core`` does for NumPy arrays.

Same methods as the native log densities, on arrays of the device. Nothing here waits for it.
Shapes: C chains, P parameters, N rows, J columns of y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit import _backend
from ribbit._device import Device
from ribbit.gradients import DensityTable, Program, bytes_per_chain
from ribbit.kernels import persistent
from ribbit.kernels.persistent import Persistent
from ribbit.protocols import Array

__all__ = ["DeviceDensity"]

_MOST_CHAINS = 1024  # in one program: blocks along an axis of a grid are counted in 16 bits


class DeviceDensity:
    """Log likelihood, log prior and gradient of a network on rows in device memory.

    Parameters
    ----------
    device : Device
    tables : DensityTable
    x : (N, D) array
        In the scalar's dtype, or bytes of images.
    y : (N, J) array
        In the scalar's dtype.
    row_constants : (N,) float64 NumPy array or None
        Part of each row's log likelihood that depends on y alone and that kernels leave out.
    """

    def __init__(
        self,
        device: Device,
        tables: DensityTable,
        x: Array,
        y: Array,
        row_constants: npt.NDArray[np.float64] | None,
    ) -> None:
        self._device, self._tables, self._x, self._y = device, tables, x, y
        self._constants = row_constants
        self._programs: dict[int, Program] = {}  # by rows of a minibatch; 0: all rows
        self._persistent: Persistent | None = None
        network = persistent.network_of(tables.table)
        bytes_of_images = _backend.host_dtype(y) != _backend.host_dtype(x)
        rows = int(x.shape[0])
        if network is None or bytes_of_images or not persistent.fits(network, rows, _itemsize(y)):
            return
        self._persistent = Persistent(device, network, tables, x, y)

    @property
    def dim(self) -> int:
        """P."""
        return self._tables.dim

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self._x.shape[0])

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device memory that each chain needs."""
        return bytes_per_chain(self._tables, self.num_rows, _itemsize(self._y))

    def value_and_grad(
        self, theta: Array, rows: npt.NDArray[np.int64] | None = None
    ) -> tuple[Array, Array, Array]:
        """Return untempered log likelihood and log prior (C,) and tempered gradient (C, P)."""
        xp = self._device.xp
        terms, grads = [], []
        for program, begin, end in self._groups(theta.shape[0], rows):
            count = end - begin
            program.theta[:count, :] = theta[begin:end, :]
            program.run(count, gradient=True, values=True)
            terms.append(xp.asarray(program.terms[:count, :], copy=True))
            grads.append(xp.asarray(program.grad[:count, :], copy=True))
        likelihood, prior = self._split(xp.concat(terms, axis=0), rows)
        return likelihood, prior, xp.concat(grads, axis=0)

    def value(self, theta: Array, rows: npt.NDArray[np.int64] | None = None) -> tuple[Array, Array]:
        """Return untempered log likelihood and log prior (C,)."""
        xp = self._device.xp
        terms = []
        for program, begin, end in self._groups(theta.shape[0], rows):
            count = end - begin
            program.theta[:count, :] = theta[begin:end, :]
            program.run(count, gradient=False, values=True)
            terms.append(xp.asarray(program.terms[:count, :], copy=True))
        return self._split(xp.concat(terms, axis=0), rows)

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
        """Run trajectories; arguments as in `protocols.NativeTrajectory`.

        Returns position, momentum (C, P), log likelihood, log prior (C,) untempered and gradient.
        """
        xp = self._device.xp
        if self._persistent is not None:
            arguments = position, momentum, grad, step_size, num_steps, inverse_mass
            q, p, terms, g = self._persistent.leapfrog(*arguments)
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
        q, p, terms, g = (xp.concat([e[i] for e in ends], axis=0) for i in range(4))
        if not sorted_already:
            back = xp.asarray(np.argsort(order))
            q, p, terms, g = (xp.take(a, back, axis=0) for a in (q, p, terms, g))
        return (q, p, *self._split(terms, None), g)

    def _groups(
        self, chains: int, rows: npt.NDArray[np.int64] | None
    ) -> list[tuple[Program, int, int]]:
        """Return a program and the chains it runs, as many times as memory asks for."""
        count = self.num_rows if rows is None else len(rows)
        key = 0 if rows is None else count
        program = self._programs.get(key)
        if program is None or (program.chains < chains and program.chains < _MOST_CHAINS):
            self._programs.pop(key, None)
            program = None  # its memory goes back before more is asked for
            most = self._most_chains(count)
            xp = self._device.xp
            program = Program(
                self._device,
                self._tables,
                self._x,
                self._y,
                chains=min(chains, most),
                count=count,
                subset=None if rows is None else xp.empty((count,), dtype=xp.int64),
            )
            if key:
                self._programs = {k: p for k, p in self._programs.items() if k == 0}
            self._programs[key] = program
        if rows is not None:
            program.choose(rows)
        size = program.chains
        return [(program, b, min(b + size, chains)) for b in range(0, chains, size)]

    def _most_chains(self, count: int) -> int:
        each = bytes_per_chain(self._tables, count, _itemsize(self._y))
        free = self._device.free_bytes()
        if each > free:
            raise MemoryError(
                f"[Posterior] expected {each / 1e9:.3g} GB of free device memory for one chain, "
                f"got {free / 1e9:.3g} GB"
            )
        return max(1, min(_MOST_CHAINS, free // (2 * each)))

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
        for _ in range(last - done - 1):
            if interrupt is not None and interrupt.is_set():
                raise _backend.Interrupted
            trajectory.step(active)
        done = last
        staying = int(np.count_nonzero(num_steps > last))
        trajectory.arrive(active, staying)
        active = staying


def _itemsize(array: Array) -> int:
    return int(_backend.host_dtype(array).itemsize)
