"""Steps of Bayes by Backprop, launch by launch: the formulas of ``variational_kernels.h``."""

# Shapes: P parameters, S weight samples, I steps of a call.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays.device import (
    THREADS,
    Device,
    Launch,
    blocks_of,
    numbers_at_once,
    pack,
)
from ribbit._backends.cuda.layers.row_noise import FLIPOUT, LOCAL, REPARAM
from ribbit._backends.cuda.programs.approximation import (
    Approximation,
    Batch,
    GradientProgram,
    Scheme,
    Segment,
)
from ribbit.protocols import Array

_WEIGHT_NOISE = 5 << 24  # purpose and layer of core/philox_hd.h
_NO_KEYS = (0,) * 10  # of a stream's rounds: the clock has the seed
_NO_PRIOR = (-1, (0.0,) * 5)  # kind and constants
_FEWEST = 1024  # steps that a call has room for


class Variational:
    """Mean, rho and their moments in buffers of their own, and the launches that move them."""

    # A step is recorded once for each size of batch and then replayed: what changes from step to
    # step lies in device memory.

    def __init__(
        self,
        device: Device,
        scheme: Scheme,
        prior: Sequence[Segment],  # neighbours that are equal made one
        centre: Array | None,  # (P,) or None: means of the prior; None: 0
        temperature: float,
        batches: Sequence[Batch],  # one for each of ``scheme.batches.sizes``
        approximation: Approximation,
    ) -> None:
        self._device, self._scheme, self._temperature = device, scheme, temperature
        self._prior, self._centre = prior, centre
        self._batches = {batch.count: batch for batch in batches}
        self._approximation, self._state = approximation, approximation.state
        self._dim, self._scale = approximation.dim, approximation.scale
        self._dtype, dim = np.dtype(str(self._state.dtype)), self._dim
        self._scalar = "float" if self._dtype == np.float32 else "double"
        # Closed forms know the prior where scales are made and parameters moved, others where the
        # gradients of samples are added up.
        one: list[Segment] = [(0, dim, *_NO_PRIOR)]
        self._parts: Sequence[Segment] = prior if scheme.closed else one
        self._noise_parts: Sequence[Segment] = one if scheme.closed else prior
        self._closed_centre = centre if scheme.closed else None
        self._gradients = self._empty((2, dim), self._dtype)  # by mean and by scale
        self._likelihoods = self._empty((scheme.num_samples,))
        blocks = sum(blocks_of(size) for _, size, _, _ in self._parts)
        drawn = sum(noise_blocks(part) for part in self._noise_parts)
        self._log_q, self._squares = self._empty((blocks,)), self._empty((blocks,))
        self._bad = self._empty((blocks,))
        self._sums, self._terms = self._empty((drawn * THREADS,)), self._empty((drawn,))
        self._clock = self._empty((3,), np.uint64)  # seed, first step, steps done
        self._room(_FEWEST)

    def load(
        self,
        state: Array,
        seed: int,
        first_step: int,
        step_size: npt.NDArray[np.float64],
        kl_weight: npt.NDArray[np.float64],
    ) -> None:
        """Take the start of I steps; arguments as in `NativeDensity.advance_variational`."""
        xp, count = self._device.xp, len(step_size)
        if count > self._capacity:
            self._room(max(count, 2 * self._capacity))
        number = range(first_step + 1, first_step + count + 1)
        # Not NumPy's power, whose last bit is another.
        corrections = (
            [1.0 / (1.0 - math.pow(decay, n)) for n in number] for decay in self._scheme.decay
        )
        table = np.stack([step_size, kl_weight, *corrections], axis=1)
        self._state[...] = state
        self._table[:count, :] = xp.asarray(table)
        self._clock[...] = xp.asarray(np.array([seed, first_step, 0], dtype=np.uint64))
        self._log[:1] = -1.0

    def step(self, number: int) -> None:
        """Make the next step, whose number is given."""
        count = self._scheme.batches.rows(number)
        replay = self._replays.get(count)
        if replay is None:
            body = self._body(self._batches[count])
            body()  # compiles what is new, which a recording must not do
            self._replays[count] = self._device.record(body)
            return
        replay()

    def ends(self) -> tuple[Array, Array, Array]:
        """Return copies of the state (6, P), the gradient by the mean, and the log."""
        # log (1 + 3 capacity,): the step that failed, or -1, then records (3, capacity).
        xp = self._device.xp
        return xp.asarray(self._state, copy=True), self._gradients[0, :], self._log

    def _room(self, steps: int) -> None:
        self._capacity = steps
        self._table = self._empty((steps, 4))
        self._log = self._empty((1 + 3 * steps,))
        self._replays: dict[int, Callable[[], None]] = {}  # recorded with other addresses

    def _empty(self, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        xp = self._device.xp
        return xp.empty(shape, dtype=getattr(xp, np.dtype(dtype).name))

    def _at(self, array: Array, elements: int) -> int:
        return self._device.pointer(array) + elements * np.dtype(str(array.dtype)).itemsize

    def _body(self, batch: Batch) -> Callable[[], None]:
        """Return what makes one step on a batch of this size."""
        program, samples = batch.program, self._scheme.num_samples
        # Launches and how many chains they run; None: the gradient.
        parts: list[tuple[Launch | None, int]] = [(launch, 1) for launch in self._scales()]
        if batch.rows is not None:
            parts.append((self._rows(batch), 1))
        for first in range(0, samples, program.chains):
            count = min(program.chains, samples - first)
            parts += [(self._draw(program, first), count), (None, count)]
            parts.append((self._likelihood(program, first), count))
            parts += [(launch, 1) for launch in self._noise_gradients(program, first, count)]
        parts += [(launch, 1) for launch in (*self._updates(), self._record())]
        names = [launch.name for launch, _ in parts if launch is not None]
        # Together with those of the gradient: in one go.
        kernels = self._device.kernels(list(dict.fromkeys([*program.names, *names])))
        ready = [
            (None, (count, 1, 1), b"")
            if launch is None
            else (kernels[launch.name], launch.grid_of(count), pack(self._device, launch.fields))
            for launch, count in parts
        ]

        def body() -> None:
            for kernel, grid, arguments in ready:
                if kernel is None:
                    program.run(grid[0], gradient=True, values=False)
                else:
                    kernel(grid, arguments)

        return body

    def _rows(self, batch: Batch) -> Launch:
        batches = self._scheme.batches
        fields = (self._clock, batches.num_rows, batches.count, batch.count, batch.rows)
        return Launch("VariationalRows", fields, (blocks_of(batch.count), 1, 1))

    def _scales(self) -> list[Launch]:
        launches, slot = [], 0
        for offset, size, _, constants in self._parts:
            blocks = blocks_of(size)
            fields = (
                self._state,
                self._at(self._state, self._dim),
                self._closed_centre,
                self._scale,
                offset,
                size,
                constants[1],  # 1 / sd^2 of a normal prior
                self._at(self._log_q, slot),
                self._at(self._squares, slot) if self._scheme.closed else None,
            )
            launches.append(Launch(f"VariationalScale<{self._scalar}>", fields, (blocks, 1, 1)))
            slot += blocks
        return launches

    def _draw(self, program: GradientProgram, first: int) -> Launch:
        noise, of_all = self._noise(), (self._state, self._scale, self._dim, program.theta)
        grid = blocks_of(-(-self._dim // 4)), 1, 1
        estimator = self._scheme.estimator
        if estimator == REPARAM:  # one sample of each row of the grid
            fields = *_NO_KEYS, *noise, first, 1, 1 << 32, *of_all
            size = self._dtype.itemsize
            arrays = self._state, self._scale, program.theta
            at_once = numbers_at_once(self._device, self._dim, size, *arrays)
            return Launch(f"Reparameterize<{self._scalar}, false, {at_once}>", fields, grid)
        name = f"DrawPaths<{self._scalar}, {_flag(estimator == FLIPOUT)}>"
        return Launch(name, (*noise, first, *of_all, self._approximation.where), grid)

    def _likelihood(self, program: GradientProgram, first: int) -> Launch:
        slots, out = int(program.row_terms.shape[1]), self._at(self._likelihoods, first)
        fields = (program.row_terms, slots, 0.0, 1.0, out, 1, None, 0)
        return Launch(f"SumTerms<{self._scalar}>", fields, (1, 1, 1))

    def _noise_gradients(self, program: GradientProgram, first: int, count: int) -> list[Launch]:
        launches, slot = [], 0
        types, gradients = self._gradients_of(program)
        for part in self._noise_parts:
            offset, size, kind, constants = part
            blocks = noise_blocks(part)
            fields = (
                *constants,
                *self._noise(),
                self._table,
                self._log,
                float(self._temperature),
                program.theta,
                self._centre,
                *gradients,
                int(program.theta.shape[1]),
                offset,
                size,
                first,
                count,
                self._scheme.num_samples,
                self._gradients,
                self._at(self._gradients, self._dim),
                self._at(self._sums, slot * THREADS),
                self._at(self._terms, slot),
            )
            name = f"NoiseGradient<{self._scalar}, {kind}, {types}>"
            launches.append(Launch(name, fields, (blocks, 1, 1)))
            slot += blocks
        return launches

    def _gradients_of(self, program: GradientProgram) -> tuple[str, tuple[Any, ...]]:
        """C++ type and members of where NoiseGradient finds the gradients of a program."""
        estimator, given = self._scheme.estimator, self._approximation
        if estimator == REPARAM:
            return f"DrawnGradient<{self._scalar}>", (program.grad,)
        name = f"PathGradients<{self._scalar}, {_flag(estimator == LOCAL)}>"
        return name, (program.grad, self._scale, given.paired, self._dim)

    def _updates(self) -> list[Launch]:
        scheme, launches, slot = self._scheme, [], 0
        for offset, size, _, constants in self._parts:
            blocks = blocks_of(size)
            fields = (
                self._clock,
                self._table,
                self._log,
                self._state,
                self._closed_centre,
                self._gradients,
                self._at(self._gradients, self._dim),
                self._dim,
                offset,
                size,
                constants[1] / self._temperature,
                1.0 / scheme.num_samples,
                *map(float, scheme.decay),
                float(scheme.epsilon),
                self._at(self._bad, slot),
            )
            launches.append(Launch(f"VariationalUpdate<{self._scalar}>", fields, (blocks, 1, 1)))
            slot += blocks
        return launches

    def _record(self) -> Launch:
        scheme, blocks = self._scheme, int(self._bad.shape[0])
        terms, factor = self._squares, 1.0
        if not scheme.closed:
            terms, factor = self._terms, 1.0 / scheme.num_samples
        constant = sum(size * constants[4] for _, size, _, constants in self._prior)
        fields = (
            self._clock,
            self._likelihoods,
            scheme.num_samples,
            self._log_q,
            blocks,
            terms,
            int(terms.shape[0]),
            factor,
            float(constant),
            self._bad,
            blocks,
            self._log,
            self._at(self._log, 1),
            self._capacity,
        )
        return Launch("VariationalRecord", fields, (1, 1, 1))

    def _noise(self) -> tuple[Any, ...]:
        """Stream and clock; the clock has seed and step."""
        return 0, 0, _WEIGHT_NOISE, None, self._clock


def _flag(value: bool) -> str:
    return "true" if value else "false"


def noise_blocks(part: Segment) -> int:
    """Blocks of threads for the parameters of a segment, four to a thread, at multiples of four."""
    offset, size = part[:2]
    return blocks_of(-(-(offset + size) // 4) - offset // 4)
