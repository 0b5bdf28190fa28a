"""The command ``python -m benchmarks.busy``: see `benchmarks.studies.busy`."""

import sys

from benchmarks.studies.busy import main

if __name__ == "__main__":
    sys.exit(main())
