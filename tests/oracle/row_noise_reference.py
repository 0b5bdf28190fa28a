"""The oracle of noise for each row (local reparameterisation, flipout), networks of every layer.

It draws each row's weights (flipout) or each place's activations (local) from their addresses.
Signs belong to a row's channels, the same at all places of its image; local noise is independent at
each place; parameters of layers other than dense ones and convolutions are drawn once for all rows.
"""

import math

import numpy as np

from tests.oracle.op_reference import FORWARD, OPS, Row, image, image_out, kernel, part, places
from tests.oracle.reference import WEIGHT_NOISE, log_likelihood_terms, normal, words

ROW_NOISE, SIGNS = 15, 16
REPARAM, LOCAL, FLIPOUT = ESTIMATORS = ("reparam", "local", "flipout")


# --- addresses -----------------------------------------------------------------------------------


def row_normals(rows, units, **where):
    """Normals (n, units): element row * 4 ceil(units / 4) + unit."""
    width = 4 * -(-units // 4)
    z = normal(width * (max(rows) + 1), **where).reshape(-1, width)
    return z[rows, :units]


def row_signs(rows, units, **where):
    """Signs (n, units): bit unit % 32 of element row * 4 ceil(units / 128) + unit / 32."""
    blocks = -(-units // 128)
    number = (np.asarray(rows)[:, None] * blocks + np.arange(blocks)).reshape(-1)
    found = words(number, **where).astype(np.int64).reshape(len(rows), -1)
    unit = np.arange(units)
    return 1.0 - 2.0 * (found[:, unit // 32] >> (unit % 32) & 1)


PAIRED = ("dense", "conv")


# --- the oracle ----------------------------------------------------------------------------------


def through(row, x, weights, bias):
    """Outputs (n, size) of a dense layer or a convolution; weights (1 or n, ...), one per row."""
    y = np.zeros((len(x), row.n_out))
    if OPS[row.op] == "dense":
        y += np.einsum("ni,nio->no", x, np.broadcast_to(weights, (len(x), *weights.shape[1:])))
    else:
        cells_of, out = image(row, x), image_out(row, y)
        each = np.broadcast_to(weights, (len(x), *weights.shape[1:]))
        for i, j, cells in places(row):
            for (r, s), (a, b) in cells:
                out[:, i, j] += np.einsum("nc,nck->nk", cells_of[:, a, b], each[:, r, s])
    if bias is not None:
        y.reshape(len(x), -1, bias.size)[...] += bias
    return y


def arrays(row, theta):
    """Weight, with an axis of one in front, and bias or None."""
    if OPS[row.op] == "dense":
        weight, units = part(theta, row.weight, 1, row.n_in, row.n_out), row.n_out
    else:
        weight, units = kernel(row, theta)[None], row.out_channels
    return weight, part(theta, row.bias, units) if row.bias >= 0 else None


def channels(row):
    dense = OPS[row.op] == "dense"
    return (row.n_in, row.n_out) if dense else (row.channels, row.out_channels)


def noisy(row, x, rows, mean, scale, e, estimator, where):
    """Outputs (n, size) of a layer with noise for each row."""
    (m, b), (s, sb) = arrays(row, mean), arrays(row, scale)
    if estimator == LOCAL:
        variance = through(row, x**2, s**2, None if sb is None else sb**2)
        z = row_normals(rows, row.n_out, purpose=ROW_NOISE, layer=2 * row.index, **where)
        return through(row, x, m, b) + np.sqrt(variance) * z
    drawn, bias = arrays(row, mean + scale * e)  # biases: once for all rows
    if estimator == REPARAM:
        return through(row, x, drawn, bias)
    into, out = channels(row)
    inward = row_signs(rows, into, purpose=SIGNS, layer=2 * row.index, **where)
    outward = row_signs(rows, out, purpose=SIGNS, layer=2 * row.index + 1, **where)
    shape = (len(rows), *(1,) * (m.ndim - 3))
    flips = inward.reshape(*shape, into, 1) * outward.reshape(*shape, 1, out)
    return through(row, x, m + (drawn - m) * flips, bias)


def outputs(made, mean, scale, rows, estimator, **where):
    """Noisy outputs (n, K) of the rows, and the drawn parameters (P,)."""
    e = normal(mean.size, purpose=WEIGHT_NOISE, **where)
    values = [made.reference.x[rows]]
    for entries in made.model.table:
        row = Row(*map(int, entries))
        name, x = OPS[row.op], values[row.input]
        if name == "dropout":  # of MC dropout alone
            values.append(x)
        elif name == "add":
            values.append(x + values[row.second])
        elif name in PAIRED:
            values.append(noisy(row, x, rows, mean, scale, e, estimator, where))
        else:
            values.append(FORWARD[name](row, mean + scale * e, x))
    return values[-1], mean + scale * e


def bound(made, state, rows, estimator, *, samples, weight, closed, seed, step):
    """What a step ascends, and its records; state: means and rhos (2 P,)."""
    target, dim = made.reference, state.size // 2
    mean, scale = state[:dim], np.logaddexp(0.0, state[dim:])
    ll = log_prior = 0.0
    for s in range(samples):
        f, theta = outputs(made, mean, scale, rows, estimator, seed=seed, step=step, chain=s)
        y = np.asarray(target.y, float)[rows]
        noise = theta[-1] if target.noises == 1 else theta[-target.noises :], target.shape
        terms = log_likelihood_terms(target.kind, target.scale, f, y, *noise)[0]
        ll += math.fsum(terms) / samples
        log_prior += target.log_prior(theta)[0] / samples
    if closed:
        sd = np.repeat(target.prior[:, 3], target.prior[:, 1].astype(int))
        squares = (mean**2 + scale**2) / sd**2
        log_prior = np.sum(-0.5 * squares - np.log(sd) - 0.5 * np.log(2 * np.pi))
    log_q = -np.sum(np.log(scale)) - dim * 0.5 * np.log(2 * np.pi * np.e)
    t, tl = target.temperature, target.likelihood_temperature
    return ll / (t * tl) - weight * (log_q - log_prior / t), (ll, log_q, log_prior)
