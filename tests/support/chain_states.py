"""Fields of chains of HMC, made up."""

import numpy as np


def fields(changes=None, *, count=3, dim=2, dtype=np.float32):
    """Fields of chains in warmup, with a mass for each chain."""
    rng = np.random.default_rng(0)
    ids = np.arange(5, 5 + count, dtype=np.uint32)[:, None]
    counts = np.full((count, 1), 7, np.int64)
    duals = ("log_step", "log_average", "error", "centre", "log_settled")
    found = {
        "kernel": "hmc",
        "instruction set": "avx2",
        "target": "data=a1\nprior=Normal(sd=1.0)\n",
        "seed": 2**64 - 1,
        "chains": ids,
        "warmup": 60,
        "step": 30,
        "position": rng.normal(size=(count, dim)).astype(dtype),
        "grad": rng.normal(size=(count, dim)).astype(dtype),
        "terms": rng.normal(size=(count, 2)),
        "inverse_mass": rng.uniform(1, 2, (count, dim)).astype(dtype),
        "window.count": 20,
        "window.mean": rng.normal(size=(count, dim)),
        "window.squares": rng.uniform(size=(count, dim)),
        "divergences": counts,
        "step_size": rng.uniform(0.1, 0.2, (count, 1)),
        **{f"dual.{name}": rng.normal(size=(count, 1)) for name in duals},
        "dual.updates": counts,
        "dual.settled": counts,
    }
    return {name: value for name, value in (found | (changes or {})).items() if value is not None}


def same(one, other):
    """Return whether fields are equal, with their dtypes and axes."""
    return one.keys() == other.keys() and all(
        np.array_equal(value, other[name])
        and getattr(value, "dtype", None) == getattr(other[name], "dtype", None)
        for name, value in one.items()
    )
