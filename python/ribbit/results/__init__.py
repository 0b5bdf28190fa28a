"""Results of sampling and fitting: draws, fits, states, predictions."""
