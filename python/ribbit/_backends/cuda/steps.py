"""Steps along stochastic gradients on a device: SGLD, SGHMC, BAOAB and Adam by launches."""

# A step is recorded once and then replayed. What changes from step to step is a row of a table that
# the device reads, and the device counts the steps; nothing here waits for it. Shapes: C chains, P
# parameters, N rows, n steps of a call.

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays import random_numbers
from ribbit._arrays.batches import Batches
from ribbit._arrays.device import THREADS, Device, Kernel, Launch, blocks_of, pack
from ribbit._arrays.namespace import host_dtype
from ribbit._arrays.threads import Interrupted
from ribbit._arrays.update_rules import MOMENTS, RULES
from ribbit._backends.cuda.programs.gradient import Program, bytes_per_chain
from ribbit._backends.density_table import DensityTable
from ribbit.protocols import Array

_MOST_STEPS = 4096  # rows of the table: of one piece of a call
_COLUMNS = 6  # StepRow of cuda/kernels/update_kernels.h
_LANGEVIN, _FRICTION, _ADAM, _KINETIC = (
    RULES[name] for name in ("langevin", "friction", "adam", "kinetic")
)


@dataclass(frozen=True)
class UpdateRule:
    """How a gradient moves a chain; `core/update_hd.h` has the formulas."""

    code: int  # 0 Langevin, 1 friction, 2 Adam, 3 kinetic
    preconditioned: bool  # Langevin with a second moment
    friction: float
    decay1: float
    decay2: float
    epsilon: float

    @property
    def name(self) -> str:
        """The rule's type in C++, without its scalar."""
        plain = "PreconditionedRule" if self.preconditioned else "LangevinRule"
        return (plain, "FrictionRule", "AdamRule", "KineticRule")[self.code]

    @property
    def moments(self) -> tuple[bool, bool]:
        """Whether it has a first and a second moment."""
        first, second = MOMENTS[list(RULES)[self.code]]
        return first, second or self.preconditioned

    @property
    def and_back(self) -> bool:
        """Whether an epoch goes through its batches and back."""
        return self.code == _KINETIC

    def table(
        self,
        first_step: int,
        step_size: npt.NDArray[np.float64],
        noise: npt.NDArray[np.float64],
        previous: float,
        adapt_until: int,
    ) -> npt.NDArray[np.float64]:
        """Return the rows (n + 1, 6) of n steps and of the end, in the CPU's double arithmetic."""
        count = step_size.shape[0]
        table = np.zeros((count + 1, _COLUMNS))
        number = np.arange(first_step, first_step + count)
        table[:count, 0], table[count, 0] = number, -1.0
        rows = table[:count]
        if self.code == _LANGEVIN:
            rows[:, 1], rows[:, 2] = 0.5 * step_size, noise * np.sqrt(step_size)
        else:
            rows[:, 1] = step_size
        if self.code == _FRICTION:
            rows[:, 2] = noise * np.sqrt(2.0 * self.friction * step_size)
            before = np.concatenate([[previous], step_size[:-1]])
            moving = before > 0.0
            factors = np.sqrt(np.divide(step_size, before, out=np.zeros(count), where=moving))
            rows[:, 3] = (1.0 - self.friction) * factors
        if self.code == _KINETIC:  # the library's functions, as on the CPU: NumPy's round otherwise
            rate = self.friction
            rows[:, 2] = noise * [math.sqrt(-math.expm1(-2.0 * rate * h)) for h in step_size]
            rows[:, 3] = [math.exp(-rate * h) for h in step_size]
        if self.code == _ADAM:
            for column, decay in ((3, self.decay1), (4, self.decay2)):
                # not NumPy's power, whose last bit is another
                rows[:, column] = [1.0 / (1.0 - math.pow(decay, s + 1.0)) for s in number.tolist()]
        rows[:, 5] = number < adapt_until
        return table


