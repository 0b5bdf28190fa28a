"""Sources of the device kernels, as one text per set of headers."""

# The headers of ``cpp/core`` and ``cpp/cuda`` are installed beside this file. A run-time compiler
# gets those that a kernel needs as one text that includes nothing.

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from ribbit._arrays.device import THREADS

HEADERS = (
    "cuda/kernels/random_kernels.h",
    "cuda/kernels/leapfrog_kernels.h",
    "cuda/kernels/predictive_kernels.h",
    "cuda/kernels/product_kernels.h",
    "cuda/kernels/wide_product_kernels.h",
    "cuda/kernels/few_rows_kernels.h",
    "cuda/kernels/tensor_product_kernels.h",
    "cuda/kernels/wide_tensor_product_kernels.h",
    "cuda/kernels/last_layers_kernels.h",
    "cuda/kernels/density_kernels.h",
    "cuda/kernels/join_kernels.h",
    "cuda/kernels/tail_kernels.h",
    "cuda/kernels/trajectory_kernels.h",
    "cuda/kernels/row_kernels.h",
    "cuda/kernels/conv_kernels.h",
    "cuda/kernels/direct_conv_kernels.h",
    "cuda/kernels/direct_norm_kernels.h",
    "cuda/kernels/direct_gradient_kernels.h",
    "cuda/kernels/tap_gradient_kernels.h",
    "cuda/kernels/pool_kernels.h",
    "cuda/kernels/norm_kernels.h",
    "cuda/kernels/response_norm_kernels.h",
    "cuda/kernels/elementwise_kernels.h",
    "cuda/kernels/embedding_kernels.h",
    "cuda/kernels/lstm_kernels.h",
    "cuda/kernels/dropout_kernels.h",
    "cuda/kernels/update_kernels.h",
    "cuda/kernels/advance_kernels.h",
    "cuda/kernels/variational_kernels.h",
    "cuda/kernels/row_noise_kernels.h",
)
"""Headers with kernels."""

OPTIONS = ("--std=c++17", "--fmad=false", "-ftz=true", "-default-device")
"""Options of NVRTC. Products and sums are rounded one by one, as on the CPU; what is to be fused
says so. Float32 numbers below 1.2e-38 count as 0, as in kernels that CuPy makes. Lambdas are the
device's: to NVRTC before 13.2 those without a word for it are the host's, and an error."""

_CLUSTERS = ("ClusterTrajectory<",)  # names of kernels that have a `kCluster`, the last argument
_TOGETHER = ("GridTrajectory<",)  # of kernels whose blocks have to run at once
_OWN_THREADS = ("RowGradient<",)  # and of those whose last argument says their threads
_CLASS = re.compile(r"^(?:struct|class) (\w+)", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "([^"]+)"\s*$', re.MULTILINE)


def _root() -> Path:
    package = Path(__file__).resolve().parents[1]
    if (package / "kernels/cuda").is_dir():
        return package / "kernels"
    return package.parents[1] / "cpp"  # a source tree


@cache
def source(*headers: str) -> str:
    """Return the text of headers, each included header once and before its first use."""
    # Names of kernels need no namespace behind it: name expressions have them inside `entry`.
    done: set[str] = set()

    def text(name: str) -> str:
        if name in done:
            return ""
        done.add(name)
        code = (_root() / name).read_text(encoding="utf-8").replace("#pragma once\n", "")
        return _INCLUDE.sub(lambda match: text(match[1]), code)

    return "".join(text(name) for name in headers or HEADERS) + "using namespace ribbit::cuda;\n"


@cache
def of_kernel(kernel: str) -> str:
    """Return the text of the headers that a kernel such as ``FillNormal<float>`` needs."""
    places = _places()
    needed = {places[word] for word in re.findall(r"\w+", kernel) if word in places}
    return source(*(header for header in HEADERS if header in needed))


@cache
def _places() -> dict[str, str]:
    """Return which of the headers defines, itself or by what it includes, each class first."""
    found: dict[str, str] = {}
    for header in HEADERS:
        for name in _CLASS.findall(source(header)):
            found.setdefault(name, header)
    return found


def entry(kernel: str) -> str:
    """Return the name expression of a kernel such as ``FillNormal<float>``."""
    run = "run_clusters" if kernel.startswith(_CLUSTERS) else "run"
    return f"ribbit::cuda::{run}<{kernel}>"


def least_capability(kernel: str) -> int:
    """Return the first compute capability that runs a kernel: 80 or, for clusters of blocks, 90."""
    return 90 if kernel.startswith(_CLUSTERS) else 80


def blocks_of_cluster(kernel: str) -> int:
    """Return the blocks of a kernel's clusters, 1 where it has none."""
    return _last_number(kernel) if kernel.startswith(_CLUSTERS) else 1


def runs_together(kernel: str) -> bool:
    """Return whether all blocks of a launch have to run at once, without being clusters."""
    return kernel.startswith(_TOGETHER)


def threads_of(kernel: str) -> int:
    """Return the threads of a kernel's blocks."""
    return _last_number(kernel) if kernel.startswith(_OWN_THREADS) else THREADS


def _last_number(kernel: str) -> int:
    return int(kernel.rstrip(">").rpartition(",")[2])
