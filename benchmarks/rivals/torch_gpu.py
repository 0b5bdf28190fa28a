"""PyTorch on a GPU: the rows of the GPU table in its best form.

Products are float32 without TF32 but where the row asks for it.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.harness.device_events import calls_of
from benchmarks.rivals.torch_networks import Net, native
from benchmarks.workloads import networks

_Make = Callable[[str, bool], Callable[[], Any]]

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True  # the fastest of its convolutions


def times(call: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of a call between device events, several at a time, after a warm-up that compiles.

    As it is, or replayed as a graph where it can be captured: whichever is faster.
    """
    for _ in range(3):
        call()
    found = _seconds(call, repeats)
    replay = _replay(call)
    if replay is None:
        return found
    return min(found, _seconds(replay, repeats), key=statistics.median)


def _seconds(call: Callable[[], Any], repeats: int) -> list[float]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def seconds(many: int) -> float:
        begin.record()
        for _ in range(many):
            call()
        end.record()
        end.synchronize()
        return float(1e-3 * begin.elapsed_time(end))

    many = calls_of(seconds(1))
    return [seconds(many) / many for _ in range(repeats)]


def _replay(call: Callable[[], Any]) -> Callable[[], Any] | None:
    """Return what replays a call, None for one that cannot be captured."""
    before, own, graph = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    try:
        own.wait_stream(before)
        with torch.cuda.stream(own):
            call()  # what a stream needs once
        with torch.cuda.graph(graph, stream=own):
            call()
    except RuntimeError:
        return None
    finally:  # a capture that fails may leave its stream behind
        torch.cuda.set_stream(before)
        torch.cuda.synchronize()
    return graph.replay


def prepare(name: str, device: str = "cuda", small: bool = False) -> Callable[[], Any] | None:
    """Return what one call of a row does, None for a row that has no rival here."""
    make = _ROWS.get(name)
    return None if make is None else make(device, small)


def _sampling(device: str, small: bool) -> Callable[[], Any]:
    samples, dim = (3, 1_000) if small else (1_000, 478_410)
    mean, rho = torch.zeros(dim, device=device), torch.full((dim,), -3.0, device=device)

    @torch.compile
    def draw(mean: Any, rho: Any) -> Any:
        return mean + F.softplus(rho) * torch.randn(samples, dim, device=device)

    return lambda: draw(mean, rho)


def _forward(device: str, small: bool) -> Callable[[], Any]:
    samples, rows = (3, 40) if small else (1_000, 10_000)
    x = torch.randn(rows, 784, device=device)
    sizes = (784, 400, 400, 10)
    weights = [
        (
            torch.randn(samples, a, b, device=device) / a**0.5,
            torch.zeros(samples, 1, b, device=device),
        )
        for a, b in itertools.pairwise(sizes)
    ]

    @torch.compile
    def moments(some: Any, x: Any) -> Any:
        h = x.expand(some[0][0].shape[0], *x.shape)
        for i, (w, b) in enumerate(some):
            h = torch.baddbmm(b, h, w)
            h = F.relu(h) if i + 1 < len(some) else torch.softmax(h, -1)
        return h.sum(0), (h * h).sum(0)

    def run() -> Any:
        total = None
        for s in range(0, samples, 50):  # what fits
            part = moments([(w[s : s + 50], b[s : s + 50]) for w, b in weights], x)
            total = (
                part if total is None else tuple(a + c for a, c in zip(total, part, strict=True))
            )
        return total

    return run


def _update(device: str, small: bool) -> Callable[[], Any]:
    shape = (2, 1_000) if small else (100, 478_410)
    q, p, g = (torch.zeros(shape, device=device) for _ in range(3))

    @torch.compile
    def step(q: Any, p: Any, g: Any) -> Any:
        p.add_(g, alpha=1e-4)
        q.add_(p, alpha=1e-4)

    return lambda: step(q, p, g)


