"""Chains that move all at once on arrays, for GPUs and for densities in Python, torch and JAX."""
