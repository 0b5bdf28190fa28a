"""The oracle of the layer table: a network and its gradient, value by value.

Written from the specification alone and sharing no code with the package; judged by
``test_layer_reference.py``. Value 0 is the input (N, D), value r + 1 what row r gives. No two rows
of the table share parameters, so squared norms of gradients add up over them.
"""

import numpy as np

from tests.oracle.op_reference import BACKWARD, FORWARD, OPS, Row


def network(table, theta, x, factors=None):
    """Outputs (N, K) for one theta, and all values.

    factors: table row -> (N, ...), which multiplies what the row gives; a dropout row gives its
    input.
    """
    x = np.asarray(x, float)
    values = [x.reshape(len(x), -1)]
    for r, entries in enumerate(table):
        row = Row(*map(int, entries))
        name, value = OPS[row.op], values[row.input]
        if name == "add":
            value = value + values[row.second]
        elif name != "dropout":
            value = FORWARD[name](row, theta, value)
        values.append(value * factor(factors, r, len(x)))
    return values[-1], values


def factor(factors, r, num_rows):
    if factors is None or r not in factors:
        return 1.0
    return np.reshape(factors[r], (num_rows, -1))


def backward(table, theta, values, delta, factors=None):
    """Of deltas (N, K) of the outputs: gradient (P,), squared norms (N,) of its rows, and deltas.

    Deltas (N, D) of the input; a value's delta is the sum over all rows that read it.
    """
    gradient, square = np.zeros(len(theta)), np.zeros(len(delta))
    deltas = [np.zeros_like(v) for v in values]
    deltas[-1] = delta
    for r, entries in reversed(list(enumerate(table))):
        row, found = Row(*map(int, entries)), []
        name, back = OPS[row.op], deltas[r + 1] * factor(factors, r, len(delta))
        if name == "add":
            deltas[row.second] = deltas[row.second] + back
        elif name != "dropout":
            back, found = BACKWARD[name](row, theta, values[row.input], back)
        deltas[row.input] = deltas[row.input] + back
        for offset, total, each in found:
            gradient[offset : offset + total.size] += total
            square += each
    return gradient, square, deltas[0]
