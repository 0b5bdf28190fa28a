"""Weights of a PyTorch module that runs on a few rows: matched as it calls its layers."""

# A state dict says neither in which order layers are called nor their padding, epsilon or
# activation. Here the outputs of every layer that has weights are compared with ours, in float64.

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.packages import needing
from ribbit._backends import dispatch
from ribbit._backends.codes import COLUMNS
from ribbit._backends.density_table import NetworkTable
from ribbit.errors import ShapeError
from ribbit.models import torch_weights
from ribbit.models.torch_weights import Network

if TYPE_CHECKING:
    import numpy.typing as npt

TOLERANCE = 1e-4
"""Largest difference of an output, over the largest output of the layer."""

_FOREIGN = {
    *("MultiheadAttention", "RNN", "GRU", "RNNCell", "GRUCell", "LSTMCell", "Bilinear", "PReLU"),
    *("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Conv3d", "RMSNorm", "EmbeddingBag"),
}
"""Layers of torch.nn with weights that no layer of ours is like."""

_Array: TypeAlias = "npt.NDArray[Any]"


@dataclass
class _Call:
    """One call of a module that has weights, or of a batch normalisation."""

    name: str
    module: Any
    given: Any  # its input, the tensor itself, and how often that was written to by then
    given_version: int
    result: Any = None
    result_version: int = -1
    inputs: _Array | None = None
    outputs: _Array | None = None


@dataclass
class _Source:
    """What one of our layers gets: arrays, and the calls that give what it gives."""

    name: str
    first: _Call
    last: _Call
    arrays: dict[str, _Array] = field(default_factory=dict)


@dataclass(frozen=True)
class _Place:
    """One of our layers that has parameters: where it stands, its row, names of its arrays."""

    name: str
    row: int
    arrays: tuple[str, ...]

    @property
    def affine(self) -> bool:
        return "gamma" in self.arrays


def from_torch(
    function: str, model: Network, module: Any, example: Any, dtype: npt.DTypeLike
) -> checks.FloatArray:
    """Return the flat vector (dim,) of `module`; `function` names the caller in errors."""
    with needing(function, "torch"):
        import torch
    chosen = checks.float_dtype(function, dtype)
    if not isinstance(module, torch.nn.Module):
        got = checks.summary(module)
        raise TypeError(f"[{function}] expected module as a torch.nn.Module, got {got}")
    for name, part in module.named_modules():
        if _is_batch_norm(part) and (part.training or part.running_mean is None):
            raise ValueError(
                f"[{function}] expected batch normalisation in evaluation mode, where it is an "
                "affine map, got "
                f"{name!r} in training mode (it ties the rows together): call module.eval() first"
            )
    refusals: list[Exception] = []
    broken: list[Exception] = []
    for ours, theirs in _layouts(function, model, example):
        try:
            run = _run(function, module, theirs)
        except ValueError:
            raise
        except Exception as error:  # whatever the module's own code raises
            broken.append(error)
            continue
        for calls in run.orders():
            try:
                theta = _load(function, model, calls)
                _compare(function, model, theta, ours, calls, run.output)
            except ValueError as error:
                refusals.append(error)
                continue
            return theta.astype(chosen)
    if refusals:
        raise refusals[0]
    reason = checks.reason(broken[0])
    raise ValueError(
        f"[{function}] expected an example that the module takes, got {checks.summary(example)} "
        f"({reason})"
    ) from broken[0]


# --- the module's side ---------------------------------------------------------------------------


@dataclass
class _Run:
    calls: list[_Call]  # as they were made
    silent: list[_Call]  # modules with weights that were not called
    declared: list[str]  # names of all of them
    output: _Array

    def orders(self) -> Iterator[list[_Call]]:
        """Give the calls as they were made, then as the modules were declared."""
        yield self.calls
        place = {name: i for i, name in enumerate(self.declared)}
        declared = sorted([*self.calls, *self.silent], key=lambda call: place[call.name])
        if declared != self.calls:
            yield declared


