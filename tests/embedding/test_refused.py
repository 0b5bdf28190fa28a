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


def new(kernel="hmc", run=None, **given):
    """New chains with other options of the kernel or the run."""
    return lib.Chains(OURS, kernel, given, **{"chains": 2, **(run or {})})


def started():
    """Chains that have started, of a given step size and without warmup."""
    return new(run={"warmup": 0}, step_size=0.1).start(START)


def load(saved=None, kernel="hmc", target=OURS, **given):
    """Chains from bytes, of chains that have started unless others are given."""
    return lib.Chains(target, kernel, given, saved=SAVED if saved is None else saved, chains=2)


def advance(most=1, seconds=1.0, stride=1, chains=None):
    """A call of chains that have started, with a place of two draws."""
    chains, place = chains or started(), np.empty((2, 1, 13), np.float32)
    count = c.c_int64()
    call("chains_advance", chains.value, most, seconds, place, stride, c.byref(count), None)


def room(size):
    """Bytes of chains where there is too little room for them."""
    length, chains = c.c_size_t(size), started()
    call("chains_save", chains.value, c.create_string_buffer(max(size, 1)), c.byref(length))


def statistic(name=b"lp", stride=4):
    """A statistic of one draw."""
    chains = started()
    chains.advance(1)
    call("chains_statistic", chains.value, name, np.empty(8), stride)


def given(*rows):
    """New chains of rows of options that are no names and numbers."""
    how, out = lib.options(lib.RunOptions), c.c_void_p()
    table = (lib.Option * len(rows))(*rows)
    call("chains_create", OURS.value, b"hmc", table, len(rows), c.byref(how), c.byref(out))


def described(**changes) -> lib.Handle:
    """A target of a description with other entries; None takes one away."""
    given = {k: v for k, v in {**DESCRIPTION, **changes}.items() if v is not None}
    return lib.Handle("target", "target_create_json", json.dumps(given).encode(), 0, X, Y, len(X))


def predictive() -> lib.Handle:
    """A target without data."""
    text = json.dumps(DESCRIPTION).encode()
    return lib.Handle("target", "target_create_json", text, 0, None, None, 0)


def units(**changes):
    """Units of the data with other entries."""
    plain = {"x_mean": [0.0, 0.0], "x_scale": [1.0, 1.0], "y_mean": [0.0], "y_scale": [1.0]}
    return {**plain, **changes}


def tables(**changes) -> lib.Handle:
    """The same with other tables."""
    return described(tables={**DESCRIPTION["tables"], **changes})


def changed(array, place, value):
    """A copy with one other number."""
    copy = array.copy()
    copy[place] = value
    return copy


