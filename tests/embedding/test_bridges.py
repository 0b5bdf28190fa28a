"""The examples for R and Julia give what Python gives, where the interpreter is installed."""

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


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R (r-base-core)")
def test_r(tmp_path):
    bridge, folder = tmp_path / "bridge.so", EXAMPLES / "embed_r"
    run(
        *("cc", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{rb.get_include()}"),
        *(folder / "bridge.c", "-o", bridge, LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}"),
    )
    said = run("Rscript", folder / "hmc.R", bridge)
    x = np.arange(40) / 20 - 1
    target = rb.Posterior(
        rb.mlp(1, (8,), 1, activation="tanh"),
        x[:, None],
        x**2,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.1),
        dtype=np.float64,
    )
    p = (
        rb.HMC(target, step_size=0.01, trajectory_length=1.0)
        .sample(300, warmup=300, seed=1, chains=4, init=target.init(1, 4), progress=False)
        .predict(np.array([[0.5]]))
    )
    assert said == f"f(0.5) = {p.mean[0]:.3f} +- {p.epistemic_std[0]:.3f}\n"


@pytest.mark.skipif(shutil.which("julia") is None, reason="needs Julia")
def test_julia():
    """The mean of 4,000 products is 0.8; six standard errors of 500 independent ones are 0.35."""
    said = run("julia", EXAMPLES / "embed_julia/hmc.jl", LIBRARY)
    found = float(re.search(r"E x1 x2 = (\S+),", said)[1])
    assert abs(found - 0.8) < 0.35


def test_julia_states_the_struct_of_the_header():
    """Also where there is no Julia: names and types of its struct are those of the C options."""
    text = (EXAMPLES / "embed_julia/hmc.jl").read_text()
    body = re.search(r"mutable struct Options.*?\n(.*?)Options\(\) = new", text, re.DOTALL)[1]
    ours = re.findall(r"(\w+)::([\w{}]+)", body)
    header = (Path(rb.get_include()) / "ribbit/ribbit.h").read_text()
    part = re.search(
        r"typedef struct ribbit_hmc_options \{(.*?)\} ribbit_hmc_options", header, re.DOTALL
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