def _run(function: str, module: Any, rows: _Array) -> _Run:
    """Run a copy of the module in float64 and evaluation mode."""
    import torch

    copied = copy.deepcopy(module).cpu().double().eval()
    calls: list[_Call] = []
    parts = {
        name: part
        for name, part in copied.named_modules()
        if _is_batch_norm(part) or any(True for _ in part.parameters(recurse=False))
    }

    def begin(name: str) -> Any:
        def hook(part: Any, given: tuple[Any, ...]) -> None:
            if any(call.name == name for call in calls):
                raise ValueError(
                    f"[{function}] expected each module with weights to be called once, got "
                    f"{name!r} called twice: weights cannot be shared"
                )
            kind = _foreign(part)
            if kind:
                raise ValueError(
                    f"[{function}] expected layers that Ribbit has (Linear, Conv1d, "
                    "Conv2d, BatchNorm, LayerNorm, GroupNorm, Embedding, LSTM), got "
                    f"{kind if not name else f'{name!r}, {kind}'}: sample the module itself, by "
                    "torch's gradients in an rb.CallableDensity"
                )
            tensor = given[0] if given else None
            call = _Call(name, part, tensor, getattr(tensor, "_version", -1))
            call.inputs = _numbers(tensor)
            calls.append(call)

        return hook

    def end(name: str) -> Any:
        def hook(part: Any, given: object, result: Any) -> None:
            call = next(call for call in calls if call.name == name)
            call.result = result[0] if isinstance(result, tuple) else result
            call.result_version = getattr(call.result, "_version", -1)
            call.outputs = _numbers(call.result)

        return hook

    for name, part in parts.items():
        part.register_forward_pre_hook(begin(name))
        part.register_forward_hook(end(name))
    with torch.no_grad():
        result = copied(torch.from_numpy(np.array(rows, order="C")))  # it may work in place
    output = _numbers(result[0] if isinstance(result, tuple) else result)
    if output is None:
        got = checks.summary(result)
        raise ValueError(f"[{function}] expected a module that gives a tensor, got {got}")
    called = {call.name for call in calls}
    silent = [_Call(name, part, None, -1) for name, part in parts.items() if name not in called]
    return _Run(calls, silent, list(parts), output)


def _numbers(value: Any) -> _Array | None:
    # A copy: what comes next may work in place.
    return value.detach().clone().cpu().numpy() if hasattr(value, "detach") else None


def _foreign(module: Any) -> str:
    """Return the name of a layer of torch.nn that no layer of ours is like, else ""."""
    kinds = (k for k in type(module).__mro__ if k.__module__.startswith("torch.nn.modules."))
    return next((kind.__name__ for kind in kinds if kind.__name__ in _FOREIGN), "")


def _is_batch_norm(module: Any) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm

    return isinstance(module, _BatchNorm)


def _layouts(function: str, model: Network, example: Any) -> list[tuple[_Array, _Array]]:
    """Return what the example may mean: our rows (N, H, W, C), and the module's (N, C, H, W)."""
    given = checks.numeric(function, "example", torch_weights.host(example))
    rows = given.astype(np.int64 if model.tokens else np.float64)
    shape, options = model.input_shape, []
    if rows.ndim > 0 and len(rows) > 0:
        if len(shape) > 1 and rows.shape[1:] == (shape[-1], *shape[:-1]):
            options.append((np.moveaxis(rows, 1, -1), rows))
        if rows.shape[1:] == shape:
            if len(shape) > 1:
                options.append((rows, np.moveaxis(rows, -1, 1)))
            options.append((rows, rows))
    if not options:
        raise ShapeError(
            f"[{function}] expected example as rows (N, {', '.join(map(str, shape))}), or with the "
            f"channels first as PyTorch has them, got shape {rows.shape}"
        )
    return options


# --- weights -------------------------------------------------------------------------------------


def _load(function: str, model: Network, calls: Sequence[_Call]) -> checks.FloatArray:
    """Return theta (dim,) float64 of the calls in this order."""
    arrays = {}
    for source in _sources(function, _places(model), calls):
        arrays.update({f"{source.name}.{key}": value for key, value in source.arrays.items()})
    return torch_weights.from_torch(function, model, arrays, np.float64)


def _places(model: Network) -> list[_Place]:
    """Return our layers with parameters, in flat order."""
    rows = {}
    for number, values in enumerate(model.table.tolist()):
        row = dict(zip(COLUMNS, values, strict=True))
        rows.update({row[name]: number for name in ("weight", "bias", "third") if row[name] >= 0})
    found: list[_Place] = []
    for p in model.parameters:
        name, _, last = p.name.rpartition(".")
        if found and found[-1].name == name:
            found[-1] = replace(found[-1], arrays=(*found[-1].arrays, last))
        else:
            found.append(_Place(name, rows[p.offset], (last,)))
    return found


