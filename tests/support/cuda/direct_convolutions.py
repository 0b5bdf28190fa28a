"""What direct convolutions of 3 x 3 should make, and the blocks that make it."""

import numpy as np


def parts(name):
    """Height, width, channels and outs, and whether the weights are turned."""
    numbers = name.removeprefix("DirectConvolution<").split(", ")
    return *(int(n) for n in numbers[:4]), numbers[4] == "true"


def expected(x, weights):
    """Sums (C, rows, height, width, outs) by (C, 3, 3, channels, outs), and their bound."""
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1), (0, 0)])
    height, width = x.shape[2:4]
    sums = most = 0.0
    for y in range(3):
        for left in range(3):
            cells = padded[:, :, y : y + height, left : left + width]
            sums = sums + np.einsum("crhwi,cio->crhwo", cells, weights[:, y, left])
            most = most + np.einsum("crhwi,cio->crhwo", abs(cells), abs(weights[:, y, left]))
    return sums, most


def tile(height, width, outs):
    """Outs, lines and shared bytes of a block."""
    across = 64 if outs % 64 == 0 else 32 if outs % 32 == 0 else 16
    down = 256 // (across // 8) // (width // 8)
    pitch = ((width + 2) * 16 + (width // 8 + 1) * 4 + 15) // 32 * 32 + 16
    part = min(down, height)
    return across, down, 4 * (down // part * (part + 2) * pitch + 9 * 16 * (across + 4))
