"""What is said of the bias of steps: its figures, and a outcome for each case."""

import numpy as np
import pytest

from ribbit.results.discretization_bias import DiscretizationBias

NAMES = ("log likelihood", "log prior")


def found(bias, error, sd=(4.0, 10.0), chains=4, still=0, set_by="desired_energy_var"):
    """Of a wanted bias and standard error by term: values by chain that have these."""
    pattern = np.linspace(-1.0, 1.0, chains)[:, None]
    pattern = pattern / pattern.std(ddof=1) * np.sqrt(chains)
    by_chain = np.asarray(bias) + pattern * np.asarray(error)
    return DiscretizationBias(NAMES, by_chain, np.asarray(sd), still, set_by, 2000, 8800)


def test_figures():
    """Of four chains an interval is 5.84 errors on either side."""
    one = found((-3.0, 1.0), (0.5, 0.1))
    np.testing.assert_allclose(one.bias, (-3.0, 1.0))
    np.testing.assert_allclose(one.error, (0.5, 0.1))
    np.testing.assert_allclose(one.interval, [(-5.92, -0.08), (0.416, 1.584)], rtol=1e-3)
    text = str(one)
    assert "bias of the log likelihood  -3 nats (99 %: -5.92 to -0.08), -0.75 sds" in text
    assert "2,000 a chain" in text
    assert "8,800" in text
    assert repr(one) == text


@pytest.mark.parametrize("chains", [2, 3, 5, 10, 11, 40])
def test_intervals_are_those_of_student(chains):
    """Beyond ten degrees of freedom those of ten, which are wider."""
    stats = pytest.importorskip("scipy.stats")
    low, high = found((0.0, 1.0), (1.0, 1.0), chains=chains).interval[0]
    expected = stats.t.ppf(0.995, min(chains - 1, 10))
    np.testing.assert_allclose((low, high), (-expected, expected), rtol=2e-3)


@pytest.mark.parametrize(
    ("bias", "error", "converged", "words"),
    [
        ((-0.3, 0.5), (0.1, 0.2), True, "No term is off"),
        # intervals of 1.2 nats on either side; a quarter of the sds is 1 and 2.5
        ((-5.0, 0.5), (0.2, 0.2), False, "draws' log likelihood is 5 nats low: take a smaller"),
        ((5.0, -9.0), (0.2, 0.2), False, "log likelihood is 5 nats high and their log prior is 9"),
        ((-1.1, 0.5), (0.2, 0.2), None, "bias of the log likelihood is within a quarter"),
        ((-2.1, 0.5), (0.2, 0.2), None, "bias of the log likelihood is within a quarter"),
        ((-0.3, 0.5), (0.2, 0.9), None, "the log likelihood and the log prior is within"),
        ((-1.1, 9.0), (0.2, 0.2), False, "draws' log prior is 9 nats high"),
    ],
)
def test_outcomes(bias, error, converged, words):
    summary = found(bias, error).summary()
    assert summary.converged is converged
    assert words in summary.message
    assert summary.message.endswith("is not in it.")


def test_the_same_spread_of_more_chains_says_more():
    """5.84 errors of 4 chains, 3.25 of 10."""
    bias, error = (-3.0, 0.0), (0.5, 0.1)
    few, many = (found(bias, error, chains=c).summary() for c in (4, 10))
    assert few.converged is None
    assert "or draws of more chains" in few.message
    assert many.converged is False


def test_advice_is_for_how_the_step_was_found():
    for name, share in (
        ("desired_energy_var", "a tenth of it has about half of the bias"),
        ("step_limit", "half of it has a quarter of the bias"),
        ("step_size", "half of it has a quarter of the bias"),
    ):
        outcome = found((-5.0, 0.5), (0.2, 0.2), set_by=name).summary().message
        assert f"take a smaller {name} ({share}) in a new run" in outcome


def test_chains_that_do_not_move_say_nothing():
    summary = found((0.0, 0.0), (0.0, 0.0), still=2).summary()
    assert summary.converged is None
    assert "did not move" in summary.message
    assert "chains that stayed where they were  2" in summary.text


def test_a_term_that_never_moves_is_not_off():
    one = found((0.0, 0.0), (0.0, 0.1), sd=(0.0, 10.0))
    assert one.summary().converged is True
    assert "+0 nats (99 %: +0 to +0), 0 sds" in str(one)


def test_one_chain_has_no_spread():
    with pytest.raises(ValueError, match="two chains or more, got 1"):
        DiscretizationBias(NAMES, np.zeros((1, 2)), np.ones(2), 0, "step_size", 2000, 8800)