class DeviceSteps:
    """Positions, moments and batches in buffers of their own, and the launches that move them."""

    def __init__(
        self,
        device: Device,
        tables: DensityTable,
        x: Array,  # (N, D)
        y: Array,  # (N, J)
        *,
        chains: int,  # the most chains it can move
        batch_rows: int,  # the most rows of a batch; N: all rows in their own order
        prior: float,  # weight of the log prior
        rule: UpdateRule,
    ) -> None:
        xp, rows = device.xp, int(x.shape[0])
        self.chains, self._device, self._rule = chains, device, rule
        self._num_rows, self._batches = rows, Batches(rows, batch_rows, rule.and_back)
        self._places = None
        if batch_rows < rows:
            self._places = xp.empty((chains, self._batches.sizes[0]), dtype=xp.int64)
        self._programs: dict[int, Program] = {}  # by the rows of a batch
        whole: Program | None = None
        for count in self._batches.sizes:
            self._programs[count] = Program(
                device,
                tables,
                x,
                y,
                chains=chains,
                count=count,
                subset=self._places,
                prior=prior,
                like=whole,
            )
            whole = whole or self._programs[count]
        assert whole is not None
        self._theta, self._grad, self._masks = whole.theta, whole.grad, whole.masks
        scalar = "float" if host_dtype(self._theta) == np.float32 else "double"
        self._moments = [
            xp.empty(self._theta.shape, dtype=self._theta.dtype) if has else None
            for has in rule.moments
        ]
        self._ids = xp.empty((chains,), dtype=xp.uint32)
        self._table = xp.empty((_MOST_STEPS + 1, _COLUMNS), dtype=xp.float64)
        self._begun = xp.empty((chains,), dtype=xp.int64)
        self._bad = xp.empty((chains,), dtype=xp.int64)
        self._outcome = xp.empty((chains, 2), dtype=xp.float64)
        self._next, moved = f"NextStep<{scalar}>", f"{scalar}, {rule.name}<{scalar}>"
        self._joins = whole.joins
        kind = f", {whole.prior_kind}" if self._joins else ""
        self._update = f"{'Advance' if self._joins else 'Update'}<{moved}{kind}>"
        self._compiled: dict[str, Kernel] = {}
        self._seed = -1  # of the recorded steps
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}

    def run(
        self,
        position: Array,
        moments: tuple[Array | None, Array | None],
        *,
        seed: int,
        ids: npt.NDArray[np.uint32],
        first_step: int,
        step_size: npt.NDArray[np.float64],
        noise: npt.NDArray[np.float64],
        previous: float,
        adapt_until: int,
        interrupt: Any = None,
    ) -> tuple[Array, list[Array | None], Array]:
        """Make n steps as `NativeSteps.advance`; return position, moments and outcome."""
        # outcome (C, 2) float64: number of the first step that left a chain not finite, or -1, and
        # the largest gradient of that step; the chain is as that step left it.
        xp, chains = self._device.xp, position.shape[0]
        if self._masks is not None and (np.diff(ids.astype(np.int64)) != 1).any():
            raise ValueError(
                "[Posterior.advance] expected ids of chains with masks to follow each other, "
                f"got {ids.tolist()}"
            )
        self._theta[:chains, :] = position
        for own, given in zip(self._moments, moments, strict=True):
            if own is not None:
                own[:chains, :] = given
        self._ids[:chains] = xp.asarray(ids)
        self._bad[...] = 0
        self._outcome[...] = -1.0
        if seed != self._seed:
            self._replays.clear()  # recorded with another seed
            self._seed = seed
        for begin in range(0, step_size.shape[0], _MOST_STEPS):
            some = slice(begin, begin + _MOST_STEPS)
            first = first_step + begin
            before = previous if begin == 0 else float(step_size[begin - 1])
            table = self._rule.table(first, step_size[some], noise[some], before, adapt_until)
            self._table[: table.shape[0], :] = xp.asarray(table)
            self._begun[...] = 0
            for step in range(first, first + table.shape[0] - 1):
                if interrupt is not None and interrupt.is_set():
                    raise Interrupted
                self._step(self._batches.rows(step), chains)
            self._launch_next(chains)
        arrays = [self._theta, *self._moments]
        copies = [None if a is None else xp.asarray(a[:chains, :], copy=True) for a in arrays]
        return copies[0], copies[1:], xp.asarray(self._outcome[:chains, :], copy=True)

    def _step(self, count: int, chains: int) -> None:
        replay = self._replays.get((count, chains))
        if replay is not None:
            replay()
            return
        self._move(count, chains)  # compiles what is new, which a recording must not do
        self._replays[count, chains] = self._device.record(lambda: self._move(count, chains))

    def _move(self, count: int, chains: int) -> None:
        self._launch_next(chains)
        program = self._programs[count]
        if self._joins:
            program.run_parts(chains)
            self._launch_update(chains, program.advance_fields())
        else:
            program.run(chains, gradient=True, values=False)
            self._launch_update(chains, ())

    def _launch_next(self, chains: int) -> None:
        fields = (
            self._seed,
            self._ids,
            *self._records(),
            self._grad,
            self._num_rows,
            self._batches.sizes[0],
            self._places,
            self._masks,
            int(self._rule.and_back),
        )
        self._launch(self._next, fields, 1, chains)

    def _launch_update(self, chains: int, ending: tuple[Any, ...]) -> None:
        rule, dim = self._rule, int(self._theta.shape[1])
        fields = (
            self._seed,
            0,  # the step is that of the table
            random_numbers.UPDATE_NOISE << 24,
            self._ids,
            *self._records(),
            self._grad,
            self._theta,
            *self._moments,
            float(rule.decay1),
            float(rule.decay2),
            float(rule.epsilon),
            1.0 / self._num_rows,
            *ending,
        )
        fours = -(-dim // 4)
        blocks = -(-fours // THREADS) if self._joins else blocks_of(fours)
        self._launch(self._update, fields, blocks, chains)

    def _records(self) -> tuple[Any, ...]:
        dim = int(self._theta.shape[1])
        return self._table, self._begun, self._bad, self._outcome, dim

    def _launch(self, name: str, fields: tuple[Any, ...], blocks: int, chains: int) -> None:
        if not self._compiled:  # together with those of the gradient: in one go
            names = [self._next, self._update]
            names += [name for program in self._programs.values() for name in program.names]
            self._compiled = self._device.kernels(list(dict.fromkeys(names)))
        grid = Launch(name, fields, (blocks, 1, 1)).grid_of(chains)
        self._compiled[name](grid, pack(self._device, fields))


def bytes_per_chain_of_steps(
    tables: DensityTable, rows: int, batch_rows: int, features: int, itemsize: int
) -> int:
    """Return the device memory that each chain of steps with such batches needs."""
    total = 0
    for count in Batches(rows, batch_rows).sizes:
        total += bytes_per_chain(tables, count, itemsize)
        if batch_rows < rows:  # its rows are gathered, and numbered
            total += count * (features * itemsize + 8)
    return total + 2 * tables.dim * itemsize
