"""What ranks of MPI run in the tests: one chain of draws, written by each rank to a file."""

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit.distributed import mpi


def target(group: rb.distributed.Group | None, rows: int = 700) -> rb.Posterior:
    """Return the posterior of a rank's share of the same rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 3))
    y = np.sin(x[:, :1]) + 0.1 * rng.standard_normal((rows, 1))
    mine = slice(None) if group is None else group.rows(rows)
    return rb.Posterior(
        rb.mlp(3, (8,), 1),
        x[mine],
        y[mine],
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(),
        marginalize=None,
        group=group,
        shards=16,
    )


def draws(
    group: rb.distributed.Group | None, count: int = 6, steps: int = 4, **options: object
) -> rb.Draws:
    """Return a short run."""
    hmc = rb.HMC(target(group), step_size=0.002, num_leapfrog_steps=steps)
    return hmc.sample(count, warmup=3, chains=2, seed=3, progress=False, **options)


def draws_of_samplers(group: rb.distributed.Group | None) -> dict[str, np.ndarray]:
    """Return draws and statistics of other samplers."""
    posterior, found = target(group), {}
    nuts = rb.NUTS(posterior, max_tree_depth=2)
    for sampler in (nuts, rb.MCLMC(posterior, step_size=0.05, decoherence_length=0.5)):
        name = type(sampler).__name__
        run = sampler.sample(4, warmup=6, chains=2, thin=2, seed=3, progress=False)
        found |= {name: run.positions, **{f"{name} {k}": v for k, v in run.stats.items()}}
    return found


def network(name: str, group: rb.distributed.Group | None) -> tuple[rb.Posterior, np.ndarray]:
    """Return the posterior of a network of some thousand to some million weights, and new rows."""
    rng, rows = np.random.default_rng(1), 150
    model = {
        "mlp": lambda: rb.mlp(8, (50, 50), 2),
        "resnet20": rb.zoo.resnet20_frn,
        "cnn-lstm": rb.zoo.cnn_lstm,
    }[name]()
    if name == "mlp":
        x = rng.normal(size=(rows, 8))
    elif name == "resnet20":
        x = rng.integers(0, 255, (rows, 32, 32, 3)).astype(np.uint8)
    else:
        x = rng.integers(0, 20_000, (rows, *model.input_shape))
    y = rng.integers(0, 2, rows)
    mine = slice(None) if group is None else group.rows(rows, 4)
    options = {"prior": rb.Normal(0.1), "likelihood": rb.Categorical(), "marginalize": None}
    return rb.Posterior(model, x[mine], y[mine], group=group, shards=4, **options), x[:5]


def everything(name: str, group: rb.distributed.Group | None) -> dict[str, np.ndarray]:
    """Return draws, fits and predictions, a few of each."""
    posterior, new = network(name, group)
    hmc = rb.HMC(posterior, step_size=1e-4, num_leapfrog_steps=2)
    found = hmc.sample(2, warmup=0, chains=1, seed=3, progress=False)
    sgld = rb.SGLD(posterior, step_size=1e-6, batch_size=70)
    steps = sgld.sample(3, warmup=0, thin=1, chains=1, progress=False)
    whole = rb.BBB(posterior).fit(2, progress=False)
    batches = rb.BBB(posterior, batch_size=80, estimator="flipout").fit(1, progress=False)
    return {
        "HMC": found.positions,
        "acceptance": found.stats["acceptance_rate"],
        "SGLD": steps.positions,
        "BBB": np.stack([whole.mean, whole.scale]),
        "flipout": np.stack([batches.mean, batches.scale]),
        "predictions": found.predict(new).probs,
        "of BBB": whole.predict(new, num_draws=3, seed=1).probs,
    }


def says_when_it_runs(file: Path) -> None:
    """Write the process id once a run has taken over Ctrl-C."""
    before = signal.default_int_handler
    while signal.getsignal(signal.SIGINT) is before:
        time.sleep(0.005)
    file.write_text(str(os.getpid()))


def main() -> None:
    """Do what the first argument names, with a folder for what comes of it."""
    what, out = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("ignore")  # short runs have not converged
    group = rb.distributed.from_mpi()
    mine = out / f"rank{group.rank}.npz"
    if what == "draws":
        found = draws(group)
        np.savez(mine, positions=found.positions, **found.stats)
    elif what == "samplers":
        np.savez(mine, **draws_of_samplers(group))
    elif what == "chains":  # two groups of half of the ranks, a chain each
        from mpi4py import MPI

        rank, half = group.rank, group.size // 2
        group = rb.distributed.from_mpi(MPI.COMM_WORLD.Split(rank // half))
        hmc = rb.HMC(target(group), step_size=0.002, num_leapfrog_steps=4)
        found = hmc.sample(6, warmup=3, chains=[rank // half], seed=3, progress=False)
        np.savez(mine, positions=found.positions)
    elif what in ("mlp", "resnet20", "cnn-lstm"):
        np.savez(mine, **everything(what, group))
    elif what == "refused":  # again and again, and then a run that works
        for _ in range(100):
            with pytest.raises(rb.errors.GroupError, match="same prior"):
                rb.Posterior(
                    *(rb.mlp(3, (8,), 1), np.zeros((352, 3)), np.zeros(352)),
                    prior=rb.Normal(1.0 + group.rank),
                    likelihood=rb.Gaussian(),
                    group=group,
                )
        np.savez(mine, positions=draws(group).positions)
    elif what == "mismatch":
        try:
            rb.Posterior(
                *(rb.mlp(3, (8,), 1), np.zeros((352 if group.rank == 0 else 348, 3))),
                *([np.zeros(352 if group.rank == 0 else 348)]),
                prior=rb.Normal(1.0 + group.rank),
                likelihood=rb.Gaussian(),
                group=group,
            )
        except rb.errors.GroupError as error:
            mine.write_text(str(error))
    elif what == "endless":
        threading.Thread(target=says_when_it_runs, args=(out / f"pid{group.rank}",)).start()
        found = draws(group, 10**6, 50)
        np.savez(mine, position=found.state.position, step=found.state.step)
    elif what == "asleep":
        (out / f"pid{group.rank}").write_text(str(os.getpid()))
        mpi.PATIENCE = 0.5
        mine_now = target(group)
        if group.rank == 1:
            time.sleep(600)
        rb.HMC(mine_now).sample(2, progress=False)
    elif what == "store":
        (out / f"pid{group.rank}").write_text(str(os.getpid()))
        found = draws(group, 200, 2, store=rb.Store(out / "run", flush_seconds=0.05))
        np.savez(mine, positions=found.positions, position=found.state.position)


if __name__ == "__main__":
    main()