NAN, INF = float("nan"), float("inf")
SAVED = started().save()
PRIOR = [(*map(int, row[:3]), *row[3:]) for row in TARGET._spec.table.rows]
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
    "mlp": (
        lambda: lib.Handle("network", "network_create_mlp", 2, np.array([3]), 1, 1, 99),
        "an activation code",
    ),
    "network of no json": (
        lambda: lib.Handle("network", "network_create_json", b"{}"),
        '"tables"',
    ),
    "predictive": (lambda: lib.Chains(predictive(), "hmc"), "a target with data"),
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
    "kernel": (lambda: new("gibbs"), "kernel must be 'hmc' or 'nuts', got 'gibbs'"),
    "no option": (lambda: new(num_steps=3), "hmc has no option 'num_steps'"),
    "step": (
        lambda: new(step_size=-0.1),
        "step_size must be positive and finite, or 'auto', got -0.1$",
    ),
    "step of text": (lambda: new(step_size="small"), "step_size must be .* got 'small'"),
    "steps": (
        lambda: new(step_size=[0.1, NAN]),
        "step_size must be positive and finite, or 'auto', got -?nan at index 1",
    ),
    "3 steps": (lambda: new(step_size=[0.1] * 3), "one for each of the 2 chains, got 3 numbers"),
    "acceptance": (lambda: new(target_accept=1.0), r"target_accept must be in \(0, 1\), got 1"),
    "length": (lambda: new(trajectory_length=0.0), "trajectory_length must be positive"),
    "two lengths": (
        lambda: new(trajectory_length=1.0, num_leapfrog_steps=3),
        "trajectory_length and num_leapfrog_steps exclude each other",
    ),
    "leapfrogs": (lambda: new(num_leapfrog_steps=2.5), "must be a whole number from 1 .*, got 2.5"),
    "leapfrogs of text": (
        lambda: new(num_leapfrog_steps="ten"),
        "num_leapfrog_steps must be a whole number from 1 to max_num_leapfrog_steps, got 'ten'",
    ),
    "many leapfrogs": (
        lambda: new(num_leapfrog_steps=1e30),
        r"num_leapfrog_steps must be at most max_num_leapfrog_steps \(100000\), got 1e\+30",
    ),
    "jitter": (lambda: new(step_size_jitter=1.0), r"step_size_jitter must be in \[0, 1\)"),
    "threshold": (lambda: new(divergence_threshold=NAN), "divergence_threshold must be positive"),
    "flag": (lambda: new(randomize_length=2), "randomize_length must be True or False, got 2"),
    "cap": (lambda: new(max_num_leapfrog_steps=0), "a whole number from 1 to 2\\^53, got 0"),
    "mass": (
        lambda: new(inverse_mass_matrix=changed(np.ones(13), 3, -1)),
        r"inverse_mass_matrix must be positive finite numbers \(13,\), .*, got -1 at index 3",
    ),
    "small mass": (
        lambda: new(inverse_mass_matrix=np.ones(12)),
        r"positive finite numbers \(13,\), 'prior' or 'adapt', got 12 numbers",
    ),
    "mass of text": (lambda: new("nuts", inverse_mass_matrix="dense"), "'adapt', got 'dense'"),
    "depth": (lambda: new("nuts", max_tree_depth=21), "a whole number from 1 to 20, got 21"),
    "adapt": (
        lambda: new(run={"warmup": 10}, inverse_mass_matrix="adapt").start(START),
        r"warmup must be at least 20 to adapt the inverse mass matrix, got 10\. Give "
        r"inverse_mass_matrix \(ones, or your own variances\), or a longer warmup",
    ),
    "no warmup": (lambda: new(run={"warmup": 0}).start(START), "warmup must be at least 1"),
    "twice": (
        lambda: given(lib.Option(b"step_size", b"auto"), lib.Option(b"step_size", b"auto")),
        "each option once, got step_size twice",
    ),
    "none": (lambda: given(lib.Option(b"step_size", b"none")), "step_size must be .*, got 'none'"),
    "ids": (
        lambda: new(run={"chains": 3, "chain_ids": np.array([4, 7, 4], np.uint32)}),
        "expected distinct chain ids, got 4 twice",
    ),
    "sgld ids": (
        lambda: lib.sgld(
            OURS, START, 2, step_size=1e-5, batch_rows=2, chain_ids=np.array([3, 3], np.uint32)
        ),
        "expected distinct chain ids, got 3 twice",
    ),
    "no name": (lambda: given(lib.Option()), "a name of each option"),
    "no value": (lambda: given(lib.Option(b"step_size")), "text or numbers of each option"),
    "no text": (lambda: given(lib.Option(b"step_size", b"")), "text or numbers of each option"),
    "thin": (lambda: new(run={"thin": 0}), "thin in 1"),
    "warmup": (lambda: new(run={"warmup": 2**62}), "warmup in 0"),
    "no chains": (lambda: new(run={"chains": 0}), "at least 1 chain"),
    "save_warmup": (lambda: new(run={"save_warmup": 2}), "save_warmup as 0 or 1"),
    "start": (
        lambda: new(step_size=0.1).start(changed(START, (1, 4), NAN)),
        "the initial position must be finite, got -?nan for chain 1, parameter 4",
    ),
    "far start": (
        lambda: new(step_size=0.1).start(START * 1e25),
        "(log density|gradient) at the initial positions must be finite",
    ),
    "two starts": (lambda: started().start(START), "new chains, got chains that have started"),
    "no start": (lambda: new().advance(1), r"chains that ribbit_chains_start\(\) has started"),
    "no position": (lambda: new().position(), "has started"),
    "no bytes": (lambda: new().save(), "has started"),
    "no draws": (lambda: advance(most=0), "most >= 1"),
    "seconds": (lambda: advance(seconds=-1.0), "seconds >= 0"),
    "no seconds": (lambda: advance(seconds=NAN), "seconds >= 0"),
    "stride": (lambda: advance(most=2), "stride >= most"),
    "statistic": (lambda: statistic(b"energies"), "a statistic of the chains, got 'energies'"),
    "its stride": (lambda: statistic(stride=0), "stride >= count"),
    "room": (lambda: room(10), "a capacity of [0-9]+ bytes or more, got 10"),
    "index": (lambda: call("kernel_option", 99, c.byref(lib.OptionInfo())), "within the table"),
    "other kernel": (lambda: load(kernel="nuts"), "chains of kernel 'nuts', got 'hmc'"),
    "few bytes": (lambda: load(SAVED[:-9]), "they are truncated"),
    "many bytes": (lambda: load(SAVED + b"x" * 8), "more bytes follow"),
    "other bytes": (lambda: load(b"x" * 64), "they start otherwise"),
    "empty bytes": (lambda: load(b""), "they are truncated"),
    "other data": (
        lambda: load(target=posterior(y=Y + 1, scale=0.3, prior=PRIOR)),
        "with another x or y",
    ),
    "other prior": (
        lambda: load(target=posterior(prior=[(0, 13, 0, 2, 0, 0)], scale=0.3)),
        "with another prior table",
    ),
    "other noise": (
        lambda: load(target=posterior(prior=PRIOR)),
        "with another likelihood or temperature",
    ),
    "other dtype": (
        lambda: load(target=posterior(*(a.astype(float) for a in (X, Y)), dtype=1)),
        "expected chains of float64, got chains of float32",
    ),
    "other options": (lambda: load(step_size=[0.1] * 3), "one for each of the 2 chains"),
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
    "units": (lambda: described(units={}), '"x_mean"'),
    "x_scale": (lambda: described(units=units(x_scale=[1.0, 0.0])), "scales of the units > 0"),
    "x_mean": (lambda: described(units=units(x_mean=[1.0])), "a mean and a scale of each column"),
    "y_mean": (lambda: described(units=units(y_mean=[0.0, 1.0])), "a mean and a scale of each"),
    "no y_scale": (lambda: described(units=units(y_scale=None)), "a mean and a scale of each"),
    "numbers": (lambda: described(units=units(y_scale=["1"])), "a number"),
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


