"""Runs in folders: chunks of a Zarr group, and a checkpoint that says which of them count."""
