"""What the steps of chains without an accept step do to the terms of their log density.

Shapes: C chains, M terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ribbit.results.summary import Row, Summary

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["StepBias"]

Array: TypeAlias = "npt.NDArray[np.float64]"

# Student's t beyond which one of a hundred lies by chance, for 1 to 9 degrees of freedom, then 10.
_STUDENT = (63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17)
_SMALL = 0.25  # sds: an expectation that is off by so much is as good as one of 16 draws


@dataclass(frozen=True, repr=False)
class StepBias:
    """How far the terms of the log density are off, found by chains that take shorter steps.

    What :meth:`ribbit.MCLMC.step_bias` gives; printed as a table with a verdict.

    Attributes
    ----------
    names : tuple of str
        Of the M terms.
    by_chain : (C, M) float64 array
        Mean of a term over draws minus its posterior mean in nats, by each chain.
    sd : (M,) float64 array
        Standard deviations of the terms within a chain.
    num_steps : int
        Steps that each chain made with a tenth of its step size.
    num_gradients : int
        Of all chains, each over all rows.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> mclmc = rb.MCLMC(target)
    >>> draws = mclmc.sample(100, warmup=1000, seed=1, progress=False)
    >>> found = mclmc.step_bias(draws)
    >>> found.names, found.by_chain.shape
    (('log likelihood', 'log prior'), (4, 2))
    """

    names: tuple[str, ...]
    by_chain: Array
    sd: Array
    num_steps: int
    num_gradients: int

    @property
    def bias(self) -> Array:
        """Mean over the chains, (M,) in nats."""
        found: Array = self.by_chain.mean(axis=0)
        return found

    @property
    def error(self) -> Array:
        """Standard error of `bias` by its spread over the chains, (M,)."""
        chains = len(self.by_chain)
        found: Array = self.by_chain.std(axis=0, ddof=1) / np.sqrt(chains)
        return found

    def summary(self) -> Summary:
        """Return the table with its verdict.

        Returns
        -------
        Summary
            ``converged`` is True where no term is off by more than a quarter of its sd and the
            errors can tell, False where one is, None where they cannot tell.
        """
        chains = len(self.by_chain)
        by_chance = _STUDENT[min(chains - 1, len(_STUDENT)) - 1] * self.error
        rows, off, unsure = [], [], []
        for name, bias, error, sd, chance in zip(
            self.names, self.bias, self.error, self.sd, by_chance, strict=True
        ):
            small = bool(abs(bias) + chance <= _SMALL * sd)
            large = bool(abs(bias) > max(chance, _SMALL * sd))
            good = True if small else False if large else None
            value = f"{bias:+.3g} +- {error:.2g} nats, {_sds(bias, sd)} of its sd"
            rows.append(Row(f"bias of the {name}", value, f"within {_SMALL:g}", good))
            if large:
                off.append(f"{name} is {abs(bias):.3g} nats {'low' if bias < 0 else 'high'}")
            elif not small:
                unsure.append(name)
        rows.append(Row("steps of a tenth the size", f"{self.num_steps:,} a chain"))
        rows.append(Row("gradients", f"{self.num_gradients:,}"))
        converged: bool | None = True
        verdict = "No term is off by more than a quarter of its sd."
        if off:
            converged = False
            verdict = (
                f"The draws' {' and their '.join(off)}: take a smaller energy_variance (a tenth "
                "has about half the bias) in a new run, adjusted=True, or rb.HMC."
            )
        elif unsure:
            converged = None
            verdict = (
                "The errors are too large to say whether the bias of the "
                f"{' and the '.join(unsure)} is within a quarter of an sd: take more steps "
                "(num_steps=) or more chains."
            )
        verdict += " A bias that takes more steps than these to show is not in it."
        return Summary(f"Bias of the steps: {chains} chains", tuple(rows), converged, verdict)

    def __str__(self) -> str:
        return self.summary().text

    __repr__ = __str__


def _sds(bias: float, sd: float) -> str:
    return f"{bias / sd:+.2g}" if sd > 0.0 else "-"
