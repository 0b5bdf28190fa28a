"""What `benchmarks.effective` asserts before it reports a time, without rivals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ribbit as rb
from benchmarks.studies import effective
from benchmarks.workloads.effective_problems import (
    PROBLEMS,
    Digits,
    MissingDataError,
    Posterior,
    data_folder,
)
from benchmarks.workloads.effective_problems import curve as load_curve


@pytest.fixture
def curve() -> Posterior:
    problem = PROBLEMS["bnn"]
    assert isinstance(problem, Posterior)
    return problem


def test_judge_is_ribbits_density(curve: Posterior) -> None:
    """The log density that is judged is the sampled one, up to its constant; so is the network."""
    x, y, x_test, _ = curve.data
    dense = [rb.Dense(5, bias=False), rb.Activation("tanh")]
    model = rb.Model([*dense, *dense, rb.Dense(1, bias=False)], input_shape=(3,))
    target = rb.Posterior(
        model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(), dtype=np.float64
    )
    assert target.dim == curve.dim == 46
    theta = np.random.default_rng(3).standard_normal((2, 3, curve.dim))
    judged = curve.judge(theta)
    value = target.value_and_grad(theta.reshape(6, -1))[0].reshape(2, 3)
    constant = value - judged["quantities"][..., -1]
    np.testing.assert_allclose(constant, constant[0, 0], rtol=1e-12)
    outputs = model.apply(theta[1, 2, :-1], x_test)[:, 0]
    np.testing.assert_allclose(curve.outputs(theta[1, 2:], x_test)[0], outputs, rtol=1e-10)
    assert judged["quantities"][1, 2, 0] == pytest.approx(outputs[0])


def test_mixture_is_no_less_than_the_mean(curve: Posterior) -> None:
    theta = np.random.default_rng(4).standard_normal((2, 5, curve.dim))
    judged = curve.judge(theta)
    assert judged["mixture"] >= judged["held_out"].mean()
    alone = curve.judge(theta[:1, :1])
    assert alone["mixture"] == pytest.approx(alone["held_out"][0, 0])


def test_curve_is_standardised() -> None:
    x, y, x_test, y_test = load_curve()
    assert x.shape == (100, 3)
    assert (abs(y.mean()) < 1e-12, y.std()) == (True, pytest.approx(1.0))
    assert len(x_test) == len(y_test) == 200


def found(entry: str, held_out: float, rhat: float = 1.0) -> effective.Found:
    return effective.Found(entry, {}, rhat=rhat, held_out=held_out, error=0.01)


def test_agreement() -> None:
    """Equal ones pass; one that is ten errors off, or has not converged, is not reported."""
    good = [found("a", -1.0), found("b", -1.01), found("c", -0.99)]
    effective.assert_agreement(good)
    assert not any(entry.failure for entry in good)
    wrong = [found("a", -1.0), found("b", -1.0), found("c", -0.9)]
    effective.assert_agreement(wrong)
    assert "held out" in wrong[2].failure
    slow = [found("a", -1.0), found("b", -1.0, rhat=1.3), found("c", -1.0)]
    effective.assert_agreement(slow)
    assert [entry.failure for entry in slow] == ["", "R-hat 1.30", ""]


def test_level_that_is_not_reached_has_no_time() -> None:
    problem = PROBLEMS["mnist-sgld"]
    assert isinstance(problem, Digits)
    run = {"seconds": [1.0, 2.0], "errors": [0.5, problem.level], "compile": 0.0, "form": "x"}
    assert effective.learning_row("mnist-sgld", problem, "jax", [run])[3] == "3 s"
    short = run | {"errors": [0.5, 0.4]}
    row = effective.learning_row("mnist-sgld", problem, "jax", [run, short])
    assert (row[3], row[-1]) == ("-", "NOT REACHED: 40.0%")


def test_missing_data_are_said(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("RIBBIT_SHARED_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(MissingDataError, match="RIBBIT_SHARED_DATA"):
        data_folder()
    fresh = dataclasses.replace(PROBLEMS["concrete"])
    monkeypatch.setitem(PROBLEMS, "concrete", fresh)
    tables, _, notes = effective.measure(["concrete"], quick=True)
    assert notes == ["Left out: concrete, no development data (set RIBBIT_SHARED_DATA)"]
    assert [title for title, _, _ in tables] == ["Forms"]
