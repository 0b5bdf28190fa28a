"""Messages about a missing optional package name a command that works anywhere."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ribbit
from ribbit._arrays import packages
from tests.support.paths import ROOT

PACKAGE = Path(ribbit.__file__).resolve().parent

ROOMS = """
import importlib, sys
for name in ("sklearn", "torch", "jax", "numpyro", "pymc"):
    sys.modules[name] = None
    try:
        importlib.import_module(f"ribbit.{name}")
    except ModuleNotFoundError as error:
        print(error)
"""

COMMAND = """
import runpy, sys
for name in ("rich", "matplotlib", "sklearn", "zarr"):
    sys.modules[name] = None
sys.argv = ["ribbit", *sys.argv[1:]]
runpy.run_module("ribbit", run_name="__main__", alter_sys=True)
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def test_messages_install_what_the_extras_bring() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    lines = {line for extra in extras.values() for line in extra}
    for package, told in packages._REQUIREMENTS.items():
        parts = shlex.split(told.replace(" or pip install ", " "))
        assert parts
        assert lines.issuperset(parts), package


def test_no_message_needs_a_checkout() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert '".[' not in text, path
        assert 'install "ribbit[' not in text, path  # Ribbit is on no index
        if path.name != "packages.py":  # the one that says so when something is missing
            said = [line for line in text.splitlines() if "pip install" in line]
            assert all("``" in line for line in said), said  # of docstrings


def test_rooms_of_other_packages_say_what_to_install() -> None:
    done = run(ROOMS)
    assert done.stdout.splitlines() == [
        '[ribbit.sklearn] expected sklearn, got none: pip install "scikit-learn>=1.6"',
        '[ribbit.torch] expected torch, got none: pip install "torch>=2.5"',
        '[ribbit.jax] expected jax, got none: pip install "jax>=0.5.0"',
        '[ribbit.jax] expected jax, got none: pip install "jax>=0.5.0"',
        '[ribbit.pymc] expected pymc, got none: pip install "pymc>=5.21,<6"',
    ]


def test_a_package_that_is_broken_is_told_from_a_missing_one() -> None:
    with pytest.raises(ImportError, match="too old: pip install"), packages.needing("f", "zarr"):
        raise ImportError("too old", name="zarr.codecs")
    with pytest.raises(ImportError, match="of another"), packages.needing("f", "zarr"):
        raise ImportError("of another", name="other")
    with pytest.raises(ModuleNotFoundError, match=r"\[f\] expected cupy, got none: pip .* or "):
        raise packages.missing("f", "cupy")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("watch", "no_such_folder"), "or the folder of a run, got none at .*no_such_folder"),
        (("summary", "no_such_file"), "must be a file of draws .*, got none at .*no_such_file"),
        (("demo", "--quick"), r'expected matplotlib, got none: pip install "matplotlib>=3.8"'),
        (("unknown",), "invalid choice: 'unknown'"),
        (("watch",), "the following arguments are required: FOLDER"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_commands_of_a_bare_install(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(COMMAND, *arguments)
    assert done.returncode > 0
    assert re.search(said, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
