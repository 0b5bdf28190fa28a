"""The command ``python -m benchmarks.shapes``: see `benchmarks.studies.shapes`."""

import sys

from benchmarks.studies.shapes import main

if __name__ == "__main__":
    sys.exit(main())
