"""
Native core of ribbit. Arrays are checked, never converted.
"""

from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
import typing_extensions

__all__: list[str] = [
    "Chains",
    "FunctionFailed",
    "InterruptFlag",
    "Interrupted",
    "LogDensity",
    "PointerDensity",
    "Tuner",
    "WeightSource",
    "accept",
    "available_isas",
    "build_info",
    "codes",
    "draw_weights",
    "drop_blocks",
    "epoch_rows",
    "fill_normal",
    "fill_uniform",
    "fma_peak_gflops",
    "forward",
    "halve_teams",
    "handover_ns",
    "isa",
    "jacobian",
    "kernel_options",
    "kernel_statistics",
    "kinetic_energy",
    "likelihood_constants",
    "mixture_cdf",
    "mixture_crps",
    "mixture_quantiles",
    "num_shortened",
    "num_threads",
    "philox4x32",
    "predictive_moments",
    "prior_constants",
    "put_draw",
    "read_fields",
    "reparameterize",
    "require_memory",
    "resolve_options",
    "rule_moments",
    "scaled_weights",
    "set_num_threads",
    "write_fields",
    "xla_log_density",
]

class InterruptFlag:
    """
    Ends native calls that were given this flag, within 20 ms.
    """
    def __init__(self) -> None: ...
    def ask(self) -> None: ...
    def clear(self) -> None: ...
    def is_asked(self) -> bool: ...
    def is_set(self) -> bool: ...
    def set(self) -> None: ...

class Interrupted(Exception):
    pass

