"""The command ``python -m benchmarks.accept``: see `benchmarks.studies.accept`."""

import sys

from benchmarks.studies.accept import main

if __name__ == "__main__":
    sys.exit(main())
