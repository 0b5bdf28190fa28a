"""Whether chains have converged and fits have ended, in numbers and in words.

Shapes: C chains, D draws per chain, M quantities, N rows, K outputs, E points of a history.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ribbit.results.convergence import ess_block, median, nested_rhat_block, rhat_block
from ribbit.results.limits import FEWEST as _FEWEST
from ribbit.results.limits import nested_limit, rhat_limit
from ribbit.results.modes import fallen, superchains_of
from ribbit.results.streaming import as_host, by_block
from ribbit.results.summary import Row, Summary, stopped_row

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "check_run",
    "divergences",
    "effective",
    "parameters_of",
    "rhat_limit",
    "summary_of_draws",
]

Array: TypeAlias = "npt.NDArray[np.float64]"

DIVERGENT, BFMI = 0.01, 0.3  # what a verdict asks for
_UNMOVED = 0.1  # an E-BFMI with which few effective draws are no verdict, whatever R-hat says
_EACH = 100  # effective draws per chain: enough that R-hat and ESS are reliable (Vehtari et al.)
DEEPEST = 0.01  # share of the trajectories of NUTS that may end at the largest depth
COLLAPSED = 0.01  # share of the rows whose noise sd may have vanished
_APART = 1.3  # an R-hat that says more than that chains are slow
_EFFECTIVE, _ENERGY = "effective draws", "E-BFMI per chain"
_FEWEST_TO_WARN = 10  # a run of fewer is a trial: the summary speaks, `sample` does not
_STOCHASTIC = ("SGLD", "SGHMC", "BAOAB")  # of minibatches, without an accept step
_ERRORS = 5.0  # times the energy variance that warmup aimed at: then about twice the bias
_CHECKED = 2048  # draws of all chains that the check after a run looks at: some milliseconds
# Parameters that are judged where nothing says what they predict: of long runs fewer.
_FEWEST_PARAMETERS, _PARAMETERS, _JUDGED = 8, 128, 1 << 21


class Findings(NamedTuple):
    """What was computed from draws.

    Attributes
    ----------
    quantities : dict of (C, D, M) arrays
        By name: "predictions", "parameters", "log density", "log noise", where they are known.
    rhat : dict of (M,) arrays
    limit : float
        What R-hat may be.
    diverging : (C,) array or None
        Share of the transitions that diverged, per chain.
    superchains : (C,) array or None
        Which chains have shared a start, where R-hat is the nested one.
    begun : bool
        Whether there is a draw: a run that is watched in warmup has none yet.
    bfmi : (C,) array or None
        E-BFMI of each chain, where energies are known.
    """

    quantities: dict[str, Array]
    rhat: dict[str, Array]
    limit: float
    diverging: Array | None
    superchains: npt.NDArray[np.intp] | None = None
    begun: bool = True
    bfmi: Array | None = None

    @property
    def title(self) -> str:
        """Which R-hat it is."""
        return "R-hat" if self.superchains is None else "nested R-hat"

    @property
    def judged(self) -> dict[str, Array]:
        """R-hat by what a verdict goes by: the predictions, where they are known."""
        name = "predictions"
        return {name: self.rhat[name]} if name in self.rhat else self.rhat

    @property
    def worst(self) -> tuple[str, float]:
        """Name and value of the largest R-hat that is judged; NaN where there is none."""
        rhat = {name: values[~np.isnan(values)] for name, values in self.judged.items()}
        found = {name: float(values.max()) for name, values in rhat.items() if values.size}
        name = max(found, key=lambda k: found[k], default="")
        return name, found.get(name, math.nan)

    @property
    def unmoved(self) -> tuple[float, float] | None:
        """The lowest E-BFMI and the fewest effective draws, where both are far too low.

        Chains that drift together from starts on one side of the mass have such energies, and an
        R-hat that lets them pass.
        """
        if self.bfmi is None or not (low := float(np.fmin.reduce(self.bfmi))) < _UNMOVED:
            return None
        found = [effective(self.quantities[name]) for name in self.judged]
        least = min((float(ess.min()) for ess in found if ess.size), default=math.nan)
        wanted = _EACH * self.bfmi.shape[0]
        return (low, least) if least < wanted else None


def find(
    stats: Mapping[str, Any],
    log_noise: Any | None,
    predictions: Any | None,
    parameters: Any | None = None,
    *,
    superchains: npt.NDArray[np.intp] | None = None,
    most: int | None = None,
    thin: int = 1,
) -> Findings:
    """Compute what a verdict needs.

    superchains: which chains (C,) have shared a start. most: draws of all chains to look at, evenly
    spaced. thin: steps between draws.
    """
    if superchains is not None and superchains.max() == 0:
        superchains = None  # one start: nothing to compare
    given = {
        "predictions": predictions,
        "parameters": parameters,
        "log density": stats.get("lp"),
        "log noise": log_noise,
    }
    quantities: dict[str, Array] = {}
    begun = True
    for name, values in given.items():
        if values is None:
            continue
        host = as_host(values)
        if host.size == 0:
            begun = False
            continue
        host = host.reshape((*host.shape[:2], -1))
        if most is not None:
            stride = -(-host.shape[0] * host.shape[1] // most)
            # the last ones, so that what is left out is the beginning
            host = host[:, (host.shape[1] - 1) % stride :: stride]
        host = host.astype(np.float64)
        if not np.isnan(host).all():
            quantities[name] = host
    rhat = {name: _rhat(values, superchains) for name, values in quantities.items()}
    limits = []
    for name, values in quantities.items():
        chains, draws, count = values.shape
        count = count if name == "parameters" else 1
        limits.append(
            rhat_limit(chains, draws, count)
            if superchains is None
            else nested_limit(superchains, draws, count)
        )
    limit = max(limits, default=math.nan)
    diverging = None
    if "diverging" in stats and stats["diverging"].shape[1] > 0:
        counts = np.asarray(as_host(divergences(stats)), dtype=np.float64)
        diverging = counts.mean(axis=1) / (thin if "divergences" in stats else 1)
    return Findings(quantities, rhat, limit, diverging, superchains, begun, _bfmi(stats))


def divergences(stats: Mapping[str, Any]) -> Any:
    """Return how many transitions since the draw before diverged, (C, D)."""
    return stats["divergences" if "divergences" in stats else "diverging"]


def _bfmi(stats: Mapping[str, Any]) -> Array | None:
    """E-BFMI per chain: squared changes of the energy (C, D) over its variance; None: not known."""
    if "energy" not in stats or stats["energy"].shape[1] < _FEWEST:
        return None
    energy = np.asarray(as_host(stats["energy"]), dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        bfmi: Array = np.mean(np.diff(energy, axis=1) ** 2, axis=1) / energy.var(axis=1, ddof=1)
    return bfmi


def _rhat(values: Array, superchains: npt.NDArray[np.intp] | None = None) -> Array:
    """R-hat of (C, D, M); of a single chain, between its halves; of shared starts, between them."""
    if superchains is not None:
        return by_block(
            "summary", values, lambda a: nested_rhat_block(a, superchains), min_chains=2
        )
    return by_block("summary", values, lambda a: rhat_block(a, method="rank"), min_chains=1)


def judge(found: Findings) -> tuple[bool | None, str]:
    """Whether chains have converged, and a sentence that says what to do."""
    name, worst = found.worst
    if found.diverging is not None and found.diverging.max() > DIVERGENT:
        share = float(found.diverging.max())
        return False, (
            f"{share:.1%} of the draws of a chain diverged: where the density is steep the chains "
            "do not go, and every mean lacks it. Take a smaller step_size (or step_size='auto' "
            "with target_acceptance=0.95 and a longer warmup, in a new run: resume= keeps the "
            "step), or a prior or parameters without a funnel."
        )
    if math.isnan(worst):
        return None, _unknown(found)
    single = next(iter(found.quantities.values())).shape[0] == 1
    if worst <= found.limit and (unmoved := found.unmoved) is not None:
        return False, (
            f"Not converged: {found.title} is at most {worst:.3f}, but with an E-BFMI of "
            f"{unmoved[0]:.2f} and {unmoved[1]:.0f} effective draws it says little: the chains may "
            "still drift in from their starts, side by side. Take a longer warmup in a new run "
            "(resume= keeps what was adapted on the way), and data of unit scale."
        )
    if worst <= found.limit:
        return True, (
            f"Converged: {found.title} is at most {worst:.3f}"
            + (
                " between the halves of the chain; only several chains can show other modes."
                if single
                else "."
            )
        )
    text = f"Not converged: {found.title} {worst:.2f} of the {name}"
    own = "parameters" in found.quantities  # a density of the user's: there is no fit to start at
    if single:
        return False, (
            f"{text} between the halves of the one chain: it still moves. Take more warmup and "
            "more draws (resume=draws goes on), and several chains."
        )
    if worst > _APART and _apart(found.quantities[name]):
        apart = (
            f"{text}: each chain agrees with itself and not with the others, so they sit in "
            "different modes (or move so little from draw to draw that it looks so: then larger "
            "steps or a larger thin help)"
        )
        if own:
            return False, (
                f"{apart}. How much weight each mode has they do not say: make larger moves, or "
                "write the density so that the modes join. Where parameters may trade places, "
                "judge what you make of them: rb.diagnostics.rhat(f(draws.positions))."
            )
        return False, (
            f"{apart}. Start from an ensemble (init='ensemble', if they did not), or "
            "report the draws as an ensemble of modes."
        )
    if own:
        return False, (
            f"{text}: the chains still move. Take more warmup and more draws (resume=draws goes "
            "on), start nearer to the mass (init=...), or make larger moves (longer trajectories, "
            "a larger step_size, inverse_mass_matrix='adapt')."
        )
    return False, (
        f"{text}: the chains still move. Take more warmup and more draws (resume=draws goes on), "
        "start at a fit (init=fit), or make larger moves (longer trajectories, a larger "
        "step_size)."
    )


def _unknown(found: Findings) -> str:
    if not found.begun:
        return "Not known: there is no draw yet."
    if not found.quantities:
        return (
            "Not known: the draws have no log density (track_lp=True) and no predictions: ask "
            "again with inputs, draws.summary(x)."
        )
    if all(values.shape[1] < _FEWEST for values in found.quantities.values()):
        return f"Not known: R-hat needs at least {_FEWEST} draws per chain."
    return "Not known: no draw differs from another. Have the chains moved?"


def _apart(values: Array) -> bool:
    """Whether chains (C, D, M) agree with themselves: the median R-hat of one chain's halves.

    Of some forty draws or fewer nobody can tell.
    """
    chains, draws, count = values.shape
    limit = max(1.1, rhat_limit(1, draws))
    if limit > _APART:
        return False
    alone = np.moveaxis(values, 0, 1).reshape(1, draws, chains * count)
    within = _rhat(alone)
    within = within[np.isfinite(within)]
    return within.size == 0 or median(within) <= limit


def check_run(
    function: str,
    stats: Mapping[str, Any],
    log_noise: Any | None,
    predictions: Any | None,
    parameters: Any | None = None,
    settings: Mapping[str, Any] | None = None,
) -> str | None:
    """Return what to warn of when the draws of a run have not converged, else None."""
    draws = next((values.shape[1] for values in stats.values()), 0)
    if draws < _FEWEST_TO_WARN:
        return None
    settings = settings or {}
    shared = superchains_of(settings, _chains(stats))
    lp = stats.get("lp")
    if predictions is not None:  # they decide
        stats = {name: values for name, values in stats.items() if name != "lp"}
        log_noise = parameters = None
    found = find(
        stats,
        log_noise,
        predictions,
        parameters,
        superchains=shared,
        most=_CHECKED,
        thin=int(settings.get("thin", 1)),
    )
    converged, verdict = judge(found)
    verdict += fallen(lp, settings)[1]
    if converged is not False:
        return None
    name, worst = found.worst
    diverged = found.diverging is not None and found.diverging.max() > DIVERGENT
    wanted, got = f"{found.title} <= {found.limit:.3g} of the {name}", f"{worst:.3f}"
    if diverged and found.diverging is not None:
        wanted = f"at most {DIVERGENT:.0%} of diverging draws"
        got = f"{float(found.diverging.max()):.1%}"
    elif worst <= found.limit and (unmoved := found.unmoved) is not None:
        wanted, got = f"an E-BFMI >= {BFMI}", f"{unmoved[0]:.2f}"
    return f"[{function}] expected {wanted}, got {got}. {verdict} draws.summary() has the table."


def log_noise_of(predictive: Any, positions: Any) -> Any | None:
    """Return the logs (C, D, n) of learned noises, None if none is learned."""
    likelihood = getattr(predictive, "likelihood", None)
    if not getattr(likelihood, "learns_noise", False) or positions.shape[1] == 0:
        return None
    first = getattr(predictive, "noise_at", positions.shape[2] - 1)
    return positions[:, :, first : first + getattr(predictive, "noises", 1)]


def parameters_of(predictive: Any, positions: Any) -> Any | None:
    """Parameters (C, D, M), evenly spaced, of a target without predictions; else None.

    The log density says nothing of modes that have the same. Of a network it is not the parameters
    that matter: hidden units may trade places.
    """
    if predictive is not None or 0 in positions.shape:
        return None
    chains, draws, dim = positions.shape
    most = min(_PARAMETERS, max(_FEWEST_PARAMETERS, _JUDGED // (chains * draws)))
    return positions[:, :, :: -(-dim // most)]


def summary_of_draws(draws: Any, predictions: Array | None) -> Summary:
    """Return the table of a sampler's draws; `predictions` (C, D, M) are what R-hat is wanted of.

    Phases: what was found, the rows, the verdict.
    """
    chains, size = draws.positions.shape[0], len(draws)
    title = f"{draws.settings.get('sampler', 'draws')}: {chains} chains x {size} draws"
    if draws.state is None and not draws.stats:
        return Summary(
            title,
            (Row("parameters", f"{draws.positions.shape[2]:,}"),),
            None,
            "Draws of a fit are independent of each other: there is nothing to converge. "
            "fit.summary() says whether the fit had ended.",
        )
    found = find(
        draws.stats,
        log_noise_of(draws.predictive, draws.positions),
        predictions,
        parameters_of(draws.predictive, draws.positions),
        superchains=superchains_of(draws.settings, chains),
        thin=int(draws.settings.get("thin", 1)),
    )
    rows: list[Row] = []
    for name, values in found.rhat.items():
        limit = found.limit if name in found.judged else None
        rows.append(_rhat_row(f"{found.title} of the {name}", values, limit))
    for name, quantity in found.quantities.items():
        rows.append(_ess_row(name, quantity, judged=name in found.judged))
    rows += _sampler_rows(draws, found)
    if (ended := stopped_row(draws.settings)) is not None:
        rows.append(ended)
    collapsed = _collapse(draws)
    if collapsed is not None:
        gone, wanted = f"{collapsed[0]:.1%}", f"<= {COLLAPSED:.0%}"
        rows.append(Row("rows whose noise sd vanished", gone, wanted, collapsed[0] <= COLLAPSED))
    low, words = fallen(draws.stats.get("lp"), draws.settings)
    if low:
        rows.append(Row("chains far below the others", low, "none", False))
    converged, verdict = judge(found)
    verdict += words
    if converged:
        verdict += _remarks(rows)
    if collapsed is not None and collapsed[0] > COLLAPSED:
        verdict += (
            f" For {collapsed[0]:.1%} of the rows the noise sd is below a hundredth of a step of "
            "y: the density has no bound there, and test likelihoods may be anything. Take "
            f"{collapsed[1]}."
        )
    if "energy_variance" in draws.stats:
        verdict += (
            " The draws are biased, since no step is rejected: by less, the shorter the steps "
            "(energy_variance=, step_limit=); MCLMC(target).step_bias(draws) finds how far their "
            "log likelihood is off. adjusted=True has no bias."
        )
        verdict += _grown(_energy_errors(draws))
    elif converged and draws.settings.get("sampler") in _STOCHASTIC:
        verdict += (
            " The draws are biased, since no step is rejected, and R-hat does not see it: by less, "
            "the smaller the step. "
        ) + (
            "Compare a run at half of step_size."
            if draws.settings.get("pilot") is None
            else "The row of the step size says what 'auto' let pass."
        )
    if (share := _at_max_depth(draws)) is not None and share > DEEPEST:
        depth = int(draws.settings.get("max_tree_depth", 10))
        verdict += (
            f" {share:.1%} of the trajectories ended at max_tree_depth={depth} before they turned: "
            "no bias, but shorter moves than there could be. Take "
            f"max_tree_depth={depth + 2} (up to four times the work per draw), or more draws."
        )
    if draws.settings.get("coupled_chains"):
        verdict += (
            " The trajectory length was adapted across the chains: draws depend on the set of "
            "chains."
        )
    if not draws.complete:
        verdict += " The run was cut short: resume=draws goes on."
    return Summary(title, tuple(rows), converged, verdict)


def _energy_errors(draws: Any) -> tuple[Array, float | None] | None:
    """Return the energy variance (C,) of unadjusted steps, and what it may be.

    That is `_ERRORS` times what warmup aimed at; None where the step was given and nothing aimed.
    """
    if "energy_variance" not in draws.stats or not len(draws):
        return None
    variance = np.asarray(as_host(draws.stats["energy_variance"]), dtype=np.float64)[:, -1]
    aimed = draws.settings.get("energy_variance")
    if aimed is None or draws.settings.get("step_size") != "auto":
        return variance, None
    return variance, _ERRORS * float(aimed[-1])


def _grown(errors: tuple[Array, float | None] | None) -> str:
    """Return what a verdict says of energy errors that are not those that warmup aimed at."""
    if errors is None or errors[1] is None or not (over := errors[0] > errors[1]).any():
        return ""
    times = errors[0].max() / errors[1] * _ERRORS
    return (
        f" In {int(over.sum())} of {over.size} chains the energy variance is up to {times:.3g} "
        "times what warmup aimed at: they have come into places that are narrower than those where "
        "their steps were found, and are more biased than that. Take a longer warmup (warmup=), or "
        "a smaller energy_variance. Or resume= has kept steps that were found with a larger one: "
        "begin a new run."
    )


def _remarks(rows: Sequence[Row]) -> str:
    """Return what a verdict of convergence adds where a row is not as it should be."""
    poor, text = [row for row in rows if row.good is False], ""
    if any(row.name.startswith(_EFFECTIVE) for row in poor):
        text += (
            " Effective draws are few, so that the ends of intervals are rough: take more draws "
            "(resume=draws goes on)."
        )
    if any(row.name.startswith(_ENERGY) for row in poor):
        text += (
            " A low E-BFMI says that the chains may be slow to reach the tails: take more draws, "
            "or a prior with lighter ones."
        )
    return text


def _chains(stats: Mapping[str, Any]) -> int:
    return next((int(values.shape[0]) for values in stats.values()), 0)


def _collapse(draws: Any) -> tuple[float, str] | None:
    """Share of the data's rows whose noise sd has vanished, and advice; None where it cannot."""
    look = getattr(draws.predictive, "_noise_collapse", None)
    return None if look is None or 0 in draws.positions.shape else look(draws.positions)


