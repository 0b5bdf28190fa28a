"""The command ``python -m benchmarks.effective``: see `benchmarks.studies.effective`."""

import sys

from benchmarks.studies.effective import main

if __name__ == "__main__":
    sys.exit(main())
