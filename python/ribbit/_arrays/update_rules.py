"""Rules by which stochastic gradients move parameters, and their moments, as the core has them."""

from __future__ import annotations

from ribbit import _core

_COUNTS = _core.rule_moments()

RULES = dict(sorted(_core.codes()["RULES"].items(), key=lambda item: item[1]))
"""Codes of the rules, as in ``cpu/isa/kernel_table-inl.h``."""
MOMENTS = {name: (_COUNTS[name] > 0, _COUNTS[name] > 1) for name in RULES}
"""Whether a rule needs a first and a second moment. A Langevin step that is given a second one is
preconditioned by it."""


def check_moments(function: str, rule: str, first: object, second: object) -> None:
    """Raise ValueError for a moment that is None and that the rule needs."""
    for name, array, needed in zip(
        ("first", "second"), (first, second), MOMENTS[rule], strict=True
    ):
        if needed and array is None:
            raise ValueError(
                f"[{function}] expected {name} as an array for rule={rule!r}, got None"
            )
