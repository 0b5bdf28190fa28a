"""Large arrays lie in blocks that are kept, and draws are written by several threads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import ribbit as rb
from ribbit import _core
from ribbit._arrays.draws import put_draw
from ribbit.sample import _groups, _largest

LARGE = (1, 1 << 21)  # float32: one block of 8 MiB


def weights(seed: int) -> npt.NDArray[np.float32]:
    mean, rho = np.zeros(LARGE[1], np.float32), np.full(LARGE[1], -1.0, np.float32)
    drawn: npt.NDArray[np.float32] = rb.reparameterize(mean, rho, 1, seed)
    return drawn


def test_a_large_array_takes_over_the_block_of_one_that_is_gone() -> None:
    _core.drop_blocks()
    first = weights(1)
    place, kept = first.ctypes.data, first.copy()
    other = weights(2)
    assert other.ctypes.data != place  # one that is still held is never taken
    np.testing.assert_array_equal(first, kept)
    del first
    again = weights(1)
    assert again.ctypes.data == place
    np.testing.assert_array_equal(again, kept)
    view = again[:, 5:10]
    del again
    assert weights(2).ctypes.data != place  # nor one of which a view is held
    np.testing.assert_array_equal(view, kept[:, 5:10])


def test_blocks_are_handed_back() -> None:
    _core.drop_blocks()
    array = weights(1)
    assert _core.drop_blocks() <= array.nbytes  # the scales that the call worked with
    del array
    assert _core.drop_blocks() == 4 * LARGE[1]
    assert _core.drop_blocks() == 0


def test_no_more_than_256_mib_are_kept() -> None:
    held = [weights(i) for i in range(40)]  # 320 MiB
    held.clear()
    assert 0 < _core.drop_blocks() <= 256 << 20


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [7, 1_500_001])
def test_a_draw_is_written_to_its_place_alone(dtype: type, dim: int) -> None:
    draws = np.full((2, 3, dim), -1.0, dtype)
    position = np.arange(2 * dim, dtype=dtype).reshape(2, dim)
    put_draw(draws, 1, position)
    np.testing.assert_array_equal(draws[:, 1], position)
    assert (draws[:, [0, 2]] == -1.0).all()
    put_draw(draws, 2, position[:, ::-1])
    np.testing.assert_array_equal(draws[:, 2], position[:, ::-1])


def test_a_draw_that_does_not_fit_is_refused() -> None:
    draws = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(IndexError, match=r"expected a draw in 0..2, got 3"):
        _core.put_draw(draws, 3, np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"shape \(2, 4\)"):
        _core.put_draw(draws, 0, np.zeros((2, 5), np.float32))
    with pytest.raises(TypeError, match="float32"):
        _core.put_draw(draws, 0, np.zeros((2, 4)))


def test_the_largest_distance_is_that_of_the_whole_array() -> None:
    rng = np.random.default_rng(1)
    position = rng.standard_normal((3, 50_000)).astype(np.float32)
    mean, widths = rng.standard_normal(50_000), rng.uniform(0.5, 2.0, 50_000)
    whole = (np.abs(position - mean) / widths).max(axis=1)
    np.testing.assert_array_equal(_largest(position, mean, widths), whole)
    assert (_largest(position, np.zeros(1), widths) != whole).any()  # the control
    position[1, 49_999] = np.nan
    assert np.isnan(_largest(position, mean, widths)).tolist() == [False, True, False]


def test_chains_that_share_a_start_are_found_bit_by_bit() -> None:
    starts = np.zeros((5, 100), np.float32)
    starts[1, 99] = -0.0  # another start, as bits go
    starts[3, 0] = 1.0
    assert _groups(starts) == [0, 1, 0, 2, 0]
    assert _groups(np.arange(6.0).reshape(3, 2)) is None


def test_starts_are_told_apart_by_all_their_bits() -> None:
    """Which begin alike, and zeros and NaNs, which equal what they are not, or not themselves."""
    starts = np.zeros((6, 100), np.float32)
    starts[1, 99], starts[2, 0], starts[[4, 5], 70] = 1.0, -0.0, np.nan
    assert _groups(starts) == [0, 1, 2, 0, 3, 3]
