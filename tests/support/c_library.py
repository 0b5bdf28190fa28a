"""The C library through ctypes, as another language would call it.

Handles of a Posterior are made from its layer table, so that the same network is asked twice: by
the native module and by ``libribbit``.
"""

import ctypes as c
import os
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from ribbit._backends.codes import COLUMNS, number_of

# RIBBIT_C_LIBRARY: another one, such as one under a sanitizer.
LIBRARY = os.environ.get(
    "RIBBIT_C_LIBRARY", str(Path(rb.get_cmake_dir()).parents[1] / "libribbit.so.1")
)
DENSITY = c.CFUNCTYPE(
    c.c_int,
    c.c_size_t,
    c.POINTER(c.c_double),
    c.POINTER(c.c_double),
    c.POINTER(c.c_double),
    c.c_void_p,
)


class Layer(c.Structure):
    """``ribbit_layer``."""

    _fields_ = (
        *((name, c.c_int64) for name in ("op", "in_size", "out_size", "weight", "bias", "third")),
        *((name, c.c_int64) for name in ("argument", "index", "input", "second")),
        *((name, c.c_int64) for name in ("height", "width", "channels")),
        *((name, c.c_int64) for name in ("kernel_height", "kernel_width")),
        *((name, c.c_int64) for name in ("stride_height", "stride_width", "pad_top", "pad_left")),
        *((name, c.c_int64) for name in ("out_height", "out_width", "out_channels")),
        *((name, c.c_int64) for name in ("dilation_height", "dilation_width")),
        ("number", c.c_double),
        ("rate", c.c_double),
    )


class Prior(c.Structure):
    """``ribbit_prior``."""

    _fields_ = (
        *((name, c.c_int64) for name in ("offset", "size", "kind")),
        *((name, c.c_double) for name in "abc"),
    )


class PosteriorOptions(c.Structure):
    """``ribbit_posterior_options``."""

    _fields_ = (
        ("size", c.c_size_t),
        ("dtype", c.c_int32),
        ("likelihood", c.c_int32),
        *((name, c.c_double) for name in ("scale", "shape", "temperature")),
        ("likelihood_temperature", c.c_double),
        ("prior", c.POINTER(Prior)),
        ("num_prior", c.c_int64),
        ("centre", c.c_void_p),
        ("num_scales", c.c_int64),
        ("scales", c.c_void_p),
        ("marginalize", c.c_int32),
        ("reserved", c.c_int32),
    )


class Progress(c.Structure):
    """``ribbit_progress`` of ``ribbit_sgld``."""

    _fields_ = (
        ("size", c.c_size_t),
        *((name, c.c_int64) for name in ("done", "total", "divergences")),
        ("acceptance_rate", c.c_double),
    )


PROGRESS = c.CFUNCTYPE(c.c_int, c.POINTER(Progress), c.c_void_p)


class Option(c.Structure):
    """``ribbit_option``."""

    _fields_ = (
        ("name", c.c_char_p),
        ("text", c.c_char_p),
        ("numbers", c.c_void_p),
        ("count", c.c_int64),
    )


INFO = ("kernel", "name", "default_value", "must_be", "documentation")


class OptionInfo(c.Structure):
    """``ribbit_option_info``."""

    _fields_ = tuple((name, c.c_char_p) for name in INFO)


class RunOptions(c.Structure):
    """``ribbit_run_options``."""

    _fields_ = (
        ("size", c.c_size_t),
        ("seed", c.c_uint64),
        ("chains", c.c_int64),
        ("chain_ids", c.c_void_p),
        ("warmup", c.c_int64),
        ("thin", c.c_int64),
        ("save_warmup", c.c_int32),
        ("reserved", c.c_int32),
    )


class StatisticInfo(c.Structure):
    """``ribbit_statistic_info``."""

    _fields_ = (("name", c.c_char_p), ("dtype", c.c_int32))


class Summary(c.Structure):
    """``ribbit_summary``."""

    _fields_ = (
        ("size", c.c_size_t),
        ("chains", c.c_int64),
        ("step", c.c_int64),
        ("warming_up", c.c_int32),
        ("reserved", c.c_int32),
        ("divergences", c.c_int64),
        ("gradients", c.c_int64),
        ("acceptance_rate", c.c_double),
        ("step_size", c.c_double),
    )


