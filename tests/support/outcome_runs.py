"""Runs that are known to be fine or to have failed, and the words in which each says so.

``python -m tests.support.outcome_runs`` writes ``tests/results/outcomes.csv`` again: the outcome
"after" of the runs that the file names. Use RIBBIT_ISA=baseline for it, so that every machine
writes the same file. "before" are the outcomes of the same draws without the table of checks.

Shapes: C chains, D draws per chain, P parameters.
"""

from __future__ import annotations

import csv
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ribbit as rb
from ribbit.errors import NonFiniteError, RibbitWarning

OUTCOMES = (
    "converged",
    "predictions converged, weights did not",
    "not converged",
    "too short to tell",
)
CONVERGED = OUTCOMES[:2]
RECORDED = Path(__file__).parents[1] / "results" / "outcomes.csv"


@dataclass(frozen=True, eq=False)
class Run:
    """One run: what makes its draws or its fit, and why its outcome is known.

    `mean` (P,) is the truth of a closed form. `shared`: agreement of one mode is allowed, if it is
    not called "converged".
    """

    name: str
    make: Callable[[], Any]
    reason: str
    mean: Any = None
    shared: bool = False

    def __str__(self) -> str:
        return self.name


class Said(NamedTuple):
    """What a run said of itself: its result, the summary and the warnings of the library."""

    result: Any
    summary: Any
    warned: tuple[str, ...]


def heard(make: Callable[[], Any]) -> Said:
    """Make draws or a fit and return what is said of them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = make()
        except NonFiniteError as error:  # it stops by itself, and says so
            result = error.draws if error.draws is not None else error.fit
    texts = tuple(str(w.message) for w in caught if issubclass(w.category, RibbitWarning))
    return Said(result, result.summary(), texts)


@functools.cache
def said(run: Run) -> Said:
    """Return what a run says; several tests ask."""
    return heard(run.make)


def normal(scales: Any, correlation: float = 0.0) -> rb.CallableDensity:
    """A normal law with mean zero, these sds (P,) and one correlation between all parameters."""
    sds = np.asarray(scales, np.float64)
    own = np.full((sds.size, sds.size), correlation) + (1.0 - correlation) * np.eye(sds.size)
    precision = np.linalg.inv(own * np.outer(sds, sds))

    def density(q: Any) -> tuple[Any, Any]:
        grad = -q @ precision
        return 0.5 * (q * grad).sum(1), grad

    return rb.CallableDensity(density, sds.size, batched=True)


def student(df: float, dim: int) -> rb.CallableDensity:
    """Independent Student-t laws; df = 1 is Cauchy."""

    def density(q: Any) -> tuple[Any, Any]:
        inner = 1.0 + q * q / df
        return -0.5 * (df + 1.0) * np.log(inner).sum(1), -(df + 1.0) / df * q / inner

    return rb.CallableDensity(density, dim, batched=True)


def log_gamma(shape: float) -> rb.CallableDensity:
    """The law of log g, g ~ Gamma(shape, 1): skewed, with a light and an exponential tail."""

    def density(q: Any) -> tuple[Any, Any]:
        size = np.exp(np.minimum(q, 700.0))
        return (shape * q - size).sum(1), shape - size

    return rb.CallableDensity(density, 1, batched=True)


def modes(apart: float, dim: int = 1, lean: float = 0.0) -> rb.CallableDensity:
    """Two normals of sd 1 at -apart and apart in each parameter; exp(lean) is their odds."""

    def density(q: Any) -> tuple[Any, Any]:
        left = -0.5 * ((q + apart) ** 2).sum(1)
        right = lean - 0.5 * ((q - apart) ** 2).sum(1)
        share = 1.0 / (1.0 + np.exp(np.clip(left - right, -700.0, 700.0)))[:, None]
        return np.logaddexp(left, right), -q + apart * (2.0 * share - 1.0)

    return rb.CallableDensity(density, dim, batched=True)


def funnel(dim: int) -> rb.CallableDensity:
    """Neal (2003): v ~ N(0, 3^2) and dim - 1 normals of sd exp(v / 2)."""

    def density(q: Any) -> tuple[Any, Any]:
        v, x = q[:, 0], q[:, 1:]
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = x * np.exp(-v)[:, None]
            size = (x * scaled).sum(1)
            lp = -v * v / 18.0 - 0.5 * size - 0.5 * (dim - 1) * v
            slope = -v / 9.0 + 0.5 * size - 0.5 * (dim - 1)
        return lp, np.column_stack([slope, -scaled])

    return rb.CallableDensity(density, dim, batched=True)


def plateau() -> rb.CallableDensity:
    """A normal law of sd 1 beside a plane without slope, 8 to 2,000 sds away."""

    def density(q: Any) -> tuple[Any, Any]:
        inside = np.abs(q) < 8.0
        lp = np.where(inside, -0.5 * q * q, -32.0)
        return np.where(np.abs(q) < 2000.0, lp, -np.inf).sum(1), np.where(inside, -q, 0.0)

    return rb.CallableDensity(density, 1, batched=True)


def half_nan(q: Any) -> tuple[Any, Any]:
    """Log density of a standard normal law, NaN where the first parameter is above 1."""
    return (np.nan if q[0] > 1.0 else -0.5 * q @ q), -q


@functools.cache
def line(
    features: int = 3, rows: int = 60, noise: float = 0.3, correlation: float = 0.0
) -> tuple[rb.Posterior, Any]:
    """Linear regression with known noise, and its posterior mean (P,): weights, then the bias."""
    rng = np.random.default_rng((features, rows))
    common = np.sqrt(correlation) * rng.normal(size=(rows, 1))
    x = common + np.sqrt(1.0 - correlation) * rng.normal(size=(rows, features))
    y = x @ np.linspace(1.0, -1.0, features) + 0.5 + noise * rng.normal(size=rows)
    target = rb.Posterior(
        rb.mlp(features, (), 1), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(noise)
    )
    design = np.column_stack([x, np.ones(rows)])
    precision = design.T @ design / noise**2 + np.eye(features + 1)
    return target, np.linalg.solve(precision, design.T @ y / noise**2)


@functools.cache
def logistic(rows: int = 80) -> rb.Posterior:
    """Logistic regression of two features and a bias."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 2))
    y = rng.random(rows) < 1.0 / (1.0 + np.exp(-2.0 * x[:, 0] + x[:, 1]))
    return rb.Posterior(
        rb.mlp(2, (), 1),
        x,
        y.astype(np.int64),
        prior=rb.Normal(1.0),
        likelihood=rb.Bernoulli(),
    )


