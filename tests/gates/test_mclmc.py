"""Gates of MCLMC: its draws are compared with closed forms.

Adjusted: chains that start at exact draws keep the distribution (5.5 standard errors of six
figures, false-fail rate 3e-7), and planted faults change it. The conjugate gate runs with default
settings.

Unadjusted: the bias of the variances of Gaussians is as large as documented, with default settings
and with energy variances alone, and falls with the energy variance. Whitened inputs, which are not
the default, give less bias in the narrowest direction and longer steps. A few narrow directions
among many parameters have little bias with default settings. `discretization_bias` finds the bias
of the log likelihood and of the log prior.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest

import ribbit as rb
from ribbit.samplers import MCLMC
from ribbit.samplers.mcmc.energy_tuning import variances_of
from tests.support import faults
from tests.support import linear_posterior as linear
from tests.support.gates import Table, agreement
from tests.support.stepwise import started, stepped
from tests.support.targets import SDS, Gaussian

# --- adjusted: one-step invariance ----------------------------------------------------------------

REPLICATES, TRANSITIONS = 20_000, 3


def errors_of_a_law(step_size=1.2, integrator="leapfrog", sd=SDS, native=True, seed=8):
    """Largest of the standard errors by which means and squares of exact draws have moved."""
    rng = np.random.default_rng((11, seed))
    start = rng.normal(size=(REPLICATES, 3)) * SDS
    sampler = MCLMC(
        gaussian(np.array(sd)) if native else Gaussian(sd),
        adjusted=True,
        inverse_mass_matrix=None,
        step_size=step_size,
        decoherence_length=2.0 * step_size,
        integrator=integrator,
    )
    state, moved = started(sampler, start, seed=seed), np.zeros(REPLICATES, dtype=bool)
    rates = []
    for _ in range(TRANSITIONS):
        state, info = stepped(sampler, state)
        moved |= info["accepted"]
        rates.append(info["acceptance_rate"].mean())
    assert moved.mean() > 0.5, "the control: what does not move keeps its law"
    z = state.position / SDS
    worst = 0.0
    for values in (z, z**2 - 1.0):
        error = values.std(axis=0, ddof=1) / math.sqrt(REPLICATES)
        worst = max(worst, float(np.abs(values.mean(axis=0) / error).max()))
    return worst, float(np.mean(rates))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("integrator", "step_size"), [("leapfrog", 1.2), ("mclachlan", 2.0)])
def test_adjusted_transitions_keep_the_law(integrator, step_size, native):
    worst, rate = errors_of_a_law(step_size, integrator, native=native)
    assert worst <= 5.5
    assert 0.5 < rate < 0.95


@pytest.mark.slow
def test_no_alarm_in_a_hundred_seeds():
    assert max(errors_of_a_law(seed=seed)[0] for seed in range(100)) <= 5.5


@faults.needed
@pytest.mark.parametrize(
    "fault", ["no accept step", "energy of the kicks +10 %", "missing kinetic term", "kicks +20 %"]
)
def test_faults_of_the_core_move_it(fault):
    assert faults.with_fault(fault, errors_of_a_law)[0] > 5.5


def test_a_wrong_target_moves_it():
    assert errors_of_a_law(sd=1.05 * np.array(SDS))[0] > 5.5


# --- adjusted: the conjugate gate -----------------------------------------------------------------

ADJUSTED = {
    "defaults": {},
    "scales of layers": {"inverse_mass_matrix": "layers"},
    "mclachlan, adapted mass": {"integrator": "mclachlan", "inverse_mass_matrix": "adapt"},
}


@functools.cache
def adjusted(name):
    """Draws of the conjugate regression."""
    target = linear.target(dtype=np.float32)
    sampler = MCLMC(target, adjusted=True, **ADJUSTED[name])
    return sampler.sample(600, chains=64, seed=3, progress=False)


def closed_form(noise=linear.NOISE, prior=linear.PRIOR):
    """Posterior mean and sd (P,)."""
    precision = linear.DESIGN.T @ linear.DESIGN / noise**2 + np.eye(linear.DIM) / prior**2
    covariance = np.linalg.inv(precision)
    return covariance @ linear.DESIGN.T @ linear.Y / noise**2, np.sqrt(np.diag(covariance))


@pytest.mark.parametrize("name", ADJUSTED)
def test_adjusted_draws_have_the_closed_form(name):
    draws = adjusted(name)
    found = agreement(draws.positions, *closed_form())
    assert found.mean_errors <= 5.5
    assert found.sd_error <= 0.05
    assert not draws.stats["diverging"].any()


@pytest.mark.parametrize("wrong", [{"noise": 1.1 * linear.NOISE}, {"prior": 0.5 * linear.PRIOR}])
def test_a_wrong_closed_form_is_refused(wrong):
    assert not agreement(adjusted("defaults").positions, *closed_form(**wrong)).holds


# --- unadjusted: the refresh ----------------------------------------------------------------------

SHARE = 0.25  # of the decoherence length in a step


def kept_direction():
    """Return the mean cosine of directions one step apart in a nearly flat density."""
    target = gaussian(np.full(1000, 1e4))
    sampler = MCLMC(target, step_size=1.0, decoherence_length=1.0 / SHARE, inverse_mass_matrix=None)
    state, cosines = started(sampler, np.zeros((100, 1000)), seed=5), []
    for _ in range(20):
        before = state.velocity / np.linalg.norm(state.velocity, axis=1, keepdims=True)
        state, _ = stepped(sampler, state)
        after = state.velocity / np.linalg.norm(state.velocity, axis=1, keepdims=True)
        cosines.append(np.sum(before * after, axis=1))
    return float(np.mean(cosines))


def test_a_direction_forgets_itself_over_the_decoherence_length():
    """2,000 cosines, each with an sd of 0.03 at most: the bound is 14 standard errors away."""
    assert abs(kept_direction() - math.exp(-SHARE)) < 0.01


@faults.needed
def test_a_wrong_scale_of_the_refresh_is_caught():
    assert abs(faults.with_fault("noise scale +10 %", kept_direction) - math.exp(-SHARE)) > 0.01


# --- unadjusted: the bias -------------------------------------------------------------------------

WIDTHS = np.geomspace(0.3, 3.0, 40)
CHAINS = 16
# Energy variance at the end of warmup (the first is the shipped default, the second that without
# its limit on steps): what the ratio of the found variance to the true one may be, of the narrowest
# direction and of the widest.
LAST = 0.02
BIAS = {
    "auto": (1.5, 0.88),
    LAST: (1.7, 0.88),
    0.1: (2.6, 0.8),
    0.01: (1.5, 0.9),
    0.0005: (1.2, 0.94),
}


def gaussian(sd):
    """A posterior N(0, diag(sd^2)) of a linear model, native."""
    prior = 2.0 * sd.max()
    return rb.Posterior(
        rb.Model([rb.Dense(1, bias=False)], input_shape=(len(sd),)),
        np.diag(np.sqrt(1.0 / sd**2 - 1.0 / prior**2)),
        np.zeros((len(sd), 1)),
        prior=rb.Normal(prior),
        likelihood=rb.Gaussian(1.0),
    )


@functools.cache
def variances(variance):
    """Found / true variances (40,) of a Gaussian, the energy variance of every chain, step / L."""
    options = (
        {} if variance == "auto" else {"desired_energy_var": (0.5, variance), "step_limit": None}
    )
    start = np.random.default_rng(2).normal(size=(4 * CHAINS, 40)) * WIDTHS
    draws = MCLMC(gaussian(WIDTHS), **options).sample(500, init=start, seed=6, progress=False)
    found = (draws.positions.astype(float) / WIDTHS) ** 2
    stats = {name: values[:, -1] for name, values in draws.stats.items()}
    turns = stats["step_size"] / stats["decoherence_length"]
    return found.mean(axis=(0, 1)), stats["energy_variance"], turns


class Grouped(Gaussian):
    """Normals of three widths that say which belong together."""

    parameter_groups = (0, 10, 70)


def test_with_a_scale_for_each_group_the_bias_is_the_same_in_all():
    """Not at the shipped defaults, whose limit on steps hides it: by the energy variance alone.

    A mean variance of ten directions is known to 1 %, and the bounds are 5 errors away from what
    was found: 1.15, 1.10 and 1.15; with one scale 1.43, 0.96 and 0.96.
    """
    sd = np.repeat([0.02, 1.0, 0.3], [10, 60, 20])
    start = np.random.default_rng(3).normal(size=(CHAINS, 90)) * sd
    found = {}
    for matrix in ("auto", None):
        sampler = MCLMC(Grouped(sd), inverse_mass_matrix=matrix, step_limit=None)
        draws = sampler.sample(500, init=start, seed=6, progress=False)
        squares = ((draws.positions / sd) ** 2).mean(axis=(0, 1))
        found[matrix] = np.array([squares[:10].mean(), squares[10:70].mean(), squares[70:].mean()])
    assert np.all((found["auto"] > 1.0) & (found["auto"] < 1.21))
    assert found[None][0] > 1.3, "the control: one scale for all"
    assert found[None][1:].max() < 1.0


INPUTS, UNITS = np.geomspace(0.1, 1.0, 10), 8


def a_layer():
    """Directions (10, 10), and a layer whose units are N(0, sum of (sd * direction)^2) each."""
    directions, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(10, 10)))
    prior = 2.0 * INPUTS.max()
    target = rb.Posterior(
        rb.Model([rb.Dense(UNITS, bias=False)], input_shape=(10,)),
        np.sqrt(1.0 / INPUTS**2 - 1.0 / prior**2)[:, None] * directions.T,
        np.zeros((10, UNITS)),
        prior=rb.Normal(prior),
        likelihood=rb.Gaussian(1.0),
    )
    return directions, target


@functools.cache
def variances_of_inputs(matrix):
    """Found / true variances (10,) along the directions of a layer's inputs, the mean step size."""
    directions, target = a_layer()
    z = np.random.default_rng(2).normal(size=(CHAINS, 10, UNITS)) * INPUTS[:, None]
    draws = MCLMC(target, inverse_mass_matrix=matrix, step_limit=None).sample(
        1000, init=(directions @ z).reshape(CHAINS, -1), seed=6, progress=False
    )
    along = directions.T @ draws.positions.astype(float).reshape(CHAINS, 1000, 10, UNITS)
    found = np.mean((along / INPUTS[:, None]) ** 2, axis=(0, 1, 3))
    return found, draws.stats["step_size"][:, -1].mean()


