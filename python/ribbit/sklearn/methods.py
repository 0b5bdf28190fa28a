"""From a posterior to draws: every method with the budget that an estimator takes by default."""

# Shapes: N rows, C chains, D draws.

from __future__ import annotations

import math
import os
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ribbit import schedules
from ribbit._arrays import checks
from ribbit._arrays.warning import warn, warnings_to
from ribbit.errors import ConvergenceWarning, FitWarning, NonFiniteError, RibbitWarning
from ribbit.results.draws import Draws
from ribbit.samplers import (
    BAOAB,
    BBB,
    HMC,
    MCLMC,
    NUTS,
    SGHMC,
    SGLD,
    SWAG,
    Converged,
    DeepEnsemble,
    LaplaceApproximation,
    MCDropout,
)
from ribbit.samplers.fit.training import default_epochs
from ribbit.samplers.mcmc.energy_tuning import variances_of
from ribbit.targets.posterior import Posterior


@dataclass(frozen=True)
class Chains:
    """A sampler and its defaults."""

    sampler: Any
    options: dict[str, Any] = field(default_factory=dict)
    warmup: int | None = None  # the sampler's own
    thin: int | None = None
    batches: bool = False
    most: int = 250  # draws of a chain, at most
    work: int | None = None  # rows times parameters, from a draw to the next: where no `thin` is


@dataclass(frozen=True)
class Fit:
    """An approximation that is trained."""

    fitter: Any
    learning_rate: float
    options: dict[str, Any] = field(default_factory=dict)
    draws: int = 1000
    many: bool = False  # has members
    stops: bool = True  # rows held out can end the training


CHAINS = {
    # The same for every noise: what stands in docs/developer/sklearn_defaults.md was found with
    # scales of layers, and agreement ends these chains, not a number of steps.
    "mclmc": Chains(
        MCLMC,
        {"inverse_mass_matrix": "layers"},
        warmup=10_000,
        most=3000,
        work=50_000_000,
    ),
    "hmc": Chains(HMC, {"num_leapfrog_steps": 100}, warmup=250),
    "nuts": Chains(NUTS, {"max_tree_depth": 8}, warmup=250),
    "sgld": Chains(SGLD, {"step_size": "auto"}, warmup=10_000, thin=100, batches=True),
    "sghmc": Chains(SGHMC, {"step_size": "auto"}, warmup=10_000, thin=100, batches=True),
    "baoab": Chains(BAOAB, {"step_size": "auto"}, thin=100, batches=True),
}
FITS = {
    "bbb": Fit(BBB, 1e-2, {"estimator": "local"}),
    "dropout": Fit(MCDropout, 5e-3),
    "ensemble": Fit(DeepEnsemble, 5e-3, many=True),
    "laplace": Fit(LaplaceApproximation, 5e-3, stops=False),
    "swag": Fit(SWAG, 5e-3, {"swag_learning_rate": 1e-3}, many=True, stops=False),
}
METHODS = (*CHAINS, *FITS)
_FIRST, _FEWEST = 100, 250  # draws of a chain: before the first check, and those it may always take
_BYTES = 1 << 25  # of the draws of all chains, beyond those
_RHAT, _ESS = 1.03, 350.0  # that end it: about what bulk ESS 400 takes
_ENERGY = 0.01  # variance of MCLMC's energy errors per parameter: half of its own default
_OFTEN, _SELDOM = 10, 250  # steps between draws: least, and most, where they cost little
_BATCHES = ", or method='baoab' or 'ensemble', which use batches"
_SHORTEST = 100  # steps of a warmup that finds a step
_PATIENT = 300.0  # seconds that a run may take before its first check without a warning
_TRIES, _SHORTER = 4, 0.1  # with shorter steps each, where parameters left the finite numbers
_BATCH = 128
_LOOKS, _PATIENCE = 50, 10  # at the rows held out
_JUDGING = 100  # draws that predict them
_MOST_CURVED = 5_000  # parameters of a full covariance


