"""The entries of `benchmarks.effective`: a line each, with nothing set but what a name says."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.workloads.effective_problems import Problem
from benchmarks.workloads.effective_run import Run

OURS = "benchmarks.ours.effective:Ours"
NUMPYRO = "benchmarks.rivals.numpyro_nuts:NUTS"
BLACKJAX_NUTS = "benchmarks.rivals.blackjax_nuts:NUTS"
BLACKJAX = "benchmarks.rivals.blackjax_tuned"


def anywhere(problem: Problem) -> bool:
    """Every problem."""
    return True


def many_layers(problem: Problem) -> bool:
    """Take the networks for which bde is published."""
    return problem.noise == "outputs"


@dataclass(frozen=True)
class Entry:
    """Where its run is made, with which arguments, what it needs, and what it states of itself."""

    name: str
    made_by: str  # module:class
    arguments: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ("jax",)
    settings: str = ""  # warmup and all else that is the library's default, for the page
    exact: bool = True
    on: Callable[[Problem], bool] = anywhere

    @property
    def is_ours(self) -> bool:
        """Whether Ribbit runs it."""
        return self.made_by == OURS

    def installed(self) -> bool:
        """Whether its packages can be found."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)

    def make(self, problem: Problem, seed: int, threads: int) -> Run:
        """Build its run."""
        module, name = self.made_by.split(":")
        run: Run = getattr(importlib.import_module(module), name)(
            problem, seed, threads, **self.arguments
        )
        return run


def ours(name: str, settings: str, *, exact: bool = True, **arguments: Any) -> Entry:
    """Name one of Ribbit's samplers: ``sampler=``, ``options=``, ``sample=``, ``target=``."""
    return Entry(f"ribbit {name}", OURS, arguments, ("ribbit",), settings, exact)


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        ours("HMC", "rb.HMC(t): 500 trajectories of warmup", sampler="HMC"),
        ours("NUTS", "rb.NUTS(t): 500 trees of warmup", sampler="NUTS"),
        ours(
            "MCLMC",
            "rb.MCLMC(t): 10,000 steps of warmup, a draw every 20",
            exact=False,
            sampler="MCLMC",
        ),
        ours(
            "adjusted MCLMC",
            "rb.MCLMC(t, adjusted=True): 500 trajectories of warmup",
            sampler="MCLMC",
            options={"adjusted": True},
        ),
        *(
            Entry(
                f"numpyro NUTS {depth}",
                NUMPYRO,
                {"depth": depth},
                ("jax", "numpyro"),
                "num_warmup 1,000 as in its BNN example; NUTS's own defaults"
                + ("" if depth == 10 else f"; max_tree_depth {depth}"),
            )
            for depth in (10, 12)
        ),
        *(
            Entry(
                f"blackjax NUTS {depth}",
                BLACKJAX_NUTS,
                {"depth": depth},
                ("jax", "blackjax"),
                "window_adaptation(nuts).run(num_steps=1000), its default, to acceptance 0.8"
                + ("" if depth == 10 else f"; max_num_doublings {depth}"),
            )
            for depth in (10, 12)
        ),
        Entry(
            "blackjax ChEES",
            f"{BLACKJAX}:ChEES",
            needs=("jax", "blackjax"),
            settings="chees_adaptation, num_steps 1,000 (default), first step 0.1 as in its own "
            "test, Adam at 0.025 with b1 0 and b2 0.95 as its authors have it in TensorFlow "
            "Probability; then dynamic_hmc",
        ),
        Entry(
            "blackjax MEADS",
            f"{BLACKJAX}:MEADS",
            needs=("jax", "blackjax"),
            settings="meads_adaptation of 64 chains, 16 in each of its four folds as in the paper "
            "(of 2 it does not work), num_steps 1,000 (default), then ghmc; every 50th draw",
        ),
        Entry(
            "blackjax MCLMC",
            f"{BLACKJAX}:MCLMC",
            needs=("jax", "blackjax"),
            settings="mclmc_find_L_and_step_size for 10,000 steps, each chain its own, its "
            "defaults; then mclmc, every 50th draw",
            exact=False,
        ),
        Entry(
            "blackjax adjusted MCLMC",
            f"{BLACKJAX}:AdjustedMCLMC",
            needs=("jax", "blackjax"),
            settings="adjusted_mclmc_find_L_and_step_size for 10,000 trajectories to acceptance "
            "0.9, each chain its own, its defaults (2 steps a trajectory on average); then "
            "adjusted_mclmc_dynamic",
        ),
        Entry(
            "nutpie",
            "benchmarks.rivals.nutpie_:Nutpie",
            needs=("jax", "nutpie"),
            settings="nutpie.sample: tune=400 for its diagonal mass, its default; the density in "
            "JAX, called from Python",
        ),
        Entry(
            "bde",
            "benchmarks.rivals.bde_:BDE",
            needs=("bde",),
            settings="BdeRegressor: 10 members of 500 epochs at most (patience 10), 50,000 steps "
            "of warmup and 10,000 of MCLMC, every 10th a draw, as in its authors' experiments on "
            "UCI tables; relu, it has no tanh",
            exact=False,
            on=many_layers,
        ),
    )
}
