"""Posteriors on the CPU and the same log density as a program of a device made of the CPU.

float64: differences of summation order alone, <= 1e-12 of the largest entry. float32: <= 4e-6 of
it, both being within a few times that of the float64 answer. Gradients from TF32 products, of
factors rounded to 2^-11 each: <= 2^-8 of it, four such products.
"""

import numpy as np

import ribbit as rb
from ribbit import _core
from ribbit._backends.cuda.programs import persistent
from ribbit._backends.cuda.programs.approximation import Approximation
from ribbit._backends.cuda.programs.gradient import DensityTable, Program
from ribbit._backends.cuda.programs.row_noise import PairedProgram
from ribbit._backends.cuda.programs.rows import RowsProgram
from tests.support.cuda.cpu_device import NAMESPACE, CpuDevice
from tests.support.likelihoods import CASES

# Of the largest entry. Without a fused multiply-add (x86-64-v2) the core's elementary functions err
# by up to 1.6 times as much (core/math_hd.h).
FUSED = 1.6 if _core.isa() == "baseline" else 1.0
BOUND = {"float32": FUSED * 4e-6, "float64": FUSED * 1e-12}
TF32_BOUND = 2.0**-8
LIKELIHOODS = {name: (case.likelihood, case.outputs) for name, case in CASES.items()} | {
    "known each": (rb.Gaussian([0.3, 1.0, 4.0]), 3),
    "learned each": (rb.Gaussian(), 3),
    "learned shared": (rb.Gaussian(per_output=False), 3),
    "studentt each": (rb.StudentTNoise(4.0, [0.3, 2.0]), 2),
    "studentt learned each": (rb.StudentTNoise(4.0), 2),
}
PRIORS = {
    "normal": rb.Normal(0.7),
    "laplace": rb.Laplace(0.7),
    "student": rb.StudentT(4.0, 0.8),
    "logistic": rb.Logistic(0.6),
    "mixture": rb.ScaleMixture(0.4, 1.0, 0.1),
    "centred": {"*.weight": rb.Normal(0.6, mean=0.9), "*": rb.Laplace(0.7)},
    "noise": {"*": rb.Normal(0.7), "log_noise": rb.GammaPrecision(3.0, 0.8)},
    "several": {"0.*": rb.Normal(0.5), "*.weight": rb.Laplace(0.3), "*": rb.Normal(2.0)},
}


def tables_of(target, rates=None, learned=(), precision="float32"):
    """The tables of a posterior; rates: of the masks of each row of its table; learned: which."""
    likelihood, centre = target.likelihood, target._spec.centre()
    return DensityTable(
        table=target.model.table,
        prior=target._spec.table.rows,
        constants=_core.prior_constants(target._spec.table.rows),
        likelihood=likelihood._table("tables_of", target.model.output_shape),
        temperature=target.temperature,
        likelihood_temperature=target.likelihood_temperature,
        rates=rates,
        learned=learned,
        precision=precision,
        centre=None if centre is None else NAMESPACE.asarray(centre),
    )


def program_of(
    target, chains, *, device=None, rows=None, rates=None, learned=(), precision="float32"
):
    """A program for `chains` chains on all rows of a target, or on some, and with masks."""
    xp = NAMESPACE
    return Program(
        device or CpuDevice(),
        tables_of(target, rates, learned, precision),
        xp.asarray(target.x),
        xp.asarray(target.y),
        chains=chains,
        count=target.num_rows if rows is None else len(rows),
        subset=None if rows is None else xp.asarray(np.asarray(rows, dtype=np.int64)),
    )


def rows_program_of(target, chains, *, device=None):
    """A program that makes gradients of all rows by one kernel."""
    data = NAMESPACE.asarray(target.x), NAMESPACE.asarray(target.y)
    return RowsProgram(device or CpuDevice(), tables_of(target), *data, chains=chains)


def paired_of(target, chains, estimator, *, device=None, precision="float32"):
    """The program of a target whose rows have noise of their own, on all of them."""
    xp, dim = NAMESPACE, target.dim
    dtype = target.dtype.type
    return PairedProgram(
        device or CpuDevice(),
        tables_of(target, precision=precision),
        xp.asarray(target.x),
        xp.asarray(target.y),
        chains=chains,
        count=target.num_rows,
        approximation=Approximation(
            xp.empty((6, dim), dtype), xp.empty((dim,), dtype), xp.empty((3,), np.uint64),
            xp.empty((dim,), np.uint8),
        ),
        estimator=estimator,
    )  # fmt: skip


def persistent_of(target, *, device=None):
    """What runs trajectories of a target in one launch."""
    xp = NAMESPACE
    network = persistent.network_of(target.model.table)
    tables = tables_of(target)
    data = xp.asarray(target.x), xp.asarray(target.y)
    return persistent.Persistent(device or CpuDevice(), network, tables, *data)


def evaluate(program, theta):
    """Terms (C, 2) and gradient (C, P) at theta (C, P), on the host."""
    program.theta[: len(theta)] = NAMESPACE.asarray(theta)
    program.run(len(theta), gradient=True, values=True)
    return program.terms.get()[: len(theta)], program.grad.get()[: len(theta)]


def data(rng, likelihood, rows, features, columns, outputs):
    x = rng.normal(size=(rows, features))
    if isinstance(likelihood, rb.Categorical):
        return x, rng.integers(0, outputs, size=rows)
    y = rng.normal(size=(rows, columns))
    if isinstance(likelihood, rb.Bernoulli):
        y = (y > 0).astype(float)
    return x, rng.poisson(2.0, size=y.shape) if isinstance(likelihood, rb.Poisson) else y


def problem(rng, name="gaussian", *, rows=70, hidden=(50, 33), prior="normal", **options):
    likelihood, outputs = LIKELIHOODS["learned" if prior == "noise" else name]
    columns = likelihood._columns("problem", (outputs,))
    activation = options.pop("activation", "silu")
    model = rb.mlp(5, hidden, outputs, activation=activation)
    x, y = data(rng, likelihood, rows, 5, columns, outputs)
    return rb.Posterior(model, x, y, prior=PRIORS[prior], likelihood=likelihood, **options)


def starts(rng, target, chains=3):
    return (0.4 * rng.normal(size=(chains, target.dim))).astype(target.dtype)


def check(target, theta, rows=None):
    """Compare the program of a target with the CPU core."""
    compare(target, theta, evaluate(program_of(target, len(theta), rows=rows), theta), rows)


def compare(target, theta, found, rows=None, grad_bound=None):
    """Compare terms and gradients of a program with the CPU core's."""
    terms, grad = found
    bound = BOUND[str(target.dtype)]
    lp, expected = target.value_and_grad(theta, rows)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(grad, expected, rtol=0, atol=(grad_bound or bound) * largest)
    likelihood = target.likelihood_temperature * target.temperature
    total = terms[:, 0] / likelihood + terms[:, 1] / target.temperature
    if not isinstance(target.likelihood, rb.Poisson):  # whose constants are the host's business
        np.testing.assert_allclose(total, lp, rtol=bound * 10, atol=bound)
