"""The workloads of the GPU table: what is called, its floor, its rivals.

Floors are counted: every input read once and every output written once over the measured copy
bandwidth, or multiplications and additions over the measured rate of a large matrix product, in
float32 or in TF32; a 3xTF32 product counts as three. Inputs take turns where they would stay in the
cache otherwise.
"""

from __future__ import annotations

import importlib
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import ribbit as rb
from benchmarks.harness.device_events import call_seconds, event_times
from ribbit.errors import PrecisionWarning
from ribbit.targets.likelihoods import Likelihood

Call = Callable[[int], Any]
RIVALS = ("jax_gpu", "torch_gpu")  # modules of benchmarks.rivals: `prepare(row)`, `times`


@dataclass(frozen=True)
class Row:
    """One workload.

    Attributes
    ----------
    name, target : str
        As in the table.
    prepare : callable
        xp, small -> call(i): one unit of work on input i.
    inputs : int
        How many inputs take turns.
    units : int
        Gradients (or whatever the row counts) of one call.
    bytes, flops : float
        Of one unit, read plus written, and multiplications plus additions.
    rate : {"float32", "tf32"}
        Of the products that the floor is counted with.
    """

    name: str
    target: str
    prepare: Callable[[Any, bool], Call]
    inputs: int = 1
    units: int = 1
    bytes: float = 0.0
    flops: float = 0.0
    rate: str = "float32"

    def floor(self, ceilings: Mapping[str, float]) -> float | None:
        """Return the seconds of one unit that the device cannot do without."""
        if not ceilings:
            return None
        return max(
            self.bytes / ceilings["copy_bytes_per_s"],
            self.flops / ceilings[f"matmul_{self.rate}_flop_per_s"],
        )


def posterior(
    xp: Any, model: rb.Model, rows: int, likelihood: Likelihood, precision: Any = "float32"
) -> rb.Posterior:
    """Return a posterior on standard normal rows (bytes for images) and fitting targets."""
    dtype = "float32"
    rng = np.random.default_rng(0)
    shape = (rows, *model.input_shape)
    images = len(model.input_shape) == 3
    x = rng.integers(0, 256, shape).astype(np.uint8) if images else rng.normal(size=shape)
    outputs = model.output_shape[0]
    if isinstance(likelihood, rb.Categorical):
        y = rng.integers(0, outputs, rows)
    else:
        y = rng.normal(size=(rows, outputs))
        y = (y > 0).astype(dtype) if isinstance(likelihood, rb.Bernoulli) else y
    x = x if images else x.astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        return rb.Posterior(
            model,
            xp.asarray(x),
            xp.asarray(y),
            prior=rb.Normal(1.0),
            likelihood=likelihood,
            precision=precision,
        )


def sampling(xp: Any, small: bool) -> Call:
    """Weight samples of a mean-field Gaussian: 784-400-400-10."""
    samples, dim = (3, 1_000) if small else (1_000, 478_410)
    mean = xp.zeros(dim, dtype=xp.float32)
    rho = xp.full((dim,), -3.0, dtype=xp.float32)
    return lambda i: rb.reparameterize(mean, rho, samples, seed=i)


def forward(precision: str) -> Callable[[Any, bool], Call]:
    """Streamed moments of the predictions of 1,000 weight samples at 10,000 rows."""

    def prepare(xp: Any, small: bool) -> Call:
        samples, rows = (3, 40) if small else (1_000, 10_000)
        model = rb.mlp(784, (400, 400), 10, activation="relu")
        target = posterior(xp, model, rows, rb.Categorical(), precision)
        start = model.init(0)
        theta = xp.asarray(np.broadcast_to(start, (1, samples, start.size)))
        return lambda _: target.predictive_moments(theta, target.x)

    return prepare


def update(xp: Any, small: bool) -> Call:
    """Half kick, drift and half kick as the fused update of a leapfrog step, in place."""
    from ribbit._arrays.namespace import device_of
    from ribbit._backends.cuda.programs.trajectory import Trajectory

    chains, dim = (2, 1_000) if small else (100, 478_410)
    device = device_of(xp)

    class Still:
        theta = xp.zeros((chains, dim), dtype=xp.float32)
        grad = xp.zeros((chains, dim), dtype=xp.float32)
        terms = xp.zeros((chains, 2), dtype=xp.float64)

        def run(self, *_: Any, **__: Any) -> None:
            """Leave the gradient as it is."""

    moving: Any = Trajectory(device, Still())
    moving.load(Still.theta, Still.grad, Still.grad, xp.zeros((chains,), dtype=xp.float64), None)
    return lambda _: moving.begin(chains)


