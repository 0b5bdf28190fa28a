"""The checks of ``python -m ribbit doctor``: NumPy alone, no files, under five seconds together."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from ribbit import _core
from ribbit._arrays import random_numbers
from ribbit._arrays.namespace import device_of, to_host
from ribbit._cli.versions import device_status
from ribbit.models.zoo import mlp
from ribbit.targets.likelihoods import Gaussian
from ribbit.targets.posterior import Posterior
from ribbit.targets.priors import Normal

_PURPOSE = 11  # "replicate" in core/philox_hd.h: numbers that only tests draw
_KNOWN = (  # counter, key, answer: Random123's known answers for philox4x32-10
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@dataclass(frozen=True)
class Check:
    """Outcome of one check."""

    name: str
    passed: bool
    detail: str  # the figure and its bound, or the error
    seconds: float


def run_checks() -> list[Check]:
    """Run all checks; an exception is a failed check, not an error."""
    checks: list[tuple[str, Callable[[], tuple[bool, str]]]] = [
        ("philox known answers", check_philox),
        ("moments of the normals", check_normals),
        ("gradient", check_gradient),
        ("leapfrog runs backwards", check_leapfrog),
        ("HMC on a known posterior", check_hmc),
        ("threads change nothing", check_threads),
    ]
    for isa in _core.available_isas():
        if isa != _core.isa():
            checks.append((f"instruction set {isa}", lambda isa=isa: check_isa(isa)))  # type: ignore[misc]
    missing = device_status()
    if not missing:
        checks.append(("device", check_device))
    return [_run(name, function) for name, function in checks]


def check_philox() -> tuple[bool, str]:
    """Philox4x32-10 gives the published answers (Salmon et al. 2011, Random123)."""
    for counter, key, answer in _KNOWN:
        got = _core.philox4x32(np.array([counter], np.uint32), np.array(key, np.uint32))
        if tuple(got[0].tolist()) != answer:
            return False, f"counter {counter}: {[hex(w) for w in got[0].tolist()]}"
    return True, f"{len(_KNOWN)} of {len(_KNOWN)}"


def check_normals() -> tuple[bool, str]:
    """Mean, variance and fourth moment of 4e5 normals are within 6 standard errors."""
    z = _normals(4, 100_000).reshape(-1)
    n = z.size
    errors = (
        z.mean() * np.sqrt(n),
        (np.mean(z**2) - 1.0) * np.sqrt(n / 2.0),
        (np.mean(z**4) - 3.0) * np.sqrt(n / 96.0),
    )
    worst = float(max(map(abs, errors)))
    return worst < 6.0, f"worst {worst:.1f} standard errors (< 6)"


def check_gradient() -> tuple[bool, str]:
    """Compare the gradient of a small network with central differences, in float64."""
    target, theta = _network()
    gradient = target.value_and_grad(theta)[1]
    h = 1e-5
    shifts = h * np.eye(target.dim)
    up, down = (target.value_and_grad(theta[0] + sign * shifts)[0] for sign in (1.0, -1.0))
    error = float(np.abs((up - down) / (2.0 * h) - gradient[0]).max() / np.abs(gradient).max())
    return error < 1e-7, f"relative error {error:.1e} (< 1e-7)"


def check_leapfrog() -> tuple[bool, str]:
    """Turn the momentum of a trajectory round: it comes back, in float64."""
    target, theta = _network()
    momentum = _normals(len(theta), target.dim)
    steps = np.full(len(theta), 200, dtype=np.int64)
    size = np.full(len(theta), 2e-3)
    gradient = target.value_and_grad(theta)[1]
    q, p, _, g = target.leapfrog(theta, momentum, gradient, size, steps)
    moved = float(np.abs(q - theta).max())
    back = target.leapfrog(q, -p, g, size, steps)[0]
    error = float(np.abs(back - theta).max())
    return error < 1e-10 and moved > 0.1, f"error {error:.1e} (< 1e-10) after moving {moved:.2f}"


def check_hmc() -> tuple[bool, str]:
    """HMC finds the mean and standard deviation of a linear regression in closed form."""
    # 4 chains x 250 draws; the bounds, 0.25 sd and 25 %, are about 7 standard errors away.
    from ribbit.kernels import HMC

    x, noise = _normals(20, 3), 0.5
    y = x @ np.array([1.0, -0.5, 0.25]) + noise * _normals(20, 4)[:, 3]
    model = mlp(3, (), 1)
    target = Posterior(model, x, y, prior=Normal(1.0), likelihood=Gaussian(noise), dtype=np.float64)
    draws = HMC(target, step_size=0.05, num_leapfrog_steps=9).sample(
        250, warmup=20, chains=4, seed=1, progress=False
    )
    design = np.concatenate([x, np.ones((20, 1))], axis=1)  # flat order: weights, then the bias
    covariance = np.linalg.inv(design.T @ design / noise**2 + np.eye(4))
    mean = covariance @ design.T @ y / noise**2
    sd = np.sqrt(np.diag(covariance))
    flat = draws.positions.reshape(-1, 4)
    off = float(np.abs((flat.mean(axis=0) - mean) / sd).max())
    ratio = float(np.abs(flat.std(axis=0) / sd - 1.0).max())
    detail = f"mean {off:.2f} sd off (< 0.25), sd {100 * ratio:.0f} % off (< 25 %)"
    return off < 0.25 and ratio < 0.25, detail


def check_threads() -> tuple[bool, str]:
    """One and two threads give the same bits."""
    before = _core.num_threads()
    digests = []
    try:
        for n in (1, 2):
            _core.set_num_threads(n)
            digests.append(_trajectory_digest())
    finally:
        _core.set_num_threads(before)
    same = digests[0] == digests[1]
    return same, f"1 and 2 threads: {'bit-identical' if same else 'different numbers'}"


def check_isa(isa: str) -> tuple[bool, str]:
    """Another instruction set passes the numerical checks in a process of its own."""
    if not sys.executable:
        return True, "skipped: no Python executable to start"
    code = "from ribbit._cli.doctor import report_core; report_core()"
    environment = {**os.environ, "RIBBIT_ISA": isa}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.split("\n")
    if done.returncode != 0 or len(lines) < 3:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        return False, f"exit code {done.returncode}: {last}"
    if lines[0] != isa:
        return False, f"expected to run {isa}, ran {lines[0]}"
    if lines[1] != _normals_digest():
        return False, "other normals than this instruction set"
    passed = lines[2] == "ok"
    return passed, "the same normals; gradient, leapfrog" if passed else lines[2]


def check_device(xp: ModuleType | None = None) -> tuple[bool, str]:
    """Compare bits of normals and a gradient with the CPU's; `xp`: CuPy when absent."""
    xp = importlib.import_module("cupy") if xp is None else xp
    device = device_of(xp, "doctor")
    if device is None:
        return False, f"{xp.__name__} is no device's"
    chains = np.arange(2, dtype=np.uint32)
    normals = random_numbers.normal(
        xp, (2, 1001), np.dtype(np.float64), seed=2021, step=0, chains=chains, purpose=_PURPOSE
    )
    if to_host(normals).tobytes() != _normals(2, 1001).tobytes():
        return False, "other normals than the CPU's"
    target, theta = _network()
    data = (xp.asarray(np.asarray(a)) for a in (target.x, target.y))
    there = Posterior(
        target.model, *data, prior=target.prior, likelihood=target.likelihood, dtype=np.float64
    )
    right = target.value_and_grad(theta)[1]
    found = to_host(there.value_and_grad(xp.asarray(theta))[1])
    error = float(np.abs(found - right).max() / np.abs(right).max())
    return error < 1e-10, f"the CPU's normals; gradient, relative error {error:.1e} < 1e-10"


