"""Studies of the field that are made again with Ribbit: one folder each."""
