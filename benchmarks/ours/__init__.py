"""Ribbit's entries, through the public calls a user makes."""
