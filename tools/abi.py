"""Writes what the C library promises, `python -m tools.abi`: tests/embedding/abi.txt.

Symbols with their versions are read from the library, prototypes and constants from its header,
sizes and offsets are a compiler's.
"""

import re
import subprocess
import tempfile
from pathlib import Path

import ribbit

FILE = Path(__file__).resolve().parents[1] / "tests" / "embedding" / "abi.txt"
HEADER = Path(ribbit.get_include()) / "ribbit" / "ribbit.h"
LIBRARY = Path(ribbit.get_cmake_dir()).parents[1] / "libribbit.so.1"


def symbols(library: Path) -> list[str]:
    """Every symbol that a library shows, with its version."""
    command = ["nm", "-D", "--defined-only", "--with-symbol-versions", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [line.split()[1:] for line in done.stdout.splitlines()]
    return sorted(name for kind, name in found if kind != "A")


def declarations(text: str) -> list[str]:
    """Declarations of a header, each in one line, without comments and directives."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"^#.*$|extern \"C\" \{", "", text, flags=re.MULTILINE)
    parts, depth, start = [], 0, 0
    for i, sign in enumerate(text):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if sign == ";" and depth <= 0:
            parts.append(" ".join(text[start:i].split()))
            start = i + 1
    return [part.removeprefix("} ").removeprefix("RIBBIT_API ") for part in parts]


def members(body: str) -> list[str]:
    """Names of a struct's members in order."""
    return [
        re.sub(r"[\s*]", "", name.split()[-1].split("*")[-1])
        for line in body.split(";")
        for name in line.split(",")
        if name.strip()
    ]


def layout(structs: dict[str, list[str]], header: Path) -> list[str]:
    """Sizes of structs, and of each member offset and size."""
    lines = [f'#include "{header}"', "#include <stdio.h>", "int main(void) {"]
    for name, inside in structs.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [
            f'printf("  {m} %zu %zu\\n", offsetof({name}, {m}), sizeof((({name}*)0)->{m}));'
            for m in inside
        ]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "layout.c", Path(folder) / "layout"
        source.write_text("\n".join([*lines, "}\n"]))
        subprocess.run(["cc", "-std=c11", str(source), "-o", str(program)], check=True)
        done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def dump(header: Path = HEADER, library: Path = LIBRARY) -> str:
    """Return the whole text."""
    found = declarations(header.read_text(encoding="utf-8"))
    structs = {}
    for part in found:
        match = re.fullmatch(r"typedef struct \w+ \{(.*)\} (\w+)", part)
        if match:
            structs[match[2]] = members(match[1])
    values = [
        " ".join(value.split())
        for part in found
        if part.startswith("enum")
        for value in part[part.index("{") + 1 : part.rindex("}")].split(",")
    ]
    rest = [part for part in found if not part.startswith("enum") and "{" not in part]
    sections = {
        "symbols": symbols(library),
        "declarations": rest,
        "constants": values,
        "structs: size; members: offset, size": layout(structs, header),
    }
    return "".join(f"# {name}\n" + "".join(f"{v}\n" for v in s) for name, s in sections.items())


if __name__ == "__main__":
    FILE.write_text(dump(), encoding="utf-8")
