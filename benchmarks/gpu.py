"""The command ``python -m benchmarks.gpu``: see `benchmarks.studies.gpu`."""

import sys

from benchmarks.studies.gpu import main

if __name__ == "__main__":
    sys.exit(main())
