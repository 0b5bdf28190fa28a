"""Rooms whose names are public, and the package without which each cannot be imported."""

ROOMS = {
    "ribbit": None,
    "ribbit.datasets": None,
    "ribbit.diagnostics": None,
    "ribbit.distributed": None,
    "ribbit.errors": None,
    "ribbit.jax": "jax",
    "ribbit.metrics": None,
    "ribbit.numpyro": "numpyro",
    "ribbit.plots": "matplotlib",
    "ribbit.protocols": None,
    "ribbit.pymc": "pymc",
    "ribbit.random": None,
    "ribbit.schedules": None,
    "ribbit.sklearn": "sklearn",
    "ribbit.torch": "torch",
}
