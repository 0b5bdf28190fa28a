"""Rows of memory-mapped files: the bits of the same rows in memory, which judge them."""

import concurrent.futures
import os
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.mapped import MappedRows
from tests.support.ranks import on_ranks

# Short runs on rows of any scale.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::ribbit.errors.{name}")
    for name in ("ConvergenceWarning", "FitWarning", "ScaleWarning")
]

FORMATS = [
    *("float16", "float32", "float64", "uint8", "int8"),
    *("uint16", "int16", "uint32", "int32", "int64"),
]


def filed(tmp_path, array, name="x.npy"):
    """The rows of an array in a file."""
    np.save(tmp_path / name, array)
    return np.load(tmp_path / name, mmap_mode="r")


def rows(number, width, dtype="float32"):
    rng = np.random.default_rng(number)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=(number, width)).astype(dtype)
    return rng.integers(0, 100, size=(number, width)).astype(dtype)


def posterior(x, layers=(7,), **options):
    width = x.shape[1]
    y = np.sin(np.arange(len(x)))
    given = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3)} | options
    return rb.Posterior(rb.mlp(width, layers, 1), x, y, **given)


def same(a, b, theta=None):
    """Whether two targets have the same bits, on all rows and on some."""
    theta = a.init(seed=3, chains=2) if theta is None else theta
    some = np.array([5, 0, 5, a.num_rows - 1])
    pairs = [
        (one, other)
        for chosen in (None, some, np.arange(a.num_rows)[::-1])
        for one, other in zip(
            a.value_and_grad(theta, chosen), b.value_and_grad(theta, chosen), strict=True
        )
    ]
    return all(np.array_equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stored", FORMATS)
def test_every_format_has_the_bits_of_rows_in_memory(tmp_path, stored, dtype, standardize):
    """70 features: more than are converted at a time; 1,100 rows: several shards."""
    x = filed(tmp_path, rows(1100, 70, stored))
    options = {"dtype": dtype, "standardize": standardize}
    a, b = posterior(np.array(x), **options), posterior(x, **options)
    assert isinstance(b.x, MappedRows)
    assert np.shares_memory(b.x.source, x)
    assert same(a, b)
    assert np.array_equal(a.x, np.asarray(b.x))
    assert a.fingerprint == b.fingerprint
    other = np.array(x)
    other[-1, -1] += 1
    assert not same(a, posterior(filed(tmp_path, other, "other.npy"), **options))


def test_every_half_precision_number(tmp_path):
    bits = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = bits[np.isfinite(bits)].reshape(-1, 64)
    x = filed(tmp_path, finite)
    a, b = posterior(np.array(x), ()), posterior(x, ())
    theta = a.init(seed=1)
    for number in range(len(x)):
        chosen = np.array([number])
        ours, theirs = (t.value_and_grad(theta, chosen)[1] for t in (a, b))
        assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def test_units_of_columns_are_those_of_rows_in_memory(tmp_path):
    """Blocks of a file of more than 16 MB, and constant columns."""
    x = rows(30_000, 150)
    x[:, 3] = 0.1
    x[:, 5] = 1e20 * x[:, 5]
    a = posterior(x, (), standardize=True)
    b = posterior(filed(tmp_path, x), (), standardize=True)
    c = posterior(filed(tmp_path, x[:, :1].copy(), "one.npy"), (), standardize=True)
    assert a.fingerprint == b.fingerprint
    assert c.fingerprint == posterior(x[:, :1].copy(), (), standardize=True).fingerprint
    assert np.array_equal(a.inputs(7), b.inputs(7))


@pytest.mark.parametrize("stored", [True, False], ids=["file", "memory"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_first_bad_place_of_many_blocks_is_named(tmp_path, stored, order):
    """Block after block is checked. Control: the same data without the bad cells."""
    tokens = rb.Model([rb.Embedding(5, 2), rb.LSTM(2), rb.Dense(2)], input_shape=(6,))
    given = {"prior": rb.Normal(1.0), "likelihood": rb.Categorical()}
    words, x = np.ones((90_000, 6), np.uint8), np.asarray(rows(90_000, 6), order=order)
    labels = np.zeros(90_000, int)

    def build(words, x):
        words, x = (filed(tmp_path, a, f"{a.dtype}.npy") if stored else a for a in (words, x))
        rb.Posterior(tokens, words, labels, **given)
        posterior(x)

    build(words, x)
    words[[80_123, 80_124], 4] = 5
    with pytest.raises(rb.errors.DataError, match=r"x\[80123, 4\] is 5"):
        build(words, x)
    x[[80_123, 80_124], 4] = np.inf
    with pytest.raises(rb.errors.DataError, match=r"x\[80123, 4\] is inf"):
        build(words * 0, x)


def networks():
    rng = np.random.default_rng(0)
    layers = [rb.Conv2D(3, 3), rb.Activation("tanh"), rb.Flatten(), rb.Dense(3)]
    conv = rb.Model(layers, input_shape=(9, 9, 2))
    images = rng.integers(0, 256, size=(90, 9, 9, 2))
    yield conv, images.astype(np.uint8), rb.Categorical()
    yield conv, (images / 256).astype(np.float16), rb.Categorical()
    tokens = rb.Model([rb.Embedding(11, 4), rb.LSTM(3), rb.Dense(3)], input_shape=(6,))
    yield tokens, rng.integers(0, 11, size=(90, 6)).astype(np.uint16), rb.Categorical()


@pytest.mark.parametrize("number", range(3))
def test_images_and_tokens(tmp_path, number):
    model, x, likelihood = list(networks())[number]
    y = np.arange(len(x)) % 3
    targets = [
        rb.Posterior(model, data, y, prior=rb.Normal(1.0), likelihood=likelihood)
        for data in (x, filed(tmp_path, x))
    ]
    assert same(*targets)
    a, b = (
        rb.SGLD(t, step_size=1e-4, batch_size=16).sample(5, warmup=3, chains=2) for t in targets
    )
    assert np.array_equal(a.positions, b.positions)
    assert np.array_equal(np.asarray(targets[1].x), targets[0].x)


RUNS = {
    "hmc": lambda t: rb.HMC(t, step_size=1e-3).sample(3, warmup=2).positions,
    "sgld": lambda t: rb.SGLD(t, step_size=1e-6, batch_size=30).sample(9, warmup=3).positions,
    "sghmc": lambda t: rb.SGHMC(t, step_size=1e-6, batch_size=30).sample(9, warmup=3).positions,
    "ensemble": lambda t: rb.DeepEnsemble(t, members=2, batch_size=30).fit(2).theta,
    "starts": lambda t: rb.EnsembleStart(max_steps=60).fit(t, 2).theta,
    "laplace": lambda t: rb.LaplaceApproximation(t, batch_size=30).fit(2).mean,
    **{
        f"bbb {estimator} {size}": lambda t, e=estimator, n=size: (
            rb.BBB(t, batch_size=n, estimator=e).fit(2).mean
        )
        for estimator in ("reparam", "local", "flipout")
        for size in (30, None)
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_draws_and_fits_have_the_bits_of_rows_in_memory(tmp_path, name):
    x = filed(tmp_path, rows(700, 5, "float16"))
    options = {"sample_weight": np.linspace(0.5, 2.0, 700)} if name == "sghmc" else {}
    a, b = posterior(np.array(x), **options), posterior(x, **options)
    found = [RUNS[name](target) for target in (a, b)]
    assert np.array_equal(*found)


def test_dropout_and_what_is_integrated_out(tmp_path):
    x = filed(tmp_path, rows(700, 5, "float16"))
    layers = [rb.Dense(8), rb.Activation("tanh"), rb.Dropout(0.2), rb.Dense(1)]
    model = rb.Model(layers, input_shape=(5,))
    y = np.sin(np.arange(700))
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3)}
    a, b = (rb.Posterior(model, data, y, **options) for data in (np.array(x), x))
    for size in (50, None):
        fits = [rb.MCDropout(t, batch_size=size).fit(2).theta for t in (a, b)]
        assert np.array_equal(*fits)
    a, b = posterior(np.array(x), marginalize="last_layer"), posterior(x, marginalize="last_layer")
    theta = a.init(seed=1)
    assert np.array_equal(a.value_and_grad(theta)[1], b.value_and_grad(theta)[1])


@pytest.mark.parametrize("shards", [1, 3, 16])
def test_any_number_of_shards_and_of_ranks(tmp_path, shards):
    """Each rank with its rows of one file."""
    x = filed(tmp_path, rows(700, 5, "float16"))
    y = np.sin(np.arange(700))
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3), "shards": shards}
    model = rb.mlp(5, (7,), 1)
    a, b = (rb.Posterior(model, data, y, **options) for data in (np.array(x), x))
    assert same(a, b)
    theta = a.init(seed=1, chains=2)

    def found(group):
        mine = group.rows(700, shards)
        part = rb.Posterior(model, x[mine], y[mine], group=group, marginalize=None, **options)
        assert isinstance(part.x, MappedRows)
        return part.value_and_grad(theta), part.fingerprint["data"]

    for ranks in {1, min(3, shards)}:
        for (value, grad), data in on_ranks(ranks, found):
            assert np.array_equal(value, a.value_and_grad(theta)[0])
            assert np.array_equal(grad, a.value_and_grad(theta)[1])
            assert data == b.fingerprint["data"]


def test_parts_of_a_file(tmp_path):
    x = rows(200, 8)
    whole = filed(tmp_path, x)
    part = posterior(whole[30:130])
    assert same(posterior(x[30:130]), part)
    copy = pickle.loads(pickle.dumps(part))
    assert same(part, copy)
    assert isinstance(copy.x, MappedRows)
    assert np.array_equal(part.x[[3, 5]], x[[33, 35]])
    assert np.array_equal(part.subset([4, 9]).x, x[[34, 39]])
    assert len(pickle.dumps(part)) < x.nbytes / 2 < 10_000
    raw = np.memmap(tmp_path / "raw", np.float32, "w+", shape=(200, 8))
    raw[:] = x
    assert same(posterior(x), posterior(raw))


def test_what_is_no_file_to_read_is_copied(tmp_path):
    x = rows(60, 6)
    filed(tmp_path, x)
    changed = np.load(tmp_path / "x.npy", mmap_mode="c")
    changed[0, 0] = 7.0
    np.save(tmp_path / "columns.npy", np.asfortranarray(x))
    np.save(tmp_path / "swapped.npy", x.astype(">f4"))
    for data in (
        changed,
        np.load(tmp_path / "columns.npy", mmap_mode="r"),
        np.load(tmp_path / "swapped.npy", mmap_mode="r"),
        np.load(tmp_path / "x.npy", mmap_mode="r")[:, ::2],
        np.load(tmp_path / "x.npy", mmap_mode="r")[::2],
    ):
        target = posterior(data)
        assert type(target.x) is np.ndarray
        assert same(posterior(np.array(data)), target)


def test_bad_rows_are_named(tmp_path):
    x = rows(90_000, 60)
    x[81_234, 17] = np.nan
    with pytest.raises(rb.errors.DataError, match=r"finite float32 values in x.*x\[81234, 17\] is"):
        posterior(filed(tmp_path, x))
    with pytest.raises(rb.errors.DataError, match=r"x\[81234, 17\] is nan"):
        posterior(filed(tmp_path, x), standardize=True)
    large = rows(40, 3, "float64")
    large[7, 1] = 1e300
    with pytest.raises(rb.errors.DataError, match=r"float32 values in x.*x\[7, 1\] is 1e\+300"):
        posterior(filed(tmp_path, large, "large.npy"))
    assert posterior(filed(tmp_path, large, "large.npy"), dtype="float64").num_rows == 40
    with pytest.raises(rb.errors.ShapeError, match=r"expected x of shape \(N, 3\)"):
        rb.Posterior(
            *(rb.mlp(3, (), 1), filed(tmp_path, rows(40, 4), "wide.npy"), np.zeros(40)),
            prior=rb.Normal(1.0),
            likelihood=rb.Gaussian(0.3),
        )
    tokens = rb.Model([rb.Embedding(5, 4), rb.LSTM(3), rb.Dense(2)], input_shape=(2,))
    with pytest.raises(rb.errors.DataError, match=r"integer tokens in \[0, 5\)"):
        rb.Posterior(
            *(tokens, filed(tmp_path, np.full((9, 2), 5, np.uint8), "t.npy"), np.zeros(9, int)),
            prior=rb.Normal(1.0),
            likelihood=rb.Categorical(),
        )
    with pytest.raises(ValueError, match="no sample_weight with standardize=True"):
        posterior(
            filed(tmp_path, rows(40, 3), "w.npy"), standardize=True, sample_weight=np.arange(40.0)
        )


def test_workers_open_the_file(tmp_path):
    x = filed(tmp_path, rows(700, 30, "float16"))
    sampler = rb.SGLD(posterior(x), step_size=1e-6, batch_size=30)
    alone = sampler.sample(4, warmup=2, chains=2)
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        moved = sampler.sample(4, warmup=2, chains=2, executor=pool)
    assert np.array_equal(alone.positions, moved.positions)


def test_a_file_that_has_changed_is_refused(tmp_path):
    x = rows(64, 3)
    sent = pickle.dumps(posterior(filed(tmp_path, x)))
    x[5, 0] += 1.0
    filed(tmp_path, x)
    with pytest.raises(rb.errors.DataError, match=r"expected the rows of .* as they were"):
        pickle.loads(sent)
    os.unlink(tmp_path / "x.npy")
    with pytest.raises(FileNotFoundError):
        pickle.loads(sent)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux on private memory")
@pytest.mark.parametrize("kind", ["r", "memory"])
def test_memory_does_not_grow_with_the_file(tmp_path, kind):
    """Under a limit on private memory of 70 MB more than there was; a file of 120 MB.

    Rows in memory, the control, do not fit. The resident memory, pages of the file included, does
    not grow by the file either while a posterior is made.
    """
    path = tmp_path / "large.npy"
    large = np.lib.format.open_memmap(path, "w+", np.float32, (30_000, 1000))
    large[::1000] = 0.5
    del large
    code = f"""
        import resource, sys, warnings
        import numpy as np, ribbit as rb
        warnings.simplefilter("ignore")
        rb.set_num_threads(2)
        def status(key):
            for line in open("/proc/self/status"):
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
        small = np.zeros((600, 3))
        def work(x, **options):
            target = rb.Posterior(
                rb.mlp(x.shape[1], (4,), 1), x, np.zeros(len(x)),
                prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3), **options,
            )
            made = status("VmHWM")
            for make in (rb.SGLD, rb.SGHMC):
                make(target, step_size=1e-9, batch_size=64).sample(2, warmup=1, chains=2)
            rb.BBB(target, batch_size=len(x) // 40).fit(1)
            target.value_and_grad(target.init())
            return made
        work(small)  # threads and modules
        resident = status("VmHWM")
        limit = status("VmData") + (70 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        x = np.load({str(path)!r}, mmap_mode="r")
        if {kind!r} == "memory":
            x = np.array(x)
        made = work(x) - resident
        work(x, standardize=True)
        print("resident", made)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if kind == "memory":
        assert done.returncode != 0
        assert "MemoryError" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) < 70 << 20
