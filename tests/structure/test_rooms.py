"""The rooms of the package and who may import whom, over every import, lazy and typing ones too."""

import sys
from pathlib import Path

import pytest

import ribbit
from tests.structure.graph import RUN, Import, circles, imports, modules

PACKAGE = Path(ribbit.__file__).resolve().parent
ROOMS_AT_MOST = 30

BASE = {"errors", "protocols", "_arrays"}
# What a room may import beside the base. The order is that of the lines of the house: a room stands
# below all that it imports.
RULES = {
    "errors": set(),
    "protocols": set(),
    "_arrays": {"errors", "protocols"},
    "_backends": BASE,
    "results": BASE,
    "random": BASE,
    "schedules": BASE,
    "metrics": BASE,
    "datasets": BASE,
    "models": BASE | {"_backends"},
    "diagnostics": BASE | {"results", "metrics"},
    "targets": BASE | {"models", "_backends", "results"},
    "store": BASE | {"results", "targets"},
    "distributed": BASE | {"results", "store"},
}
# Each file of a run may import the base, results, the store and the files below it.
for number, name in enumerate(RUN):
    RULES[name] = BASE | {"results", "store", "distributed", *RUN[:number]}
RULES["density"] |= {"_backends"}
RULES |= {
    "samplers": BASE | {"results", "schedules", "store", "distributed", *RUN},
    "plots": BASE | {"diagnostics", "metrics"},
}
RULES["_cli"] = set(RULES)
# Faces of other ecosystems: each may import all that stands above it, and of each other only what
# is named here.
FACES: dict[str, set[str]] = {"sklearn": set(), "torch": set(), "jax": set(), "pymc": set()}
FACES["numpyro"] = {"jax"}  # NumPyro's models are programs of JAX
INNER = set(RULES)
RULES |= {face: (INNER - {"_cli"}) | others for face, others in FACES.items()}
RULES["ribbit"] = RULES["__main__"] = INNER
# The native module, and the rooms that call it.
NATIVE = {"_core": {"_arrays", "_backends", "_cli", "chains", "kernels", "lockstep", "results"}}
# Beside the standard library; all but NumPy are optional and imported where they are used.
OUTSIDE = {"numpy", "cupy", "cupyx", "matplotlib", "rich", "arviz_base", "arviz_stats", "sklearn"}
OUTSIDE |= {
    "torch",
    "zarr",
    "jax",
    "numpyro",
    "pymc",
    "pytensor",
    "mpi4py",
}


def room(module: str) -> str:
    """The room of a module of ribbit; ``ribbit`` is one of its own."""
    return module.split(".")[1] if "." in module else module


def wrong(found: list[Import]) -> list[str]:
    """What breaks the rule."""
    out = []
    for one in found:
        package, _, rest = one.target.partition(".")
        if package != "ribbit":
            if package not in sys.stdlib_module_names | OUTSIDE:
                out.append(f"{one}: unknown")
            continue
        source, target = room(one.source), room(one.target) if rest else "ribbit"
        if target in NATIVE:
            if source not in NATIVE[target]:
                out.append(f"{one}: the native module is called by {sorted(NATIVE[target])}")
        elif source not in RULES or target not in RULES:
            out.append(f"{one}: a room without a rule")
        elif source != target and target not in RULES[source]:
            out.append(f"{one}: against the rule")
    return out


def files_of(found: list[Import], names: set[str]) -> dict[str, set[str]]:
    """Arrows between files."""
    edges: dict[str, set[str]] = {name: set() for name in names}
    for one in found:
        if one.target in names and one.target != one.source:
            edges[one.source].add(one.target)
    return edges


@pytest.fixture(scope="module")
def found() -> list[Import]:
    """Every import of the package."""
    return imports(PACKAGE, "ribbit")


def test_every_import_follows_the_rule(found: list[Import]) -> None:
    assert len(found) > 300
    assert not wrong(found)


def test_no_circle_between_files(found: list[Import]) -> None:
    edges = files_of(found, set(modules(PACKAGE, "ribbit")))
    assert circles(edges) == []


def test_no_circle_between_rooms(found: list[Import]) -> None:
    edges: dict[str, set[str]] = {name: set() for name in RULES}
    for one in found:
        if one.target.startswith("ribbit.") and room(one.source) != room(one.target):
            edges[room(one.source)].add(room(one.target))
    assert circles(edges) == []


def test_rooms_at_the_top() -> None:
    """Folders and files that a reader of the package meets first."""
    rooms = {room(name) for name in modules(PACKAGE, "ribbit")} - {"ribbit"}
    assert rooms <= set(RULES)
    assert len(rooms - set(FACES)) <= ROOMS_AT_MOST


PLANTED = {
    "upward": ("results/draws.py", "from ribbit.targets.posterior import Posterior"),
    "upward, lazy": (
        "_backends/dispatch.py",
        "def f():\n    from ribbit.models import Model\n    return Model",
    ),
    "upward, for typing": (
        "sample.py",
        "import typing\nif typing.TYPE_CHECKING:\n    from ribbit.targets import priors",
    ),
    "upward, relative": ("results/draws.py", "from ..targets import priors"),
    "upward, of a package": ("results/draws.py", "import ribbit.targets.priors"),
    "the package itself": ("results/draws.py", "import ribbit"),
    "sideways": ("metrics.py", "from ribbit.schedules import constant"),
    "native": ("samplers/mcmc/hmc.py", "from ribbit import _core"),
    "unknown module": ("metrics.py", "import torchvision"),
    "a face, from below": ("store.py", "def f():\n    import ribbit.sklearn"),
    "unknown room": ("utils.py", "from ribbit.errors import DTypeError"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_noticed(name: str, tmp_path: Path) -> None:
    place, text = PLANTED[name]
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    for target in ("targets/posterior.py", "targets/priors.py", "models/__init__.py"):
        other = tmp_path / target
        other.parent.mkdir(parents=True, exist_ok=True)
        other.touch()
    (tmp_path / "_core.pyi").touch()
    assert len(wrong(imports(tmp_path, "ribbit"))) == 1


def test_a_planted_circle_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from ribbit.b import x")
    (tmp_path / "b.py").write_text("def f():\n    from ribbit import c")
    (tmp_path / "c.py").write_text("import ribbit.a\n")
    found = imports(tmp_path, "ribbit")
    edges = files_of(found, set(modules(tmp_path, "ribbit")))
    assert circles(edges) == [["ribbit.a", "ribbit.b", "ribbit.c"]]
    assert circles({**edges, "ribbit.c": set()}) == []
