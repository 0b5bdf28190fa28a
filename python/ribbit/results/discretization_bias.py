"""What the steps of chains without an accept step do to the terms of their log density."""

# Shapes: C chains, M terms.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ribbit._arrays import records
from ribbit._arrays.keywords import explain
from ribbit.results.summary import CONVERGED, NOT, SHORT, Row, Summary

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["DiscretizationBias"]

Array: TypeAlias = "npt.NDArray[np.float64]"

# Student's t that one of a hundred exceeds in size, for 1 to 9 degrees of freedom, then of 10.
_STUDENT = (63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17)
_SMALL = 0.25  # sds: a mean that is off by so much is as good as one of 16 draws


@dataclass(frozen=True, repr=False)
class DiscretizationBias:
    """Bias of the terms of the log density from MCLMC's step size, with its standard error.

    Made by :meth:`ribbit.MCLMC.discretization_bias`; prints as a table with its outcome.

    Attributes
    ----------
    names : tuple of str
        Names of the M terms, each divided by its temperature. If the last layer is integrated out,
        the log likelihood is the one of the other parameters.
    by_chain : (C, M) float64 array
        Mean of a term with the chains' own steps minus its mean with shorter steps, in nats.
    sd : (M,) float64 array
        Standard deviations of the terms along the shorter steps, within a chain. They are smaller
        than the posterior's if a term moves slowly.
    num_still : int
        Chains in which no term has moved; they carry no information.
    set_by : {"desired_energy_var", "step_limit", "step_size"}
        The option that decided the step sizes.
    num_steps : int
        Steps that each chain made with a tenth of its step size.
    num_gradients : int
        Gradients of all chains, each over all rows.

    Raises
    ------
    ValueError
        For less than two chains.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> mclmc = rb.MCLMC(target)
    >>> draws = mclmc.sample(100, warmup=1000, seed=1, progress=False)
    >>> found = mclmc.discretization_bias(draws, progress=False)
    >>> found.names, found.by_chain.shape
    (('log likelihood', 'log prior'), (4, 2))
    """

    names: tuple[str, ...]
    by_chain: Array
    sd: Array
    num_still: int
    set_by: str
    num_steps: int
    num_gradients: int

    def __post_init__(self) -> None:
        records.check(self, by_chain="C M", sd="M")
        if len(self.by_chain) < 2:
            raise ValueError(
                f"[DiscretizationBias] expected two chains or more, got {len(self.by_chain)}"
            )

    @property
    def bias(self) -> Array:
        """Mean over the chains, (M,) in nats."""
        found: Array = self.by_chain.mean(axis=0)
        return found

    @property
    def error(self) -> Array:
        """Standard error of `bias` from its spread over the chains, (M,)."""
        chains = len(self.by_chain)
        found: Array = self.by_chain.std(axis=0, ddof=1) / np.sqrt(chains)
        return found

    @property
    def interval(self) -> Array:
        """Ends of the 99 % interval of each bias by Student's t, (M, 2)."""
        half = _STUDENT[min(len(self.by_chain) - 1, len(_STUDENT)) - 1] * self.error
        return np.stack([self.bias - half, self.bias + half], axis=1)

    def summary(self) -> Summary:
        """Return the table with its outcome.

        Returns
        -------
        Summary
            The outcome is "converged" if the interval of each term lies within a quarter of its
            sd, "not converged" if an interval lies outside, else "too short to tell".
        """
        chains = len(self.by_chain)
        rows, off, unsure = [], [], []
        for name, bias, (low, high), sd in zip(
            self.names, self.bias, self.interval, self.sd, strict=True
        ):
            small = bool(max(-low, high) <= _SMALL * sd)
            large = bool(max(low, -high) > _SMALL * sd)
            ends = f"(99 %: {low:+.3g} to {high:+.3g})"
            value = f"{bias:+.3g} nats {ends}, {_sds(bias, sd)} sds"
            good = True if small else False if large else None
            rows.append(Row(f"bias of the {name}", value, f"within {_SMALL:g} sds", good))
            if large:
                off.append(f"{name} is {abs(bias):.3g} nats {'low' if bias < 0 else 'high'}")
            elif not small:
                unsure.append(name)
        rows.append(Row("steps of a tenth the size", f"{self.num_steps:,} a chain"))
        rows.append(Row("gradients", f"{self.num_gradients:,}"))
        outcome = CONVERGED
        message = "No term is off by more than a quarter of its sd."
        if self.num_still:
            rows.append(Row("chains that stayed where they were", str(self.num_still), "0", False))
            outcome = SHORT
            message = "Some chains did not move, so they show nothing of the bias."
        elif off:
            outcome = NOT
            share = (
                "a tenth of it has about half of the bias"
                if self.set_by == "desired_energy_var"
                else "half of it has a quarter of the bias"
            )
            message = (
                f"The draws' {' and their '.join(off)}: take a smaller {self.set_by} ({share}) in "
                "a new run, adjusted=True, or rb.HMC."
            )
        elif unsure:
            outcome = SHORT
            message = (
                "These steps are too few to tell whether the bias of the "
                f"{' and the '.join(unsure)} is within a quarter of an sd: take more steps "
                "(num_steps=)"
                f"{' or draws of more chains' if chains < 8 else ''}."
            )
        message += " A bias that takes more steps than these to show is not in it."
        return Summary(f"Bias of the steps: {chains} chains", tuple(rows), outcome, message)

    def __str__(self) -> str:
        return self.summary().text

    __repr__ = __str__


def _sds(bias: float, sd: float) -> str:
    return f"{bias / sd:+.2g}" if sd > 0.0 else "0"


explain(globals())
