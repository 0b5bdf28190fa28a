"""Forward passes of many weight samples on a device, and moments of what they predict."""

# Shapes: S samples, P parameters, N rows, R rows of a panel, K outputs.

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ribbit._arrays.device import Device, Launch, pack
from ribbit._backends.cuda.layers import op_table
from ribbit._backends.cuda.layers.panel import Masks, Row
from ribbit._backends.cuda.programs.plan import Walk, rows_of, run_rows, scalars_of
from ribbit._backends.cuda.samples import Masked, Samples
from ribbit._backends.density_table import LikelihoodTable
from ribbit._backends.precision import PASSES, Passes
from ribbit.protocols import Array

_PANEL_ROWS = 2048  # at most: with samples along the grid more fill no device better
_MOST_SAMPLES = 128  # in one pass, likewise
_MOMENT_ROWS = 16  # of a block of AddMoments


class Forward(Walk):
    """Outputs of S weight samples on all rows: passes over some samples at a panel of rows."""

    def __init__(
        self,
        device: Device,
        layers: npt.NDArray[np.int64],  # (rows, columns) int64: the layer table
        x: Array,  # (N, D): in the samples' dtype, or bytes of images
        # under masks, layers before the first one are passed once for all samples at a panel
        source: Samples,
        # all that one prediction takes; passes have as many, fewer where memory is short, in passes
        # of equal size but for the last
        samples: int,
        precision: str = "float32",  # of products of float32 weights; ``precision.py``
    ) -> None:
        dim, dtype = int(source.theta.shape[-1]), np.dtype(str(source.theta.dtype))
        masked = source if isinstance(source, Masked) else None
        self.device = device
        self._source: Samples | None = source
        self.scalar = "float" if dtype == np.float32 else "double"
        self.count = int(x.shape[0])
        rows = rows_of(layers)
        rates = [0.0] * len(rows) if masked is None else list(masked.rates)
        stride = _stride(source)
        # numbers from sample to sample of `theta`
        self.theta_stride = stride if masked is None else 0
        self.rows, self.samples = sizes(layers, x, source, samples, device.free_bytes())
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
        self._last = op_table.last_layers(self._rows, self._skipped, self._fixed)
        # (samples, >= P): the samples of the pass, each from a multiple of 16 bytes on; (1, P)
        # where all share their weights
        self.theta = self._buffer((self.samples if masked is None else 1, stride))
        # (samples, P): the same without what lies between them
        self.weights = self.theta if stride == dim else self.theta[:, :dim]
        self.grad = self.theta  # nobody writes it
        self.masks: Array | None = None
        self.bytes = int(x.nbytes)  # of all that it points to, less the weights that it is given
        if masked is not None:
            self.masks = device.xp.zeros(3, device.xp.uint64)
            self._dropping = Masks(self.masks, True, masked.first_row, masked.shared)
        cells = self._cells(gradients=False)
        self._output = cells[-1]
        # First row and rows of each panel, and its launches: those of all samples, and the others.
        self._panels: list[tuple[int, int, list[Launch], list[Launch]]] = []
        for first in range(0, self.count, self.rows):
            some = min(self.rows, self.count - first)
            panel = self._panel_at(cells, {}, first, some)
            self._write_forward(panel)
            shared = [launch for launch in panel.forward if launch.chains_along < 0]
            others = [launch for launch in panel.forward if launch.chains_along >= 0]
            self._panels.append((first, some, shared, others))
        self.bytes += sum(int(array.nbytes) for array in self._keep)

    @contextlib.contextmanager
    def taking(self, source: Samples) -> Iterator[None]:
        """Take other samples of the same kind, and hold them no longer than this."""
        self._source = source
        try:
            yield
        finally:
            self._source = None

    def groups(self, first: int, samples: int) -> list[tuple[int, int]]:
        """Return begin and end of each pass over samples first, .. first + samples - 1."""
        step, last = self.samples, first + samples
        return [(b, min(b + step, last)) for b in range(first, last, step)]

    def passes(self, first: int, samples: int) -> Iterator[tuple[int, int, int, int, Array]]:
        """Yield begin and end of samples, first row, rows, and outputs (S, R K) of each pass."""
        # The outputs are a buffer that the next pass overwrites; `weights` has those of the
        # samples.
        outputs = next(a for a in self._keep if self._device.pointer(a) == self._output.value)
        groups = self.groups(first, samples)
        assert self._source is not None
        if isinstance(self._source, Masked):
            self._source.load(self.device, self.theta, first)
            for row, rows, shared, others in self._panels:
                self._launch(shared, 1)
                for begin, end in groups:
                    self.masks[...] = self.device.xp.asarray(  # type: ignore[index]
                        self._source.address(begin)
                    )
                    self._launch(others, end - begin)
                    yield begin, end, row, rows, outputs[: end - begin, :]
            return
        for begin, end in groups:
            self._source.load(self.device, self.theta[: end - begin, :], begin)
            for row, rows, shared, others in self._panels:
                self._launch(shared, 1)
                self._launch(others, end - begin)
                yield begin, end, row, rows, outputs[: end - begin, :]

    def last_weights(self, count: int) -> int:
        """Return the address of the last weights of the first sample."""
        return self._address(self.theta, self._dim - count)

    def _launch(self, launches: list[Launch], samples: int) -> None:
        kernels = self._device.kernels(list(dict.fromkeys(launch.name for launch in launches)))
        for launch in launches:
            arguments = pack(self._device, launch.fields)
            kernels[launch.name](launch.grid_of(samples), arguments, launch.shared)


