"""The only loop over draws, and what it needs."""