def test_with_whitened_inputs_the_narrowest_has_less_bias_and_steps_are_longer():
    """Not at the shipped defaults: by the energy variance alone; the mean bias is no smaller.

    128,000 values of a direction know its variance to 0.3 % (four seeds: 1.210 to 1.217 for the
    narrowest, 1.010 to 1.015 for the widest), and the bounds are 8 errors away or more.
    """
    found, step = variances_of_inputs("inputs")
    plain, short = variances_of_inputs("auto")
    assert np.all((found > 0.93) & (found < 1.29))
    assert step > 2.0 * short
    assert plain[0] > 1.35, "the control: a scale for the layer, none for its inputs"


@pytest.mark.parametrize("variance", BIAS)
def test_the_bias_of_variances_is_as_stated(variance):
    """32,000 draws 20 steps apart know a variance to 1 %: 64 chains with a step size of their own.

    In all rows every bound is 9 errors away or more. By default steps are a quarter of the length.
    """
    ratio, reached, turns = variances(variance)
    most, least = BIAS[variance]
    if variance == "auto":
        assert np.all(reached < LAST)
        np.testing.assert_allclose(turns, 0.25)
    else:
        assert np.all((reached > 0.6 * variance) & (reached < 1.5 * variance))
    assert 1.0 < ratio[0] < most
    assert least < ratio[-5:].mean() < 1.03