def _sources(function: str, places: Sequence[_Place], calls: Sequence[_Call]) -> list[_Source]:
    """Return what each of our layers gets; batch normalisations go to a neighbour or an Affine."""
    import torch

    linear = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)
    found: list[_Source] = []
    waiting: _Source | None = None  # a batch normalisation for the layer above it
    for number, call in enumerate(calls):
        above = calls[number + 1] if number + 1 < len(calls) else None
        below = found[-1] if found else None
        ours = places[len(found)] if len(found) < len(places) else None
        if not _is_batch_norm(call.module):
            source = _Source(call.name, call, call, _arrays(call.module))
            if waiting is not None:
                _fold_into_above(source, waiting.arrays)
                _needs_bias(function, ours, waiting.name)
                source.first, waiting = waiting.first, None
            found.append(source)
            continue
        scale, shift = _affine(call.module)
        if ours is not None and ours.affine:
            found.append(_Source(call.name, call, call, {"weight": scale, "bias": shift}))
        elif (
            below is not None and isinstance(below.last.module, linear) and _reads(call, below.last)
        ):
            _fold_into_below(below, scale, shift)
            _needs_bias(function, places[min(len(found), len(places)) - 1], call.name)
            below.last = call
        elif (
            above is not None
            and isinstance(above.module, linear)
            and _reads(above, call)
            and not _pads(above.module)
        ):
            waiting = _Source(call.name, call, call, {"weight": scale, "bias": shift})
        else:
            raise ValueError(
                f"[{function}] expected batch normalisation right behind a linear layer or a "
                f"convolution, or right before one without padding, got {call.name!r}: put "
                "rb.Affine() in its place"
            )
    return found


def _arrays(module: Any) -> dict[str, _Array]:
    return {
        name: np.array(p.detach().cpu().numpy())
        for name, p in module.named_parameters(recurse=False)
    }


def _affine(module: Any) -> tuple[_Array, _Array]:
    """Return scale and shift (C,) of a batch normalisation in evaluation mode."""
    mean, variance = module.running_mean.numpy(), module.running_var.numpy()
    scale = 1.0 / np.sqrt(variance + module.eps)
    shift = np.zeros_like(mean)
    if module.affine:
        scale, shift = scale * module.weight.detach().numpy(), module.bias.detach().numpy()
    return scale, shift - mean * scale


def _fold_into_below(source: _Source, scale: _Array, shift: _Array) -> None:
    weight, bias = source.arrays["weight"], source.arrays.get("bias", 0.0)
    source.arrays["weight"] = weight * scale.reshape(-1, *(1,) * (weight.ndim - 1))
    source.arrays["bias"] = bias * scale + shift


