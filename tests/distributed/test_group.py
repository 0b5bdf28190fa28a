"""Rows over ranks, in threads: the same bits for every number of them, and errors on all."""

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import GroupError, RibbitWarning
from tests.support.five_networks import NETWORKS
from tests.support.ranks import on_ranks
from tests.support.rows_over_ranks import ROWS, data, posterior, same_on_ranks

# Runs of some draws have not converged, and are not meant to; short trajectories take less time.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*max_num_leapfrog_steps.*:ribbit.errors.RibbitWarning"),
]

RANKS = (1, 2, 3, 4)
INSTRUCTIONS = "ribbit._backends.cpu.Cpu.instruction_set"


def values(target: rb.Posterior) -> list[np.ndarray]:
    """Return what a target computes at three positions."""
    theta = target.init(seed=2, chains=3)
    return [*target.value_and_grad(theta), target.log_likelihood(theta), target.log_prior(theta)]


TARGETS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float64": {"dtype": np.float64},
    "five shards": {"shards": 5},
    "cold": {"temperature": 0.5, "likelihood_temperature": 2.0},
    "heavy tails": {"prior": rb.Laplace(0.5), "likelihood": rb.StudentTNoise(df=4.0)},
    "weights": {"weights": np.arange(ROWS) % 3 * 0.5},
    "ones, then halves": {"weights": np.where(np.arange(ROWS) < 200, 1.0, 0.5)},
    "zeros, then ones": {"weights": (np.arange(ROWS) >= 200) * 1.0},
    "ones alone": {"weights": np.ones(ROWS)},
    "learned scales": {"prior": rb.Normal(rb.HalfNormal(0.5))},
    "counts": {"y": np.arange(ROWS) % 7, "likelihood": rb.Poisson()},
    **{name: {"network": name} for name in NETWORKS if name != "perceptron"},
}


@pytest.mark.parametrize("name", TARGETS)
def test_gradients_have_the_same_bits(name: str) -> None:
    for ranks in RANKS:
        if ranks <= TARGETS[name].get("shards", 16):
            same_on_ranks(ranks, lambda group: values(posterior(group, **TARGETS[name])))


def test_other_shards_have_other_bits() -> None:
    """Without which the test before says nothing."""
    assert (values(posterior(shards=16))[1] != values(posterior(shards=5))[1]).any()


def kept(draws: rb.Draws) -> list[np.ndarray]:
    """Return what a run has found."""
    return [np.asarray(draws.positions), *map(np.asarray, draws.stats.values())]


