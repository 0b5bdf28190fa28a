"""The command ``python -m benchmarks.scaling``: see `benchmarks.studies.scaling`."""

import sys

from benchmarks.studies.scaling import main

if __name__ == "__main__":
    sys.exit(main())
