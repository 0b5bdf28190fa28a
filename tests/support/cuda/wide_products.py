"""Wide products by name, launched on matrices of any sizes: on tensor cores or not."""

import numpy as np

from ribbit._arrays.device import STATIC_SHARED, pack
from ribbit._arrays.kernel_sources import HEADERS
from tests.support.cuda.compiler import PHASES, digest
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.thread_orders import compiler, in_every_order

# Rows, columns, terms: less than a tile, whole tiles, one more, and tails of terms; slices.
SHAPES = [
    (40, 36, 33, 1),
    (128, 128, 48, 1),
    (129, 132, 100, 3),
    (200, 68, 64, 2),
    (132, 200, 40, 1),
    (65, 63, 50, 1),
    (257, 81, 17, 1),
]
CHAINS = 2
_FOUND: dict = {}  # what products of small tiles made of some numbers: each judges a dozen others
GAP = 4  # numbers between matrices


def split(name):
    """Operands, sink and numbers of a product's name."""
    inner, depth, parts, part = name.partition("<")[2][:-1], 0, [], ""
    for letter in inner:
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    parts = [*parts, part][name.startswith("Product<") :]  # of which the first is the scalar
    return parts[:3], [int(number) for number in parts[3:]]


def tile_of(name):
    """Rows and columns of a product's tile."""
    sizes = split(name)[1]
    return sizes[1:3] if name.startswith(("TensorProduct", "WideTensor")) else sizes[:2]


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def fitting(name, shape):
    """Sizes near a shape that fit a kernel's copies of four; one slice but for gradients."""
    (left, right, sink), sizes = split(name)
    m, n, k, slices = shape
    vector_a, vector_b, vector_sink = sizes[-3:]
    if "true" in left:
        m = -(-m // vector_a) * vector_a
    else:
        k = -(-k // vector_a) * vector_a
    if "true" in right:
        k = -(-k // vector_b) * vector_b
    else:
        n = -(-n // vector_b) * vector_b
    four = 4 if vector_sink > 1 else 1
    return m, -(-n // four) * four, k, slices if "GradientSink" in sink else 1


def launched(rng, name, others, shape):
    """What a wide product and others make of the same numbers, by rows of 4 or not."""
    m, n, k, slices = shape
    (left, right, sink), sizes = split(name)
    aligned = sizes[-3:] != [1, 1, 1]
    ones = left.startswith("WithOnes")
    lay, other = (k, m) if "true" in left else (m, k), (n, k) if "true" in right else (k, n)
    strides = [-(-size[1] // 4) * 4 if aligned else size[1] + 1 for size in (lay, other)]
    held = [
        numbers(rng, CHAINS, size[0] * stride + GAP)
        for size, stride in zip((lay, other), strides, strict=True)
    ]
    bias, slope = numbers(rng, CHAINS, n + n % 4), numbers(rng, CHAINS, (m + 1) * n)
    above = numbers(rng, CHAINS, (m + 1) * n)  # delta of a value above

    def run(kernel):
        def launch(device):
            value = xp.asarray(np.full((slices, CHAINS, (m + 1) * n), 7.0, np.float32))
            extra = xp.asarray(np.full((CHAINS, (m + 1) * n), 7.0, np.float32))
            given = [xp.asarray(array) for array in held]
            fields = [
                *(given[0], held[0].shape[1], strides[0]),
                *([m] if ones else []),
                *(given[1], held[1].shape[1], strides[1]),
            ]
            stride, rows = (m + 1) * n, m + ones
            if sink.startswith("ActivationSink"):
                fields += [xp.asarray(bias), bias.shape[1], value, extra, stride, n]
            elif sink.startswith("DeltaSink"):
                first = (xp.asarray(above), stride, 1) if aligned else (value, stride, 0)
                fields += [value, xp.asarray(slope), stride, n, *first]
            else:
                fields += [value, stride, CHAINS * stride, 0, m * n, m, n, 1]
            tile = tile_of(kernel)
            cut = m if kernel.startswith("Wide") else rows
            grid = (-(-cut // tile[0]), -(-n // tile[1]), CHAINS * slices)
            fields += [rows, n, k, slices, -(-k // slices)]
            memory = compiler(PHASES, HEADERS)([kernel])[kernel](None, 1, 0, 0, 0)
            shared = memory if memory > STATIC_SHARED else 0
            device.kernels([kernel])[kernel](grid, pack(device, fields), shared)
            return [value.get(), extra.get()]

        return in_every_order(launch)

    given = digest(*(array.tobytes().hex() for array in (*held, bias, slope, above)))
    for one in others:
        if (one, shape, aligned, given) not in _FOUND:
            _FOUND[one, shape, aligned, given] = run(one)
    return [run(name), *(_FOUND[one, shape, aligned, given] for one in others)]
