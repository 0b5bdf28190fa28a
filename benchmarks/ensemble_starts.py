"""``python -m benchmarks.ensemble_starts``: see `benchmarks.studies.ensemble_starts`."""

import sys

from benchmarks.studies.ensemble_starts import main

if __name__ == "__main__":
    sys.exit(main())
