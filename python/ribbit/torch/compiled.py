"""Modules that our layers cover, as posteriors of the native core.

Shapes: P parameters, N rows; images (N, C, H, W) in torch, (N, H, W, C) here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit.models import layers as rb
from ribbit.models.model import Model
from ribbit.targets.dropout import MaskedPosterior
from ribbit.targets.posterior import Posterior
from ribbit.targets.predictive import NetworkPredictive
from ribbit.targets.prior_base import Prior, PriorLike
from ribbit.targets.prior_table import chosen, patterns_of
from ribbit.targets.spec import DensitySpec
from ribbit.torch.data import tensor

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["NativePosterior", "NotCovered", "compile_module"]


class NotCovered(Exception):
    """A module, or a part of it, has no like among our layers; the text says which."""


@dataclass(frozen=True)
class Compiled:
    """A module as one of our models.

    Attributes
    ----------
    model : Model
    names : tuple of str
        The module's names of the model's arrays, in flat order.
    trained : (P,) array
        The module's own weights.
    """

    model: Model
    names: tuple[str, ...]
    trained: FloatArray


_ACTIVATIONS: dict[Any, str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.SiLU: "silu",
    nn.Sigmoid: "sigmoid",
    nn.Identity: "identity",
    functional.relu: "relu",
    torch.relu: "relu",
    torch.tanh: "tanh",
    functional.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    functional.sigmoid: "sigmoid",
    functional.silu: "silu",
}
_METHODS = {"relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid"}
_FLATTEN = (torch.flatten,)


def _module_layer(part: nn.Module) -> Any:
    """Return our layer for one of torch's; None where there is nothing to do."""
    kind = type(part)
    if kind in _ACTIVATIONS:
        name = _ACTIVATIONS[kind]
        return None if name == "identity" else rb.Activation(name)
    match part:
        case nn.GELU(approximate="none"):
            return rb.Activation("gelu")
        case nn.ELU(alpha=1.0):
            return rb.Activation("elu")
        case nn.LeakyReLU(negative_slope=0.01):
            return rb.Activation("leaky_relu")
        case nn.Softplus(beta=1, threshold=threshold) if threshold >= 20:
            return rb.Activation("softplus")
        case nn.Linear():
            return rb.Dense(part.out_features, bias=part.bias is not None)
        case nn.Conv2d(padding_mode="zeros"):
            padding: Any = part.padding
            return rb.Conv2D(
                part.out_channels,
                part.kernel_size,
                stride=part.stride,
                padding=padding,
                dilation=part.dilation,
                groups=part.groups,
                bias=part.bias is not None,
            )
        case nn.MaxPool2d(dilation=1, ceil_mode=False):
            return rb.MaxPool2D(part.kernel_size, stride=part.stride, padding=part.padding)
        case nn.AvgPool2d(ceil_mode=False, padding=0, divisor_override=None):
            return rb.AvgPool2D(part.kernel_size, stride=part.stride)
        case nn.AdaptiveAvgPool2d() if part.output_size in (1, (1, 1)):
            return rb.GlobalAvgPool2D()
        case nn.Flatten(start_dim=1, end_dim=-1):
            return rb.Flatten()
        case nn.LayerNorm(elementwise_affine=True) if len(part.normalized_shape) == 1:
            return rb.LayerNorm(part.eps)
        case nn.GroupNorm(affine=True):
            return rb.GroupNorm(part.num_groups, part.eps)
        case nn.Dropout():
            return rb.Dropout(part.p) if part.p > 0.0 else None
        case nn.Dropout2d():
            return rb.Dropout(part.p, spatial=True) if part.p > 0.0 else None
    raise NotCovered(f"{kind.__name__} is none of our layers")


def _node_layer(node: fx.Node, parts: Mapping[str, nn.Module]) -> Any:
    """Return our layer for a node of a graph; None where there is nothing to do."""
    if node.op == "call_module":
        return _module_layer(parts[str(node.target)])
    rest = [a for a in node.args[1:] if not isinstance(a, fx.Node)]
    flattens = node.target in _FLATTEN if node.op == "call_function" else node.target == "flatten"
    if flattens:
        if (*rest, *node.kwargs.values()) in ((1,), (1, -1)):
            return rb.Flatten()
    elif node.op == "call_function" and node.target in _ACTIVATIONS:
        if not rest:
            return rb.Activation(_ACTIVATIONS[node.target])
    elif node.op == "call_method" and node.target in _METHODS:
        return rb.Activation(_METHODS[str(node.target)])
    what = getattr(node.target, "__name__", node.target)
    raise NotCovered(f"the call of {what} is none of our layers")


