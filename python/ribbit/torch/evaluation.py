"""Log likelihoods of a module and their gradients, by chunks of rows and all chains at once."""

# Shapes: C chains, P parameters, N rows, n rows of a batch, K outputs.

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.func import functional_call, grad_and_value, vmap

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.positions import host_position
from ribbit.errors import ShapeError
from ribbit.targets.likelihoods import Array64, Likelihood
from ribbit.torch.data import Rows
from ribbit.torch.likelihoods import RowTerms
from ribbit.torch.parameters import ModuleParameter, NativePrior

if TYPE_CHECKING:
    import numpy.typing as npt


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let attention run by plain products: its fused kernels know no vmap."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            # Slower than it could be, not wrong.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def called(
    module: torch.nn.Module, arrays: dict[str, torch.Tensor], x: torch.Tensor, *, writes: bool
) -> Any:
    """Return what a module gives of x under other arrays; what it works on in place are copies."""
    # writes: whether it changes its parameters or buffers.
    if writes:
        arrays = {name: array.clone() for name, array in (*module.named_buffers(), *arrays.items())}
    return functional_call(module, arrays, (x.clone(),))


def random_error(function: str, module: torch.nn.Module) -> TypeError:
    """Return the error for a module that is random."""
    return TypeError(
        f"[{function}] expected a module that gives the same outputs for the same x, got "
        f"{type(module).__name__}, which is random, or changes itself, in evaluation mode too"
    )


@contextlib.contextmanager
def _named(module: torch.nn.Module) -> Iterator[None]:
    """Say that a module is random where vmap finds it out."""
    try:
        yield
    except RuntimeError as error:
        if "randomness" not in str(error):
            raise
        raise random_error("posterior", module) from error


class Evaluation:
    """Terms and gradients of rows under weights."""

    dim: int
    dtype: np.dtype[Any]
    temperature: float
    likelihood_temperature: float
    module: torch.nn.Module
    likelihood: Any
    rows: Rows
    parameters: tuple[ModuleParameter, ...]
    num_outputs: int
    noises: int
    noise_at: int
    _terms: RowTerms
    _log_prior: NativePrior
    _vmap: bool
    _chunk: int
    _writes: bool

    def _prepare(self) -> None:
        """Set what computes up; the module and `_terms` are there."""
        self._device = next(self.module.parameters()).device
        # functional_call swaps the arrays of the one module while it runs.
        self._lock = threading.RLock()
        self._gradient = grad_and_value(self._row_sum)

    @property
    def num_rows(self) -> int:
        """Number of data rows N."""
        return self.rows.num_rows

    def _outputs(self, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, K) float64 of one weight vector."""
        arrays = {p.name: flat[p.offset : p.offset + p.size].view(p.shape) for p in self.parameters}
        out = called(self.module, arrays, x, writes=self._writes)
        return (out[:, None] if out.ndim == 1 else out).double()

    def _row_sum(self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log likelihood of rows, ()."""
        logs = flat[self.noise_at : self.noise_at + self.noises].double()
        noise = logs if self.noises else None
        return self._terms(self._outputs(flat, x), y, noise).sum()

    def _take(self, rows: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows (n,) or (C, n) where the module is: inputs in its dtype, targets checked."""
        x, y = self.rows.take(rows.reshape(-1))
        y = self._targets("posterior", y)
        return (
            x.to(self._device).reshape(*rows.shape, *x.shape[1:]),
            y.to(self._device).reshape(*rows.shape, *y.shape[1:]),
        )

    def _targets(self, function: str, y: torch.Tensor) -> torch.Tensor:
        """Targets as the likelihood takes them: (n, J) float64; those of a loss as they are."""
        if not isinstance(self.likelihood, Likelihood):
            return y
        host = y.double() if y.is_floating_point() else y
        found = self.likelihood._targets(
            function, host.numpy(), len(y), (self.num_outputs,), np.dtype(np.float64)
        )
        return torch.from_numpy(found)

    def _evaluate(
        self, function: str, theta: FloatArray, rows: Any, *, prior: float = 1.0
    ) -> tuple[Array64, FloatArray, bool]:
        """Tempered terms (C, 2), gradient (C, P), and whether theta was (P,)."""
        theta, single = host_position(function, "theta", theta, self.dtype, self.dim)
        chosen = None if rows is None else self._rows(function, rows, len(theta))
        values, grad = self._sums(theta, chosen, gradient=True)
        scale = 1.0 / (self.likelihood_temperature * self.temperature)
        if chosen is not None:
            scale *= self.num_rows / chosen.shape[-1]
        grad = grad * self.dtype.type(scale)
        terms = np.zeros((len(theta), 2))
        terms[:, 0] = values * scale
        if prior:
            log_prior, slope = self._log_prior.value_and_grad(theta)
            terms[:, 1] = prior * log_prior / self.temperature
            grad += self.dtype.type(prior) * slope
        return terms, grad, single

    def _rows(self, function: str, rows: Any, chains: int) -> npt.NDArray[np.int64]:
        array = np.asarray(rows)
        if array.ndim != 2:
            return checks.integer_array(function, "rows", rows, below=self.num_rows)
        if len(array) != chains:
            raise ShapeError(f"[{function}] expected rows ({chains}, n), got shape {array.shape}")
        flat = checks.integer_array(function, "rows", array.reshape(-1), below=self.num_rows)
        return flat.reshape(array.shape)

    def _sums(
        self, theta: FloatArray, rows: npt.NDArray[np.int64] | None, *, gradient: bool
    ) -> tuple[Array64, FloatArray]:
        """Return the log likelihood (C,) of `rows`, None for all, and its gradient (C, P)."""
        # In chunks of rows whose sizes depend on the number of rows alone.
        count = self.num_rows if rows is None else rows.shape[-1]
        values = np.zeros(len(theta))
        grad = np.zeros_like(theta)
        with self._lock, quiet(), _named(self.module):
            own = theta if theta.flags.writeable else theta.copy()
            flat = torch.from_numpy(own).to(self._device)
            for low in range(0, count, self._chunk):
                high = min(low + self._chunk, count)
                part = np.arange(low, high) if rows is None else rows[..., low:high]
                x, y = self._take(part)
                value, slope = self._chunk_of(flat, x, y, part.ndim == 2, gradient)
                values += value.cpu().numpy()
                if slope is not None:
                    grad += slope.cpu().numpy()
        return values, grad

    def _chunk_of(
        self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, own: bool, gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return sums (C,) and gradients (C, P) of one chunk; own: each chain has its own rows."""
        if not gradient:
            with torch.no_grad():
                if self._vmap:
                    axis = 0 if own else None
                    return vmap(self._row_sum, (0, axis, axis))(flat, x, y), None
                each = [self._row_sum(f, *_own(own, c, x, y)) for c, f in enumerate(flat)]
                return torch.stack(each), None
        if self._vmap:
            axis = 0 if own else None
            slope, value = vmap(self._gradient, (0, axis, axis))(flat, x, y)
            return value, slope
        pairs = [self._gradient(f, *_own(own, c, x, y)) for c, f in enumerate(flat)]
        return torch.stack([v for _, v in pairs]), torch.stack([g for g, _ in pairs])


def _own(own: bool, chain: int, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any]:
    return (x[chain], y[chain]) if own else (x, y)
