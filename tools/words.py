"""Finds phrases that readers stumble over, and long sentences.

``python -m tools.words [PATH ...]`` reads the pages (README.md, CONTRIBUTING.md, docs/), the
docstrings of the public API and the messages in python/ribbit, and prints a line for each finding.
With paths it reads only these files and folders.
Code, links' targets, formulas and directives are not read, cells of tables are.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "ribbit"
LONGEST = 35  # words of a sentence
# Lists of public names within packages.
LISTS = (
    "models/layers/[a-z]*.py",
    "models/zoo.py",
    "targets/likelihoods.py",
    "targets/priors.py",
)

# Phrase and plain alternative. A space stands for any white space; case does not matter.
PHRASES = {
    r"that holds (?:it|them)": "name the test or the reason",
    r"what holds (?:it|them)": "name the tests",
    r"held to": "compared with, or checked against",
    r"(?:same|the|their|its|other|different|all|to|of) bits|bits (?:of|as|are|do|come)": (
        "bit-identical"
    ),
    r"beside": "next to, compared with, or in addition to",
    r"by hand": "name the command, or leave it out",
    r"(?:with )?nothing (?:is )?set": "with default settings",
    r"(?:go|goes|going|gone|went) on": "continue, or resume",
    r"(?<!power\s)(?<!power-)laws?(?! of (?:large|total))": "distribution",
    r"knobs?": "option, or setting",
    r"house|rooms?": "package, or integration",
    r"rivals?": "other library",
    r"of other code": "from an earlier version",
    r"verdicts?": "outcome",
    r"judg(?:e|es|ed|ing)": "checked, or monitored",
    r"(?:who|what|which|where|whom)ever": "name the actor or thing",
    r"nobody|no one|somebody|someone": "you, or the thing that acts",
    r"(?<!so\s)that of|those of|of which|of whom": "repeat the noun",
    r"what (?:is|was|lies|stands) there|what there (?:is|was)": "name the thing",
    r"where (?:none|nothing|neither|it pays|that pays|they pay)": "if",
    r"(?-i:(?:is|are) none)": "say what it is",
    r"as (?:it|they) stands?": "unchanged, or as shown",
    r"and so (?:do|does|is|are|has|have)": "also",
    r"crews?|fallen": "thread group, stuck chain",
}
# In pages for users only.
FOR_USERS = {r"devices?": "GPU"}
# A sentence that starts so is fine if it is a question.
STARTS = r"(?:Of|What|Which|Where|Who|Whose|Whom)\b(?! course)"

_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_END = re.compile(r"(?<=[.!?])[\"')\]*]*\s+(?=[\"'(\[*]*[A-Z0-9]|[\"'])")
_FENCE = re.compile(r"\s*(`{3,}|~{3,}|:{3,})(.*)")
_PROSE = re.compile(r"\{(?:note|tip|warning|important|admonition|seealso|dropdown)\}")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")


class Finding(NamedTuple):
    """A phrase or sentence to change: in which file, at which line, and why."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Block(NamedTuple):
    """A paragraph, list item, cell or message; sentences do not run across blocks."""

    line: int
    text: str


def _blank(match: re.Match[str], word: str) -> str:
    return word + "\n" * match[0].count("\n")


def plain(text: str) -> str:
    """Return a text with code, links and formulas as single words, on the same lines."""
    text = re.sub(r":[a-z:]+:`[^`]+`|\{[a-z:]+\}`[^`]+`", lambda m: _blank(m, "CODE"), text)
    text = _CODE.sub(lambda m: _blank(m, "CODE"), text)
    text = re.sub(r"\$\$.+?\$\$|\$[^$\n]+\$", lambda m: _blank(m, "MATH"), text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", lambda m: _blank(m, m[1].replace("\n", " ")), text)
    text = re.sub(r"<?https?://[^\s>)]+>?", "URL", text)
    return text.replace("*", "")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a block, each with its offset."""
    start = 0
    for end in _END.finditer(text):
        yield start, text[start : end.start()]
        start = end.end()
    yield start, text[start:]


def findings(
    path: str, blocks: Iterable[Block], *, longest: int = LONGEST, users: bool = False
) -> Iterator[Finding]:
    """Yield what is wrong with blocks of a file; `longest` 0 sets no limit of words."""
    phrases = PHRASES | (FOR_USERS if users else {})
    for line, raw in blocks:
        text = plain(raw)
        for phrase, advice in phrases.items():
            words = phrase.replace(" ", r"\s+")
            for match in re.finditer(rf"(?<![\w-])(?:{words})(?![\w-])", text, re.IGNORECASE):
                where = line + text[: match.start()].count("\n")
                found = " ".join(match[0].split())
                yield Finding(path, where, f"'{found}': {advice}")
        for offset, sentence in sentences(text):
            where = line + text[:offset].count("\n")
            words = re.findall(r"\S*\w\S*", sentence)
            if longest and len(words) > longest:
                begin = " ".join(words[:5])
                yield Finding(path, where, f"{len(words)} words, {longest} at most: '{begin} ...'")
            begins = re.match(r"[\"'(\[\s]*(" + STARTS + ")", sentence)
            if begins and "?" not in sentence:
                yield Finding(path, where, f"starts with '{begins[1]}': subject, verb, object")


def page(text: str) -> Iterator[Block]:
    """Yield the blocks of a page of Markdown or reStructuredText."""
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    block: list[str] = []
    fences: list[tuple[str, bool]] = []  # the mark, and whether code follows
    first = 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        mark = _FENCE.match(line)
        code = any(hidden for _, hidden in fences)
        alone = mark is not None or line.lstrip().startswith(("#", "|", ">", "+--", ".. ", ":"))
        if block and (alone or code or not line.strip() or _ITEM.match(line)):
            yield Block(first, "\n".join(block))
            block = []
        if mark is not None:
            kind = mark[2].strip()
            if fences and not kind and mark[1].startswith(fences[-1][0]):
                fences.pop()
            elif not code:
                fences.append((mark[1], not _PROSE.match(kind) and mark[1][0] != ":"))
        elif code or not line.strip():
            continue
        elif line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")):
                yield Block(number, cell.strip())
        elif not line.lstrip().startswith((".. ", ":")):
            first = first if block else number
            block.append(_ITEM.sub("", line).lstrip("#> "))


def _syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _docstring(node: Scope) -> ast.Constant | None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value if isinstance(first.value.value, str) else None
    return None


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield string literals with their lines; holes of f-strings are one word."""
    if isinstance(node, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else "HOLE" for p in node.values]
        yield node.lineno, "".join(str(part) for part in parts)
        holes = [p.value for p in node.values if isinstance(p, ast.FormattedValue)]
        for hole in holes:
            yield from _strings(hole)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.lineno, node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)


