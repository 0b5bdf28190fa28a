"""What is said when an optional package is missing: the extra that brings it, from anywhere."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ribbit
from ribbit._arrays import packages
from tests.support.paths import ROOT

PACKAGE = Path(ribbit.__file__).resolve().parent
DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # where the name differs by more than - and _

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
for name in ("rich", "matplotlib", "sklearn", "zarr", "google_crc32c"):
    sys.modules[name] = None
sys.argv = ["ribbit", *sys.argv[1:]]
runpy.run_module("ribbit", run_name="__main__", alter_sys=True)
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def test_extras_bring_what_the_table_says() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for package, names in packages._EXTRAS.items():
        wanted = DISTRIBUTIONS.get(package, package).replace("_", "-")
        for name in names:
            found = {re.split(r"[\[<>=]", line)[0] for line in extras[name]}
            assert any(one == wanted or one.startswith(f"{wanted}-") for one in found), name


def test_no_message_needs_a_checkout() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert '".[' not in text, path
        if path.name != "packages.py":  # the one that says so when something is missing
            said = [line for line in text.splitlines() if "pip install" in line]
            assert all("``" in line for line in said), said  # of docstrings


def test_rooms_of_other_packages_say_what_to_install() -> None:
    done = run(ROOMS)
    assert done.stdout.splitlines() == [
        '[ribbit.sklearn] expected sklearn, got none: pip install "ribbit[sklearn]"',
        '[ribbit.torch] expected torch, got none: pip install "ribbit[torch]"',
        '[ribbit.jax] expected jax, got none: pip install "ribbit[jax]"',
        '[ribbit.jax] expected jax, got none: pip install "ribbit[jax]"',
        '[ribbit.pymc] expected pymc, got none: pip install "ribbit[pymc]"',
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
        (("summary", "no_such_file"), "expected a file of draws .*, got none at .*no_such_file"),
        (("demo", "--quick"), r'expected matplotlib, got none: pip install "ribbit\[examples\]"'),
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
