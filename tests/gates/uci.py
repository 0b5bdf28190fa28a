"""The splits of the UCI gates."""

import numpy as np


def load(folder, name, split):
    """Standardised training and test sets, raw test y, and the scale of y."""
    with np.load(folder / "uci" / f"{name}.npz") as file:
        x, y = file["X"], file["y"]
        train, test = file["train"][split], file["test"][split]
    centre, width = x[train].mean(axis=0), x[train].std(axis=0)
    x = (x - centre) / np.where(width > 0, width, 1)
    y_centre, y_width = y[train].mean(), y[train].std()
    z = (y - y_centre) / y_width
    return x[train], z[train], x[test], z[test], float(y_width)