def trajectories(chains: int, steps: int) -> Callable[[Any, bool], Call]:
    """Trajectories of 8-50-50-1 on 500 rows; a unit is one gradient of all chains."""

    def prepare(xp: Any, small: bool) -> Call:
        count = min(chains, 3) if small else chains
        target = posterior(xp, rb.mlp(8, (50, 50), 1), 500, rb.Gaussian(0.1))
        theta = target.init(0, count)
        momentum = xp.zeros_like(theta)
        _, grad = target.terms_and_grad(theta)
        sizes = xp.full((count,), 1e-4, dtype=xp.float64)
        numbers = np.full(count, 2 if small else steps)
        return lambda _: target.leapfrog(theta, momentum, grad, sizes, numbers)

    return prepare


def gradient(
    model: Callable[[], rb.Model],
    rows: int,
    likelihood: Likelihood,
    precision: str = "float32",
    few: int = 40,
) -> Callable[[Any, bool], Call]:
    """One full-batch gradient; of `few` rows where it is to be small."""

    def prepare(xp: Any, small: bool) -> Call:
        target = posterior(xp, model(), few if small else rows, likelihood, precision)
        thetas = [target.init(seed, 1) for seed in range(2)]
        return lambda i: target.terms_and_grad(thetas[i % 2])

    return prepare


def leapfrogs(
    model: Callable[[], rb.Model], rows: int, likelihood: Likelihood, steps: int
) -> Callable[[Any, bool], Call]:
    """Trajectories of one chain; a unit is one of its gradients."""

    def prepare(xp: Any, small: bool) -> Call:
        target = posterior(xp, model(), 40 if small else rows, likelihood)
        theta = target.init(0, 1)
        momentum = xp.zeros_like(theta)
        _, grad = target.terms_and_grad(theta)
        sizes = xp.full((1,), 1e-5, dtype=xp.float64)
        numbers = np.full(1, 2 if small else steps)
        return lambda _: target.leapfrog(theta, momentum, grad, sizes, numbers)

    return prepare


def minibatches(
    model: Callable[[], rb.Model], rows: int, batch: int, steps: int
) -> Callable[[Any, bool], Call]:
    """Minibatch steps of SGLD on one chain; a unit is one of them."""

    def prepare(xp: Any, small: bool) -> Call:
        target = posterior(xp, model(), 40 if small else rows, rb.Categorical())
        theta, count = target.init(0, 1), 2 if small else steps
        given: dict[str, Any] = {"rule": "langevin", "prior": 1.0, "friction": 0.0}
        given |= {"previous_step_size": 1e-6, "decay": (0.0, 0.0), "epsilon": 0.0}
        return lambda _: target.advance(
            theta,
            None,
            None,
            seed=0,
            chains=np.zeros(1, np.uint32),
            first_step=0,
            batch_size=min(batch, target.num_rows),
            step_size=np.full(count, 1e-6),
            noise=np.ones(count),
            adapt_until=0,
            **given,
        )

    return prepare


