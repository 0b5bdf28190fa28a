"""Predictions of a PyTorch module for parameter draws."""

# Shapes: S draws, P parameters, N rows, K outputs, J columns of y.

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.func import vmap

from ribbit._arrays import checks, random_numbers
from ribbit._arrays.checks import FloatArray
from ribbit.errors import ShapeError
from ribbit.protocols import PredictiveTerms
from ribbit.targets.likelihoods import Array64, Kind, Likelihood
from ribbit.torch.data import tensor
from ribbit.torch.density import ModuleDensity
from ribbit.torch.evaluation import quiet, random_error
from ribbit.torch.structure import structure

if TYPE_CHECKING:
    import numpy.typing as npt


_DRAWS_AT_ONCE = 8  # weight vectors in one call of vmap


class ModulePredictive(ModuleDensity):
    """A `ModuleDensity` that predicts, with a likelihood of Ribbit; see `ModulePosterior`."""

    likelihood: Likelihood

    @property
    def kind(self) -> Kind:
        """One of "regression", "classification" and "count"."""
        return self.likelihood.kind

    @property
    def network_predictive(self) -> ModulePredictive:
        """The object that predicts: itself."""
        return self

    def inputs(self, count: int) -> npt.NDArray[Any]:
        """Return at most `count` of the data's inputs (n, ...), evenly spaced."""
        most = checks.integer("ModulePosterior.inputs", "count", count)
        rows = np.arange(0, self.num_rows, -(-self.num_rows // max(1, most)))
        return self.rows.take(rows)[0].numpy()

    def check_inputs(self, x: Any) -> None:
        """Raise TypeError or ValueError unless the module accepts rows like x."""
        self.outputs(self.trained, self._inputs("predict", x)[:1])

    def outputs(self, theta: FloatArray, x: Any) -> FloatArray:
        """Return the outputs of the module, (N, K) or (S, N, K), in the dtype of `theta`.

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (S, P), float32 or float64.
        x : tensor or array
            Rows (N, ...) in the module's layout.

        Raises
        ------
        TypeError, ValueError
            If shapes or dtypes do not fit, or `x` is not finite.
        """
        single = np.ndim(theta) == 1
        out = self._predicted("predict", np.atleast_2d(theta), x)
        return out[0] if single else out

    def predictive(self, theta: FloatArray, x: Any) -> PredictiveTerms:
        """Return mean and noise sd, or probabilities, for each draw (S, P) at each row of `x`."""
        outputs = self._predicted("predict", theta, x)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.likelihood._terms(outputs, self._log_noise(theta))

    def log_likelihood(self, theta: FloatArray, x: Any = None, y: Any = None) -> Any:
        """Return the log likelihood of the data, () or (C,), or of each new row, (S, N)."""
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
            return self.likelihood._log_likelihood(outputs, targets, self._log_noise(theta))

    def drawn(self, mean: FloatArray, scale: FloatArray, seed: int) -> DrawnWeights:
        """Return predictions of normal weights that are drawn on the fly."""
        return DrawnWeights(self, mean, scale, seed)

    @functools.cached_property
    def _structure(self) -> dict[str, Any]:
        x = self.rows.take(np.zeros(1, np.int64))[0]
        return structure(self.module, self.parameters, self._writes, x)

    def describe(self) -> dict[str, Any]:
        """Return the description of the module for a file; see `ribbit.torch.attach`."""
        return {"module": {**self._structure, "likelihood": self.likelihood.describe()}}

    def _inputs(self, function: str, x: Any) -> torch.Tensor:
        x = checks.matched(function, x, self.columns)
        rows = tensor(function, "x", x, self._torch_dtype)
        if rows.ndim == 0 or len(rows) == 0:
            got = tuple(rows.shape)
            raise ShapeError(f"[{function}] expected x (N, ...) with N >= 1, got shape {got}")
        return rows

    def _log_noise(self, theta: FloatArray) -> FloatArray | None:
        return theta[:, self.noise_at : self.noise_at + self.noises] if self.noises else None

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
                    found = self._block(flat, part).cpu().numpy()
                    place = out[first : first + len(block), low : low + len(part)]
                    if found.shape != place.shape:
                        raise ShapeError(
                            f"[{function}] x must have rows like the data, got shape "
                            f"{tuple(rows.shape)}, which the module turns to {found.shape[1:]}"
                        )
                    place[...] = found
        return out

    def _block(self, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return outputs (s, n, K) of some draws (s, P) at some rows."""
        try:
            if self._vmap:
                return vmap(self._outputs, (0, None))(flat, x)
            return torch.stack([self._outputs(f, x) for f in flat])
        except Exception as error:  # whatever the module's own code raises
            if "randomness" in str(error):
                raise random_error("predict", self.module) from error
            raise ShapeError(
                f"[predict] expected x as the module takes it, got shape {tuple(x.shape)}: {error}"
            ) from error


class DrawnWeights:
    """Predictions of normal weights; draw s is row s of ``MeanField(mean, scale).sample``."""

    numbered: ClassVar[bool] = True

    def __init__(
        self, base: ModulePredictive, mean: FloatArray, scale: FloatArray, seed: int
    ) -> None:
        self._base, self._mean, self._scale, self._seed = base, mean, scale, seed
        self.kind, self.flat, self.columns = base.kind, base.flat, base.columns
        self.likelihood = base.likelihood
        self.noise_at, self.noises = base.noise_at, base.noises

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
            layer=random_numbers.FIT_LAYERS["weights"],
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
