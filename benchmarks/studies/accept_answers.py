"""Answers of a device that can be told right from wrong: against the CPU, and bit by bit.

Each answer is a function of an array library: NumPy for the CPU's own code, a device's, or the
stand-in that runs the device's kernels on the CPU. Device and stand-in must agree in every bit, but
for tensor cores, whose sums nobody documents, and both with the CPU within what float32 rounds: a
gradient is held against the CPU's in float64, beside which the CPU's own float32 errs as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ribbit as rb
from benchmarks.studies.gpu_rows import posterior
from ribbit.targets.likelihoods import Likelihood

__all__ = ["ANSWERS", "TOLERANCE", "answers", "carry", "compare"]

Arrays = dict[str, npt.NDArray[Any]]

# Of the largest entry; TF32 has 10 bits. Norms with a threshold have kinks, which rounding takes an
# element to the other side of: the CPU's float32 does so in one channel of this ResNet-20.
TOLERANCE = {"float32": 2e-5, "kinks": 1e-2, "mixed": 2e-2, "tf32": 5e-2}


def _host(array: Any) -> npt.NDArray[Any]:
    return np.asarray(array.get() if hasattr(array, "get") else array)


def _gradient(
    model: Callable[[], rb.Model], rows: int, likelihood: Likelihood, precision: str = "float32"
) -> Callable[..., Arrays]:
    def answer(xp: Any, exact: bool = False) -> Arrays:
        used = "float64" if exact else "float32" if xp is np else precision
        target = posterior(xp, model(), rows, likelihood, used)
        start = posterior(np, model(), rows, likelihood).init(1, 2)
        theta = xp.asarray(start.astype(np.float64) if exact else start)
        terms, grad = target.terms_and_grad(theta)
        return {"terms": _host(terms), "grad": _host(grad)}

    return answer


def _weights(xp: Any, exact: bool = False) -> Arrays:
    mean = xp.asarray(np.linspace(-1.0, 1.0, 1_001).astype(np.float32))
    rho = xp.asarray(np.linspace(-4.0, 2.0, 1_001).astype(np.float32))
    return {"weights": _host(rb.reparameterize(mean, rho, 5, seed=3))}


def _leapfrog(xp: Any, exact: bool = False) -> Arrays:
    target = posterior(xp, rb.mlp(4, (17,), 1), 40, rb.Gaussian(0.3))
    theta = xp.asarray(posterior(np, rb.mlp(4, (17,), 1), 40, rb.Gaussian(0.3)).init(0, 3))
    momentum = xp.zeros_like(theta)
    _, grad = target.terms_and_grad(theta)
    sizes = xp.asarray(np.full(3, 1e-3))
    q, p, _, _ = target.leapfrog(theta, momentum, grad, sizes, np.array([3, 5, 1]))
    return {"position": _host(q), "momentum": _host(p)}


def _moments(xp: Any, exact: bool = False) -> Arrays:
    model = rb.mlp(20, (33,), 4, activation="relu")
    target = posterior(xp, model, 50, rb.Categorical())
    theta = xp.asarray(np.stack([model.init(seed) for seed in range(4)])[None])
    sums, _ = target.predictive_moments(theta, target.x)
    return {str(i): _host(part) for i, part in enumerate(sums)}


def _images() -> rb.Model:
    return rb.Model(
        [rb.Conv2D(18, 3, padding="same"), rb.Activation("silu"), rb.Flatten(), rb.Dense(3)],
        input_shape=(6, 6, 2),
    )


ANSWERS: dict[str, tuple[str, Callable[..., Arrays]]] = {
    "small": ("float32", _gradient(lambda: rb.mlp(8, (50, 50), 1), 100, rb.Gaussian(0.1))),
    "weights": ("float32", _weights),
    "wide": ("float32", _gradient(lambda: rb.mlp(40, (130, 130), 3), 300, rb.Categorical())),
    "leapfrog": ("float32", _leapfrog),
    "moments": ("float32", _moments),
    "images": ("float32", _gradient(_images, 9, rb.Categorical())),
    "resnet20": ("kinks", _gradient(lambda: rb.resnet20_frn(10), 2, rb.Categorical())),
    "mixed": (
        "mixed",
        _gradient(lambda: rb.mlp(40, (130, 130), 3), 70, rb.Categorical(), "mixed"),
    ),
    "tf32": ("tf32", _gradient(lambda: rb.mlp(40, (130, 130), 3), 70, rb.Categorical(), "tf32")),
}


def answers(name: str, xp: Any, *, exact: bool = False) -> Arrays:
    """Return the arrays of an answer, on the host; `exact`: in float64 where it is a gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ANSWERS[name][1](xp, exact)


def compare(name: str, found: Arrays, carried: Arrays | None) -> dict[str, Any]:
    """Return the largest error against the CPU, and how many bits differ from those carried.

    Raises
    ------
    AssertionError
        For an error beyond the tolerance, or a number that is not finite.
    """
    exact, rounded = answers(name, np, exact=True), answers(name, np)
    worst = usual = 0.0
    for key, array in found.items():
        assert np.isfinite(array).all(), f"{key} is not finite"
        scale = float(np.abs(exact[key]).max()) or 1.0
        worst = max(worst, float(np.abs(array - exact[key]).max()) / scale)
        usual = max(usual, float(np.abs(rounded[key] - exact[key]).max()) / scale)
    numbers: dict[str, Any] = {"error": worst, "the CPU's error": usual}
    if carried is not None:
        differ = 0
        for key, array in found.items():
            ours = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
            theirs = np.frombuffer(np.ascontiguousarray(carried[key]).tobytes(), np.uint8)
            differ += int((ours != theirs).sum())
        numbers["bytes that differ"] = differ
        numbers["bytes"] = sum(array.nbytes for array in found.values())
    tolerance = TOLERANCE[ANSWERS[name][0]]
    assert worst <= tolerance, f"an error of {worst:.2e} of the largest entry, allowed {tolerance}"
    return numbers


def carry(path: Path, names: tuple[str, ...] = tuple(ANSWERS)) -> int:
    """Write what the device's kernels give on the CPU; return how many arrays."""
    from tests.support.cuda import cpu_device

    xp = cpu_device.register()
    arrays = {
        f"{name}/{key}": np.ascontiguousarray(array)
        for name in names
        for key, array in answers(name, xp).items()
    }
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return len(arrays)
