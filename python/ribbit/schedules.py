"""Schedules: factors that multiply the sampler's `step_size` at each step.

Steps are counted from 0 over the whole run with warmup, also if it is resumed. The cycles of
`cyclical` are counted from the end of warmup. A fit makes ceil(N / batch_size) steps per epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain

if TYPE_CHECKING:
    import numpy.typing as npt

    Factors = npt.NDArray[np.float64]


__all__ = ["Schedule", "constant", "cosine", "cyclical", "polynomial"]


_STEPS = 2**62
_KINDS = ("constant", "polynomial", "cosine", "cyclical")


@dataclass(frozen=True)
class Schedule:
    """Factor of the step size at every step; made by the functions of this module.

    Attributes
    ----------
    kind : str
        "constant", "polynomial", "cosine" or "cyclical".
    power, offset : float
        Parameters of "polynomial".
    num_steps : int
        Steps of "cosine", or of a cycle of "cyclical".
    final : float
        Factor of "cosine" from `num_steps` on.
    num_cycles : int
        Number of cycles of "cyclical".
    exploration : float
        Part of each cycle of "cyclical" that draws no noise.
    draws_per_cycle : int
        Draws that a sampler keeps from each cycle of "cyclical".
    sampling : float
        Part at the end of each cycle of "cyclical" that these draws come from.

    Examples
    --------
    >>> rb.schedules.cosine(100)
    schedules.cosine(100, final=0.0)
    >>> isinstance(rb.schedules.constant(), rb.schedules.Schedule)
    True
    """

    kind: str
    power: float = 0.0
    offset: float = 1.0
    num_steps: int = 1
    final: float = 0.0
    num_cycles: int = 0
    exploration: float = 0.0
    draws_per_cycle: int = 1
    sampling: float = 0.25

    def __post_init__(self) -> None:
        name = "Schedule"
        checks.choice(name, "kind", self.kind, _KINDS)
        checks.integer(name, "num_steps", self.num_steps, minimum=1, maximum=_STEPS)
        checks.integer(name, "num_cycles", self.num_cycles, minimum=0, maximum=_STEPS)
        if checks.real(name, "power", self.power) < 0:
            raise ValueError(f"[{name}] expected power >= 0, got {self.power!r}")
        checks.positive(name, "offset", self.offset)
        checks.fraction(name, "final", self.final, zero=True, one=True)
        checks.fraction(name, "exploration", self.exploration, zero=True)

    def factors(self, first: int, count: int) -> Factors:
        """Return the factors (count,) of steps first, first + 1, ..."""
        first, count = _range("Schedule.factors", first, count)
        if self.kind == "constant":
            return np.ones(count)
        step = np.arange(first, first + count, dtype=np.float64)
        if self.kind == "polynomial":
            with np.errstate(over="ignore"):  # a tiny offset: the factor is 0
                return (1.0 + step / self.offset) ** -self.power
        if self.kind == "cosine":
            done = np.minimum(step / self.num_steps, 1.0)
            return self.final + (1.0 - self.final) * 0.5 * (1.0 + np.cos(math.pi * done))
        return 0.5 * (1.0 + np.cos(math.pi * (step % self.num_steps) / self.num_steps))

    def noise(self, first: int, count: int) -> Factors:
        """Return factors (count,) of the noise's sd: 0 while a cycle explores, else 1."""
        first, count = _range("Schedule.noise", first, count)
        if self.kind != "cyclical" or self.exploration == 0.0:
            return np.ones(count)
        place = np.arange(first, first + count) % self.num_steps
        return (place >= self.exploration * self.num_steps).astype(np.float64)

    @property
    def gap(self) -> int:
        """Steps between the draws of a cycle."""
        return max(1, int(self.sampling * self.num_steps) // self.draws_per_cycle)

    def __repr__(self) -> str:
        several = ""
        if self.kind == "cyclical" and self.draws_per_cycle > 1:
            several = f", draws_per_cycle={self.draws_per_cycle}, sampling={self.sampling!r}"
        shown = {
            "polynomial": f"power={self.power!r}, offset={self.offset!r}",
            "cosine": f"{self.num_steps}, final={self.final!r}",
            "cyclical": f"{self.num_cycles}, {self.num_steps}, exploration={self.exploration!r}"
            + several,
        }.get(self.kind, "")
        return f"schedules.{self.kind}({shown})"


def _range(function: str, first: int, count: int) -> tuple[int, int]:
    # Negative: cycles are counted from the end of warmup.
    first = checks.integer(function, "first", first, minimum=-_STEPS, maximum=_STEPS)
    count = checks.integer(function, "count", count, minimum=0, maximum=_STEPS)
    checks.memory(function, count, np.float64, f"factors of {count} steps")
    return first, count


def constant() -> Schedule:
    """Return a schedule that keeps the step size: the default.

    Examples
    --------
    >>> rb.schedules.constant()
    schedules.constant()
    """
    return Schedule("constant")


def polynomial(power: float = 0.55, *, offset: float = 1.0) -> Schedule:
    """Return a decay as (1 + step / offset)^-power (Welling and Teh 2011, section 4).

    Parameters
    ----------
    power : float
        > 0; in (0.5, 1] the step sizes meet the conditions of stochastic approximation.
    offset : float
        Steps until the decay begins, > 0.

    Returns
    -------
    Schedule

    Raises
    ------
    TypeError, ValueError
        If a number is out of range.

    Examples
    --------
    >>> rb.schedules.polynomial(0.55, offset=10.0)
    schedules.polynomial(power=0.55, offset=10.0)
    """
    name = "schedules.polynomial"
    return Schedule(
        "polynomial",
        power=checks.positive(name, "power", power),
        offset=checks.positive(name, "offset", offset),
    )


def cosine(num_steps: int, *, final: float = 0.0) -> Schedule:
    """Return half a cosine from 1 to `final` in `num_steps`, then constant (Loshchilov 2017).

    Parameters
    ----------
    num_steps : int
        Steps, not epochs: for a whole fit num_epochs * ceil(N / batch_size); >= 1.
    final : float
        In [0, 1].

    Returns
    -------
    Schedule

    Raises
    ------
    TypeError, ValueError
        If a number is out of range.

    Examples
    --------
    >>> rb.schedules.cosine(100, final=0.1)
    schedules.cosine(100, final=0.1)
    """
    name = "schedules.cosine"
    end = checks.real(name, "final", final)
    if not 0.0 <= end <= 1.0:
        raise ValueError(f"[{name}] expected final in [0, 1], got {final!r}")
    return Schedule(
        "cosine",
        num_steps=checks.integer(name, "num_steps", num_steps, minimum=1, maximum=_STEPS),
        final=end,
    )


def cyclical(
    num_cycles: int,
    num_steps: int,
    *,
    exploration: float = 0.0,
    draws_per_cycle: int = 1,
    sampling: float = 0.25,
) -> Schedule:
    """Return a half cosine that restarts every `num_steps` steps (Zhang et al. 2020, eq. 1).

    A run keeps draws only at the end of each cycle, while the step size is small: one, or several
    from a sampling stage, around one mode. Warmup makes cycles, too; its last one ends with it.

    Parameters
    ----------
    num_cycles : int
        Cycles after warmup, with resumed runs; >= 1. A run has at most `draws_per_cycle` times as
        many draws.
    num_steps : int
        Steps of a cycle, >= 1.
    exploration : float
        First part of each cycle, in [0, 1), without noise, so that chains only climb (the
        exploration stage of Zhang et al.).
    draws_per_cycle : int
        Draws that a run keeps from each cycle, evenly spaced over its sampling stage up to its end;
        >= 1.
    sampling : float
        Part at the end of each cycle, in (0, 1 - exploration], that is the sampling stage.

    Returns
    -------
    Schedule

    Raises
    ------
    TypeError, ValueError
        If a number is out of range, or the sampling stage has fewer steps than draws.

    Examples
    --------
    >>> from ribbit import schedules
    >>> schedules.cyclical(8, 1000, exploration=0.5, draws_per_cycle=10, sampling=0.2).gap
    20
    """
    name = "schedules.cyclical"
    schedule = Schedule(
        "cyclical",
        num_cycles=checks.integer(name, "num_cycles", num_cycles, minimum=1, maximum=_STEPS),
        num_steps=checks.integer(name, "num_steps", num_steps, minimum=1, maximum=_STEPS),
        exploration=checks.fraction(name, "exploration", exploration, zero=True),
        draws_per_cycle=checks.integer(name, "draws_per_cycle", draws_per_cycle, minimum=1),
        sampling=checks.fraction(name, "sampling", sampling, one=True),
    )
    if schedule.draws_per_cycle == 1:
        return schedule  # its end, whatever the stage
    if schedule.sampling > 1.0 - schedule.exploration + 1e-12:
        raise ValueError(
            f"[{name}] expected sampling <= {1.0 - schedule.exploration:g}, what exploration "
            f"leaves, got {sampling!r}"
        )
    steps = int(schedule.sampling * schedule.num_steps)
    if schedule.draws_per_cycle > steps:
        raise ValueError(
            f"[{name}] expected draws_per_cycle <= {steps}, the steps of the sampling stage, got "
            f"{draws_per_cycle}"
        )
    return schedule


def check(function: str, schedule: object) -> Schedule:
    """Return `schedule`, constant for None; anything else is a TypeError."""
    if schedule is None:
        return constant()
    if not isinstance(schedule, Schedule):
        got = checks.summary(schedule)
        raise TypeError(f"[{function}] expected schedule of rb.schedules or None, got {got}")
    return schedule


explain(globals())
