"""What `import ribbit` costs, what it needs, and what native files include."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ribbit
from tests.structure.graph import Import, imports, modules
from tests.support.paths import CPP

PACKAGE = Path(ribbit.__file__).resolve().parent

# Optional packages: imported only inside the function that needs them.
HEAVY = {"cupy", "matplotlib", "rich", "arviz_base", "arviz_stats", "sklearn", "torch", "jax"}
HEAVY |= {"numpyro", "pymc", "pytensor", "mpi4py"}
# Faces of other ecosystems may import their own at the top; nobody imports the face.
FACES = {
    "sklearn": {"sklearn"},
    "torch": {"torch"},
    "jax": {"jax"},
    "numpyro": {"numpyro", "jax", "ribbit.jax"},
    "pymc": {"pymc", "pytensor"},
}


def heavy(found: list[Import]) -> list[str]:
    """What imports something heavy, or a face, at import."""
    out = []
    for one in found:
        room, parts = "".join(one.source.split(".")[1:2]), one.target.split(".")
        allowed = FACES.get(room, set())
        if parts[0] in HEAVY and parts[0] not in allowed:
            out.append(str(one))
        face = "".join(parts[1:2]) if parts[0] == "ribbit" else ""
        if face in FACES and face != room and f"ribbit.{face}" not in allowed:
            out.append(str(one))
    return out


def test_nothing_heavy_at_import() -> None:
    found = [one for one in imports(PACKAGE, "ribbit") if one.top]
    assert len(found) > 300
    assert not heavy(found)


def test_a_face_imported_from_elsewhere_would_be_noticed(tmp_path: Path) -> None:
    for place, text in {
        "torch/a.py": "import torch",
        "results/b.py": "import torch",
        "results/c.py": "from ribbit.torch import a",
    }.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
    found = heavy([one for one in imports(tmp_path, "ribbit") if one.top])
    assert [line.split()[0].split(":")[0] for line in found] == [
        "ribbit.results.b",
        "ribbit.results.c",
    ]


def test_heavy_at_import_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import matplotlib.pyplot\ndef f():\n    import rich\n")
    found = imports(tmp_path, "ribbit")
    assert [one.target for one in found if one.top] == ["matplotlib.pyplot"]


def test_one_room_says_cupy() -> None:
    users = {one.source for one in imports(PACKAGE, "ribbit") if one.target.startswith("cupy")}
    assert users == {"ribbit._arrays.namespace", "ribbit._arrays.cupy"}


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
assert draws.predict(np.ones((3, 2))).mean.shape == (3,)
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
from ribbit._cli.versions import versions
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
from ribbit._arrays.namespace import device_of, namespace
assert not cupy.is_available()
assert namespace(np.ones(2)) is np
try:
    device_of(cupy)
except RuntimeError as error:
    print(error)
"""
    printed = run_python("import sys\n" + SMALL_RUN + code)
    assert printed.strip().endswith("expected a CUDA device, got none: is a driver installed?")


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
    """Its inline functions would be weak symbols of one instruction set, picked for all.

    AArch64 has one set, and its compiler's intrinsics are of no library.
    """
    headers = "<cstddef>|<cstdint>|<arm_neon.h>"
    own = rf'^#include ("(cpu/isa/[a-z_]+-inl\.h|core/[a-z_]+_hd\.h)"|{headers})'
    files = [*(CPP / "cpu/isa").iterdir(), *(CPP / "core").glob("*_hd.h")]
    assert files
    for path in files:
        for line in path.read_text().splitlines():
            if line.startswith("#include"):
                assert re.match(own, line), f"{path.name}: {line}"


def test_cupy_has_what_is_called() -> None:
    """Names and signatures that `_arrays/cupy.py` relies on; looking at them needs no device."""
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
    for path in modules(PACKAGE, "ribbit").values():
        used |= set(re.findall(r"\bxp\.([a-z_0-9]+)\(", path.read_text()))
    assert {"asarray", "concat", "astype"} <= used
    assert not [name for name in sorted(used) if not hasattr(cupy, name)]