def test_the_bias_falls_with_the_energy_variance():
    """As its cube root: errors of a step are of third order, those of the law of second."""
    narrow = [variances(v)[0][:5].mean() - 1.0 for v in (0.1, 0.01, 0.0005)]
    assert narrow[0] > 2.0 * narrow[1] > 3.0 * narrow[2] > 0.0
    order = math.log(narrow[1] / narrow[2]) / math.log(0.01 / 0.0005)
    assert 0.2 < order < 0.5


MANY, NARROWED, WIDTH = 10_000, 20, 1.0 / 3.0


def narrowed(many, chains):
    """Directions (P, 20), a posterior N(0, 1) that is a third as wide along them, exact draws."""
    rng = np.random.default_rng(5)
    directions, _ = np.linalg.qr(rng.normal(size=(many, NARROWED)))
    target = rb.Posterior(
        rb.Model([rb.Dense(1, bias=False)], input_shape=(many,)),
        math.sqrt(1.0 / WIDTH**2 - 1.0) * directions.T,
        np.zeros((NARROWED, 1)),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(1.0),
    )
    start = rng.normal(size=(chains, many))
    return directions, target, start + (WIDTH - 1.0) * (start @ directions) @ directions.T


@functools.cache
def variance_of_few(variance, many=MANY):
    """Found / true variance of 20 directions a third as wide as all others; theirs; the step."""
    options = {} if variance == "auto" else {"desired_energy_var": variance, "step_limit": None}
    directions, target, start = narrowed(many, chains=8)
    draws = MCLMC(target, **options).sample(200, init=start, seed=6, progress=False)
    squares = draws.positions.astype(float) ** 2
    narrow = (draws.positions.astype(float) @ directions) ** 2
    others = (squares.sum(axis=2) - narrow.sum(axis=2)).mean() / (many - NARROWED)
    return narrow.mean() / WIDTH**2, others, draws.stats["step_size"][:, -1].mean()