def _at_max_depth(draws: Any) -> float | None:
    """Share of the draws of NUTS whose trajectory only the largest depth has ended."""
    flags = draws.stats.get("reached_max_treedepth")
    if flags is None or len(draws) == 0:
        return None
    return float(np.asarray(as_host(flags), dtype=np.float64).mean())


def _rhat_row(label: str, values: Array, limit: float | None) -> Row:
    """Row of an R-hat; without a limit it is shown and not judged."""
    finite = values[~np.isnan(values)]
    if finite.size == 0:
        return Row(label, "not known")
    worst = float(finite.max())
    text = f"{worst:.3f}"
    if values.size > 1:
        text = f"{median(finite):.3f} (worst {worst:.3f})"
    if limit is None:
        return Row(label, text)
    return Row(label, text, f"<= {limit:.3g}", worst <= limit)


def effective(values: Array) -> Array:
    """Bulk effective draws of (C, D, M), of those quantities that have them."""

    def bulk(a: Array) -> Array:
        return ess_block(a, method="bulk", tail_probability=0.05)

    found: Array = by_block("summary", values, bulk, min_chains=1)
    return found[np.isfinite(found)]


def _ess_row(name: str, values: Array, *, judged: bool) -> Row:
    found = effective(values)
    label = f"{_EFFECTIVE} of the {name}"
    if found.size == 0:
        return Row(label, "not known")
    least = float(found.min())
    text = f"{least:.0f}"
    if values.shape[2] > 1:
        text = f"{median(found):.0f} (worst {least:.0f})"
    wanted = _EACH * values.shape[0]
    return Row(label, text, f">= {wanted}", least >= wanted) if judged else Row(label, text)


