"""Members of an ensemble that nothing tells apart are refused."""

import numpy as np
import pytest

import ribbit as rb

RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(30, 2)), RNG.normal(size=30)


def target():
    return rb.Posterior(rb.mlp(2, (4,), 1), X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))


def fit(init, batch_size):
    ensemble = rb.DeepEnsemble(target(), members=3, batch_size=batch_size, learning_rate=1e-2)
    return ensemble.fit(5, init=init, progress=False)


def test_one_start_with_all_rows_is_refused():
    start = target().init(seed=4)
    with pytest.raises(ValueError, match="a start for each of the 3 members, got 1"):
        fit(start, None)
    with pytest.raises(ValueError, match="got 2"):
        fit(np.stack([start, start, start + 1]), None)


def test_minibatches_or_different_starts_tell_members_apart():
    start = target().init(seed=4)
    for found in (fit(start, 10), fit(target().init(seed=4, chains=3), None), fit(None, None)):
        assert np.unique(found.theta, axis=0).shape[0] == 3


def test_one_member_needs_no_other_start():
    ensemble = rb.DeepEnsemble(target(), members=1, batch_size=None)
    assert ensemble.fit(2, init=target().init(seed=4), progress=False).complete
