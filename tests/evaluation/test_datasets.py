"""ribbit.datasets: files, scaling, splits and toy problems."""

import gzip
import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from ribbit import datasets


def write(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_with_header(tmp_path, end, mark):
    lines = ["a,mpg , c", "1,2,3", "", "4, 5e-1 ,-6", "   ", ""]
    path = write(tmp_path, mark + end.join(lines))
    for target in ("mpg", 1, -2):
        x, y = datasets.read_csv(path, target=target)
        np.testing.assert_array_equal(x, [[1, 3], [4, -6]])
        np.testing.assert_array_equal(y, [2, 0.5])
        assert x.dtype == y.dtype == np.float64


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("text", "target", "labels"),
    [
        ("w,kind\n1,cat\n2,dog\n", "kind", ["cat", "dog"]),
        ("kind,w\ncat,1\ndog,2\n", 0, ["cat", "dog"]),
        ('w,kind\n1,"a, b"\n2," c "\n', "kind", ["a, b", "c"]),
        ("w,kind\n1,cat\n2,7\n", "kind", ["cat", "7"]),  # texts and numbers
        ("w,income\n1,<=50K\n2,>50K\n", "income", ["<=50K", ">50K"]),
        ("w,age\n1,18-25\n2,26-40\n", "age", ["18-25", "26-40"]),
        ("1,cat\n2,cat\n", 1, ["cat", "cat"]),  # no header
        ("0,kind\n1,cat\n2,dog\n", 1, ["cat", "dog"]),
        ("0,kind\n1,cat\n2,dog\n", "kind", ["cat", "dog"]),
    ],
)
def test_csv_with_texts_as_targets(tmp_path, mark, text, target, labels):
    x, y = datasets.read_csv(write(tmp_path, mark + text), target=target)
    np.testing.assert_array_equal(x, [[1], [2]])
    assert y.dtype.kind == "U"
    assert y.tolist() == labels


def test_csv_without_header(tmp_path):
    path = write(tmp_path, "1;2\n3;4\n")
    x, y = datasets.read_csv(path, target=-1, delimiter=";")
    np.testing.assert_array_equal(x, [[1], [3]])
    np.testing.assert_array_equal(y, [2, 4])
    x, y = datasets.read_csv(path, target="2", delimiter=";", header=True)
    np.testing.assert_array_equal(y, [4])
    with pytest.raises(ValueError, match=r"\[read_csv\] expected a target position, got 'y'"):
        datasets.read_csv(path, target="y", delimiter=";")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,\n", r"line 3, column 'b' of .*, got a missing value"),
        ("a,b\n1,2\n\nNA,4\n", r"line 4, column 'a' of .*, got a missing value"),
        ("1,2\n3,nan\n", r"line 2, column 1 of .*, got a missing value"),
        ("1,2\n,3\n", r"line 2, column 0"),
        (",2\n1,3\n", r"line 1, column 0 of .*, got a missing value"),
        ("a,b\ntwo,1\n", r"line 2, column 'a' of .*, got 'two': only the target may be a text"),
        ("a,b\n1,2\n3,12x\n", r"finite number in line 3, column 'b' of .*, got '12x'"),
        ("a,b\n1,cat\n3,\n", r"text in line 3, column 'b' of .*, got a missing value"),
        ("a,b\n1,cat\n3,NA\n", r"text in line 3, column 'b' of .*, got a missing value"),
        ("a,b\n1,cat\n3\n", r"expected 2 cells in line 3 of .*, got 1"),
        ("\ufeffa,b\n", r"only a header"),
        ("\ufeff", r"got an empty file"),
        ("a,b\n1,inf\n", r"line 2, column 'b' of .*, got 'inf'"),
        ("a,b\n1,1_000\n2,5\n", r"got '1_000'"),
        ("a,b\n1,2\n3\n", r"expected 2 cells in line 3 of .*, got 1"),
        ("a,b\n1,2,3\n", r"expected 2 cells in line 2 of .*, got 3"),
        ("", r"got an empty file"),
        ("\n\n", r"got an empty file"),
        ("a,b\n", r"only a header"),
        ("b\n1\n", r"expected columns separated by ','"),
        ('a,b\n"1,2\n', r"expected a text table"),
        ("a,a,b\n1,2,3\n".replace("a,a,b", "b,b,c"), r"expected target to be one of"),
        ("a,c\n1,2\n", r"expected target to be one of the columns \['a', 'c'\], got 'b'"),
        (b"a,b\n1,\xff\n", r"expected a text table"),
    ],
)
def test_bad_csv(tmp_path, text, message):
    target = "b" if (text[:1] in ("a", "b", "\ufeff") or text[:1] == b"a") and len(text) > 2 else 0
    with pytest.raises(ValueError, match=message) as error:
        datasets.read_csv(write(tmp_path, text), target=target)
    assert str(error.value).startswith("[read_csv] expected")


