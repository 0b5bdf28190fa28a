"""``python -m benchmarks.sklearn_defaults``: see `benchmarks.studies.sklearn_defaults`."""

import sys

from benchmarks.studies.sklearn_defaults import main

if __name__ == "__main__":
    sys.exit(main())