class SGLDOptions(c.Structure):
    """``ribbit_sgld_options``."""

    _fields_ = (
        ("size", c.c_size_t),
        ("seed", c.c_uint64),
        ("chains", c.c_int64),
        ("chain_ids", c.c_void_p),
        ("first_step", c.c_uint64),
        *((name, c.c_int64) for name in ("warmup", "draws", "thin")),
        ("step_size", c.c_double),
        ("factors", c.c_void_p),
        ("batch_rows", c.c_int64),
        ("progress", PROGRESS),
        ("user", c.c_void_p),
        ("interrupt", c.c_void_p),
    )


LIB = c.CDLL(LIBRARY)
_P, _I64, _INT, _PP = c.c_void_p, c.c_int64, c.c_int, c.POINTER(c.c_void_p)
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "last_error": (c.c_char_p,),
    "version": (c.c_char_p,),
    "abi_version": (_INT,),
    "instruction_set": (c.c_char_p,),
    "num_threads": (_INT,),
    "set_num_threads": (_INT, _INT),
    "interrupt_create": (_INT, _PP),
    "interrupt_free": (None, _P),
    "interrupt_set": (None, _P),
    "interrupt_clear": (None, _P),
    "layer_init": (_INT, _P, c.c_size_t),
    "network_create": (_INT, _P, _I64, c.c_size_t, _PP),
    "network_create_mlp": (_INT, _I64, _P, _I64, _I64, _INT, _PP),
    "network_create_json": (_INT, c.c_char_p, _PP),
    "network_free": (None, _P),
    "network_dim": (_I64, _P),
    "network_inputs": (_I64, _P),
    "network_outputs": (_I64, _P),
    "network_apply": (_INT, _P, _INT, _P, _I64, _P, _I64, _P, _P),
    "posterior_options_init": (_INT, _P, c.c_size_t),
    "target_create_posterior": (_INT, _P, _P, _P, _P, _I64, _PP),
    "target_create_json": (_INT, c.c_char_p, _INT, _P, _P, _I64, _PP),
    "target_create_function": (_INT, DENSITY, _I64, _P, _INT, _PP),
    "target_free": (None, _P),
    "target_dim": (_I64, _P),
    "target_dtype": (_INT, _P),
    "target_start": (_INT, _P, c.c_uint64, _P, _I64, _P),
    "value_and_grad": (_INT, _P, _P, _I64, _P, _I64, _P, _P, _P),
    "leapfrog": (_INT, _P, _I64, _P, _P, _P, _P, _P, _P, _P, _P),
    "kernel_option": (_INT, _I64, _P),
    "run_options_init": (_INT, _P, c.c_size_t),
    "chains_create": (_INT, _P, c.c_char_p, _P, _I64, _P, _PP),
    "chains_load": (_INT, _P, c.c_char_p, _P, _I64, _P, c.c_char_p, c.c_size_t, _PP),
    "chains_free": (None, _P),
    "chains_start": (_INT, _P, _P, _P),
    "chains_advance": (_INT, _P, _I64, c.c_double, _P, _I64, _P, _P),
    "chains_statistic": (_INT, _P, c.c_char_p, _P, _I64),
    "chains_statistic_info": (_INT, _P, _I64, _P),
    "chains_position": (_INT, _P, _P),
    "chains_summary": (_INT, _P, _P),
    "chains_save": (_INT, _P, _P, _P),
    "sgld_options_init": (_INT, _P, c.c_size_t),
    "sgld": (_INT, _P, _P, _P, _P, _P),
    "predict": (_INT, _P, _P, _I64, _I64, _P, _I64, _P, _P, _P, _P),
}
for _name, (_result, *_arguments) in _PROTOTYPES.items():
    _function = getattr(LIB, f"ribbit_{_name}")
    _function.restype, _function.argtypes = _result, _arguments


class CError(Exception):
    """A status that is not RIBBIT_OK, with its message."""

    def __init__(self, status: int) -> None:
        super().__init__(LIB.ribbit_last_error().decode())
        self.status = status


