"""The command ``python -m benchmarks.paper``: see `benchmarks.studies.paper`."""

import sys

from benchmarks.studies.paper import main

if __name__ == "__main__":
    sys.exit(main())
