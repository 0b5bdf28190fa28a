"""Figures of the examples on large networks, for ``python -m tools.results examples``.

The images are Fashion-MNIST, from the folder RIBBIT_FASHION_MNIST or Debian's package. Without them
the tables on images are left out. The images out of distribution are MNIST's.
"""

import importlib
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import ribbit as rb
from tests.support.gates import Table
from tests.support.paths import EXAMPLES


def example(name):
    """Import a script of examples/."""
    sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


ROWS = 3_000  # training images: minutes instead of the quarter of an hour that 10,000 take


def image_tables(folder, data, pictures):
    fashion = Table(
        f"Fashion-MNIST, {ROWS:,} images, LeNet-5 (examples/fashion_mnist.py --rows {ROWS})",
        ("method", "error", "negative log likelihood, nats", "calibration error (ECE)"),
        note="Predictions for 10,000 test images. The short HMC run starts at a draw of SGLD.",
    )
    for name, row in example("fashion_mnist").main(pictures, data, rows=ROWS).items():
        fashion.add(name, f"{row['error']:.2%}", f"{row['nll']:.3f}", f"{row['ece']:.3f}")
    strange = Table(
        "Fashion-MNIST compared with MNIST (examples/out_of_distribution.py)",
        (
            "method",
            "AUROC of the entropy",
            "AUROC of the mutual information",
            "error on Fashion-MNIST",
        ),
        note="2,000 test images of each set. The networks are trained on Fashion-MNIST, so the "
        "digits of MNIST are out of distribution. AUROC says how well a score separates the two "
        "sets.",
    )
    other = folder / "mnist" / "mnist_small.npz"
    for name, row in example("out_of_distribution").main(pictures, data, other, rows=ROWS).items():
        strange.add(
            name,
            f"{row['entropy']:.3f}",
            f"{row['mutual_information']:.3f}",
            f"{row['error']:.2%}",
        )
    shift = example("covariate_shift")
    noise = Table(
        "Fashion-MNIST under noise (examples/covariate_shift.py)",
        ("method", "figure", *(f"sd {s:g}" for s in shift.STRENGTHS)),
        note="2,000 test images. The columns are sds of the noise, in units where white is 1.",
    )
    for name, columns in shift.main(pictures, data, rows=ROWS).items():
        for metric, values in columns.items():
            noise.add(name, metric, *(f"{v:.3f}" for v in values))
    return [fashion, strange, noise]


def text_table(pictures):
    table = Table(
        "Generated sentiments, CNN-LSTM (examples/cnn_lstm_text.py)",
        ("method", "accuracy", "negative log likelihood, nats", "calibration error (ECE)"),
        note="8,000 sequences of 40 tokens, 2,000 of them for the test. Best possible: the "
        "probabilities that generated the labels.",
    )
    for name, row in example("cnn_lstm_text").main(pictures).items():
        table.add(name, f"{row['accuracy']:.3f}", f"{row['nll']:.3f}", f"{row['ece']:.3f}")
    return table


def resnet_table(found):
    """Return the table of what the example found; it takes an hour on two cores."""
    table = Table(
        "HMC on ResNet-20-FRN, 100 generated images of 32x32 (examples/resnet_hmc.py)",
        ("step size", "trajectories", "mean acceptance", "mean and largest energy error, nats"),
        note="One chain starts at trained weights, and five trajectories at the smallest step size "
        "are its warmup. Then it runs trajectories of 200 leapfrog steps at each step size of the "
        "grid 1e-5 * 2^k, in rising order. The largest step size with a mean acceptance above 0.6: "
        f"{found['largest_step_size']:.3g}.",
    )
    for row in found["chains"]:
        errors = [abs(e) for e in row["energy_error"]]
        mean, most = sum(errors) / len(errors), max(errors)
        cells = f"{row['step_size']:.3g}", len(errors), f"{row['acceptance']:.3f}"
        table.add(*cells, f"{mean:.3g}, {most:.3g}")
    return table


def order_table():
    """Return the orders with and without thresholds; gate 2 +- 0.05 without, at small steps."""
    script = example("resnet_hmc")
    x, y = script.blobs(20, 8)
    table = Table(
        "Order of the energy error, ResNet-20, 20 images of 8x8, float64",
        ("thresholds", "step sizes", "mean energy error, nats", "order"),
        note="Each row has four trajectories of the same length. The thresholds max(y, tau) are "
        "kinks, and a step across a kink has an error of first order.",
    )
    frn = rb.resnet20_frn(10, input_shape=(8, 8, 3))
    smooth = rb.Model(script.smooth(frn.layers), input_shape=(8, 8, 3))
    for name, model in (("none", smooth), ("learned", frn)):
        single, double = (
            rb.Posterior(model, x, y, prior=script.PRIOR, likelihood=rb.Categorical(), dtype=d)
            for d in (np.float32, np.float64)
        )
        ensemble = rb.DeepEnsemble(single, members=1, batch_size=None)
        start = ensemble.fit(20, seed=0, progress=False).theta[0].astype(np.float64)
        for first in (2e-5, 3.2e-4):
            sizes = tuple(first * 2**k for k in range(5))
            law = script.order(double, start, sizes, 32)
            holds = name != "none" or first > 1e-4 or abs(law["order"] - 2) < 0.05
            steps, errors = ([f"{v:.2g}" for v in law[k]] for k in ("step_size", "energy_error"))
            table.add(name, ", ".join(steps), ", ".join(errors), f"{law['order']:.2f}", holds=holds)
    return table


def results(folder):
    tables = []
    with tempfile.TemporaryDirectory() as pictures:
        data = Path(os.environ.get("RIBBIT_FASHION_MNIST", example("fashion_mnist").FASHION))
        if data.is_dir():
            tables += image_tables(folder, data, pictures)
        else:
            print(f"examples on images left out: no {data} (set RIBBIT_FASHION_MNIST)")
        tables.append(text_table(pictures))
        tables += [resnet_table(example("resnet_hmc").main(pictures)), order_table()]
    return tables
