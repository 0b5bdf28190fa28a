"""Which way the native files may include each other, over every include of a file of ours."""

import re
from pathlib import Path

import pytest

from tests.structure.graph import circles
from tests.support.paths import CPP

pytestmark = pytest.mark.skipif(not CPP.is_dir(), reason="needs the source tree")

# What a room may include beside itself. A room stands below all that it includes.
SYSTEM = {"core", "cpu/isa", "cpu/system"}
RULES = {
    "core": set(),
    "cpu/isa": {"core"},
    "cpu/system": {"core", "cpu/isa"},
    "cpu": SYSTEM,  # random numbers
    "cpu/layers": SYSTEM,
    "cpu/network": SYSTEM | {"cpu/layers"},
    "cpu/density": SYSTEM | {"cpu", "cpu/layers", "cpu/network"},
    "cpu/predictive": SYSTEM | {"cpu/layers", "cpu/network"},
    "cuda/kernels": {"core"},
}
RULES["density"] = RULES["cpu/density"] | {"cpu/density"}
RULES["chains"] = SYSTEM | {"cpu", "cpu/density", "density"}
RULES["include/ribbit"] = set()  # what others include
RULES["capi"] = {room for room in RULES if not room.startswith("cuda")}
RULES["bindings"] = set(RULES) - {"cuda/kernels", "capi", "include/ribbit"}
RULES["tests"] = set(RULES) - {"bindings", "cuda/kernels"}
# Of the files compiled once per instruction set, those above see the table of kernels alone.
TABLE = "cpu/isa/kernel_table-inl.h"

# Stems of cpu/isa that are no layer's; all others are.
SHARED = {"concrete", "gram", "interleave", "isokinetic", "kernel_table", "lanes", "likelihood"}
SHARED |= {"mixture", "moments", "no_u_turn", "ops", "permutation"}
SHARED |= {"prior", "random", "reduce", "row_noise", "tile", "transpose", "update", "variational"}
SHARED |= {"vec", "vec_arithmetic", "vec_lanes", "vec_types", "weight_gradient"}

Files = dict[str, list[str]]  # what each file includes, by paths below cpp


def files() -> Files:
    """Every native file and the files of ours that it includes."""
    found = {}
    for path in sorted(CPP.rglob("*")):
        if path.suffix in {".h", ".cpp", ".cu", ".def"}:
            name = path.relative_to(CPP).as_posix()
            names = re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), re.M)
            found[name] = [n if "/" in n else f"{room(name)}/{n}" for n in names]
    return found


def room(name: str) -> str:
    """The folder of a file."""
    return Path(name).parent.as_posix()


def wrong(found: Files) -> list[str]:
    """Includes that break the rule, and files in no room."""
    out = []
    for name, names in found.items():
        here = room(name)
        if here not in RULES:
            out.append(f"{name}: in no room")
            continue
        for other in names:
            there = room(other)
            allowed = there == here or there in RULES[here]
            kernel = there == "cpu/isa" and here not in {"cpu/isa", "tests"} and other != TABLE
            if other not in found or not allowed or kernel:
                out.append(f"{name} includes {other}")
    return out


def round_trips(found: Files) -> list[list[str]]:
    """Circles between files, a header and its source counted as one, and between rooms."""
    stems: dict[str, set[str]] = {}
    rooms: dict[str, set[str]] = {}
    for name, names in found.items():
        stem = name.rpartition(".")[0]
        others = {other.rpartition(".")[0] for other in names} - {stem}
        stems.setdefault(stem, set()).update(others)
        rooms.setdefault(room(name), set()).update({room(n) for n in names} - {room(name)})
    return circles(stems) + circles(rooms)


def strays(found: Files) -> list[str]:
    """Files of cpu/isa that are neither shared nor a layer's."""
    names = [Path(n).name for n in found if room(n) == "cpu/isa" and n.endswith("-inl.h")]
    stems = {n.removesuffix("-inl.h") for n in names}
    return sorted(s for s in stems - SHARED if f"cpu/layers/{s}.cpp" not in found)


def test_every_include_goes_down() -> None:
    assert wrong(files()) == []


def test_there_is_no_circle() -> None:
    assert round_trips(files()) == []


def test_kernels_of_a_layer_have_its_stem() -> None:
    found = files()
    assert strays(found) == []
    assert {Path(n).name.removesuffix("-inl.h") for n in found if room(n) == "cpu/isa"} >= SHARED


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("core/math_hd.h", "cpu/system/threads.h"),
        ("cpu/layers/conv.cpp", "cpu/network/graph_pass.h"),
        ("cpu/network/graph_pass.h", "cpu/density/evaluator.h"),
        ("cpu/predictive/forward.h", "cpu/density/evaluator.h"),
        ("cpu/density/evaluator.h", "cpu/isa/prior-inl.h"),
        ("cuda/kernels/block.h", "cpu/system/threads.h"),
        ("cpu/random.h", "bindings/array.h"),
        ("capi/hmc.cpp", "bindings/array.h"),
        ("cpu/density/leapfrog.cpp", "include/ribbit/ribbit.h"),
        ("include/ribbit/ribbit.h", "core/network.h"),
        ("cpu/helpers/new.h", "core/math_hd.h"),
        ("core/network.h", "core/gone.h"),
    ],
)
def test_a_wrong_include_is_named(name: str, other: str) -> None:
    found = files()
    found[name] = [*found.get(name, ()), other]
    assert [line for line in wrong(found) if line.startswith(name)]


def test_circles_and_strays_are_named() -> None:
    found = files()
    found["cpu/network/mlp_plan.cpp"] = ["cpu/network/mlp_pass.h"]
    assert any("cpu/network/mlp_plan" in circle for circle in round_trips(found))
    found = files()
    found["cpu/layers/layers.h"] = ["cpu/network/mlp_plan.h"]
    assert ["cpu/layers", "cpu/network"] in round_trips(found)
    assert strays({**files(), "cpu/isa/attention-inl.h": []}) == ["attention"]
