"""Repeats Izmailov et al. (2021), arXiv 2104.14421: see `studies.izmailov.command`."""