@functools.cache
def curve(units: int = 3, rows: int = 40, noise: float | None = 0.2) -> rb.Posterior:
    """A sine by a network with one hidden layer; noise None is learned."""
    rng = np.random.default_rng(rows)
    x = np.linspace(-2.0, 2.0, rows)[:, None]
    y = np.sin(1.5 * x[:, 0]) + 0.2 * rng.normal(size=rows)
    return rb.Posterior(
        rb.mlp(1, (units,), 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian() if noise is None else rb.Gaussian(noise),
    )


@functools.cache
def xor(units: int = 2, noise: float = 0.1, prior: float = 2.0) -> rb.Posterior:
    """XOR regression: rows at the four corners alone, so that networks differ between them."""
    corner = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    return rb.Posterior(
        rb.mlp(2, (units,), 1, activation="tanh"),
        np.repeat(corner, 5, 0),
        np.repeat([-1.0, 1.0, 1.0, -1.0], 5),
        prior=rb.Normal(prior),
        likelihood=rb.Gaussian(noise),
    )


# ---- short runs: 4 samplers, 6 seeds, from too few draws to enough

TOY = np.linspace(-1.97, 1.97, 30)[:, None]  # inputs for summary(x), between the rows
DRAWS = (20, 40, 80, 120, 250, 400)  # by seed


@functools.cache
def toy() -> tuple[Any, Any]:
    """Rows x (100, 1) and y (100,) of a sine."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-2.0, 2.0, size=(100, 1)), 0)
    return x, np.sin(3.0 * x[:, 0]) + 0.1 * rng.normal(size=100)


@functools.cache
def toy_posterior() -> rb.Posterior:
    """The network that b32 samples: ten units, learned noise."""
    x, y = toy()
    return rb.Posterior(
        rb.mlp(1, (10,), 1, activation="tanh"), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian()
    )


TOY_SAMPLERS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "HMC": (rb.HMC, {"num_leapfrog_steps": 100}, {"warmup": 150}),
    "NUTS": (rb.NUTS, {"max_tree_depth": 7}, {"warmup": 150}),
    "MCLMC": (rb.MCLMC, {}, {"warmup": 5000, "thin": 20}),
    "SGHMC": (rb.SGHMC, {"step_size": 1e-4, "track_lp": True}, {"warmup": 5000, "thin": 50}),
}


def short(sampler: str, seed: int, **options: Any) -> rb.Draws:
    """Sample the toy problem; `options` replace the number of draws."""
    kind, settings, call = TOY_SAMPLERS[sampler]
    number = options or {"num_draws": DRAWS[seed]}
    return kind(toy_posterior(), **settings).sample(
        **number, **call, chains=4, seed=seed, progress=False
    )


def estimator(sampler: str, seed: int) -> Any:
    """Fit an estimator to the toy problem by the same sampler."""
    from ribbit.sklearn import BNNRegressor

    _, settings, call = TOY_SAMPLERS[sampler]
    options = {name: value for name, value in settings.items() if name != "track_lp"}
    return BNNRegressor(
        hidden=(10,),
        method=sampler.lower(),
        noise="constant",
        draws=DRAWS[seed],
        options=options,
        random_state=seed,
        **call,
    ).fit(*toy())


SHORT = tuple(
    Run(
        f"short {sampler} {seed}",
        functools.partial(short, sampler, seed),
        f"{DRAWS[seed]} draws of 4 chains of a network with ten units",
    )
    for sampler in TOY_SAMPLERS
    for seed in range(6)
)


# ---- fine runs: enough draws by default settings; seeds are the numbers of the runs


def sampled(kind: Any, target: Any, options: Any = None, **call: Any) -> rb.Draws:
    """Sample four chains, 500 draws each, if nothing else is said."""
    call = {"num_draws": 500, "chains": 4, "progress": False} | call
    if "init" in call and np.ndim(call["init"]) == 2:
        del call["chains"]
    return kind(target, **(options or {})).sample(**call)


def _fine() -> Iterator[Run]:
    """Make the table of the fine runs."""
    for features, rows, noise, correlation, words in (
        (3, 60, 0.3, 0.0, "normal posterior of a line"),
        (8, 100, 0.5, 0.9, "normal posterior of a line whose columns have correlation 0.9"),
        (1, 12, 0.2, 0.0, "normal posterior of a line through twelve rows"),
    ):
        small = noise**2 / rows  # variance of a weight; SGLD and SGHMC have no step of their own
        for kind, options, call in (
            (rb.HMC, {}, {}),
            (rb.NUTS, {}, {}),
            (rb.MCLMC, {}, {}),
            (rb.BAOAB, {}, {}),
            (rb.SGLD, _whole(0.1 * small), {"thin": 200, "warmup": 5000}),
            (rb.SGHMC, _whole(0.1 * small), {"thin": 50, "warmup": 5000}),
        ):
            target, mean = line(features, rows, noise, correlation)
            make = functools.partial(sampled, kind, target, options, **call)
            yield Run(f"line {features} {kind.__name__}", make, f"closed form: {words}", mean)
    for kind, options, call in (
        (rb.HMC, {}, {}),
        (rb.NUTS, {}, {}),
        (rb.MCLMC, {}, {}),
        (rb.BAOAB, {}, {}),
        (rb.SGHMC, _whole(1e-3), {"thin": 50, "warmup": 2000}),
    ):
        make = functools.partial(sampled, kind, logistic(), options, **call)
        yield Run(f"logistic {kind.__name__}", make, "one mode: the posterior is log-concave")
    brief = {"warmup": 200}  # callables in Python are slow
    quick = {"warmup": 2000, "thin": 5}
    for name, kind, target, mean, call in (
        ("normal 1", rb.HMC, normal([1.0]), 0.0, {}),
        ("normal 2 r=0.9", rb.HMC, normal([1.0, 1.0], 0.9), 0.0, {"num_draws": 1000}),
        ("normal 5 sds 0.1 to 10", rb.HMC, normal([0.1, 0.3, 1.0, 3.0, 10.0]), 0.0, {}),
        ("normal 10 r=0.5", rb.HMC, normal(np.ones(10), 0.5), 0.0, {"num_draws": 1000}),
        ("normal 20", rb.HMC, normal(np.ones(20)), 0.0, {}),
        ("normal 2 r=0.5", rb.NUTS, normal([1.0, 1.0], 0.5), 0.0, brief),
        ("normal 3 r=0.5", rb.MCLMC, normal(np.ones(3), 0.5), 0.0, quick),
        ("Student-t df=5", rb.HMC, student(5.0, 1), 0.0, {}),
        ("Student-t df=10", rb.HMC, student(10.0, 3), 0.0, {}),
        ("Student-t df=30", rb.NUTS, student(30.0, 2), 0.0, brief),
        ("log Gamma(2)", rb.HMC, log_gamma(2.0), 0.42278434, {}),  # digamma(2)
    ):
        make = functools.partial(sampled, kind, target, **call)
        yield Run(f"{name} {kind.__name__}", make, "closed form: one mode, known mean", mean)
    for units, learned in ((2, False), (3, True), (5, False), (5, True)):
        for kind in (rb.HMC, rb.NUTS, rb.MCLMC, rb.BAOAB):
            target = curve(units, noise=None if learned else 0.2)
            what = "learned" if learned else "known"
            yield Run(
                f"curve {units} {what} noise {kind.__name__}",
                functools.partial(sampled, kind, target),
                "a long run has the same predictions",
            )


def _whole(step_size: float) -> dict[str, Any]:
    """Settings of a stochastic sampler that looks at all rows."""
    return {"step_size": step_size, "batch_size": None, "track_lp": True}


def _seeded(runs: Iterator[Run]) -> tuple[Run, ...]:
    """Give every run its number in the table as its seed, so that no seed is chosen."""
    return tuple(
        replace(run, make=functools.partial(run.make, seed=i)) for i, run in enumerate(runs)
    )


FINE = _seeded(_fine())


# ---- runs that were made to fail


def _failing() -> Iterator[Run]:
    """Make the table of the failing runs, kind by kind."""
    yield from _missed_modes()
    yield from _stuck()
    yield from _drifting()
    yield from _short_warmup()
    yield from _energies()
    yield from _divergences()
    yield from _xor()
    yield from _single()
    yield from _fits()
    yield from _by_hand()


def _missed_modes() -> Iterator[Run]:
    why = "modes at -10 and 10 in each parameter: no chain crosses, so their odds are unknown"
    fixed = {"step_size": 0.5, "num_leapfrog_steps": 4}
    near = 0.01 * np.arange(4.0)[:, None]  # every chain has a start of its own
    one = np.array([[-10.0], [10.0], [10.0], [10.0]]) + near
    two = np.array([[-10.0], [-10.0], [10.0], [10.0]]) + near
    for name, kind, target, options, start in (
        ("one of four chains in the other mode, HMC", rb.HMC, modes(10.0), fixed, one),
        ("two of four chains in the other mode, HMC", rb.HMC, modes(10.0, 2), fixed, two),
        ("five parameters, one chain apart, HMC", rb.HMC, modes(10.0, 5), fixed, one),
        ("odds of 20, one chain in the rare mode, HMC", rb.HMC, modes(10.0, 2, 3.0), fixed, one),
        ("one chain apart, NUTS", rb.NUTS, modes(10.0, 2), {"step_size": 0.7}, one),
        ("one chain apart, MCLMC", rb.MCLMC, modes(10.0, 2), {}, one),
        (
            "one of eight chains in the other mode, HMC",
            rb.HMC,
            modes(10.0),
            fixed,
            np.array([-10.0, *np.linspace(9.0, 11.0, 7)])[:, None],
        ),
        ("two starts, two chains each, HMC", rb.HMC, modes(10.0), fixed, np.sign(two) * 10.0),
    ):
        warmup = 500 if kind is rb.MCLMC else 20
        call = {"init": start * np.ones(target.dim), "num_draws": 200, "warmup": warmup}
        call |= {"thin": 3} if kind is rb.MCLMC else {}
        yield Run(name, functools.partial(sampled, kind, target, options, **call), why)


def _stuck() -> Iterator[Run]:
    why = "one of four chains does not move"
    steps = np.array([0.03, 0.03, 0.03, 1e-7])
    fixed = {"step_size": steps, "num_leapfrog_steps": 9}
    call = {"num_draws": 300, "warmup": 50}
    normals = {"step_size": 10.0 * steps, "num_leapfrog_steps": 5}
    yield Run("stuck, line HMC", functools.partial(sampled, rb.HMC, line()[0], fixed, **call), why)
    yield Run(
        "stuck, normal HMC",
        functools.partial(sampled, rb.HMC, normal([1.0, 1.0]), normals, num_draws=300, warmup=0),
        why,
    )
    yield Run(
        "no chain moves, HMC",
        functools.partial(
            sampled,
            rb.HMC,
            line()[0],
            {"step_size": 10.0, "num_leapfrog_steps": 9},
            num_draws=200,
            warmup=0,
        ),
        "every proposal is rejected",
    )
    yield Run(
        "plateau HMC",
        functools.partial(
            sampled,
            rb.HMC,
            plateau(),
            {"step_size": 0.5, "num_leapfrog_steps": 4},
            num_draws=300,
            warmup=0,
            init=np.array([[0.0], [1.0], [-1.0], [900.0]]),
        ),
        "one chain walks in a plane without slope, 900 sds from the others",
    )
    yield Run("hand-made, one constant chain", functools.partial(made, "constant"), why)
    yield Run(
        "hand-made, one constant chain, no lp", functools.partial(made, "constant", lp=False), why
    )


def _drifting() -> Iterator[Run]:
    why = "steps far too small: the chains are still on their way from the starts"
    far = np.array([[-30.0, 0.0], [30.0, 0.0], [0.0, 30.0], [0.0, -30.0]])
    raw = {"num_draws": 300, "warmup": 0}
    tiny = {"step_size": 1e-4, "num_leapfrog_steps": 3}
    for name, kind, target, options, call in (
        ("line HMC", rb.HMC, line()[0], tiny, raw),
        (
            "normal HMC",
            rb.HMC,
            normal([1.0, 1.0]),
            {"step_size": 0.01, "num_leapfrog_steps": 1},
            raw | {"init": far},
        ),
        (
            "normal NUTS",
            rb.NUTS,
            normal([1.0, 1.0]),
            {"step_size": 1e-3, "max_tree_depth": 2},
            raw | {"num_draws": 200, "init": far},
        ),
        (
            "curve MCLMC",
            rb.MCLMC,
            curve(3),
            {"step_size": 1e-3, "decoherence_length": 0.1},
            raw | {"thin": 1},
        ),
        ("curve SGLD", rb.SGLD, curve(3), {}, raw),
        ("curve SGHMC", rb.SGHMC, curve(3), {}, raw),
        ("line SGHMC", rb.SGHMC, line()[0], {"track_lp": True}, raw),
        ("curve BAOAB", rb.BAOAB, curve(3), {"step_size": 1e-3}, raw | {"thin": 1}),
    ):
        make = functools.partial(sampled, kind, target, options, **call)
        yield Run(f"drift, {name}", make, why)
    yield Run(
        "drift side by side",
        functools.partial(made, "drift"),
        "planted: four chains come 16 sds of the way together, and their sd is 2.6 for 1",
    )


def _short_warmup() -> Iterator[Run]:
    why = "short warmup, short trajectories: R-hat of the predictions is above 1.15"
    walk = {"step_size": 0.005, "num_leapfrog_steps": 10}
    for name, kind, options, warmup in (
        ("0, HMC", rb.HMC, walk, 0),
        ("5, HMC", rb.HMC, walk, 5),
        ("20, HMC", rb.HMC, walk, 20),
        ("5, NUTS", rb.NUTS, {"step_size": 0.005, "max_tree_depth": 3}, 5),
    ):
        make = functools.partial(sampled, kind, curve(3), options, num_draws=60, warmup=warmup)
        yield Run(f"warmup {name}", make, why)


def _energies() -> Iterator[Run]:
    for name, kind, target, options, call in (
        ("Cauchy 2 HMC", rb.HMC, student(1.0, 2), {}, {"num_draws": 300, "warmup": 200}),
        (
            "Cauchy 2 short steps HMC",
            rb.HMC,
            student(1.0, 2),
            {"step_size": 0.2, "num_leapfrog_steps": 5},
            {"num_draws": 400, "warmup": 0},
        ),
        ("Cauchy 10 HMC", rb.HMC, student(1.0, 10), {}, {"num_draws": 300, "warmup": 200}),
        (
            "funnel 5 MCLMC",
            rb.MCLMC,
            funnel(5),
            {},
            {"num_draws": 800, "warmup": 1000, "init": np.zeros(5), "seed": 0},
        ),
        ("funnel 10 HMC", rb.HMC, funnel(10), {}, {"num_draws": 300, "warmup": 100}),
        (
            "funnel 10 MCLMC",
            rb.MCLMC,
            funnel(10),
            {},
            {"num_draws": 300, "warmup": 1000, "thin": 5},
        ),
    ):
        make = functools.partial(sampled, kind, target, options, **call)
        yield Run(f"energies, {name}", make, "heavy tails or a funnel: momenta do not reach them")


def _divergences() -> Iterator[Run]:
    why = "steps too large for the neck of a funnel, where no draw is"
    origin = {"init": np.zeros((4, 2)) + 0.1 * np.arange(4.0)[:, None]}
    for name, kind, target, options, call in (
        ("funnel 2 HMC", rb.HMC, funnel(2), {}, {"warmup": 100} | origin),
        (
            "funnel 2 HMC 0.5",
            rb.HMC,
            funnel(2),
            {"step_size": 0.5, "num_leapfrog_steps": 9},
            origin,
        ),
        ("funnel 2 HMC 1", rb.HMC, funnel(2), {"step_size": 1.0, "num_leapfrog_steps": 9}, origin),
        ("xor 4 NUTS", rb.NUTS, xor(4), {"max_tree_depth": 6}, {"warmup": 20}),
    ):
        call = {"num_draws": 300, "warmup": 0} | call
        make = functools.partial(sampled, kind, target, options, **call)
        yield Run(f"divergences, {name}", make, why)
    yield Run(
        "divergences, thinned funnel HMC",
        functools.partial(
            sampled,
            rb.HMC,
            funnel(2),
            {"step_size": 0.5, "num_leapfrog_steps": 9},
            num_draws=100,
            warmup=0,
            thin=5,
            **origin,
        ),
        why,
    )
    yield Run(
        "density that is NaN, MCLMC",
        functools.partial(
            sampled,
            rb.MCLMC,
            rb.CallableDensity(half_nan, 2),
            num_draws=200,
            warmup=500,
            init=np.zeros(2),
        ),
        "the density is NaN where the first parameter is above 1, so draws lack that part",
    )


def _xor() -> Iterator[Run]:
    why = "each chain fits the corners by a surface of its own: R-hat is above 1.4 between them"
    brief = {"num_draws": 200, "warmup": 200}
    for name, kind, noise, call in (
        ("HMC", rb.HMC, 0.1, brief | {"seed": 0}),
        ("HMC again", rb.HMC, 0.1, brief | {"seed": 2}),
        ("HMC, more noise", rb.HMC, 0.3, brief | {"seed": 1}),
        ("MCLMC", rb.MCLMC, 0.1, brief | {"warmup": 2000, "thin": 5, "seed": 3}),
        ("BAOAB", rb.BAOAB, 0.3, {"num_draws": 200, "seed": 3}),
        ("HMC from an ensemble", rb.HMC, 0.1, brief | {"init": "ensemble", "seed": 3}),
    ):
        options = {"batch_size": None} if kind is rb.BAOAB else {}
        make = functools.partial(sampled, kind, xor(noise=noise), options, **call)
        yield Run(f"xor, {name}", make, why)
    for noise, seed in ((0.1, 3), (0.3, 3)):
        target = xor(noise=noise)
        call = brief | {"seed": seed, "init": target.init(seed=3)}
        yield Run(
            f"xor, one start for all chains, noise {noise}",
            functools.partial(sampled, rb.HMC, target, **call),
            "chains share one of many modes: nothing says what the others predict",
            shared=True,
        )


def _single() -> Iterator[Run]:
    for name, kind, units, call in (
        ("HMC", rb.HMC, 10, {}),
        ("HMC, three units", rb.HMC, 3, {}),
        ("NUTS", rb.NUTS, 10, {"seed": 1}),
        ("MCLMC", rb.MCLMC, 10, {"warmup": 200, "thin": 1, "seed": 1}),
    ):
        call = {"num_draws": 20, "warmup": 20, "chains": 1} | call
        options = {"max_tree_depth": 5} if kind is rb.NUTS else {}
        make = functools.partial(sampled, kind, curve(units, noise=None), options, **call)
        yield Run(f"one chain of 20 draws, {name}", make, "a handful of effective draws at most")


def _fits() -> Iterator[Run]:
    blown = "the learning rate is so large that predictions of y of order one are above 100"
    early = "the objective still rises by 0.1 per row and more"
    stopped = "the learning rate falls to zero before the objective has risen"
    for name, kind, options, epochs, why in (
        ("ensemble, rate 1e6", rb.DeepEnsemble, {"learning_rate": 1e6}, 30, blown),
        ("ensemble, rate 1e3", rb.DeepEnsemble, {"learning_rate": 1e3}, 30, blown),
        ("BBB, rate 1e3", rb.BBB, {"learning_rate": 1e3}, 30, blown),
        ("SWAG, rate 1e3", rb.SWAG, {"learning_rate": 1e3}, 30, blown),
        ("ensemble, 30 epochs", rb.DeepEnsemble, {}, 30, early),
        ("ensemble, 5 epochs", rb.DeepEnsemble, {}, 5, early),
        ("SWAG, 30 epochs", rb.SWAG, {}, 30, early),
        ("ensemble, 10 epochs, rate falls", rb.DeepEnsemble, _falling(5e-3, 10), 10, stopped),
        ("BBB, 50 epochs, rate falls", rb.BBB, _falling(1e-2, 50), 50, stopped),
    ):
        yield Run(name, functools.partial(fitted, kind, options, epochs), why)


def _by_hand() -> Iterator[Run]:
    walk = "the chains start apart and never meet"
    for name, kind, options, why in (
        ("random walks", "walk", {}, walk),
        ("random walks, no lp", "walk", {"lp": False}, walk),
        ("random walks, no predictions", "walk", {"network": False}, walk),
        ("one narrow chain", "narrow", {}, "one chain has a fifth of the others' sd"),
        ("one infinite draw", "infinite", {"network": False}, "a mean would be infinite"),
        ("one chain of NaN", "nan", {"network": False}, "a mean would be NaN"),
    ):
        yield Run(f"hand-made, {name}", functools.partial(made, kind, **options), why)


def _falling(learning_rate: float, steps: int) -> dict[str, Any]:
    """Settings of a fit whose learning rate falls to zero."""
    return {"learning_rate": learning_rate, "schedule": rb.schedules.cosine(steps, final=0.0)}


def fitted(kind: Any, options: dict[str, Any], epochs: int) -> Any:
    """Fit a network with eight units."""
    return kind(curve(8), **options).fit(epochs, progress=False)


def made(kind: str, *, lp: bool = True, network: bool = True) -> rb.Draws:
    """Fill `Draws` as a user does, with chains that another program might have sampled."""
    rng = np.random.default_rng(5)
    target = curve(3)
    noise = rng.normal(size=(4, 200, target.dim))
    if kind == "walk":
        q = 0.01 * noise.cumsum(1) + np.arange(4.0)[:, None, None]
    elif kind == "constant":
        q = noise
        q[2] = q[2, :1]
    elif kind == "narrow":
        q = noise
        q[1] *= 0.2
    elif kind == "infinite":
        q = noise
        q[3, 50] = np.inf
    elif kind == "nan":
        q = noise
        q[3] = np.nan
    else:
        way = 16.0 * np.exp(-np.arange(800) / 40.0)
        q = (way + rng.normal(size=(4, 800)))[:, :, None]
        density = -0.5 * q[:, :, 0] ** 2
        energy = rng.gamma(0.5, size=density.shape) - density
        stats = {"lp": density, "energy": energy, "n_steps": np.ones(density.shape)}
        return rb.Draws(q, stats, True, None, {"sampler": "NUTS"})
    own = target if network else None
    stats = {"lp": -0.5 * (q**2).sum(2)} if lp else {}
    return rb.Draws(q.astype(np.float32), stats, True, None, {}, predictive=own)


FAILING = tuple(_failing())
RUNS = {run.name: run for run in (*SHORT, *FINE, *FAILING)}


def recorded() -> dict[str, dict[str, str]]:
    """Return the rows of the file by the names of their runs."""
    with RECORDED.open(newline="", encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def contradictions(
    function: str,
    summary: Any,
    warned: Sequence[str],
    *,
    others: Sequence[Any] = (),
    reason: str | None = None,
    codes: Mapping[str, int] | None = None,
) -> list[str]:
    """Return in which words a run denies itself.

    `warned` are the warnings of `function`, `others` further summaries of the same draws, `reason`
    says why ``until=`` ended the run, and `codes` are exit codes by what was required.
    """
    outcome, found = summary.outcome, []
    says = [text for text in warned if text.startswith(f"[{function}] Not converged: ")]
    if len(says) != (outcome == "not converged"):
        found.append(f"{len(says)} warnings say not converged, the summary says {outcome}")
    if summary.converged is not {"not converged": False, "too short to tell": None}.get(
        outcome, True
    ):
        found.append(f"converged is {summary.converged}, the outcome is {outcome}")
    found += [
        f"one summary says {outcome}, one says {other.outcome}"
        for other in others
        if {summary.converged, other.converged} == {True, False}
    ]
    unmet = [text for text in warned if text.startswith(f"[{function}] until= was not met")]
    if len(unmet) != (reason not in (None, "converged") and not says):
        found.append(f"until= ended by {reason}, and {len(unmet)} warnings say it was not met")
    if reason == "converged" and outcome not in CONVERGED:
        found.append(f"until= ended by {reason}, the summary says {outcome}")
    if rest := set(warned) - set(says) - set(unmet):
        found.append(f"other warnings: {rest}")
    met = {"converged": outcome == CONVERGED[0], "predictions": outcome in CONVERGED}
    found += [
        f"--require {wanted} exits with {code}, the summary says {outcome}"
        for wanted, code in (codes or {}).items()
        if code != (0 if met[wanted] else 1)
    ]
    return found


def write() -> None:
    """Write the outcome of every recorded run to the file."""
    rows = recorded()
    for name, row in rows.items():
        row["after"] = said(RUNS[name]).summary.outcome
        print(f"{name}: {row['before']} -> {row['after']}")
    with RECORDED.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["name", "before", "after", "reason"], lineterminator="\n")
        table.writeheader()
        table.writerows(rows.values())


if __name__ == "__main__":
    write()
