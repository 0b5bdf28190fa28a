"""What is sampled: priors, likelihoods, the densities made of them, and their predictions."""
