"""The command ``python -m benchmarks.paper``: see `benchmarks.studies.paper`."""

import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.studies.paper import main

if __name__ == "__main__":
    sys.exit(main())