@dataclass(frozen=True)
class Plan:
    """What a user asked for; None where the method decides."""

    function: str
    method: str
    chains: int
    draws: int | None
    warmup: int | None
    thin: int | None
    epochs: int | None
    learning_rate: float | None
    batch_size: int | None
    early_stopping: bool
    validation_fraction: float
    options: dict[str, Any]
    store: str | os.PathLike[str] | None
    max_seconds: float | None
    progress: bool | None

    def check(self) -> None:
        """Raise for what the method does not have: nothing is left out in silence."""
        name = self.function
        checks.choice(name, "method", self.method, METHODS)
        chains = self.method in CHAINS
        given = {"warmup": self.warmup, "thin": self.thin, "max_seconds": self.max_seconds}
        if chains:
            given = {"epochs": self.epochs, "learning_rate": self.learning_rate}
            if not CHAINS[self.method].batches:
                given["batch_size"] = self.batch_size
        for option, value in given.items():
            if value is not None:
                raise ValueError(
                    f"[{name}] expected {option}=None with method={self.method!r}, which has none, "
                    f"got {checks.summary(value)}"
                )
        if self.early_stopping and (chains or not FITS[self.method].stops):
            able = [one for one, found in FITS.items() if found.stops]
            raise ValueError(
                f"[{name}] expected early_stopping=False with method={self.method!r}, got True: "
                f"rows held out stop the training of {', '.join(able)}"
            )
        if self.store is not None and self.early_stopping:
            raise ValueError(
                f"[{name}] expected store=None with early_stopping, got {self.store!r}"
            )


def kind_of(method: str) -> Any:
    """Return the class of a method."""
    return CHAINS[method].sampler if method in CHAINS else FITS[method].fitter


def learns_scales(method: str) -> bool:
    """Whether a method samples an sd of weights well: noise of batches and modes do not."""
    return method in CHAINS and not CHAINS[method].batches


def run(plan: Plan, target: Posterior, x: Any, y: Any, seed: int) -> tuple[Draws, Any]:
    """Return draws, and for a fit what they are drawn from, else None."""
    if plan.method in CHAINS:
        draws = _sampled(plan, CHAINS[plan.method], target, seed)
        _require_draws(plan, draws)
        draws.settings["caller"] = plan.function.partition(".")[0]
        return draws, None
    with warnings_to(_own_words):
        found = _fitted(plan, FITS[plan.method], target, x, y, seed)
    found.settings["caller"] = plan.function.partition(".")[0]
    return drawn(found, plan.draws or FITS[plan.method].draws, seed), found


def _require_draws(plan: Plan, draws: Draws) -> None:
    """Raise, with what to do next, if the time was over or Ctrl-C came before there was a draw."""
    state = draws.state
    if draws.positions.shape[1]:
        return
    if plan.max_seconds is None or state is None:
        raise ValueError(f"[{plan.function}] expected a draw, got none: interrupted in warmup")
    half = state.step // 2
    shorter = (
        f", warmup={half} (about half of this time, and less than the method wants)"
        if half >= _SHORTEST
        else ""
    )
    raise ValueError(
        f"[{plan.function}] expected a draw within max_seconds={plan.max_seconds:g}, got none: the "
        f"time was over after {state.step:,} of {state.warmup:,} steps of warmup. Give more time"
        f"{shorter}{'' if CHAINS[plan.method].batches else _BATCHES}"
    )


def drawn(fit: Any, count: int, seed: int) -> Draws:
    """Return draws of a fit: those of an ensemble are its members."""
    draws: Draws
    if fit.settings["sampler"] == "DeepEnsemble":
        draws = fit.draws(seed=seed)
    elif hasattr(fit, "rates"):
        # One function per draw, so that a row does not depend on the others.
        draws = fit.draws(count, seed=seed, masks="shared")
    else:
        draws = fit.draws(count, seed=seed)
    return draws


def _stated(options: dict[str, Any]) -> bool:
    """Whether MCLMC has no scales unless told: a step or a length has the user's coordinates."""
    given = [options.get(name, "auto") for name in ("step_size", "decoherence_length")]
    return bool(options.get("adjusted")) or any(not isinstance(value, str) for value in given)


