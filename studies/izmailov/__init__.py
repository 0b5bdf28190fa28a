"""Izmailov et al. (2021), arXiv 2104.14421, made again: see `studies.izmailov.command`."""
