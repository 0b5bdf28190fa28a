"""Markov chains with an accept step."""
