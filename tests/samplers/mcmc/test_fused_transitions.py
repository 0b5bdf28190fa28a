"""HMC's transitions in the core: bit for bit those that Python composes of its trajectories."""

import math

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from tests.support.targets import same

# Short runs whose bits are compared, some with steps that are too large on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
]


class Composed(rb.Posterior):
    """Replaces the trajectories by the same ones: Python makes the transitions."""

    calls = 0

    def leapfrog(self, *arguments, **options):
        self.calls += 1
        return super().leapfrog(*arguments, **options)

    leapfrog.evaluates_start = leapfrog.counts_steps = True


class Kicked(Composed):
    """The planted fault: trajectories end one part in a million too far."""

    def leapfrog(self, *arguments, **options):
        position, *rest = super().leapfrog(*arguments, **options)
        return position * position.dtype.type(1 + 1e-6), *rest

    leapfrog.evaluates_start = leapfrog.counts_steps = True


def made(kind, dtype=np.float64, units=5, **options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 3))
    y = np.sin(x[:, :1]) + 0.1 * rng.normal(size=(70, 1))
    model = rb.mlp(3, (units,), 1, activation="tanh")
    return kind(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(), dtype=dtype, **options)


CASES = {
    "given": ({"step_size": 0.01, "num_leapfrog_steps": 7, "randomize_length": False}, {}, 0),
    "random step sizes": (
        {"step_size": 0.02, "num_leapfrog_steps": 7, "step_size_jitter": 0.2},
        {},
        0,
    ),
    "auto": ({"trajectory_length": 0.5}, {}, 30),
    "mass": ({"inverse_mass_matrix": "adapt"}, {}, 40),
    "tempered": ({"step_size": 0.01}, {"temperature": 0.3, "likelihood_temperature": 2.0}, 0),
    "marginal": ({"step_size": 0.02}, {"marginalize": "last_layer"}, 0),
    "lost": ({"step_size": 30.0, "num_leapfrog_steps": 40}, {}, 0),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_the_composition(case, dtype):
    sampling, stated, warmup = CASES[case]
    target = made(Composed, dtype, **stated)
    draws = [
        rb.HMC(t, **sampling).sample(
            20, chains=3, seed=2**63 + 5, warmup=warmup, save_warmup=warmup > 0, progress=False
        )
        for t in (made(rb.Posterior, dtype, **stated), target)
    ]
    assert target.calls >= 20  # each in a call of its own
    fused, composed = draws
    assert same(fused.positions, composed.positions)
    assert fused.stats.keys() == composed.stats.keys()
    for name, values in fused.stats.items():
        assert values.dtype == composed.stats[name].dtype
        assert same(values, composed.stats[name]), name
    for name in ("position", "grad", "terms"):
        assert same(getattr(fused.state, name), getattr(composed.state, name)), name
    if warmup:
        assert same(fused.warmup_positions, composed.warmup_positions)
    if case == "lost":
        assert np.isinf(fused.stats["energy_error"]).any()
        assert not fused.stats["accepted"].any()
    else:
        assert fused.stats["accepted"].any()


def test_a_target_that_replaces_the_trajectories_is_not_passed_by():
    run = {"chains": 2, "warmup": 0, "progress": False}
    options = {"step_size": 0.01, "num_leapfrog_steps": 5}
    faulty, right = (rb.HMC(made(k), **options).sample(5, **run) for k in (Kicked, rb.Posterior))
    assert not same(faulty.positions, right.positions)


@pytest.mark.usefixtures("_threads")
def test_more_than_one_chunk_and_thread():
    found = []
    for threads, kind in ((1, rb.Posterior), (2, rb.Posterior), (2, Composed)):
        rb.set_num_threads(threads)
        target = made(kind, np.float32, units=700)  # 3,502 parameters: two chunks
        found.append(
            rb.HMC(target, step_size=2e-3, num_leapfrog_steps=6).sample(
                6, chains=3, warmup=0, progress=False
            )
        )
    for other in found[1:]:
        assert same(found[0].positions, other.positions)
        assert same(found[0].stats["energy"], other.stats["energy"])
    assert found[0].stats["accepted"].any()


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_acceptance_is_metropolis_s(seed):
    """log u < -error, u by its counter; a chain does not depend on the others."""
    errors = np.array([-3.0, 0.0, 0.3, 2.0, 40.0, 800.0, np.inf, -np.inf, np.nan])
    ids = np.arange(errors.size, dtype=np.uint32)
    u = np.empty((errors.size, 1))
    _core.fill_uniform(u, seed, 17, ids, 2)
    accepted, rate = _core.accept(errors, seed, 17, ids)
    finite = np.isfinite(errors)
    expected = [math.exp(min(-e, 0.0)) if f else 0.0 for e, f in zip(errors, finite, strict=True)]
    assert same(rate, np.array(expected))
    assert same(accepted, finite & (np.log(u[:, 0]) < -np.where(finite, errors, 0.0)))
    for c in ids:
        alone = _core.accept(errors[c : c + 1], seed, 17, ids[c : c + 1])
        assert same(alone[0], accepted[c : c + 1])
        assert same(alone[1], rate[c : c + 1])
