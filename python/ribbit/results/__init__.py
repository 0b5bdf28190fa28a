"""What sampling and fitting give: draws, fits, states, predictions."""
