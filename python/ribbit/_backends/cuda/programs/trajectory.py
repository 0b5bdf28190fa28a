"""Leapfrog trajectories of many chains, launch by launch (Neal 2011, section 2.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ribbit._arrays.device import Device, Kernel, Launch, blocks_of, numbers_at_once, pack
from ribbit._arrays.threads import Interrupted
from ribbit._backends.cuda.programs.join import Step
from ribbit.protocols import Array

_OF_A_THREAD = 8  # numbers that it has on their way at once, see KickDrift


class _Gradient(Protocol):
    """What a trajectory needs of the program that evaluates the log density."""

    theta: Array  # (C, P)
    grad: Array  # (C, P)
    terms: Array  # (C, 2) float64

    @property
    def joins(self) -> bool:
        """Whether `run` makes steps, too."""
        ...

    @property
    def steps_together(self) -> int:
        """Steps of a recording: more than one where its launches are shorter than a replay."""
        ...

    def run(
        self, chains: int, *, gradient: bool, values: bool, step: Step | None = None
    ) -> None: ...


class Trajectory:
    """Positions, momenta and step sizes in buffers of their own, and launches that move them."""

    # A step is recorded once for a number of chains and then replayed: no launch of it costs the
    # host anything but the first. Steps of few short launches are recorded several at a time.

    def __init__(self, device: Device, program: _Gradient) -> None:
        xp = device.xp
        chains, dim = program.theta.shape
        self._device, self._program = device, program
        self._dtype = np.dtype(str(program.theta.dtype))
        self._scalar = "float" if self._dtype == np.float32 else "double"
        self._momentum = xp.empty((chains, dim), dtype=program.theta.dtype)
        self._step_size = xp.empty((chains,), dtype=xp.float64)
        self._mass: Array | None = None  # (P,) or (C, P)
        self._kernels: dict[str, Kernel] = {}
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}  # by chains and steps

    def load(
        self,
        position: Array,
        momentum: Array,
        grad: Array,
        step_size: Array,
        inverse_mass: Array | None,
    ) -> None:
        """Take the start of n trajectories; shapes as in `NativeDensity.leapfrog`."""
        xp, n = self._device.xp, position.shape[0]
        self._program.theta[:n, :] = position
        self._program.grad[:n, :] = grad
        self._momentum[:n, :] = momentum
        self._step_size[:n] = step_size
        shape = None if self._mass is None else self._mass.shape
        if inverse_mass is None:
            wanted = None
        else:
            wanted = self._momentum.shape if inverse_mass.ndim == 2 else inverse_mass.shape
        if shape != wanted:
            self._replays.clear()  # recorded with another address
            self._mass = None if wanted is None else xp.empty(wanted, dtype=position.dtype)
        if self._mass is not None and inverse_mass is not None:
            self._mass[: inverse_mass.shape[0]] = inverse_mass

    def begin(self, active: int) -> None:
        """Add half a kick and a drift of the first `active` chains."""
        self._kick_drift(0, active, 0.5, 1.0)

    def steps(self, active: int, count: int, interrupt: Any = None) -> None:
        """Add a gradient, a kick and a drift for the first `active` chains, `count` times."""
        while count > 0:
            if interrupt is not None and interrupt.is_set():
                raise Interrupted
            together = self._program.steps_together
            many = together if count >= together else 1
            self._replay(active, many)
            count -= many

    def _replay(self, active: int, many: int) -> None:
        def move() -> None:
            for _ in range(many):
                self._move(active)

        replay = self._replays.get((active, many))
        if replay is None:
            move()  # compiles what is new, which a recording must not do
            self._replays[active, many] = self._device.record(move)
            return
        replay()

    def arrive(self, active: int, staying: int) -> None:
        """Add a gradient with values; chains from `staying` on end with half a kick."""
        self._program.run(active, gradient=True, values=True)
        self._kick_drift(staying, active, 0.5, 0.0)
        if staying:
            self._kick_drift(0, staying, 1.0, 1.0)

    def ends(self, count: int) -> tuple[Array, Array, Array, Array]:
        """Return copies of position, momentum (n, P), terms (n, 2) and gradient (n, P)."""
        xp, program = self._device.xp, self._program
        parts = program.theta, self._momentum, program.terms, program.grad
        q, p, terms, g = (xp.asarray(part[:count, :], copy=True) for part in parts)
        return q, p, terms, g

    def _move(self, active: int) -> None:
        if self._program.joins:
            self._program.run(active, gradient=True, values=False, step=self._step())
            return
        self._program.run(active, gradient=True, values=False)
        self._kick_drift(0, active, 1.0, 1.0)

    def _step(self) -> Step:
        mass = self._mass
        return Step(
            self._address(self._momentum, 0),
            None if mass is None else self._address(mass, 0),
            self._momentum.shape[1] if mass is not None and mass.ndim == 2 else 0,
            self._address(self._step_size, 0),
        )

    def _kick_drift(self, begin: int, end: int, kick: float, drift: float) -> None:
        dim = self._momentum.shape[1]
        at = begin * dim
        mass, stride = self._mass, 0
        arrays = [self._program.theta, self._momentum, self._program.grad]
        arrays += [] if mass is None else [mass]
        at_once = numbers_at_once(self._device, dim, self._dtype.itemsize, *arrays)
        name = f"KickDrift<{self._scalar}, {at_once}>"
        if name not in self._kernels:
            self._kernels |= self._device.kernels([name])
        if mass is not None and mass.ndim == 2:
            stride = dim
        fields: tuple[Any, ...] = (
            self._address(self._program.theta, at),
            self._address(self._momentum, at),
            self._address(self._program.grad, at),
            None if mass is None else self._address(mass, begin * stride),
            stride,
            self._address(self._step_size, begin),
            kick,
            drift,
            dim,
        )
        launch = Launch(name, fields, (blocks_of(-(-dim // _OF_A_THREAD)), 1, 1))
        self._kernels[name](launch.grid_of(end - begin), pack(self._device, fields))

    def _address(self, array: Array, elements: int) -> int:
        return self._device.pointer(array) + elements * np.dtype(str(array.dtype)).itemsize
