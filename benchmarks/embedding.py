"""``python -m benchmarks.embedding``: see `benchmarks.studies.embedding`."""

import sys

from benchmarks.studies.embedding import main

if __name__ == "__main__":
    sys.exit(main())
