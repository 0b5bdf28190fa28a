"""TF32 products by NVIDIA's cuBLASLt, an optional library, through ctypes.

A product is D (m, n) = f(A (m, k) B (k, n) + bias) for every batch, its matrices by rows without
gaps, f the identity or ReLU. The library counts by columns: what it is given is D' = B' A', of the
same memory.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from ribbit._arrays.device import PRODUCT_LAYOUT, WORKSPACE_BYTES

__all__ = ["CONSTANTS", "CublasLt", "find", "version"]

# Of cublasLt.h, cublas_api.h and library_types.h.
CONSTANTS = {
    "CUDA_R_32F": 0,
    "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
    "CUBLAS_STATUS_SUCCESS": 0,
    "CUBLAS_STATUS_INVALID_VALUE": 7,
    "CUBLAS_STATUS_NOT_SUPPORTED": 15,
    "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT": 5,
    "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": 6,
    "CUBLASLT_MATMUL_DESC_EPILOGUE": 7,
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER": 8,
    "CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE": 10,
    "CUBLASLT_EPILOGUE_DEFAULT": 1,
    "CUBLASLT_EPILOGUE_RELU": 2,
    "CUBLASLT_EPILOGUE_BIAS": 4,
    "CUBLASLT_EPILOGUE_RELU_BIAS": 6,
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": 1,
    "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK": 3,
    "CUBLASLT_REDUCTION_SCHEME_NONE": 0,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES": 5,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES": 6,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES": 7,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES": 8,
}
# Statuses of no algorithm for a product, and of one that does not fit; any other is a failure.
_UNKNOWN = (CONSTANTS["CUBLAS_STATUS_NOT_SUPPORTED"],)
_UNFIT = (*_UNKNOWN, CONSTANTS["CUBLAS_STATUS_INVALID_VALUE"])
_WAY_ROUND = "use precision 'float32', or ribbit without the library"
_ALIGNED = 16  # bytes
# Rows that an algorithm is chosen for, whatever their number, so that it is the same for any.
_NOMINAL = 2048
_PROBED = 8  # rows of a probe
_ASKED = 8  # algorithms of a question


class _Algorithm(ctypes.Structure):
    _fields_ = [("data", c_uint64 * 8)]


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "Create": (POINTER(c_void_p),),
    "Destroy": (c_void_p,),
    "MatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "MatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulDescDestroy": (c_void_p,),
    "MatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "MatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatrixLayoutDestroy": (c_void_p,),
    "MatmulPreferenceCreate": (POINTER(c_void_p),),
    "MatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulPreferenceDestroy": (c_void_p,),
    "MatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, POINTER(_Found), POINTER(c_int)),
    "MatmulAlgoCheck": (*[c_void_p] * 6, POINTER(_Algorithm), POINTER(_Found)),
    "Matmul": (
        *(c_void_p, c_void_p, POINTER(c_float), *[c_void_p] * 4, POINTER(c_float), *[c_void_p] * 4),
        *(POINTER(_Algorithm), c_void_p, c_size_t, c_void_p),
    ),
}


class _Kind(NamedTuple):
    """What a product's name says; see `device.product_name`."""

    n: int
    k: int
    relu: int
    bias: int


_Strides: TypeAlias = tuple[int, int, int]  # of A, B and D from batch to batch


class _Given(NamedTuple):
    """Members of a launch, in the order of `device.PRODUCT_LAYOUT`: addresses, numbers."""

    a: int
    a_stride: int
    b: int
    b_stride: int
    bias: int
    bias_stride: int
    value: int
    value_stride: int
    rows: int
    workspace: int
    workspace_bytes: int

    @property
    def strides(self) -> _Strides:
        return self.a_stride, self.b_stride, self.value_stride


def find() -> str | None:
    """Return the path of the library that CuPy's loader finds, None for none.

    Raises
    ------
    RuntimeError
        When it finds one that does not load.
    """
    try:
        from cuda import pathfinder
    except ImportError:
        return None
    try:
        path: str = pathfinder.load_nvidia_dynamic_lib("cublasLt").abs_path
    except pathfinder.DynamicLibNotFoundError:  # a RuntimeError, too
        return None
    except (RuntimeError, OSError) as error:
        raise _unloadable("that CuPy's loader finds", error) from error
    return path


