"""A device made of the CPU: arrays that refuse NumPy, and kernels compiled by g++.

The arrays behave as CuPy's do where it matters: they have no ``__array_namespace__``, never become
NumPy arrays silently, cannot be mixed with them, and memory that nobody wrote holds NaN. Kernels
are the package's sources, run block by block and phase by phase in a shuffled order
(``cuda_on_cpu.h``), or, slower and closer to the device, thread by thread from barrier to barrier
(``cuda_on_fibers.h``).
"""

import operator
import sys
from functools import cache
from types import ModuleType

import numpy as np

from ribbit._arrays.device import STATIC_SHARED, pack
from ribbit._arrays.namespace import _SILENT, _devices
from tests.support.cuda.compiler import Compiler


class Array:
    """An array that lives on the device."""

    __slots__ = ("_array",)
    __array_priority__ = 1e6

    def __init__(self, array):
        self._array = array

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)
    nbytes = property(lambda self: self._array.nbytes)
    flags = property(lambda self: self._array.flags)
    strides = property(lambda self: self._array.strides)
    T = property(lambda self: Array(self._array.T))

    @property
    def __cuda_array_interface__(self):
        return {**self._array.__array_interface__, "version": 3, "stream": 1}

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def get(self):
        """Copy to the host; waits for the device."""
        NAMESPACE.waits += 1
        return self._array.copy()

    def __repr__(self):
        return f"device {self._array!r}"

    def __len__(self):
        return len(self._array)

    def __getitem__(self, key):
        return wrap(self._array[unwrap(key)])

    def __setitem__(self, key, value):
        self._array[unwrap(key)] = unwrap(value)

    def _scalar(kind):
        def convert(self):
            NAMESPACE.waits += 1
            return kind(self._array)

        return convert

    __bool__, __int__, __float__ = _scalar(bool), _scalar(int), _scalar(float)
    __index__ = _scalar(operator.index)
    __hash__ = None

    def reshape(self, *shape):
        return wrap(self._array.reshape(*shape))


def unwrap(value):
    """Return what NumPy may compute with; NumPy arrays of the caller are refused."""
    if isinstance(value, Array):
        return value._array
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, tuple | list):
        return type(value)(unwrap(v) for v in value)
    return value


def wrap(value):
    """Return arrays of the device for what NumPy made."""
    if isinstance(value, np.ndarray | np.generic):
        return Array(np.asarray(value))
    if isinstance(value, tuple | list):
        return type(value)(wrap(v) for v in value)
    return value


def _operator(name, reflected=False):
    function = getattr(operator, name)

    def apply(self, other):
        a, b = unwrap(self), unwrap(other)
        return wrap(function(b, a) if reflected else function(a, b))

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"):
    _plain = _name.rstrip("_")
    setattr(Array, f"__{_plain}__", _operator(_name))
    setattr(Array, f"__r{_plain}__", _operator(_name, reflected=True))
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(Array, f"__{_name}__", _operator(_name))
for _name in ("neg", "invert", "abs"):
    _function = getattr(operator, _name)
    setattr(Array, f"__{_name}__", lambda self, f=_function: wrap(f(self._array)))


class Namespace(ModuleType):
    """NumPy's functions on arrays of the device."""

    waits = 0  # how often the host asked for a value
    __file__ = __file__

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        thing = getattr(np, name)
        if isinstance(thing, type) or not callable(thing):
            return thing

        def function(*args, **options):
            args = [unwrap(a) for a in args]
            options = {key: unwrap(value) for key, value in options.items()}
            with np.errstate(all="ignore"):
                return wrap(thing(*args, **options))

        return function

    @staticmethod
    def asarray(value, dtype=None, *, copy=None):
        """Upload, or pass through."""
        if isinstance(value, Array):
            if copy or (dtype is not None and value.dtype != dtype):
                return Array(np.array(value._array, dtype=dtype, copy=True))
            return value
        return Array(np.array(value, dtype=dtype, copy=True))

    @staticmethod
    def empty(shape, dtype=np.float64):
        """Memory with rubbish in it."""
        array = np.empty(shape, dtype)
        array.view(np.uint8).fill(0xFF) if array.size else None
        return Array(array)


NAMESPACE = Namespace("cpu_device")
# As CuPy's, arrays have no `__array_namespace__`: the package of their type is the library.
Array.__module__ = NAMESPACE.__name__
sys.modules.setdefault(NAMESPACE.__name__, NAMESPACE)
_SILENT.add(NAMESPACE.__name__)


def register():
    """Make the package compute with the arrays of this file; return their namespace."""
    if NAMESPACE.__name__ not in _devices:
        _devices[NAMESPACE.__name__] = CpuDevice()
    return NAMESPACE


_compiler = cache(Compiler)


class CpuDevice:
    """The device that ``ribbit._arrays`` is given for the arrays above."""

    xp = NAMESPACE
    number = 0
    tensor_cores = True
    clusters = True
    cooperative = True
    processors, block_shared = 132, 227 * 1024  # of an H100

    def __init__(self, compiler=None):
        self.compiler = compiler or _compiler()
        self.seed = 1
        self.launches = 0
        self._recorded = None  # launches of the recording that is being made
        self.current, self.orders = 1, []  # a stream, and pairs of one that waits for another

    def kernels(self, names):
        entries = self.compiler(names)

        def bound(name):
            entry = entries[name]
            size, memory = entry(None, 0, 0, 0, 0), entry(None, 1, 0, 0, 0)

            def launch(grid, arguments, shared=0):
                assert len(arguments) == size, (name, len(arguments), size)
                assert shared == (memory if memory > STATIC_SHARED else 0), (name, shared, memory)
                assert memory <= self.block_shared, (name, memory)
                assert grid[0] < 2**31, grid
                assert max(grid[1:]) < 2**16, grid
                if self._recorded is None:
                    run(grid, arguments)
                else:
                    self._recorded.append((run, grid, arguments))

            def run(grid, arguments):
                self.launches += 1
                done = entry(arguments, *grid, self.seed + self.launches)
                if done != size:
                    raise RuntimeError(
                        f"[{name}] expected all threads at every barrier, "
                        "and 16 bytes at a multiple of 16"
                    )

            return launch

        return {name: bound(name) for name in names}

    def launch(self, name, grid, *fields):
        """Run one kernel."""
        self.kernels([name])[name](grid, pack(self, fields))

    def pointer(self, array):
        if isinstance(array, np.ndarray):
            raise TypeError("an array of the host where one of the device was expected")
        assert array.flags.c_contiguous
        return array._array.ctypes.data

    def stream(self):
        return self.current

    def record(self, body):
        """Run nothing now; later the launches with the arguments that they had."""
        self._recorded = recorded = []
        try:
            body()
        finally:
            self._recorded = None

        def replay():
            for run, grid, arguments in recorded:
                run(grid, arguments)

        return replay

    def mark(self):
        return self.current

    def wait(self, mark):
        """Notes which stream waits for which other one."""
        if mark != self.current:
            self.orders.append((self.current, mark))

    def free_bytes(self):
        return 1 << 30
