"""The table of checks, and the outcome of draws and fits."""

# The warning of ``sample``, ``summary()``, ``until=``, the plots, the estimators and the command
# line read these rows and limits. Shapes: C chains, D draws, M quantities, E points of a history.

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ribbit.results.convergence import (
    as_host,
    by_block,
    chance_limit,
    ess_block,
    far_below,
    median,
    rhat_block,
)
from ribbit.results.monitor import monitored
from ribbit.results.summary import CONVERGED, NOT, PREDICTIONS, SHORT, Row, Summary

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[np.float64]"
History: TypeAlias = "dict[str, npt.NDArray[np.float64]]"

RHAT = 1.05  # a finding; until= aims lower (Vehtari et al. 2021)
ESS, ROUGH = 100.0, 400.0  # effective draws: of an outcome, of ends of intervals that are smooth
_FEWEST = 4  # draws per chain that have an R-hat
_ENOUGH = 10  # draws per chain that show whether a chain moves
_CHECKED = 1024  # draws of all chains that the check after a run looks at first: milliseconds
_MOVED = 0.01  # nats per row in the last fifth of a fit: predictive densities differ by a percent
_POINTS = 9  # of a history that say anything, with the start


class _Computed(dict[str, Array]):
    """A statistic of every group, computed when it is first asked for."""

    def __init__(self, groups: Mapping[str, Array], function: Callable[[Array], Array]) -> None:
        self._groups, self._function = groups, function

    def __missing__(self, name: str) -> Array:
        self[name] = by_block("summary", self._groups[name], self._function, min_chains=1)
        return self[name]


def _least_ess(a: Array) -> Array:
    return np.fmin(ess_block(a, method="bulk"), ess_block(a, method="tail"))


class Evidence:
    """Monitored quantities and statistics of draws, and the numbers that checks ask for."""

    # `groups` are (C, D', M): "predictions", "log noise", "weights", "parameters" and "log
    # density", as far as known. Those `leading` decide: predictions and noise; without predictions
    # everything but weights. `starts` counts different starts of chains. `hidden` says whether a
    # network has hidden layers, and is None for a density without predictions.

    def __init__(
        self,
        groups: Mapping[str, Any],
        stats: Mapping[str, Any],
        settings: Mapping[str, Any],
        *,
        hidden: bool | None = None,
        collapse: tuple[float, str] | None = None,
    ) -> None:
        self.groups = {name: values for name, values in groups.items() if values.size}
        self.stats, self.settings, self.hidden, self.collapse = stats, settings, hidden, collapse
        known = "predictions" in self.groups
        some = (
            ("predictions", "log noise")
            if known
            else {k for k in self.groups if not k.startswith("weights")}
        )
        self.leading = [name for name in self.groups if name in some]
        shapes: list[Any] = [values.shape for values in (*self.groups.values(), *stats.values())]
        self.chains: int = shapes[0][0] if shapes else 0
        self.draws: int = shapes[0][1] if shapes else 0
        shared = superchains_of(settings, self.chains)
        self.starts = self.chains if shared is None else int(shared.max()) + 1
        self.superchains = shared if self.starts > 1 else None  # else R-hat compares chains
        self.title = "R-hat" if self.superchains is None else "nested R-hat"
        self.thin = int(settings.get("thin", 1))
        self.faults = settings.get("faults", {})  # noted by the run itself
        # By group, (M,) each: R-hat, of a single chain between its halves; and the smaller of bulk
        # and tail effective draws.
        rhat = functools.partial(rhat_block, superchains=self.superchains)
        self.rhat, self.ess = _Computed(self.groups, rhat), _Computed(self.groups, _least_ess)

    def host(self, name: str) -> Array | None:
        """Return a statistic (C, D) as float64 on the host; None if the sampler has none."""
        if name not in self.stats or not self.stats[name].shape[1]:
            return None
        return np.asarray(as_host(self.stats[name]), dtype=np.float64)

    @functools.cached_property
    def worst(self) -> tuple[str, float]:
        """Name and value of the largest R-hat that decides; NaN if none is known."""
        return _extreme({name: self.rhat[name] for name in self.leading}, max)

    @functools.cached_property
    def least(self) -> tuple[str, float]:
        """Name and value of the smallest effective number of draws that decides."""
        return _extreme({name: self.ess[name] for name in self.leading}, min)

    @functools.cached_property
    def stuck(self) -> list[int]:
        """Ids of the chains with a far lower log density than the others."""
        lp, ids = self.host("lp"), self.settings.get("chains")
        ids = ids if isinstance(ids, list) else range(self.chains)
        return [] if lp is None else [int(ids[c]) for c in far_below(lp)]

    @functools.cached_property
    def chance(self) -> float:
        """Largest R-hat that independent draws of this number may have, with all quantities."""
        count = 2 * sum(values.shape[2] for values in self.groups.values())
        draws = min((values.shape[1] for values in self.groups.values()), default=0)
        return chance_limit(self.chains, draws, count, self.superchains)