RUNS: dict[str, Callable[[rb.Posterior], rb.Draws]] = {
    "HMC": lambda t: rb.HMC(t, num_leapfrog_steps=3).sample(4, warmup=6, chains=3, seed=5),
    "NUTS": lambda t: rb.NUTS(t, max_tree_depth=2).sample(4, warmup=6, chains=2, seed=5),
    "MCLMC": lambda t: rb.MCLMC(t).sample(3, warmup=100, thin=4, chains=2, seed=5),
    "MCLMC inputs": lambda t: rb.MCLMC(t, inverse_mass_matrix="inputs").sample(
        3, warmup=100, thin=4, chains=2, seed=5
    ),
    "SGLD": lambda t: rb.SGLD(t, step_size=1e-5, batch_size=None).sample(4, warmup=3, chains=2),
    "until": lambda t: rb.HMC(t, num_leapfrog_steps=2).sample(
        until=rb.Converged(rhat=3.0, ess=5), max_draws=30, warmup=4, chains=2
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_draws_have_the_same_bits(name: str) -> None:
    for ranks in RANKS:
        same_on_ranks(ranks, lambda group: kept(RUNS[name](posterior(group))))


STEPS: dict[str, Callable[[rb.Posterior], rb.Draws]] = {
    "SGLD": lambda t: rb.SGLD(t, step_size=1e-4, batch_size=40).sample(12, warmup=3, chains=2),
    "SGHMC": lambda t: rb.SGHMC(t, step_size=1e-4, batch_size=100).sample(5, warmup=3, chains=2),
    "BAOAB": lambda t: rb.BAOAB(t, step_size=1e-2, batch_size=64).sample(
        5, warmup=3, thin=2, chains=2
    ),
}
BATCHES = {
    name: TARGETS[name]
    for name in ("float32", "weights", "ones, then halves", "counts", "cnn-lstm", "lenet")
}


@pytest.mark.parametrize("rows", BATCHES)
@pytest.mark.parametrize("name", STEPS)
def test_minibatches_have_the_same_bits(name: str, rows: str) -> None:
    """Wherever their rows lie."""
    for ranks in RANKS:
        same_on_ranks(ranks, lambda group: kept(STEPS[name](posterior(group, **BATCHES[rows]))))


def test_minibatches_of_bytes_and_files_have_the_same_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (ROWS, 8, 8, 1)).astype(np.uint8)
    np.save(tmp_path / "half.npy", rng.normal(size=(ROWS, 3)).astype(np.float16))
    np.save(tmp_path / "images.npy", images)
    half = np.load(tmp_path / "half.npy", mmap_mode="r")
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    for network, x in ("lenet", images), ("lenet", mapped), ("perceptron", half):

        def found(group: Any, network: str = network, x: Any = x) -> list[np.ndarray]:
            y = data(network)[2]
            mine = slice(None) if group is None else group.rows(ROWS)
            target = rb.Posterior(
                *(NETWORKS[network], x[mine], y[mine]),
                prior=rb.Normal(0.5),
                likelihood=rb.Gaussian(),
                marginalize=None,
                group=group,
                shards=16,
            )
            return kept(STEPS["SGLD"](target)) + values(target)

        same_on_ranks(3, found)


def test_a_batch_sends_its_rows_once() -> None:
    """Each rank those of its own, of D + J numbers, to the others."""

    def sent(group: Any) -> int:
        target = posterior(group)
        sgld = rb.SGLD(target, step_size=1e-5, batch_size=ROWS // 3)
        chains = rb.Chains(sgld, chains=1, warmup=0)
        before = group.bytes_sent
        chains.advance()
        return group.bytes_sent - before

    for ranks in (2, 4):
        found = on_ranks(ranks, sent)
        assert sum(found) == (ranks - 1) * (ROWS // 3) * (3 + 1) * 4, found


def test_predictions_and_resumed_runs_have_the_same_bits() -> None:
    x = data()[1][:6]

    def found(group: Any) -> list[np.ndarray]:
        hmc = rb.HMC(posterior(group), step_size=0.02, num_leapfrog_steps=3)
        draws = hmc.sample(3, warmup=2, chains=2, predict_at=x)
        more = hmc.sample(2, resume=draws)
        return [*kept(more), draws.predict(x).mean, draws.prediction.mean]

    same_on_ranks(4, found)


def test_bytes_are_those_of_the_formula() -> None:
    """n (P - s) + (R - 1) s numbers: 2 P (R - 1) / R where the shards of a rank are a subtree."""
    shards, dim = 16, posterior().dim

    def sent(group: Any) -> tuple[int, int]:
        target = posterior(group)
        theta = target.init()
        before = group.bytes_sent
        target.value_and_grad(theta)
        with_gradient, before = group.bytes_sent - before, group.bytes_sent
        target.log_likelihood(theta)
        return with_gradient, group.bytes_sent - before

    for ranks in (2, 3, 4, 5):
        for rank, found in enumerate(on_ranks(ranks, sent)):
            first, end = shards * rank // ranks, shards * (rank + 1) // ranks
            subtrees, at = 0, first
            while at < end:  # the largest power of two that divides at and fits
                width = max(w for w in (1, 2, 4, 8, 16) if at % w == 0 and at + w <= end)
                subtrees, at = subtrees + 1, at + width
            slice_ = dim * (rank + 1) // ranks - dim * rank // ranks
            numbers = subtrees * (dim - slice_) + (ranks - 1) * slice_
            likelihoods = 8 * (end - first) * (ranks - 1)
            assert found == (4 * numbers + likelihoods, likelihoods)
            if ranks in (2, 4):
                assert subtrees == 1
                assert abs(numbers - 2 * dim * (ranks - 1) / ranks) < ranks


def test_a_digest_of_data_is_that_of_any_number_of_ranks() -> None:
    alone = posterior().fingerprint
    for found in on_ranks(3, lambda group: posterior(group).fingerprint):
        assert found == alone
    assert posterior(y=data()[2] + 1).fingerprint["data"] != alone["data"]
    for name in ("ones, then halves", "zeros, then ones", "ones alone"):
        weights = TARGETS[name]["weights"]
        alone = posterior(weights=weights).fingerprint
        for found in on_ranks(3, lambda group, w=weights: posterior(group, weights=w).fingerprint):
            assert found == alone
    plain = rb.Posterior(*data(), prior=rb.Normal(0.5), likelihood=rb.Gaussian())
    assert "shards" not in plain.fingerprint


def differing(rank: int, **options: Any) -> Callable[[Any], rb.Posterior]:
    """Return a program of which one rank does something else."""
    return lambda group: posterior(group, **(options if group.rank == rank else {}))


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dtype": (differing(1, dtype=np.float64), "same dtype"),
    "prior": (differing(2, prior=rb.Normal(0.6)), "same prior"),
    "likelihood": (differing(0, likelihood=rb.Gaussian(0.1)), "same likelihood"),
    "network": (differing(1, network="normalised"), "same network"),
    "temperature": (differing(1, temperature=0.5), "same temperature"),
    "shards": (differing(1, shards=12), "same number of shards"),
    "data": (differing(1, y=np.full((ROWS, 1), np.nan)), "rank 1"),
    "start": (
        lambda group: rb.HMC(posterior(group), step_size=0.1, num_leapfrog_steps=2).sample(
            2, init=np.full(posterior(group).dim, 0.1 * group.rank), warmup=0
        ),
        "same place",
    ),
    "seed": (
        lambda group: rb.HMC(posterior(group)).sample(2, seed=group.rank, warmup=0),
        "same seed",
    ),
    "bytes": (
        lambda group: posterior(
            group, "lenet", x=np.zeros((ROWS, 8, 8, 1), np.uint8 if group.rank else np.float32)
        ),
        "same kind of inputs",
    ),
    "weights": (differing(1, weights=np.arange(ROWS) * 1.0), "sample_weight on every rank"),
    "chains": (
        lambda group: rb.HMC(posterior(group)).sample(2, chains=[group.rank], warmup=0),
        "same chains",
    ),
    "warmup": (
        lambda group: rb.HMC(posterior(group)).sample(2, save_warmup=group.rank == 1, warmup=3),
        "same save warmup",
    ),
    "limits": (
        lambda group: rb.HMC(posterior(group)).sample(
            until=rb.Converged(rhat=1.1 + 0.1 * group.rank), max_draws=20, warmup=0
        ),
        "same until",
    ),
    "rows": (
        lambda group: posterior(group).value_and_grad(posterior(group).init(), [group.rank]),
        "same place",
    ),
    "positions": (
        lambda group: posterior(group).value_and_grad(posterior(group).init(seed=group.rank)),
        "same place",
    ),
    "calls": (
        lambda group: (
            posterior(group).init()
            if group.rank
            else rb.HMC(posterior(group), num_leapfrog_steps=2).sample(2, warmup=0),
            group.end(),
        ),
        "same calls",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_an_error_on_every_rank(name: str) -> None:
    program, text = MISTAKES[name]
    found = on_ranks(3, program)
    assert all(isinstance(one, ValueError) for one in found), found
    assert any(text in str(one) for one in found), found
    assert sum(isinstance(one, GroupError) for one in found) >= 2, found


ALONE: dict[str, Callable[[Any], Any]] = {
    "thin": lambda group: rb.HMC(posterior(group)).sample(2, thin=1 - group.rank, warmup=0),
    "predict_at": lambda group: rb.HMC(posterior(group), step_size=0.02).sample(
        2, predict_at=np.zeros((2, 3 + group.rank)), warmup=0
    ),
    "epochs": lambda group: rb.BBB(posterior(group)).fit(1 - group.rank),
    "resume": lambda group: rb.DeepEnsemble(posterior(group)).fit(1, resume=group.rank or None),
    "standardize": lambda group: posterior(group, standardize=group.rank == 1),
}


@pytest.mark.parametrize("name", ALONE)
def test_an_argument_that_one_rank_has_wrong_is_an_error_on_every_rank(name: str) -> None:
    first, second = on_ranks(2, ALONE[name])
    assert isinstance(second, ValueError | TypeError), second
    assert not isinstance(second, GroupError), second
    assert isinstance(first, GroupError), first
    assert f"error on rank 1: {type(second).__name__}" in str(first)


@pytest.mark.parametrize(
    ("what", "text"),
    [("ribbit.targets.ranks.version", "same version"), (INSTRUCTIONS, "same instruction set")],
)
def test_other_builds_are_an_error_on_every_rank(
    what: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[int, str] = {}
    found: Any = lambda *_: said[threading.get_ident()]  # noqa: E731
    monkeypatch.setattr(what, found if text == "same version" else property(found))

    def program(group: Any) -> Any:
        said[threading.get_ident()] = f"{group.rank % 2}"
        return posterior(group)

    for one in on_ranks(3, program):
        assert isinstance(one, GroupError), one
        assert text in str(one), one


def test_rank_0_decides_when_the_time_is_over() -> None:
    """Others may be told other times; all make the same steps."""

    def program(group: Any) -> Any:
        hmc = rb.HMC(posterior(group), step_size=0.01, num_leapfrog_steps=5)
        seconds = 0.3 if group.rank == 0 else 1e6
        return hmc.sample(10**6, warmup=0, chains=1, max_seconds=seconds, progress=False)

    first, second = on_ranks(2, program)
    assert first.state.step == second.state.step > 0
    np.testing.assert_array_equal(first.positions, second.positions)


def test_with_a_folder_rank_0_has_the_draws(tmp_path: Path) -> None:
    def program(group: Any) -> Any:
        hmc = rb.HMC(posterior(group), step_size=0.01, num_leapfrog_steps=3)
        return hmc.sample(5, warmup=2, chains=2, store=tmp_path / "run")

    first, second = on_ranks(2, program)
    assert first.positions.shape[:2] == (2, 5)
    np.testing.assert_array_equal(first.state.position, second.state.position)
    with pytest.raises(ValueError, match="rank 0 has them"):
        second.predict(data()[1][:2])


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:.*at least one draw within max_seconds")
def test_statistics_of_a_run_that_goes_on_are_whole_on_every_rank(tmp_path: Path) -> None:
    def program(group: Any) -> Any:
        hmc = rb.HMC(posterior(group), step_size=0.01, num_leapfrog_steps=3)
        options = {"warmup": 4, "chains": 2, "store": tmp_path / "run", "save_warmup": True}
        found = []
        # Eight calls of one step each, the rest, a folder that is complete.
        for seconds in (*[1e-9] * 8, None, None):
            draws = hmc.sample(12, max_seconds=seconds, **options)
            found.append((dict(draws.stats), draws.complete, draws.settings))
        assert "12 draws" in str(draws.summary())
        return found

    first, second = on_ranks(2, program)
    assert [len(one["lp"][0]) for one, _, _ in first] == [0, 0, 0, 0, 1, 2, 3, 4, 12, 12]
    for one, other in zip(first, second, strict=True):
        assert one[1] == other[1]
        assert one[2] == {**other[2], "save_draws": True}
        for name, values in one[0].items():
            np.testing.assert_array_equal(values, other[0][name])


@pytest.mark.parametrize("rows", [320, 333])
def test_rows_that_every_rank_has_are_counted_once(rows: int) -> None:
    """Where group.rows was forgotten: with whole shards the counts alone would not tell."""
    model, x, y = data()

    def program(group: Any) -> Any:
        likelihood, prior = rb.Gaussian(), rb.Normal(0.5)
        return rb.Posterior(
            *(model, x[:rows], y[:rows]), prior=prior, likelihood=likelihood, group=group
        )

    for found in on_ranks(2, program):
        assert isinstance(found, GroupError), found
        assert "group.rows(N)" in str(found)
        assert ("the same 320 rows" if rows == 320 else "of the 333, if each") in str(found)


def test_a_run_of_all_ranks_warns_once() -> None:
    def program(group: Any) -> None:
        rb.HMC(posterior(group), step_size=1e-4, num_leapfrog_steps=1).sample(
            20, warmup=0, chains=2
        )
        rb.BBB(posterior(group)).fit(60)

    with pytest.warns(rb.errors.RibbitWarning) as caught:
        assert on_ranks(3, program) == [None] * 3
    kinds = [one.category for one in caught]
    assert kinds == [rb.errors.ConvergenceWarning, rb.errors.FitWarning]


def test_warnings_of_data_are_of_all_rows() -> None:
    """An error where they are errors, on every rank; sorted rows are no reason for one."""
    found = on_ranks(3, lambda group: posterior(group, y=data()[2] * 1000.0))
    assert isinstance(found[0], rb.errors.ScaleWarning), found
    assert all(isinstance(one, GroupError) for one in found[1:]), found
    y = np.sign(np.arange(ROWS)[:, None] - ROWS / 2)
    y = (y - y.mean()) / y.std()
    for one in on_ranks(2, lambda group: posterior(group, y=y)):
        assert isinstance(one, rb.Posterior), one


def test_a_vanishing_noise_is_that_of_all_rows() -> None:
    """The rows of rank 0 have a sd of steps, those of rank 1 none: both say the same."""
    model, x, y = data()
    model = rb.mlp(3, (4,), 2)
    y = np.round(y, 1)

    def found(group: Any) -> Any:
        mine = group.rows(ROWS)
        target = rb.Posterior(
            *(model, x[mine], y[mine]),
            prior=rb.Normal(1.0),
            likelihood=rb.HeteroscedasticGaussian(min_sd=1e-9),
            group=group,
        )
        theta = target.init(chains=2)
        theta[:, -1] = -12.0  # a small sd for all
        return target._noise_collapse(theta[:, None, :])

    first, second = on_ranks(2, found)
    assert first is not None
    assert first == second


def test_rows_of_other_shards_are_refused() -> None:
    def program(group: Any) -> Any:
        model, x, y = data()
        mine = slice(group.rank * 166, group.rank * 166 + 166)
        options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(), "group": group}
        return rb.Posterior(model, x[mine], y[mine], **options)

    found = on_ranks(2, program)
    assert all("expected rows 0 to 160 of 332 on rank 0" in str(one) for one in found), found


def test_an_error_during_a_run_reaches_every_rank() -> None:
    def program(group: Any) -> Any:
        def progress(snapshot: dict[str, Any]) -> None:
            raise RuntimeError("planted")

        target = posterior(group)
        hmc = rb.HMC(target, step_size=0.02, num_leapfrog_steps=2)
        return hmc.sample(500, warmup=0, chains=1, progress=progress)

    found = on_ranks(3, program)
    assert isinstance(found[0], RuntimeError)
    for one in found[1:]:
        assert isinstance(one, GroupError)
        assert "error on rank 0: RuntimeError: planted" in str(one)


def test_a_wish_to_stop_on_one_rank_stops_all_at_the_same_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a signal handler asks, from another thread, at some moment of a gradient."""
    guards: dict[Any, Any] = {}
    made = rb.sample.InterruptGuard.__init__

    def init(guard: Any, group: Any = None) -> None:
        made(guard, group)
        guards[None if group is None else group.rank] = guard

    monkeypatch.setattr(rb.sample.InterruptGuard, "__init__", init)

    def program(group: Any) -> Any:
        hmc = rb.HMC(posterior(group), step_size=0.01, num_leapfrog_steps=50)
        return hmc.sample(5000, warmup=0, chains=2, progress=False)

    def asks(rank: int, seconds: float) -> None:
        while rank not in guards:
            time.sleep(0.001)
        time.sleep(seconds)
        guards[rank].flag.ask()

    for attempt, rank in itertools.product(range(2), range(3)):
        guards.clear()
        thread = threading.Thread(target=asks, args=(rank, 0.03 + 0.04 * attempt))
        thread.start()
        with pytest.warns(RibbitWarning, match="interrupted after"):
            found = on_ranks(3, program)
        thread.join()
        assert all(isinstance(one, rb.Draws) and not one.complete for one in found), found
        assert len({one.state.step for one in found}) == 1
        for one in found[1:]:
            np.testing.assert_array_equal(one.state.position, found[0].state.position)


REFUSED: dict[str, Callable[[rb.Posterior], Any]] = {
    "subset": lambda t: t.subset([0, 1]),
    "executor": lambda t: rb.HMC(t).sample(2, executor=object()),
    "blocking": lambda t: rb.HMC(t).sample(2, blocking=False),
    "init": lambda t: rb.HMC(t).sample(2, init="ensemble"),
    "until and store": lambda t: rb.HMC(t).sample(until=rb.Converged(), store="nowhere"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_all_rows_is_refused_by_name(name: str) -> None:
    for one in on_ranks(2, lambda group: REFUSED[name](posterior(group))):
        assert isinstance(one, ValueError), one
        assert "group" in str(one) or "one process" in str(one), one


def test_what_does_not_go_with_a_group_is_refused() -> None:
    def program(group: Any) -> None:
        for options in {"standardize": True}, {"marginalize": "last_layer"}:
            with pytest.raises(ValueError, match="group"):
                posterior(group, **options)

    assert on_ranks(2, program) == [None, None]
    with pytest.raises(TypeError, match="expected group as"):
        rb.Posterior(*data(), prior=rb.Normal(1.0), likelihood=rb.Gaussian(), group=3)


def test_rows_need_a_panel_for_each_rank() -> None:
    def program(group: Any) -> Any:
        with pytest.raises(ValueError, match="take fewer ranks"):
            group.rows(60)
        assert group.rows(960, 3) == slice(320 * group.rank, 320 * (group.rank + 1))

    assert on_ranks(3, program) == [None] * 3