def _sampler_rows(draws: Any, found: Findings) -> list[Row]:
    """Divergences, energies, acceptance, work and time, as far as the sampler has them."""
    rows, stats = [], draws.stats
    size = len(draws)
    if found.diverging is not None:
        total = int(as_host(divergences(stats)).sum())
        worst = float(found.diverging.max())
        text = f"{total}" + (f" (worst chain {worst:.1%})" if total else "")
        what = "divergent transitions" if "divergences" in stats else "divergent draws"
        rows.append(Row(what, text, f"<= {DIVERGENT:.0%}", worst <= DIVERGENT))
    if (share := _at_max_depth(draws)) is not None:
        rows.append(
            Row(
                "trajectories at the largest depth",
                f"{share:.1%}",
                f"<= {DEEPEST:.0%}",
                share <= DEEPEST,
            )
        )
    if (bfmi := found.bfmi) is not None:
        text = ", ".join(f"{value:.2f}" for value in bfmi[:8]) + (", ..." if len(bfmi) > 8 else "")
        rows.append(Row(_ENERGY, text, f">= {BFMI}", bool((bfmi >= BFMI).all())))
    if "acceptance_rate" in stats and size:
        rate = np.asarray(as_host(stats["acceptance_rate"]), dtype=np.float64).mean(axis=1)
        text = f"{rate.mean():.2f} (chains {rate.min():.2f} to {rate.max():.2f})"
        rows.append(Row("acceptance", text))
    if (errors := _energy_errors(draws)) is not None:
        variance, limit = errors
        text = f"{variance.mean():.3g} (chains {variance.min():.3g} to {variance.max():.3g})"
        wanted, good = "", None
        if limit is not None:
            wanted, good = f"<= {limit:.3g}", bool((variance <= limit).all())
        rows.append(Row("energy variance per parameter", text, wanted, good))
    if (lengths := getattr(draws.state, "trajectory_length", None)) is not None:
        rows.append(Row("trajectory length", f"{float(lengths[0]):.3g}, adapted across chains"))
    if (pilot := draws.settings.get("pilot")) is not None:
        rows.append(Row("step size", str(pilot)))
    if (part := draws.settings.get("integrated")) is not None:
        rows.append(Row("integrated out", f"{part}: states and lp are those of the rest"))
    thin = int(draws.settings.get("thin", 1))
    work = None
    if "n_steps" in stats:
        work = float(np.asarray(as_host(stats["n_steps"]), dtype=np.float64).sum()) * thin
    elif draws.state is not None:
        work = float(draws.positions.shape[0] * max(0, draws.state.step - draws.state.warmup))
    if work is not None:  # of draws that a user made nothing is known
        rows.append(Row("gradients after warmup", f"{work:,.0f}"))
    if draws.seconds is not None:
        rows.append(Row("seconds", f"{draws.seconds:.1f}"))
    return rows
