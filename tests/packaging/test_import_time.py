"""What `import ribbit` costs beside `import numpy`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ribbit
from tools import wheels

# Standard modules that take milliseconds each, for few programs: imported where they are used.
SLOW = {"concurrent.futures", "hashlib", "html", "logging", "socket", "statistics", "tempfile"}
SLOW |= {"ribbit.models.torch_modules", "ribbit.models.torch_weights"}


def test_nothing_slow_at_import() -> None:
    code = "import sys, numpy; before = set(sys.modules); import ribbit; ribbit.__all__; "
    code += "print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not SLOW & set(done.stdout.split())


def test_what_is_imported_later_is_what_types_say() -> None:
    """One list is for programs that run, the other for tools that read."""
    tree = ast.parse(Path(ribbit.__file__).read_text(encoding="utf-8"))
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    (listed,) = [node for node in assigned if ast.unparse(node.targets[0]) == "__all__"]
    read = set(ast.literal_eval(listed.value))
    assert read - {"__version__", "set_num_threads", "show_versions"} == set(ribbit._PLACES)
    added = [node for node in ast.walk(tree) if isinstance(node, ast.AugAssign)]
    assert {ast.unparse(node.value).split(".")[0] for node in added} == {
        place.split(".")[-1] for place in ribbit._ROOMS
    }
    for name in ribbit.__all__:
        assert getattr(ribbit, name) is vars(ribbit)[name]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ribbit.nothing  # noqa: B018


@pytest.mark.slow
def test_seconds_of_an_import() -> None:
    """Processor seconds: other work on the machine does not count."""
    numpy, more, names = wheels.import_seconds(sys.executable)
    print(f"import ribbit: {more:.3f} s more than NumPy's {numpy:.3f}; its names {names:.3f}")
    assert more <= wheels.MOST_SECONDS
