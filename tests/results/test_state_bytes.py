"""States as bytes: views, parts of the chains, and bytes that no chains have written."""

import copy
import itertools
import pickle

import numpy as np
import pytest

from ribbit import _core
from ribbit.samplers import State
from tests.support.chain_states import fields, same
from tests.support.paths import CPP
from tests.support.targets import posterior

HEAD, FIELD = 16, 56  # bytes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mass", ["each", "shared", None])
def test_fields_come_back(dtype, mass):
    given = fields(dtype=dtype)
    given["inverse_mass"] = {"each": given["inverse_mass"], "shared": np.ones(2, dtype)}.get(mass)
    given = {name: value for name, value in given.items() if value is not None}
    state = State(bytes(State._of(given)))
    assert same(state.fields, given)
    assert (state.step, state.warmup, state.seed, state.kernel) == (30, 60, 2**64 - 1, "hmc")
    assert state.target == {"data": "a1", "prior": "Normal(sd=1.0)"}
    for name in ("position", "grad", "terms"):
        np.testing.assert_array_equal(getattr(state, name), given[name])
    for name in ("chains", "step_size", "divergences"):
        np.testing.assert_array_equal(getattr(state, name), given[name][:, 0])
    if mass is None:
        assert state.inverse_mass_matrix is None
    else:
        np.testing.assert_array_equal(state.inverse_mass_matrix, given["inverse_mass"])


def test_state_without_a_target():
    assert State._of(fields({"target": None})).target is None


def test_repr_tells_the_phase():
    assert repr(State._of(fields())) == (
        f"State(3 chains, dim 2, step 30, warmup 30/60, seed {2**64 - 1})"
    )
    assert "step 60, warm, " in repr(State._of(fields({"step": 60, "window.count": 0})))


def test_views_are_read_only():
    state = State._of(fields())
    arrays = [value for value in state.fields.values() if isinstance(value, np.ndarray)]
    for array in (*arrays, state.chains, state.step_size):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(AttributeError):
        state.step = 3


def test_copies_and_pickles_are_the_bytes():
    state = State._of(fields())
    for other in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state), copy.copy(state)):
        assert bytes(other) == bytes(state)
    assert len(pickle.dumps(state)) < len(bytes(state)) + 100


def test_bytes_are_read_when_used():
    state = State(b"no chains")
    assert bytes(pickle.loads(pickle.dumps(state))) == b"no chains"
    with pytest.raises(ValueError, match=r"^\[State\] the bytes hold no chains .* truncated$"):
        _ = state.step
    with pytest.raises(TypeError, match=r"^\[State\] data must be bytes, got"):
        State("text")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("cuts", [[1], [2], [1, 2]])
def test_parts_make_the_whole(shared, cuts):
    changes = {"inverse_mass": np.ones(2, np.float32)} if shared else {}
    state = State._of(fields(changes))
    parts = [state._split(slice(a, b)) for a, b in itertools.pairwise([0, *cuts, 3])]
    for part, (a, b) in zip(parts, itertools.pairwise([0, *cuts, 3]), strict=True):
        np.testing.assert_array_equal(part.position, state.position[a:b])
        np.testing.assert_array_equal(part.chains, state.chains[a:b])
        assert part.step == state.step
        assert part.inverse_mass_matrix.shape == ((2,) if shared else (b - a, 2))
    assert bytes(State._merged(parts)) == bytes(state)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", 31),
        ("kernel", "nuts"),
        ("target", "data=b\n"),
        ("inverse_mass", None),
        ("inverse_mass", np.ones(2, np.float32)),
        ("terms", np.ones((1, 3))),
    ],
)
def test_different_states_are_not_merged(name, value):
    first, second = State._of(fields())._split(slice(0, 2)), State._of(fields())._split(slice(2, 3))
    kept = {key: old for key, old in second.fields.items() if key != name}
    other = State._of(kept if value is None else kept | {name: value})
    with pytest.raises(ValueError, match=rf"^\[State\] the chains differ in '{name}', "):
        State._merged([first, other])


CHAINS = np.zeros((3, 1))
WRONG = {
    "no position": {"position": None},
    "no chains": {"chains": None},
    "positions with one axis": {"position": np.ones(6, np.float32)},
    "chains with one axis": {"chains": np.arange(3, dtype=np.uint32)},
    "step sizes with one axis": {"step_size": np.ones(3)},
    "step sizes with two columns": {"step_size": np.ones((3, 2))},
    "a chain less": {"divergences": np.zeros((2, 1), np.int64)},
    "a parameter less": {"grad": np.ones((3, 1), np.float32)},
    "gradients of another dtype": {"grad": np.ones((3, 2))},
    "positions that are integers": {"position": np.ones((3, 2), np.int64)},
    "a text as a number": {"kernel": 3},
    "a number as a text": {"step": "3"},
    "a position that is NaN": {"position": np.full((3, 2), np.nan, np.float32)},
    "step sizes of zero": {"step_size": CHAINS},
    "a negative mass": {"inverse_mass": np.full(2, -1.0, np.float32)},
    "a flat mass of all chains": {"inverse_mass": np.ones(6, np.float32)},
    "negative squares": {"window.squares": np.full((3, 2), -1.0)},
    "negative divergences": {"divergences": np.full((3, 1), -1, np.int64)},
    "equal ids": {"chains": np.ones((3, 1), np.uint32)},
    "too many steps": {"step": 2**40},
    "a window without its mean": {"window.mean": None},
    "an average without its error": {"dual.error": None},
    "a target without values": {"target": "data\n"},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_wrong_fields_are_refused(changes):
    with pytest.raises(ValueError, match=r"^\[State\] the bytes hold no chains that can continue"):
        _ = State._of(fields(changes)).fields


def test_every_truncation_is_refused():
    data = bytes(State._of(fields()))
    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"^\[State\] the bytes hold no chains"):
            _ = State(data[:size]).fields
    with pytest.raises(ValueError, match="more bytes follow"):
        _ = State(data + bytes(8)).fields


