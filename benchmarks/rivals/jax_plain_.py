"""JAX as one would write it at first, where that differs from its best form."""

from __future__ import annotations

from benchmarks.rivals import jax_bayes
from benchmarks.rivals.jax_net import versions

PREPARE = {"mc_dropout": jax_bayes.mc_dropout_plain}

__all__ = ["PREPARE", "versions"]