def _layers(graph: fx.Graph, parts: Mapping[str, nn.Module]) -> tuple[list[Any], list[str]]:
    """Return our layers of a graph, and the modules with weights in their order."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    output = next(node for node in graph.nodes if node.op == "output")
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1 or not isinstance(output.args[0], fx.Node):
        raise NotCovered("it has several inputs or outputs")

    def path(end: fx.Node, stop: fx.Node) -> tuple[list[Any], list[str]]:
        """Layers between two values, `stop` first."""
        found: list[Any] = []
        names: list[str] = []
        node = end
        while node is not stop:
            before = list(node.all_input_nodes)
            if node.op == "placeholder" or not before:
                raise NotCovered("its paths do not meet again")
            if len(before) == 2 and node.target in (operator.add, torch.add, operator.iadd):
                start = _meet(before[0], before[1], order)
                main, first = path(before[0], start)
                beside, second = path(before[1], start)
                # The main path is the one with more layers; declared first as ours are.
                if len(beside) > len(main):
                    main, first, beside, second = beside, second, main, first
                found.insert(0, rb.Residual(tuple(main), tuple(beside)))
                names[:0] = first + second
                node = start
                continue
            if len(before) != 1:
                raise NotCovered(f"the call of {node.target} joins several values")
            layer = _node_layer(node, parts)
            if layer is not None:
                found.insert(0, layer)
            if node.op == "call_module" and any(True for _ in parts[str(node.target)].parameters()):
                names.insert(0, str(node.target))
            node = before[0]
        return found, names

    return path(output.args[0], inputs[0])


def _meet(a: fx.Node, b: fx.Node, order: Mapping[fx.Node, int]) -> fx.Node:
    """Return the last value that both were made of, going back along single inputs."""
    while a is not b:
        if order[a] < order[b]:
            a, b = b, a
        before = a.all_input_nodes
        if len(before) == 2:
            a = _meet(before[0], before[1], order)
        elif len(before) == 1:
            a = before[0]
        else:
            raise NotCovered("its paths do not meet again")
    return a


def _shape(x: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a row here: channels last."""
    shape = tuple(x.shape[1:])
    return shape if len(shape) < 3 else (*shape[1:], shape[0])


def compile_module(module: nn.Module, x: torch.Tensor, dtype: np.dtype[Any]) -> Compiled:
    """Return a module as a model, checked on rows x (n, ...) against the module's own outputs.

    Raises
    ------
    NotCovered
        Where a layer has no like here, or outputs differ.
    """
    if any(not p.requires_grad for p in module.parameters()):
        raise NotCovered("some of its parameters are fixed (requires_grad=False)")
    every = [p for _, p in module.named_parameters(remove_duplicate=False)]
    if len({id(p) for p in every}) < len(every):
        raise NotCovered("some of its layers share an array")
    if not x.is_floating_point():
        raise NotCovered(f"its inputs are {str(x.dtype).removeprefix('torch.')}")
    if x.ndim not in (2, 4):
        raise NotCovered(f"its inputs have shape {tuple(x.shape[1:])}, neither rows nor images")
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # what fx cannot follow, in the words of whatever failed
        raise NotCovered(f"its forward cannot be traced ({type(error).__name__})") from error
    parts = dict(module.named_modules())
    stack, owners = _layers(graph, parts)
    if len(set(owners)) < len(owners):
        raise NotCovered("a layer with weights is called twice")
    try:
        model = Model(tuple(stack), input_shape=_shape(x))
        trained = model.from_torch(module, x.double().numpy(), dtype=dtype)
    except (TypeError, ValueError) as error:
        raise NotCovered(f"as a model: {error}") from error
    names = tuple(
        f"{owner}.{name}" if owner else name
        for owner in owners
        for name, _ in parts[owner].named_parameters()
    )
    compiled = Compiled(model, names, trained)
    mine = to_state(compiled, trained)
    for name, value in module.named_parameters():
        if name not in mine or not torch.equal(mine[name].double(), value.detach().cpu().double()):
            raise NotCovered(f"its array {name!r} does not come back as it was")
    return compiled


def to_state(compiled: Compiled, theta: FloatArray) -> dict[str, torch.Tensor]:
    """Return weights (P,) under the module's names."""
    arrays = compiled.model.to_torch_state_dict(theta)
    return dict(zip(compiled.names, arrays.values(), strict=True))


def native_prior(prior: PriorLike, compiled: Compiled) -> PriorLike:
    """Return a prior whose patterns are of the module's names as one of the model's.

    Raises
    ------
    NotCovered
        For means as arrays, which have torch's order of axes.
    """
    patterns = patterns_of(prior)
    for one in patterns.values():
        mean = getattr(one, "mean", 0.0)
        if not isinstance(mean, int | float):
            raise NotCovered("the prior has means in arrays, in torch's order of axes")
    if isinstance(prior, Prior):
        return prior
    found: dict[str, Prior] = {}
    for name, parameter in zip(compiled.names, compiled.model.parameters, strict=True):
        _, own = chosen(patterns, name)
        if own is None:
            raise ValueError(
                f"[posterior] expected a prior for {name!r}, got patterns {list(patterns)}"
            )
        found[parameter.name] = own
    unused = [k for k in patterns if k != "log_noise" and not _matches(k, compiled.names)]
    if unused:
        raise ValueError(
            f"[posterior] expected patterns of prior to match one of {', '.join(compiled.names)}, "
            f"got {unused[0]!r}"
        )
    if "log_noise" in patterns:
        found["log_noise"] = patterns["log_noise"]
    return found