def call(name: str, *arguments: Any) -> None:
    """Call ``ribbit_<name>``; arrays stand for their addresses."""
    status = getattr(LIB, f"ribbit_{name}")(*(_given(a) for a in arguments))
    if status != 0:
        error = CError(status)
        assert str(error).startswith(f"[ribbit_{name}] "), error
        raise error


def _given(argument: Any) -> Any:
    return argument.ctypes.data if isinstance(argument, np.ndarray) else argument


def options(kind: type[c.Structure], **members: Any) -> Any:
    """Return a struct of options with its defaults, then `members`."""
    made = kind()
    name = {PosteriorOptions: "posterior", RunOptions: "run", SGLDOptions: "sgld"}[kind]
    call(f"{name}_options_init", c.byref(made), c.sizeof(kind))
    for key, value in members.items():
        setattr(made, key, _given(value))
    return made


class Handle:
    """Something with a ``..._free``; what it points into is kept alive."""

    def __init__(self, kind: str, create: str, *arguments: Any) -> None:
        self.value, self.kind, self.kept = c.c_void_p(), kind, arguments
        call(create, *arguments, c.byref(self.value))

    def __del__(self) -> None:
        getattr(LIB, f"ribbit_{self.kind}_free")(self.value)


def layers_of(table: Any, rates: Any) -> Any:
    """Return the rows of a layer table as an array of ``ribbit_layer``."""
    rows = (Layer * len(table))()
    for row, columns, rate in zip(rows, table, rates, strict=True):
        call("layer_init", c.byref(row), c.sizeof(Layer))
        for name, value in zip(COLUMNS, columns, strict=True):
            setattr(row, name, number_of(value) if name == "number" else value)
        row.rate = rate
    return rows


def network(model: rb.Model) -> Handle:
    """Return a network of the same layer table."""
    rows = layers_of(model.table, model.rates)
    return Handle("network", "network_create", rows, len(rows), c.sizeof(Layer))


def posterior(target: rb.Posterior) -> Handle:
    """Return a target of the same tables and data."""
    spec = target._spec
    table = spec.likelihood._table("c_library", spec.model.output_shape)
    prior = (Prior * len(spec.table.rows))(
        *(Prior(*map(int, row[:3]), *row[3:]) for row in spec.table.rows)
    )
    centre, scales = spec.centre(), np.array(table.scales)
    given = options(
        PosteriorOptions,
        dtype=int(spec.dtype == np.float64),
        likelihood=table.kind,
        scale=table.scales[0],
        shape=table.constant,
        temperature=spec.temperature,
        likelihood_temperature=spec.likelihood_temperature,
        prior=prior,
        num_prior=len(prior),
        num_scales=len(scales),
        scales=scales.ctypes.data,
    )
    if centre is not None:
        given.centre = centre.ctypes.data
    net = network(spec.model)
    arguments = net.value, c.byref(given), spec.x, spec.y, spec.num_rows
    made = Handle("target", "target_create_posterior", *arguments)
    made.kept = (spec, centre, prior, scales)
    return made


def option_table() -> list[dict[str, str]]:
    """Return the table of the options of all kernels."""
    rows: list[dict[str, str]] = []
    while True:
        row = OptionInfo()
        try:
            call("kernel_option", len(rows), c.byref(row))
        except CError:
            return rows
        rows.append({name: getattr(row, name).decode() for name in INFO})