def sizes(
    layers: npt.NDArray[np.int64],
    x: Array,
    source: Samples,
    samples: int,
    free: int,
) -> tuple[int, int]:
    """Return the rows of a panel and the samples of a pass that `free` bytes have room for."""
    itemsize = np.dtype(str(source.theta.dtype)).itemsize
    stride = 0 if isinstance(source, Masked) else _stride(source)
    rows = min(int(x.shape[0]), run_rows(layers, itemsize), _PANEL_ROWS)
    numbers = scalars_of(rows_of(layers))

    def each() -> int:  # bytes of a sample
        return itemsize * (numbers * rows + stride)

    while each() > free // 2 and rows > 1:
        rows = -(-rows // 2)
    if each() > free:
        raise MemoryError(
            f"[predict] expected {each() / 1e9:.3g} GB of free device memory, "
            f"got {free / 1e9:.3g} GB"
        )
    most = max(1, min(samples, _MOST_SAMPLES, free // (2 * each())))
    return rows, -(-samples // -(-samples // most))


def _stride(source: Samples) -> int:
    """Weights of a sample begin at a multiple of 16 bytes."""
    return -(-int(source.theta.shape[-1]) // 4) * 4


def numbered_outputs(
    forward: Forward, first: int, count: int, width: int, noises: int
) -> tuple[Array, Array]:
    """Return raw outputs (S, N, width) of `count` samples from `first` on, and log noises."""
    xp = forward.device.xp
    out = xp.empty((count, forward.count, width), dtype=forward.theta.dtype)
    logs = xp.empty((count, noises), dtype=forward.theta.dtype)
    for begin, end, row, rows, values in forward.passes(first, count):
        some = slice(begin - first, end - first)
        shaped = xp.reshape(values[:, : rows * width], (end - begin, rows, width))
        out[some, row : row + rows, :] = shaped
        if row == 0:
            dim = forward.weights.shape[1]
            logs[some, :] = forward.weights[: end - begin, dim - noises :]
    return out, logs


def predictive_moments(
    forward: Forward, likelihood: LikelihoodTable, count: int, width: int
) -> tuple[Array, ...]:
    """Return the sums of `NetworkPredictive.predictive_moments` of samples 0 .. count - 1."""
    moments = _Moments(forward, likelihood, width)
    for begin, _, first, rows, values in forward.passes(0, count):
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
        self._noises, self._count = likelihood.noises, len(likelihood.scales)
        dtype = np.dtype(str(forward.theta.dtype))
        self._known = likelihood.scales_on(xp, dtype)
        means = outputs if likelihood.classes else likelihood.columns
        shape = forward.count, means
        first, total, squares = (xp.empty(shape, dtype=xp.float64) for _ in range(3))
        extra = xp.empty((forward.count,) if likelihood.classes else shape, dtype=xp.float64)
        self.sums = (first, total, squares, extra)
        size = (forward.samples, forward.rows)
        self._entropies = xp.empty(size, dtype=forward.theta.dtype) if likelihood.classes else None

    def add(self, first: int, rows: int, values: Array, begin: bool) -> None:
        """Take the outputs (S, R K) of some samples at rows first, first + 1, .."""
        samples, stride = values.shape[0], values.shape[1]
        scales, noise_stride = self._known, 0
        if self._noises:
            scales, noise_stride = (
                self._forward.last_weights(self._noises),
                self._forward.theta_stride,
            )
        launch = Launch(
            f"AddMoments<{self._forward.scalar}, {self._kind}>",
            (
                *(values, stride, samples, rows, self._outputs, int(begin), first),
                self._entropies,
                *(scales, noise_stride, self._count),
                *self._constants,
                *self.sums,
            ),
            (-(-rows // _MOMENT_ROWS), 1, 1),
            -1,
        )
        kernel = self._device.kernels([launch.name])[launch.name]
        kernel(launch.grid, pack(self._device, launch.fields))
