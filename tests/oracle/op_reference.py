"""The oracle of each op of the layer table, forward and backward: float64 NumPy, plain loops.

Values are flat (N, size), in C order: images (H, W, C), sequences (T, C). Forward takes row, theta
(P,) and the row's input; backward also the delta of its output. Backward gives the delta of the
input and, per array of parameters, its offset, its gradient (size,) and the squared norm (N,) of
what each data row adds to it.
"""

import math
from collections import namedtuple

import numpy as np

from tests.oracle.activation_reference import ACTIVATIONS, activation, sigmoid

# --- rows of the table ---------------------------------------------------------------------------

Row = namedtuple(
    "Row",
    "op n_in n_out weight bias argument index input second third height width channels "
    "kernel_height kernel_width stride_height stride_width pad_top pad_left "
    "out_height out_width out_channels number dilation_height dilation_width",
)
OPS = (  # by code
    *("dense", "activation", "dropout", "conv", "max_pool", "average_pool"),
    *("filter_response_norm", "layer_norm", "add", "embedding", "lstm", "group_norm"),
)


def part(theta, offset, *shape):
    return theta[offset : offset + math.prod(shape)].reshape(shape)


def summed(offset, each):
    """Of gradients (N, ...) per data row: offset, sum (size,), squared norms (N,)."""
    each = each.reshape(len(each), -1)
    return offset, each.sum(axis=0), np.sum(each**2, axis=1)


def dense(row, theta, x):
    y = x @ part(theta, row.weight, row.n_in, row.n_out)
    return y + part(theta, row.bias, row.n_out) if row.bias >= 0 else y


def dense_back(row, theta, x, delta):
    size = np.sum(delta**2, axis=1)
    found = [(row.weight, (x.T @ delta).reshape(-1), np.sum(x**2, axis=1) * size)]
    if row.bias >= 0:
        found.append((row.bias, delta.sum(axis=0), size))
    return delta @ part(theta, row.weight, row.n_in, row.n_out).T, found


def activate(row, theta, x):
    return activation(ACTIVATIONS[row.argument], x)[0]


def activate_back(row, theta, x, delta):
    return delta * activation(ACTIVATIONS[row.argument], x)[1], []


# --- windows -------------------------------------------------------------------------------------


def places(row):
    """Places (i, j) of the window, each with its cells inside the image: tap (r, s), cell (a, b).

    Row by row.
    """
    for i in range(row.out_height):
        for j in range(row.out_width):
            cells = []
            for r in range(row.kernel_height):
                for s in range(row.kernel_width):
                    a = i * row.stride_height + r * row.dilation_height - row.pad_top
                    b = j * row.stride_width + s * row.dilation_width - row.pad_left
                    if 0 <= a < row.height and 0 <= b < row.width:
                        cells.append(((r, s), (a, b)))
            yield i, j, cells


def image(row, x):
    return x.reshape(-1, row.height, row.width, row.channels)  # (N, H, W, C)


def image_out(row, y):
    return y.reshape(-1, row.out_height, row.out_width, row.out_channels)  # (N, H', W', K)


def blocks(row, w):
    """Of a kernel (h, w, C, K): its groups (G, h, w, C / G, K / G), views."""
    c, k = row.channels // row.argument, row.out_channels // row.argument
    return [w[:, :, g * c : (g + 1) * c, g * k : (g + 1) * k] for g in range(row.argument)]


