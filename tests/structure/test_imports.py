"""Who may import whom, and what `import ribbit` costs."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ribbit
from tests.support.paths import CPP

PACKAGE = Path(ribbit.__file__).resolve().parent

# Optional packages: imported only inside the function that needs them.
HEAVY = {"cupy", "matplotlib", "rich", "arviz_base", "arviz_stats", "sklearn", "torch", "jax"}

# module -> the ribbit modules it may import at its top level, by the first part of the name.
COMMON = {"errors", "_checks", "_core", "_interfaces"}
ALLOWED = {
    "_interfaces": set(),
    "layers": COMMON | {"layers"},
    "priors": COMMON,
    "likelihoods": COMMON | {"_backend", "priors", "protocols"},
    "model": COMMON | {"_backend", "_torch_weights", "layers"},
    "_torch_weights": COMMON | {"layers"},
    "zoo": COMMON | {"layers", "model"},
    "protocols": COMMON,
    "_device": {"protocols"},
    "_cupy": {"_device", "kernels", "protocols"},
    "_backend": COMMON | {"_device", "protocols"},
    "_precision": COMMON,
    "_positions": COMMON | {"_backend", "protocols"},
    "kernels": {"_device", "_precision", "kernels", "layers", "protocols"},
    "_density_table": set(),
    "_device_samples": {"_backend", "_device", "protocols"},
    "gradients": {"_density_table", "_device", "_precision", "kernels", "layers", "protocols"},
    "_device_forward": COMMON
    | {
        "_precision",
        "_backend",
        "_device",
        "_device_data",
        "_device_samples",
        "_positions",
        "gradients",
        "kernels",
        "likelihoods",
        "model",
        "protocols",
    },
    "_device_steps": {"_backend", "_device", "gradients", "protocols"},
    "_device_density": COMMON
    | {
        "_backend",
        "_device",
        "_positions",
        "_device_steps",
        "_device_variational",
        "gradients",
        "kernels",
        "protocols",
    },
    "_device_variational": COMMON
    | {
        "_backend",
        "_positions",
        "_density_table",
        "_device",
        "_device_paired",
        "gradients",
        "kernels",
        "protocols",
    },
    "_device_paired": COMMON | {"_density_table", "_device", "gradients", "kernels", "protocols"},
    "_device_data": COMMON | {"_backend", "_device", "likelihoods", "model", "protocols"},
    "posterior": COMMON
    | {
        "_precision",
        "_backend",
        "_device_data",
        "_device_density",
        "_native_density",
        "_predictive",
        "gradients",
        "layers",
        "likelihoods",
        "model",
        "priors",
        "protocols",
    },
    "_native_density": COMMON | {"_backend", "_positions", "_predictive", "likelihoods"},
    "diagnostics": COMMON | {"_convergence", "metrics"},
    "metrics": COMMON,
    "samplers": COMMON
    | {
        "_backend",
        "_running",
        "draws",
        "fits",
        "predict",
        "protocols",
        "quantiles",
        "random",
        "samplers",
        "schedules",
    },
    "schedules": COMMON,
    "masked": COMMON
    | {
        "_backend",
        "_native_density",
        "_positions",
        "_predictive",
        "layers",
        "likelihoods",
        "model",
        "priors",
        "protocols",
    },
    "fits": COMMON | {"_backend", "draws", "predict", "protocols"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def top_level_imports(path: Path) -> set[str]:
    """Names of modules imported when `path` is imported, TYPE_CHECKING blocks left out."""
    names: set[str] = set()

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
                visit(node.body + node.orelse)
            elif isinstance(node, ast.Try):
                visit(node.body + node.orelse + node.finalbody)
                for handler in node.handlers:
                    visit(handler.body)
            elif isinstance(node, ast.ClassDef):
                visit(node.body)

    visit(ast.parse(path.read_text()).body)
    return names


def subject(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def ribbit_parts(names: set[str]) -> set[str]:
    """The modules of ribbit among imported names, by their first part."""
    files = {p.stem for p in PACKAGE.glob("*.py")} | {"samplers", "kernels", "_core", "_cuda"}
    return {
        parts[1]
        for n in names
        if (parts := n.split("."))[0] == "ribbit" and len(parts) > 1 and parts[1] in files
    }


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_dependency_direction(path: Path) -> None:
    allowed = ALLOWED.get(subject(path))
    if allowed is not None:
        extra = ribbit_parts(top_level_imports(path)) - allowed
        assert not extra, f"{path.name} imports {sorted(extra)}"


def test_the_rule_would_be_noticed(tmp_path: Path) -> None:
    bad = tmp_path / "hmc.py"
    bad.write_text("from ribbit.posterior import Posterior\nimport matplotlib.pyplot\n")
    names = top_level_imports(bad)
    assert ribbit_parts(names) - ALLOWED["samplers"] == {"posterior"}
    assert {n.split(".")[0] for n in names} & HEAVY == {"matplotlib"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_heavy_at_import(path: Path) -> None:
    assert not {name.split(".")[0] for name in top_level_imports(path)} & HEAVY


def test_only_backend_says_cupy() -> None:
    users = {p.name for p in modules() if re.search(r"^\s*(import|from) cupy", p.read_text(), re.M)}
    assert users == {"_backend.py", "_cupy.py"}


def test_import_needs_numpy_alone() -> None:
    """Every other third-party package is hidden from the import system."""
    code = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        top = name.split('.')[0]
        if top not in sys.stdlib_module_names and top not in ('numpy', 'ribbit'):
            raise ModuleNotFoundError(f'hidden: {name}')
sys.meta_path.insert(0, Hide())
import ribbit, numpy as np
target = ribbit.Posterior(ribbit.mlp(2, (3,), 1), np.ones((4, 2)), np.ones(4),
                          prior=ribbit.Normal(1.0), likelihood=ribbit.Gaussian(1.0))
draws = ribbit.HMC(target, step_size=0.1, num_leapfrog_steps=3).sample(5, warmup=2, progress=False)
assert draws.positions.shape == (4, 5, target.dim)
assert draws.predict(np.ones((3, 2))).mean.shape == (3, 1)
try:
    import scipy
except ModuleNotFoundError:
    print('hidden works')
"""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("hidden works")


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, ribbit; print(*sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & (HEAVY | {"scipy", "pandas", "xarray"})


SMALL_RUN = """
import ribbit, numpy as np
assert 'cupy' not in sys.modules or sys.modules['cupy'] is None, 'ribbit imported it'
target = ribbit.Posterior(ribbit.mlp(2, (3,), 1), np.ones((4, 2)), np.ones(4),
                          prior=ribbit.Normal(1.0), likelihood=ribbit.Gaussian(1.0))
hmc = ribbit.HMC(target, step_size=0.1, num_leapfrog_steps=3)
assert hmc.sample(5, warmup=2, progress=False).positions.shape == (4, 5, target.dim)
from ribbit.versions import versions
print(versions()['cuda'])
"""


def run_python(code: str, **environment: str) -> str:
    """What a new interpreter prints; no device is visible to it."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_works_without_cupy() -> None:
    run_python("import sys; sys.modules['cupy'] = None\n" + SMALL_RUN)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy (any machine)")
def test_works_with_cupy_and_no_device() -> None:
    """And says what is missing when the device is asked for."""
    code = """
import cupy
from ribbit import _backend
assert not cupy.is_available()
assert _backend.namespace(np.ones(2)) is np
try:
    _backend.device_of(cupy)
except RuntimeError as error:
    print(error)
"""
    printed = run_python("import sys\n" + SMALL_RUN + code)
    assert printed.strip().endswith("expected a CUDA device, got none: is a driver there?")


@pytest.mark.skipif(not CPP.is_dir(), reason="needs the source tree")
@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("core", r'"(cpu|cuda|bindings)/|pybind11|cuda_runtime'),
        ("cpu", r'"(cuda|bindings)/|pybind11|cuda_runtime'),
        ("cuda", r'"(cpu|bindings)/|pybind11'),
    ],
)
def test_native_dependency_direction(folder: str, forbidden: str) -> None:
    for path in (CPP / folder).rglob("*"):
        if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            lines = [line for line in path.read_text().splitlines() if line.startswith("#include")]
            assert not [line for line in lines if re.search(forbidden, line)], path


@pytest.mark.skipif(not CPP.is_dir(), reason="needs the source tree")
def test_kernel_files_include_no_standard_library() -> None:
    """Its inline functions would be weak symbols of one instruction set, picked for all."""
    own = r'^#include ("(cpu/isa/[a-z_]+-inl\.h|core/[a-z_]+_hd\.h)"|<cstddef>|<cstdint>)'
    files = [*(CPP / "cpu/isa").iterdir(), *(CPP / "core").glob("*_hd.h")]
    assert files
    for path in files:
        for line in path.read_text().splitlines():
            if line.startswith("#include"):
                assert re.match(own, line), f"{path.name}: {line}"


def test_cupy_has_what_is_called() -> None:
    """Names and signatures that `_cupy.py` relies on and that need no device to be looked at."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy (any machine)")
    from cupy.cuda import driver

    assert callable(driver.launchKernel)
    documented = driver.launchKernel.__doc__
    names = "f, grid_dim_x, grid_dim_y, grid_dim_z, block_dim_x, block_dim_y, block_dim_z, "
    names += "shared_mem_bytes, stream, kernel_params, extra"
    assert re.sub(r"(unsigned int|intptr_t) ", "", documented) == f"launchKernel({names})"
    assert hasattr(cupy.cuda.Function, "ptr")
    for name in ("kernel", "max_dynamic_shared_size_bytes"):
        assert hasattr(cupy.RawKernel, name), name
    for name in ("begin_capture", "end_capture"):
        assert hasattr(cupy.cuda.Stream, name), name
    assert hasattr(cupy.cuda.Graph, "launch")
    assert hasattr(cupy.cuda.runtime, "memGetInfo")
    assert callable(cupy.cuda.nvrtc.getVersion)
    used = set()
    for path in modules():
        used |= set(re.findall(r"\bxp\.([a-z_0-9]+)\(", path.read_text()))
    assert {"asarray", "concat", "astype"} <= used
    assert not [name for name in sorted(used) if not hasattr(cupy, name)]
