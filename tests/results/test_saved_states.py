"""States of chains in files and joined, without a sampler."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import DataError
from ribbit.samplers import State
from ribbit.store import plain
from tests.support.chain_states import fields


def draws(state, **settings):
    """Draws with a state."""
    chains, dim = state.position.shape
    positions = np.zeros((chains, 4, dim), state.position.dtype)
    lp = np.arange(4.0 * chains).reshape(chains, 4)
    return rb.Draws(positions, {"lp": lp}, True, state, {"sampler": "HMC", **settings})


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves draws with other bytes of their state."""

    def save(change):
        draws(State._of(fields())).save(tmp_path / "draws")
        with np.load(tmp_path / "draws") as found:
            arrays = {name: found[name] for name in found.files}
        arrays["state/bytes"] = change(arrays["state/bytes"])
        with open(tmp_path / "draws", "wb") as file:
            np.savez(file, **arrays)
        return tmp_path / "draws"

    return save


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_state_is_saved_as_its_bytes(tmp_path, dtype):
    before = draws(State._of(fields(dtype=dtype)))
    before.save(tmp_path / "draws")
    assert bytes(rb.load(tmp_path / "draws").state) == bytes(before.state)


def test_damaged_bytes_are_refused_when_loaded(saved):
    assert rb.load(saved(lambda data: data)).state.step == 30
    data = np.frombuffer(bytes(State._of(fields())), np.uint8)
    for size in (0, 15, 40, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(DataError, match=r"^\[load\] .* is damaged or foreign \(ValueError: "):
            rb.load(saved(lambda data, size=size: data[:size]))
    for wrong in (lambda data: data.astype(np.int64), lambda data: data[None], np.invert):
        with pytest.raises(DataError, match=r"^\[load\] .* is damaged or foreign \(ValueError: "):
            rb.load(saved(wrong))


@pytest.mark.parametrize(
    "state",
    [
        State._of(fields(dim=3)),
        State._of(fields(count=2)),
        State._of(fields(dtype=np.float64)),
    ],
    ids=["parameters", "chains", "dtype"],
)
def test_the_state_of_other_draws_is_refused(saved, state):
    path = saved(lambda data: np.frombuffer(bytes(state), np.uint8))
    with pytest.raises(DataError, match=r"state/position"):
        rb.load(path)


def test_chains_are_joined_with_their_states():
    state = State._of(fields())
    parts = [draws(state._split(slice(a, b))) for a, b in ((0, 2), (2, 3))]
    joined = rb.concatenate(parts, axis="chains")
    assert bytes(joined.state) == bytes(state)
    assert joined.settings["chains"] == [5, 6, 7]


@pytest.mark.parametrize("name", ["kernel", "instruction set", "warmup"])
def test_chains_of_other_runs_are_not_joined(name):
    state = State._of(fields())
    value = 61 if name == "warmup" else "other"
    other = State._of(state._split(slice(2, 3)).fields | {name: value})
    with pytest.raises(ValueError, match=rf"^\[concatenate\] the chains differ in '{name}', "):
        rb.concatenate([draws(state._split(slice(0, 2))), draws(other)], axis="chains")


def test_a_request_knows_its_state():
    """A run in a folder is resumed from the state with which it began, on any target."""
    before = plain(State._of(fields()))
    assert before == plain(State._of(fields({"target": "data=b\n"})))
    assert before != plain(State._of(fields({"step": 31})))
    assert before != plain(State._of(fields({"step_size": np.ones((3, 1))})))