def test_bad_csv_arguments(tmp_path):
    path = write(tmp_path, "a,b\n1,2\n")
    for target, kind in [(2, ValueError), (-3, ValueError), (True, TypeError), (1.0, TypeError)]:
        with pytest.raises(kind, match=r"\[read_csv\] expected target"):
            datasets.read_csv(path, target=target)
    with pytest.raises(ValueError, match=r"\[read_csv\] expected delimiter"):
        datasets.read_csv(path, target=0, delimiter="::")
    with pytest.raises(FileNotFoundError):
        datasets.read_csv(tmp_path / "absent.csv", target=0)


@given(table=hnp.arrays(np.float64, (3, 4), elements=st.floats(-1e300, 1e300)))
def test_csv_keeps_every_bit(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_text("\n".join(",".join(map(repr, row)) for row in table.tolist()))
    x, y = datasets.read_csv(path, target=2)
    np.testing.assert_array_equal(x, np.delete(table, 2, axis=1))
    np.testing.assert_array_equal(y, table[:, 2])


@given(st.text(alphabet='01.,;ae-"\n\r \x00', max_size=40))
def test_any_text_is_a_table_or_a_typed_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_bytes(text.encode())
    try:
        x, y = datasets.read_csv(path, target=0)
    except ValueError as error:
        message = str(error)
    else:
        message = "[read_csv] expected"
        assert x.shape[0] == y.shape[0] > 0
        assert np.isfinite(x).all()
    assert message.startswith("[read_csv] expected")


def test_npz(tmp_path, rng):
    x, y, labels = rng.normal(size=(5, 2)), rng.normal(size=5), np.arange(5)
    np.savez(tmp_path / "a.npz", X=x.astype(np.float32), y=y, labels=labels)
    got_x, got_y = datasets.read_npz(tmp_path / "a.npz")
    np.testing.assert_array_equal(got_x, x.astype(np.float32))
    np.testing.assert_array_equal(got_y, y)
    assert got_x.dtype == np.float64
    _, got = datasets.read_npz(tmp_path / "a.npz", x="X", y="labels")
    assert got.dtype == labels.dtype
    with pytest.raises(ValueError, match=r"\[read_npz\] expected an array 'z', got"):
        datasets.read_npz(tmp_path / "a.npz", y="z")
    np.savez(tmp_path / "b.npz", x=x, y=y[:4])
    with pytest.raises(ValueError, match=r"\[read_npz\] expected x and y with as many rows"):
        datasets.read_npz(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", x=np.array([[1.0], [np.nan]]), y=y[:2])
    with pytest.raises(ValueError, match=r"\[read_npz\] expected finite"):
        datasets.read_npz(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", x=np.array([{}, {}], dtype=object), y=y[:2])
    with pytest.raises(ValueError, match=r"\[read_npz\] expected numbers"):
        datasets.read_npz(tmp_path / "d.npz")
    np.save(tmp_path / "e.npy", x)
    with pytest.raises(ValueError, match="a single array"):
        datasets.read_npz(tmp_path / "e.npy")
    (tmp_path / "f.npz").write_bytes(b"not an archive")
    with pytest.raises(ValueError, match=r"\[read_npz\] expected a NumPy archive"):
        datasets.read_npz(tmp_path / "f.npz")


def idx(array, code):
    """Bytes of an IDX file: two zeros, type, number of axes, sizes, values; big-endian."""
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")]
)
@pytest.mark.parametrize("packed", [False, True])
def test_idx(tmp_path, rng, code, dtype, packed):
    for shape in [(3,), (0, 2), (4, 2, 5)]:
        array = (100 * rng.normal(size=shape)).astype(dtype)
        raw = idx(array, code)
        (tmp_path / "a").write_bytes(gzip.compress(raw) if packed else raw)
        got = datasets.read_idx(tmp_path / "a")
        np.testing.assert_array_equal(got, array)
        assert got.dtype == array.dtype
        assert got.dtype.isnative
        assert got.flags.writeable


IMAGES = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4), 8)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", r"expected an IDX file, got b''"),
        (b"x,y\n1,2\n", r"expected an IDX file, got b'x,y\\n'"),
        (b"\0\0\x0a\1\0\0\0\0", r"expected an IDX file"),
        (b"\0\0\x08\0", r"expected an IDX file"),
        (b"\0\0\x08\xff" + bytes(2000), r"expected the sizes of 255 axes"),
        (IMAGES[:10], r"expected the sizes of 3 axes, got the end"),
        (IMAGES[:-1], r"expected 24 bytes for shape \(2, 3, 4\) of uint8, got 23"),
        (IMAGES + b"\0", r"expected 24 bytes .*, got 25"),
        (gzip.compress(IMAGES, mtime=0)[:-9], r"expected an IDX file"),
        (b"\0\0\x08\4" + bytes(4) + 12 * b"\xff", r"expected a shape that NumPy holds"),
        (b"\x1f\x8b", r"expected an IDX file"),
    ],
)
def test_bad_idx(tmp_path, raw, message):
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(ValueError, match=message) as error:
        datasets.read_idx(tmp_path / "a")
    assert str(error.value).startswith("[read_idx] expected")
    with pytest.raises(FileNotFoundError):
        datasets.read_idx(tmp_path / "absent")


