"""The command ``python -m studies.izmailov``: see `studies.izmailov.command`."""

import sys

from studies.izmailov.command import main

if __name__ == "__main__":
    sys.exit(main())