def _matches(pattern: str, names: tuple[str, ...]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, pattern) for name in names)


@dataclass(frozen=True)
class _TorchInputs(NetworkPredictive):
    """Predictions whose inputs are tensors or arrays as the module takes them."""

    def network_inputs(self, function: str, x: npt.ArrayLike) -> Any:
        """Return inputs (N, ...) with the channels last."""
        rows = tensor(function, "x", x, torch.float64).numpy()
        return super().network_inputs(
            function, np.moveaxis(rows, 1, -1) if rows.ndim == 4 else rows
        )

    def describe(self) -> Any:
        """Return the description of the network; None of images, which a file has otherwise."""
        return None if len(self.model.input_shape) == 3 else super().describe()


class _Masked(MaskedPosterior):
    """Masks of a module's Dropout layers; predictions take what the module takes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _masked, (self._spec, self._options)

    @property
    def network_predictive(self) -> NetworkPredictive:
        """What predicts, without the data and without masks."""
        known = super().network_predictive
        return _TorchInputs(known.model, known.likelihood, known.description, units=known.units)


def _masked(spec: DensitySpec, options: dict[str, Any]) -> _Masked:
    return _Masked(spec, **options)


class NativePosterior(Posterior):
    """A module whose layers are ours: a `ribbit.Posterior`, run by the native core.

    Everything a `Posterior` has it has too; inputs of predictions are what the module takes, images
    with the channels first.

    Attributes
    ----------
    native : bool
        True.
    trained : numpy.ndarray
        (P,) the module's own weights, for ``sample(init=target.trained)``.
    names : tuple of str
        The module's names of ``model.parameters``.
    batch_size : int or None
        That of the DataLoader.
    """

    native: ClassVar[bool] = True
    why: ClassVar[str] = ""
    _compiled: Compiled
    batch_size: int | None

    @staticmethod
    def of(posterior: Posterior, compiled: Compiled, batch_size: int | None) -> NativePosterior:
        """Return a posterior of the model as one of the module."""
        return _native(posterior._spec, compiled, batch_size)

    def __reduce__(self) -> tuple[Any, ...]:
        return _native, (self._spec, self._compiled, self.batch_size)

    @property
    def marginal(self) -> Posterior | None:
        """As of `Posterior`; None of images, whose marginal takes inputs with the channels last."""
        return None if len(self.model.input_shape) == 3 else super().marginal

    def masked(
        self,
        *,
        rate: float | Literal["concrete"] | None = None,
        length_scale: float | None = None,
        precision: float | None = None,
    ) -> MaskedPosterior:
        """Return the same posterior with its Dropout layers active; see `Posterior.masked`."""
        return _Masked(self._spec, rate=rate, length_scale=length_scale, precision=precision)

    @property
    def names(self) -> tuple[str, ...]:
        """The module's names of the model's arrays."""
        return self._compiled.names

    @property
    def trained(self) -> FloatArray:
        """The module's own weights (P,), with "log_noise" at 0."""
        own = self._compiled.trained
        return np.concatenate([own, np.zeros(self.dim - len(own), own.dtype)])

    def state_dict(self, theta: FloatArray) -> dict[str, torch.Tensor]:
        """Return a position (P,) as the module's state dict: for ``module.load_state_dict``.

        Raises
        ------
        TypeError, ValueError
            If `theta` is no array (P,).
        """
        if np.shape(theta) != (self.dim,):
            got = checks.summary(theta)
            raise ValueError(f"[state_dict] expected theta of shape ({self.dim},), got {got}")
        weights = self._predictive.model.ravel(
            {
                name: np.asarray(value)
                for name, value in self.unravel(np.asarray(theta, self.dtype)).items()
                if name in {p.name for p in self.model.parameters}
            }
        )
        return to_state(self._compiled, weights)

    def inputs(self, count: int) -> Any:
        """Return at most `count` of the data's inputs (n, ...), as the module takes them."""
        rows = np.asarray(super().inputs(count)).reshape(-1, *self.model.input_shape)
        return np.moveaxis(rows, -1, 1) if rows.ndim == 4 else rows

    def subset(self, rows: npt.ArrayLike) -> NativePosterior:
        """Return the posterior of some of the rows alone."""
        return NativePosterior.of(super().subset(rows), self._compiled, self.batch_size)

    def describe(self) -> Any:
        """Return a description for files; None of images, see `ribbit.torch.attach`."""
        return self._predictive.describe()


def _native(spec: DensitySpec, compiled: Compiled, batch_size: int | None) -> NativePosterior:
    posterior = object.__new__(NativePosterior)
    posterior._fill(spec)
    known = posterior._predictive
    made = _TorchInputs(
        known.model, known.likelihood, known.description, units=known.units, scales=known.scales
    )
    for name, value in {
        "_predictive": made,
        "_compiled": compiled,
        "batch_size": batch_size,
    }.items():
        object.__setattr__(posterior, name, value)
    return posterior