@given(
    st.sampled_from([b"", b"\0\0\x08\1", b"\0\0\x0c\2", b"\x1f\x8b\x08\0"]),
    st.binary(max_size=40),
)
def test_any_bytes_are_an_array_or_a_typed_error(tmp_path_factory, head, rest):
    path = tmp_path_factory.mktemp("idx") / "a"
    path.write_bytes(head + rest)
    try:
        got = datasets.read_idx(path)
    except ValueError as error:
        message = str(error)
    else:
        message = "[read_idx] expected"
        assert got.nbytes <= len(rest)
    assert message.startswith("[read_idx] expected")


def test_standardize_and_back(rng):
    x = rng.normal(3.0, 5.0, size=(50, 3))
    x[:, 1] = 0.1  # constant, and not a sum of powers of two
    for y in (rng.normal(7.0, 2.0, size=50), rng.normal(7.0, 2.0, size=(50, 2))):
        s = datasets.standardize(x, y)
        np.testing.assert_allclose(s.x.mean(axis=0), 0, atol=1e-14)
        np.testing.assert_allclose(s.x.std(axis=0), [1, 0, 1], atol=1e-14)
        np.testing.assert_array_equal(s.x[:, 1], 0)
        assert s.x_scale[1] == 1
        assert s.y.shape == y.shape
        np.testing.assert_allclose(s.y.std(axis=0), 1)
        np.testing.assert_array_equal(s.transform(x), s.x)
        np.testing.assert_array_equal(s.transform_y(y), s.y)
        mean, std = s.inverse_y(s.y, np.ones_like(s.y))
        np.testing.assert_allclose(mean, y, rtol=1e-14)
        np.testing.assert_allclose(std, np.broadcast_to(y.std(axis=0), y.shape))
        np.testing.assert_allclose(s.inverse_y(s.y), y, rtol=1e-14)
    one = datasets.standardize(x, y[:, 0])
    assert one.inverse_y(np.zeros((4, 1)), np.ones((4, 1)))[0].shape == (4, 1)
    with pytest.raises(AttributeError):
        one.x_mean = 0


