"""posteriors: its SGLD transform, whose learning rate is half of eps."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import posteriors
import torch

from benchmarks.harness.framework import Prepared
from benchmarks.rivals import torch_bayes, torch_net
from benchmarks.workloads.langevin import Langevin


def versions() -> dict[str, str]:
    """Versions of posteriors and of what it runs on."""
    return {"posteriors": metadata.version("posteriors"), **torch_net.versions()}


def sgld(workload: Langevin) -> Prepared:
    """Use `posteriors.sgmcmc.sgld` at temperature 1 on the unscaled log posterior."""
    torch.set_num_threads(workload.threads)
    torch.manual_seed(workload.seed)
    value = torch_net.batch_logdensity(workload)
    x, y = (torch.from_numpy(a) for a in workload.data)
    start = torch.from_numpy(workload.start)
    count = len(workload.sizes) - 1

    def layers(named: Any) -> Any:
        return [(named[f"{k}.weight"], named[f"{k}.bias"]) for k in range(count)]

    def parameters() -> dict[str, Any]:
        named: dict[str, Any] = {}
        for k, (weight, bias) in enumerate(torch_net.unravel(start, workload.sizes)):
            named |= {f"{k}.weight": weight.clone(), f"{k}.bias": bias.clone()}
        return named

    def logdensity(named: Any, batch: Any) -> tuple[Any, Any]:
        return value(layers(named), *batch), torch.tensor([])

    transform = posteriors.sgmcmc.sgld.build(logdensity, lr=0.5 * workload.step_size)

    def run() -> Any:
        state = transform.init(parameters())
        batches = torch_bayes.order(workload)
        for rows, _ in zip(batches, range(workload.num_steps), strict=False):
            state, _ = transform.update(state, (x[rows], y[rows]), inplace=True)
        return state

    def answer(state: Any) -> dict[str, Any]:
        first = x[: workload.batch], y[: workload.batch]
        named = torch.func.grad(lambda p: logdensity(p, first)[0])(parameters())
        return {
            "position": torch_net.ravel(layers(state.params)).numpy(),
            "gradient": torch_net.ravel(layers(named)).numpy(),
        }

    return Prepared(run, answer, "sgmcmc.sgld, permuted batches")


PREPARE = {"sgld": sgld}
