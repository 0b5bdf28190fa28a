"""Whether runs say the same everywhere, and the truth: 24 short, 50 fine and 50 failing ones.

Every seed is fixed. On one instruction set a run has the same bits each time, so no test here can
fail by chance (false-fail rate 0). Other instruction sets round otherwise: the fine and the failing
runs are far from every limit, so that their outcomes are the same there, and of short runs only
the words are compared with each other.

The fine and the failing runs are each other's control: a summary that always said the same would
fail half of them.
"""

import contextlib
import io
from types import SimpleNamespace

import pytest

import ribbit as rb
from ribbit import _core
from ribbit.__main__ import main
from tests.support import outcome_runs as runs
from tests.support.outcome_runs import CONVERGED, FAILING, FINE, OUTCOMES, SHORT, contradictions

REQUIRED = ("converged", "predictions")
TOYS = [(sampler, seed) for sampler in runs.TOY_SAMPLERS for seed in range(6)]
RULE = rb.Converged(rhat=1.05, ess=100)  # the default rule takes these chains thousands of draws


def as_recorded(run, summary):
    """Whether an outcome is the one in the file, if the run is there.

    Short runs lie near the limits, so their outcomes are those of one instruction set.
    """
    row = runs.recorded().get(run.name)
    if row is None or (run in SHORT and _core.isa() != "baseline"):
        return True
    return row["after"] == summary.outcome


def summary_command(path, *options):
    """Exit code and output of ``python -m ribbit summary``."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(["summary", str(path), *options])
    return code, out.getvalue()


@pytest.mark.parametrize("run", SHORT, ids=str)
def test_short_runs_say_the_same_everywhere(run, tmp_path):
    draws, summary, warned = runs.said(run)
    draws.save(tmp_path / "draws")
    assert summary_command(tmp_path / "draws") == (0, summary.text + "\n")
    codes = {r: summary_command(tmp_path / "draws", "--require", r)[0] for r in REQUIRED}
    function = f"{draws.settings['sampler']}.sample"
    others = [draws.summary(runs.TOY), rb.load(tmp_path / "draws").summary()]
    assert contradictions(function, summary, warned, others=others, codes=codes) == []
    assert others[1].outcome == summary.outcome
    assert as_recorded(run, summary)


@pytest.mark.parametrize(("sampler", "seed"), TOYS)
def test_until_says_the_same_as_the_summary(sampler, seed):
    draws, summary, warned = runs.heard(
        lambda: runs.short(sampler, seed, until=RULE, max_draws=300)
    )
    reason = draws.settings["stopped"]["reason"]
    assert reason in ("converged", "max_draws")
    assert contradictions(f"{sampler}.sample", summary, warned, reason=reason) == []


@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")
@pytest.mark.parametrize(("sampler", "seed"), TOYS)
def test_estimators_say_the_same_as_their_draws(sampler, seed):
    model = runs.estimator(sampler, seed)
    assert model.converged_ is model.summary_.converged
    assert model.converged_ is model.draws_.summary().converged


def test_contradictions_are_found():
    """The control: planted ones, one at a time."""

    def summary(outcome, converged):
        return SimpleNamespace(outcome=outcome, converged=converged)

    yes, no, short = (
        summary(OUTCOMES[1], True),
        summary(OUTCOMES[2], False),
        summary(OUTCOMES[3], None),
    )
    bad = "[HMC.sample] Not converged: R-hat"
    unmet = "[HMC.sample] until= was not met after 9 draws"
    for good in (
        contradictions("HMC.sample", no, [bad], others=[no, short], reason=None),
        contradictions("HMC.sample", no, [bad], reason="max_draws"),
        contradictions("HMC.sample", yes, [], reason="converged", codes={"converged": 1}),
        contradictions(
            "HMC.sample", short, [unmet], reason="max_seconds", codes={"predictions": 1}
        ),
    ):
        assert good == []
    for planted in (
        contradictions("HMC.sample", yes, [bad]),
        contradictions("HMC.sample", no, []),
        contradictions("HMC.sample", no, [bad, bad]),
        contradictions("NUTS.sample", no, [bad]),
        contradictions("HMC.sample", summary(OUTCOMES[0], None), []),
        contradictions("HMC.sample", yes, [], others=[no]),
        contradictions("HMC.sample", yes, [], reason="max_draws"),
        contradictions("HMC.sample", no, [bad, unmet], reason="max_draws"),
        contradictions("HMC.sample", no, [unmet], reason="max_draws"),
        contradictions("HMC.sample", short, [], reason="converged"),
        contradictions("HMC.sample", yes, [unmet], reason="converged"),
        contradictions("HMC.sample", yes, [], codes={"converged": 0}),
        contradictions("HMC.sample", short, [], codes={"predictions": 2}),
        contradictions("HMC.sample", short, ["[HMC.sample] far"]),
    ):
        assert planted


@pytest.mark.parametrize("run", FINE, ids=str)
def test_fine_runs_are_not_called_not_converged(run):
    """At most 2 of 50 may be; these 50 all converge. Means are within 5 MCSE of the truth."""
    draws, summary, warned = runs.said(run)
    assert summary.outcome in CONVERGED, summary
    assert warned == ()
    assert as_recorded(run, summary)
    if run.mean is not None:
        error = abs(draws.positions.mean((0, 1)) - run.mean)
        assert (error < 5.0 * rb.diagnostics.mcse(draws.positions)).all()


@pytest.mark.parametrize("run", FAILING, ids=str)
def test_failing_runs_are_not_called_converged(run):
    _, summary, _ = runs.said(run)
    assert summary.outcome in OUTCOMES
    assert summary.outcome not in (CONVERGED[:1] if run.shared else CONVERGED), summary
    assert as_recorded(run, summary)


def test_the_tables_are_whole():
    assert len(SHORT) == 24
    assert len(FINE) == 50
    assert len(FAILING) >= 50
    assert len(runs.RUNS) == len(SHORT) + len(FINE) + len(FAILING)


def test_the_file_has_a_reason_for_every_change():
    rows = runs.recorded()
    assert len(rows) == 60
    for table, count in ((SHORT, 12), (FINE, 24), (FAILING, 24)):
        assert sum(run.name in rows for run in table) == count
    for row in rows.values():
        assert row["after"] in OUTCOMES
        assert (row["before"] == row["after"]) == (row["reason"] == "")
