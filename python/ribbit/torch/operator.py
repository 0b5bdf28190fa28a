"""A target's log density inside torch: an autograd function, and an operator for graphs."""

# Code that runs goes through an ``autograd.Function``, which costs a third less and which the
# transforms of ``torch.func`` know; what traces (``torch.compile``, ``make_fx``) meets the operator
# ``ribbit::log_density``. Shapes: C chains, P parameters.

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ribbit._arrays import checks

__all__ = ["LogDensity", "torch_log_density"]

_TWICE = (
    "[torch_log_density] expected first derivatives alone, got a double backward: the native "
    "log density is differentiable once, its gradient has no derivative here"
)
_FORWARD = (
    "[torch_log_density] expected derivatives in reverse mode (torch.func.grad, backward), got "
    "forward mode (jvp, jacfwd, hessian), which the native log density does not have"
)
_targets: weakref.WeakValueDictionary[int, LogDensity]
_numbers = itertools.count()


@torch.library.custom_op("ribbit::log_density", mutates_args=())
def _log_density(theta: torch.Tensor, target: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log density () or (C,) float64 and gradient at theta (P,) or (C, P)."""
    return _targets[target]._evaluate(theta)


@_log_density.register_fake
def _(theta: torch.Tensor, target: int) -> tuple[torch.Tensor, torch.Tensor]:
    del target
    return theta.new_empty(theta.shape[:-1], dtype=torch.float64), torch.empty_like(
        theta, memory_format=torch.contiguous_format
    )


@torch.library.custom_op("ribbit::log_density_gradient", mutates_args=())
def _gradient(theta: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Return the gradient as a function of theta, whose own derivative nobody has."""
    del theta
    return grad.clone()


@_gradient.register_fake
def _(theta: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    del theta
    return torch.empty_like(grad)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(inputs[0], output[1].detach())


def _backward(ctx: Any, upstream: torch.Tensor, _: Any) -> tuple[torch.Tensor, None]:
    theta, known = ctx.saved_tensors
    grad = _gradient(theta, known)
    return upstream.to(grad.dtype)[..., None] * grad, None


def _refuse(ctx: Any, upstream: Any) -> Any:
    del ctx, upstream
    raise RuntimeError(_TWICE)


_log_density.register_autograd(_backward, setup_context=_save)
_gradient.register_autograd(_refuse, setup_context=lambda ctx, inputs, output: None)


@_log_density.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], theta: torch.Tensor, target: int) -> Any:
    theta = theta.movedim(in_dims[0], 0)
    lp, grad = _log_density(theta.reshape(-1, theta.shape[-1]), target)
    return (lp.reshape(theta.shape[:-1]), grad.reshape(theta.shape)), (0, 0)


@_gradient.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], theta: torch.Tensor, grad: torch.Tensor) -> Any:
    return _gradient(*_leading(info.batch_size, in_dims, (theta, grad))), 0


class _ReverseModeOnly(torch.autograd.Function):
    """A function without derivatives in forward mode."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        del ctx, tangents
        raise RuntimeError(_FORWARD)


class _Gradient(_ReverseModeOnly):
    """The gradient as a function of theta; see `_gradient`."""

    @staticmethod
    def forward(theta: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        del theta
        return known.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        del ctx, upstream
        raise RuntimeError(_TWICE)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: torch.Tensor) -> Any:
        return _Gradient.apply(*_leading(info.batch_size, in_dims, parts)), 0


class _Function(_ReverseModeOnly):
    """Value and gradient, the gradient of no use but to `backward`."""

    @staticmethod
    def forward(theta: torch.Tensor, density: LogDensity) -> tuple[torch.Tensor, torch.Tensor]:
        return density._evaluate(theta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor, _: Any) -> tuple[torch.Tensor, None]:
        return _slope(upstream, *ctx.saved_tensors), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], theta: torch.Tensor, density: LogDensity) -> Any:
        del info
        return _Function.apply(theta.movedim(in_dims[0], 0), density), (0, 0)


class _Eager(_ReverseModeOnly):
    """The same outside of transforms, where a form that they do not know costs half as much."""

    @staticmethod
    def forward(ctx: Any, theta: torch.Tensor, density: LogDensity) -> torch.Tensor:
        value, known = density._evaluate(theta)
        ctx.save_for_backward(theta, known)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _slope(upstream, *ctx.saved_tensors), None


def _slope(upstream: torch.Tensor, theta: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the gradient by theta of what has the gradient `upstream` by the log density."""
    if torch.is_grad_enabled():  # a graph of the gradient is wanted: create_graph, torch.func
        known = _Gradient.apply(theta, known)
    if upstream.ndim == 0:
        return upstream * known  # in the dtype of `known`
    return (upstream[..., None] * known).to(known.dtype)


