"""Markov chains along stochastic gradients."""