def kernel(row, theta):
    """The kernel (h, w, C, K), 0 from one group to another."""
    w = np.zeros((row.kernel_height, row.kernel_width, row.channels, row.out_channels))
    given = part(theta, row.weight, w.size // row.argument)
    for block, entries in zip(blocks(row, w), np.split(given, row.argument), strict=True):
        block[...] = entries.reshape(block.shape)
    return w


def conv(row, theta, x):
    w, cells_of, y = kernel(row, theta), image(row, x), np.zeros((len(x), row.n_out))
    out = image_out(row, y)
    for i, j, cells in places(row):
        for tap, (a, b) in cells:
            out[:, i, j] += cells_of[:, a, b] @ w[tap]
    if row.bias >= 0:
        out += part(theta, row.bias, row.out_channels)
    return y


def conv_back(row, theta, x, delta):
    w, cells_of, delta_out = kernel(row, theta), image(row, x), image_out(row, delta)
    back, gradient = np.zeros_like(cells_of), np.zeros((len(x), *w.shape))
    for i, j, cells in places(row):
        d = delta_out[:, i, j]  # (N, K)
        for (r, s), (a, b) in cells:
            back[:, a, b] += d @ w[r, s].T
            gradient[:, r, s] += cells_of[:, a, b, :, None] * d[:, None, :]
    each = [np.stack(blocks(row, w)) for w in gradient]
    found = [summed(row.weight, np.stack(each))]
    if row.bias >= 0:
        found.append(summed(row.bias, delta_out.sum(axis=(1, 2))))
    return back.reshape(len(x), -1), found


def pool(row, theta, x):
    cells_of, y = image(row, x), np.zeros((len(x), row.n_out))
    for i, j, cells in places(row):
        window = np.stack([cells_of[:, a, b] for _, (a, b) in cells], axis=1)  # (N, cells, C)
        largest = OPS[row.op] == "max_pool"
        image_out(row, y)[:, i, j] = window.max(axis=1) if largest else window.mean(axis=1)
    return y


def pool_back(row, theta, x, delta):
    cells_of, delta_out = image(row, x), image_out(row, delta)
    back = np.zeros_like(cells_of)
    for i, j, cells in places(row):
        window = np.stack([cells_of[:, a, b] for _, (a, b) in cells], axis=1)  # (N, cells, C)
        first = window.argmax(axis=1)  # (N, C)
        for number, (_, (a, b)) in enumerate(cells):
            share = first == number if OPS[row.op] == "max_pool" else 1 / len(cells)
            back[:, a, b] += share * delta_out[:, i, j]
    return back.reshape(len(x), -1), []


# --- norms: x as (N, places, C) ------------------------------------------------------------------


def at_places(row, x):
    return x.reshape(len(x), -1, row.channels)


def epsilon(row):
    return np.int64(row.number).view(np.float64)


def response(row, theta, x):
    """Normalised input, gamma * it + beta, scale (N, 1, C)."""
    x = at_places(row, x)
    scale = 1 / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + epsilon(row))
    z = part(theta, row.weight, row.channels) * x * scale + part(theta, row.bias, row.channels)
    return x * scale, z, scale


def filter_response_norm(row, theta, x):
    z = response(row, theta, x)[1]
    y = np.maximum(z, part(theta, row.third, row.channels)) if row.third >= 0 else z
    return y.reshape(len(x), -1)


def filter_response_norm_back(row, theta, x, delta):
    unit, z, scale = response(row, theta, x)
    delta, found = at_places(row, delta), []
    if row.third >= 0:
        above = z > part(theta, row.third, row.channels)
        found.append(summed(row.third, np.sum(delta * ~above, axis=1)))
        delta = delta * above
    found.append(summed(row.weight, np.sum(delta * unit, axis=1)))
    found.append(summed(row.bias, np.sum(delta, axis=1)))
    d = delta * part(theta, row.weight, row.channels)
    back = scale * (d - unit * np.mean(d * unit, axis=1, keepdims=True))
    return back.reshape(len(x), -1), found


def standardised(row, x):
    """(x - mean) / sd over the last axis, sd (N, places, 1)."""
    x = at_places(row, x)
    centred = x - np.mean(x, axis=2, keepdims=True)
    sd = np.sqrt(np.mean(centred**2, axis=2, keepdims=True) + epsilon(row))
    return centred / sd, sd


def layer_norm(row, theta, x):
    z = standardised(row, x)[0]
    y = part(theta, row.weight, row.channels) * z + part(theta, row.bias, row.channels)
    return y.reshape(len(x), -1)


def layer_norm_back(row, theta, x, delta):
    (z, sd), delta = standardised(row, x), at_places(row, delta)
    d = delta * part(theta, row.weight, row.channels)
    mean, along = np.mean(d, axis=2, keepdims=True), np.mean(d * z, axis=2, keepdims=True)
    found = [
        summed(row.weight, np.sum(delta * z, axis=1)),
        summed(row.bias, np.sum(delta, axis=1)),
    ]
    return ((d - mean - z * along) / sd).reshape(len(x), -1), found


