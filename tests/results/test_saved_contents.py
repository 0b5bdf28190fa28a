"""Files whose checksums are right and whose contents are not: each is refused, with its place."""

import dataclasses
import io
import json
import os
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import DataError, RibbitWarning
from ribbit.samplers import State
from tests.support.chain_states import fields
from tests.support.targets import OPTIONS, posterior

FOREIGN = r"^\[load\] (.*header is damaged or foreign|path must be a file of draws .*, got)"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of each kind: adapting HMC and MCLMC, predictions, SGHMC, dropout masks."""
    folder = tmp_path_factory.mktemp("files")
    x = np.ones((3, 3))
    hmc = rb.HMC(posterior(), **OPTIONS["adapted"])
    run = {"chains": 2, "progress": False}
    hmc.sample(5, warmup=30, save_warmup=True, predict_at=x, save_draws=False, **run).save(
        folder / "gathered"
    )
    adjusted = rb.MCLMC(posterior(), adjusted=True)
    with pytest.warns(RibbitWarning, match="max_seconds"):
        adjusted.sample(5, warmup=10**6, max_seconds=0.05, **run).save(folder / "adjusted")
    draws = hmc.sample(5, warmup=30, **run)
    draws.save(folder / "hmc")
    adapting = State._of(fields(count=2, dim=draws.positions.shape[2]))
    dataclasses.replace(draws, state=adapting).save(folder / "adapting")
    rb.SGHMC(posterior(), step_size=1e-5, batch_size=5).sample(3, warmup=0, **run).save(
        folder / "sghmc"
    )
    mclmc = rb.MCLMC(posterior(), inverse_mass_matrix="adapt")
    with pytest.warns(RibbitWarning, match="max_seconds"):
        mclmc.sample(5, warmup=10**6, max_seconds=0.05, **run).save(folder / "mclmc")
    with pytest.warns(RibbitWarning, match="max_seconds"):
        rb.MCLMC(posterior()).sample(5, warmup=10**6, max_seconds=0.05, **run).save(
            folder / "layers"
        )
    inputs = rb.MCLMC(posterior(), inverse_mass_matrix="inputs")
    with pytest.warns(RibbitWarning, match="max_seconds"):
        inputs.sample(5, warmup=10**6, max_seconds=0.05, **run).save(folder / "inputs")
    inputs.sample(5, warmup=200, **run).save(folder / "mixed")
    model = rb.Model([rb.Dense(3), rb.Dropout(0.2), rb.Dense(1)], input_shape=(3,))
    target = rb.Posterior(
        model, x, x[:, 0], prior=rb.Normal(1.0), likelihood=rb.Gaussian(1.0), dtype=np.float64
    )
    fit = rb.MCDropout(target, batch_size=None).fit(1, progress=False)
    fit.draws(4).save(folder / "dropout")
    for path in folder.iterdir():
        rb.load(path)
    return folder


def edited(source, path, change):
    """Write the arrays and the header of `source`, changed, to `path`."""
    with np.load(source) as found:
        arrays = {name: found[name] for name in found.files}
    header = json.loads(arrays.pop("header").tobytes())
    change(header, arrays)
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with open(path, "wb") as file:
        np.savez(file, header=text, **arrays)
    return path


def array(name, make):
    def change(header, arrays):
        assert name in arrays, sorted(arrays)
        arrays[name] = make(arrays[name])

    return change


def entry(*keys_and_value):
    *keys, last, value = keys_and_value

    def change(header, arrays):
        for key in keys:
            header = header[key]
        assert last in header, header
        header[last] = value

    return change


def field(name, make):
    """Change a field of the state of HMC."""

    def change(header, arrays):
        old = State(arrays["state/bytes"].tobytes()).fields
        data = bytes(State._of(old | {name: make(old[name])}))
        arrays["state/bytes"] = np.frombuffer(data, np.uint8)

    return change


def put(where, value):
    def make(array):
        array = array.copy()
        array.flat[where] = value
        return array

    return make


def cast(dtype):
    return lambda array: array.astype(dtype)


def shorter(array):
    return array[..., :-1]


def other_dim(arrays):
    """Give the state a parameter less."""
    names = ("position", "grad", "inverse_mass")
    old = State(arrays["state/bytes"].tobytes()).fields
    cut = {name: value[:, :-1] if name in names else value for name, value in old.items()}
    arrays["state/bytes"] = np.frombuffer(bytes(State._of(cut)), np.uint8)


def one_chain(arrays):
    state = State(arrays["state/bytes"].tobytes())._split(slice(0, 1))
    arrays["state/bytes"] = np.frombuffer(bytes(state), np.uint8)


CASES = {
    "a direction that is NaN": ("mclmc", array("state/velocity", put(3, np.nan))),
    "a direction less": ("mclmc", array("state/velocity", lambda a: a[:1])),
    "a negative length": ("mclmc", array("state/decoherence_length", put(1, -1.0))),
    "an infinite length": ("mclmc", array("state/decoherence_length", put(1, np.inf))),
    "negative energies": ("mclmc", array("state/energy_squares", put(0, -1.0))),
    "negative sums of errors": ("mclmc", array("errors/needed", put(0, -1.0))),
    "weights of errors that are NaN": ("mclmc", array("errors/weight", put(0, np.nan))),
    "negative squares of gradients": ("layers", array("gradients/sums", put(0, -1.0))),
    "squares of gradients less": ("layers", array("gradients/sums", lambda a: a[:1])),
    "gradients counted by halves": ("layers", entry("adaptation", "gradients", "count", 0.5)),
    "products that are NaN": ("inputs", array("products/positions", put(0, np.nan))),
    "infinite products": ("inputs", array("products/gradients", put(0, np.inf))),
    "products of a chain less": ("inputs", array("products/gradients", lambda a: a[:1])),
    "products counted by halves": ("inputs", entry("adaptation", "products", "count", 0.5)),
    "matrices of inputs that are NaN": ("mixed", array("state/mixing", put(0, np.nan))),
    "matrices of a chain less": ("mixed", array("state/mixing", lambda a: a[:1])),
    "a step size of 0": ("mclmc", array("state/step_size", put(0, 0.0))),
    "positions of strings": ("hmc", array("positions", cast("U5"))),
    "positions of bytes": ("hmc", array("positions", cast(np.uint8))),
    "complex positions": ("hmc", array("positions", cast(complex))),
    "long double positions": ("hmc", array("positions", cast(np.longdouble))),
    "positions as records": ("hmc", array("positions", lambda a: a.astype([("a", "f8")]))),
    "a position that is NaN": ("hmc", array("positions", put(3, np.nan))),
    "an infinite position": ("hmc", array("positions", put(-1, np.inf))),
    "no chain": ("hmc", array("positions", lambda a: a[:0])),
    "no parameter": ("hmc", array("positions", lambda a: a[..., :0])),
    "too few parameters": ("dropout", array("positions", shorter)),
    "flat positions": ("hmc", array("positions", np.ravel)),
    "a draw less": ("hmc", array("positions", lambda a: a[:, 1:])),
    "repeated draws": ("hmc", entry("repeated", 7)),
    "a negative number": ("dropout", entry("repeated", -1)),
    "too many repetitions": ("dropout", entry("repeated", 2**60)),
    "repetitions as a string": ("dropout", entry("repeated", "4")),
    "a statistic less": ("hmc", array("stats/lp", shorter)),
    "a statistic of one chain": ("hmc", array("stats/energy", lambda a: a[:1])),
    "a flat statistic": ("hmc", array("stats/diverging", np.ravel)),
    "statistics of strings": ("hmc", array("stats/lp", cast("S3"))),
    "statistics of dates": ("hmc", array("stats/lp", cast("M8[s]"))),
    "lengths that differ": ("gathered", array("stats/lp", shorter)),
    "warmup of another kind": ("gathered", array("warmup_positions", cast(np.float16))),
    "warmup that is NaN": ("gathered", array("warmup_positions", put(0, np.nan))),
    "warmup of one chain": ("gathered", array("warmup_positions", lambda a: a[:1])),
    "warmup statistics": ("gathered", array("warmup_stats/lp", shorter)),
    "a step before the first": ("sghmc", entry("state", "step", -1)),
    "a step that is a fraction": ("sghmc", entry("state", "step", 1.5)),
    "a step beyond all": ("sghmc", entry("state", "step", 2**80)),
    "a negative seed": ("sghmc", entry("state", "seed", -1)),
    "a seed of 65 bits": ("sghmc", entry("state", "seed", 2**64)),
    "a seed that is a flag": ("sghmc", entry("state", "seed", True)),
    "negative warmup": ("sghmc", entry("state", "warmup", -5)),
    "an unknown kind": ("hmc", entry("state", "kind", "Other")),
    "a state that is a list": ("hmc", entry("state", [1, 2])),
    "a state that is bytes of another kind": ("hmc", array("state/bytes", lambda a: a[::-1])),
    "a state that is empty": ("hmc", array("state/bytes", lambda a: a[:0])),
    "a state that is cut": ("hmc", array("state/bytes", shorter)),
    "a state of 64-bit numbers": ("hmc", array("state/bytes", cast(np.int64))),
    "a state without its bytes": ("hmc", lambda header, arrays: arrays.pop("state/bytes")),
    "a state of another position": ("hmc", lambda header, arrays: other_dim(arrays)),
    "a state of one chain": ("hmc", lambda header, arrays: one_chain(arrays)),
    "a state in another dtype": ("sghmc", array("state/position", cast(np.float16))),
    "a state that is NaN": ("hmc", field("position", put(0, np.nan))),
    "a position of SGHMC that is NaN": ("sghmc", array("state/position", put(0, np.nan))),
    "a log density that is NaN": ("adjusted", array("state/logdensity", put(0, np.nan))),
    "log densities of one chain": ("sghmc", array("state/logdensity", lambda a: a[:1])),
    "an infinite gradient": ("hmc", field("grad", put(0, np.inf))),
    "an infinite gradient of MCLMC": ("mclmc", array("state/grad", put(0, np.inf))),
    "terms of one chain": ("hmc", field("terms", lambda a: a[:1])),
    "a chain twice": ("hmc", field("chains", lambda a: 0 * a)),
    "a chain of SGHMC twice": ("sghmc", array("state/chains", lambda a: 0 * a)),
    "chains as floats": ("sghmc", array("state/chains", cast(float))),
    "no step size": ("hmc", field("step_size", lambda a: 0 * a)),
    "a negative step size": ("hmc", field("step_size", lambda a: -a)),
    "a step size that is NaN": ("hmc", field("step_size", put(0, np.nan))),
    "a negative mass": ("hmc", field("inverse_mass", lambda a: -a)),
    "a mass too short": ("hmc", field("inverse_mass", shorter)),
    "too many steps": ("hmc", field("step", lambda step: 2**40)),
    "tuning that is NaN": ("adapting", field("dual.log_step", put(0, np.nan))),
    "tuning of one chain": ("adapting", field("dual.error", lambda a: a[:1])),
    "negative squares": ("adapting", field("window.squares", lambda a: -a - 1)),
    "means of one chain": ("adapting", field("window.mean", lambda a: a[:1])),
    "tuning of MCLMC that is NaN": ("adjusted", array("dual/log_step", put(0, np.nan))),
    "tuning of one chain of MCLMC": ("adjusted", array("dual/error", lambda a: a[:1])),
    "a negative count": ("adjusted", entry("adaptation", "dual", "count", -1)),
    "a count as a string": ("adjusted", entry("adaptation", "welford", "count", "3")),
    "negative squares of MCLMC": ("adjusted", array("welford/squares", lambda a: -a - 1)),
    "squares of one chain": ("adjusted", array("welford/mean", lambda a: a[:1])),
    "a velocity too short": ("sghmc", array("state/first_moment", shorter)),
    "a velocity that is NaN": ("sghmc", array("state/first_moment", put(0, np.nan))),
    "settings as a list": ("hmc", entry("settings", [])),
    "a negative seed of the settings": ("hmc", entry("settings", "seed", -1)),
    "ids of other chains": ("hmc", entry("settings", "chains", [0])),
    "ids as strings": ("hmc", entry("settings", "chains", ["0", "1"])),
    "a flag that is none": ("hmc", entry("complete", "yes")),
    "another model": ("hmc", entry("predictive", "model", "layers", [])),
    "a model of another dim": ("hmc", entry("predictive", "model", "input_shape", [7])),
    "a model that is a list": ("hmc", entry("predictive", [1])),
    "a rate above one": ("dropout", entry("predictive", "dropout", "rates", [0.0, 1.5, 0.0])),
    "a rate less": ("dropout", entry("predictive", "dropout", "rates", [0.0])),
    "a negative seed of masks": ("dropout", entry("predictive", "dropout", "seed", -1)),
    "unknown masks": ("dropout", entry("predictive", "dropout", "masks", "column")),
    "other inputs": ("gathered", array("prediction/x", shorter)),
    "inputs that are NaN": ("gathered", array("prediction/x", put(0, np.nan))),
    "sums of other rows": ("gathered", array("prediction/sum", lambda a: a[:1])),
    "sums of strings": ("gathered", array("prediction/squares", cast("U3"))),
    "noise of other rows": ("gathered", array("prediction/noise", lambda a: a[:0])),
    "a negative count of draws": ("gathered", entry("prediction", "count", -10)),
    "predictions of other rows": ("gathered", array("prediction/kept/mean", lambda a: a[:, :, :1])),
    "predictions of other outputs": ("gathered", array("prediction/kept/mean", shorter)),
    "predictions of no draw": ("gathered", array("prediction/kept/mean", lambda a: a[:0])),
    "more predictions than draws": (
        "gathered",
        array("prediction/kept/mean", lambda a: np.concatenate([a, a])),
    ),
    "predictions of strings": ("gathered", array("prediction/kept/mean", cast("U3"))),
    "noise of fewer draws": ("gathered", array("prediction/kept/noise_sd", lambda a: a[:1])),
    "noise of no shape": ("gathered", array("prediction/kept/noise_sd", lambda a: a[0, 0, 0, 0])),
    "no step between draws": ("gathered", entry("prediction", "kept", "thin", 0)),
    "negative degrees of freedom": ("gathered", entry("prediction", "kept", "noise_df", -1.0)),
    "degrees of freedom without a scale": (
        "gathered",
        entry("prediction", "kept", "noise_df", 3.0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_contents_are_checked(files, tmp_path, name):
    source, change = CASES[name]
    path = edited(files / source, tmp_path / "edited", change)
    with pytest.raises(DataError, match=r"^\[load\] .*edited is damaged or foreign \(\w+: ."):
        rb.load(path)


def test_an_unchanged_file_loads(files, tmp_path):
    """The checks above fail for what was changed, not for how the file was written."""
    for source in sorted(files.iterdir()):
        rb.load(edited(source, tmp_path / "same", lambda header, arrays: None))


def test_the_other_byte_order_loads(files, tmp_path):
    def swap(header, arrays):
        for name, values in arrays.items():
            arrays[name] = values.astype(values.dtype.newbyteorder())

    before = rb.load(files / "hmc")
    after = rb.load(edited(files / "hmc", tmp_path / "swapped", swap))
    assert after.positions.dtype == before.positions.dtype
    assert after.positions.dtype.isnative
    assert (after.positions == before.positions).all()


def test_a_zip_bomb_takes_no_memory(files, tmp_path):
    """A quarter of a gigabyte of zeros in a file of a quarter of a megabyte."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        member, {"descr": "<f8", "fortran_order": False, "shape": (2**25,)}
    )
    path, zeros = tmp_path / "bomb", bytes(2**24)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("header.npy", "w") as file,
    ):
        file.write(member.getvalue())
        for _ in range(2**28 // len(zeros)):
            file.write(zeros)
    assert path.stat().st_size < 2**20
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"bytes of arrays in a file of"):
            rb.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "shape",
    ["(2**40,)", "(1099511627776, 1024)", "(-1, -3)", "(3,", "(" * 500, "[3]", "3", "(3.0,)"],
)
def test_headers_of_arrays_are_not_trusted(tmp_path, shape):
    """Shapes that are no shapes, or not those of the bytes that follow; no TokenError either."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}".encode()
    text = text + b"}\n" if shape != "(3," else text + b"\n"
    path = tmp_path / "header"
    with zipfile.ZipFile(path, "w") as archive:
        magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text))
        archive.writestr("positions.npy", magic + text + bytes(24))
    with pytest.raises(DataError, match=FOREIGN):
        rb.load(path)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"\xff\xfe", b"1e", b'{"format": 1}', b"[]"])
def test_headers_of_files_are_not_trusted(tmp_path, text):
    with open(tmp_path / "header", "wb") as file:
        np.savez(file, header=np.frombuffer(text, np.uint8))
    with pytest.raises(DataError, match=FOREIGN):
        rb.load(tmp_path / "header")


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="got a pipe"):
        rb.load(tmp_path / "pipe")
    with pytest.raises(DataError, match="got a device"):
        rb.load(os.devnull)
