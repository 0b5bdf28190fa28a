"""The examples for R and Julia give what Python gives, where the interpreter is installed."""

import ctypes as c
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from tests.support.paths import EXAMPLES

pytestmark = [
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="needs the source tree"),
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),  # bits alone
]
LIBRARY = Path(rb.get_cmake_dir()).parents[1] / "libribbit.so.1"


def run(*command: object) -> str:
    """What a program prints; it must succeed."""
    done = subprocess.run(
        [str(part) for part in command], env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def squares(steps: int) -> rb.Draws:
    """Draws of Python as the example for R makes them."""
    x = np.arange(40) / 20 - 1
    target = rb.Posterior(
        rb.mlp(1, (8,), 1, activation="tanh"),
        x[:, None],
        x**2,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.1),
        dtype=np.float64,
    )
    sampler = rb.HMC(target, step_size=0.01, trajectory_length=1.0)
    start = target.init(1, 4)
    return sampler.sample(steps, warmup=steps, seed=1, chains=4, init=start, progress=False)


def built(folder: Path) -> Path:
    """Compile the bridge for R."""
    bridge = folder / "bridge.so"
    run(
        *("cc", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{rb.get_include()}"),
        *(EXAMPLES / "embed_r/bridge.c", "-o", bridge, LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}"),
    )
    return bridge


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R (r-base-core)")
def test_r(tmp_path):
    said = run("Rscript", EXAMPLES / "embed_r/hmc.R", built(tmp_path))
    p = squares(300).predict(np.array([[0.5]]))
    assert said == f"f(0.5) = {p.mean[0]:.3f} +- {p.epistemic_std[0]:.3f}\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
def test_the_bridge_for_r(tmp_path):
    """Also where there is no R: called with the arguments of ``.C``."""
    call = c.CDLL(str(built(tmp_path))).ribbit_r_hmc
    x, new = np.arange(40) / 20 - 1, np.array([0.5])
    draws, mean, sd = np.zeros((4, 30, 25)), np.zeros(1), np.zeros(1)
    text = c.create_string_buffer(200)
    message = (c.c_char_p * 1)(c.cast(text, c.c_char_p))

    def used(step: float) -> str:
        call.argtypes = [c.c_void_p] * 12
        numbers = [np.array([v], np.float64) for v in (0.1, step, 1.0)]
        sizes, seed = np.array([1, 8, 40, 4, 30, 30, 1], np.int32), np.array([1], np.int32)
        arrays = (x, x**2, sizes, *numbers, seed, new, draws, mean, sd)
        call(*(array.ctypes.data for array in arrays), message)
        return text.value.decode()

    assert used(0.01) == ""
    expected = squares(30)
    p = expected.predict(new[:, None])
    assert np.array_equal(draws, expected.positions)
    assert (mean[0], sd[0]) == (p.mean[0], p.epistemic_std[0])
    assert "step_size must be positive" in used(-1.0)


@pytest.mark.skipif(shutil.which("julia") is None, reason="needs Julia")
def test_julia():
    """The mean of 4,000 products is 0.8; six standard errors of 500 independent ones are 0.35."""
    said = run("julia", EXAMPLES / "embed_julia/nuts.jl", LIBRARY)
    found = float(re.search(r"E x1 x2 = (\S+),", said)[1])
    assert abs(found - 0.8) < 0.35


def test_julia_states_the_struct_of_the_header():
    """Also where there is no Julia: names and types of its struct are those of the C options."""
    text = (EXAMPLES / "embed_julia/nuts.jl").read_text()
    body = re.search(r"mutable struct RunOptions.*?\n(.*?)RunOptions\(\) = new", text, re.DOTALL)[1]
    ours = re.findall(r"(\w+)::([\w{}]+)", body)
    header = (Path(rb.get_include()) / "ribbit/ribbit.h").read_text()
    part = re.search(
        r"typedef struct ribbit_run_options \{(.*?)\} ribbit_run_options", header, re.DOTALL
    )
    plain = re.sub(r"/\*.*?\*/", "", part[1], flags=re.DOTALL)
    theirs = []
    for line in filter(None, (" ".join(p.split()) for p in plain.split(";"))):
        first, *more = line.split(",")
        kind, name = re.fullmatch(r"(.*?[ *])(\w+)", first).groups()
        theirs += [(n.strip(), kind) for n in (name, *more)]
    sizes = {"size_t": "Csize_t", "uint64_t": "UInt64", "int64_t": "Int64", "double": "Cdouble"}
    sizes |= {"int32_t": "Int32"}
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    for (name, mine), (_, kind) in zip(ours, theirs, strict=True):
        wanted = sizes.get(kind.strip(), "Ptr")
        assert mine.startswith(wanted), name
