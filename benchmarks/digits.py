"""The command ``python -m benchmarks.digits``: see `benchmarks.studies.digits`."""

import sys

from benchmarks.studies.digits import main

if __name__ == "__main__":
    sys.exit(main())
