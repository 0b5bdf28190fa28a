"""Who imports whom: every import of a package's files, lazy ones and those for typing too."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The files of one run at the top of the package, and the package lockstep, from the lowest up. They
# are internal: the public names in them are also names of `ribbit`.
RUN = ["interrupt", "density", "chains", "lockstep", "sinks", "progress", "until", "executor"]
RUN += ["handle", "sample", "adapter", "kernels"]


@dataclass(frozen=True)
class Import:
    """One import of a module.

    Attributes
    ----------
    source : str
        Dotted name of the module that imports.
    target : str
        Dotted name of what it imports: a module of the package where the name is one, else the
        module that the name is taken from.
    line : int
    top : bool
        Whether it runs when the module is imported: not in a function, not for typing alone.
    """

    source: str
    target: str
    line: int
    top: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


def modules(folder: Path, package: str) -> dict[str, Path]:
    """Return the files of a package by dotted name."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [package, *path.relative_to(folder).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(folder: Path, package: str) -> list[Import]:
    """Return every import in a package's files, whatever it imports."""
    files = modules(folder, package)
    native = {f"{package}.{p.stem}" for p in folder.glob("*.pyi")}
    found = []
    for name, path in files.items():
        inside = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node, top in statements(ast.parse(path.read_text(encoding="utf-8"))):
            for target in targets_of(node, inside, {*files, *native}):
                found.append(Import(name, target, node.lineno, top))
    return found


def statements(tree: ast.AST, top: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Every import statement below `tree`, and whether it runs at import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, top
        else:
            typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from statements(node, top and not inner and not typing_only)


def targets_of(node: ast.stmt, inside: str, known: set[str]) -> set[str]:
    """Return the modules that one statement imports; `inside`: the package it stands in."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    assert isinstance(node, ast.ImportFrom)
    base = node.module or ""
    if node.level:
        parts = inside.split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
    whole = {f"{base}.{alias.name}" for alias in node.names}
    return {name if name in known else base for name in whole}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other (Tarjan 1972), each sorted."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1 or node in edges.get(node, ()):
                found.append(sorted(group))

    for node in edges:
        if node not in number:
            visit(node)
    return found
