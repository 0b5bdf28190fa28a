"""Shapes that are not in the table of `benchmarks.workloads.table`: nothing may hold for it alone.

Trajectories of 8-W-W-1 and 8-W-1 SiLU networks over widths W, rows N and chains, and gradients of
two convolutional networks at other numbers of images. The widths are no multiples of a vector
register, or larger than a tile; 50 rows do not fill one panel, 100,000 leave every cache.
"""

from __future__ import annotations

from benchmarks.harness.workload import Goal, Workload, gradient_flops
from benchmarks.workloads import networks
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.network_gradient import NetworkGradient

# width, hidden layers, rows, chains: every value, and the corners that a few seconds allow
# (widths from 129 at 100,000 rows and 16 chains do not)
GRID = (
    (7, 2, 50, 1),
    (7, 2, 50, 16),
    (7, 2, 1_000, 3),
    (7, 2, 100_000, 1),
    (7, 2, 100_000, 16),
    (33, 2, 50, 3),
    (33, 2, 1_000, 1),
    (33, 2, 1_000, 16),
    (33, 2, 100_000, 3),
    (129, 2, 50, 1),
    (129, 2, 50, 16),
    (129, 2, 1_000, 3),
    (129, 2, 100_000, 1),
    (400, 2, 50, 1),
    (400, 2, 50, 16),
    (400, 2, 1_000, 1),
    (400, 2, 1_000, 16),
    (400, 2, 100_000, 1),
    (7, 1, 50, 3),
    (7, 1, 1_000, 16),
    (33, 1, 1_000, 1),
    (33, 1, 100_000, 1),
    (129, 1, 100_000, 3),
    (400, 1, 50, 1),
    (400, 1, 1_000, 3),
)
RUN_FLOPS = 5e9  # of products in one run: some hundredths of a second


def leapfrog(width: int, hidden: int, rows: int, chains: int) -> Leapfrog:
    """One trajectory; noise grows with sqrt(N), so that the curvature is that of 1,000 rows."""
    sizes = (8, *(width,) * hidden, 1)
    steps = round(RUN_FLOPS / (gradient_flops(sizes, rows) * chains))
    return Leapfrog(
        f"mlp{hidden}-w{width}-n{rows}-c{chains}",
        sizes=sizes,
        activation="silu",
        likelihood="gaussian",
        rows=rows,
        chains=chains,
        num_steps=min(max(steps, 2), 200),
        step_size=5e-3 * width**-0.5,
        prior_scale=width**-0.5,
        noise_scale=0.03 * rows**0.5,
        goal=Goal(1.0),
    )


def network(wiring: networks.Wiring, rows: int) -> NetworkGradient:
    """One gradient on `rows` images."""
    name = f"{wiring.__name__}-n{rows}"
    # with other seeds two cells of a pool are equal to float32, and gradients part ways
    return NetworkGradient(name, wiring, (28, 28, 1), rows, Goal(1.0), reduced_rows=16, seed=2)


def _catalogue() -> dict[str, Workload]:
    listed: list[Leapfrog | NetworkGradient] = [leapfrog(*shape) for shape in GRID]
    for wiring in (networks.lenet5, networks.strided):
        listed += [network(wiring, rows) for rows in (50, 1_000)]
    return {workload.name: workload for workload in listed}


SHAPES = _catalogue()
