"""Bayes by Backprop on a network in device memory: what ``ribbit._core`` does for NumPy arrays."""

# Shapes: P parameters, S weight samples, N rows, n steps of a call.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays import positions as positions_
from ribbit._arrays import random_numbers
from ribbit._arrays.batches import Batches
from ribbit._arrays.device import Device
from ribbit._arrays.namespace import host_dtype, to_host
from ribbit._arrays.threads import Interrupted
from ribbit._backends.cuda.layers.row_noise import FLIPOUT, LOCAL, REPARAM, arrays_of
from ribbit._backends.cuda.programs.approximation import Approximation, Batch, Scheme
from ribbit._backends.cuda.programs.gradient import Program, bytes_per_chain
from ribbit._backends.cuda.programs.plan import rows_of
from ribbit._backends.cuda.programs.row_noise import PairedProgram, bytes_per_sample
from ribbit._backends.cuda.programs.variational import Variational
from ribbit._backends.density_table import DensityTable, merged
from ribbit.errors import ShapeError
from ribbit.protocols import Array


class DeviceVariational:
    """Steps of a mean-field Gaussian; the samples of a step are the chains of a program."""

    def __init__(
        self,
        device: Device,
        tables: DensityTable,
        x: Array,  # (N, D)
        y: Array,  # (N, J)
        # (N,) float64 or None: part of each row's log likelihood that kernels leave out
        row_constants: npt.NDArray[np.float64] | None,
    ) -> None:
        self._device, self._tables, self._x, self._y = device, tables, x, y
        self._constants = row_constants
        self._dtype = host_dtype(y)
        self._last: tuple[Scheme, Variational] | None = None

    def advance(
        self,
        most_chains: Callable[[int], int],
        state: Array,
        seed: int,
        first_step: int,
        batch_rows: int,
        num_samples: int,
        estimator: int,
        closed: bool,
        step_size: npt.NDArray[np.float64],
        kl_weight: npt.NDArray[np.float64],
        decay1: float,
        decay2: float,
        epsilon: float,
        interrupt: Any = None,
    ) -> tuple[Array, npt.NDArray[np.float64], int, float]:
        """Make n steps as `NativeDensity.advance_variational`; waits once, to read the records."""
        # most_chains: how many chains of so many bytes a program may have.
        name, rows, count = "Posterior.advance_variational", int(self._x.shape[0]), len(step_size)
        dim = self._tables.dim
        state, _ = positions_.position(self._device.xp, name, "state", state, self._dtype, dim)
        if state.shape[0] != 6:
            raise ShapeError(f"[{name}] expected state of shape (6, {dim}), got {state.shape}")
        if (
            not 1 <= batch_rows <= rows
            or num_samples < 1
            or estimator not in (REPARAM, LOCAL, FLIPOUT)
            or not 1 <= count == len(kl_weight)
            or not 0 <= first_step < 2**40 - count
        ):
            raise ValueError(
                f"[{name}] expected 1 <= batch_rows <= N, samples >= 1, estimator in 0..2, as many "
                "kl_weight as step_size, at least 1, and steps < 2^40"
            )
        decay = (decay1, decay2)
        scheme = Scheme(Batches(rows, batch_rows), num_samples, closed, decay, epsilon, estimator)
        steps = self._steps(scheme, most_chains)
        steps.load(state, seed, first_step, step_size, kl_weight)
        for number in range(first_step, first_step + count):
            if interrupt is not None and interrupt.is_set():
                raise Interrupted
            steps.step(number)
        moved, gradient, log = steps.ends()
        host = to_host(log)
        records = host[1:].reshape(3, -1)[:, :count].copy()
        records[0] += self._constants_of(scheme, seed, first_step, count)
        failed = int(host[0])
        largest = _largest(to_host(gradient)) if failed >= 0 else 0.0
        return moved, records, failed, largest

    def _steps(self, scheme: Scheme, most_chains: Callable[[int], int]) -> Variational:
        """Return what makes the steps of a scheme; the last one's memory is kept."""
        if self._last is not None and self._last[0] == scheme:
            return self._last[1]
        self._last = None  # its memory goes back before more is asked for
        tables, xp = self._tables, self._device.xp
        each = sum(self._bytes_per_sample(n, scheme.estimator) for n in scheme.batches.sizes)
        chains = min(scheme.num_samples, most_chains(each))
        approximation = self._approximation(scheme.estimator)
        batches: list[Batch] = []
        whole: Program | None = None
        for count in scheme.batches.sizes:
            rows = None if scheme.batches.count == 1 else xp.empty((count,), dtype=xp.int64)
            program = self._program(scheme.estimator, chains, count, rows, whole, approximation)
            whole = whole or program
            batches.append(Batch(count, rows, program))
        prior = merged(tables.prior, tables.constants)
        given = prior, tables.centre, tables.temperature
        steps = Variational(self._device, scheme, *given, batches, approximation)
        self._last = scheme, steps
        return steps

    def _bytes_per_sample(self, count: int, estimator: int) -> int:
        """Return the device memory that each weight sample needs for batches of `count` rows."""
        size = self._dtype.itemsize
        if estimator == REPARAM:
            return bytes_per_chain(self._tables, count, size)
        return bytes_per_sample(self._tables, count, size, estimator)

    def _approximation(self, estimator: int) -> Approximation:
        xp, dim = self._device.xp, self._tables.dim
        dtype = getattr(xp, self._dtype.name)
        paired = np.zeros(dim, np.uint8)
        for row in rows_of(self._tables.table):
            for offset, size in arrays_of(row, estimator):
                paired[offset : offset + size] = 1
        return Approximation(
            state=xp.empty((6, dim), dtype=dtype),
            scale=xp.empty((dim,), dtype=dtype),
            where=xp.empty((3,), dtype=xp.uint64),
            paired=xp.asarray(paired),
        )

    def _program(
        self,
        estimator: int,
        chains: int,
        count: int,
        rows: Array | None,
        like: Program | None,
        approximation: Approximation,
    ) -> Program:
        """Return the log likelihood of `chains` weight samples on batches of `count` rows."""
        data = self._device, self._tables, self._x, self._y
        if estimator == REPARAM:
            return Program(
                *data, chains=chains, count=count, subset=rows, prior=0.0, like=like, scale=1.0
            )
        return PairedProgram(
            *data,
            chains=chains,
            count=count,
            approximation=approximation,
            estimator=estimator,
            subset=rows,
            like=like,
        )

    def _constants_of(
        self, scheme: Scheme, seed: int, first_step: int, count: int
    ) -> float | npt.NDArray[np.float64]:
        """Add up the rows' constants over the batches of `count` steps, () or (count,)."""
        if self._constants is None:
            return 0.0
        if scheme.batches.count == 1:
            return float(self._constants.sum())
        sums = np.empty(count)
        for i in range(count):
            places = scheme.batches.places(first_step + i)
            assert places is not None
            assert scheme.batches.num_rows is not None
            epoch, begin, rows_of_batch = places
            rows = random_numbers.epoch_rows(
                scheme.batches.num_rows,
                seed=seed,
                chain=0,
                epoch=epoch,
                begin=begin,
                count=rows_of_batch,
            )
            sums[i] = self._constants[rows].sum()
        return sums


def _largest(gradient: npt.NDArray[Any]) -> float:
    """Return the largest finite |g|, infinity when there is none."""
    sizes = np.abs(gradient[np.isfinite(gradient)].astype(np.float64))
    return float(sizes.max(initial=-1.0)) if sizes.size else float("inf")