def messages(tree: ast.Module) -> Iterator[Block]:
    """Yield every string of two words or more that is not a docstring."""
    texts = {
        (d.lineno, d.value)
        for n in ast.walk(tree)
        if isinstance(n, Scope)
        if (d := _docstring(n)) is not None
    }
    for line, text in _strings(tree):
        if " " in text.strip() and (line, text) not in texts:
            yield Block(line, text.replace("\n", " "))


def docstring(node: ast.Constant) -> Iterator[Block]:
    """Yield the paragraphs of a docstring, without doctests and underlines."""
    block: list[str] = []
    first, indent, code = node.lineno, -1, False
    for number, line in enumerate([*str(node.value).split("\n"), ""], node.lineno):
        stripped = line.strip()
        here = len(line) - len(line.lstrip())
        code = bool(stripped) and (code or stripped.startswith(">>>"))
        if (
            block
            and (
                not stripped
                or code
                or here != indent
                or set(stripped) == {"-"}
                or _ITEM.match(stripped)
            )
            and number > first
        ):
            yield Block(first, "\n".join(block))
            block = []
        if stripped and not code and set(stripped) != {"-"}:
            first = first if block else number
            indent = here if number > node.lineno else 4
            block.append(_ITEM.sub("", stripped))


def _is_public(path: Path) -> bool:
    """Whether users import from this file."""
    place = path.relative_to(PACKAGE).as_posix()
    top = not place.startswith("_") and place.count("/") == place.count("/__init__.py")
    return top or any(fnmatch(place, row) for row in ("__init__.py", *LISTS))


def _public(trees: dict[Path, ast.Module]) -> set[str]:
    """Return the names in ``__all__`` of what users import, and of the bases of these classes."""
    names: set[str] = set()
    for tree in (tree for path, tree in trees.items() if _is_public(path)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and target.id == "__all__" and node.value:
                    names |= {text for _, text in _strings(node.value)}
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    while more := {base for name in names & set(bases) for base in bases[name]} - names:
        names |= more
    return names


def docstrings(tree: ast.Module, names: set[str], *, module: bool) -> Iterator[Block]:
    """Yield the docstrings of public names and their public methods."""
    found: list[Scope] = [tree] if module else []
    for node in tree.body:
        if isinstance(node, Scope) and node.name in names:
            found += [
                node,
                *(
                    inner
                    for inner in node.body
                    if isinstance(inner, Scope) and not inner.name.startswith("_")
                ),
            ]
    for node in found:
        text = _docstring(node)
        if text is not None:
            yield from docstring(text)


def pages() -> list[Path]:
    """Return the pages of this checkout."""
    found = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs").rglob("*.rst"),
    ]
    built = ("docs/gallery/", "docs/api/generated/")
    return sorted(p for p in found if not p.relative_to(ROOT).as_posix().startswith(built))


def check(paths: Iterable[Path]) -> list[Finding]:
    """Return the findings in these files and folders."""
    chosen = [path.resolve() for path in paths]

    def wanted(path: Path) -> bool:
        return any(path == one or path.is_relative_to(one) for one in chosen)

    out: list[Finding] = []
    for path in filter(wanted, pages()):
        name = path.relative_to(ROOT).as_posix()
        users = name == "README.md" or name.startswith(("docs/start", "docs/guide", "docs/methods"))
        out += findings(name, page(path.read_text(encoding="utf-8")), users=users)
    trees = {path: _syntax(path) for path in sorted(PACKAGE.rglob("*.py"))}
    names = _public(trees)
    for path, tree in trees.items():
        if wanted(path):
            name = path.relative_to(ROOT).as_posix()
            out += findings(name, docstrings(tree, names, module=_is_public(path)))
            out += findings(name, messages(tree), longest=0)
    return sorted(out)


def main(arguments: list[str] | None = None) -> int:
    """Print the findings; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tools.words", description=__doc__)
    parser.add_argument("path", nargs="*", type=Path, help="files and folders, default all")
    paths = parser.parse_args(arguments).path
    found = check(paths or [ROOT])
    print("\n".join([*map(str, found), f"{len(found)} findings"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
