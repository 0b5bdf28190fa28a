"""Laplace's approximation in a folder: the training goes on, the covariance is in the end."""

from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from tests.durability.lines import posterior

pytest.importorskip("zarr")
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # short fits


def test_the_folder_has_the_covariance(tmp_path: Path) -> None:
    laplace = rb.LaplaceApproximation(posterior(), batch_size=8)
    alone = laplace.fit(300, progress=False)
    for _ in range(2):  # the second one finds everything there
        fit = laplace.fit(300, progress=False, store=tmp_path / "fit")
        assert np.array_equal(fit.factor, alone.factor)
        found = rb.load(tmp_path / "fit" / "checkpoint")
        assert np.array_equal(found.factor, alone.factor)
        assert found.complete
        assert np.array_equal(found.history["epoch"], alone.history["epoch"])


def test_going_on_from_a_fit_in_a_folder(tmp_path: Path) -> None:
    """The history before is that of the fit before, once."""
    laplace = rb.LaplaceApproximation(posterior(), batch_size=8)
    first = laplace.fit(100, progress=False)
    alone = laplace.fit(100, resume=first, progress=False)
    for _ in range(2):
        fit = laplace.fit(100, resume=first, progress=False, store=tmp_path / "fit")
        assert np.array_equal(fit.factor, alone.factor)
        assert np.array_equal(fit.history["epoch"], alone.history["epoch"])
