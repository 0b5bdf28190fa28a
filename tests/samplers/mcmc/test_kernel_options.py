"""The table of options of the kernels in the core, and the values that it accepts."""

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core

FACTS = {"dim": 3, "temperature": 4.0, "shared_prior_sd": 0.5, "prior_sd": np.full(3, 0.5)}


def resolve(kernel: str, facts: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return _core.resolve_options(kernel, options, FACTS if facts is None else facts)


def test_the_table_has_a_text_for_each_option() -> None:
    table = _core.kernel_options()
    assert {row["kernel"] for row in table} == {"hmc", "nuts"}
    assert len({(row["kernel"], row["name"]) for row in table}) == len(table)
    for row in table:
        assert row["type"] in ("reals", "real", "whole", "flag", "mass")
        assert row["must_be"]
        assert row["documentation"].endswith(".")
        given = resolve(row["kernel"], **{row["name"]: row["default"]})
        np.testing.assert_equal(given, resolve(row["kernel"]))


@pytest.mark.parametrize("sampler", [rb.HMC, rb.NUTS])
def test_keywords_of_samplers_are_the_table(sampler: type) -> None:
    """The same names in the same order, with the same defaults, after the target."""
    kernel = sampler.__name__.lower()
    table = [(r["name"], r["default"]) for r in _core.kernel_options() if r["kernel"] == kernel]
    fields = [(field.name, field.default) for field in dataclasses.fields(sampler)]
    assert fields == [("target", dataclasses.MISSING), *table]
    parameters = inspect.signature(sampler).parameters.values()
    assert {p.kind for p in parameters if p.name != "target"} == {inspect.Parameter.KEYWORD_ONLY}


def test_defaults_depend_on_the_target() -> None:
    assert resolve("hmc")["trajectory_length"] == 0.5 * 2.0  # prior sd * sqrt(temperature)
    assert resolve("hmc")["inverse_mass"] is None
    different = {"dim": 2, "prior_sd": np.array([0.5, 2.0])}
    assert resolve("hmc", different)["inverse_mass"].tolist() == [0.25, 4.0]
    assert resolve("hmc", different)["trajectory_length"] == 1.0
    assert resolve("hmc", {"dim": 2})["adapt_mass"]
    assert resolve("hmc", {"dim": 2})["needs_windows"]
    assert resolve("nuts")["adapt_mass"]
    assert not resolve("nuts")["needs_windows"]
    assert resolve("nuts")["inverse_mass"].tolist() == [1.0, 1.0, 1.0]
    assert resolve("hmc", step_size=0.1)["max_num_leapfrog_steps"] == 100_000
    assert resolve("hmc")["max_mean_leapfrog_steps"] == 1024


@pytest.mark.parametrize(
    ("kernel", "option", "value"),
    [
        ("hmc", "step_size", np.float32(0.25)),
        ("hmc", "step_size", 1),
        ("hmc", "step_size", [0.1, 0.2]),
        ("hmc", "step_size", np.array(0.1)),
        ("hmc", "num_leapfrog_steps", np.int64(7)),
        ("hmc", "randomize_length", np.bool_(False)),
        ("hmc", "inverse_mass_matrix", np.ones(3, np.float32)),
        ("hmc", "inverse_mass_matrix", np.ones(6)[::2]),
        ("hmc", "inverse_mass_matrix", [1, 2, 3]),
        ("nuts", "inverse_mass_matrix", None),
        ("nuts", "inverse_mass_matrix", "prior"),
    ],
)
def test_values_of_the_right_type(kernel: str, option: str, value: Any) -> None:
    resolve(kernel, **{option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("step_size", True),
        ("step_size", None),
        ("step_size", 1j),
        ("step_size", [[1.0], [1.0, 2.0]]),
        ("step_size", np.array([True])),
        ("step_size", np.array(["0.1"])),
        ("trajectory_length", "1"),
        ("trajectory_length", np.ones(1)),
        ("num_leapfrog_steps", 2.0),
        ("num_leapfrog_steps", True),
        ("randomize_length", 1),
        ("randomize_length", "yes"),
        ("inverse_mass_matrix", 1.0),
        ("inverse_mass_matrix", "None"),
        ("inverse_mass_matrix", np.ones(3, complex)),
        ("target_accept", None),
        ("target_accept", {}),
    ],
)
def test_values_of_a_wrong_type(option: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^\[HMC\] {option} must be .*, got "):
        resolve("hmc", **{option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("step_size", -0.1),
        ("step_size", "fast"),
        ("step_size", []),
        ("step_size", np.ones((2, 2))),
        ("step_size", [0.1, np.inf]),
        ("trajectory_length", np.nan),
        ("num_leapfrog_steps", 0),
        ("num_leapfrog_steps", 10**400),
        ("inverse_mass_matrix", "auto"),
        ("inverse_mass_matrix", np.ones(4)),
        ("inverse_mass_matrix", np.array([1.0, 0.0, 1.0])),
        ("step_size_jitter", 1.0),
        ("target_accept", 1.0),
        ("divergence_threshold", 0.0),
    ],
)
def test_values_out_of_range(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^\[HMC\] {option} must be .*, got ") as failed:
        resolve("hmc", **{option: value})
    assert len(str(failed.value)) < 200


RANGE = r"positive and finite, or 'auto'"
MASS = r"positive finite numbers \(3,\), 'prior' or 'adapt'"
WHOLE = "a whole number from 1 to max_num_leapfrog_steps"


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("step_size", np.inf, rf"{RANGE}, got inf"),
        ("step_size", [0.1, -1, 0.1, 0.1], rf"{RANGE}, got -1 at index 1"),
        ("step_size", [], rf"a number or one for each chain, {RANGE}, got .* shape \(0,\)"),
        ("step_size", np.ones((2, 2)), rf"a number or one for each chain, {RANGE}, got an array.*"),
        ("inverse_mass_matrix", np.ones(4), rf"{MASS}, got an array, float64 of shape \(4,\)"),
        ("inverse_mass_matrix", np.ones((2, 3)), rf"{MASS}, got .* of shape \(2, 3\)"),
        ("inverse_mass_matrix", 1.0, rf"{MASS}, got 1.0"),
        ("inverse_mass_matrix", [1, 1, -1], rf"{MASS}, got -1 at index 2"),
        ("inverse_mass_matrix", [1, 0, -1], rf"{MASS}, got 0 at index 1"),
        ("inverse_mass_matrix", [np.nan, 1, 1], rf"{MASS}, got nan at index 0"),
        ("num_leapfrog_steps", 10**30, r"at most max_num_leapfrog_steps \(100000\), got 10{30}"),
        ("num_leapfrog_steps", 2.5, rf"{WHOLE}, got 2.5"),
        ("num_leapfrog_steps", "ten", rf"{WHOLE}, got 'ten'"),
        ("max_num_leapfrog_steps", 10**30, r"a whole number from 1 to 2\^53, got 10{30}"),
        ("trajectory_length", np.inf, "positive and finite, got inf"),
        ("trajectory_length", "long", "a number, positive and finite, got 'long'"),
    ],
)
def test_messages_name_the_fault(option: str, value: Any, text: str) -> None:
    """The length of the target, the bad element, the limits."""
    with pytest.raises((TypeError, ValueError), match=rf"^\[HMC\] {option} must be {text}$"):
        resolve("hmc", **{option: value})


def test_options_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        resolve("hmc", trajectory_length=1.0, num_leapfrog_steps=3)
    with pytest.raises(ValueError, match=r"at most max_num_leapfrog_steps \(2\), got 3"):
        resolve("hmc", num_leapfrog_steps=3, max_num_leapfrog_steps=2)
    with pytest.raises(ValueError, match=r"\[NUTS\] nuts has no option 'trajectory_length'"):
        resolve("nuts", trajectory_length=1.0)
    with pytest.raises(ValueError, match="needs a target with prior_sd"):
        resolve("hmc", {"dim": 3}, inverse_mass_matrix="prior")
    with pytest.raises(ValueError, match="kernel must be 'hmc' or 'nuts'"):
        resolve("slice")