def _fold_into_above(source: _Source, affine: dict[str, _Array]) -> None:
    weight, bias = source.arrays["weight"], source.arrays.get("bias", 0.0)
    groups = getattr(source.first.module, "groups", 1)  # of channels: weight (out, C / groups, ..)
    scale, shift = (
        np.repeat(a.reshape(groups, -1), len(weight) // groups, axis=0)
        for a in (affine["weight"], affine["bias"])
    )
    taps = weight.reshape(*weight.shape[:2], -1).sum(axis=2)
    source.arrays["bias"] = bias + np.sum(taps * shift, axis=1)
    source.arrays["weight"] = weight * scale.reshape(*scale.shape, *(1,) * (weight.ndim - 2))


def _needs_bias(function: str, ours: _Place | None, name: str) -> None:
    if ours is not None and "weight" in ours.arrays and "bias" not in ours.arrays:
        raise ValueError(
            f"[{function}] expected layer {ours.name} with a bias, where the shift of batch "
            f"normalisation {name!r} goes, got bias=False"
        )


def _reads(call: _Call, other: _Call) -> bool:
    """Tell whether a call's input is what another gave, and nobody wrote to it in between."""
    return call.given is other.result and call.given_version == other.result_version


def _pads(module: Any) -> bool:
    padding = getattr(module, "padding", 0)
    return padding != "valid" and (isinstance(padding, str) or bool(np.any(padding)))


# --- the comparison ------------------------------------------------------------------------------


def _compare(
    function: str,
    model: Network,
    theta: checks.FloatArray,
    rows: _Array,
    calls: Sequence[_Call],
    output: _Array,
) -> None:
    """Raise a ValueError that names the first layer whose outputs differ."""
    places = _places(model)
    before = "its input"
    for place, source in zip(places, _sources(function, places, calls), strict=False):
        layer, known = _layer(model, place.name), source.last.outputs
        here = f"layer {place.name}, {layer}, "
        there = f"{source.name!r}, {source.first.module}"
        eps = getattr(source.first.module, "eps", None)
        own = getattr(layer, "eps", None)
        if isinstance(eps, float) and own is not None and abs(eps - own) > 1e-9 * own:
            raise ValueError(
                f"[{function}] expected {here}with eps={eps} like {there}, got eps={own}"
            )
        error = _error(model, place.row + 1, theta, rows, source.last.module, known)
        if error is not None and not error <= TOLERANCE:
            value = dict(zip(COLUMNS, model.table[place.row].tolist(), strict=True))["input"]
            first = source.first
            above = _error(model, value, theta, rows, None, first.inputs)
            hint = (
                f"their inputs differ already: look between {before} and it"
                if above is not None and not above <= TOLERANCE
                else "look at its arguments, and at the order of the layers"
            )
            raise ValueError(
                f"[{function}] expected {here}to agree with {there}, within {TOLERANCE} of "
                f"the largest output, got a difference of {error:.3g}: {hint}"
            )
        before = f"layer {place.name}"
    found = model.apply(theta, rows)
    if output.size != found.size or len(output) != len(found):
        raise ShapeError(
            f"[{function}] expected outputs {found.shape} as the model has them, "
            f"got {output.shape} from the module"
        )
    error = _difference(found, output.reshape(found.shape))
    if not error <= TOLERANCE:
        raise ValueError(
            f"[{function}] expected the model to agree with the module within {TOLERANCE} of "
            f"the largest output, got a difference of {error:.3g}, though every layer with weights "
            f"agrees: look behind {before} (ours gives logits, for example)"
        )


def _layer(model: Network, place: str) -> Any:
    layer: Any = model
    for step in place.split("."):
        layer = layer.layers[int(step)] if layer is model else _into(layer, step)
    return layer


def _into(layer: Any, step: str) -> Any:
    return layer[int(step)] if isinstance(layer, tuple) else getattr(layer, step)


def _error(
    model: Network,
    value: int,
    theta: checks.FloatArray,
    rows: _Array,
    module: Any,
    known: _Array | None,
) -> float | None:
    """Relative difference of a value of the table from `known`; None: they cannot be matched."""
    if known is None or value == 0:
        return None
    table = model.table[:value]
    named = [dict(zip(COLUMNS, row, strict=True)) for row in table.tolist()]
    size = named[-1]["out_size"]
    ends = {p.offset: p.offset + p.size for p in model.parameters}
    used = {row[name] for row in named for name in ("weight", "bias", "third")} - {-1}
    shapes = [(row["out_height"] * row["out_width"], row["out_channels"]) for row in named]
    shapes.append((math.prod(model.input_shape[:-1]), model.input_shape[-1]))
    forms = [
        form
        for form in _forms(module, known, len(rows), [s for s in shapes if math.prod(s) == size])
        if form.shape == (len(rows), size)
    ]
    if not used or not forms:
        return None
    dim = max(ends[offset] for offset in used)
    rates = model.rates[:value]
    network = NetworkTable(table, rates, model.input_shape, (size,), model.tokens)
    found = dispatch.outputs("Model.from_torch", network, theta[:dim], rows, dim)
    return min(_difference(found, form) for form in forms)


def _forms(
    module: Any, known: _Array, num_rows: int, shapes: Sequence[tuple[int, int]]
) -> list[_Array]:
    """Return a layer's outputs as flat rows: as they are, channels last, the last state."""
    # shapes: (places, channels) that flat outputs may have been before they were flattened.
    import torch

    if isinstance(module, torch.nn.RNNBase) and known.ndim == 3:
        states = known if module.batch_first else known.swapaxes(0, 1)
        return [states.reshape(len(states), -1), states[:, -1]]
    if known.ndim < 2 or len(known) != num_rows:
        return []
    forms = [known, np.moveaxis(known, 1, -1)]
    if known.ndim == 2:
        turned = (known.reshape(num_rows, c, -1) for _, c in set(shapes) if known.shape[1] % c == 0)
        forms += [np.moveaxis(a, 1, -1) for a in turned]
    return [a.reshape(num_rows, -1) for a in forms]


def _difference(found: _Array, known: _Array) -> float:
    largest = float(np.max(np.abs(known), initial=0.0))
    return float(np.max(np.abs(found - known), initial=0.0)) / (largest or 1.0)