def test_standardize_equals_scikit_learn(rng):
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    x, new = rng.gamma(2.0, size=(2, 40, 3))
    expected = preprocessing.StandardScaler().fit(x)
    got = datasets.standardize(x)
    np.testing.assert_allclose(got.x, expected.transform(x), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(got.transform(new), expected.transform(new), rtol=1e-12, atol=1e-14)


def test_bad_standardize():
    x = np.zeros((3, 2))
    for bad, kind in [
        ((np.zeros(3), None), ValueError),
        ((np.zeros((0, 2)), None), ValueError),
        ((np.full((3, 2), np.nan), None), ValueError),
        ((x, np.zeros(4)), ValueError),
        ((x, np.zeros((3, 1, 1))), ValueError),
        ((x, ["a", "b", "c"]), TypeError),
    ]:
        with pytest.raises(kind, match=r"\[standardize\] expected"):
            datasets.standardize(*bad)
    s = datasets.standardize(x)
    with pytest.raises(ValueError, match=r"\[Scaler.inverse_y\] expected a scaler made with"):
        s.inverse_y(np.zeros(3))
    with pytest.raises(ValueError, match=r"\[Scaler.transform\] expected x of shape \(N, 2\)"):
        s.transform(np.zeros((3, 4)))


@pytest.mark.parametrize("name", ["concrete", "energy", "wine", "yacht"])
def test_splits_are_the_standard_ones(shared_data, name):
    with np.load(shared_data / "uci" / f"{name}.npz") as data:
        expected = list(zip(data["train"], data["test"], strict=True))
        rows = len(data["y"])
    for (train, test), (known_train, known_test) in zip(
        datasets.splits(rows)[:5], expected, strict=True
    ):
        np.testing.assert_array_equal(train, known_train)
        np.testing.assert_array_equal(test, known_test)


def test_splits():
    known = [4, 0, 3, 1, 2]  # RandomState(3).choice(5, 5, replace=False)
    train, test = datasets.splits(5, 3, train_fraction=0.6)[0]
    assert [*train, *test] == np.random.RandomState(3).choice(5, 5, replace=False).tolist()
    assert sorted(known) == sorted([*train, *test])
    assert len(train) == 3
    assert len(datasets.splits(10)) == 20
    for train, test in datasets.splits(101, num_splits=3):
        assert len(train) == 91
        assert sorted([*train, *test]) == list(range(101))
    longer = datasets.splits(30, 7, num_splits=4)
    for (a, b), (c, d) in itertools.pairwise([datasets.splits(30, 7, num_splits=1)[0], longer[0]]):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, d)
    for bad, kind in [
        ({"n": 1}, ValueError),
        ({"n": 2.0}, TypeError),
        ({"n": 5, "seed": -1}, ValueError),
        ({"n": 5, "num_splits": 0}, ValueError),
        ({"n": 5, "train_fraction": 1.0}, ValueError),
        ({"n": 2, "train_fraction": 0.1}, ValueError),
    ]:
        with pytest.raises(kind, match=r"\[splits\] expected"):
            datasets.splits(**bad)


def test_toy_regression():
    """The residual is N(0, 0.02^2) seen through the curve; shapes, determinism, prefix.

    Kolmogorov-Smirnov at p > 1e-6 (false-fail rate 1e-6) on 5,000 rows with a fixed seed. Control:
    the noise recovered with a 10 % larger standard deviation fails.
    """
    x, y = datasets.toy_regression(5000, seed=3)
    assert x.shape == (5000, 1)
    assert y.shape == (5000,)
    assert 0 < x.min() < 0.001
    assert 0.499 < x.max() < 0.5
    again = datasets.toy_regression(7, seed=3)
    np.testing.assert_array_equal(again[0], x[:7])
    np.testing.assert_array_equal(again[1], y[:7])
    assert not np.array_equal(datasets.toy_regression(7, seed=4)[1], again[1])
    # invert y(x, e) for e by Newton: the map is monotone near e = 0
    e = np.zeros(5000)
    t = 2 * np.pi * x[:, 0]
    for _ in range(50):
        p = t + 2 * np.pi * e
        value = x[:, 0] + 0.3 * np.sin(p) + 0.3 * np.sin(2 * p) + e - y
        slope = 0.6 * np.pi * np.cos(p) + 1.2 * np.pi * np.cos(2 * p) + 1
        e -= np.clip(value / slope, -0.01, 0.01)
    steep = (slope > 1) & (np.abs(value) < 1e-9)  # where the inverse is unique
    inside = steep & (x[:, 0] < 0.08)
    assert inside.sum() > 500
    assert stats.kstest(e[inside] / 0.02, "norm").pvalue > 1e-6
    assert stats.kstest(y[inside], "norm").pvalue < 1e-6


def test_two_moons():
    """Distance from the half circles is |N(0, noise^2)| to first order.

    KS at p > 1e-6 on 4,000 rows, fixed seed (false-fail rate 1e-6); control: noise taken 20 % off.
    """
    x, y = datasets.two_moons(4000, seed=1, noise=0.01)
    assert x.shape == (4000, 2)
    assert y.tolist() == [0, 1] * 2000
    centre = np.where(y[:, None] == 0, [0.0, 0.0], [1.0, 0.5])
    radial = np.linalg.norm(x - centre, axis=1) - 1.0
    assert stats.kstest(radial / 0.01, "norm").pvalue > 1e-6
    assert stats.kstest(radial / 0.012, "norm").pvalue < 1e-6
    assert x[y == 0, 1].min() > -0.05
    assert x[y == 1, 1].max() < 0.55
    exact, _ = datasets.two_moons(100, seed=1, noise=0)
    radius = np.linalg.norm(exact - centre[:100], axis=1)
    np.testing.assert_allclose(radius, 1.0, rtol=1e-14)
    np.testing.assert_array_equal(datasets.two_moons(50, seed=1, noise=0.01)[0], x[:50])


