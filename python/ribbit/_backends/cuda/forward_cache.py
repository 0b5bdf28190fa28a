"""The last programs of predictions, for calls that differ in their weights alone."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays.device import Device
from ribbit._backends.cuda.forward import Forward, sizes
from ribbit._backends.cuda.samples import Masked, Samples
from ribbit.protocols import Array

__all__ = ["forward_of"]

_MOST = 4  # programs that are kept
# Bytes of one that is kept, with its rows. A larger one runs for longer than it takes to write.
_MOST_BYTES = 256 << 20


class _Kept:
    """Programs of one device or of all of a library, the last one used behind the others."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.programs: dict[Any, Forward] = {}
        self.last_calls: dict[int, Any] = {}  # by device: where it is done with the buffers

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


_kept: weakref.WeakKeyDictionary[Device, _Kept] = weakref.WeakKeyDictionary()
_making = threading.Lock()


@contextlib.contextmanager
def forward_of(
    device: Device,
    layers: npt.NDArray[np.int64],
    x: Array,
    source: Samples,
    samples: int,
    precision: str,
) -> Iterator[Forward]:
    """Give a `Forward` of these arguments, alone: one call at a time, whatever its stream.

    It is written anew where memory now allows other panels or passes than when it was.
    """
    with _making:
        kept = _kept.setdefault(device, _Kept())
    theta = source.theta
    masks: tuple[Any, ...] = ()
    if isinstance(source, Masked):
        masks = (tuple(source.rates), source.shared, source.first_row)
    key = (
        device.number,
        *(layers.tobytes(), layers.shape),
        # the program keeps x, so nothing else lies there
        *(device.pointer(x), x.shape, str(x.dtype)),
        *(int(theta.shape[-1]), str(theta.dtype), type(source), masks),
        *(samples, precision, sizes(device, layers, x, source, samples)),
    )
    with kept.lock:
        program = kept.get(key)
        if program is None:
            program = Forward(device, layers, x, source, samples, precision)
            kept.put(key, program)
        elif kept.last_calls.get(device.number) is not None:
            device.wait(kept.last_calls[device.number])
        try:
            with program.taking(source):
                yield program
        finally:
            kept.last_calls[device.number] = device.mark()
