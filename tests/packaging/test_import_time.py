"""What `import ribbit` costs beside `import numpy`."""

import subprocess
import sys

import pytest

from tools import wheels

# Standard modules that take milliseconds each, for few programs: imported where they are used.
SLOW = {"concurrent.futures", "hashlib", "html", "logging", "socket", "statistics", "tempfile"}
SLOW |= {"ribbit.models.torch_modules", "ribbit.models.torch_weights"}


def test_nothing_slow_at_import() -> None:
    code = "import sys, numpy; before = set(sys.modules); import ribbit; "
    code += "print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not SLOW & set(done.stdout.split())


@pytest.mark.slow
def test_seconds_of_an_import() -> None:
    """Processor seconds: other work on the machine does not count."""
    numpy, more = wheels.import_seconds(sys.executable)
    print(f"import ribbit: {more:.3f} s more than NumPy's {numpy:.3f}")
    assert more <= wheels.MOST_SECONDS