class LogDensity:
    """
    The log posterior of a network on data.
    """
    def __init__(
        self,
        table: typing.Any,
        rates: typing.Any,
        prior: typing.Any,
        kind: typing.SupportsInt | typing.SupportsIndex,
        noise_scales: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex],
        shape: typing.SupportsFloat | typing.SupportsIndex,
        x: typing.Any,
        y: typing.Any,
        temperature: typing.SupportsFloat | typing.SupportsIndex,
        likelihood_temperature: typing.SupportsFloat | typing.SupportsIndex,
        masks: bool = False,
        concrete: bool = False,
        centre: typing.Any = None,
        last: typing.Any = None,
        scales: typing.Any = None,
        weights: typing.Any = None,
    ) -> None: ...
    def advance(
        self,
        position: typing.Any,
        first: typing.Any,
        second: typing.Any,
        seed: typing.SupportsInt | typing.SupportsIndex,
        chains: typing.Any,
        first_step: typing.SupportsInt | typing.SupportsIndex,
        batch_size: typing.SupportsInt | typing.SupportsIndex,
        step_size: typing.Any,
        noise: typing.Any,
        rule: typing.SupportsInt | typing.SupportsIndex,
        prior: typing.SupportsFloat | typing.SupportsIndex,
        friction: typing.SupportsFloat | typing.SupportsIndex,
        previous: typing.SupportsFloat | typing.SupportsIndex,
        decay1: typing.SupportsFloat | typing.SupportsIndex,
        decay2: typing.SupportsFloat | typing.SupportsIndex,
        epsilon: typing.SupportsFloat | typing.SupportsIndex,
        adapt_until: typing.SupportsInt | typing.SupportsIndex,
        interrupt: InterruptFlag | None = None,
        keep: typing.Any = None,
        kept: typing.Any = None,
    ) -> tuple[
        numpy.typing.NDArray[numpy.float32 | numpy.float64],
        typing.Any,
        typing.Any,
        numpy.typing.NDArray[numpy.int64],
        numpy.typing.NDArray[numpy.float64],
    ]: ...
    def advance_variational(
        self,
        state: typing.Any,
        seed: typing.SupportsInt | typing.SupportsIndex,
        first_step: typing.SupportsInt | typing.SupportsIndex,
        batch_size: typing.SupportsInt | typing.SupportsIndex,
        num_samples: typing.SupportsInt | typing.SupportsIndex,
        estimator: typing.SupportsInt | typing.SupportsIndex,
        closed: bool,
        step_size: typing.Any,
        kl_weight: typing.Any,
        decay1: typing.SupportsFloat | typing.SupportsIndex,
        decay2: typing.SupportsFloat | typing.SupportsIndex,
        epsilon: typing.SupportsFloat | typing.SupportsIndex,
        interrupt: InterruptFlag | None = None,
    ) -> tuple[
        numpy.typing.NDArray[numpy.float32 | numpy.float64],
        numpy.typing.NDArray[numpy.float64],
        int,
        float,
    ]: ...
    def complete(
        self,
        theta: typing.Any,
        seed: typing.SupportsInt | typing.SupportsIndex,
        step: typing.SupportsInt | typing.SupportsIndex,
        chains: typing.Any,
        interrupt: InterruptFlag | None = None,
    ) -> numpy.typing.NDArray[numpy.float32 | numpy.float64]: ...
    def isokinetic(
        self,
        position: typing.Any,
        velocity: typing.Any,
        grad: typing.Any,
        terms: typing.Any,
        seed: typing.SupportsInt | typing.SupportsIndex,
        chains: typing.Any,
        first_step: typing.SupportsInt | typing.SupportsIndex,
        integrator: typing.SupportsInt | typing.SupportsIndex,
        step_size: typing.Any,
        decoherence_length: typing.Any,
        num_steps: typing.Any,
        scale: typing.Any = None,
        blocks: typing.Any = None,
        mixing: typing.Any = None,
        turns: bool = True,
        interrupt: InterruptFlag | None = None,
    ) -> tuple[
        numpy.typing.NDArray[numpy.float32 | numpy.float64],
        numpy.typing.NDArray[numpy.float32 | numpy.float64],
        numpy.typing.NDArray[numpy.float32 | numpy.float64],
        numpy.typing.NDArray[numpy.float64],
        numpy.typing.NDArray[numpy.float64],
        numpy.typing.NDArray[numpy.float64],
    ]: ...
    def join(
        self,
        group: typing.Any,
        shards: typing.SupportsInt | typing.SupportsIndex,
        rows: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def leapfrog(
        self,
        position: typing.Any,
        momentum: typing.Any,
        grad: typing.Any,
        step_size: typing.Any,
        num_steps: typing.Any,
        inverse_mass: typing.Any = None,
        interrupt: InterruptFlag | None = None,
    ) -> tuple[
        numpy.typing.NDArray[numpy.float32 | numpy.float64],
        numpy.typing.NDArray[numpy.float32 | numpy.float64],
        numpy.typing.NDArray[numpy.float64],
        numpy.typing.NDArray[numpy.float64],
        numpy.typing.NDArray[numpy.float32 | numpy.float64],
        numpy.typing.NDArray[numpy.int64],
    ]: ...
    def masked_value_and_grad(
        self,
        theta: typing.Any,
        rows: typing.Any,
        seed: typing.SupportsInt | typing.SupportsIndex,
        step: typing.SupportsInt | typing.SupportsIndex,
        sample: typing.SupportsInt | typing.SupportsIndex = 0,
        interrupt: InterruptFlag | None = None,
    ) -> tuple[
        numpy.typing.NDArray[numpy.float64],
        numpy.typing.NDArray[numpy.float64],
        numpy.typing.NDArray[numpy.float32 | numpy.float64],
    ]: ...
    def set_shards(self, shards: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def value(
        self, theta: typing.Any, rows: typing.Any = None, interrupt: InterruptFlag | None = None
    ) -> tuple[numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.float64]]: ...
    def value_and_grad(
        self, theta: typing.Any, rows: typing.Any = None, interrupt: InterruptFlag | None = None
    ) -> tuple[
        numpy.typing.NDArray[numpy.float64],
        numpy.typing.NDArray[numpy.float64],
        numpy.typing.NDArray[numpy.float32 | numpy.float64],
    ]: ...
    @property
    def dim(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def xla_number(self) -> int: ...

class WeightSource:
    """
    Where the weights and masks of samples come from.
    """
    @staticmethod
    def drawn(
        mean: typing.Any,
        scale: typing.Any,
        seed: typing.SupportsInt | typing.SupportsIndex,
        scales: typing.Any = None,
    ) -> WeightSource: ...
    @staticmethod
    def masked(
        theta: typing.Any,
        seed: typing.SupportsInt | typing.SupportsIndex,
        shared: bool,
        first_row: typing.SupportsInt | typing.SupportsIndex,
    ) -> WeightSource: ...
    @staticmethod
    def stored(theta: typing.Any, scales: typing.Any = None) -> WeightSource: ...

class PointerDensity:
    """
    A log density behind a C function pointer.
    """
    def __init__(
        self,
        address: typing.SupportsInt | typing.SupportsIndex,
        dim: typing.SupportsInt | typing.SupportsIndex,
        user_data: typing.SupportsInt | typing.SupportsIndex = 0,
        threadsafe: bool = False,
    ) -> None: ...
    def value_and_grad(
        self, theta: typing.Any, interrupt: InterruptFlag | None = None
    ) -> tuple[numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.float64]]: ...
    @property
    def dim(self) -> int: ...

class FunctionFailed(ValueError):
    pass

class Chains:
    """
    Chains of a sampler on a density.
    """
    def __init__(
        self,
        target: typing.Any,
        kernel: str,
        options: dict[str, typing.Any],
        *,
        facts: dict[str, typing.Any],
        seed: typing.SupportsInt | typing.SupportsIndex,
        chains: typing.Any,
        warmup: typing.SupportsInt | typing.SupportsIndex,
        thinning: tuple[
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
        ],
        save_warmup: bool,
        fingerprint: dict[str, typing.Any],
        bytes: typing.Any = None,
    ) -> None: ...
    def advance(
        self,
        most: typing.SupportsInt | typing.SupportsIndex,
        seconds: typing.SupportsFloat | typing.SupportsIndex,
        interrupt: InterruptFlag | None = None,
    ) -> tuple[typing.Any, ...]: ...
    def position(self, interrupt: InterruptFlag | None = None) -> typing.Any: ...
    def save(self) -> bytes: ...
    def start(self, position: typing.Any, interrupt: InterruptFlag | None = None) -> None: ...
    def summary(self) -> dict[str, typing.Any]: ...
    @property
    def full_dim(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def warming_up(self) -> bool: ...

class Tuner:
    """
    Step sizes, lengths and windows of HMC and NUTS, for chains in Python.
    """
    def __init__(
        self,
        kernel: str,
        options: dict[str, typing.Any],
        facts: dict[str, typing.Any],
        seed: typing.SupportsInt | typing.SupportsIndex,
        chains: typing.Any,
        warmup: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def begin(self, step_size: typing.Any, renewed: bool = False) -> None: ...
    def check_warmup(self) -> None: ...
    def closes(self, done: typing.SupportsInt | typing.SupportsIndex) -> bool: ...
    def collects(self, done: typing.SupportsInt | typing.SupportsIndex) -> bool: ...
    def end_warmup(self) -> None: ...
    def fields(self) -> dict[str, typing.Any]: ...
    def load(
        self,
        fields: dict[str, typing.Any],
        step: typing.SupportsInt | typing.SupportsIndex,
        inverse_mass: typing.Any,
    ) -> None: ...
    def observe(
        self, step: typing.SupportsInt | typing.SupportsIndex, acceptance: typing.Any
    ) -> None: ...
    def plan(self, step: typing.SupportsInt | typing.SupportsIndex) -> tuple[typing.Any, ...]: ...
    @property
    def adapts_mass(self) -> bool: ...
    @property
    def brief_until(self) -> int: ...
    @property
    def divergence_threshold(self) -> float: ...
    @property
    def finds_step(self) -> bool: ...
    @property
    def first_try(self) -> float: ...
    @property
    def inverse_mass(self) -> typing.Any: ...
    @property
    def num_steps(self) -> numpy.typing.NDArray[numpy.int64]: ...

def accept(
    energy_error: typing.Any,
    seed: typing.SupportsInt | typing.SupportsIndex,
    step: typing.SupportsInt | typing.SupportsIndex,
    chains: typing.Any,
) -> tuple[numpy.typing.NDArray[numpy.bool], numpy.typing.NDArray[numpy.float64]]: ...
def available_isas() -> list[str]: ...
def build_info() -> dict[str, typing.Any]: ...
def codes() -> dict[str, dict[str, int]]:
    """
    Tables of numbers by name, by the name of the table.
    """

def draw_weights(
    mean: typing.Any,
    scale: typing.Any,
    seed: typing.SupportsInt | typing.SupportsIndex,
    samples: typing.SupportsInt | typing.SupportsIndex,
) -> numpy.typing.NDArray[numpy.float32 | numpy.float64]: ...
def drop_blocks() -> int:
    """
    Hands large blocks of memory that are kept to the system; bytes.
    """

def epoch_rows(
    rows: typing.SupportsInt | typing.SupportsIndex,
    seed: typing.SupportsInt | typing.SupportsIndex,
    chain: typing.SupportsInt | typing.SupportsIndex,
    epoch: typing.SupportsInt | typing.SupportsIndex,
    begin: typing.SupportsInt | typing.SupportsIndex,
    count: typing.SupportsInt | typing.SupportsIndex,
) -> numpy.typing.NDArray[numpy.int64]: ...
def fill_normal(
    out: typing.Any,
    seed: typing.SupportsInt | typing.SupportsIndex,
    step: typing.SupportsInt | typing.SupportsIndex,
    chains: typing.Any,
    purpose: typing.SupportsInt | typing.SupportsIndex,
    layer: typing.SupportsInt | typing.SupportsIndex = 0,
) -> None: ...
def fill_uniform(
    out: typing.Any,
    seed: typing.SupportsInt | typing.SupportsIndex,
    step: typing.SupportsInt | typing.SupportsIndex,
    chains: typing.Any,
    purpose: typing.SupportsInt | typing.SupportsIndex,
    layer: typing.SupportsInt | typing.SupportsIndex = 0,
) -> None: ...
def fma_peak_gflops(
    seconds: typing.SupportsFloat | typing.SupportsIndex,
    bits: typing.SupportsInt | typing.SupportsIndex,
) -> float: ...
def forward(
    table: typing.Any,
    rates: typing.Any,
    source: WeightSource,
    first: typing.SupportsInt | typing.SupportsIndex,
    samples: typing.SupportsInt | typing.SupportsIndex,
    x: typing.Any,
    noises: typing.SupportsInt | typing.SupportsIndex = 0,
) -> tuple[
    numpy.typing.NDArray[numpy.float32 | numpy.float64],
    numpy.typing.NDArray[numpy.float32 | numpy.float64],
]: ...
def halve_teams(barriers: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    Teams of threads halve after every so many barriers; 0: where threads come late.
    """

def handover_ns() -> float: ...
def isa() -> str: ...
def jacobian(
    table: typing.Any,
    rates: typing.Any,
    theta: typing.Any,
    x: typing.Any,
    interrupt: InterruptFlag | None = None,
) -> tuple[
    numpy.typing.NDArray[numpy.float32 | numpy.float64],
    numpy.typing.NDArray[numpy.float32 | numpy.float64],
]: ...
def kernel_options() -> list[typing.Any]:
    """
    Return the options of all kernels: dicts with kernel, name, type, default, must_be and documentation.
    """

def kernel_statistics(kernel: str, counts: bool) -> dict[str, typing.Any]:
    """
    Return the dtypes of a kernel's statistics by name. counts: the run is thinned.
    """

def kinetic_energy(
    momentum: typing.Any, inverse_mass: typing.Any = None
) -> numpy.typing.NDArray[numpy.float64]: ...
def likelihood_constants(
    kind: typing.SupportsInt | typing.SupportsIndex,
    scale: typing.SupportsFloat | typing.SupportsIndex,
    shape: typing.SupportsFloat | typing.SupportsIndex,
) -> tuple[float, float, float, float]: ...
def mixture_cdf(
    values: typing.Any,
    widths: typing.Any,
    df: typing.SupportsFloat | typing.SupportsIndex,
    y: typing.Any,
) -> numpy.typing.NDArray[numpy.float64]: ...
def mixture_crps(
    values: typing.Any,
    widths: typing.Any,
    df: typing.SupportsFloat | typing.SupportsIndex,
    y: typing.Any,
) -> numpy.typing.NDArray[numpy.float64]: ...
def mixture_quantiles(
    values: typing.Any,
    widths: typing.Any,
    df: typing.SupportsFloat | typing.SupportsIndex,
    levels: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex],
) -> numpy.typing.NDArray[numpy.float64]: ...
def num_shortened(
    options: dict[str, typing.Any], facts: dict[str, typing.Any], step_size: typing.Any
) -> int:
    """
    Return how many of these step sizes (n,) have trajectories that a limit of HMC shortens.
    """

def num_threads() -> int: ...
def philox4x32(counters: typing.Any, key: typing.Any) -> numpy.typing.NDArray[numpy.uint32]: ...
def predictive_moments(
    table: typing.Any,
    rates: typing.Any,
    source: WeightSource,
    kind: typing.SupportsInt | typing.SupportsIndex,
    scales: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex],
    shape: typing.SupportsFloat | typing.SupportsIndex,
    samples: typing.SupportsInt | typing.SupportsIndex,
    x: typing.Any,
) -> tuple[
    numpy.typing.NDArray[numpy.float64],
    numpy.typing.NDArray[numpy.float64],
    numpy.typing.NDArray[numpy.float64],
    numpy.typing.NDArray[numpy.float64],
]: ...
def prior_constants(prior: typing.Any) -> numpy.typing.NDArray[numpy.float64]: ...
def put_draw(
    draws: typing.Any, index: typing.SupportsInt | typing.SupportsIndex, position: typing.Any
) -> None: ...
def read_fields(bytes: bytes) -> dict[str, typing.Any]:
    """
    Return the fields in the bytes of chains by name: ints, texts, and read-only arrays.
    """

def reparameterize(
    mean: typing.Any,
    rho: typing.Any,
    samples: typing.SupportsInt | typing.SupportsIndex,
    seed: typing.SupportsInt | typing.SupportsIndex,
    step: typing.SupportsInt | typing.SupportsIndex = 0,
) -> numpy.typing.NDArray[numpy.float32 | numpy.float64]: ...
def require_memory(bytes: typing.SupportsInt | typing.SupportsIndex, what: str) -> None: ...
def resolve_options(
    kernel: str, options: dict[str, typing.Any], facts: dict[str, typing.Any]
) -> dict[str, typing.Any]:
    """
    Return the values of all options of a kernel on a target with these facts.
    """

def rule_moments() -> dict[str, int]:
    """
    Arrays of moments that each rule of stochastic gradients needs, by its name.
    """

def scaled_weights(
    theta: typing.Any, scales: typing.Any
) -> numpy.typing.NDArray[numpy.float32 | numpy.float64]: ...
def set_num_threads(n: typing.SupportsInt | typing.SupportsIndex) -> None: ...
def write_fields(fields: dict[str, typing.Any]) -> bytes:
    """
    Return the bytes of chains with these fields.
    """

def xla_log_density() -> typing_extensions.CapsuleType:
    """
    The handler of XLA programs, as jax.ffi.register_ffi_target takes it.
    """
