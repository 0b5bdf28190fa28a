"""A module's graph, as `torch.fx` sees it, in layers of ours."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from ribbit.models import layers as rb


class NotCovered(Exception):
    """A module, or a part of it, has no like among our layers; the text says which."""


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
_METHODS = ("relu", "tanh", "sigmoid")
_SUMS = (operator.add, torch.add, operator.iadd)
_READS = (getattr, operator.getitem, "size", "dim")  # without a result they do nothing
_SAME = (nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout2d)  # give the memory of their input


class _Proxy(fx.Proxy):
    """A value whose ``+=`` is seen as one: it changes what other names of the value hold."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class Tracer(fx.Tracer):
    """Records a graph, sums in place as such."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the name of a node's value."""
        return _Proxy(node, self)


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
    raise NotCovered(f"{kind.__name__} is not one of our layers")


def _node_layer(node: fx.Node, parts: Mapping[str, nn.Module]) -> Any:
    """Return our layer for a node of a graph; None where there is nothing to do."""
    if node.op == "call_module":
        return _module_layer(parts[str(node.target)])
    rest = [a for a in node.args[1:] if not isinstance(a, fx.Node)]
    if _flattens(node):
        if (*rest, *node.kwargs.values()) in ((1,), (1, -1)):
            return rb.Flatten()
    elif node.op == "call_function" and node.target in _ACTIVATIONS:
        if not rest and set(node.kwargs) <= {"input", "inplace"}:
            return rb.Activation(_ACTIVATIONS[node.target])
    elif node.op == "call_method" and node.target in _METHODS:
        return rb.Activation(str(node.target))
    what = getattr(node.target, "__name__", node.target)
    raise NotCovered(f"the call of {what} is not one of our layers")


def layers_of(graph: fx.Graph, parts: Mapping[str, nn.Module]) -> tuple[list[Any], list[str]]:
    """Return our layers of a graph, and the names of the modules that it calls, in their order."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    output = next(node for node in graph.nodes if node.op == "output")
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1 or not isinstance(output.args[0], fx.Node):
        raise NotCovered("it has several inputs or outputs")

    seen: set[fx.Node] = set()

    def path(end: fx.Node, stop: fx.Node) -> tuple[list[Any], list[str]]:
        """Layers between two values, `stop` first."""
        found: list[Any] = []
        names: list[str] = []
        node = end
        while node is not stop:
            before = list(node.all_input_nodes)
            if node.op == "placeholder" or not before:
                raise NotCovered("its paths do not meet again")
            seen.add(node)
            if len(before) == 2 and node.target in _SUMS and not node.kwargs:
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
            if node.op == "call_module":
                names.insert(0, str(node.target))
            node = before[0]
        return found, names

    stack = path(output.args[0], inputs[0])
    for node in graph.nodes:
        if node.op.startswith("call_") and node not in seen and node.target not in _READS:
            what = getattr(node.target, "__name__", node.target)
            raise NotCovered(f"the result of {what} is not used: it may work in place")
        if _in_place(node, parts):
            _check_overwritten(node.all_input_nodes[0], parts)
    return stack


def _in_place(node: fx.Node, parts: Mapping[str, nn.Module]) -> bool:
    """Tell whether a node writes its result over its first input."""
    if node.op == "call_module":
        return bool(getattr(parts[str(node.target)], "inplace", False))
    return node.target is operator.iadd or bool(node.kwargs.get("inplace", False))


def _check_overwritten(value: fx.Node, parts: Mapping[str, nn.Module]) -> None:
    """Raise NotCovered if memory that is written to is read a second time, under any name."""
    while True:
        if sum(user.target not in _READS for user in value.users) > 1:
            raise NotCovered("it works in place on a value that it uses again")
        called = value.op == "call_module"
        shares = isinstance(parts[str(value.target)], _SAME) if called else _flattens(value)
        if not (shares or _in_place(value, parts)):
            return
        value = value.all_input_nodes[0]


def _flattens(node: fx.Node) -> bool:
    if node.op == "call_function":
        return node.target is torch.flatten
    return node.target == "flatten"


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