_BBB_DIM = 478_410
_MLP = 784 * 400 + 400 * 400 + 400 * 10
ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row(
            "bbb-sampling",
            ">= 75 % of the memory floor, >= 3x torch",
            sampling,
            bytes=4.0 * 1_000 * _BBB_DIM,
        ),
        Row(
            "mc-forward",
            ">= 70 % of cuBLAS at the same precision",
            forward("float32"),
            flops=2.0 * 1_000 * 10_000 * _MLP,
        ),
        Row(
            "mc-forward-3xtf32",
            ">= 70 % of a third of cuBLAS's TF32",
            forward("mixed"),
            flops=3 * 2.0 * 1_000 * 10_000 * _MLP,
            rate="tf32",
        ),
        Row(
            "mc-forward-tf32",
            ">= 70 % of cuBLAS at the same precision",
            forward("tf32"),
            flops=2.0 * 1_000 * 10_000 * _MLP,
            rate="tf32",
        ),
        Row("leapfrog-update", ">= 85 % of copy bandwidth", update, bytes=20.0 * 100 * _BBB_DIM),
        Row(
            "hmc-1000-chains",
            ">= 3x the best peer",
            trajectories(1_000, 20),
            units=20,
            flops=6.0 * 1_000 * 500 * (8 * 50 + 50 * 50 + 50),
        ),
        Row(
            "hmc-1-chain",
            ">= 8x the best peer",
            trajectories(1, 200),
            units=200,
            flops=6.0 * 500 * (8 * 50 + 50 * 50 + 50),
        ),
        Row(
            "hmc-58368-rows",
            "<= 14 us",
            leapfrogs(lambda: rb.mlp(22, (40,), 1), 58_368, rb.Bernoulli(), 100),
            units=100,
            flops=6.0 * 58_368 * (22 * 40 + 40),
        ),
        Row(
            "resnet20",
            "faster than torch.compile at the same precision",
            gradient(lambda: rb.resnet20_frn(10), 50_000, rb.Categorical(), few=2),
            inputs=2,
            flops=6.0 * 50_000 * 40.6e6,
        ),
        Row(
            "resnet20-mixed",
            "faster than float32",
            gradient(lambda: rb.resnet20_frn(10), 50_000, rb.Categorical(), "mixed", few=2),
            inputs=2,
            flops=(3 * 2.0 + 4.0) * 50_000 * 40.6e6,
            rate="tf32",
        ),
    )
}


_WIDE = 784 * 256 + 256 * 256 + 256 * 10
OTHERS: dict[str, Row] = {  # not of the table: what is counted beside it
    row.name: row
    for row in (
        Row(
            "hmc-wide",
            "the products' share",
            leapfrogs(lambda: rb.mlp(784, (256, 256), 10), 8_192, rb.Categorical(), 20),
            units=20,
            flops=6.0 * 8_192 * _WIDE,
        ),
        Row(
            "sgld",
            "few launches",
            minibatches(lambda: rb.mlp(784, (256, 256), 10, activation="relu"), 8_192, 128, 64),
            units=64,
            flops=6.0 * 128 * _WIDE,
        ),
    )
}


def rehearse(names: Iterable[str] | None) -> list[dict[str, Any]]:
    """Run every row at a small size on the device that the tests make of the CPU."""
    from tests.support.cuda import cpu_device

    xp: Any = cpu_device.register()
    found = []
    for name in names or ROWS:
        ROWS[name].prepare(xp, True)(0)
        found.append({"name": name})
    return found


def measure(
    names: Iterable[str] | None, ceilings: Mapping[str, float]
) -> Iterator[list[dict[str, Any]]]:
    """Time every row, then its rivals, on CuPy's device: seconds of one unit, medians.

    Yields what is known of all rows after each number: a run may end at any of them.
    """
    import cupy

    found: list[dict[str, Any]] = []
    for name in names or ROWS:
        row = ROWS[name]
        call = row.prepare(cupy, False)
        times = event_times(cupy, call, row.inputs, 15)
        entry: dict[str, Any] = {
            "name": name,
            "target": row.target,
            "seconds": statistics.median(times) / row.units,
            "times": times,
            "floor": row.floor(ceilings),
            # one call at a time, from the call to its end, what the host does included
            "call_seconds": call_seconds(cupy, call, 5),
            "rivals": {},
        }
        found.append(entry)
        print(f"{name}: {1e3 * entry['seconds']:.4f} ms", flush=True)
        del call
        cupy.get_default_memory_pool().free_all_blocks()
        yield found
    for module in RIVALS:
        try:
            rival: Any = importlib.import_module(f"benchmarks.rivals.{module}")
        except ImportError as error:
            print(f"{module}: {error}", flush=True)
            continue
        for entry in found:
            name, library = entry["name"], module.removesuffix("_gpu")
            try:
                made = rival.prepare(name)
                if made is None:
                    continue
                seconds = statistics.median(rival.times(made, 10)) / ROWS[name].units
            except Exception as error:  # a rival's: what it says stands in its place
                entry["rivals"][library] = f"{type(error).__name__}: {error}"[:200]
            else:
                entry["rivals"][library] = seconds
            print(f"{name}, {library}: {entry['rivals'][library]}", flush=True)
            yield found
