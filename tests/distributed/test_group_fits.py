"""Fits on rows over ranks, in threads: the same bits for every number of them."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import GroupError, RibbitWarning
from ribbit.interrupt import InterruptGuard
from tests.support.ranks import on_ranks
from tests.support.rows_over_ranks import ROWS, data, posterior, same_on_ranks

# Fits of some epochs are not meant to be done.
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")

TANH = rb.Activation("tanh")
DROPPING = rb.Model(
    [rb.Dropout(0.2), rb.Dense(6), TANH, rb.Dropout(0.3), rb.Dense(1)], input_shape=(3,)
)
IMAGES = rb.Model(
    [rb.Conv2D(2, 3), TANH, rb.Dropout(0.4), rb.Flatten(), rb.Dense(1)], input_shape=(6, 6, 1)
)


def dropping(group: Any, network: str = "dense", weights: bool = False) -> rb.Posterior:
    """Return the posterior of a network with masks."""
    model = {"dense": DROPPING, "images": IMAGES}[network]
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(ROWS, *model.input_shape)), rng.normal(size=(ROWS, 1))
    mine = slice(None) if group is None else group.rows(ROWS)
    more = {"sample_weight": (np.arange(ROWS) % 4 * 0.5)[mine]} if weights else {}
    given: dict[str, Any] = {"prior": rb.Normal(0.5), "likelihood": rb.Gaussian(), **more}
    return rb.Posterior(model, x[mine], y[mine], group=group, shards=16, marginalize=None, **given)


def arrays(fit: Any) -> list[np.ndarray]:
    """Return what a fit has found."""
    _, found = fit._packed()
    assert found
    return [np.asarray(found[name]) for name in sorted(found)]


Fit = Callable[[Any], Any]
FITS: dict[str, Fit] = {
    "BBB": lambda g: rb.BBB(posterior(g)).fit(5, seed=3),
    "BBB, samples": lambda g: rb.BBB(posterior(g), num_samples=3, kl="sampled").fit(3),
    "BBB, float64": lambda g: rb.BBB(posterior(g, dtype=np.float64)).fit(3),
    "BBB, lenet": lambda g: rb.BBB(posterior(g, network="lenet")).fit(3),
    "BBB, cnn-lstm": lambda g: rb.BBB(posterior(g, network="cnn-lstm")).fit(2),
    "BBB, batches": lambda g: rb.BBB(posterior(g), batch_size=100).fit(2, seed=3),
    "BBB, local": lambda g: rb.BBB(posterior(g), batch_size=100, estimator="local").fit(2),
    "BBB, flipout": lambda g: rb.BBB(posterior(g), batch_size=100, estimator="flipout").fit(2),
    "BBB, lenet, batches": lambda g: rb.BBB(
        posterior(g, network="lenet"), batch_size=64, estimator="flipout"
    ).fit(1),
    "masks": lambda g: rb.MCDropout(dropping(g), batch_size=None).fit(4),
    "masks, batches": lambda g: rb.MCDropout(dropping(g), batch_size=64).fit(2),
    "masks, images": lambda g: rb.MCDropout(dropping(g, "images"), batch_size=None).fit(3),
    "masks, image batches": lambda g: rb.MCDropout(dropping(g, "images"), batch_size=50).fit(2),
    "masks, weights": lambda g: rb.MCDropout(dropping(g, weights=True), batch_size=64).fit(2),
    "learned rates": lambda g: rb.MCDropout(dropping(g), rate="concrete", batch_size=None).fit(3),
    "learned rates, batches": lambda g: rb.MCDropout(
        dropping(g), rate="concrete", batch_size=64
    ).fit(2),
    "ensemble": lambda g: rb.DeepEnsemble(posterior(g), members=3, batch_size=None).fit(4),
    "ensemble, batches": lambda g: rb.DeepEnsemble(posterior(g), members=2, batch_size=64).fit(3),
    "SWAG": lambda g: rb.SWAG(posterior(g), members=2, batch_size=100).fit(2, swag_epochs=3),
}


@pytest.mark.parametrize("name", FITS)
def test_fits_have_the_same_bits(name: str) -> None:
    for ranks in (2, 3):
        same_on_ranks(ranks, lambda group: arrays(FITS[name](group)))


def test_fits_of_other_shards_have_other_bits() -> None:
    """Without which the test before says nothing."""
    one, other = (rb.BBB(posterior(shards=shards)).fit(5).mean for shards in (16, 5))
    assert (one != other).any()


@pytest.mark.parametrize("network", ["perceptron", "lenet", "cnn-lstm"])
@pytest.mark.parametrize("weights", [False, True])
def test_chosen_rows_have_the_same_bits(network: str, weights: bool) -> None:
    """Wherever they lie, one for several times, and all of them."""
    options = {"weights": np.arange(ROWS) % 3 * 0.5} if weights else {}

    def found(group: Any) -> list[np.ndarray]:
        target = posterior(group, network=network, **options)
        theta = target.init(seed=2, chains=2)
        chosen = [0, ROWS - 1, 7, 7, 200], np.arange(ROWS)[::-1], np.arange(0, ROWS, 5)
        return [a for rows in chosen for a in target.value_and_grad(theta, rows)]

    for ranks in (2, 3):
        same_on_ranks(ranks, found)


def test_masks_belong_to_rows() -> None:
    def found(group: Any) -> list[np.ndarray]:
        masked = dropping(group).masked()
        theta = masked.init(chains=2)
        rows = np.arange(0, ROWS, 7)
        return [
            *masked.masked_value_and_grad(theta, seed=3, step=5),
            *masked.masked_value_and_grad(theta, rows, seed=3, step=5),
        ]

    for ranks in (2, 3, 4):
        same_on_ranks(ranks, found)


def test_predictions_of_fits_have_the_same_bits() -> None:
    x = data()[1][:6]
    same_on_ranks(2, lambda g: [rb.BBB(posterior(g)).fit(2).predict(x, seed=1).mean])
    same_on_ranks(2, lambda g: [rb.MCDropout(dropping(g)).fit(1).predict(x, seed=1).mean])


STORED: dict[str, Callable[[Any, Any], Any]] = {
    "BBB": lambda g, s: rb.BBB(posterior(g), batch_size=100).fit(400, store=s, progress=False),
    "SWAG": lambda g, s: rb.SWAG(posterior(g), members=2, batch_size=100).fit(
        150, swag_epochs=150, store=s, progress=False
    ),
}


@pytest.mark.parametrize("name", STORED)
def test_a_fit_in_a_folder_goes_on_with_other_ranks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C on rank 1 of two; three go on, then one alone."""
    guards: dict[Any, Any] = {}
    made = InterruptGuard.__init__

    def init(guard: Any, group: Any = None) -> None:
        made(guard, group)
        guards[None if group is None else group.rank] = guard

    monkeypatch.setattr(InterruptGuard, "__init__", init)
    expected = arrays(STORED[name](None, None))

    def interrupted(ranks: int, asking: int) -> list[Any]:
        guards.clear()

        def asks() -> None:
            while asking not in guards:
                time.sleep(0.001)
            time.sleep(0.1)
            guards[asking].flag.ask()

        thread = threading.Thread(target=asks)
        thread.start()
        with pytest.warns(RibbitWarning, match="interrupted after"):
            found = on_ranks(ranks, lambda group: STORED[name](group, tmp_path / "fit"))
        thread.join()
        return found

    for ranks, asking in ((2, 1), (3, 0)):
        found = interrupted(ranks, asking)
        assert all(not isinstance(one, BaseException) and not one.complete for one in found), found
        for one in found[1:]:
            for got, wanted in zip(arrays(one), arrays(found[0]), strict=True):
                np.testing.assert_array_equal(got, wanted)
    last = STORED[name](None, tmp_path / "fit")
    assert last.complete
    for got, wanted in zip(arrays(last), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_other_calls_of_fit_are_an_error_on_every_rank() -> None:
    programs: dict[str, Fit] = {
        "same seed": lambda g: rb.BBB(posterior(g)).fit(2, seed=g.rank),
        "same num epochs": lambda g: rb.DeepEnsemble(posterior(g)).fit(2 + g.rank),
        "same settings": lambda g: rb.BBB(posterior(g), learning_rate=0.1 + g.rank).fit(2),
        "same place": lambda g: rb.MCDropout(dropping(g), batch_size=None).fit(
            2, init=np.full(dropping(g).dim, 0.1 * g.rank)
        ),
    }
    for text, program in programs.items():
        found = on_ranks(2, program)
        assert all(isinstance(one, GroupError) and text in str(one) for one in found), found


def test_an_error_in_the_middle_of_a_fit_reaches_every_rank() -> None:
    def program(group: Any) -> Any:
        def progress(snapshot: dict[str, Any]) -> None:
            raise RuntimeError("planted")

        return rb.BBB(posterior(group), batch_size=100).fit(500, progress=progress)

    first, *others = on_ranks(3, program)
    assert isinstance(first, RuntimeError)
    assert all("error on rank 0: RuntimeError: planted" in str(one) for one in others), others


def test_a_diverging_fit_ends_on_every_rank() -> None:
    def program(group: Any) -> Any:
        return rb.DeepEnsemble(
            posterior(group), members=1, learning_rate=1e38, batch_size=None
        ).fit(50)

    found = on_ranks(2, program)
    assert all(isinstance(one, rb.errors.NonFiniteError) for one in found), found


REFUSED: dict[str, Fit] = {
    "Laplace": lambda g: rb.LaplaceApproximation(posterior(g)),
    "local": lambda g: rb.BBB(posterior(g), estimator="local"),
    "flipout": lambda g: rb.BBB(posterior(g), estimator="flipout"),
    "executor": lambda g: rb.DeepEnsemble(posterior(g)).fit(2, executor=object()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_all_rows_is_refused_by_name(name: str) -> None:
    for one in on_ranks(2, REFUSED[name]):
        assert isinstance(one, ValueError), one
        assert "group" in str(one), one
