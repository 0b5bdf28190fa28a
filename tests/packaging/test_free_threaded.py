"""The tool that tests without the GIL; what it finds with a free-threaded Python is in the docs."""

import subprocess
import sys
import sysconfig

import pytest

from tests.support.paths import ROOT
from tools import free_threaded

with_gil = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="needs an interpreter with a GIL"
)


@with_gil
def test_an_interpreter_with_a_gil_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"expected a free-threaded interpreter, got 3\."):
        free_threaded.interpreter(sys.executable)


def test_an_import_that_is_asked_about_the_gil_runs() -> None:
    """Here as far as the question, which an interpreter before 3.13 does not know."""
    code = "import sys\nsys._is_gil_enabled = lambda: False\n" + free_threaded.IMPORT
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_what_it_runs_is_there() -> None:
    for name in free_threaded.AT_ONCE + free_threaded.TESTS:
        assert (ROOT / name).exists(), name
