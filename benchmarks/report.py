"""The command ``python -m benchmarks.report``: see `benchmarks.studies.report`."""

import sys

from benchmarks.studies.report import main

if __name__ == "__main__":
    sys.exit(main())