def version() -> str:
    """Return the version of the library that is found, such as 13.1.0.

    Raises
    ------
    ImportError
        When there is none.
    RuntimeError
        When there is one that does not load.
    """
    path = find()
    if path is None:
        raise ImportError("no libcublasLt")
    try:
        number = _version_of(ctypes.CDLL(path))
    except (OSError, AttributeError) as error:
        raise _unloadable(f"in {path}", error) from error
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class CublasLt:
    """Products of one device; see `device.Products`.

    For each kind of product the first algorithm is taken that the library's heuristic names for
    2,048 rows of one batch without sums in parts, and kept for any number of rows and batches.

    Parameters
    ----------
    path : str
        Of the library.
    xp : module
        Array library of the device, the current one.

    Raises
    ------
    RuntimeError
        Where the library cannot be loaded, or refuses.
    """

    def __init__(self, path: str, xp: Any) -> None:
        self._xp, self._lock = xp, threading.RLock()
        self._known: dict[_Kind, _Algorithm | None] = {}
        self._fitting: dict[tuple[_Kind, int, int, _Strides], bool] = {}
        try:
            library = ctypes.CDLL(path)
            self._calls = {name: getattr(library, f"cublasLt{name}") for name in _PROTOTYPES}
            for name, types in _PROTOTYPES.items():
                self._calls[name].argtypes, self._calls[name].restype = types, c_int
            self._text = library.cublasLtGetStatusString
            self._text.argtypes, self._text.restype = [c_int], c_char_p
            self.version = _version_of(library)
        except (OSError, AttributeError) as error:
            raise _unloadable(f"in {path}", error) from error
        self._handle = c_void_p()
        self._call("Create", byref(self._handle))

    def takes(
        self, name: str, rows: Sequence[int], batches: Sequence[int], strides: _Strides
    ) -> bool:
        """See `device.Products`."""
        kind = _kind_of(name)
        with self._lock:
            if kind not in self._known:
                self._learn(name, kind)
            return self._known[kind] is not None and all(
                self._fits(kind, m, many, strides) for m in {*rows} for many in {*batches}
            )

    def put(self, name: str, grid: tuple[int, int, int], arguments: bytes, stream: int) -> None:
        """Put a product on a stream; grid: (1, 1, batches)."""
        kind, batches = _kind_of(name), grid[2]
        given = _Given(*struct.unpack(PRODUCT_LAYOUT, arguments))
        with self._lock, ExitStack() as stack:
            algorithm, strides = self._known[kind], given.strides
            if algorithm is None or not self._fits(kind, given.rows, batches, strides):
                raise RuntimeError(
                    f"[ribbit] expected cuBLASLt to multiply ({given.rows}, {kind.k}) by "
                    f"({kind.k}, {kind.n}) matrices {batches} at a time as it does "
                    f"{_NOMINAL} rows, got a refusal: {_WAY_ROUND}"
                )
            made = partial(self._described, kind, given.rows, batches, strides)
            what, of_b, of_a, of_value = stack.enter_context(made(given.bias, given.bias_stride))
            one, zero = c_float(1.0), c_float(0.0)
            self._call(
                "Matmul",
                *(self._handle, what, byref(one), given.b, of_b, given.a, of_a, byref(zero)),
                *(given.value, of_value, given.value, of_value, byref(algorithm)),
                *(given.workspace, given.workspace_bytes, stream),
            )

    def _learn(self, name: str, kind: _Kind) -> None:
        """Note the algorithm of a kind; nothing where that fails, so that it is asked again."""
        self._known[kind] = self._choose(kind)
        try:
            if kind.relu and self._known[kind] is not None and not self._passes_nan(name):
                self._known[kind] = None
        except BaseException:
            del self._known[kind]
            raise

    def _choose(self, kind: _Kind) -> _Algorithm | None:
        with ExitStack() as stack:
            handles = stack.enter_context(self._described(kind, _NOMINAL, 1))
            preference = stack.enter_context(self._preferred())
            what, of_b, of_a, of_value = handles
            found, count = (_Found * _ASKED)(), c_int()
            if not self._call(
                "MatmulAlgoGetHeuristic",
                *(self._handle, what, of_b, of_a, of_value, of_value, preference),
                *(_ASKED, found, byref(count)),
                refusals=_UNKNOWN,
            ):
                return None
            good = (one.algorithm for one in found[: count.value] if one.state == 0)
            chosen = next(good, None)
            return None if chosen is None else _Algorithm.from_buffer_copy(chosen)

    @contextmanager
    def _preferred(self) -> Iterator[c_void_p]:
        """Yield a handle of what an algorithm may be: sums in one piece, numbers by 16 bytes."""
        with self._made("MatmulPreference") as handle:
            for name, value in (
                ("MAX_WORKSPACE_BYTES", c_uint64(WORKSPACE_BYTES)),
                ("REDUCTION_SCHEME_MASK", c_int(CONSTANTS["CUBLASLT_REDUCTION_SCHEME_NONE"])),
                *((f"MIN_ALIGNMENT_{of}_BYTES", c_int(_ALIGNED)) for of in "ABCD"),
            ):
                self._set("MatmulPreference", handle, f"CUBLASLT_MATMUL_PREF_{name}", value)
            yield handle

    def _fits(self, kind: _Kind, rows: int, batches: int, strides: _Strides) -> bool:
        """Whether the algorithm of a kind does so many rows and batches."""
        key, algorithm = (kind, rows, batches, strides), self._known[kind]
        if key not in self._fitting:
            with self._described(*key) as (what, of_b, of_a, of_value):
                found = _Found()
                fits = self._call(
                    "MatmulAlgoCheck",
                    *(self._handle, what, of_b, of_a, of_value, of_value),
                    *(byref(algorithm), byref(found)),  # type: ignore[arg-type]
                    refusals=_UNFIT,
                )
            self._fitting[key] = fits and found.workspace <= WORKSPACE_BYTES
        return self._fitting[key]

    def _passes_nan(self, name: str) -> bool:
        """Whether NaN passes through the library's ReLU, as through ours: no page says so.

        Waits for the device.
        """
        xp, kind = self._xp, _kind_of(name)
        if not self._fits(kind, _PROBED, 1, (0, 0, 0)):
            return False

        def full(count: int) -> Any:
            return xp.full((count,), float("nan"), dtype=xp.float32)

        a, b, bias = full(_PROBED * kind.k), full(kind.k * kind.n), full(kind.n)
        value = xp.zeros(_PROBED * kind.n, dtype=xp.float32)
        space = xp.empty((WORKSPACE_BYTES,), dtype=xp.uint8)
        at = [_address(array) for array in (a, b, bias, value, space)]
        given = _Given(*(at[0], 0, at[1], 0, at[2], 0, at[3], 0), _PROBED, at[4], WORKSPACE_BYTES)
        self.put(name, (1, 1, 1), struct.pack(PRODUCT_LAYOUT, *given), _stream(xp))
        return bool(xp.all(xp.isnan(value)))

    @contextmanager
    def _described(
        self,
        kind: _Kind,
        rows: int,
        batches: int,
        strides: _Strides | None = None,
        bias: int = _ALIGNED,
        bias_stride: int = 4,
    ) -> Iterator[tuple[c_void_p, c_void_p, c_void_p, c_void_p]]:
        """Yield handles of the product and of the matrices B', A' and D', by columns.

        strides: of A, B and D from batch to batch; default: as they are without gaps.
        """
        n, k, relu, has_bias = kind
        strides = strides or (rows * k, k * n, rows * n)
        epilogue = ("RELU_" if relu else "") + ("BIAS" if has_bias else "")
        with ExitStack() as stack:
            types = CONSTANTS["CUBLAS_COMPUTE_32F_FAST_TF32"], CONSTANTS["CUDA_R_32F"]
            what = stack.enter_context(self._made("MatmulDesc", *types))
            code = CONSTANTS[f"CUBLASLT_EPILOGUE_{epilogue.strip('_') or 'DEFAULT'}"]
            said: list[tuple[str, Any]] = [("EPILOGUE", c_int(code))]
            if has_bias:
                said += [
                    ("BIAS_POINTER", c_void_p(bias)),
                    ("BIAS_BATCH_STRIDE", c_int64(bias_stride)),
                ]
            for name, value in said:
                self._set("MatmulDesc", what, f"CUBLASLT_MATMUL_DESC_{name}", value)
            sizes = (n, k, strides[1]), (k, rows, strides[0]), (n, rows, strides[2])
            layouts = []
            for lines, columns, stride in sizes:
                made = self._made("MatrixLayout", CONSTANTS["CUDA_R_32F"], lines, columns, lines)
                layouts.append(stack.enter_context(made))
                for name, value in (
                    ("BATCH_COUNT", c_int(batches)),
                    ("STRIDED_BATCH_OFFSET", c_int64(stride)),
                ):
                    self._set("MatrixLayout", layouts[-1], f"CUBLASLT_MATRIX_LAYOUT_{name}", value)
            yield what, layouts[0], layouts[1], layouts[2]

    @contextmanager
    def _made(self, what: str, *arguments: int) -> Iterator[c_void_p]:
        handle = c_void_p()
        self._call(f"{what}Create", byref(handle), *arguments)
        try:
            yield handle
        finally:
            self._call(f"{what}Destroy", handle)

    def _set(self, what: str, handle: c_void_p, name: str, value: Any) -> None:
        self._call(
            f"{what}SetAttribute", handle, CONSTANTS[name], byref(value), ctypes.sizeof(value)
        )

    def _call(self, name: str, *arguments: Any, refusals: Collection[int] = ()) -> bool:
        """Whether it succeeded; a failure is an error but for statuses that are refusals."""
        status = self._calls[name](*arguments)
        if status not in (CONSTANTS["CUBLAS_STATUS_SUCCESS"], *refusals):
            text = (self._text(status) or b"").decode(errors="replace")
            raise RuntimeError(
                f"[ribbit] expected cublasLt{name} of version {self.version} to succeed, got "
                f"status {status}{text and f' ({text})'}: {_WAY_ROUND}"
            )
        return bool(status == CONSTANTS["CUBLAS_STATUS_SUCCESS"])


def _unloadable(where: str, error: Exception) -> RuntimeError:
    return RuntimeError(f"[ribbit] expected cuBLASLt {where} to load, got {error}: {_WAY_ROUND}")


def _version_of(library: ctypes.CDLL) -> int:
    library.cublasLtGetVersion.restype = c_size_t
    return int(library.cublasLtGetVersion())


def _kind_of(name: str) -> _Kind:
    return _Kind(*map(int, name.partition("<")[2][:-1].split(",")))


def _address(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


def _stream(xp: Any) -> int:
    """Handle of the current stream; 0 where the array library has none."""
    cuda = getattr(xp, "cuda", None)
    return int(cuda.get_current_stream().ptr) if cuda is not None else 0
