"""Gate "random numbers": known answers, the law of the normals, independence, bit-identity.

Statistical assertions use fixed seeds; each states its false-fail rate and has a control.
"""

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import special, stats

from ribbit import _core
from tests.oracle import reference
from tests.oracle.known_answers import KNOWN_ANSWERS

LARGEST = math.sqrt(66 * math.log(2))  # of a 32-bit Box-Muller: u1 = 2^-33


def fill(kind, shape, *, seed=0, step=0, chains=None, purpose=9, layer=0, dtype=np.float64):
    out = np.empty(shape, dtype)
    chains = np.arange(shape[0], dtype=np.uint32) if chains is None else chains
    getattr(_core, kind)(out, seed, step, np.asarray(chains, np.uint32), purpose, layer)
    return out


@pytest.mark.parametrize("case", [c for c in KNOWN_ANSWERS if c[0] == 10])
def test_philox_gives_the_known_answers(case):
    _, counter, key, answer = case
    words = _core.philox4x32(np.array([counter], np.uint32), np.array(key, np.uint32))
    assert tuple(words[0]) == answer


def test_philox_matches_the_oracle():
    rng = np.random.default_rng(0)
    counters = rng.integers(0, 2**32, size=(1000, 4), dtype=np.uint32)
    key = rng.integers(0, 2**32, size=2, dtype=np.uint32)
    assert np.array_equal(_core.philox4x32(counters, key), reference.philox4x32(counters, key))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 63, 64, 65, 127, 1000, 4097])
def test_normals_and_uniforms_match_the_oracle_at_every_address(n):
    for seed, step, purpose, layer in [
        (0, 0, 1, 0),
        (2**63 + 5, 2**32 + 9, 9, 3),
        (7, 2**40 - 1, 5, 65535),
    ]:
        chains = np.array([0, 3, 2**32 - 1], np.uint32)
        address = {"seed": seed, "step": step, "purpose": purpose, "layer": layer}
        normals = fill("fill_normal", (3, n), chains=chains, **address)
        single = fill("fill_normal", (3, n), chains=chains, dtype=np.float32, **address)
        uniforms = fill("fill_uniform", (3, n), chains=chains, **address)
        for c, chain in enumerate(chains):
            known = reference.normal(n, chain=int(chain), **address)
            np.testing.assert_allclose(normals[c], known, rtol=0, atol=1e-13)
            np.testing.assert_allclose(single[c], known, rtol=0, atol=2e-6)
            known = reference.uniform(n, chain=int(chain), **address)
            assert np.array_equal(uniforms[c], known)


def test_a_prefix_does_not_depend_on_the_length_and_a_row_not_on_the_others():
    for dtype in (np.float32, np.float64):
        long = fill("fill_normal", (4, 1003), seed=5, dtype=dtype)
        for n in (1, 2, 3, 5, 8, 31, 64, 130):
            assert np.array_equal(fill("fill_normal", (4, n), seed=5, dtype=dtype), long[:, :n])
        for chain in range(4):
            alone = fill("fill_normal", (1, 1003), seed=5, chains=[chain], dtype=dtype)
            assert np.array_equal(alone[0], long[chain])


