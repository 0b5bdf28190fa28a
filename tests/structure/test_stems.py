"""One stem per layer in every room, and numbers shared with the core typed once."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit._arrays import random_numbers, update_rules
from ribbit._backends import codes
from ribbit._backends.cuda.layers import op_table
from ribbit.models import layers
from tests.structure.graph import modules
from tests.support.paths import CPP

PACKAGE = Path(rb.__file__).resolve().parent

# Where a layer's files lie, and what follows the stem.
ROOMS = {
    "models/layers": (PACKAGE / "models/layers", ".py"),
    "_backends/cuda/layers": (PACKAGE / "_backends/cuda/layers", ".py"),
    "cpp/cpu/layers": (CPP / "cpu/layers", ".cpp"),
    "cpp/cuda/kernels": (CPP / "cuda/kernels", "_kernels.h"),
}
# Stems of models/layers whose kernels have another: one pass over elements serves activations and
# the sum of a residual, products serve what multiplies by weights; flattening moves nothing.
KERNELS = {"activation": "elementwise", "residual": "elementwise", "flatten": None}
PRODUCTS = {("dense", "cpp/cuda/kernels"): "product"}


def stems() -> list[str]:
    """Stems of the layers that a user can name."""
    folder, ending = ROOMS["models/layers"]
    return sorted(p.name[: -len(ending)] for p in folder.glob(f"[a-z]*{ending}"))


def missing(found: list[str], exists) -> list[str]:
    """Files that layers should have; `exists(room, stem)`."""
    wanted = []
    for stem in found:
        kernel = KERNELS.get(stem, stem)
        for room in ROOMS:
            name = stem if room == "models/layers" else PRODUCTS.get((stem, room), kernel)
            if name is not None and not exists(room, name):
                wanted.append(f"{room}/{name}{ROOMS[room][1]}")
    return wanted


def there(room: str, stem: str) -> bool:
    """Whether a layer's file is there."""
    folder, ending = ROOMS[room]
    return (folder / f"{stem}{ending}").is_file()


@pytest.mark.skipif(not CPP.is_dir(), reason="needs the source tree")
def test_every_layer_has_one_stem_in_every_room() -> None:
    assert {"conv", "dense", "dropout", "embedding", "lstm", "norm", "pool"} <= set(stems())
    assert missing(stems(), there) == []


@pytest.mark.skipif(not CPP.is_dir(), reason="needs the source tree")
@pytest.mark.parametrize("room", ROOMS)
def test_a_missing_file_is_named(room: str) -> None:
    gone = missing(stems(), lambda r, stem: there(r, stem) and (r, stem) != (room, "norm"))
    assert gone == [f"{room}/norm{ROOMS[room][1]}"]
    if room != "models/layers":
        assert f"{room}/attention{ROOMS[room][1]}" in missing([*stems(), "attention"], there)


def test_every_operation_has_a_row_in_the_op_table() -> None:
    assert set(op_table.TABLE) == set(codes.OPS.values())
    named = [getattr(layers, name) for name in layers.__all__]
    used = {layer.op for layer in named if hasattr(layer, "op")}
    assert used == set(codes.OPS.values())


def test_codes_are_those_of_the_core() -> None:
    """As `_core` exports them; each kind of a prior or likelihood is a class of that name."""
    exported = _core.codes()
    tables = {name: getattr(codes, name) for name in exported if hasattr(codes, name)}
    assert set(exported) - set(tables) == {"PURPOSES", "RULES"}
    assert list(update_rules.RULES.items()) == sorted(exported["RULES"].items(), key=lambda i: i[1])
    for name, table in tables.items():
        numbers = dict(zip(table, range(len(table)), strict=True))
        assert numbers == exported[name], name
    made_of_others = {"InverseGamma", "Horseshoe"}
    assert set(codes.PRIORS) == set(rb.priors.__all__) - {"Prior", "ScalePrior"} - made_of_others
    kinds = {name.removesuffix("Learned").removesuffix("Floored") for name in codes.LIKELIHOODS}
    assert kinds == set(rb.likelihoods.__all__) - {"Likelihood"}
    purposes = {name.upper(): number for name, number in exported["PURPOSES"].items()}
    unused = {"BATCH_ORDER", "DATASET", "LAST_LAYER", "PREDICTIVE_NOISE", "REPLICATE"}  # by Python
    for name in purposes.keys() - unused:
        assert getattr(random_numbers, name) == purposes[name], name


def test_a_wrong_code_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dict(codes.PRIORS, Normal=codes.PRIORS["Laplace"])
    monkeypatch.setattr(codes, "PRIORS", dict(sorted(wrong.items(), reverse=True)))
    with pytest.raises(AssertionError, match="PRIORS"):
        test_codes_are_those_of_the_core()


NAMES = re.compile(r"^_?[A-Z][A-Z_]*$")


def typed_codes(text: str) -> list[str]:
    """Names of operations, purposes and kinds that a module gives literal numbers."""
    tables = {name: table for name, table in _core.codes().items() if name != "COLUMNS"}
    known = {name.upper() for table in tables.values() for name in table}
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Assign):
            continue
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        ranged = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "range"
        if not ranged and not any(
            isinstance(value, ast.Constant) and type(value.value) is int for value in values
        ):
            continue
        names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        found += [name for name in names if NAMES.match(name) and name.strip("_") in known]
    return sorted(found)


def test_no_number_of_the_core_is_typed_in_python() -> None:
    for name, path in modules(PACKAGE, "ribbit").items():
        assert not typed_codes(path.read_text(encoding="utf-8")), name
    assert typed_codes("_MASK, _X = 6, 14") == ["_MASK"]
    assert typed_codes("DENSE, CONV = range(2)") == ["CONV", "DENSE"]
    assert typed_codes("MASK = PURPOSES['mask']") == []


def test_columns_of_a_model_are_the_cores() -> None:
    model = rb.mlp(2, (3,), 1)
    assert model.table.shape[1] == len(codes.COLUMNS)
    assert codes.COLUMNS[:2] == ("op", "in_size")
    assert np.array_equal(model.table[:, codes.COLUMNS.index("in_size")], [2, 3, 3])
