"""Predictions of a PyTorch module for parameter draws, and its Dropout layers with masks.

Shapes: S draws, P parameters, N rows, K outputs, J columns of y.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch.func import vmap

from ribbit._arrays import checks, random_numbers
from ribbit._arrays.checks import FloatArray
from ribbit.errors import ShapeError
from ribbit.protocols import PredictiveTerms
from ribbit.targets import likelihoods
from ribbit.targets.likelihoods import Array64, Kind, Likelihood
from ribbit.targets.spec import digest
from ribbit.torch.data import tensor
from ribbit.torch.density import ModuleDensity, quiet

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MaskedModule", "ModulePosterior"]

_DRAWS_AT_ONCE = 8  # weight vectors in one call of vmap


class ModulePosterior(ModuleDensity):
    """A `ModuleDensity` whose likelihood is one of ours, so that it predicts.

    It implements `ribbit.protocols.Predictive` too. Inputs of predictions are what the module
    takes: tensors or arrays (N, ...).
    """

    likelihood: Likelihood

    @property
    def kind(self) -> Kind:
        """One of "regression", "classification" and "count"."""
        return self.likelihood.kind

    @property
    def network_predictive(self) -> ModulePosterior:
        """What predicts: itself."""
        return self

    def inputs(self, count: int) -> npt.NDArray[Any]:
        """Return at most `count` of the data's inputs (n, ...), evenly spaced."""
        rows = np.arange(0, self.num_rows, -(-self.num_rows // max(1, count)))
        return self.rows.take(rows)[0].numpy()

    def check_inputs(self, x: Any) -> None:
        """Raise TypeError or ValueError unless the module takes rows like x."""
        self.outputs(self.trained, self._inputs("predict", x)[:1])

    def outputs(self, theta: FloatArray, x: Any) -> FloatArray:
        """Return the outputs of the module, (N, K) or (S, N, K), in the dtype of `theta`.

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (S, P), float32 or float64.
        x : tensor or array
            Rows (N, ...) as the module takes them.

        Raises
        ------
        TypeError, ValueError
            If shapes or dtypes do not fit, or `x` is not finite.
        """
        single = np.ndim(theta) == 1
        out = self._predicted("predict", np.atleast_2d(theta), x)
        return out[0] if single else out

    def predictive(self, theta: FloatArray, x: Any) -> PredictiveTerms:
        """Return mean and noise sd, or probabilities, of each draw (S, P) at each row of `x`."""
        outputs = self._predicted("predict", theta, x)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.likelihood.terms(outputs, self._log_noise(theta))

    def log_likelihood(self, theta: FloatArray, x: Any = None, y: Any = None) -> Any:
        """Return the log likelihood of the data, () or (C,); of new rows row by row, (S, N)."""
        function = "log_likelihood"
        if x is None and y is None:
            return super().log_likelihood(theta)
        if x is None or y is None:
            raise TypeError(f"[{function}] expected both x and y or neither, got one of them")
        outputs = self._predicted(function, theta, x).astype(np.float64)
        targets = self._targets(function, tensor(function, "y", y, torch.float64)).numpy()
        if len(targets) != outputs.shape[1]:
            raise ShapeError(
                f"[{function}] expected y with {outputs.shape[1]} rows, got {len(targets)}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            return self.likelihood.log_likelihood(outputs, targets, self._log_noise(theta))

    def drawn(self, mean: FloatArray, scale: FloatArray, seed: int) -> DrawnWeights:
        """Return predictions of normal weights that are drawn while they are used."""
        return DrawnWeights(self, mean, scale, seed)

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
            Without Dropout layers; for ``rate="concrete"`` and `length_scale`, which need a module
            of our layers; for other arguments that do not fit.
        """
        name = "MCDropout"
        if not self.dropout_layers:
            raise TypeError(
                f"[{name}] expected a module with Dropout layers, got "
                f"{type(self.module).__name__} without: use BBB or DeepEnsemble"
            )
        asked = {"rate='concrete'": rate == "concrete", "length_scale": length_scale is not None}
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
        masks = _place_masks(name, module, chosen)
        return MaskedModule(module, likelihood, self.rows, masks=masks, **self._options)

    def _inputs(self, function: str, x: Any) -> torch.Tensor:
        rows = tensor(function, "x", x, self._torch_dtype)
        if rows.ndim == 0 or len(rows) == 0:
            got = tuple(rows.shape)
            raise ShapeError(f"[{function}] expected x (N, ...) with N >= 1, got shape {got}")
        return rows

    def _log_noise(self, theta: FloatArray) -> FloatArray | None:
        return theta[:, self.noise_at] if self.learns_noise else None

    def _predicted(self, function: str, theta: FloatArray, x: Any) -> FloatArray:
        """Return outputs (S, N, K) of draws (S, P)."""
        if getattr(theta, "ndim", 0) != 2 or theta.shape[1] != self.dim:
            got = checks.summary(theta)
            raise ShapeError(f"[{function}] expected theta of shape (S, {self.dim}), got {got}")
        rows = self._inputs(function, x)
        weights = np.ascontiguousarray(theta, self.dtype)
        out = np.empty((len(weights), len(rows), self.num_outputs), self.dtype)
        with self._lock, quiet(), torch.no_grad():
            for low in range(0, len(rows), self._chunk):
                part = rows[low : low + self._chunk].to(self._device)
                for first in range(0, len(weights), _DRAWS_AT_ONCE):
                    block = weights[first : first + _DRAWS_AT_ONCE]
                    flat = torch.from_numpy(block.copy()).to(self._device)
                    out[first : first + len(block), low : low + len(part)] = (
                        self._block(flat, part).cpu().numpy()
                    )
        return out

    def _block(self, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return outputs (s, n, K) of some draws (s, P) at some rows."""
        try:
            if self._vmap:
                return vmap(self._outputs, (0, None))(flat, x)
            return torch.stack([self._outputs(f, x) for f in flat])
        except (RuntimeError, IndexError, ValueError) as error:
            raise ShapeError(
                f"[predict] expected x as the module takes it, got shape {tuple(x.shape)}: {error}"
            ) from error


class DrawnWeights:
    """Predictions of independent normal weights, drawn while they are used.

    Draw s is row s of ``MeanField(mean, scale).sample``.
    """

    numbered: ClassVar[bool] = True

    def __init__(
        self, base: ModulePosterior, mean: FloatArray, scale: FloatArray, seed: int
    ) -> None:
        self._base, self._mean, self._scale, self._seed = base, mean, scale, seed
        self.kind, self.flat = base.kind, base.flat
        self.likelihood, self.noise_at = base.likelihood, base.noise_at

    def _weights(self, theta: FloatArray, first: int) -> FloatArray:
        ids = np.arange(first, first + len(theta), dtype=np.uint32)
        eps = random_numbers.normal(
            np,
            (len(ids), len(self._mean)),
            self._mean.dtype,
            seed=self._seed,
            step=0,
            chains=ids,
            purpose=random_numbers.FIT_DRAW,
        )
        out: FloatArray = self._mean + self._scale * eps
        return out

    def check_inputs(self, x: Any) -> None:
        """Raise unless the module takes rows like x."""
        self._base.check_inputs(x)

    def outputs(self, theta: FloatArray, x: Any, *, first: int = 0, row: int = 0) -> FloatArray:
        """Return outputs (S, N, K) of draws from number `first` on."""
        del row
        return self._base.outputs(self._weights(theta, first), x)

    def predictive(
        self, theta: FloatArray, x: Any, *, first: int = 0, row: int = 0
    ) -> PredictiveTerms:
        """Return what draws from number `first` on predict."""
        del row
        return self._base.predictive(self._weights(theta, first), x)

    def log_likelihood(
        self, theta: FloatArray, x: Any, y: Any, *, first: int = 0, row: int = 0
    ) -> Array64:
        """Return the log density (S, N) of rows under draws from number `first` on."""
        del row
        found: Array64 = self._base.log_likelihood(self._weights(theta, first), x, y)
        return found

    def describe(self) -> None:
        """Return None: a file cannot hold a module."""
        return None


class _Address:
    """Which masks the next call of a module takes."""

    def __init__(self) -> None:
        self.active = False

    def set(
        self, *, seed: int, step: int, layer: int, rows: npt.NDArray[np.uint32] | None, purpose: int
    ) -> None:
        """Give an address; rows None: one mask for all rows."""
        self.active, self.seed, self.step, self.layer = True, seed, step, layer
        self.rows, self.purpose, self.calls = rows, purpose, 0


class _Mask(torch.nn.Module):
    """A Dropout layer whose mask has an address: seed, step, layer, row of the data, unit."""

    def __init__(self, address: _Address, rate: float, spatial: bool) -> None:
        super().__init__()
        self.address, self.rate, self.spatial = address, rate, spatial

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by 0 with probability `rate`, else by 1 / (1 - rate)."""
        at = self.address
        if not at.active:
            return x
        shape = tuple(x.shape[1:2]) if self.spatial else tuple(x.shape[1:])
        units = int(np.prod(shape, dtype=np.int64))
        ids = np.zeros(1, np.uint32) if at.rows is None else at.rows
        u = random_numbers.uniform(
            np,
            (len(ids), units),
            seed=at.seed,
            step=at.step,
            chains=ids,
            purpose=at.purpose,
            layer=at.layer + at.calls,
        )
        at.calls += 1
        kept = torch.from_numpy((u >= self.rate) / (1.0 - self.rate)).to(x)
        ones = (1,) * (x.ndim - 2) if self.spatial else ()
        return x * kept.reshape(len(ids), *shape, *ones)

    def extra_repr(self) -> str:
        """Return the rate."""
        return f"rate={self.rate:g}"


_PLAIN = {torch.nn.Dropout: False}
_SPATIAL = dict.fromkeys((torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d), True)
_LAYERS = 64  # of masks in one call, at most: chain c has the layers from 64 c on


def _place_masks(
    function: str, module: torch.nn.Module, rate: float | None
) -> tuple[_Address, tuple[float, ...]]:
    """Put masks in the place of Dropout layers; return their address and rates."""
    address, rates = _Address(), []
    for name, part in list(module.named_modules()):
        if "Dropout" not in type(part).__name__ or not getattr(part, "p", 0.0):
            continue
        kinds: dict[Any, bool] = {**_PLAIN, **_SPATIAL}
        if type(part) not in kinds:
            raise TypeError(
                f"[{function}] expected Dropout, Dropout1d, Dropout2d or Dropout3d, got "
                f"{type(part).__name__} at {name!r}"
            )
        own = float(part.p) if rate is None else rate
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, _Mask(address, own, kinds[type(part)]))
        rates.append(own)
    return address, tuple(rates)


class MaskedModule(ModulePosterior):
    """A posterior of a module's weights under random masks (Gal and Ghahramani 2016).

    Which units are dropped has an address: seed, step, chain, number of the Dropout layer's call,
    row of the data and unit. Chains are run one after another.

    Attributes
    ----------
    rates : numpy.ndarray
        Rate of each Dropout layer, (L,).
    """

    learns_rates: ClassVar[bool] = False
    _masked = True

    def __init__(
        self,
        module: torch.nn.Module,
        likelihood: Likelihood,
        rows: Any,
        *,
        masks: tuple[_Address, tuple[float, ...]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(module, likelihood, rows, **options)
        if masks is None:  # of a pickle or a subset, whose module has them
            found = [part for part in module.modules() if isinstance(part, _Mask)]
            masks = found[0].address, tuple(part.rate for part in found)
        self._address = masks[0]
        self._at: dict[str, int] | None = None  # of the chain that is computed
        self.rates: Array64 = np.array(masks[1])
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
        terms, grad = self.terms_at(np.atleast_2d(theta), rows, prior=1.0, seed=number, step=place)
        lp = terms[:, 0] + terms[:, 1]
        return (lp[0], grad[0]) if np.ndim(theta) == 1 else (lp, grad)

    def value_and_grad(self, theta: FloatArray, rows: Any = None) -> tuple[Any, FloatArray]:
        """Return log density and gradient under the masks of seed 0, step 0."""
        return self.masked_value_and_grad(theta, rows, seed=0, step=0)

    def terms_and_grad(self, theta: FloatArray) -> tuple[Array64, FloatArray]:
        """Return tempered likelihood and prior under the masks of seed 0, step 0."""
        terms, grad = self.terms_at(np.atleast_2d(theta), None, prior=1.0, seed=0, step=0)
        return (terms[0], grad[0]) if np.ndim(theta) == 1 else (terms, grad)

    def terms_at(
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
        self.kind, self.flat = base.kind, base.flat
        self.likelihood, self.noise_at = base.likelihood, base.noise_at

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
            return self.likelihood.terms(outputs, self._base._log_noise(theta))

    def log_likelihood(
        self, theta: FloatArray, x: Any, y: Any, *, first: int = 0, row: int = 0
    ) -> Array64:
        """Return the log density (S, N) float64 of each row under each draw and its masks."""
        function, base = "log_likelihood", self._base
        outputs = self.outputs(theta, x, first=first, row=row).astype(np.float64)
        targets = base._targets(function, tensor(function, "y", y, torch.float64)).numpy()
        found: Array64 = self.likelihood.log_likelihood(outputs, targets, base._log_noise(theta))
        return found

    def describe(self) -> None:
        """Return None: a file cannot hold a module."""
        return None
