"""The command ``python -m benchmarks.roofline``: see `benchmarks.studies.roofline`."""

import sys

from benchmarks.studies.roofline import main

if __name__ == "__main__":
    sys.exit(main())
