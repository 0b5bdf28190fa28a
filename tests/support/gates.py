"""What the statistical gates share: Monte Carlo errors from batches, and the record of figures."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def mean_and_error(draws, batches=4):
    """Mean (...) over chains and draws of (C, D, ...), and its standard error from batch means.

    C * batches batch means of chains that do not know of each other; at 256 of them 5.5 errors
    are exceeded with probability 1e-7 per parameter.
    """
    draws = np.asarray(draws, np.float64)
    chains, length = draws.shape[:2]
    length -= length % batches
    means = draws[:, :length].reshape(chains * batches, length // batches, *draws.shape[2:])
    means = means.mean(axis=1)
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(len(means))


@dataclass(frozen=True)
class Agreement:
    """How far draws are from known moments: the gates ask for <= 5.5 and <= 0.05."""

    mean_errors: float  # largest |mean - known| in (combined) Monte Carlo standard errors
    sd_error: float  # largest relative error of a standard deviation

    @property
    def holds(self):
        return self.mean_errors <= 5.5 and self.sd_error <= 0.05


def agreement(draws, mean, sd, mean_error=0.0):
    """Compare draws (C, D, P) with a mean (P,), whose own error is mean_error (P,), and sd (P,)."""
    found, error = mean_and_error(draws)
    sds = np.asarray(draws, np.float64).std(axis=(0, 1))
    return Agreement(
        mean_errors=float(np.max(np.abs(found - mean) / np.hypot(error, mean_error))),
        sd_error=float(np.max(np.abs(sds / sd - 1))),
    )


@dataclass
class Table:
    """One table of docs/developer/results.md."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    note: str = ""
    holds: bool = True

    def add(self, *cells, holds=True):
        self.rows.append(tuple(str(c) for c in cells))
        self.holds = self.holds and bool(holds)

    def markdown(self):
        lines = [f"## {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        lines += ["| " + " | ".join(self.header) + " |", "|" + "---|" * len(self.header)]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        lines += ["", f"Gate: {'holds' if self.holds else 'DOES NOT HOLD'}.", ""]
        return "\n".join(lines)
