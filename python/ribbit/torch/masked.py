"""Posteriors of a module under random masks of its Dropout layers (MC dropout)."""

# Shapes: S draws, C chains, P parameters, N rows, K outputs, L layers.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from ribbit._arrays import checks, random_numbers
from ribbit._arrays.checks import FloatArray
from ribbit.protocols import PredictiveTerms
from ribbit.targets.likelihoods import Array64, Likelihood
from ribbit.targets.spec import digest
from ribbit.torch.data import tensor
from ribbit.torch.evaluation import quiet
from ribbit.torch.masks import Address, Mask
from ribbit.torch.predictive import ModulePredictive

if TYPE_CHECKING:
    import numpy.typing as npt


_LAYERS = 64  # of masks in one call, at most: chain c has the layers from 64 c on


class MaskedModule(ModulePredictive):
    """A posterior of a module's weights under random masks (Gal and Ghahramani 2016)."""

    # A mask has the counter (seed, step, chain, number of the Dropout layer's call, row, unit).
    # Chains are run one after another.

    learns_rates: ClassVar[bool] = False
    _masked = True

    def __init__(
        self,
        module: torch.nn.Module,
        likelihood: Likelihood,
        rows: Any,
        *,
        masks: tuple[Address, tuple[float, ...]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(module, likelihood, rows, **options)
        if masks is None:  # of a pickle or a subset, whose module has them
            found = [part for part in module.modules() if isinstance(part, Mask)]
            masks = found[0].address, tuple(part.rate for part in found)
        self._address = masks[0]
        self._at: dict[str, int] | None = None  # of the chain that is computed
        self.rates: Array64 = np.array(masks[1])  # rate of each Dropout layer, (L,)
        self.num_weights = self.dim

    @property
    def fingerprint(self) -> dict[str, str]:
        """As of the posterior, with the rates of the masks."""
        return {**super().fingerprint, "masks": digest(self.rates)}

    def with_rates(self, theta: FloatArray) -> FloatArray:
        """Return the weights: no rates are learned."""
        return theta

    def split(self, position: FloatArray) -> tuple[FloatArray, Array64]:
        """Return weights (P,) and rates (L,)."""
        return position, self.rates

    def masked_value_and_grad(
        self, theta: FloatArray, rows: Any = None, *, seed: int, step: int
    ) -> tuple[Any, FloatArray]:
        """Return log density and gradient under the masks of (seed, step); chain c has its own."""
        number = checks.seed("masked_value_and_grad", seed)
        place = checks.integer("masked_value_and_grad", "step", step, minimum=0, maximum=2**40 - 1)
        terms, grad = self._terms_at(np.atleast_2d(theta), rows, prior=1.0, seed=number, step=place)
        lp = terms[:, 0] + terms[:, 1]
        return (lp[0], grad[0]) if np.ndim(theta) == 1 else (lp, grad)

    def value_and_grad(self, theta: FloatArray, rows: Any = None) -> tuple[Any, FloatArray]:
        """Return log density and gradient under the masks of seed 0, step 0."""
        return self.masked_value_and_grad(theta, rows, seed=0, step=0)

    def terms_and_grad(self, theta: FloatArray) -> tuple[Array64, FloatArray]:
        """Return tempered likelihood and prior under the masks of seed 0, step 0."""
        terms, grad = self._terms_at(np.atleast_2d(theta), None, prior=1.0, seed=0, step=0)
        return (terms[0], grad[0]) if np.ndim(theta) == 1 else (terms, grad)

    def _terms_at(
        self, theta: FloatArray, rows: Any, *, prior: float, seed: int, step: int
    ) -> tuple[Array64, FloatArray]:
        """Return tempered terms (C, 2) and gradient (C, P) under the masks of (seed, step)."""
        per_chain = rows is not None and np.ndim(rows) == 2
        parts = []
        with self._lock:
            try:
                for chain in range(len(theta)):
                    self._at = {
                        "seed": seed,
                        "step": step,
                        "layer": _LAYERS * chain,
                        "purpose": random_numbers.MASK,
                    }
                    own = rows[chain] if per_chain else rows
                    one = theta[chain : chain + 1]
                    parts.append(self._evaluate("advance", one, own, prior=prior)[:2])
            finally:
                self._address.active, self._at = False, None
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def mask_predictive(self, seed: int, masks: str, rates: Array64) -> MaskPredictive:
        """Return what predicts with masks by row or shared."""
        del rates
        return MaskPredictive(self, seed, masks)

    def _sums(
        self, theta: FloatArray, rows: npt.NDArray[np.int64] | None, *, gradient: bool
    ) -> tuple[Array64, FloatArray]:
        """As of the posterior, each chunk with the masks of its rows."""
        if self._at is None or not gradient:
            return super()._sums(theta, rows, gradient=gradient)
        count = self.num_rows if rows is None else len(rows)
        chosen = np.arange(count) if rows is None else rows
        values, grad = np.zeros(len(theta)), np.zeros_like(theta)
        with quiet():
            flat = torch.from_numpy(theta[0]).to(self._device)
            for low in range(0, count, self._chunk):
                part = chosen[low : low + self._chunk]
                x, y = self._take(part)
                self._address.set(rows=part.astype(np.uint32), **self._at)
                slope, value = self._gradient(flat, x, y)
                values += float(value)
                grad += slope.cpu().numpy()
        return values, grad


class MaskPredictive:
    """Predictions of one weight vector under masks: draw number s takes the masks of sample s."""

    numbered: ClassVar[bool] = True

    def __init__(self, base: MaskedModule, seed: int, masks: str) -> None:
        self._base, self._seed, self._shared = base, seed, masks == "shared"
        self.kind, self.flat, self.columns = base.kind, base.flat, base.columns
        self.likelihood = base.likelihood
        self.noise_at, self.noises = base.noise_at, base.noises

    def check_inputs(self, x: Any) -> None:
        """Raise unless the module takes rows like x."""
        self._base.check_inputs(x)

    def outputs(self, theta: FloatArray, x: Any, *, first: int = 0, row: int = 0) -> FloatArray:
        """Return outputs (S, N, K) under the masks of draws from `first` on, rows from `row` on."""
        base = self._base
        rows = base._inputs("predict", x)
        out = np.empty((len(theta), len(rows), base.num_outputs), base.dtype)
        with base._lock, quiet(), torch.no_grad():
            try:
                for s, weights in enumerate(theta):
                    flat = torch.from_numpy(np.array(weights, base.dtype)).to(base._device)
                    for low in range(0, len(rows), base._chunk):
                        part = rows[low : low + base._chunk].to(base._device)
                        ids = np.arange(row + low, row + low + len(part), dtype=np.uint32)
                        base._address.set(
                            seed=self._seed,
                            step=first + s,
                            layer=0,
                            rows=None if self._shared else ids,
                            purpose=random_numbers.PREDICTIVE_MASK,
                        )
                        found = base._outputs(flat, part)
                        out[s, low : low + len(part)] = found.cpu().numpy()
            finally:
                base._address.active = False
        return out

    def predictive(
        self, theta: FloatArray, x: Any, *, first: int = 0, row: int = 0
    ) -> PredictiveTerms:
        """Return what each draw predicts under its masks."""
        outputs = self.outputs(theta, x, first=first, row=row)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.likelihood._terms(outputs, self._base._log_noise(theta))

    def log_likelihood(
        self, theta: FloatArray, x: Any, y: Any, *, first: int = 0, row: int = 0
    ) -> Array64:
        """Return the log density (S, N) float64 of each row under each draw and its masks."""
        function, base = "log_likelihood", self._base
        outputs = self.outputs(theta, x, first=first, row=row).astype(np.float64)
        targets = base._targets(function, tensor(function, "y", y, torch.float64)).numpy()
        found: Array64 = self.likelihood._log_likelihood(outputs, targets, base._log_noise(theta))
        return found

    def describe(self) -> Any:
        """Return the description of the module for a file; see `ribbit.torch.attach`."""
        return self._base.describe()