def _transforming() -> bool:
    """Whether torch.func transforms what runs; where torch does not tell, it may."""
    ask = getattr(torch._C, "_are_functorch_transforms_active", None)
    return ask is None or bool(ask())


def _leading(count: int, axes: tuple[Any, ...], parts: tuple[torch.Tensor, ...]) -> Any:
    """Return tensors with the axis of a vmap first."""
    return [
        part.expand(count, *part.shape) if axis is None else part.movedim(axis, 0)
        for part, axis in zip(parts, axes, strict=True)
    ]


class LogDensity:
    """A target's log density as a function of a tensor; see `torch_log_density`.

    Attributes
    ----------
    target
    dim : int
        P.
    dtype : torch.dtype
        Dtype of theta.

    Examples
    --------
    >>> import torch
    >>> import ribbit.torch
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> f = rb.torch.torch_log_density(target)
    >>> isinstance(f, rb.torch.LogDensity), f.dim
    (True, 10)
    """

    def __init__(self, target: Any) -> None:
        name = "torch_log_density"
        if isinstance(target, type) or not callable(getattr(target, "value_and_grad", None)):
            got = checks.summary(target)
            raise TypeError(f"[{name}] expected a target with value_and_grad, got {got}")
        library = getattr(target, "array_namespace", None) or np
        if library is not np:
            raise TypeError(
                f"[{name}] expected a target with data in host memory, got one of "
                f"{library.__name__} arrays"
            )
        self.target, self.dim = target, int(target.dim)
        self._host = np.dtype(getattr(target, "dtype", np.float64))
        self.dtype = torch.float64 if self._host == np.float64 else torch.float32
        self._number = next(_numbers)
        _targets[self._number] = self

    def __repr__(self) -> str:
        return f"torch_log_density({type(self.target).__name__}, dim {self.dim}, {self.dtype})"

    def __call__(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the log density, () or (C,) float64, at theta (P,) or (C, P).

        Raises
        ------
        TypeError, ValueError
            If theta is no tensor of that shape and of the target's dtype on the host.
        """
        name = "torch_log_density"
        if not isinstance(theta, torch.Tensor) or theta.dtype != self.dtype:
            got = theta.dtype if isinstance(theta, torch.Tensor) else checks.summary(theta)
            raise TypeError(f"[{name}] expected theta as a {self.dtype} tensor, got {got}")
        if theta.device.type not in ("cpu", "meta"):
            raise TypeError(f"[{name}] expected theta in host memory, got {theta.device}")
        if theta.ndim not in (1, 2) or theta.shape[-1] != self.dim or theta.shape[0] == 0:
            raise ValueError(
                f"[{name}] expected theta ({self.dim},) or (C, {self.dim}), "
                f"got shape {tuple(theta.shape)}"
            )
        if (
            torch.compiler.is_compiling()
            or type(theta) not in (torch.Tensor, torch.nn.Parameter)
            or theta.device.type != "cpu"
            or is_in_torch_dispatch_mode()
        ):
            return _log_density(theta, self._number)[0]
        lp: torch.Tensor
        lp = _Function.apply(theta, self)[0] if _transforming() else _Eager.apply(theta, self)
        return lp

    def _evaluate(self, theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return value and gradient at theta (..., P); arrays share memory with tensors."""
        position = theta.detach().contiguous().numpy()
        lp, grad = self.target.value_and_grad(position.reshape(-1, self.dim))
        value = torch.from_numpy(np.array(lp, np.float64).reshape(position.shape[:-1]))
        return value, torch.from_numpy(np.ascontiguousarray(grad).reshape(position.shape))


_targets = weakref.WeakValueDictionary()


def torch_log_density(target: Any) -> LogDensity:
    """Return a target's log density as a differentiable function of a tensor.

    It works with ``torch.autograd``, ``torch.func.grad``, ``torch.func.vmap`` and
    ``torch.compile(fullgraph=True)``, as the operator ``ribbit::log_density``. Tensors reach the
    core without a copy. Second derivatives and forward mode raise RuntimeError.

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity` in host memory, such as :class:`ribbit.Posterior`.

    Returns
    -------
    LogDensity
        ``f(theta)`` of theta (P,) or (C, P) in the target's dtype gives () or (C,) in float64. Keep
        it as long as its graphs are used.

    Raises
    ------
    TypeError
        If `target` is not such a target.

    Examples
    --------
    >>> import torch
    >>> import ribbit.torch
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> f = rb.torch.torch_log_density(target)
    >>> theta = torch.from_numpy(target.init(seed=0)).requires_grad_(True)
    >>> (-f(theta)).backward()
    >>> theta.grad.shape
    torch.Size([10])
    """
    return LogDensity(target)