def heads(data):
    """Return where the bytes of the heads are."""
    found, at = [*range(HEAD)], HEAD
    while at < len(data):
        found += range(at, at + FIELD)
        first, second = np.frombuffer(data, np.uint64, 2, at + 40).tolist()
        width = {"S": 1, "I": 4, "f": 4}.get(chr(data[at + 32]), 8)
        at += FIELD + -(-first * second * width // 8) * 8
    return found


def test_every_changed_byte_of_a_head_is_refused_or_read():
    """A state that is read has sound fields: its parts make it whole again."""
    data = bytes(State._of(fields(count=2, dim=1)))
    messages = []
    for at, mask in itertools.product(heads(data), (0x01, 0x20, 0x80, 0xFF)):
        other = bytearray(data)
        other[at] ^= mask
        try:
            state = State(other)
            parts = [state._split(slice(0, 1)), state._split(slice(1, 2))]
        except ValueError as error:
            messages.append(str(error))
            continue
        assert same(State._merged(parts).fields, state.fields)
    assert all(message.startswith("[State] the ") for message in messages)
    assert len(heads(data)) < len(messages) < 4 * len(heads(data))


def test_counts_allocate_nothing():
    """A field of 2^63 numbers is refused at once."""
    data = bytearray(bytes(State._of(fields())))
    at = data.index(b"position") + 40
    data[at : at + 16] = np.array([2**62, 2**62], np.uint64).tobytes()
    with pytest.raises(ValueError, match="truncated"):
        _ = State(data).fields


def test_newer_formats_are_named():
    data = bytearray(bytes(State._of(fields())))
    data[8] = 2
    with pytest.raises(ValueError, match=r"the chains have format 2; this version reads formats"):
        _ = State(data).fields


def test_fields_of_newer_versions_stay():
    given = fields({"energy": np.ones((3, 1)), "length": 3})
    assert same(State._of(given)._split(slice(None)).fields, given)


@pytest.mark.parametrize("name", ["hmc_float32", "hmc_float64", "nuts_float32", "nuts_float64"])
def test_recorded_states_are_read(name):
    """The core has written them; ``check_chain_bytes`` continues them."""
    data = (CPP / f"tests/states/{name}.state").read_bytes()
    state = State(data)
    assert (state.kernel, state.position.dtype.name) == tuple(name.split("_"))
    assert (state.position.shape, state.step, state.warmup) == ((2, 21), 30, 60)
    assert state.target == {"data": "a"}
    assert bytes(State._of(state.fields)) == data


def parts_of(state, cut):
    return [state._split(slice(0, cut)), state._split(slice(cut, None))]


@pytest.mark.parametrize("kernel", ["hmc", "nuts"])
@pytest.mark.parametrize("mass", ["adapt", "given", None])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_of_native_chains_move_as_the_whole(kernel, mass, dtype):
    """Chains are cut and joined between all calls, in warmup and after it."""
    target = posterior(dtype=dtype)
    given = {"adapt": "adapt", "given": np.linspace(0.5, 1.5, target.dim), None: None}[mass]
    options = {"inverse_mass_matrix": given}
    options |= {"trajectory_length": 0.1} if kernel == "hmc" else {"max_tree_depth": 3}

    def chains(bytes=None):
        return _core.Chains(
            target._native,
            kernel,
            options,
            facts={"dim": target.dim},
            seed=3,
            chains=np.array([4, 9, 2], np.uint32) if bytes is None else None,
            warmup=40,
            thinning=(1, 1, 1),
            save_warmup=True,
            fingerprint={"data": "a"},
            bytes=bytes,
        )

    whole = chains()
    whole.start(target.init(seed=3, chains=3))
    state = State(whole.save())
    while state.step < 50:
        expected = whole.advance(9, 1e9)[0]
        moved = []
        for part in parts_of(state, 1 + state.step % 2):
            native = chains(bytes=bytes(part))
            moved.append((native.advance(9, 1e9)[0].copy(), State(native.save())))
        np.testing.assert_array_equal(np.concatenate([one[0] for one in moved]), expected)
        state = State._merged([one[1] for one in moved])
        assert bytes(state) == whole.save()
    if mass is None:
        assert state.inverse_mass_matrix is None
    else:
        assert state.inverse_mass_matrix.shape == {"adapt": (3, 46), "given": (46,)}[mass]
