"""`rb.Draws` that a user fills: wrong parts are named, right ones have a summary and a file."""

import dataclasses

import numpy as np
import pytest

import ribbit as rb

X = np.linspace(-1, 1, 20)[:, None]
TARGET = rb.Posterior(
    rb.mlp(1, (3,), 1), X, X[:, 0], prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
)
POSITIONS = np.random.default_rng(0).normal(size=(4, 50, TARGET.dim)).astype(np.float32)
LP = POSITIONS.sum(-1)


def made(**parts):
    parts = {
        "positions": POSITIONS,
        "stats": {},
        "complete": True,
        "state": None,
        "settings": {},
        "predictive": TARGET,
        **parts,
    }
    return rb.Draws(**parts)


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("positions", POSITIONS[:, :, :3], r"positions must have the 10 parameters"),
        ("positions", POSITIONS[0], r"positions must have shape \(C, D, P\)"),
        ("positions", POSITIONS[:0], r"positions must have a chain"),
        ("positions", POSITIONS.tolist(), r"positions must be an array"),
        ("positions", POSITIONS.astype(int), r"positions must be real floats"),
        ("positions", None, r"positions must be an array"),
        ("stats", None, r"expected stats as a dict"),
        ("stats", {"lp": LP[:2]}, r"stats\['lp'\] must have shape \(4, 50\)"),
        ("stats", {"lp": LP[0]}, r"stats\['lp'\] must have shape \(4, D\)"),
        ("stats", {"lp": LP.tolist()}, r"stats\['lp'\] must be an array"),
        ("stats", {"lp": LP.astype(str)}, r"stats\['lp'\] must be an array of numbers"),
        ("warmup_positions", POSITIONS[:2], r"warmup_positions must have shape \(4, W, 10\)"),
        ("warmup_stats", {"lp": LP[:2]}, r"warmup_stats\['lp'\] must have shape"),
        ("complete", None, r"expected complete as a bool"),
        ("settings", None, r"expected settings as a dict"),
        ("state", "last", r"state must be None or an object with position"),
        ("predictive", object(), r"predictive must be None or an object with predictive"),
        ("predictive", rb.Posterior, r"predictive must be None or an object with predictive"),
        ("prediction", 3, r"prediction must be None or an object with num_draws"),
    ],
)
def test_a_wrong_part_is_named(part, value, said):
    with pytest.raises((TypeError, ValueError), match=rf"\[Draws\] {said}"):
        made(**{part: value})


def test_other_positions_predict_and_have_no_statistics(tmp_path):
    """dataclasses.replace puts weights in; a call that needs their statistics says so."""
    draws = dataclasses.replace(made(stats={"lp": LP}), positions=POSITIONS[:, :7])
    assert draws.predict(X).num_draws == 28
    for call in (draws.summary, lambda: draws.save(tmp_path / "draws.rbt"), draws.to_datatree):
        with pytest.raises(ValueError, match=r"^\[Draws\.\w+\] positions hold 7 draws, stats"):
            call()
    with pytest.raises(ValueError, match=r"stats\['energy'\] must have shape \(4, 50\)"):
        made(stats={"lp": LP, "energy": LP[:, :7]})
    assert repr(draws).count("positions of 7 draws") == 1
    dataclasses.replace(draws, stats={}).save(tmp_path / "draws.rbt")


def test_a_summary_is_of_the_positions_that_are_there():
    """Chains that agree are moved apart: the quantities that the run monitored are not used."""
    target = rb.Posterior(
        rb.mlp(1, (), 1), X, X[:, 0], prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    )
    draws = rb.HMC(target).sample(500, seed=1, progress=False)
    assert draws.summary().outcome == "converged"
    assert draws.monitored is not None
    apart = draws.positions + 5.0 * np.arange(4, dtype=np.float32)[:, None, None]
    for positions in (apart, apart[:, ::3]):
        moved = dataclasses.replace(draws, positions=positions, stats={})
        assert moved.summary().outcome == "not converged"
        assert moved.summary(X[:5]).outcome == "not converged"


@pytest.mark.parametrize(
    "stats",
    [{}, {"lp": LP}, {"acceptance_rate": LP * 0 + 0.8}, {"diverging": LP > 1e9}],
    ids=["none", "lp", "acceptance", "diverging"],
)
def test_draws_without_a_state_have_a_summary_and_a_file(stats, tmp_path):
    draws = made(stats=stats)
    for summary in (draws.summary(), draws.summary(X)):
        assert "gradients" not in str(summary)
    draws.save(tmp_path / "draws.rbt")
    np.testing.assert_array_equal(rb.load(tmp_path / "draws.rbt").positions, POSITIONS)
