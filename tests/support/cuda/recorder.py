"""The launches of the host's code, told and not run: names, grids, arguments.

Memory is asked for and never touched, so workloads of any size can be recorded in a second or two.
What a kernel would have computed is missing, so only code that decides nothing by it can run.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ribbit._arrays.device import THREADS
from ribbit._arrays.namespace import _devices
from tests.support.cuda import cpu_device
from tests.support.cuda.cpu_device import NAMESPACE, Array, CpuDevice

_LARGE = 1 << 26  # bytes of an upload whose numbers are left out

Told = tuple[str, tuple[int, int, int], bytes, int, bool]


@dataclass
class Record:
    """What was launched.

    Attributes
    ----------
    launches : Counter of (name, grid, arguments, shared, in_graph)
        How often each was put on a stream; `in_graph`: replayed from a recording.
    memory : dict of int to NumPy array
        What lies at the address of each allocation that a launch was given; kept alive.
    free : int
        Bytes of memory that the device says it has.
    """

    launches: Counter[Told] = field(default_factory=Counter)
    memory: dict[int, Any] = field(default_factory=dict)
    free: int = 70 << 30

    def keep(self, array: Any) -> None:
        """Note the allocation behind a NumPy array."""
        while isinstance(array.base, np.ndarray):
            array = array.base
        self.memory[array.ctypes.data] = array

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the kernels, in the order of their first launch."""
        return tuple(dict.fromkeys(name for name, *_ in self.launches))


class Recorder(CpuDevice):
    """A device that writes down what it is asked to launch."""

    def __init__(self, record: Record, attributes: dict[str, Any]) -> None:
        super().__init__(compiler=lambda names: dict.fromkeys(names))
        self.record_ = record
        self.__dict__.update(attributes)

    def kernels(self, names):
        def bound(name):
            def launch(grid, arguments, shared=0):
                assert grid[0] < 2**31, grid
                assert max(grid[1:]) < 2**16, grid
                assert shared <= self.block_shared, (name, shared)
                told = (name, tuple(map(int, grid)), bytes(arguments), shared)
                if self._recorded is None:
                    self.record_.launches[(*told, False)] += 1
                else:
                    self._recorded.append((*told, True))

            return launch

        return {name: bound(name) for name in names}

    def pointer(self, array):
        address = super().pointer(array)
        self.record_.keep(array._array)
        return address

    def record(self, body):
        self._recorded = recorded = []
        try:
            body()
        finally:
            self._recorded = None
        return lambda: self.record_.launches.update(recorded)

    def free_bytes(self):
        return self.record_.free


@contextlib.contextmanager
def recording(free: int = 70 << 30, **attributes: Any) -> Iterator[tuple[Any, Record]]:
    """Let arrays of `cpu_device` live on a `Recorder`; yield their namespace and the record.

    attributes: of the device, where they are not those of `CpuDevice`.
    """
    record = Record(free=free)
    before = _devices.get(NAMESPACE.__name__)
    upload = NAMESPACE.asarray

    def asarray(value, dtype=None, *, copy=None):
        large = isinstance(value, np.ndarray) and value.nbytes > _LARGE
        if large or (isinstance(value, Array) and copy and value.nbytes > _LARGE):
            return Array(np.empty(value.shape, dtype or value.dtype))
        return upload(value, dtype, copy=copy)

    _devices[NAMESPACE.__name__] = Recorder(record, attributes)
    cpu_device.NAMESPACE.empty = lambda shape, dtype=np.float64: Array(np.empty(shape, dtype))
    cpu_device.NAMESPACE.asarray = asarray
    try:
        yield NAMESPACE, record
    finally:
        del cpu_device.NAMESPACE.empty, cpu_device.NAMESPACE.asarray
        del _devices[NAMESPACE.__name__]
        if before is not None:
            _devices[NAMESPACE.__name__] = before


__all__ = ["THREADS", "Record", "recording"]
