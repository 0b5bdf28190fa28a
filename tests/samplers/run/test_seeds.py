"""Seeds of NumPy's kinds: runs record the integer that was used, and it repeats them."""

import inspect
from typing import Any

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import checks
from tests.support.public import public

pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning"),
]

X = np.linspace(-1, 1, 20)[:, None]
TARGET = rb.Posterior(
    rb.Model([rb.Dense(3), rb.Dropout(0.1), rb.Activation("tanh"), rb.Dense(1)], input_shape=(1,)),
    X,
    2 * X,
    prior=rb.Normal(1.0),
    likelihood=rb.Gaussian(0.3),
)
PLAIN = rb.Posterior(
    rb.mlp(1, 3, 1), X, 2 * X, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3), marginalize=None
)
HMC = rb.HMC(PLAIN, step_size=0.05, num_leapfrog_steps=3)
RUN: dict[str, Any] = {"warmup": 3, "chains": 2, "progress": False}
FITS = {
    "BBB": lambda seed: rb.BBB(PLAIN, batch_size=10).fit(2, seed=seed, progress=False),
    "MCDropout": lambda seed: rb.MCDropout(TARGET).fit(2, seed=seed, progress=False),
    "DeepEnsemble": lambda seed: rb.DeepEnsemble(PLAIN, members=2).fit(
        2, seed=seed, progress=False
    ),
    "SWAG": lambda seed: rb.SWAG(PLAIN, batch_size=5).fit(
        1, swag_epochs=3, seed=seed, progress=False
    ),
    "LaplaceApproximation": lambda seed: rb.LaplaceApproximation(PLAIN).fit(
        2, seed=seed, progress=False
    ),
    "EnsembleStart": lambda seed: rb.EnsembleStart(max_steps=20).fit(
        PLAIN, 2, seed=seed, progress=False
    ),
}


def test_kinds_of_seeds() -> None:
    given = np.random.default_rng(3)
    first, second = checks.seed("f", given), checks.seed("f", given)
    again = np.random.default_rng(3)
    assert [first, second] == [checks.seed("f", again) for _ in range(2)]
    assert first != second
    sequence = np.random.SeedSequence(3)
    assert checks.seed("f", sequence) == checks.seed("f", sequence)
    assert checks.seed("f", sequence.spawn(1)[0]) != checks.seed("f", sequence)
    assert len({checks.seed("f", None) for _ in range(20)}) == 20
    assert checks.seed("f", 2**64 - 1) == 2**64 - 1
    assert checks.seed("f", np.uint8(7)) == 7  # type: ignore[arg-type]
    for wrong in (True, "1", 1.5, np.random.RandomState(1), [1]):
        with pytest.raises(TypeError, match=r"^\[f\] expected seed as an integer"):
            checks.seed("f", wrong)  # type: ignore[arg-type]


def test_everything_with_a_seed_takes_all_kinds() -> None:
    """Types of seeds: mypy then asks for a conversion before an integer is needed."""
    found = 0
    for name, one in public().items():
        members = inspect.getmembers(one, inspect.isfunction) if isinstance(one, type) else []
        parts = [one] if inspect.isfunction(one) else [f for n, f in members if n[0] != "_"]
        for part in parts:
            seed = inspect.signature(part).parameters.get("seed")
            # Samplers give integers to the methods that have no default.
            if seed is not None and (part is one or seed.default is not seed.empty):
                assert str(seed.annotation).endswith("Seed"), (name, part)
                found += 1
    assert found > 30


def test_a_run_records_the_integer_that_repeats_it() -> None:
    given = np.random.default_rng(5)
    draws = HMC.sample(6, seed=given, **RUN)
    number = draws.settings["seed"]
    assert number == checks.seed("f", np.random.default_rng(5))
    assert np.array_equal(HMC.sample(6, seed=number, **RUN).positions, draws.positions)
    assert not np.array_equal(HMC.sample(6, seed=given, **RUN).positions, draws.positions)
    first = HMC.sample(4, seed=np.random.default_rng(5), **RUN)
    rest = HMC.sample(2, resume=first, seed=given, progress=False)
    assert np.array_equal(rest.positions, draws.positions[:, 4:])
    assert rest.settings["seed"] == number
    rule = rb.Converged(rhat=1.0001)  # is never met
    until = HMC.sample(2, until=rule, max_draws=6, seed=np.random.default_rng(5), **RUN)
    assert np.array_equal(until.positions, draws.positions)
    entropy = [HMC.sample(1, seed=None, **RUN).settings["seed"] for _ in range(2)]
    assert entropy[0] != entropy[1]


def test_a_run_in_a_thread_advances_a_generator_when_it_begins() -> None:
    given = np.random.default_rng(5)
    run = HMC.sample(4, seed=given, **RUN, blocking=False)
    state = given.bit_generator.state
    assert state != np.random.default_rng(5).bit_generator.state
    assert run.wait().settings["seed"] == checks.seed("f", np.random.default_rng(5))
    assert given.bit_generator.state == state


def test_a_folder_resumes_the_run_of_a_generator(tmp_path: Any) -> None:
    whole = HMC.sample(6, seed=np.random.default_rng(5), **RUN)
    for _ in range(2):  # made, then read
        draws = HMC.sample(6, seed=np.random.default_rng(5), store=tmp_path / "a", **RUN)
        assert np.array_equal(draws.positions, whole.positions)
    with pytest.raises(ValueError, match=rf"seed={whole.settings['seed']} resumes it"):
        HMC.sample(6, seed=None, store=tmp_path / "a", **RUN)


@pytest.mark.parametrize("name", FITS)
def test_fits_record_the_integer_that_repeats_them(name: str) -> None:
    fit = FITS[name](np.random.default_rng(5))
    number = fit.settings["seed"]
    assert number == checks.seed("f", np.random.default_rng(5))
    draws = [one.draws(2, seed=0).positions for one in (fit, FITS[name](number), FITS[name](1))]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_draws_of_a_fit_record_their_seed() -> None:
    fit = FITS["BBB"](0)
    draws = fit.draws(3, seed=np.random.SeedSequence(5))
    number = draws.settings["seed"]
    assert np.array_equal(fit.draws(3, seed=number).positions, draws.positions)
