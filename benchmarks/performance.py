"""The command ``python -m benchmarks.performance``: see `benchmarks.studies.performance`."""

from benchmarks.studies.performance import main

if __name__ == "__main__":
    main()