def test_handles_of_null_are_nothing():
    for name in ("interrupt_free", "interrupt_set", "network_free", "target_free", "chains_free"):
        getattr(lib.LIB, f"ribbit_{name}")(None)
    assert lib.LIB.ribbit_network_dim(None) == lib.LIB.ribbit_target_dim(None) == 0


def test_messages_belong_to_threads():
    with pytest.raises(CError, match="step_size"):
        new(step_size=-1.0)
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
    how = lib.options(lib.RunOptions, chains=2, warmup=3)
    how.size = lib.RunOptions.thin.offset
    how.thin, how.save_warmup = 0, 7  # beyond its end: never read
    out = c.c_void_p()
    call("chains_create", OURS.value, b"nuts", None, 0, c.byref(how), c.byref(out))
    call("chains_start", out, START, None)
    short = lib.Summary(size=lib.Summary.divergences.offset, divergences=7)
    call("chains_summary", out, c.byref(short))
    assert (short.warming_up, short.divergences) == (1, 7)
    lib.LIB.ribbit_chains_free(out)


def test_a_call_that_fails_changes_nothing():
    """A function that fails after some transitions, and a call with wrong arguments."""
    calls = []

    @lib.DENSITY
    def fails(n, x, grad, lp, user):
        calls.append(1)
        grad[0], lp[0] = -x[0], -0.5 * x[0] * x[0]
        return 5 if len(calls) > 40 else 0

    target = lib.Handle("target", "target_create_function", fails, 1, None, 0)
    for kernel, more in ("hmc", {"num_leapfrog_steps": 3}), ("nuts", {}):
        calls.clear()
        given = {"step_size": 0.3, "inverse_mass_matrix": None, **more}
        chains = lib.Chains(target, kernel, given, warmup=0, chains=1).start()
        first, before = chains.advance(2)[0], chains.save()
        assert np.isfinite(first).all()
        with pytest.raises(
            CError, match=r"advance\] expected your log density to return 0, got 5"
        ) as e:
            chains.advance(1000)
        assert e.value.status == 3
        assert chains.save() == before
        calls.clear()
        rest = chains.advance(2)[0]
        calls.clear()
        same = lib.Chains(target, kernel, given, saved=before, chains=1)
        assert np.array_equal(same.advance(2)[0], rest)
