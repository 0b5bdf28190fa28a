"""Approximations that are fitted."""
