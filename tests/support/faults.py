"""Calls functions with a fault in the native core, in a process with the module `_core_faults`.

Faults of the transitions in Python are planted in this process. The CMake option RIBBIT_FAULTS
builds that module. cpp/cpu/system/faults.h lists the faults.
"""

import atexit
import concurrent.futures
import contextlib
import functools
import importlib.util
import inspect
import multiprocessing
import os
import sys
import sysconfig
import types
import warnings
from pathlib import Path

import pytest

from tests.support.paths import ROOT

__all__ = ["core", "in_python", "needed", "with_fault"]


@functools.cache
def core() -> Path | None:
    """Return the fault build: RIBBIT_FAULTS_CORE, or the newest in ``build``, or None."""
    given = os.environ.get("RIBBIT_FAULTS_CORE")
    if given:
        return Path(given).resolve(strict=True)
    name = f"_core_faults{sysconfig.get_config_var('EXT_SUFFIX')}"
    found = sorted(ROOT.glob(f"build/*/cpp/{name}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


needed = pytest.mark.skipif(
    core() is None, reason="no fault build of the core: CMake option RIBBIT_FAULTS"
)


@contextlib.contextmanager
def in_python(kernel, right, wrong):
    """Move targets that are not in the core by code in which a text is replaced."""
    from ribbit.lockstep import chains, hmc, nuts

    source = inspect.getsource({"hmc": hmc, "nuts": nuts}[kernel])
    assert source.count(right) == 1, right
    faulty = types.ModuleType("faulty")
    exec(source.replace(right, wrong), vars(faulty))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(chains._MOVES, kernel, getattr(faulty, kernel))
        yield


def with_fault(fault, function, *args, **options):
    """Call a function of a test module under a fault of the core and return its result.

    Fault None is the right code. The function must not cache anything, because one process makes
    the calls of all faults.
    """
    return _process().submit(_call, fault, function, args, options).result()


@functools.cache
def _process():
    """Return the process that has the fault build in place of the core."""
    from ribbit import _core

    if core() is None:
        raise RuntimeError("There is no fault build. Build with -DRIBBIT_FAULTS=ON.")
    process = concurrent.futures.ProcessPoolExecutor(
        1,
        multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(core(), _core.num_threads()),
    )
    atexit.register(process.shutdown)
    return process


def _begin(file, threads):
    assert "ribbit" not in sys.modules
    name = "ribbit._core"
    spec = importlib.util.spec_from_file_location(name, file)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    import ribbit as rb

    rb.set_num_threads(threads)
    warnings.simplefilter("ignore")  # faults cause warnings


def _call(fault, function, args, options):
    from ribbit import _core

    _core.set_fault(fault)
    try:
        return function(*args, **options)
    finally:
        _core.set_fault(None)