def grouped(row, x):
    """(x - mean) / sd over places and the channels of a group, sd (N, 1, G, 1)."""
    x = x.reshape(len(x), -1, row.argument, row.channels // row.argument)
    centred = x - np.mean(x, axis=(1, 3), keepdims=True)
    sd = np.sqrt(np.mean(centred**2, axis=(1, 3), keepdims=True) + epsilon(row))
    return centred / sd, sd


def group_norm(row, theta, x):
    z = at_places(row, grouped(row, x)[0])
    y = part(theta, row.weight, row.channels) * z + part(theta, row.bias, row.channels)
    return y.reshape(len(x), -1)


def group_norm_back(row, theta, x, delta):
    (z, sd), delta = grouped(row, x), at_places(row, delta)
    d = (delta * part(theta, row.weight, row.channels)).reshape(z.shape)
    mean, along = (np.mean(a, axis=(1, 3), keepdims=True) for a in (d, d * z))
    found = [
        summed(row.weight, np.sum(delta * at_places(row, z), axis=1)),
        summed(row.bias, np.sum(delta, axis=1)),
    ]
    return ((d - mean - z * along) / sd).reshape(len(x), -1), found


# --- tokens and sequences ------------------------------------------------------------------------


def embedding(row, theta, x):
    w = part(theta, row.weight, row.argument, row.channels)
    return w[x.astype(int)].reshape(len(x), -1)


def embedding_back(row, theta, x, delta):
    gradient = np.zeros((len(x), row.argument, row.channels))
    for n, tokens in enumerate(x.astype(int)):
        for t, token in enumerate(tokens):
            gradient[n, token] += delta[n].reshape(-1, row.channels)[t]
    return np.zeros_like(x), [summed(row.weight, gradient)]


def lstm_arrays(row, theta):
    gates = 4 * row.out_channels
    w = part(theta, row.weight, row.channels, gates)
    return w, part(theta, row.third, row.out_channels, gates), part(theta, row.bias, gates)


def lstm_states(row, theta, x):
    """Per time step: gates i, f, g, o, state c and output h, each (N, units)."""
    (w, u, b), steps = lstm_arrays(row, theta), []
    c = h = np.zeros((len(x), row.out_channels))
    for x_t in np.moveaxis(x.reshape(len(x), row.width, row.channels), 1, 0):
        i, f, g, o = np.split(x_t @ w + h @ u + b, 4, axis=1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        steps.append((i, f, g, o, c, h))
    return steps


def lstm(row, theta, x):
    outputs = [step[-1] for step in lstm_states(row, theta, x)]
    return np.concatenate(outputs, axis=1) if row.argument else outputs[-1]


def lstm_back(row, theta, x, delta):
    (w, u, _), steps = lstm_arrays(row, theta), lstm_states(row, theta, x)
    sequence, back = x.reshape(len(x), row.width, row.channels), []
    nothing = np.zeros((len(x), row.out_channels))
    from_above = [nothing] * (row.width - 1) + [delta]
    if row.argument:
        from_above = np.split(delta, row.width, axis=1)
    each = [np.zeros((len(x), *shape)) for shape in (w.shape, u.shape, w.shape[1:])]
    delta_h = delta_c = nothing
    for t in reversed(range(row.width)):
        i, f, g, o, c, _ = steps[t]
        c_before, h_before = steps[t - 1][4:] if t else (nothing, nothing)
        delta_h = delta_h + from_above[t]
        delta_c = delta_c + delta_h * o * (1 - np.tanh(c) ** 2)
        z = np.concatenate(  # slopes: sigmoid s (1 - s), tanh 1 - t^2
            [
                delta_c * g * i * (1 - i),
                delta_c * c_before * f * (1 - f),
                delta_c * i * (1 - g**2),
                delta_h * np.tanh(c) * o * (1 - o),
            ],
            axis=1,
        )
        each[0] += sequence[:, t, :, None] * z[:, None, :]
        each[1] += h_before[:, :, None] * z[:, None, :]
        each[2] += z
        back.append(z @ w.T)
        delta_h, delta_c = z @ u.T, delta_c * f
    found = [summed(*pair) for pair in zip((row.weight, row.third, row.bias), each, strict=True)]
    return np.concatenate(back[::-1], axis=1), found


FORWARD = {
    "dense": dense,
    "activation": activate,
    "conv": conv,
    "max_pool": pool,
    "average_pool": pool,
    "filter_response_norm": filter_response_norm,
    "layer_norm": layer_norm,
    "embedding": embedding,
    "lstm": lstm,
    "group_norm": group_norm,
}
BACKWARD = {
    "dense": dense_back,
    "activation": activate_back,
    "conv": conv_back,
    "max_pool": pool_back,
    "average_pool": pool_back,
    "filter_response_norm": filter_response_norm_back,
    "layer_norm": layer_norm_back,
    "embedding": embedding_back,
    "lstm": lstm_back,
    "group_norm": group_norm_back,
}