def kernel_options(given: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return options of a kernel as an array of ``ribbit_option``, and the memory that it uses."""
    rows, kept = (Option * len(given))(), []
    for row, (name, value) in zip(rows, given.items(), strict=True):
        row.name = name.encode()
        if isinstance(value, str | None):
            row.text = str(value).encode()
        else:
            numbers = np.atleast_1d(np.array(value, np.float64))
            row.numbers, row.count = numbers.ctypes.data, numbers.size
            kept.append(numbers)
    return rows, kept


class Chains:
    """``ribbit_chains`` of a kernel, new or from saved bytes; `run`: of ``ribbit_run_options``."""

    def __init__(
        self,
        target: Handle,
        kernel: str,
        given: dict[str, Any] | None = None,
        *,
        saved: bytes | None = None,
        **run: Any,
    ) -> None:
        rows, kept = kernel_options(given or {})
        how = options(RunOptions, **run)
        common = target.value, kernel.encode(), rows, len(rows), c.byref(how)
        if saved is None:
            self.handle = Handle("chains", "chains_create", *common)
        else:
            self.handle = Handle("chains", "chains_load", *common, saved, len(saved))
        # The target must outlive the chains, which copy everything else.
        self.handle.kept = (target,)
        del rows, kept, how
        self.value, self.chains = self.handle.value, run.get("chains", 1)
        self.dim = LIB.ribbit_target_dim(target.value)
        self.dtype = (np.float32, np.float64)[LIB.ribbit_target_dtype(target.value)]

    def start(self, position: Any = None, interrupt: Any = None) -> "Chains":
        """Start at positions (C, P), or at the target's own."""
        call("chains_start", self.value, position, interrupt)
        return self

    def advance(self, most: int, seconds: float = np.inf, interrupt: Any = None) -> Any:
        """Return draws (C, K, P) and statistics (C, K) of one call."""
        draws, count = np.zeros((self.chains, most, self.dim), self.dtype), c.c_int64(-1)
        arguments = most, seconds, draws, most, c.byref(count), interrupt
        call("chains_advance", self.value, *arguments)
        made = count.value
        return draws[:, :made], {name: self.statistic(name, made) for name in self.statistics()}

    def statistics(self) -> dict[str, str]:
        """Return the code of the dtype of each statistic."""
        found: dict[str, str] = {}
        while True:
            row = StatisticInfo()
            try:
                call("chains_statistic_info", self.value, len(found), c.byref(row))
            except CError:
                return found
            found[row.name.decode()] = chr(row.dtype)

    def statistic(self, name: str, count: int) -> Any:
        """Return a statistic (C, K) of the last call."""
        out = np.zeros((self.chains, count), self.statistics()[name])
        call("chains_statistic", self.value, name.encode(), out, count)
        return out

    def sample(self, draws: int, seconds: float = np.inf) -> Any:
        """Return draws (C, D, P) and statistics (C, D) of as many calls as they need."""
        parts: list[Any] = []
        while (more := draws - sum(part[0].shape[1] for part in parts)) > 0:
            parts.append(self.advance(more, seconds))
        positions = np.concatenate([part[0] for part in parts], axis=1)
        names = self.statistics()
        return positions, {n: np.concatenate([p[1][n] for p in parts], axis=1) for n in names}

    def position(self) -> Any:
        """Return the positions (C, P)."""
        out = np.zeros((self.chains, self.dim), self.dtype)
        call("chains_position", self.value, out)
        return out

    def summary(self) -> Summary:
        """Return the counts of the run."""
        found = Summary(size=c.sizeof(Summary))
        call("chains_summary", self.value, c.byref(found))
        return found

    def save(self) -> bytes:
        """Return the chains as bytes."""
        size = c.c_size_t()
        call("chains_save", self.value, None, c.byref(size))
        room = c.create_string_buffer(size.value)
        call("chains_save", self.value, room, c.byref(size))
        return room.raw[: size.value]


def sample(
    target: Handle,
    kernel: str,
    start: Any,
    draws: int,
    given: dict[str, Any] | None = None,
    **run: Any,
) -> tuple[Any, dict[str, Any], Chains]:
    """Return draws (C, D, P), statistics (C, D) and the chains of a run."""
    chains = Chains(target, kernel, given, chains=len(start), **run)
    return *chains.start(start).sample(draws), chains


def sgld(target: Handle, start: Any, draws: int, **members: Any) -> tuple[Any, Any, int]:
    """Return draws (C, D, P), last positions and steps of a run; it must end."""
    chains, dim = start.shape
    position, made = start.copy(), c.c_int64()
    kept = np.empty((chains, draws, dim), start.dtype)
    given = options(SGLDOptions, chains=chains, draws=draws, **members)
    call("sgld", target.value, c.byref(given), position, kept, c.byref(made))
    return kept, position, made.value
