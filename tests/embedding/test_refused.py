"""Wrong arguments of the C library are a status and a message, never a crash."""

import ctypes as c
import json
import threading

import numpy as np
import pytest

import ribbit as rb
from tests.support import c_library as lib
from tests.support.c_library import CError, call

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
Y = X[:, :1].copy()
MODEL = rb.mlp(2, (3,), 1)
TARGET = rb.Posterior(MODEL, X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
NET, OURS = lib.network(MODEL), lib.posterior(TARGET)
START = TARGET.init(0, 2)
DESCRIPTION = TARGET.describe()


def layer(row: int, **columns: float) -> lib.Handle:
    """A network whose layer table has other numbers in one row."""
    rows = lib.layers_of(MODEL.table, MODEL.rates)
    for name, value in columns.items():
        setattr(rows[row], name, value)
    return lib.Handle("network", "network_create", rows, len(rows), c.sizeof(lib.Layer))


def posterior(x=X, y=Y, rows=None, net=NET, prior=None, **members) -> lib.Handle:
    """A posterior with other options."""
    given = lib.options(lib.PosteriorOptions, **members)
    if prior is not None:
        table = (lib.Prior * len(prior))(*(lib.Prior(*one) for one in prior))
        given.prior, given.num_prior = table, len(prior)
    count = len(X) if rows is None else rows
    arguments = net.value, c.byref(given), x, y, count
    return lib.Handle("target", "target_create_posterior", *arguments)


def hmc(start=START, **members):
    """A run with other options."""
    return lib.hmc(OURS, start, 3, **{"step_size": 0.1, "num_steps": 2, **members})


def described(**changes) -> lib.Handle:
    """A target of a description with other entries; None takes one away."""
    given = {k: v for k, v in {**DESCRIPTION, **changes}.items() if v is not None}
    return lib.Handle("target", "target_create_json", json.dumps(given).encode(), 0, X, Y, len(X))


def tables(**changes) -> lib.Handle:
    """The same with other tables."""
    return described(tables={**DESCRIPTION["tables"], **changes})


def changed(array, place, value):
    """A copy with one other number."""
    copy = array.copy()
    copy[place] = value
    return copy


NAN, INF = float("nan"), float("inf")
CALLS = {
    "op": (lambda: layer(0, op=12), "an op in 0..11"),
    "op < 0": (lambda: layer(0, op=-1), "an op"),
    "sizes": (lambda: layer(0, in_size=-3), "sizes of a layer"),
    "huge": (lambda: layer(0, in_size=2**34, out_size=2**34), "2\\^51 multiplications"),
    "overflow": (lambda: layer(0, in_size=2**62), "sizes of a layer"),
    "place": (lambda: layer(0, weight=-7), "places in"),
    "far place": (lambda: layer(0, weight=2**60), "places in"),
    "chain": (lambda: layer(2, in_size=5), "input of that size"),
    "input": (lambda: layer(2, input=9), "input of that size"),
    "activation": (lambda: layer(1, argument=99), "activation code"),
    "rate": (lambda: layer(0, rate=NAN), "a rate"),
    "conv": (lambda: layer(0, op=3), "whole groups|a window"),
    "lstm": (lambda: layer(0, op=10, argument=1), "sizes of a sequence"),
    "embedding": (lambda: layer(0, op=9), "a vector for each token"),
    "no layers": (
        lambda: lib.Handle("network", "network_create", None, 0, c.sizeof(lib.Layer)),
        "at least 1 layer",
    ),
    "layer size": (lambda: lib.Handle("network", "network_create", Y, 1, 8), "sizeof"),
    "widths": (
        lambda: lib.Handle("network", "network_create_mlp", 2, None, 0, 0, 1),
        "widths in",
    ),
    "likelihood": (lambda: posterior(likelihood=9), "a likelihood in 0..8"),
    "scale": (lambda: posterior(scale=0.0), "scale > 0"),
    "temperature": (lambda: posterior(temperature=INF), "temperature > 0"),
    "shape": (lambda: posterior(likelihood=6), "shape > 0"),
    "odd outputs": (lambda: posterior(likelihood=2), "an even number of outputs"),
    "one class": (lambda: posterior(likelihood=3), "at least 2 outputs"),
    "labels": (lambda: posterior(likelihood=4), "0 or 1 in y, got -1"),
    "counts": (lambda: posterior(likelihood=5), "whole numbers >= 0 in y"),
    "x": (lambda: posterior(x=changed(X, (4, 1), NAN)), "finite numbers in x, got -?nan in row 4"),
    "y": (lambda: posterior(y=changed(Y, (2, 0), INF)), "finite numbers in y, got inf in row 2"),
    "rows": (lambda: posterior(rows=0), "at least 1 row"),
    "no x": (lambda: posterior(x=None), "at least 1 row"),
    "no y": (lambda: posterior(y=None), "y, got NULL"),
    "dtype": (lambda: posterior(dtype=2), "a dtype"),
    "prior short": (lambda: posterior(prior=[(0, 5, 0, 1, 0, 0)]), "priors for 13 parameters"),
    "prior long": (lambda: posterior(prior=[(0, 99, 0, 1, 0, 0)]), "cover theta in order"),
    "prior order": (lambda: posterior(prior=[(3, 10, 0, 1, 0, 0)]), "cover theta in order"),
    "prior kind": (lambda: posterior(prior=[(0, 13, 8, 1, 0, 0)]), "a prior kind"),
    "prior scale": (lambda: posterior(prior=[(0, 13, 0, -1, 0, 0)]), "a of a prior > 0"),
    "mixture": (lambda: posterior(prior=[(0, 13, 4, 1.5, 1, 1)]), "a weight a < 1"),
    "centre": (lambda: posterior(centre=np.full(13, NAN, np.float32)), "finite numbers in centre"),
    "no size": (lambda: posterior(size=0), "init function"),
    "function": (
        lambda: lib.Handle("target", "target_create_function", lib.DENSITY(), 3, None, 0),
        "a function",
    ),
    "subset": (
        lambda: call(
            "value_and_grad", OURS.value, START, 2, np.array([6]), 1, np.empty((2, 2)), None, None
        ),
        "numbers of rows",
    ),
    "chains": (
        lambda: call("value_and_grad", OURS.value, START, 0, None, 0, np.empty((2, 2)), None, None),
        "at least 1 chain",
    ),
    "no target": (
        lambda: call("value_and_grad", None, START, 2, None, 0, np.empty((2, 2)), None, None),
        "a target, got NULL",
    ),
    "step": (lambda: hmc(step_size=-0.1), "step_size > 0"),
    "no step": (lambda: hmc(step_size=0.0), "a step_size, step_sizes, or warmup"),
    "steps": (lambda: hmc(step_size=0.0, step_sizes=np.array([1, NAN])), "step_sizes > 0"),
    "acceptance": (lambda: hmc(target_accept=1.0), "target_accept"),
    "no length": (lambda: hmc(num_steps=0), "either num_steps"),
    "two lengths": (lambda: hmc(trajectory_length=1.0), "either num_steps"),
    "thin": (lambda: hmc(thin=0), "thin >= 1"),
    "warmup": (lambda: hmc(warmup=2**62), "fewer than 2\\^40"),
    "first step": (lambda: hmc(first_step=2**63), "fewer than 2\\^40"),
    "step_size_jitter": (lambda: hmc(step_size_jitter=1.0), "step_size_jitter"),
    "threshold": (lambda: hmc(divergence_threshold=NAN), "divergence_threshold"),
    "randomize_length": (lambda: hmc(randomize_length=2), "randomize_length"),
    "cap": (lambda: hmc(max_num_steps=0), "max_num_steps"),
    "mass": (lambda: hmc(inverse_mass=np.zeros(13, np.float32)), "inverse_mass"),
    "start": (lambda: hmc(changed(START, (1, 4), NAN)), "finite numbers in position"),
    "far start": (lambda: hmc(START * 1e25), "finite log density|initial gradient"),
    "threads": (lambda: call("set_num_threads", 0), "1 <= |between|expected"),
    "sgld step": (lambda: lib.sgld(OURS, START, 2), "step_size > 0"),
    "sgld batch": (lambda: lib.sgld(OURS, START, 2, step_size=1e-5), "batch_rows in 1..N"),
    "sgld rows": (lambda: lib.sgld(OURS, START, 2, step_size=1.0, batch_rows=0), "batch_rows >= 1"),
    "sgld factors": (
        lambda: lib.sgld(OURS, START, 2, step_size=1.0, batch_rows=2, factors=np.array([1, NAN])),
        "factors >= 0",
    ),
    "predict": (
        lambda: call("predict", OURS.value, START, 0, 1, X, 6, np.empty(6), None, None, None),
        "at least 1 chain",
    ),
    "json": (
        lambda: lib.Handle("target", "target_create_json", b"{", 0, X, Y, len(X)),
        "a string at character 1",
    ),
    "no entry": (lambda: described(tables=None), '"tables"'),
    "units": (lambda: described(units={}), "standardize=False"),
    "scales": (lambda: described(learned_scales=True), "known scales"),
    "column": (
        lambda: tables(columns=["ops", *DESCRIPTION["tables"]["columns"][1:]]),
        "a known column, got ops",
    ),
    "fraction": (lambda: tables(prior=[[0.5, 13, 0, 1, 0, 0]]), "a whole number"),
    "list": (lambda: tables(layers=3), "a list"),
    "rates": (lambda: tables(rates=[0]), "a rate for each layer"),
    "kind": (lambda: tables(likelihood=[2**40, 1, 0]), "a likelihood in 0..8"),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_wrong_is_named(name):
    body, expected = CALLS[name]
    with pytest.raises(CError, match=expected) as refused:
        body()
    assert refused.value.status == 1
    assert str(refused.value).startswith("[")


def test_handles_of_null_are_nothing():
    for name in ("interrupt_free", "interrupt_set", "network_free", "target_free"):
        getattr(lib.LIB, f"ribbit_{name}")(None)
    assert lib.LIB.ribbit_network_dim(None) == lib.LIB.ribbit_target_dim(None) == 0


def test_messages_belong_to_threads():
    with pytest.raises(CError, match="step_size"):
        hmc(step_size=-1.0)
    seen = []
    other = threading.Thread(target=lambda: seen.append(lib.LIB.ribbit_last_error()))
    other.start()
    other.join()
    assert seen == [b""]
    assert b"step_size" in lib.LIB.ribbit_last_error()


def test_descriptions_that_are_cut_or_changed():
    """Every prefix, and every character replaced by three others: a status or a target."""
    text = json.dumps(DESCRIPTION).encode()
    accepted, room = 0, np.zeros((6, 500), np.float32)  # for more inputs than are named here
    for i in range(len(text)):
        for piece in (text[:i], *(text[:i] + sign + text[i + 1 :] for sign in (b"7", b"]", b"\\"))):
            try:
                lib.Handle("target", "target_create_json", piece, 0, room, room, len(room))
                accepted += 1
            except CError as error:
                assert error.status in (1, 2), piece  # noqa: PT017
    deep = b"[" * 5000
    with pytest.raises(CError, match="fewer levels"):
        lib.Handle("target", "target_create_json", deep, 0, X, Y, len(X))
    assert 0 < accepted < 2 * len(text)  # names of what is not read may change


def test_a_newer_struct_is_taken_where_nothing_new_is_set():
    """What a program of a later version sends to this one."""
    size = c.sizeof(lib.PosteriorOptions) + 24
    buffer = (c.c_char * size)()
    call("posterior_options_init", buffer, size)
    given = lib.PosteriorOptions.from_buffer(buffer)
    assert (given.size, given.scale) == (size, 1.0)
    arguments = NET.value, buffer, X, Y, len(X)
    lib.Handle("target", "target_create_posterior", *arguments)
    buffer[size - 3] = b"x"
    with pytest.raises(CError, match="options of this version of the library, got newer ones"):
        lib.Handle("target", "target_create_posterior", *arguments)


def test_an_older_struct_is_taken_as_far_as_it_goes():
    """What a program of this version sends to a later one: here, without the last members."""
    given = lib.options(lib.HMCOptions, chains=2, draws=1, step_size=0.1, num_steps=2)
    given.size = lib.HMCOptions.inverse_mass.offset
    given.inverse_mass, given.step_sizes = 1, 1  # beyond its end: never read
    position = START.copy()
    call("hmc", OURS.value, c.byref(given), position, None, None, None)
    assert np.isfinite(position).all()