def _desired_energy_var(options: dict[str, Any], dim: int) -> Any:
    """Return what is given, or the estimators' own: that for all sizes where no step is found."""
    given = options.get("desired_energy_var", "auto")
    if not isinstance(given, str) or given != "auto":
        return given
    fixed = bool(options.get("adjusted")) or not isinstance(options.get("step_size", "auto"), str)
    return variances_of(1 if fixed else dim, _ENERGY)


def _sampled(plan: Plan, how: Chains, target: Posterior, seed: int) -> Draws:
    options = {**how.options, **plan.options}
    if "trajectory_length" in plan.options:
        options.pop("num_leapfrog_steps", None)
    if "inverse_mass_matrix" not in plan.options and _stated(plan.options):
        options.pop("inverse_mass_matrix", None)
    if how.sampler is MCLMC:
        options["desired_energy_var"] = _desired_energy_var(options, target.dim)
    if how.batches:
        options.setdefault("batch_size", _batch(plan, target.num_rows))
    number: dict[str, Any] = {"num_draws": plan.draws}
    if plan.draws is None:
        most = _most(plan, how, target)
        number = {"num_draws": _FIRST, "until": Converged(rhat=_RHAT, ess=_ESS), "max_draws": most}
        if plan.chains == 1:  # there is no second chain to agree with
            number = {"num_draws": _FEWEST}
    # A step found by pilot runs may be too long where chains start: a network that fits few rows
    # exactly has gradients that none of them met. A folder belongs to one step size.
    searched = how.batches and "step_size" not in plan.options and plan.store is None
    call: dict[str, Any] = {
        "warmup": how.warmup if plan.warmup is None else plan.warmup,
        "thin": _thin(plan, how, target),
        "chains": plan.chains,
        "seed": seed,
        "init": "ensemble",
        "progress": plan.progress,
        "max_seconds": plan.max_seconds,
        "store": plan.store,
    }
    _foretell(plan, how, target, seed)
    found: float | None = None  # by the pilot runs, where it was too long
    for left in reversed(range(1 + (_TRIES if searched else 0))):
        try:
            with warnings_to(_own_words):
                draws: Draws = how.sampler(target, **options).sample(**number, **call)
            break
        except NonFiniteError as error:
            if not left:
                raise
            found = error.step_size if found is None else found
            options["step_size"] = _SHORTER * error.step_size
    if found is not None:
        used = options["step_size"]
        warn(
            f"[{plan.function}] expected chains that stay finite with the step size of the pilot "
            f"runs, {found:.3g}, got parameters that overflowed: sampled with {used:.3g} instead. "
            f"Give options={{'step_size': {used:.3g}}} to start there, a larger prior_scale or "
            "noise, or method='mclmc', which adapts its step",
            ConvergenceWarning,
        )
    return draws


def _own_words(message: str, category: type[RibbitWarning]) -> None:
    """Pass warnings on but those of the outcome: the estimator issues them in its own words."""
    if "] Not converged: " not in message and "] until= was not met" not in message:
        warn(message, category)


def _foretell(plan: Plan, how: Chains, target: Posterior, seed: int) -> None:
    """Warn of a run that takes minutes before its first check, by the time of one gradient."""
    if how.work is None or plan.options.get("adjusted") or plan.max_seconds is not None:
        return
    thin = _thin(plan, how, target)
    given = how.warmup if plan.warmup is None else plan.warmup
    warmup = how.sampler._default_warmup if given is None else given
    assert thin is not None
    steps = warmup + (plan.draws or _FIRST) * thin
    start = target.init(seed=seed, chains=plan.chains)
    target.value_and_grad(start)  # the first one also packs the rows
    begin = time.perf_counter()
    target.value_and_grad(start)
    seconds = steps * (time.perf_counter() - begin)
    if seconds > _PATIENT:
        warn(
            f"[{plan.function}] expected fewer rows for a method that uses all in every step, got "
            f"{target.num_rows:,} rows and {target.dim:,} parameters: about {seconds / 60:.0f} "
            f"minutes for {plan.draws or _FIRST} draws of {plan.chains} chains, perhaps many times "
            "as long until they agree. method='baoab' and method='ensemble' use batches; "
            "max_seconds= ends chains with the draws so far",
            RibbitWarning,
        )


