"""The command ``python -m benchmarks.gpu``: see `benchmarks.studies.gpu`."""

import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.studies.gpu import main

if __name__ == "__main__":
    sys.exit(main())