def report_core() -> None:
    """Print instruction set, digest of the normals and the first failure, for :func:`check_isa`."""
    print(_core.isa())
    print(_normals_digest())
    for function in (check_philox, check_normals, check_gradient, check_leapfrog):
        passed, detail = function()
        if not passed:
            print(f"{function.__name__}: {detail}")
            return
    print("ok")


def _run(name: str, function: Callable[[], tuple[bool, str]]) -> Check:
    begin = time.perf_counter()
    try:
        passed, detail = function()
    except Exception as error:  # a broken installation may fail in any way
        passed, detail = False, f"{type(error).__name__}: {error}"
    return Check(name, bool(passed), detail, time.perf_counter() - begin)


def _normals(chains: int, n: int) -> npt.NDArray[np.float64]:
    result: npt.NDArray[np.float64] = random_numbers.normal(
        np,
        (chains, n),
        np.dtype(np.float64),
        seed=2021,
        step=0,
        chains=np.arange(chains, dtype=np.uint32),
        purpose=_PURPOSE,
    )
    return result


def _normals_digest() -> str:
    single = np.empty((2, 1001), dtype=np.float32)
    _core.fill_normal(single, 2021, 0, np.arange(2, dtype=np.uint32), _PURPOSE, 0)
    return hashlib.sha256(_normals(3, 1001).tobytes() + single.tobytes()).hexdigest()


def _network() -> tuple[Posterior, npt.NDArray[np.float64]]:
    """Make a 3-7-1 network with learned noise on 70 rows, and two positions."""
    x = _normals(70, 4)
    target = Posterior(
        mlp(3, (7,), 1, activation="tanh"),
        x[:, :3],
        np.sin(x[:, 0]) + 0.1 * x[:, 3],
        prior=Normal(1.0),
        likelihood=Gaussian(),
        dtype=np.float64,
    )
    return target, 0.3 * _normals(2, target.dim)


def _trajectory_digest() -> str:
    target, theta = _network()
    gradient = target.value_and_grad(theta)[1]
    momentum = _normals(2, target.dim)
    steps = np.array([30, 20], dtype=np.int64)
    end = target.leapfrog(theta, momentum, gradient, np.full(2, 1e-2), steps)
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in end)).hexdigest()
