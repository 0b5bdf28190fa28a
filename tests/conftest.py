"""Fixtures and profiles that every test may use."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import ribbit as rb
from ribbit import _core
from ribbit._arrays.threads import num_threads
from tests.support.paths import data_folder

# their asserts say as much as those of the tests
pytest.register_assert_rewrite(
    "tests.support.gradient_check", "tests.support.rubbish", "tests.support.targets"
)

# derandomize: a red run is the same red run for everyone; HYPOTHESIS_PROFILE=slow is the long set
settings.register_profile(
    "quick",
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("slow", parent=settings.get_profile("quick"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let the workers of ``pytest -n auto`` take tests from each other at the end.

    Of each one's BLAS the threads are its share of the cores, too: those that wait for each other
    spin. NumPy reads the number when it is imported, in a worker or in a process of its own.
    """
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"
    workers = len(getattr(config.option, "tx", None) or ())
    if workers > 1:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, num_threads() // workers)))


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker of ``pytest -n`` its share of the cores.

    Threads that wait for each other at every layer lose a hundred times their work where others
    hold the cores. Tests of threads set their number.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        rb.set_num_threads(max(1, num_threads() // workers))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among 10,000 tests, now or later: a sixth of the time of collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


# Files of tests of internals in depth, each of which takes over 20 s: `.ci/run` has them. They are
# marked `full`, like tests on the device made of the CPU, which compile all kernels.
FULL = (
    "backends/cuda",
    "bad_input",
    "docs/test_site_pages.py",
    "durability",
    "gates/test_mclmc.py",
    "gates/test_mclmc_functions.py",
    "gates/test_no_u_turn.py",
    "models/test_torch",
    "oracle/test_layer_reference.py",
    "sklearn/test_conformance.py",
    "sklearn/test_ecosystem.py",
    "structure/test_kernel_tests.py",
    "studies",
    "targets/test_memory.py",
    "torch",
)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of `FULL`."""
    folder = Path(__file__).parent
    for item in items:
        name = item.path.relative_to(folder).as_posix() if folder in item.path.parents else ""
        if name.startswith(FULL) or "device" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.full)


SEED = 20_211_011  # of every NumPy generator that a test makes by itself


@pytest.fixture(scope="session", params=["cpu", pytest.param("cupy", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> ModuleType:
    """Array library of a device: one made of the CPU, and CuPy where a device answers.

    With ``numpy`` beside them in the tests, the same tests judge all.
    """
    if request.param == "cupy":
        cupy = pytest.importorskip("cupy")
        if not cupy.is_available():
            pytest.skip("no CUDA device")
        return cupy
    pytest.importorskip("pybind11")  # builds the module of the kernels
    from tests.support.cuda import cpu_device, kernel_list

    if "PYTEST_XDIST_WORKER" in os.environ:  # many tests: all kernels in one go, shared out
        cpu_device.CpuDevice().compiler(kernel_list.names())
    return cpu_device.register()


@pytest.fixture
def rng() -> np.random.Generator:
    """A NumPy generator with the fixed seed of the tests."""
    return np.random.default_rng(SEED)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the development data sets; the test is skipped where there is none."""
    folder = data_folder()
    if folder is None:
        pytest.skip("no development data (set RIBBIT_SHARED_DATA)")
    return folder


@pytest.fixture
def _threads() -> Iterator[None]:
    """Give the native code back the number of threads that it had."""
    before = _core.num_threads()
    yield
    rb.set_num_threads(before)