def _thin(plan: Plan, how: Chains, target: Posterior) -> int | None:
    """Return steps from a draw to the next, None for the sampler's default."""
    # As many as make an equal work: where steps cost little, predicting with their draws does not.
    if plan.thin is not None or how.work is None or plan.options.get("adjusted"):
        return how.thin if plan.thin is None else plan.thin
    return min(max(how.work // (target.num_rows * target.dim), _OFTEN), _SELDOM)


def _most(plan: Plan, how: Chains, target: Posterior) -> int:
    """Return draws of a chain at most."""
    if plan.options.get("adjusted"):
        return _FEWEST
    return min(max(_BYTES // (4 * plan.chains * target.dim), _FEWEST), how.most)


def _fitted(plan: Plan, how: Fit, target: Posterior, x: Any, y: Any, seed: int) -> Any:
    if plan.early_stopping:
        return _stopped(plan, how, target, x, y, seed)
    batch, epochs = _batch_and_epochs(plan, target.num_rows)
    steps = epochs * -(-target.num_rows // batch)
    fitter = _fitter(plan, how, target, batch, schedules.cosine(steps))
    return fitter.fit(epochs, seed=seed, progress=plan.progress, store=plan.store)


def _fitter(plan: Plan, how: Fit, target: Posterior, batch: int, schedule: Any) -> Any:
    rate = how.learning_rate if plan.learning_rate is None else plan.learning_rate
    options = {"learning_rate": rate, "batch_size": batch, "schedule": schedule, **how.options}
    if how.many:
        options["members"] = plan.chains
    if plan.method == "laplace" and target.dim > _MOST_CURVED:
        options["subset"] = "last_layer"
    return how.fitter(target, **{**options, **plan.options})


def _stopped(plan: Plan, how: Fit, target: Posterior, x: Any, y: Any, seed: int) -> Any:
    """Train on most rows until those held out are predicted no better; the best fit met."""
    share = checks.fraction(plan.function, "validation_fraction", plan.validation_fraction)
    rows = target.num_rows
    if rows < 2:
        raise ValueError(
            f"[{plan.function}] expected two rows or more of sample_weight above 0 for "
            "early_stopping, which holds one out, got 1"
        )
    held = min(max(1, math.ceil(share * rows)), rows - 1)
    order = np.random.default_rng(seed).permutation(rows)
    own, rest = np.sort(order[:held]), np.sort(order[held:])
    weights = None if target.sample_weight is None else target.sample_weight[own]
    batch, epochs = _batch_and_epochs(plan, len(rest))
    every = -(-epochs // _LOOKS)
    fitter = _fitter(plan, how, target.subset(rest), batch, schedules.constant())
    fit, best, most, waited, done = None, None, -math.inf, 0, 0
    while done < epochs and waited < _PATIENCE:
        count = min(every, epochs - done)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # it rises: that is why it goes on
            fit = fitter.fit(count, seed=seed, resume=fit, progress=plan.progress)
        done += count
        held_out = drawn(fit, _JUDGING, seed).predict(x[own])
        value = held_out.log_likelihood(y[own], sample_weight=weights)
        waited += 1
        if best is None or value > most:
            best, most, waited = fit, value, 0
        if not fit.complete:
            break
    assert best is not None
    best.settings["held_out"] = held  # these rows ended the training, so a rise is no fault
    return best


def _batch_and_epochs(plan: Plan, rows: int) -> tuple[int, int]:
    """Return the batch size and the number of epochs."""
    batch = _batch(plan, rows)
    epochs = default_epochs(-(-rows // batch), batch) if plan.epochs is None else plan.epochs
    return batch, checks.integer(plan.function, "epochs", epochs, minimum=1, maximum=2**39)


def _batch(plan: Plan, rows: int) -> int:
    """Return rows of a step; a size that is given may be larger than a table is."""
    size = _BATCH if plan.batch_size is None else plan.batch_size
    return min(checks.integer(plan.function, "batch_size", size, minimum=1, maximum=2**31), rows)
