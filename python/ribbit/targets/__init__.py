"""Targets: priors, likelihoods, densities made from them, and their predictions."""