def _leapfrogs(grad: Callable[..., Any], q: list[Any], number: int) -> Callable[[], Any]:
    """Make `number` steps from q with momenta of 0, each compiled."""
    p = [torch.zeros_like(a) for a in q]

    @torch.compile
    def step(q: Any, p: Any) -> Any:
        p = [a + 1e-4 * g for a, g in zip(p, grad(*q), strict=True)]
        return [a + 1e-4 * b for a, b in zip(q, p, strict=True)], p

    def run() -> Any:
        a, b = q, p
        for _ in range(number):
            a, b = step(a, b)
        return a

    return run


def _trajectories(chains: int, steps: int) -> Callable[[str, bool], Callable[[], Any]]:
    def make(device: str, small: bool) -> Callable[[], Any]:
        count, number = (min(chains, 3), 2) if small else (chains, steps)
        x, y = torch.randn(500, 8, device=device), torch.randn(500, 1, device=device)
        shapes = [(8, 50), (50,), (50, 50), (50,), (50, 1), (1,)]
        q = [torch.randn(count, *s, device=device) * 0.1 for s in shapes]

        def density(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
            h = F.silu(torch.addmm(b2, F.silu(torch.addmm(b1, x, w1)), w2))
            arrays = (w1, b1, w2, b2, w3, b3)
            prior = sum((a * a).sum() for a in arrays)
            return -50.0 * ((y - torch.addmm(b3, h, w3)) ** 2).sum() - 0.5 * prior

        grad = torch.func.vmap(torch.func.grad(density, argnums=tuple(range(6))))

        return _leapfrogs(grad, q, number)

    return make


def _rows(device: str, small: bool) -> Callable[[], Any]:
    rows, number = (40, 2) if small else (58_368, 100)
    x, y = torch.randn(rows, 22, device=device), torch.randint(2, (rows, 1), device=device).float()
    q = [torch.randn(s, device=device) * 0.1 for s in ((22, 40), (40,), (40, 1), (1,))]

    def density(w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        f = torch.addmm(b2, F.silu(torch.addmm(b1, x, w1)), w2)
        prior = sum((a * a).sum() for a in (w1, b1, w2, b2))
        return -F.binary_cross_entropy_with_logits(f, y, reduction="sum") - 0.5 * prior

    grad = torch.func.grad(density, argnums=(0, 1, 2, 3))

    return _leapfrogs(grad, q, number)


def _resnet(device: str, small: bool) -> Callable[[], Any]:
    """Make the gradient of 50,000 images, 2,000 at a time."""
    rows, panel = (4, 2) if small else (50_000, 2_000)
    rng = np.random.default_rng(0)
    layout = networks.Layout(networks.resnet20, (32, 32, 3))
    arrays = [
        native(one, rng.normal(0.0, 0.1, one.shape).astype(np.float32)).to(device)
        for one in layout.arrays
    ]
    for one in arrays:
        one.requires_grad_(True)
    x = torch.randn(rows, 3, 32, 32, device=device)
    y = torch.randint(10, (rows,), device=device)

    @torch.compile
    def loss(arrays: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(networks.resnet20(Net(arrays), x), y, reduction="sum")

    def run() -> Any:
        total = [torch.zeros_like(one) for one in arrays]
        for begin in range(0, rows, panel):
            some = slice(begin, begin + panel)
            parts = torch.autograd.grad(loss(arrays, x[some], y[some]), arrays)
            total = [a + b for a, b in zip(total, parts, strict=True)]
        return total

    return run


def _in_tf32(make: _Make) -> _Make:
    """Allow TF32 products while a call runs."""

    def prepared(device: str, small: bool) -> Callable[[], Any]:
        call = make(device, small)

        def run() -> Any:
            torch.backends.cuda.matmul.allow_tf32 = True
            try:
                return call()
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False

        return run

    return prepared


_ROWS: dict[str, _Make] = {
    "bbb-sampling": _sampling,
    "mc-forward": _forward,
    "mc-forward-tf32": _in_tf32(_forward),
    "leapfrog-update": _update,
    "hmc-1000-chains": _trajectories(1_000, 20),
    "hmc-1-chain": _trajectories(1, 200),
    "hmc-58368-rows": _rows,
    "resnet20": _resnet,
}
