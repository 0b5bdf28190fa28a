"""Log densities and gradients on a device."""

# A `Program` is written once for given shapes and then only launched: no Python decides while it
# runs. Shapes: C chains, P parameters, N rows, R rows of a panel, K outputs, J columns of y.

from __future__ import annotations

import weakref
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays.device import MOST_ALONG_Y, Device, Kernel, Launch, blocks_of, pack
from ribbit._backends.codes import ACTIVATIONS, OPS
from ribbit._backends.cuda.layers import dropout, norm, op_table, tail
from ribbit._backends.cuda.layers.panel import Cell, LearnedRate, Masks, Panel
from ribbit._backends.cuda.programs.join import Join, Source, Step
from ribbit._backends.cuda.programs.plan import (
    Walk,
    is_cut,
    panel_rows,
    rows_of,
    run_rows,
    scalars_of,
)
from ribbit._backends.cuda.programs.slices import MOST_SLICES, joined, slices_of
from ribbit._backends.cuda.programs.trajectory import Trajectory
from ribbit._backends.density_table import DensityTable, merged
from ribbit._backends.precision import PASSES
from ribbit.protocols import Array

MOST_CHAINS = MOST_ALONG_Y // MOST_SLICES  # of a program: chains x slices are counted in 16 bits
_ROW_BLOCK = 256  # rows of a block of the likelihood


