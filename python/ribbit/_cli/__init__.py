"""Commands of ``python -m ribbit``."""
