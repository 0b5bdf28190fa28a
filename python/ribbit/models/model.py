"""Models: a stack of layers compiled once to a layer table, and the flat parameter vector."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.keywords import explain
from ribbit._arrays.random_numbers import normal_starts
from ribbit._arrays.tables import html_table
from ribbit._backends import dispatch
from ribbit._backends.density_table import NetworkTable
from ribbit.errors import DTypeError, ShapeError
from ribbit.models import layers
from ribbit.models.layers import Layer, Parameter

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


__all__ = ["Model"]

_SMALL_SD = 0.005


@dataclass(frozen=True)
class Model:
    """A network as a stack of layers.

    Parameters
    ----------
    layers : sequence of layers
        For example ``[Dense(50), Activation("silu"), Dense(1)]``.
    input_shape : tuple of int
        Shape of one data row, for example ``(8,)``.

    Attributes
    ----------
    dim : int
        Number of parameters.
    output_shape : tuple of int
        Shape of one row of outputs.
    parameters : tuple of Parameter
        Name, shape, offset, fan-in and kind of each array, in flat order.
    table : numpy.ndarray
        Layer table (R, columns) int64, read-only; its columns are `ribbit.layers.COLUMNS`.
    rates : numpy.ndarray
        Dropout rate of each row (R,) float64, read-only; 0 for other layers.
    tokens : int
        Number of tokens if the input holds integers in [0, tokens), else 0.
    dropout_layers : tuple of str
        Dropout layers as ``"2: Dropout(0.1)"``.

    Raises
    ------
    TypeError, ValueError
        If a layer does not fit the one before it, or no layer has parameters.

    Notes
    -----
    The flat vector holds the arrays of each layer, in order of the layers and in C order: weight,
    then bias. An LSTM has weight, recurrent, bias, and a norm has gamma, beta, tau.

    Examples
    --------
    >>> model = rb.Model([rb.Dense(50), rb.Activation("silu"), rb.Dense(1)], input_shape=(8,))
    >>> model.dim, model.output_shape
    (501, (1,))
    >>> [p.name for p in model.parameters]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    >>> theta = model.init(seed=0)
    >>> model.apply(theta, np.zeros((3, 8))).shape
    (3, 1)
    """

    layers: tuple[Layer, ...]
    input_shape: tuple[int, ...] = field(kw_only=True)
    output_shape: tuple[int, ...] = field(init=False, repr=False, compare=False)
    dim: int = field(init=False, repr=False, compare=False)
    parameters: tuple[Parameter, ...] = field(init=False, repr=False, compare=False)
    table: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)
    rates: npt.NDArray[np.float64] = field(init=False, repr=False, compare=False)
    tokens: int = field(init=False, repr=False, compare=False)
    dropout_layers: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stack = checks.items("Model", "layers", self.layers, "layers")
        input_shape = layers.input_shape_of("Model", self.input_shape)
        written, value = layers.Table(), layers.Value(0, input_shape)
        for index, layer in enumerate(stack):
            if not layers.is_layer(layer):
                got = checks.summary(layer)
                raise TypeError(
                    f"[Model] expected layer {index} as a layer object, got {got}: use "
                    "layers of ribbit, such as rb.Dense(1), or rb.torch.posterior for any module"
                )
            with written.layer(str(index), layer):
                value = layer._compile(written, value)
        if written.dim == 0:
            raise ValueError("[Model] expected at least one layer with parameters, got none")
        # The random stream counts blocks of four normals in 32 bits.
        if written.dim > 2**34:
            raise ValueError(f"[Model] expected at most 2**34 parameters, got {written.dim}")
        if len(value.shape) != 1:
            raise ShapeError(
                f"[Model] expected a flat output, got {value.shape}: put rb.Flatten() or a pooling "
                "layer before the last Dense layer"
            )
        table, rates = written.array(), np.array(written.rates, dtype=np.float64)
        table.flags.writeable = rates.flags.writeable = False
        for name, item in {
            "layers": stack,
            "input_shape": input_shape,
            "output_shape": value.shape,
            "dim": written.dim,
            "parameters": tuple(written.parameters),
            "table": table,
            "rates": rates,
            "tokens": written.tokens,
            "dropout_layers": tuple(written.dropout),
        }.items():
            object.__setattr__(self, name, item)

    def _repr_html_(self) -> str:
        """Return the layers and their arrays for a notebook."""
        rows = []
        for i, layer in enumerate(self.layers):
            own = [p for p in self.parameters if p.name.startswith(f"{i}.")]
            arrays = ", ".join(f"{p.name.partition('.')[2]} {p.shape}" for p in own)
            number = f"{sum(p.size for p in own):,}" if own else ""
            rows.append((str(i), textwrap.shorten(repr(layer), 78), arrays, number))
        shapes = f"inputs {self.input_shape}, outputs {self.output_shape}"
        return html_table("Model", rows, f"{self.dim:,} parameters, {shapes}")

    def init(
        self,
        seed: checks.Seed = 0,
        chains: int | npt.ArrayLike | None = None,
        *,
        scheme: str = "he",
        dtype: npt.DTypeLike = np.float32,
    ) -> FloatArray:
        """Return random starting parameters.

        Parameters
        ----------
        seed : int, Generator, SeedSequence or None, default 0
            As in :meth:`Sampler.sample`.
        chains : int or array of int, optional
            Number of chains, or their ids (C,); a chain's start depends on its id alone.
        scheme : {"he", "small"}, default "he"
            "he": weights N(0, 2 / fan_in), biases, shifts and thresholds 0, scales of norms 1 (He
            et al. 2015, eq. 10). "small": every parameter N(0, 0.005**2), the start of Izmailov et
            al. (2021).
        dtype : dtype, default float32
            float32 or float64.

        Returns
        -------
        numpy.ndarray
            (dim,), the start of chain 0, or (chains, dim).

        Raises
        ------
        TypeError, ValueError
            If an argument is out of its range.
        """
        name = "Model.init"
        checks.choice(name, "scheme", scheme, ("he", "small"))
        out = normal_starts(name, seed, chains, self.dim, checks.float_dtype(name, dtype))
        for parameter in self.parameters:
            part = out[:, parameter.offset : parameter.offset + parameter.size]
            if scheme == "small":
                part *= _SMALL_SD
            elif parameter.is_weight:
                part *= math.sqrt(2.0 / parameter.fan_in)
            else:
                part[...] = parameter.initial
        return out[0] if chains is None else out

    def unravel(self, theta: FloatArray) -> dict[str, FloatArray]:
        """Return named views of a flat vector; writing to one writes to `theta`.

        Parameters
        ----------
        theta : array
            (dim,), (C, dim) or any other leading axes.

        Returns
        -------
        dict of str to array
            ``{"0.weight": (in, out), "0.bias": (out,), ...}`` after the leading axes of `theta`.

        Raises
        ------
        TypeError, ValueError
            If `theta` is not an array or its last axis is not `dim`.
        """
        shape = getattr(theta, "shape", None)
        if not isinstance(shape, tuple) or not hasattr(theta, "reshape"):
            got = checks.summary(theta)
            raise DTypeError(f"[Model.unravel] expected an array (..., {self.dim}), got {got}")
        checks.unmasked("Model.unravel", "theta", theta)
        dtype: Any = getattr(theta, "dtype", None)
        if getattr(dtype, "kind", "f") not in "biuf" or "complex" in str(dtype):
            got = checks.summary(theta)
            raise DTypeError(f"[Model.unravel] expected an array of real numbers, got {got}")
        if not shape or shape[-1] != self.dim:
            raise ShapeError(f"[Model.unravel] expected shape (..., {self.dim}), got {shape}")
        # Splitting an axis never needs a copy, whatever the strides.
        return {
            p.name: theta[..., p.offset : p.offset + p.size].reshape(shape[:-1] + p.shape)
            for p in self.parameters
        }

    def ravel(self, views: Mapping[str, npt.ArrayLike]) -> FloatArray:
        """Return the flat vector of named arrays, the inverse of `unravel`.

        Parameters
        ----------
        views : mapping of str to array
            One array per parameter, all with the same leading axes and of one dtype.

        Returns
        -------
        numpy.ndarray
            (dim,), or (C, dim) with a leading axis; always a copy.

        Raises
        ------
        TypeError, ValueError
            If names, shapes or dtypes do not match the model.
        """
        given = checks.mapping("Model.ravel", "views", views)
        names = {p.name for p in self.parameters}
        if names != set(given):
            missing, surplus = sorted(names - set(given)), sorted(set(given) - names)
            raise ValueError(
                f"[Model.ravel] expected the names of the model's parameters, "
                f"got {len(given)} names with {missing} missing and {surplus} unknown"
            )
        parts: list[npt.NDArray[Any]] = []
        lead: tuple[int, ...] | None = None
        for p in self.parameters:
            part = checks.numeric("Model.ravel", repr(p.name), given[p.name])
            if (
                part.dtype not in (np.float32, np.float64)
                or part.dtype != (parts or [part])[0].dtype
            ):
                raise DTypeError(
                    f"[Model.ravel] expected {p.name!r} as float32 or float64 like the others, "
                    f"got {checks.summary(part)}"
                )
            split = part.ndim - len(p.shape)
            if split < 0 or part.shape[split:] != p.shape or lead not in (None, part.shape[:split]):
                expected = ", ".join(str(n) for n in ((lead or ()) + p.shape))
                raise ShapeError(
                    f"[Model.ravel] expected {p.name!r} of shape ({expected}), "
                    f"got {checks.summary(part)}"
                )
            lead = part.shape[:split]
            parts.append(part.reshape((*lead, p.size)))
        return np.concatenate(parts, axis=-1)

    def apply(self, theta: FloatArray, x: npt.ArrayLike) -> FloatArray:
        """Return the outputs of the network, without dropout.

        Parameters
        ----------
        theta : numpy.ndarray
            (dim,) or (S, dim), float32 or float64.
        x : array
            Rows ``(N, *input_shape)``, converted to the dtype of `theta`; images (N, H, W, C) of
            uint8 are scaled to [0, 1] while they are read.

        Returns
        -------
        numpy.ndarray
            Outputs (N, K), or (S, N, K), in the dtype of `theta`.

        Raises
        ------
        TypeError, ValueError
            If shapes or dtypes do not fit, or `x` is not finite.
        """
        out: FloatArray = dispatch.outputs("Model.apply", self.network, theta, x, self.dim)
        return out

    @property
    def network(self) -> NetworkTable:
        """Description of the network for a backend."""
        shapes = self.input_shape, self.output_shape
        return NetworkTable(self.table, self.rates, *shapes, self.tokens)

    def from_torch_state_dict(
        self, state_dict: Mapping[str, Any], *, dtype: npt.DTypeLike = np.float32
    ) -> FloatArray:
        """Return the flat vector of a PyTorch module's weights; works without PyTorch.

        Parameters
        ----------
        state_dict : dict of str to torch.Tensor or array
            One array per parameter, of any float dtype and device, in the order of the layers; the
            names do not matter. Shapes are as in `to_torch_state_dict`; gamma, beta and tau of
            `FilterResponseNorm` may also be (1, C, 1, 1) or (1, C, 1).
        dtype : dtype, default float32
            float32 or float64.

        Returns
        -------
        numpy.ndarray
            (dim,).

        Raises
        ------
        TypeError, ValueError
            If an array is missing, left over, not finite or of another shape, or belongs to a batch
            normalisation.

        Notes
        -----
        An `LSTM` has one bias, the sum of PyTorch's two. To convert gradients, pass zeros for one
        of PyTorch's two.

        Examples
        --------
        >>> import numpy as np, ribbit as rb
        >>> model = rb.Model([rb.Dense(3)], input_shape=(2,))
        >>> weights = {"fc.weight": np.array([[0, 1], [2, 3], [4, 5]]), "fc.bias": np.zeros(3)}
        >>> model.from_torch_state_dict(weights)  # or of module.state_dict()
        array([0., 2., 4., 1., 3., 5., 0., 0., 0.], dtype=float32)
        """
        from ribbit.models import torch_weights  # of few programs

        return torch_weights.from_torch(
            "Model.from_torch_state_dict", self, state_dict, dtype=dtype
        )

    def from_torch(
        self, module: torch.nn.Module, example: npt.ArrayLike, *, dtype: npt.DTypeLike = np.float32
    ) -> FloatArray:
        """Return the flat vector of a PyTorch module's weights, checked on a few rows.

        A copy of the module runs on `example`, in float64 and evaluation mode. Weights are taken in
        the order of its calls, or in the order of declaration if only that fits. Then the outputs
        of each layer with weights, and of the whole network, are compared with the model's.

        Parameters
        ----------
        module : torch.nn.Module
            Any module; only its layers with weights are matched. Batch normalisation in evaluation
            mode is merged into the adjacent linear layer or convolution, which needs a bias in the
            model, or into an `Affine` in its place.
        example : array or torch.Tensor
            A few rows (N, ...) in the module's layout (channels first), or in the model's.
        dtype : dtype, default float32
            float32 or float64.

        Returns
        -------
        numpy.ndarray
            (dim,).

        Raises
        ------
        ImportError
            Without torch.
        TypeError, ValueError
            If the weights do not fit (see `from_torch_state_dict`), a module with weights is called
            twice, or batch normalisation is in training mode or has no neighbour. Also if outputs
            differ by more than 1e-4 of the largest; the message names the first such layer.

        Examples
        --------
        >>> import torch, ribbit as rb  # doctest: +SKIP
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 8), torch.nn.ELU(), torch.nn.Linear(8, 1)
        ... )  # doctest: +SKIP
        >>> model = rb.mlp(3, (8,), 1, activation="elu")
        >>> theta = model.from_torch(net, torch.randn(5, 3))  # doctest: +SKIP
        """
        from ribbit.models import torch_modules

        return torch_modules.from_torch("Model.from_torch", self, module, example, dtype)

    def to_torch_state_dict(self, theta: FloatArray) -> dict[str, torch.Tensor]:
        """Return a flat vector as the state dict of a PyTorch module.

        Parameters
        ----------
        theta : numpy.ndarray
            (dim,), float32 or float64.

        Returns
        -------
        dict of str to torch.Tensor
            Copies in the dtype of `theta`, under the names of an ``nn.Sequential`` with one module
            per layer. `Dense`: weight (out, in). `Conv2D`: weight (out, in, kernel height, kernel
            width). `Conv1D`: weight (out, in, kernel size). `LSTM`: weight_ih_l0 (4 units, C),
            weight_hh_l0 (4 units, units), bias_ih_l0 (4 units,), bias_hh_l0 all zeros. `LayerNorm`:
            weight and bias (C,). `FilterResponseNorm`: gamma, beta, tau (C,). `Embedding`: weight.

        Raises
        ------
        ImportError
            Without torch.
        TypeError, ValueError
            If `theta` is not such an array.

        Notes
        -----
        After `Flatten` the inputs of a `Dense` layer have the order of ``nn.Flatten``: images as
        (C, H, W) and sequences as (C, T), but (T, C) after `Embedding` or `LSTM`.
        """
        from ribbit.models import torch_weights

        return torch_weights.to_torch("Model.to_torch_state_dict", self, theta)

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description from which `from_description` rebuilds the model."""
        return {
            "layers": [layers.describe(layer) for layer in self.layers],
            "input_shape": list(self.input_shape),
        }

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Model:
        """Rebuild a model from `describe`.

        Raises
        ------
        TypeError, ValueError
            If the description is not a model's.
        """
        function = "Model.from_description"
        given = checks.mapping(function, "description", description)
        if set(given) != {"layers", "input_shape"} or not isinstance(given["layers"], list):
            raise ValueError(f"[{function}] expected layers and input_shape, got {sorted(given)}")
        stack = [layers.from_description(layer) for layer in given["layers"]]
        return cls(tuple(stack), input_shape=given["input_shape"])


def check(function: str, model: object) -> None:
    """Raise TypeError unless `model` is a Model that the native core can run."""
    if not isinstance(model, Model):
        got = f"{checks.summary(model)}{checks.foreign(model)}"
        raise TypeError(f"[{function}] expected model as a Model, got {got}")
    if type(model).apply is not Model.apply:
        raise TypeError(
            f"[{function}] model of {type(model).__name__} replaces apply, which the native "
            "density does not call: use layers of ribbit, or rb.torch.posterior(module, ...)"
        )


explain(globals())
