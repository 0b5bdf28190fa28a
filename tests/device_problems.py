"""Posteriors on the CPU and the same log density as a program of a device made of the CPU."""

import numpy as np

from cpu_device import NAMESPACE, CpuDevice
from ribbit import _core
from ribbit.gradients import DensityTable, Program


def tables_of(target, rates=None):
    """The tables of a posterior; rates: of the masks of each row of its table."""
    likelihood = target.likelihood
    return DensityTable(
        table=target.model.table,
        prior=target._prior_rows,
        constants=_core.prior_constants(target._prior_rows),
        kind=int(likelihood.learns_noise) or likelihood.code,
        scale=likelihood.table_scale,
        temperature=target.temperature,
        likelihood_temperature=target.likelihood_temperature,
        rates=rates,
    )


def program_of(target, chains, *, device=None, rows=None, rates=None):
    """A program for `chains` chains on all rows of a target, or on some, and with masks."""
    xp = NAMESPACE
    return Program(
        device or CpuDevice(),
        tables_of(target, rates),
        xp.asarray(target.x),
        xp.asarray(target.y),
        chains=chains,
        count=target.num_rows if rows is None else len(rows),
        subset=None if rows is None else xp.asarray(np.asarray(rows, dtype=np.int64)),
    )


def evaluate(program, theta):
    """Terms (C, 2) and gradient (C, P) at theta (C, P), on the host."""
    program.theta[: len(theta)] = NAMESPACE.asarray(theta)
    program.run(len(theta), gradient=True, values=True)
    return program.terms.get()[: len(theta)], program.grad.get()[: len(theta)]
