"""The oracle of the layer table: a network and its gradient, value by value.

Written from the specification alone and sharing no code with the package; judged by
``test_layer_reference.py``. Value 0 is the input (N, D), value r + 1 what row r gives. No two rows
of the table share parameters, so squared norms of gradients add up over them.
"""

import numpy as np

from op_reference import BACKWARD, FORWARD, OPS, Row


def network(table, theta, x, factors=None):
    """Outputs (N, K) for one theta, and all values; factors: table row -> (N, ...) of dropout."""
    x = np.asarray(x, float)
    values = [x.reshape(len(x), -1)]
    for r, entries in enumerate(table):
        row = Row(*map(int, entries))
        name, value = OPS[row.op], values[row.input]
        if name == "dropout":
            values.append(value * factor(factors, r, len(x)))
        elif name == "add":
            values.append(value + values[row.second])
        else:
            values.append(FORWARD[name](row, theta, value))
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
        name, delta = OPS[row.op], deltas[r + 1]
        if name == "dropout":
            back = delta * factor(factors, r, len(delta))
        elif name == "add":
            back = delta
            deltas[row.second] = deltas[row.second] + delta
        else:
            back, found = BACKWARD[name](row, theta, values[row.input], delta)
        deltas[row.input] = deltas[row.input] + back
        for offset, total, each in found:
            gradient[offset : offset + total.size] += total
            square += each
    return gradient, square, deltas[0]
