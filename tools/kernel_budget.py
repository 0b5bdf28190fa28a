"""What nvcc makes of every kernel, and the limits in kernel_budget.json.

``python -m tools.kernel_budget`` writes the file anew.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ribbit._arrays import kernel_sources
from ribbit._arrays.device import STATIC_SHARED
from tests.support.cuda import kernel_list
from tests.support.cuda.compiler import PHASES, kept
from tests.support.cuda.thread_orders import compiler
from tests.support.paths import CPP

FILE = Path(__file__).with_suffix(".json")
ARCHITECTURES = ("sm_80", "sm_90")
OPTIONS = ["-std=c++17", "--fmad=false", "-Werror", "all-warnings", "-cubin"]
OPTIONS += ["--ptxas-options=-v", "--keep"]

Usage = dict[str, int]  # threads of a block, registers of a thread, bytes shared and spilled


def release() -> str:
    """nvcc's version, such as 13.0."""
    command = [shutil.which("nvcc"), "--version"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.search(r"release ([\d.]+)", text)[1]


def unit(names: Iterable[str]) -> str:
    """Source that instantiates kernels."""
    lines = [f'#include "{header}"' for header in kernel_sources.HEADERS]
    lines.append("using namespace ribbit::cuda;")
    lines += [
        f"template __global__ void {kernel_sources.entry(name)}(const {name});" for name in names
    ]
    return "\n".join(lines) + "\n"


def measure(names: tuple[str, ...]) -> dict[str, dict[str, Usage]]:
    """Usage of every kernel by architecture and name; RuntimeError where one does not compile."""
    with ThreadPoolExecutor() as pool:  # the work is nvcc's
        found = pool.map(lambda architecture: _measure(names, architecture), ARCHITECTURES)
        measured = dict(zip(ARCHITECTURES, found, strict=True))
    for name, entry in compiler(PHASES, kernel_sources.HEADERS)(names).items():
        size = entry(None, 1, 0, 0, 0)
        if size > STATIC_SHARED:  # the launch asks for it; nvcc does not know
            for usages in measured.values():
                if name in usages:
                    usages[name]["shared"] += size
    return measured


def _measure(names, architecture):
    capability = int(architecture.removeprefix("sm_"))
    text = unit(n for n in names if kernel_sources.least_capability(n) <= capability)

    def make(path):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "all.cu")
            source.write_text(text)
            command = ["nvcc", *OPTIONS, f"-arch={architecture}", f"-I{CPP}", source.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
            if done.returncode != 0:
                raise RuntimeError(done.stdout + done.stderr)
            path.write_text(json.dumps(_usage(done.stderr, Path(folder, "all.ptx").read_text())))

    path = kept(".json", make, text, kernel_sources.source(), release(), *OPTIONS, architecture)
    found = {}
    for name, usage in json.loads(path.read_text()).items():
        # c++filt writes out a last argument that the name leaves to its default
        short = re.sub(r", \d+>$", ">", name)
        found[short if name not in names and short in names else name] = usage
    return found


def _usage(log: str, ptx: str) -> dict[str, Usage]:
    """Usage by name, from what ptxas says and from the bounds in its input."""
    entries = r"Compiling entry function '(\w+)'.*?\n(.*?)(?=ptxas info +: Compiling|\Z)"
    blocks = dict(re.findall(r"\.entry (\w+)\(.*?\)\s*\.maxntid (\d+)", ptx, re.S))
    found = {}
    for symbol, text in re.findall(entries, log, re.S):

        def number(pattern, text=text):
            match = re.search(pattern, text)
            return int(match[1]) if match else 0

        found[symbol] = {
            "threads": int(blocks[symbol]),
            "registers": number(r"Used (\d+) registers"),
            "shared": number(r"(\d+) bytes smem"),
            "spilled": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
            "stack": number(r"(\d+) bytes stack frame"),
        }
    names = subprocess.run(
        ["c++filt"], input="\n".join(found), capture_output=True, text=True, check=True
    ).stdout.split("\n")
    plain = [
        re.fullmatch(r"void ribbit::cuda::run(?:_clusters)?<(.*?) ?>\(.*", name)[1]
        for name in names
    ]
    return {
        re.sub(r"> (?=>)", ">", name.replace("ribbit::cuda::", "")): usage
        for name, usage in zip(plain, found.values(), strict=True)
    }


def limit_of(name: str) -> str:
    """The entry that a kernel falls under: its template and scalar."""
    scalar = re.search(r"\b(float|double)\b", name)
    return kernel_list.template(name) + (f"<{scalar[1]}>" if scalar else "")


def limits(measured: dict[str, dict[str, Usage]]) -> dict[str, dict[str, Usage]]:
    """The most that any kernel of an entry uses."""
    found: dict[str, dict[str, Usage]] = {}
    for architecture, usages in measured.items():
        entries = found.setdefault(architecture, {})
        for name, usage in usages.items():
            entry = entries.setdefault(limit_of(name), dict(usage))
            entry.update({key: max(entry[key], value) for key, value in usage.items()})
    return found


def written(nvcc: str, entries: dict[str, dict[str, Usage]]) -> str:
    """The file's text, a line for each entry."""
    parts = [f'{{\n"nvcc": "{nvcc}"']
    for architecture, usages in entries.items():
        lines = [f' "{name}": {json.dumps(usages[name])}' for name in sorted(usages)]
        parts.append(f'"{architecture}": {{\n' + ",\n".join(lines) + "\n}")
    return ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(written(release(), limits(measure(kernel_list.names()))))