class Program(Walk):
    """Launches for the log density of `chains` chains on `count` rows, and their memory."""

    _gradients = True
    _has_tail = True  # the last layer is a plain one
    steps_together = 1  # see `trajectory.Trajectory`

    def __init__(
        self,
        device: Device,
        tables: DensityTable,
        x: Array,  # (N, D): in the scalar's dtype, or bytes of images
        y: Array,  # (N, J): in the scalar's dtype
        *,
        chains: int,  # the most chains it can run
        count: int,  # rows it runs over
        # (count,) or (chains, >= count) int64: which rows, for all chains or for each; may change
        # between runs. None: all of x in order.
        subset: Array | None = None,
        prior: float = 1.0,  # weight of the log prior in the gradient
        # for as many chains: ``theta``, ``grad`` and ``masks`` are its arrays
        like: Program | None = None,
        scale: float | None = None,  # factor of the log likelihood; default N / count
    ) -> None:
        dtype = np.dtype(str(y.dtype))
        layers = tables.table
        run = min(count, run_rows(layers, dtype.itemsize))
        super().__init__(
            device,
            layers,
            x,
            dtype,
            dim=tables.dim,
            chains=chains,
            panel=panel_rows(layers, run, dtype.itemsize, device.free_bytes() // (2 * chains)),
            run=run,
            rates=[0.0] * len(layers) if tables.rates is None else list(tables.rates),
            subset=subset,
            passes=PASSES[tables.precision],
        )
        self.chains, self._tables, self._y = chains, tables, y
        self._count, self._prior = count, prior
        self._scale = int(x.shape[0]) / count if scale is None else scale
        self._tail = tail_rows(tables, run, dtype.itemsize) if self._has_tail else 0
        dim = self.theta_stride = tables.dim
        # (chains, P): read and written by `run`
        self.theta = self._buffer((chains, dim)) if like is None else like.theta
        self.grad = self._buffer((chains, dim)) if like is None else like.grad
        # (chains, 2) float64: untempered log likelihood, scaled to N rows and without constants of
        # y, and log prior
        self.terms = self._buffer((chains, 2), np.float64)
        drops = any(rate > 0 for rate in self._rates)
        # (3,) uint64 or None: seed, step and sample of the masks of the first chain; chain c takes
        # those of sample + c. Read by `run`; None without masks.
        self.masks: Array | None = None
        if drops:
            self.masks = device.xp.zeros(3, device.xp.uint64) if like is None else like.masks
        self._dropping = None if self.masks is None else Masks(self.masks)
        self._forward: list[Launch] = []
        self._gradient: list[Launch] = []
        self._behind: list[Launch] = []  # of gradients, behind the join
        self._values: list[Launch] = []
        self._write()
        self._kernels: dict[str, Kernel] = {}
        self._compiled: dict[Any, list[tuple[Kernel, Launch, bytes]]] = {}

    @cached_property
    def trajectory(self) -> Trajectory:
        """Moves ``theta`` along ``grad``."""
        # Not in a circle: the memory of a program that is dropped goes back at once.
        return Trajectory(self._device, weakref.proxy(self))

    def choose(self, rows: npt.NDArray[np.int64]) -> None:
        """Set the rows (count,) of a program that runs over a subset."""
        self._subset[...] = self._device.xp.asarray(rows)  # type: ignore[index]

    @property
    def joins(self) -> bool:
        """Whether `run` can make a step of a trajectory with a gradient."""
        return not self._behind

    def advance_fields(self) -> tuple[Any, ...]:
        """Return what a step needs to end a gradient that :meth:`run_parts` has begun."""
        return self._join.advance_fields()

    @property
    def prior_kind(self) -> int:
        """Of all priors, -1: several."""
        return self._join.kind

    def run_parts(self, chains: int) -> None:
        """Evaluate the partial sums of the gradient at ``theta[:chains]``, where :attr:`joins`."""
        for kernel, launch, arguments in self._steps(None):
            kernel(launch.grid_of(chains), arguments, launch.shared)

    def run(self, chains: int, *, gradient: bool, values: bool, step: Step | None = None) -> None:
        """Evaluate at ``theta[:chains]``: fills `grad` if `gradient` and `terms` if `values`."""
        # If the gradient is less accurate than float32, `terms` come from a forward pass of their
        # own. A `step`, without `values` and if `joins`, moves momenta and ``theta`` by the
        # gradient, which is not kept.
        for kernel, launch, arguments in self._steps((gradient, values, step)):
            kernel(launch.grid_of(chains), arguments, launch.shared)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all kernels."""
        launches = (*self._gradient, *self._behind, *self._forward, *self._values)
        return tuple(dict.fromkeys([*(launch.name for launch in launches), self._join.name]))

    def _steps(
        self, key: tuple[bool, bool, Step | None] | None
    ) -> list[tuple[Kernel, Launch, bytes]]:
        """Return launches, ready: of `_launches` with these arguments, or of partial sums alone."""
        if key not in self._compiled:
            if not self._kernels:
                self._kernels = self._device.kernels(self.names)
            self._compiled[key] = [
                (self._kernels[launch.name], launch, pack(self._device, launch.fields))
                for launch in (self._gradient if key is None else self._launches(*key))
            ]
        return self._compiled[key]

    def _launches(self, gradient: bool, values: bool, step: Step | None) -> list[Launch]:
        again = gradient and self._product_passes.exact.forward != self._product_passes.forward
        if not values or (gradient and (again or self._behind)):
            # values by themselves: of another pass, or behind what a prior's own kernels make
            found = [*self._gradient, self._join.launch(gradient=True, values=False, step=step)]
            found += self._behind
            if values:
                found += self._forward if again else []
                found += [*self._values, self._join.launch(gradient=False, values=True)]
        else:
            found = [*(self._gradient if gradient else self._forward), *self._values]
            found.append(self._join.launch(gradient=gradient, values=True))
        return [launch for launch in found if launch is not None]

    def _write(self) -> None:
        tables, count, run = self._tables, self._count, self._run
        runs = -(-count // run)
        last = count - (runs - 1) * run
        slots = (runs - 1) * self._row_blocks(run) + self._row_blocks(last)
        self._slots = slots
        self.row_terms = self._buffer((self._chains, slots), np.float64)
        noises = tables.likelihood.noises
        self._noise = self._buffer((self._chains, noises, slots), np.float64) if noises else None
        self._known = tables.likelihood.scales_on(self._device.xp, self._dtype)
        self._learned = {
            number: LearnedRate(
                self._address(self.theta, tables.logits_at + place),
                self._address(self.grad, tables.logits_at + place),
                self._buffer((self._chains, self._mask_blocks(number, runs, last) + 1), np.float64),
            )
            for place, number in enumerate(tables.learned)
        }
        self._stepping = self._relu_below()
        cells = self._cells(gradients=True)
        slices = slices_of(
            self._rows,
            run,
            grouped=is_cut(tables.table, run, self._dtype.itemsize),
            tail=self._tail,
        )
        exact = self._product_passes.exact
        for first, some in self._cuts():
            written = self._panel_at(cells, slices, first, some)
            undo = self._write_forward(written, -1 if self._tail else None)
            if self._tail:
                value, value_and_delta = self._write_tail(written)
                values, ending = [*written.forward, value], [value_and_delta]
            else:
                self._write_likelihood(written, cells[-1])
                values, ending = written.forward, []
            for number, backward in reversed(undo):
                if cells[number + 1].delta is not None:
                    op_table.settled(written, number, self._rows[number])
                    backward()
            self._gradient += written.forward + ending + written.backward
            ends_run = first + some == count or (first + some) % run == 0
            if ends_run and self._row_columns is not None:
                self._gradient.append(self._sum_rows(first + some))
            if exact.forward != self._product_passes.forward:
                written = self._panel_at(cells, slices, first, some, exact)
                self._write_forward(written, -1 if self._tail else None)
                if self._tail:
                    written.forward.append(self._write_tail(written)[0])
                else:
                    self._write_likelihood(written, cells[-1])
                values = written.forward
            self._forward += values
        if noises > 1:
            self._gradient.append(self._sum_noise())
        self._write_join()

    def _cuts(self) -> list[tuple[int, int]]:
        """Return first row and rows of each panel: runs, and panels of a run."""
        count, run, panel = self._count, self._run, self._panel
        return [
            (first, min(panel, begin + run - first, count - first))
            for begin in range(0, count, run)
            for first in range(begin, min(begin + run, count), panel)
        ]

    def _sum_noise(self) -> Launch:
        """Return what adds up the gradients by the noises of several outputs."""
        tables, dim = self._tables, self._tables.dim
        weight = self._scale / (tables.likelihood_temperature * tables.temperature)
        grad = self._address(self.grad, tables.noise_at)
        fields = (self._noise, self._slots, 0.0, weight, None, 0, grad, dim)
        return Launch(f"SumTerms<{self._scalar}>", fields, (tables.likelihood.noises, 1, 1))

    def _sum_rows(self, end: int) -> Launch:
        """Return what adds up terms of gradients of the rows of a run, which ends there."""
        begin = (end - 1) // self._run * self._run
        columns = self._row_columns
        assert columns is not None
        return Launch(
            f"SumRows<{self._scalar}>",
            (
                self._gradient_terms,
                self._run * self._terms_size,
                end - begin,
                columns,
                self.grad,
                self._tables.dim,
                int(begin > 0),
            ),
            (int(columns.shape[0]), 1, 1),
        )

    @cached_property
    def _row_columns(self) -> Array | None:
        """(blocks, 4) int64: what each block of SumRows adds up; None for no norms."""
        found = norm.columns_of(self._rows, self._run)
        made: Array = self._device.xp.asarray(np.array(found, np.int64))
        return made if found else None

    def _mask_blocks(self, number: int, runs: int, last: int) -> int:
        """Count the sums of all runs over the masks of a row of the table."""
        units = self._rows[number]["out_size"]
        whole = dropout.sums_of_units(self._run, units)
        return (runs - 1) * whole + dropout.sums_of_units(last, units)

    def _write_tail(self, panel: Panel) -> tuple[Launch, Launch]:
        """Return what ends the way forward, without and with the beginning of the way back."""
        row = self._rows[-1]
        source, kind = panel.cells[row["input"]], self._tables.likelihood.kind
        given = self._likelihood_fields(panel)
        return tail.write(panel, self._tail, source, row, kind, given, steps=self._stepping >= 0)

    def _relu_below(self) -> int:
        """Row of a dense layer with a ReLU that the last layer alone reads by `tail`, else -1."""
        value = op_table.made(self._rows, self._skipped, self._rows[-1]["input"])
        readers = sum(
            op_table.made(self._rows, self._skipped, row[name]) == value
            for number, row in enumerate(self._rows)
            if number not in self._skipped
            for name in ("input", "second")
            if row[name] >= 0
        )
        row = value - 1
        is_relu = self._codes[row] == ACTIVATIONS["relu"] and self._rows[row]["op"] == OPS["dense"]
        return row if self._tail and readers == 1 and is_relu else -1

    def _likelihood_fields(self, panel: Panel) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return members of the likelihood's kernels: y and what is asked, where sums go."""
        tables, dim = self._tables, self._tables.dim
        weight = self._scale / (tables.likelihood_temperature * tables.temperature)
        run, first = self._run, panel.first
        scales, stride = self._known, 0
        if tables.learns_noise:
            scales, stride = self._address(self.theta, tables.noise_at), dim
        given = (
            self._y,
            self._subset,
            self._rows_stride,
            first,
            panel.count,
            int(self._y.shape[1]),
            scales,
            stride,
            *tables.likelihood.constants,
            weight,
        )
        slot = first // run * self._row_blocks(run) + self._row_blocks(first % run)
        return given, (self.row_terms, self._noise, self._slots, slot)

    def _write_likelihood(self, panel: Panel, output: Cell) -> None:
        scalar = self._scalar
        given, places = self._likelihood_fields(panel)
        output.add()
        panel.forward.append(
            Launch(
                f"LikelihoodRows<{scalar}, {self._tables.likelihood.kind}>",
                (
                    output.value,
                    *given[:5],
                    output.size,
                    given[5],
                    output.chain_stride,
                    *given[6:8],
                    len(self._tables.likelihood.scales),
                    *given[8:],
                    output.delta,
                    *places,
                ),
                (self._row_blocks(panel.count), 1, 1),
            )
        )
        if output.derivative is not None:
            panel.backward.append(
                Launch(
                    f"Multiply<{scalar}>",
                    (
                        output.delta,
                        output.derivative,
                        output.chain_stride,
                        panel.count * output.size,
                    ),
                    (blocks_of(panel.count * output.size), 1, 1),
                )
            )

    def _row_blocks(self, rows: int) -> int:
        """Return how many sums of rows the likelihood makes."""
        return -(-rows // (self._tail or _ROW_BLOCK))

    def _sources(self) -> list[Source]:
        """Return where partial sums lie: one for arrays that are neighbours."""
        tables, itemsize, found = self._tables, self._dtype.itemsize, []
        for arrays, (slices, partials) in self._sums.items():
            inside = 0
            for offset, size in joined(arrays):
                address = partials.address + inside * itemsize
                strides = partials.size, partials.slice_stride
                found.append(Source(offset, size, address, *strides, slices))
                inside += size
        if tables.likelihood.noises == 1:
            found.append(Source(tables.noise_at, 1, None, 0, 0, 1))
        return found

    def _write_join(self) -> None:
        """Make what ends a gradient, and append what a prior behind a learned rate needs."""
        tables, scalar, dim = self._tables, self._scalar, self._tables.dim
        weight = self._scale / (tables.likelihood_temperature * tables.temperature)
        # Weights behind a learned rate have a prior that depends on it.
        behind = {self._rows[number + 1]["weight"]: number for number in self._learned}
        plain = ~np.isin(tables.prior[:, 0], list(behind))
        others = self._buffer((self._chains, len(behind)), np.float64) if behind else None
        for slot, row in enumerate(np.flatnonzero(~plain)):
            offset, size = (int(n) for n in tables.prior[row, :2])
            number = behind[offset]
            gradient, values = dropout.prior_of_learned(
                scalar,
                self._learned[number],
                precision=float(tables.constants[row, 1]),
                units=self._rows[number]["out_size"],
                weights=(self.theta, dim, offset, size),
                grad=self.grad,
                weight=self._prior / tables.temperature,
                terms=(others, len(behind), slot),
            )
            self._behind += gradient
            self._values += values
        self._join = Join(
            self._device,
            scalar,
            self._dtype.itemsize,
            self.theta,
            self.grad,
            tables.centre,
            self._sources(),
            merged(tables.prior[plain], tables.constants[plain]),
            self._prior / tables.temperature,
            self._noise,
            self.row_terms,
            (weight, self._scale),
            others,
            self.terms,
        )


def tail_rows(tables: DensityTable, run: int, itemsize: int) -> int:
    """Return the rows of a block of the last layer, 0 if other kernels make it."""
    # In float32 whatever the precision: outputs are too few for tensor cores.
    rows = rows_of(tables.table)
    rates = [0.0] * len(rows) if tables.rates is None else list(tables.rates)
    last, before = rows[-1], rows[:-1]
    reached = any(op_table.arrays_of(row) for row in before)  # its inputs have a delta
    lent = op_table.lent_deltas(rows, op_table.skipped_rows(rows, rates))
    if itemsize != 4 or not reached or last["input"] - 1 in lent or tables.likelihood.per_output:
        return 0
    return tail.block_rows(rows, op_table.activation_codes(rows), run)


def bytes_per_chain(tables: DensityTable, rows: int, itemsize: int, paths: int = 1) -> int:
    """Return the least device memory of a chain over `rows` rows, `paths` gradients each."""
    layers = rows_of(tables.table)
    run = min(rows, run_rows(tables.table, itemsize))
    panel = panel_rows(tables.table, run, itemsize, 0)
    grouped = is_cut(tables.table, run, itemsize)
    last = tail_rows(tables, run, itemsize) if paths == 1 else 0
    partials = sum(
        slices.count * sum(size for _, size in op_table.arrays_of(layers[number]))
        for number, slices in slices_of(layers, run, grouped=grouped, tail=last).items()
        if slices.count > 1 or (last and number + 1 == len(layers))
    )
    terms = (run - panel) * sum(op_table.row_terms(row) for row in layers)
    return itemsize * (scalars_of(layers) * panel + terms + 4 * tables.dim + paths * partials)
