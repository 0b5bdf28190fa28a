"""Normal quantiles of arrays against the standard library's, one by one."""

from statistics import NormalDist

import numpy as np

from ribbit.results.convergence import _normal_scores, lower_quantile


def test_quantiles_of_the_standard_library() -> None:
    """In the middle, in the tail and in the far one (below exp(-25))."""
    p = np.concatenate([np.linspace(0.0, 0.5, 4001)[1:], 10.0 ** -np.arange(1.0, 300.0, 0.25)])
    expected = np.array([NormalDist().inv_cdf(value) for value in p])
    np.testing.assert_allclose(lower_quantile(p), expected, rtol=1e-15, atol=1e-300)


def test_scores_are_odd_about_the_middle() -> None:
    for n in (1, 2, 5, 800):
        scores = _normal_scores(n)
        exact = [
            NormalDist().inv_cdf((1.0 + 0.5 * i - 0.375) / (n + 0.25)) for i in range(2 * n - 1)
        ]
        np.testing.assert_allclose(scores, exact, rtol=1e-13, atol=1e-15)
        assert np.array_equal(scores, -scores[::-1])
        assert (np.diff(scores) > 0.0).all()
