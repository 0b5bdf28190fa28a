"""A learning rate that has fallen to 0 long before the last epoch: said before the first one."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import ribbit as rb

ROWS, BATCH, EPOCHS = 40, 10, 5
BATCHES = ROWS // BATCH
STEPS = EPOCHS * BATCHES


def target(*, dropping: bool = False) -> rb.Posterior:
    x = np.linspace(-1.0, 1.0, ROWS)[:, None]
    layers = [rb.Dense(3), rb.Activation("tanh"), *[rb.Dropout(0.2)] * dropping, rb.Dense(1)]
    return rb.Posterior(
        rb.Model(layers, input_shape=(1,)),
        x,
        np.sin(x),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )


FITS = [rb.BBB, rb.DeepEnsemble, rb.LaplaceApproximation, rb.MCDropout, rb.SWAG]


def said(kind: Any, schedule: rb.schedules.Schedule, resume: Any = None) -> tuple[list[Any], Any]:
    """Warnings of a rate, and the fit."""
    fitter = kind(target(dropping=kind is rb.MCDropout), batch_size=BATCH, schedule=schedule)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit = fitter.fit(EPOCHS, resume=resume, progress=False)
    return [one for one in found if "learning rate above 0" in str(one.message)], fit


@pytest.mark.parametrize("kind", FITS, ids=lambda kind: kind.__name__)
def test_a_schedule_that_counts_epochs_is_said(kind: Any) -> None:
    (one,), _ = said(kind, rb.schedules.cosine(EPOCHS))
    assert one.category is rb.errors.FitWarning
    assert one.filename == __file__
    assert f"after {EPOCHS} of {STEPS} steps ({BATCHES} an epoch)" in str(one.message)
    assert f"rb.schedules.cosine({STEPS})" in str(one.message)


@pytest.mark.parametrize("kind", FITS, ids=lambda kind: kind.__name__)
def test_others_are_not(kind: Any) -> None:
    for schedule in (
        rb.schedules.cosine(STEPS),
        rb.schedules.cosine(STEPS - BATCHES),  # an epoch of rest is rounding
        rb.schedules.cosine(EPOCHS, final=0.1),
        rb.schedules.constant(),
    ):
        assert said(kind, schedule)[0] == []


def test_what_goes_on_counts_from_the_beginning() -> None:
    schedule = rb.schedules.cosine(STEPS)
    _, fit = said(rb.DeepEnsemble, schedule)
    (one,), _ = said(rb.DeepEnsemble, schedule, fit)
    assert f"after {STEPS} of {2 * STEPS} steps" in str(one.message)
