"""Layer descriptions: shapes, names, JSON."""

import json
import math

import numpy as np
import pytest

import ribbit as rb
from ribbit.models.layers import COLUMNS, describe, from_description
from tests.support.layer_problems import EXAMPLES, KINKED, SMOOTH, ZOO


@pytest.mark.parametrize("layer", EXAMPLES, ids=lambda layer: type(layer).__name__)
def test_layers_survive_json_and_compare_by_fields(layer):
    again = from_description(json.loads(json.dumps(describe(layer))))
    assert again == layer
    assert hash(again) == hash(layer)
    assert sum(layer == other for other in EXAMPLES) == 1


def test_every_layer_is_described_here():
    assert {type(layer).__name__ for layer in EXAMPLES} == set(rb.layers._LAYERS)


@pytest.mark.parametrize("name", [*SMOOTH, *KINKED])
def test_models_survive_json(name):
    model = {**SMOOTH, **KINKED}[name]
    again = rb.Model.from_description(json.loads(json.dumps(model.describe())))
    assert again == model
    np.testing.assert_array_equal(again.table, model.table)


@pytest.mark.parametrize("layer", [rb.Conv2D, rb.MaxPool2D, rb.AvgPool2D])
def test_pairs_may_be_lists(layer):
    first = (2,) if layer is rb.Conv2D else ()
    made = layer(*first, [3, 2], stride=[2, 1])
    assert made == layer(*first, (3, 2), stride=(2, 1))
    hash(made)


# --- shapes --------------------------------------------------------------------------------------


def places(size, kernel, stride, padding):
    """How many places a window has and what lies before the first, by moving it."""
    if padding == "valid":
        return len([a for a in range(0, size, stride) if a + kernel <= size]), 0
    starts = range(0, size, stride)  # as many as strides begin
    cells = max(starts[-1] + kernel - size, 0)
    return len(starts), cells // 2


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_places_of_a_window(padding):
    for size in range(1, 12):
        for kernel in range(1, 6):
            for stride in range(1, 5):
                if padding == "valid" and kernel > size:
                    continue
                count, before = places(size, kernel, stride, padding)
                for layer, shape in (
                    (rb.Conv2D(2, (kernel, 1), stride=(stride, 1), padding=padding), (size, 1, 3)),
                    (rb.AvgPool2D((kernel, 1), stride=(stride, 1), padding=padding), (size, 1, 3)),
                    (rb.MaxPool2D((1, kernel), stride=(1, stride), padding=padding), (1, size, 3)),
                    (rb.Conv1D(2, kernel, stride=stride, padding=padding), (size, 3)),
                    (rb.MaxPool1D(kernel, stride=stride, padding=padding), (size, 3)),
                ):
                    model = rb.Model([layer, rb.Flatten(), rb.Dense(1)], input_shape=shape)
                    row = dict(zip(COLUMNS, map(int, model.table[0]), strict=True))
                    channels = 2 if row["op"] == 3 else 3
                    assert row["out_height"] * row["out_width"] == count
                    assert row["pad_top"] + row["pad_left"] == before
                    assert row["out_size"] == model.table[1, 1] == count * channels


@pytest.mark.parametrize("name", [*SMOOTH, *KINKED])
def test_tables_chain(name):
    # each row reads values that were written before it, of the size that it expects
    model = {**SMOOTH, **KINKED}[name]
    sizes = [math.prod(model.input_shape)]
    for entries in model.table:
        row = dict(zip(COLUMNS, map(int, entries), strict=True))
        assert sizes[row["input"]] == row["in_size"]
        assert row["second"] < 0 or sizes[row["second"]] == row["in_size"]
        sizes.append(row["out_size"])
    assert sizes[-1] == model.output_shape[0]
    ends = np.cumsum([p.size for p in model.parameters])
    assert [p.offset for p in model.parameters] == [0, *ends[:-1]]
    assert ends[-1] == model.dim
    used = model.table[:, [COLUMNS.index(c) for c in ("weight", "bias", "third")]]
    assert sorted(used[used >= 0]) == [p.offset for p in model.parameters]


def test_names_of_a_residual():
    model = rb.Model(
        [
            rb.Activation("tanh"),
            rb.Residual(
                [rb.Conv2D(4, (3, 2), padding="same"), rb.Residual([rb.FilterResponseNorm()])],
                [rb.Conv2D(4, 1, bias=False)],
            ),
            rb.GlobalAvgPool2D(),
            rb.Dense(2),
        ],
        input_shape=(5, 4, 3),
    )
    assert [(p.name, p.shape, p.offset, p.fan_in, p.is_weight) for p in model.parameters] == [
        ("1.main.0.weight", (3, 2, 3, 4), 0, 18, True),
        ("1.main.0.bias", (4,), 72, 1, False),
        ("1.main.1.main.0.gamma", (4,), 76, 1, False),
        ("1.main.1.main.0.beta", (4,), 80, 1, False),
        ("1.main.1.main.0.tau", (4,), 84, 1, False),
        ("1.shortcut.0.weight", (1, 1, 3, 4), 88, 3, True),
        ("3.weight", (4, 2), 100, 4, True),
        ("3.bias", (2,), 108, 1, False),
    ]
    columns = [COLUMNS.index(c) for c in ("op", "input", "second")]
    expected = [[1, 0, -1], [3, 1, -1], [6, 2, -1], [8, 3, 2], [3, 1, -1], [8, 4, 5]]
    np.testing.assert_array_equal(model.table[:, columns], [*expected, [5, 6, -1], [0, 7, -1]])
    # gammas start at 1, what is no weight and no scale at 0
    start = model.unravel(model.init(0))
    assert np.all(start["1.main.1.main.0.gamma"] == 1)
    assert not np.any(start["1.main.1.main.0.tau"])
    assert not np.any(start["1.main.0.bias"])


def test_names_and_fans_of_sequences():
    model = rb.Model([rb.Embedding(7, 3), rb.Conv1D(4, 5), rb.LSTM(2)], input_shape=(9,))
    assert [(p.name, p.shape, p.fan_in, p.is_weight) for p in model.parameters] == [
        ("0.weight", (7, 3), 3, True),
        ("1.weight", (5, 3, 4), 15, True),
        ("1.bias", (4,), 1, False),
        ("2.weight", (4, 8), 4, True),
        ("2.recurrent", (2, 8), 2, True),
        ("2.bias", (8,), 1, False),
    ]
    assert (model.tokens, model.output_shape) == (7, (2,))


def test_every_layer_has_its_own_index():
    # part of the address of its masks
    for name in ("dropout", "dropout in a residual", "nested"):
        index = SMOOTH[name].table[:, COLUMNS.index("index")]
        assert len(set(index)) == len(index)
    assert SMOOTH["dropout in a residual"].dropout_layers == (
        "0.main.2: Dropout(0.5)",
        "1: Dropout(0.25)",
    )


def test_sizes_of_the_zoo():
    assert rb.lenet5().dim == 91_946
    assert rb.resnet20_frn().dim == 274_042
    assert rb.cnn_lstm().dim == 2_700_098
    assert [make().output_shape for make in ZOO.values()] == [(3,), (3,), (2,)]
    wide = rb.resnet20_frn().table
    assert [np.sum(wide[:, 0] == op) for op in (0, 1, 3, 5, 6, 8)] == [1, 19, 21, 1, 21, 9]
