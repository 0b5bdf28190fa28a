"""A target that takes a minibatch for each chain in one call draws what it draws chain by chain."""

import numpy as np
import pytest

import ribbit as rb


class Lines:
    """y = theta_0 + theta_1 x of N = 20 rows, noise of sd 1 and normal priors."""

    dim, num_rows = 2, 20

    def __init__(self, per_chain: bool, swapped: bool = False) -> None:
        self.rows_per_chain, self.swapped, self.calls = per_chain, swapped, []
        x = np.linspace(-1, 1, self.num_rows)
        self.design, self.y = np.stack([np.ones_like(x), x], axis=1), np.sin(2 * x)

    def value_and_grad(self, theta, rows=None):
        rows = np.arange(self.num_rows) if rows is None else rows
        self.calls.append(rows.shape)
        if self.swapped and rows.ndim == 2:
            rows = rows[::-1]
        design, y = self.design[rows], self.y[rows]  # (n, 2) or (C, n, 2)
        residual = y - np.squeeze(design @ theta[..., None], -1)
        scale = self.num_rows / rows.shape[-1]
        lp = -0.5 * scale * (residual**2).sum(-1) - 0.5 * (theta**2).sum(-1)
        slope = np.squeeze(
            np.swapaxes(np.broadcast_to(design, (*residual.shape, 2)), 1, 2) @ residual[..., None],
            -1,
        )
        return lp, scale * slope - theta


def draws(target):
    sgld = rb.SGLD(target, step_size=1e-2, batch_size=6)
    how = {"warmup": 3, "chains": 3, "seed": 4, "progress": False}
    return sgld.sample(9, init=np.zeros(2), **how).positions


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_one_call_for_all_chains_draws_the_same():
    one, each = Lines(True), Lines(False)
    known = draws(each)
    np.testing.assert_allclose(draws(one), known, rtol=1e-12, atol=1e-14)
    assert (3, 5) in one.calls
    assert (5,) in each.calls
    assert len(one.calls) < len(each.calls) / 2
    # the rows of one chain given to another are noticed
    assert np.abs(draws(Lines(True, swapped=True)) - known).max() > 1e-3
