"""How many threads there are by default."""

import os
import subprocess
import sys

import pytest

LINE = "from ribbit._arrays.threads import num_threads; print(num_threads())"
NAMES = "RIBBIT_NUM_THREADS", "OMP_NUM_THREADS"


def threads(**environment):
    inherited = {k: v for k, v in os.environ.items() if k not in NAMES}
    found = subprocess.run(
        [sys.executable, "-c", LINE],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return int(found.stdout)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "5,2"}, 5),
        ({"OMP_NUM_THREADS": "3", "RIBBIT_NUM_THREADS": "1"}, 1),
    ],
)
def test_the_environment_says_how_many(environment, expected):
    assert threads(**environment) == expected


@pytest.mark.parametrize("text", ["", "0", "-2", "many"])
def test_what_openmp_would_ignore_is_ignored(text):
    assert threads(OMP_NUM_THREADS=text) == threads() <= len(os.sched_getaffinity(0))