def unconverged(draws: Any) -> str | None:
    """Return the message of draws that have not converged, else None; quick if all is fine."""
    if len(draws) < _ENOUGH and not failed(Evidence({}, {}, draws.settings), NOT):
        return None  # such a run is a trial
    quick = evidence_of(draws, most=_CHECKED)
    if not failed(quick, NOT) and quick.worst[1] <= 1.0 + 0.5 * (RHAT - 1.0):
        return None
    e = evidence_of(draws)
    found = failed(e, NOT)
    return _message(draws, e, found, NOT) if found else None


def evidence_of(draws: Any, x: Any = None, *, most: int | None = None) -> Evidence:
    """Return what draws show, with predictions at x, if given; see `evidence_of_values`."""
    values, counts = monitored(draws, x)
    collapse, look = None, getattr(draws.predictive, "_noise_collapse", None)
    if look is not None and 0 not in draws.positions.shape:
        collapse = look(draws.positions)
    return evidence_of_values(
        values, counts, draws.stats, draws.settings, draws.predictive, collapse, most=most
    )


def evidence_of_values(
    values: Array | None,
    counts: Mapping[str, int],
    stats: Mapping[str, Any],
    settings: Mapping[str, Any],
    predictive: Any,
    collapse: tuple[float, str] | None = None,
    *,
    most: int | None = None,
) -> Evidence:
    """Return what monitored values (C, D', M) show; most: draws of all chains to look at."""
    ends = np.cumsum(list(counts.values()))[:-1]
    groups = (
        {} if values is None else dict(zip(counts, np.split(values, ends, axis=2), strict=True))
    )
    if "lp" in stats:
        lp = np.asarray(as_host(stats["lp"]), dtype=np.float64)
        if not np.isnan(lp).all():  # SGLD does not track it by default
            groups["log density"] = lp[:, :, None]
    if most is not None:
        for name, array in groups.items():
            stride = -(-array.shape[0] * array.shape[1] // most)
            stride = stride if np.isfinite(array).all() else 1
            groups[name] = array[:, (array.shape[1] - 1) % stride :: stride]  # with the last draw
    # A file does not hold a target of the user's own, but what was monitored of it.
    known = any(name.startswith("weights") for name in groups)
    hidden = True if known and predictive is None else has_hidden(predictive)
    return Evidence(groups, stats, settings, hidden=hidden, collapse=collapse)


def has_hidden(predictive: Any) -> bool | None:
    """Whether a network has hidden layers, so that hidden units may trade places."""
    if predictive is None:
        return None
    blocks = getattr(getattr(predictive, "model", None), "parameters", None)
    return blocks is None or len({p.name.rpartition(".")[0] for p in blocks}) > 1


def divergences(stats: Mapping[str, Any]) -> Any:
    """Return how many transitions since the draw before diverged, (C, D)."""
    return stats["divergences" if "divergences" in stats else "diverging"]


def superchains_of(settings: Mapping[str, Any], chains: int) -> npt.NDArray[np.intp] | None:
    """Return which chains have shared a start, 0 .. K - 1 (C,); None if each had its own."""
    start = settings.get("start")
    found = start.get("superchains") if isinstance(start, dict) else None
    if not isinstance(found, list) or [type(k) for k in found] != [int] * chains:
        return None
    return np.unique(np.asarray(found), return_inverse=True)[1].astype(np.intp)


def cannot_be_met(e: Evidence) -> str | None:
    """Return why agreement of these chains can show nothing; None if it can."""
    found = [one for one in failed(e, SHORT) if one[0].action in ("chains", "starts", "inputs")]
    return explained(e, found, SHORT) if found else None


# Statistics of the checks: a number, or None if there is nothing to check.


def _infinite(e: Evidence) -> float | None:
    bad = sum(int((~np.isfinite(e.groups[name])).sum()) for name in e.leading)
    return float(bad) if e.leading else None


def _diverged(e: Evidence) -> float | None:
    """Share of the transitions that diverged, of the worst chain."""
    if "diverging" not in e.stats or not e.stats["diverging"].shape[1]:
        return None
    counts = np.asarray(as_host(divergences(e.stats)), dtype=np.float64)
    return float(counts.mean(axis=1).max()) / (e.thin if "divergences" in e.stats else 1)


def _unmoving(e: Evidence) -> float | None:
    """Return how many chains have not changed any monitored quantity."""
    if not e.leading or e.draws < _FEWEST:
        return None
    with np.errstate(invalid="ignore"):  # a log density may be infinite throughout
        moved = [np.ptp(e.groups[name], axis=1).any(axis=1) for name in e.groups]
    return float(np.count_nonzero(~np.any(moved, axis=0)))


def _apart(e: Evidence) -> float | None:
    """Return the worst R-hat, if chance does not explain it."""
    worst = e.worst[1]
    return worst if worst > RHAT and worst > e.chance else None


def _heavy(e: Evidence) -> float | None:
    """Return the share of the squared energy errors that 1 % of unadjusted steps have."""
    # Energy errors of networks also have heavy tails and do not spoil the predictions.
    errors = e.host("energy_error") if "energy_variance" in e.stats else None
    if errors is None or errors.size < 400 or e.hidden is not None:
        return None
    squares = np.sort(np.where(np.isfinite(errors), errors, 0.0).ravel() ** 2)
    return float(squares[-(squares.size // 100) :].sum() / max(squares.sum(), 1e-300))


def _bfmi(e: Evidence) -> Array | None:
    """E-BFMI (C,): squared changes of the energy over its variance (Betancourt 2016)."""
    energy = e.host("energy")
    if energy is None or energy.shape[1] < _FEWEST:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = np.mean(np.diff(energy, axis=1) ** 2, axis=1) / energy.var(axis=1, ddof=1)
    return found


def _low_energy(e: Evidence) -> float | None:
    """Return the lowest E-BFMI, unless the log density has enough effective draws."""
    bfmi = _bfmi(e)
    low = math.nan if bfmi is None else float(np.fmin.reduce(bfmi))
    if not low < _BFMI:
        return None
    return low if "log density" not in e.groups or not e.ess["log density"].min() >= ROUGH else None


def _widths(e: Evidence) -> float | None:
    """Effective draws of squared deviations, if steps are antithetic: bulk ESS above the draws."""

    def squares(a: Array) -> Array:
        bulk, sd = ess_block(a, method="bulk"), ess_block(a, method="sd")
        return np.where(bulk > a.shape[1] * a.shape[2], sd, np.nan)

    groups = {k: by_block("summary", e.groups[k], squares, min_chains=1) for k in e.leading}
    least = _extreme(groups, min)[1]
    return None if math.isnan(least) else least


class Check(NamedTuple):
    """A row of the table: what is asked, and what follows if it fails."""

    name: str
    outcome: str  # if the statistic is on the wrong side of the limit
    statistic: Callable[[Any], float | None]
    limit: float
    shown: str  # format of value and limit
    action: str  # a row of _ADVICE
    message: str
    least: bool = False  # whether the limit is the smallest good value, not the largest

    def fails(self, value: float) -> bool:
        """Return whether a value is worse than the limit; NaN is."""
        return not (value >= self.limit if self.least else value <= self.limit)


_BFMI = 0.3
# fmt: off
_CHECKS = (
    Check("values that are not finite", NOT, _infinite, 0, "{:.0f}", "target",
          "{value} of the monitored values are infinite or NaN"),
    Check("NaN of the log density", NOT, lambda e: e.faults.get("undefined"), 0, "{:.0f}", "target",
          "the log density or its gradient was NaN at finite parameters, and chains cannot "
          "enter such a region"),
    Check("rows whose noise sd vanished", NOT,
          lambda e: None if e.collapse is None else e.collapse[0], 0.01, "{:.1%}", "collapse",
          "the noise sd of {value} of the rows is below a hundredth of a step of y, where the "
          "density has no bound"),
    Check("prior sds to the farthest chain", NOT,
          lambda e: e.faults.get("far"), 20, "{:.3g}", "step",
          "a chain is {value} prior standard deviations away, so its steps are too large"),
    Check("divergent transitions of the worst chain", NOT, _diverged, 0.01, "{:.1%}", "divergent",
          "{value} of the transitions of a chain diverged, so the chains miss the steep part of "
          "the density"),
    Check("chains that did not move", NOT, _unmoving, 0, "{:.0f}", "step",
          "{value} of the {chains} chains did not move"),
    Check("chains far below the others", NOT, lambda e: len(e.stuck), 0, "{:.0f}", "stuck",
          "the log density is far lower in chain {stuck} than in the others: such a chain is in a "
          "worse mode, and every mean includes it"),
    Check("R-hat", NOT, _apart, RHAT, "{:.3f}", "apart",
          "R-hat is {value}: {who} disagree about the {of}"),
    Check("energy error in 1 % of the steps", NOT, _heavy, 0.5, "{:.0%}", "narrow",
          "1 % of the steps have {value} of the squared energy error, so the chains avoid a "
          "narrow part of the density"),
    Check("energy variance per parameter of the median chain", NOT,
          lambda e: median(v) if (v := _energy_errors(e)[0]).size else None, 1.0, "{:.2g}", "step",
          "the energy variance is {value} per parameter, so the steps are far too large"),
    Check("E-BFMI", NOT, _low_energy, 0.1, "{:.2f}", "drift",
          "the energy changes slowly (E-BFMI {value}): the chains may still drift", True),
    Check("draws per chain", SHORT, lambda e: e.draws, _FEWEST, "{:.0f}", "more",
          "the chains have {value} draws each", True),
    Check("inputs of predictions", SHORT,
          lambda e: None if e.hidden is None else "predictions" in e.groups, 1, "{:.0f}", "inputs",
          "no predictions were monitored", True),
    Check("chains of a network", SHORT,
          lambda e: e.chains if e.hidden else None, 2, "{:.0f}", "chains",
          "a single chain of a network cannot show that there are other modes", True),
    Check("starts of the chains", SHORT,
          lambda e: e.starts if e.hidden and e.chains > 1 else None, 2, "{:.0f}", "starts",
          "all chains share a start, so their agreement does not show that there are no other "
          "modes", True),
    Check("R-hat", SHORT, lambda e: e.worst[1], RHAT, "{:.3f}", "more",
          "R-hat is {value} for the {of}, which may be chance with so few draws"),
    Check("effective draws", SHORT, lambda e: e.least[1], ESS, "{:.0f}", "more",
          "the {least} have {value} effective draws", True),
    Check("effective draws for the sd", SHORT, _widths, 2 * ESS, "{:.0f}", "more",
          "the spread is known only as well as from {value} independent draws", True),
    Check("E-BFMI", SHORT, _low_energy, _BFMI, "{:.2f}", "tails",
          "the energy changes slowly (E-BFMI {value}), so tails are rough", True),
)

# What to do: for users of a sampler, for users of an estimator.
_ADVICE = {
    "target": ("Correct the target there, or use a smaller step_size.",
        "Check the columns for extreme values."),
    "step": ("Use a smaller step_size, or step_size='auto' with a longer warmup.",
        "Use a longer warmup=, or method='mclmc'."),
    "divergent": ("Start a new run with a smaller step_size, or with step_size='auto', "
        "target_accept=0.95 and a longer warmup (resume= keeps the step).",
        "Use a longer warmup=, or method='mclmc'."),
    "stuck": ("Start elsewhere (networks: init='ensemble'), or use another seed.",
        "Use another random_state."),
    "collapse": ("Take {collapse}.", "Give a known noise=."),
    "apart": ("Run a longer warmup and more draws (resume=draws continues), start nearer to the "
        "posterior (init=; networks: init='ensemble'), or make larger moves.",
        "Raise draws= and warmup=, or use fewer hidden units."),
    "narrow": ("Use HMC or NUTS, adjusted=True, or a smaller desired_energy_var.",
        "Use method='nuts'."),
    "drift": ("Start a new run with a longer warmup, on data or a density of unit scale.",
        "Raise warmup=."),
    "more": ("Take more draws (resume=draws continues).", "Raise draws=."),
    "inputs": ("Use draws.summary(x), or rb.Converged(at=x).", ""),
    "tails": ("Take more draws, or a prior with lighter tails.", "Raise draws=."),
    "chains": ("Run several chains (chains=4).", "Use chains=4."),
    "starts": ("Start every chain elsewhere (init='ensemble', or leave init out).",
        "Use chains=4."),
}
# fmt: on


def failed(e: Evidence, outcome: str | None = None) -> list[tuple[Check, float]]:
    """Return the checks that fail, with their values; of one outcome, if given."""
    found = []
    for check in _CHECKS:
        value = check.statistic(e) if outcome in (None, check.outcome) else None
        if value is not None and check.fails(value):
            found.append((check, value))
    return found


def outcome_of(e: Evidence, found: Sequence[tuple[Check, float]] | None = None) -> str:
    """Return one of the four outcomes; found: the checks that fail, if known."""
    outcomes = {check.outcome for check, _ in (failed(e) if found is None else found)}
    if outcomes:
        return NOT if NOT in outcomes else SHORT
    others = {name: e.rhat[name] for name in e.groups if name not in e.leading}
    return PREDICTIONS if _extreme(others, max)[1] > RHAT else CONVERGED


def explained(e: Evidence, found: Sequence[tuple[Check, float]], outcome: str) -> str:
    """Return the first reasons of an outcome and what to do, in words."""
    own = [(check, value) for check, value in found if check.outcome == outcome]
    own = [(c, v) for i, (c, v) in enumerate(own) if i == 0 or not math.isnan(v)]
    own = own[: 1 if own[0][0].name == "draws per chain" else 2]
    who = "the chains" if e.chains > 1 else "the halves of the chain"
    facts = {"of": e.worst[0], "chains": e.chains, "who": who}
    facts["stuck"] = ", ".join(map(str, e.stuck))
    facts["least"] = e.least[0] if outcome == SHORT else ""
    facts["collapse"] = (e.collapse or (0, ""))[1]
    reasons = [c.message.format(value=c.shown.format(v), **facts) for c, v in own]
    actions = [_ADVICE[c.action]["caller" in e.settings].format(**facts) for c, _ in own]
    actions = actions[:1] if outcome == NOT else actions  # a second one may contradict the first
    return f"{'; '.join(reasons)}. {' '.join(dict.fromkeys(actions))}"


def summary_of_draws(draws: Any, x: Any = None, *, weights: bool = False) -> Summary:
    """Return the table of draws and their outcome."""
    chains, size = draws.positions.shape[0], len(draws)
    title = f"{draws.settings.get('sampler', 'draws')}: {chains} chains x {size} draws"
    if "fit" in draws.settings:
        outcome, message = draws.settings["fit"]
        row = Row("parameters", f"{draws.positions.shape[2]:,}")
        note = f"These are independent draws from a fit. {message}"
        return Summary(title, (row,), outcome, note)
    e = evidence_of(draws, x)
    found = failed(e)
    outcome = outcome_of(e, found)
    rows = [*_rows_of_groups(e), *_rows_of_checks(e, found), *_facts(draws, e)]
    if weights:
        if not draws.positions.shape[1]:
            raise ValueError("[Draws.summary] weights=True needs kept draws, got none")
        rows += _rows_of_layers(draws, e)
    return Summary(title, tuple(rows), outcome, _message(draws, e, found, outcome))


def _message(draws: Any, e: Evidence, found: Sequence[tuple[Check, float]], outcome: str) -> str:
    """Return the outcome with the numbers behind it, and notes."""
    if outcome in (NOT, SHORT):
        text = f"{outcome.capitalize()}: {explained(e, found, outcome)}"
        return text + _notes(draws, e, outcome)
    (of, worst), (least, ess) = e.worst, e.least
    text = f"{outcome.capitalize()}: {e.title} is at most {worst:.3f} ({of})"
    if e.chains == 1:
        text += " between the halves of the chain"
    text += f", with at least {ess:.0f} effective draws ({least})."
    if outcome == PREDICTIONS:
        text += " This is usual for networks, and fine: use the predictions, not single weights."
    if ess < ROUGH:
        text += (
            f" The ends of a 90 % interval are rough: their standard error is about "
            f"{2.1 / math.sqrt(ess):.2f} sd."
        )
    return text + _notes(draws, e, outcome)


def _notes(draws: Any, e: Evidence, outcome: str) -> str:
    """Return what an outcome cannot show, and what else to know of the draws."""
    settings, notes = draws.settings, []

    def given(option: str, value: object) -> str:
        """Return how the caller gives an option."""
        return f"options={{{option!r}: {value}}}" if "caller" in settings else f"{option}={value}"

    if outcome in (CONVERGED, PREDICTIONS):
        shared = e.starts == 1 < e.chains
        more = ": all chains share one start, so they say little about them" if shared else ""
        notes.append(f"Agreement cannot show modes that no chain visited{more}.")
    if outcome != NOT:
        unadjusted = "energy_variance" in draws.stats
        if unadjusted or settings.get("sampler") in _STOCHASTIC:
            notes.append(
                "The draws have a bias of unknown size because no step is rejected, and R-hat does "
                "not show it; shorter steps make it smaller."
            )
        if unadjusted:
            measure = "MCLMC(target).discretization_bias(draws) measures it; "
            way = "" if "caller" in settings else measure
            notes.append(f"{way}{given('adjusted', True)} removes it.")
    variance, aim = _energy_errors(e)
    if (over := variance > _ERRORS * aim).any():
        way = "" if "caller" in settings else " (resume= keeps the steps)"
        notes.append(
            f"The energy variance of {int(over.sum())} of {over.size} chains is more than "
            f"{_ERRORS:g} times the value that warmup aimed at, so the bias is larger. Start a new "
            f"run with a longer warmup{way}."
        )
    deepest = e.host("reached_max_treedepth")
    if deepest is not None and (share := float(deepest.mean())) > 0.01:
        depth = int(settings.get("max_tree_depth", 10))
        notes.append(
            f"{share:.1%} of the trajectories ended at max_tree_depth={depth}: the draws have no "
            "bias, but moves are shorter than they could be. Take "
            f"{given('max_tree_depth', depth + 2)}."
        )
    if settings.get("stopped", {}).get("reason") == "running":
        notes.append("The run has not ended.")
    elif not draws.complete:
        way = "" if "caller" in settings else ": resume=draws continues it"
        notes.append(f"The run was cut short{way}.")
    return "".join(f" {note}" for note in notes)


_STOCHASTIC = ("SGLD", "SGHMC", "BAOAB")  # of minibatches, without an accept step
_ERRORS = 5.0  # times the energy variance that warmup aimed at: about twice the bias


def _rows_of_groups(e: Evidence) -> list[Row]:
    """Return R-hat and effective draws of every group; limits for those that decide."""
    rows = []
    for title, found, shown, sign, limit in (
        (e.title, e.rhat, "{:.3f}", 1, RHAT),
        ("effective draws", e.ess, "{:.0f}", -1, ESS),
    ):
        for group in e.groups:
            values, leads = found[group], group in e.leading
            known = sign * values[~np.isnan(values)]
            good = bool(known.max() <= sign * limit) if leads and known.size else None
            wanted = f"{'<=' if sign > 0 else '>='} {limit:g}" if leads else ""
            rows.append(
                Row(f"{title} of the {group}", _spread(values, shown, sign < 0), wanted, good)
            )
    return rows


def _rows_of_layers(draws: Any, e: Evidence) -> list[Row]:
    """Return R-hat and effective draws of the weights, by layer."""
    rows = []
    for block in getattr(getattr(draws.predictive, "model", None), "parameters", ()):
        own = as_host(draws.positions[:, :, block.offset : block.offset + block.size])
        part = Evidence({"weights": own.astype(np.float64)}, {}, draws.settings)
        rhat = _spread(part.rhat["weights"], "{:.3f}", least=False)
        ess = _spread(part.ess["weights"], "{:.0f}", least=True)
        rows.append(Row(f"layer {block.name}", f"{e.title} {rhat}, effective draws {ess}"))
    return rows


def _rows_of_checks(e: Evidence, found: Sequence[tuple[Check, float]]) -> list[Row]:
    """Return divergences and E-BFMI if known, and every other check that failed."""
    rows = []
    if (share := _diverged(e)) is not None:
        total = int(as_host(divergences(e.stats)).sum())
        text = f"{total}" + (f" (worst chain {share:.1%})" if total else "")
        rows.append(Row("divergent transitions", text, "<= 1%", share <= 0.01))
    if (bfmi := _bfmi(e)) is not None:
        text = ", ".join(f"{value:.2f}" for value in bfmi[:8]) + (", ..." if len(bfmi) > 8 else "")
        good = bool(np.fmin.reduce(bfmi) >= _BFMI) or (None if _low_energy(e) is None else False)
        rows.append(Row("E-BFMI per chain", text, f">= {_BFMI}", good))
    shown = ("R-hat", "effective draws", "E-BFMI", "divergent transitions of the worst chain")
    for check, value in found:
        if check.name not in shown:
            sign = ">=" if check.least else "<="
            text, wanted = check.shown.format(value), f"{sign} {check.shown.format(check.limit)}"
            rows.append(Row(check.name, text, wanted, False))
    return rows


def _facts(draws: Any, e: Evidence) -> list[Row]:
    """Return acceptance, steps, work and time, as far as the sampler has them."""
    rows, settings = [], draws.settings
    if (rates := e.host("acceptance_rate")) is not None:
        rows.append(Row("acceptance", _range(rates.mean(axis=1), "{:.2f}")))
    variance, aim = _energy_errors(e)
    if variance.size:
        aimed = "" if math.isinf(aim) else f", warmup aimed at {aim:.3g}"
        rows.append(Row("energy variance per parameter", _range(variance, "{:.3g}") + aimed))
    if (pilot := settings.get("pilot")) is not None:
        rows.append(Row("step size", str(pilot)))
    if (part := settings.get("integrated")) is not None:
        rows.append(Row("integrated out", f"{part}: states and lp hold the other parameters"))
    if (steps := e.host("n_steps")) is not None:
        rows.append(Row("gradients after warmup", f"{steps.sum() * e.thin:,.0f}"))
    elif draws.state is not None:  # a user's own draws have none
        work = draws.positions.shape[0] * max(0, draws.state.step - draws.state.warmup)
        rows.append(Row("gradients after warmup", f"{work:,}"))
    if draws.seconds is not None:
        rows.append(Row("seconds", f"{draws.seconds:.1f}"))
    stopped, until = settings.get("stopped"), settings.get("until")
    if isinstance(stopped, dict) and isinstance(until, dict):
        text = f"{stopped.get('reason')} after {stopped.get('draws')} draws"
        if stopped.get("rhat") is not None and stopped.get("ess") is not None:
            text += f": R-hat {stopped['rhat']:.3f}, {stopped['ess']:.0f} effective draws"
        text += (
            f" (until= aims at R-hat {until.get('rhat'):g}, {until.get('ess'):g} effective draws)"
        )
        rows.append(Row("run ended", text))
    return rows


def _energy_errors(e: Evidence) -> tuple[Array, float]:
    """Return the energy variance (C,) of unadjusted steps, and what warmup aimed at; else inf."""
    variance, aimed = e.host("energy_variance"), e.settings.get("desired_energy_var")
    aim = math.inf if aimed is None or e.settings.get("step_size") != "auto" else aimed[-1]
    return np.zeros(0) if variance is None else variance[:, -1], float(aim)


def _extreme(values: Mapping[str, Array], of: Any) -> tuple[str, float]:
    """Return name and value of the max or the min of several groups; NaN if there is none."""
    known = {name: found[~np.isnan(found)] for name, found in values.items()}
    ends = [(name, float(of(found))) for name, found in known.items() if found.size]
    return of(ends, key=lambda end: end[1], default=("", math.nan))  # type: ignore[no-any-return]


def _range(by_chain: Array, shown: str) -> str:
    """Return the mean, the smallest and the largest of values (C,), in words."""
    mean, low, high = (shown.format(f()) for f in (by_chain.mean, by_chain.min, by_chain.max))
    return f"{mean} (chains {low} to {high})"


def _spread(values: Array, shown: str, least: bool) -> str:
    """Return the median and the worst of several values, or the only one, in words."""
    known = values[~np.isnan(values)]
    if not known.size:
        return "not known"
    worst = shown.format(known.min() if least else known.max())
    return worst if values.size == 1 else f"{shown.format(median(known))} (worst {worst})"


class Ending(NamedTuple):
    """How an objective ended, in nats per row; all 0 if the history is too short."""

    change: float  # of the last fifth against the fifth before
    certain: bool  # whether it is beyond the noise of the points, and large enough to matter
    lost: float  # from the start to the end
    late: float  # share of the gain that the second half of the epochs made
    points: int
    gained: float = 0.0  # from the start to the end
    spread: float | None = None  # of the draws of SWAG, as a share of the posterior's


def ending(values: Array, *, noisy_start: bool) -> Ending:
    """Return how an objective (E,) per row moved at its end; noisy_start: it is one draw."""
    points = len(values)
    if points < _POINTS:
        return Ending(0.0, False, 0.0, 0.0, points)
    width = max(2, points // 5)
    late = values[-2 * width :]
    with np.errstate(all="ignore"):
        end, middle = late[width:].mean(), values[(points - width) // 2 :][:width].mean()
        moved = float(end - late[:width].mean())
        # The second differences of a steady rise are zero, so their median shows the noise alone.
        bends = np.diff(values[-max(_POINTS, 3 * width) :], n=2)
        noise = 1.4826 * float(np.median(np.abs(bends))) / math.sqrt(6.0)
        lost = float(values[0] - (late[width:].max() if noisy_start else end))
        gain = float((end - middle) / (end - values[0])) if end - middle > _MOVED else 0.0
    certain = not abs(moved) <= max(_MOVED, 4.0 * noise * math.sqrt(2.0 / width))
    return Ending(moved, certain, lost, gain, points, float(end - values[0]))


_STILL = f"within {_MOVED}, or noise"
# fmt: off
_FIT_CHECKS = (
    Check("points of the history", SHORT, lambda e: e.points, _POINTS, "{:.0f}", "more",
          "the fit has too few epochs to show whether it settled ({value} points)", True),
    Check("finite objective", NOT, lambda e: e.lost, math.inf, "{:g}", "fell",
          "the fit diverged, because its objective is {value}"),
    Check("loss of the objective per row", NOT, lambda e: e.lost, 1.0, "{:.3g}", "fell",
          "the objective is {value} nats per row below its start"),
    Check("rise over the last fifth", NOT,
          lambda e: e.change if e.certain and not e.change < 0 else None, 0.0, "{:.2g}", "rose",
          "the objective still rose, by {value} nats per row over the last fifth of the epochs"),
    Check("fall over the last fifth", NOT,
          lambda e: -e.change if e.certain and e.change < 0 else None, 0.0, "{:.2g}", "fell",
          "the objective fell at the end, by {value} nats per row"),
    Check("spread of the draws", NOT, lambda e: e.spread, 0.2, "{:.2g}", "spread",
          "the draws have {value} of the spread of the posterior, so predictions nearly equal "
          "the predictions of the mean weights", True),
    Check("gain of the objective per row", SHORT, lambda e: e.gained, _MOVED, "{:.2g}", "more",
          "the objective has gained {value} nats per row since its start", True),
    Check("gain of the second half", SHORT, lambda e: e.late, 0.1, "{:.0%}", "more",
          "the second half of the epochs made {value} of the gain"),
)
_FIT_ADVICE = {
    "rose": ("Train longer (resume=fit continues) and let the learning rate fall "
        "(schedule=rb.schedules.cosine(num_steps)).", "Raise epochs=, or learning_rate=."),
    "fell": ("Take a smaller learning rate, or one that falls.", "Take a smaller learning_rate=."),
    "more": ("Train longer (resume=fit continues).", "Raise epochs=, or learning_rate=."),
    "spread": ("Take a smaller batch_size and a larger swag_learning_rate, or use HMC.",
        "Give a smaller batch_size=, or use method='hmc' or 'laplace'."),
}
# fmt: on


def summary_of_fit(fit: Any) -> Summary:
    """Return the table of a fit with `history` and `settings`, and its outcome."""
    name = "elbo" if "elbo" in fit.history else "objective"
    values = np.asarray(fit.history.get(name, np.zeros(0))) / (fit.settings.get("num_rows") or 1)
    members = values.T if values.ndim == 2 else values[None]
    values = members.mean(axis=0)
    found = ending(values, noisy_start=name == "elbo")
    lost = [ending(member, noisy_start=name == "elbo").lost for member in members]
    found = found._replace(lost=float(np.max(lost)), spread=fit.settings.get("spread"))
    rows = [Row("epochs", str(fit.settings.get("num_epochs", "not known")))]
    if len(values):
        title = "ELBO" if name == "elbo" else name
        rows.append(Row(f"{title} per row", f"{values[0]:.4g} -> {values[-1]:.4g}"))
    if found.points >= _POINTS:
        limit = ("", None) if "held_out" in fit.settings else (_STILL, not found.certain)
        rows.append(Row("change over the last fifth", f"{found.change:+.2g}", *limit))
    for option in ("learning_rate", "schedule"):
        if option in fit.settings:
            rows.append(Row(option.replace("_", " "), str(fit.settings[option])))
    outcome, text = CONVERGED, "Converged: the objective has settled, as far as its noise shows."
    if "cosine" in str(fit.settings.get("schedule")):
        text += " It may only rest because the learning rate fell: compare twice the epochs."
    if "held_out" in fit.settings:
        text = "Converged: the rows held out have ended the training."
    for check in _FIT_CHECKS:
        if "held_out" in fit.settings and check.action in ("rose", "more"):
            continue  # a fit that other rows ended may still rise
        value = check.statistic(found)
        if value is not None and check.fails(value):
            outcome, reason = check.outcome, check.message.format(value=check.shown.format(value))
            action = _FIT_ADVICE[check.action]["caller" in fit.settings]
            if check.action == "rose" and "caller" not in fit.settings:
                action = getattr(fit, "advice", action)
            text = f"{outcome.capitalize()}: {reason}. {action}"
            break
    if not fit.complete:
        way = "" if "caller" in fit.settings else ": resume=fit continues it"
        text += f" The fit was cut short{way}."
    return Summary(repr(fit), tuple(rows), outcome, text)