def test_bad_toys():
    for call in (datasets.toy_regression, datasets.two_moons):
        for n, seed, kind in [(0, 0, ValueError), (3.5, 0, TypeError), (3, -1, ValueError)]:
            with pytest.raises(kind, match=rf"\[{call.__name__}\] expected"):
                call(n, seed)
    with pytest.raises(ValueError, match=r"\[two_moons\] expected noise >= 0"):
        datasets.two_moons(3, noise=-1)


def test_energy_efficiency():
    """The rows of the source; its sums were computed once from another copy of the set."""
    x, y = datasets.energy_efficiency()
    assert x.shape == (768, 8)
    assert x.dtype == y.dtype == np.float64
    np.testing.assert_array_equal(x[0], [0.98, 514.5, 294.0, 110.25, 7.0, 2.0, 0.0, 0.0])
    sums = [586.88, 515872.0, 244608.0, 135632.0, 4032.0, 2688.0, 180.0, 2160.0]
    np.testing.assert_allclose(x.sum(axis=0), sums, rtol=0, atol=1e-6)
    assert y.sum() == pytest.approx(17131.93, abs=1e-6)
    assert float(y.min()) == 6.01
    assert float(y.max()) == 43.1
    folder = datasets._DATA
    note = (folder / "energy_efficiency.txt").read_text(encoding="utf-8")
    for word in ("Tsanas", "Xifara", "UCI", "10.24432/C51307", "CC BY 4.0"):
        assert word in note
        assert word in datasets.energy_efficiency.__doc__
    assert {path.suffix for path in folder.iterdir()} == {".csv", ".txt"}  # no set without a note


def test_energy_efficiency_is_that_of_the_benchmark(shared_data):
    x, y = datasets.energy_efficiency()
    with np.load(shared_data / "uci" / "energy.npz") as file:
        np.testing.assert_array_equal(x, file["X"])
        np.testing.assert_array_equal(y, file["y"])


class Slices:
    """Rows that are read in slices alone; remembers the longest."""

    def __init__(self, array, chunks=None):
        self.array, self.chunks, self.longest = array, chunks, 0
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        assert chunked(self, rows)
        self.longest = max(self.longest, len(self.array[rows]))
        return self.array[rows]


def chunked(source, rows):
    return source.chunks is None or rows.start % source.chunks[0] == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "uint8", "int64"])
def test_rows_are_written_some_at_a_time(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr("ribbit.datasets.files._WRITTEN", 1000)
    x = np.arange(3000).reshape(600, 5).astype(dtype)
    for source in (x, x[::-1], Slices(x), Slices(x, (7, 5)), Slices(x.reshape(600, 5, 1))):
        found = datasets.write_npy(tmp_path / "x.npy", source)
        assert isinstance(found, np.memmap)
        assert found.dtype == x.dtype.newbyteorder("=")
        wanted = source.array if isinstance(source, Slices) else source
        assert np.array_equal(found, wanted)
        assert 0 < getattr(source, "longest", 1) <= 200
    assert [one.name for one in tmp_path.iterdir()] == ["x.npy"]


def test_a_zarr_array_becomes_a_file(tmp_path):
    zarr = pytest.importorskip("zarr")
    x = np.random.default_rng(0).normal(size=(500, 6)).astype("float16")
    source = zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(64, 6))
    found = datasets.write_npy(tmp_path / "x.npy", source)
    assert np.array_equal(found, x)
    assert found.dtype == np.float16


def test_rows_that_cannot_be_written(tmp_path):
    path = tmp_path / "x.npy"
    for rows, kind in (
        (3, TypeError),
        ([[1.0]], TypeError),
        (np.array(1.0), ValueError),
        (np.zeros((0, 3)), ValueError),
        (np.array(["a"]), TypeError),
        (np.array([1j]), TypeError),
    ):
        with pytest.raises(kind, match=r"\[write_npy\] expected rows"):
            datasets.write_npy(path, rows)

    class Torn(Slices):
        def __getitem__(self, rows):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        datasets.write_npy(path, Torn(np.zeros((4, 2))))
    assert not list(tmp_path.iterdir())
