"""What `posterior` returns of a module that torch runs and whose likelihood is one of ours."""

from __future__ import annotations

import copy
from typing import Any, Literal

from ribbit._arrays import checks
from ribbit.results.prediction import Prediction
from ribbit.targets import likelihoods
from ribbit.targets.prior_draws import predicted
from ribbit.torch.masked import MaskedModule
from ribbit.torch.masks import place_masks
from ribbit.torch.predictive import ModulePredictive

__all__ = ["ModulePosterior"]


class ModulePosterior(ModulePredictive):
    """A `ModuleDensity` with a likelihood of Ribbit, so that it predicts.

    It also implements `ribbit.protocols.Predictive`. Inputs of predictions are tensors or arrays
    (N, ...) in the module's layout.

    Examples
    --------
    >>> import torch
    >>> import ribbit.torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> target = rb.torch.posterior(
    ...     net, rb.Gaussian(0.1), (x, 2 * x), prior=rb.Normal(1.0), native=False
    ... )
    >>> isinstance(target, rb.torch.ModulePosterior), target.native
    (True, False)
    """

    def prior_predictive(
        self, x: Any, num_draws: int = 1000, *, seed: checks.Seed = 0, keep: bool = False
    ) -> Prediction:
        """Predictions from draws of the prior; see :meth:`ribbit.Posterior.prior_predictive`."""
        name = "ModulePosterior.prior_predictive"
        return predicted(name, self, self._table, x, num_draws, seed, keep)

    def masked(
        self,
        *,
        rate: float | Literal["concrete"] | None = None,
        length_scale: float | None = None,
        precision: float | None = None,
    ) -> MaskedModule:
        """Return the same posterior with its Dropout layers active, for `ribbit.MCDropout`.

        Raises
        ------
        TypeError, ValueError
            Without Dropout layers; for ``rate="concrete"`` and `length_scale`, which need a native
            module; for other wrong arguments.
        """
        name = "MCDropout"
        concrete = isinstance(rate, str) and rate == "concrete"
        asked = {"rate='concrete'": concrete, "length_scale": length_scale is not None}
        for option, given in asked.items():
            if given:
                raise ValueError(
                    f"[{name}] expected no {option} for a module that torch runs, which does not "
                    "say what its masks act on: give rates, and priors by name"
                )
        likelihood = self.likelihood
        if precision is not None:
            tau = checks.positive(name, "precision", precision)
            if not isinstance(likelihood, likelihoods.Gaussian) or likelihood.learns_noise:
                raise TypeError(
                    f"[{name}] expected a Gaussian likelihood of known scale for precision, "
                    f"got {likelihood!r}"
                )
            likelihood = likelihoods.Gaussian(tau**-0.5)
        chosen = None if rate is None else checks.fraction(name, "rate", rate)
        module = copy.deepcopy(self.module)
        masks = place_masks(name, module, chosen)
        if not masks[1]:
            raise TypeError(
                f"[{name}] expected a module with Dropout layers, got "
                f"{type(module).__name__} without: use BBB or DeepEnsemble"
            )
        options = {**self._options, "dropping": frozenset()}
        return MaskedModule(module, likelihood, self.rows, masks=masks, **options)