def normal_counts(total, dtype, seed):
    """Counts in the cells of equal width over |z| <= 5.5, beyond 5.5, and the largest |z|."""
    edges = np.linspace(-5.5, 5.5, 1101)
    counts, beyond, largest, chunk = np.zeros(1100, np.int64), 0, 0.0, 1 << 20
    for step in range(-(-total // chunk)):
        n = min(chunk, total - step * chunk)
        z = fill("fill_normal", (1, n), seed=seed, step=step, dtype=dtype)[0].astype(float)
        counts += np.histogram(z, edges)[0]
        beyond += int(np.sum(np.abs(z) > 5.5))
        largest = max(largest, float(np.max(np.abs(z))))
    return edges, counts, beyond, largest


def chi_square_p(edges, counts, beyond, total):
    """P value of the cells, merged until each expects at least 10; and of the count beyond."""
    expected = total * np.diff(special.ndtr(edges))
    merged, observed, hope, seen = [], [], 0.0, 0
    for e, o in zip(expected, counts, strict=True):
        hope, seen = hope + e, seen + o
        if hope >= 10:
            merged.append(hope)
            observed.append(seen)
            hope, seen = 0.0, 0
    merged[-1] += hope
    observed[-1] += seen
    merged, observed = np.array(merged), np.array(observed)
    statistic = np.sum((observed - merged) ** 2 / merged)
    tail = total * 2 * special.ndtr(-5.5)
    low, high = stats.poisson.cdf(beyond, tail), stats.poisson.sf(beyond - 1, tail)
    return float(stats.chi2.sf(statistic, len(merged))), float(2 * min(low, high))


def check_law(total, dtype, seed):
    p_cells, p_beyond = chi_square_p(*(found := normal_counts(total, dtype, seed))[:3], total)
    # false-fail rate 1e-6 each
    assert p_cells > 1e-6
    assert p_beyond > 1e-6
    assert found[3] <= LARGEST * (1 + 1e-6)
    return found


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_law_of_the_normals(dtype):
    edges, counts, beyond, largest = check_law(3_000_000, dtype, seed=1)
    assert largest > 4.5  # P(all 3e6 below 4.5) = 1e-9
    # controls: a cell 20 % heavy, and normals 2 % too wide
    heavy = counts.copy()
    heavy[550] = int(1.2 * heavy[550])
    assert chi_square_p(edges, heavy, beyond, 3_000_000)[0] < 1e-6
    wide = np.histogram(1.02 * fill("fill_normal", (1, 3_000_000), seed=1)[0], edges)[0]
    assert chi_square_p(edges, wide, beyond, 3_000_000)[0] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_law_of_1e8_normals(dtype):
    _, _, _, largest = check_law(100_000_000, dtype, seed=2)
    assert largest > 5.0  # P(all 1e8 below 5.0) = e^-57


def test_the_extreme_words_give_the_stated_extremes():
    # float32 keeps both ends: the far tail, and the small radii of u1 near one
    z = fill("fill_normal", (1, 4_000_000), seed=3)[0]
    single = fill("fill_normal", (1, 4_000_000), seed=3, dtype=np.float32)[0].astype(float)
    assert np.max(np.abs(single - z)) <= 2e-6
    assert np.max(np.abs(z)) <= LARGEST
    assert np.all(np.isfinite(single))
    far = np.abs(z) > 1e-3
    assert np.max(np.abs(single[far] / z[far] - 1)) <= 1e-3
    assert np.any(np.abs(z) < 1e-5)


def correlation_z(a, b):
    """Correlation of a and b, and of their squares, in standard errors."""
    a, b = np.ravel(a), np.ravel(b)
    squares = (a**2 - 1) @ (b**2 - 1) / (2 * math.sqrt(a.size))
    return a @ b / math.sqrt(a.size), squares


ADDRESS = {"seed": 11, "step": 4, "chains": [2], "purpose": 1}


def test_streams_are_independent():
    n = 200_000
    base = fill("fill_normal", (1, n), **ADDRESS)[0]
    others = [
        fill("fill_normal", (1, n), **{**ADDRESS, **change})[0]
        for change in (
            {"seed": 12},
            {"seed": 11 + 2**32},
            {"step": 5},
            {"step": 4 + 2**32},
            {"chains": [3]},
            {"chains": [4]},
            {"purpose": 2},
            {"purpose": 9},
            {"layer": 1},
        )
    ]
    scores = [correlation_z(base, other) for other in others]
    scores += [correlation_z(base[:-lag], base[lag:]) for lag in (1, 2, 3, 4, 5, 8, 16, 32, 64)]
    # 36 scores at |z| <= 6: 7e-8 together
    assert np.max(np.abs(scores)) <= 6
    # controls: the same address, and a stream shifted by one
    assert correlation_z(base, base)[0] > 6
    assert np.max(np.abs(correlation_z(base[1:], np.roll(base, -1)[:-1]))) > 6


def test_lanes_of_a_block_are_independent_and_normal():
    z = fill("fill_normal", (1, 400_000), seed=13)[0].reshape(-1, 4)
    for i in range(4):
        # Kolmogorov-Smirnov, p > 1e-7: four lanes, 4e-7 together
        assert stats.kstest(z[:, i], stats.norm.cdf).pvalue > 1e-7
        for j in range(i):
            assert np.max(np.abs(correlation_z(z[:, i], z[:, j]))) <= 6
    assert stats.kstest(1.05 * z[:, 0], stats.norm.cdf).pvalue < 1e-7  # control


def test_uniforms_have_their_law():
    u = fill("fill_uniform", (2, 500_000), seed=17)
    assert np.min(u) > 0
    assert np.max(u) < 1
    for row in u:  # p > 5e-7 each: 1e-6 together
        assert stats.kstest(row, "uniform").pvalue > 5e-7
    assert stats.kstest(u[0] ** 1.02, "uniform").pvalue < 5e-7  # control
    low = (u[0] * 2.0**52).astype(np.int64) & 0xFFFF  # the low bits vary too
    cells = np.bincount(low >> 8, minlength=256)
    assert stats.chisquare(cells).pvalue > 1e-6


SNIPPET = """
import hashlib, numpy as np
from ribbit import _core
digest = hashlib.sha256()
for dtype in (np.float32, np.float64):
    for n in (1, 5, 64, 1000, 300_001):
        for purpose, step in ((1, 0), (5, 2**33 + 1)):
            out = np.empty((3, n), dtype)
            _core.fill_normal(out, 99, step, np.array([0, 1, 7], np.uint32), purpose, 2)
            digest.update(out.tobytes())
out = np.empty((3, 1001))
_core.fill_uniform(out, 99, 3, np.array([0, 1, 7], np.uint32), 2, 0)
digest.update(out.tobytes())
print(_core.isa(), digest.hexdigest())
"""


def run_under(isa):
    done = subprocess.run(
        [sys.executable, "-c", SNIPPET],
        env={**os.environ, "RIBBIT_ISA": isa},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.split()


def test_every_instruction_set_draws_the_same_bits():
    digests = {}
    for isa in _core.available_isas():
        name, digests[isa] = run_under(isa)
        assert name == isa
    assert digests.keys() & {"baseline", "neon"}
    assert len(set(digests.values())) == 1, digests


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_number_of_threads_changes_no_bit(dtype):
    before = _core.num_threads()
    digests = set()
    try:
        for threads in (1, 2, 4):
            _core.set_num_threads(threads)
            out = fill("fill_normal", (5, 200_003), seed=21, dtype=dtype)
            digests.add(hashlib.sha256(out.tobytes()).hexdigest())
    finally:
        _core.set_num_threads(before)
    assert len(digests) == 1
