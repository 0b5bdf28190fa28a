"""Forward passes of many weight samples on a device, and moments of what they predict.

Shapes: S samples, P parameters, N rows, R rows of a panel, K outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ribbit._arrays.device import Device, Kernel, Launch, blocks_of, pack
from ribbit._arrays.namespace import host_dtype
from ribbit._backends.cuda.layers.panel import Masks, Row
from ribbit._backends.cuda.programs.plan import Walk, rows_of, run_rows, scalars_of
from ribbit._backends.cuda.samples import Masked, Samples
from ribbit._backends.density_table import LikelihoodTable
from ribbit._backends.precision import PASSES, Passes
from ribbit.protocols import Array

__all__ = ["Forward", "numbered_outputs", "predictive_moments"]

_FORWARD_BYTES = 1 << 22  # of one sample's values in a pass that keeps nothing
_MOST_SAMPLES = 128  # in one pass: more fill no device better


class Forward(Walk):
    """Outputs of S weight samples on all rows, panel by panel.

    Parameters
    ----------
    device : Device
    layers : (rows, columns) int64 array
        The layer table.
    x : (N, D) array
        In the samples' dtype, or bytes of images.
    source : Samples
        Under masks, layers before the first one are passed once for all samples of a pass.
    samples : int
        The most samples wanted in one pass; fewer where memory is short.
    precision : str, default "float32"
        Of products of float32 weights; ``precision.py``.

    Attributes
    ----------
    device : Device
    scalar : str
        "float" or "double".
    theta : (samples, P) array
        The samples of the pass; (1, P) where all share their weights.
    theta_stride : int
        Numbers from sample to sample of `theta`.
    samples, rows, count : int
        Samples of a pass, rows of a panel, N.
    """

    def __init__(
        self,
        device: Device,
        layers: npt.NDArray[np.int64],
        x: Array,
        source: Samples,
        samples: int,
        precision: str = "float32",
    ) -> None:
        dim, dtype = int(source.theta.shape[-1]), np.dtype(str(source.theta.dtype))
        masked = source if isinstance(source, Masked) else None
        self.device, self._source = device, source
        self.scalar = "float" if dtype == np.float32 else "double"
        self.count = int(x.shape[0])
        rows = rows_of(layers)
        rates = [0.0] * len(rows) if masked is None else list(masked.rates)
        fitting = max(1, _FORWARD_BYTES // (sum(row["out_size"] for row in rows) * dtype.itemsize))
        self.rows = min(self.count, run_rows(layers, dtype.itemsize), fitting)
        self.theta_stride = dim if masked is None else 0
        each = dtype.itemsize * (scalars_of(rows) * self.rows + self.theta_stride)
        if each > device.free_bytes():
            raise MemoryError(
                f"[predict] expected {each / 1e9:.3g} GB of free device memory, "
                f"got {device.free_bytes() / 1e9:.3g} GB"
            )
        fitting = device.free_bytes() // (2 * each)
        self.samples = max(1, min(samples, _MOST_SAMPLES, fitting))
        super().__init__(
            device,
            layers,
            x,
            dtype,
            dim=dim,
            chains=self.samples,
            panel=self.rows,
            rates=rates,
            fixed=frozenset() if masked is None else fixed_rows(rows, rates),
            passes=PASSES[precision] if self.scalar == "float" else Passes(),
        )
        self.theta = self._buffer((self.samples if masked is None else 1, dim))
        self.grad = self.theta  # nobody writes it
        self.masks: Array | None = None
        if masked is not None:
            self.masks = device.xp.zeros(3, device.xp.uint64)
            self._dropping = Masks(self.masks, True, masked.first_row, masked.shared)
        cells = self._cells(gradients=False)
        self._output = cells[-1]
        self._passes: list[tuple[int, int, list[Launch]]] = []
        for first in range(0, self.count, self.rows):
            some = min(self.rows, self.count - first)
            panel = self._panel_at(cells, {}, first, some)
            self._write_forward(panel)
            self._passes.append((first, some, panel.forward))

    def groups(self, first: int, samples: int) -> list[tuple[int, int]]:
        """Return begin and end of each pass over samples first, .. first + samples - 1."""
        step, last = self.samples, first + samples
        return [(b, min(b + step, last)) for b in range(first, last, step)]

    def panels(self, begin: int, end: int) -> Iterator[tuple[int, int, Array]]:
        """Yield first row, rows, and outputs (S, R K) of each panel for samples begin .. end - 1.

        The outputs are a buffer that the next panel overwrites.
        """
        count = end - begin
        self._source.load(self.device, self.theta[:count, :], begin)
        if isinstance(self._source, Masked):
            address = self._source.address(begin)
            self.masks[...] = self.device.xp.asarray(address)  # type: ignore[index]
        names = {launch.name for _, _, launches in self._passes for launch in launches}
        kernels = self._device.kernels(sorted(names))
        outputs = next(a for a in self._keep if self._device.pointer(a) == self._output.value)
        for first, rows, launches in self._passes:
            for launch in launches:
                arguments = pack(self._device, launch.fields)
                kernels[launch.name](launch.grid_of(count), arguments, launch.shared)
            yield first, rows, outputs[:count, :]


def numbered_outputs(forward: Forward, first: int, count: int, width: int) -> tuple[Array, Array]:
    """Return raw outputs (S, N, K) of samples first, .. first + count - 1, and their last weights.

    width: K.
    """
    xp = forward.device.xp
    out = xp.empty((count, forward.count, width), dtype=forward.theta.dtype)
    lasts = xp.empty((count,), dtype=forward.theta.dtype)
    for begin, end in forward.groups(first, count):
        some = slice(begin - first, end - first)
        for row, rows, values in forward.panels(begin, end):
            shaped = xp.reshape(values[:, : rows * width], (end - begin, rows, width))
            out[some, row : row + rows, :] = shaped
        lasts[some] = forward.theta[: end - begin, -1]
    return out, lasts


def predictive_moments(
    forward: Forward, likelihood: LikelihoodTable, count: int, width: int
) -> tuple[Array, ...]:
    """Return running sums over samples 0 .. count - 1; see `protocols.NativePredictive`."""
    moments = _Moments(forward, likelihood, width)
    for begin, end in forward.groups(0, count):
        for first, rows, values in forward.panels(begin, end):
            moments.add(first, rows, values, begin == 0)
    return moments.sums


def fixed_rows(rows: Sequence[Row], rates: Sequence[float]) -> frozenset[int]:
    """Return rows whose value no mask reaches; none where there are no masks."""
    reached: set[int] = set()  # by number of the value
    for number, row in enumerate(rows):
        if rates[number] > 0 or not reached.isdisjoint((row["input"], row["second"])):
            reached.add(number + 1)
    if not reached:
        return frozenset()
    return frozenset(i for i in range(len(rows)) if i + 1 not in reached)


class _Moments:
    """Sums of predictions, sample by sample."""

    def __init__(self, forward: Forward, likelihood: LikelihoodTable, outputs: int) -> None:
        xp = forward.device.xp
        self._forward, self._device, self._outputs = forward, forward.device, outputs
        self._kind, self._constants = likelihood.kind, likelihood.constants
        self._classes, self._learned = likelihood.classes, likelihood.learns_noise
        self._transforms = likelihood.transforms
        means = outputs if likelihood.classes else likelihood.columns
        shape = forward.count, means
        first, total, squares = (xp.empty(shape, dtype=xp.float64) for _ in range(3))
        extra = xp.empty((forward.count,) if self._classes else shape, dtype=xp.float64)
        self.sums = (first, total, squares, extra)
        self._means = means
        size = (forward.samples, forward.rows)
        self._entropies = xp.empty(size, dtype=forward.theta.dtype) if self._classes else None

    def add(self, first: int, rows: int, values: Array, begin: bool) -> None:
        """Take the outputs (S, R K) of some samples at rows first, first + 1, .."""
        samples, stride = values.shape[0], values.shape[1]
        scalar, outputs, kind = self._forward.scalar, self._outputs, self._kind
        noise = None
        if self._learned:
            theta = self._forward.theta
            itemsize = host_dtype(theta).itemsize
            noise = self._device.pointer(theta) + (theta.shape[1] - 1) * itemsize
        launches = []
        if self._transforms:
            launches.append(
                Launch(
                    f"PredictiveValues<{scalar}, {kind}>",
                    (values, stride, rows, outputs, self._entropies),
                    (-(-rows // 256), samples, 1),
                    -1,
                )
            )
        launches.append(
            Launch(
                f"AddMoments<{scalar}, {kind}>",
                (
                    values,
                    stride,
                    samples,
                    rows,
                    outputs,
                    int(begin),
                    first,
                    noise,
                    self._forward.theta_stride,
                    *self._constants,
                    *self.sums[:3],
                    None if self._classes else self.sums[3],
                ),
                (blocks_of(rows * self._means), 1, 1),
                -1,
            )
        )
        if self._classes:
            launches.append(
                Launch(
                    f"AddEntropies<{scalar}>",
                    (self._entropies, samples, rows, int(begin), first, self.sums[3]),
                    (blocks_of(rows), 1, 1),
                    -1,
                )
            )
        launch_all(self._device, launches)


def launch_all(device: Device, launches: list[Launch]) -> None:
    """Launch what has no chains."""
    kernels: dict[str, Kernel] = device.kernels([launch.name for launch in launches])
    for launch in launches:
        kernels[launch.name](launch.grid_of(1), pack(device, launch.fields), launch.shared)
