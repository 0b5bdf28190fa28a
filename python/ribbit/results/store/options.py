"""What a user chooses of a run's folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain

__all__ = ["Store"]

_DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Store:
    """Options of the folder of a run, for ``sample(store=)`` and ``fit(store=)``.

    A path alone means ``Store(path)``. The folder is made. The same call again resumes an
    interrupted run, with results bit-identical to an uninterrupted one.

    Parameters
    ----------
    path : str or path
        A folder that is new, empty, or of the same run.
    flush_seconds : float
        Seconds between two checkpoints: the longest time that a kill or a power cut costs.
    flush_bytes : int
        Bytes of draws after which a checkpoint comes sooner.
    keep : {"draws", "predictions"}
        "predictions": keep each draw's predictions at ``predict_at`` instead of its weights.
    dtype : {"float16", "bfloat16", "float32", "float64"}, optional
        Dtype of the stored weights. Default: the target's dtype. Draws are read in the target's
        dtype, rounded to this one. Resuming does not depend on it.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong type or out of range.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> store = rb.Store("run", flush_seconds=60, dtype="float16")
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False, store=store)
    >>> draws.positions.shape, draws.positions.dtype
    ((4, 20, 10), dtype('float32'))
    """

    path: str | os.PathLike[str]
    flush_seconds: float = 30.0
    flush_bytes: int = 1 << 27
    keep: str = "draws"
    dtype: str | None = None

    def __post_init__(self) -> None:
        name = "Store"
        checks.path(name, self.path)
        checks.positive(name, "flush_seconds", self.flush_seconds)
        checks.integer(name, "flush_bytes", self.flush_bytes, minimum=1, maximum=2**62)
        checks.choice(name, "keep", self.keep, ("draws", "predictions"))
        if self.dtype is not None:
            checks.choice(name, "dtype", self.dtype, _DTYPES)

    @staticmethod
    def of(function: str, value: Any) -> Store:
        """Return a Store unchanged, or make one from a path."""
        if isinstance(value, Store):
            return value
        return Store(checks.path(function, value, "store as a path or rb.Store(...)"))

    @property
    def folder(self) -> Path:
        """Absolute path of the folder."""
        return Path(os.path.abspath(checks.path("Store", self.path)))


explain(globals())
