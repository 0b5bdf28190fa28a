"""The last programs of predictions, for calls that differ in their weights alone."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ribbit._arrays.device import Device
from ribbit._backends.cuda.forward import Forward, sizes
from ribbit._backends.cuda.samples import Masked, Samples
from ribbit.protocols import Array

_MOST = 4  # programs that are kept
# Bytes of one that is kept, with its rows. A larger one runs for longer than it takes to write.
_MOST_BYTES = 256 << 20
_PER_THREAD = 2  # cudaStreamPerThread: the handle of another stream in every thread

_T = TypeVar("_T")


class _Kept:
    """Programs of one device or of all of a library, the last one used behind the others."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.programs: dict[Any, Forward] = {}  # by a key that begins with the device's number

    def get(self, key: Any) -> Forward | None:
        found = self.programs.pop(key, None)
        if found is not None:
            self.programs[key] = found
        return found

    def put(self, key: Any, program: Forward) -> None:
        if program.bytes > _MOST_BYTES:
            return
        self.programs[key] = program
        while len(self.programs) > _MOST:
            del self.programs[next(iter(self.programs))]

    def drop(self, number: int) -> bool:
        """Give up the memory of a device's programs; return whether there were any."""
        dropped = [key for key in self.programs if key[0] == number]
        for key in dropped:
            del self.programs[key]
        return bool(dropped)


_kept: weakref.WeakKeyDictionary[Device, _Kept] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def with_forward(
    device: Device,
    layers: npt.NDArray[np.int64],
    x: Array,
    source: Samples,
    samples: int,
    precision: str,
    use: Callable[[Forward], _T],
    *,
    passing: bool,
) -> _T:
    """Return what `use` makes of a `Forward` of these arguments: one call at a time."""
    # If memory is short, kept programs are dropped and the prediction is begun anew. passing: no
    # later call can have the same x, so the program is not kept.
    with _making:
        kept = _kept.setdefault(device, _Kept())
    arguments = layers, x, source, samples
    wanted = sizes(*arguments, sys.maxsize)
    key = (device.number, *_stream(device), precision, wanted, *_key(device, *arguments))

    def attempt() -> _T:
        program = kept.get(key)
        if program is None:
            if sizes(*arguments, device.free_bytes()) != wanted:
                kept.drop(device.number)
            program = Forward(device, *arguments, precision)
        with program.taking(source):
            made = use(program)
        if not passing and (program.rows, program.samples) == wanted:
            kept.put(key, program)
        return made

    with kept.lock:
        try:
            return attempt()
        except MemoryError:
            if not kept.drop(device.number):
                raise
        return attempt()  # here, where no traceback holds what the first one had


def _stream(device: Device) -> tuple[int, int]:
    """Return what tells the current stream from others."""
    # Freed memory goes back to the stream that it was made on, whose next launches may write to it
    # at once; so a program runs on that stream alone.
    stream = device.stream()
    return stream, threading.get_ident() if stream == _PER_THREAD else 0


def _key(
    device: Device, layers: npt.NDArray[np.int64], x: Array, source: Samples, samples: int
) -> tuple[Any, ...]:
    """Return what launches depend on."""
    theta = source.theta
    masks: tuple[Any, ...] = ()
    if isinstance(source, Masked):
        masks = (tuple(source.rates), source.shared, source.first_row)
    return (
        *(layers.tobytes(), layers.shape),
        # the program keeps x, so nothing else lies there
        *(device.pointer(x), x.shape, str(x.dtype)),
        *(int(theta.shape[-1]), str(theta.dtype), type(source), masks),
        samples,
    )
