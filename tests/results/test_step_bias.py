"""What is said of the bias of steps: its figures, and a verdict for each case."""

import numpy as np
import pytest

from ribbit.results.step_bias import StepBias

NAMES = ("log likelihood", "log prior")


def found(bias, error, sd=(4.0, 10.0), chains=4):
    """Of a wanted bias and standard error by term: values by chain that have these."""
    pattern = np.linspace(-1.0, 1.0, chains)[:, None]
    pattern = pattern / pattern.std(ddof=1) * np.sqrt(chains)
    by_chain = np.asarray(bias) + pattern * np.asarray(error)
    return StepBias(NAMES, by_chain, np.asarray(sd), num_steps=2000, num_gradients=8800)


def test_figures():
    one = found((-3.0, 1.0), (0.5, 0.1))
    np.testing.assert_allclose(one.bias, (-3.0, 1.0))
    np.testing.assert_allclose(one.error, (0.5, 0.1))
    text = str(one)
    assert "bias of the log likelihood  -3 +- 0.5 nats, -0.75 of its sd" in text
    assert "2,000 a chain" in text
    assert "8,800" in text
    assert repr(one) == text


@pytest.mark.parametrize(
    ("bias", "error", "converged", "words"),
    [
        ((-0.3, 0.5), (0.1, 0.2), True, "No term is off"),
        # 4 chains: 5.84 errors are 1.2 nats, a quarter of the sds 1 and 2.5
        ((-5.0, 0.5), (0.2, 0.2), False, "draws' log likelihood is 5 nats low: take a smaller"),
        ((5.0, -9.0), (0.2, 0.2), False, "log likelihood is 5 nats high and their log prior is 9"),
        ((-1.1, 0.5), (0.2, 0.2), None, "bias of the log likelihood is within a quarter"),
        ((-0.3, 0.5), (0.2, 0.9), None, "the log likelihood and the log prior is within"),
        ((-1.1, 9.0), (0.2, 0.2), False, "draws' log prior is 9 nats high"),
    ],
)
def test_verdicts(bias, error, converged, words):
    summary = found(bias, error).summary()
    assert summary.converged is converged
    assert words in summary.verdict
    assert summary.verdict.endswith("is not in it.")


def test_the_same_spread_of_more_chains_says_more():
    """5.84 errors of 4 chains, 3.25 of 10."""
    bias, error = (-2.0, 0.0), (0.5, 0.1)
    assert found(bias, error, chains=4).summary().converged is None
    assert found(bias, error, chains=10).summary().converged is False


def test_a_term_that_never_moves_is_not_off():
    one = found((0.0, 0.0), (0.0, 0.1), sd=(0.0, 10.0))
    assert one.summary().converged is True
    assert "+0 +- 0 nats, - of its sd" in str(one)