def narrow_enough(narrow, others):
    """Whether few of many are nearly as they should be: see the test."""
    return 1.05 < narrow < 1.3 and 0.99 < others < 1.015


@pytest.mark.parametrize("many", [1250, MANY])
def test_of_many_parameters_those_that_rows_narrow_have_little_bias(many):
    """At the shipped defaults; the control has no limit on steps and the variance that few have.

    The error is 0.017, and the bounds are 5 errors away or more.
    """
    narrow, others, _ = variance_of_few("auto", many)
    assert narrow_enough(narrow, others)
    assert variance_of_few((0.5, LAST), many)[0] > 1.9, "the control"


def test_the_variance_of_many_is_less_of_each():
    """Not at the shipped defaults, whose limit on steps is shorter here: by their variance alone.

    Four seeds: 1.40 to 1.44 with an error of 0.017, of the control 5.0 (two seeds). A step is
    8^(-1/3) as long as the control's where its errors go with its cube alone.
    """
    narrow, _, step = variance_of_few(variances_of(MANY))
    assert 1.15 < narrow < 1.7
    control, _, long = variance_of_few((0.5, LAST))
    assert control > 3.0, "the control"
    assert 0.45 < step / long < 0.65


FEW = 1_250


def by_chain(target, start, variance):
    """Draws from exact ones, their `discretization_bias`, and that by 3 / 4 of the step."""
    options = {} if variance == "auto" else {"desired_energy_var": variance, "step_limit": None}
    sampler = MCLMC(target, **options)
    draws = sampler.sample(200, init=start, seed=6, progress=False)
    found = sampler.discretization_bias(draws, num_steps=10_000, progress=False).by_chain
    state, parts = draws.state, 1_000
    longer = dataclasses.replace(state, step_size=0.75 * state.step_size)
    terms = []
    for begin in (state, longer):
        means = np.zeros((len(start), 2))
        for part in range(parts):
            begin, _ = stepped(sampler, begin)
            means += begin.terms * (part >= parts // 2) / (parts // 2)
        terms.append(means)
    return draws.positions.astype(float), found, (terms[0] - terms[1]) / 0.99


@functools.cache
def bias_of_likelihood(variance):
    """Of 1,250 parameters, 20 of them narrowed: the bias of the log likelihood, by chain.

    Known, found, found by 3/4 of the step, and the sd of the log likelihood, which is
    -(1 - 1 / 9) / 2 chi^2 of 20 and a constant.
    """
    directions, target, start = narrowed(FEW, chains=32)
    positions, found, wrong = by_chain(target, start, variance)
    narrow = ((positions @ directions) ** 2).sum(axis=2)
    likelihood = -0.5 * (1.0 / WIDTH**2 - 1.0) * narrow
    known = likelihood.mean(axis=1) + 0.5 * NARROWED * (1.0 - WIDTH**2)
    return known, found[:, 0], wrong[:, 0], (1.0 - WIDTH**2) * math.sqrt(NARROWED / 2.0)


@functools.cache
def bias_of_normals(variance):
    """Of 1,250 normals: the bias of the log density, as above."""
    target = rb.Posterior(
        rb.Model([rb.Dense(1, bias=False)], input_shape=(FEW,)),
        np.zeros((1, FEW)),
        np.zeros((1, 1)),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(1.0),
    )
    start = np.random.default_rng(5).normal(size=(32, FEW))
    positions, found, wrong = by_chain(target, start, variance)
    known = 0.5 * (FEW - (positions**2).sum(axis=2)).mean(axis=1)
    return known, found.sum(axis=1), wrong.sum(axis=1), math.sqrt(FEW / 2.0)


def errors_apart(known, found):
    """Difference of two means over chains in their standard errors."""
    spread = known.var(ddof=1) / len(known) + found.var(ddof=1) / len(found)
    return abs(known.mean() - found.mean()) / math.sqrt(spread)


# Sums over all parameters: name, function, energy variance, and bounds on -bias in sds of the sum.
TOGETHER = (
    ("log likelihood", bias_of_likelihood, "auto", (0.3, 0.65)),
    ("log likelihood", bias_of_likelihood, (0.5, LAST), (3.2, 3.8)),
    ("log density", bias_of_normals, "auto", (0.05, 0.25)),
    ("log density", bias_of_normals, (0.5, LAST), (2.9, 3.4)),
)


@pytest.mark.parametrize(("name", "of", "variance", "sds"), TOGETHER)
def test_shorter_steps_find_the_bias(name, of, variance, sds):
    """At the shipped defaults and by the energy variance alone, of which a step is too long.

    32 chains: 6.5 standard errors are passed by chance once in a million times.
    """
    known, found, wrong, sd = of(variance)
    assert sds[0] < -known.mean() / sd < sds[1]
    assert errors_apart(known, found) < 6.5
    if variance != "auto":
        assert errors_apart(known, wrong) > 6.5, "the control: 3/4 of the step"
    elif name == "log likelihood":  # that of the log density is no more than bounded
        assert errors_apart(np.zeros_like(known), found) > 6.5, "the control: no bias"


def results():
    table = Table(
        "Unadjusted MCLMC: bias of the variances of a Gaussian",
        ("energy variance", "measured", "narrowest", "widest", "mean"),
        note="40 parameters with sds from 0.3 to 3. The last three columns are found / true "
        "variances: of the narrowest parameter, of the five widest, and the mean of all. The "
        "second column is the measured energy variance. The first row has the default settings: an "
        "energy variance of 0.02, and steps of at most a quarter of the decoherence length.",
    )
    for variance, (most, least) in BIAS.items():
        ratio, reached, _ = variances(variance)
        table.add(
            variance,
            f"{reached.mean():.2g}",
            f"{ratio[0]:.2f}",
            f"{ratio[-5:].mean():.2f}",
            f"{ratio.mean():.2f}",
            holds=ratio[0] < most and ratio[-5:].mean() > least,
        )
    layer = Table(
        "Unadjusted MCLMC: bias along the directions of a layer's inputs",
        ("inverse mass matrix", "step", "narrowest", "widest", "mean"),
        note="8 units of 10 inputs: a Gaussian with sds from 0.1 to 1 along directions that are "
        "not the axes. The last three columns are found / true variances. Steps follow from an "
        "energy variance of 0.02, without the limit on their length.",
    )
    for matrix in ("inputs", "auto"):
        ratio, step = variances_of_inputs(matrix)
        layer.add(
            matrix,
            f"{step:.1f}",
            f"{ratio[0]:.2f}",
            f"{ratio[-1]:.2f}",
            f"{ratio.mean():.2f}",
            holds=matrix == "auto" or bool(np.all((ratio > 0.93) & (ratio < 1.29))),
        )
    few = Table(
        "Unadjusted MCLMC: bias along a few narrow directions among many",
        ("parameters", "energy variance", "step", "narrow", "others"),
        note="Parameters N(0, 1); the data make 20 directions a third as wide. The last two "
        'columns are found / true variances. "auto" is the default, with steps of at most a '
        "quarter of the decoherence length. The other rows have no limit on steps. They use the "
        "default energy variances for that number of parameters, and the default for up to 1,250 "
        f"parameters, (0.5, {LAST}).",
    )
    for many, variance in (
        (1250, "auto"),
        (1250, (0.5, LAST)),
        (MANY, "auto"),
        (MANY, variances_of(MANY)),
        (MANY, (0.5, LAST)),
    ):
        narrow, others, step = variance_of_few(variance, many)
        few.add(
            many,
            variance if variance == "auto" else "({:.3g}, {:.3g})".format(*variance),
            f"{step:.1f}",
            f"{narrow:.2f}",
            f"{others:.3f}",
            holds=variance != "auto" or bool(narrow_enough(narrow, others)),
        )
    shorter = Table(
        "Unadjusted MCLMC: bias of the log likelihood and of the log density",
        (
            "quantity",
            "energy variance",
            "bias",
            "in sds",
            "estimate of discretization_bias",
            "estimate with 3/4 of the step",
        ),
        note="1,250 parameters N(0, 1), 32 chains of 200 draws. The log likelihood has 20 rows, "
        "which make 20 directions a third as wide. The log density has no such rows. Biases are in "
        "nats, and in sds of the quantity. `discretization_bias` estimates them with 10,000 steps "
        "of a tenth of the step size. The last column is a control: 1,000 steps of three quarters.",
    )
    for name, of, variance, _ in TOGETHER:
        known, found, wrong, sd = of(variance)
        error = found.std(ddof=1) / math.sqrt(len(found))
        shorter.add(
            name,
            str(variance),
            f"{known.mean():.2f}",
            f"{known.mean() / sd:.2f}",
            f"{found.mean():.2f} +- {error:.2f}",
            f"{wrong.mean():.2f}",
            holds=bool(errors_apart(known, found) < 6.5),
        )
    return [table, layer, few, shorter]
