"""How often each part of a kernel runs, from its PTX and the arguments of a launch.

The integer instructions that branches and addresses depend on are turned into Python, a function
for each part between branches. These functions run for single threads of a launch, one thread for
each warp. Floats and shared memory are not computed. A branch that depends on them is guessed, the
shorter side first and then in turns, and the guess is reported. The count follows from the PTX
alone, without names of kernels.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from benchmarks.studies.paper_integers import (
    PARAMETERS,
    Instruction,
    address_of,
    bytes_of,
    is_access,
    place_of,
    value_of,
)

__all__ = ["Access", "Function", "Thread", "functions", "regions"]

_MOST = 20_000_000  # parts that one thread may run
_NO_RESULT = ("st", "bar", "barrier", "bra", "brx", "ret", "exit", "trap", "red", "membar", "fence")
_NO_RESULT += ("cp", "prefetch", "prefetchu", "nanosleep")


@dataclass(frozen=True)
class Access:
    """A load or store of device memory in the text.

    Attributes
    ----------
    width : int
        Bytes of a thread.
    store : bool
    known : bool
        Whether its addresses follow from the arguments.
    copy : bool
        Asynchronous, to shared memory.
    """

    width: int
    store: bool
    known: bool
    copy: bool = False


@dataclass
class Thread:
    """The work of one thread.

    Attributes
    ----------
    parts : list of int
        How often each part ran.
    accesses : list of [count, lowest, highest address]
        By the number of the access.
    guesses : int
        Branches that were guessed.
    blind : int
        Integers that were read outside of all allocations.
    """

    parts: list[int]
    accesses: list[list[int]]
    guesses: int = 0
    blind: int = 0


@dataclass
class Function:
    """An entry of a PTX module.

    Attributes
    ----------
    symbol : str
    parts : list of list of Instruction
        Code between branches, in the order of the text.
    labels : dict of str to int
        The part that follows a label.
    """

    symbol: str
    parts: list[list[Instruction]]
    labels: dict[str, int]
    accesses: list[Access] = field(default_factory=list)

    @cached_property
    def loops(self) -> list[tuple[int, int]]:
        """First and last part of each loop, sorted by the first."""
        found: dict[int, int] = {}
        for number, part in enumerate(self.parts):
            if part and part[-1].op.startswith("bra"):
                to = self.labels[part[-1].operands[0]]
                if to <= number:
                    found[to] = max(found.get(to, 0), number)
        return sorted(found.items())

    @cached_property
    def _program(self) -> tuple[list[Callable[..., int]], tuple[int, ...]]:
        return _Writer(self).program()

    @property
    def decisive(self) -> tuple[int, ...]:
        """Offsets of the 8-byte arguments that the path depends on."""
        return self._program[1]

    def run(
        self,
        arguments: bytes,
        place: tuple[int, ...],
        read: Callable[[int, int], int | None],
    ) -> Thread:
        """Run one thread.

        Parameters
        ----------
        arguments : bytes
        place : tuple of int
            Thread, block, threads of a block and blocks of the grid, three numbers each.
        read : callable
            address, bytes -> the integer there, None outside of all allocations.
        """
        program, _ = self._program
        thread = Thread([0] * len(program), [[0, 1 << 64, -1] for _ in self.accesses])
        parts, number, left = thread.parts, 0, _MOST
        registers: dict[str, Any] = defaultdict(int)
        state = _State(arguments, place, read, thread)
        while number >= 0:
            parts[number] += 1
            number = program[number](registers, state)
            left -= 1
            if left == 0:
                raise RuntimeError(f"[paper] expected {self.symbol} to end")
        return thread


class _State:
    """State that the parts of a program share."""

    def __init__(self, arguments, place, read, thread):  # type: ignore[no-untyped-def]
        self.arguments, self.place, self.memory, self.thread = arguments, place, read, thread
        self.tired: dict[int, int] = {}

    def load(self, address: int, size: int) -> int:
        """Return an integer of the arguments or of memory; 0 if unknown."""
        if address >= PARAMETERS:
            at = address - PARAMETERS
            return int.from_bytes(self.arguments[at : at + size], "little")
        value = self.memory(address, size)
        if value is None:
            self.thread.blind += 1
            return 0
        return value

    def guess(self, number: int, first: bool) -> bool:
        """Return whether an unknown branch jumps: in turns, beginning with `first`."""
        self.thread.guesses += 1
        self.tired[number] = self.tired.get(number, 0) + 1
        return (self.tired[number] % 2 == 1) == first


def functions(text: str) -> dict[str, Function]:
    """Return the entries of a PTX module by symbol.

    In a kernel with clusters, an access without a state space is to shared memory of other blocks.
    Accesses to device memory have a state space there.
    """
    found = {}
    for match in re.finditer(r"\.entry (\w+)\(.*?\n\{\n(.*?)\n\}\n", text, re.S):
        body = match[2]
        if "mapa." in body:
            body = re.sub(r"\b(ld|st)\.(?=[vbfsu]\d)", r"\1.shared.", body)
        found[match[1]] = _function(match[1], body)
    return found


def regions(loops: list[tuple[int, int]], count: int) -> list[int]:
    """Return the number of the innermost loop of each of `count` places; -1 outside of loops."""
    owner, width = [-1] * count, [count + 1] * count
    for number, (first, last) in enumerate(loops):
        for place in range(first, min(last + 1, count)):
            if last - first < width[place]:
                owner[place], width[place] = number, last - first
    return owner


def _function(symbol: str, body: str) -> Function:
    parts: list[list[Instruction]] = [[]]
    labels: dict[str, int] = {}
    for line in body.split("\n"):
        text = line.partition("//")[0].strip()
        label = re.match(r"(\$?\w+):$", text)
        if label:
            if parts[-1]:
                parts.append([])
            labels[label[1]] = len(parts) - 1
            continue
        for one in text.split(";"):
            one = one.strip().lstrip("{").rstrip("}") if one.strip() in "{}" else one.strip()
            if not one or one.startswith((".", "{ .reg")):
                continue
            made = _instruction(one)
            parts[-1].append(made)
            if made.parts[0] in ("bra", "ret", "exit", "brx", "trap"):
                parts.append([])
    if not parts[-1] and len(parts) - 1 not in labels.values():
        parts.pop()
    return Function(symbol, parts, labels)


def _instruction(text: str) -> Instruction:
    guard, negated = None, False
    match = re.match(r"@(!?)(%\w+)\s+(.*)", text, re.S)
    if match:
        negated, guard, text = match[1] == "!", match[2], match[3]
    op, _, rest = text.partition(" ") if "\t" not in text else text.partition("\t")
    op, rest = op.strip(), rest.strip()
    operands = [part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,])+", rest)]
    if op.split(".")[0] in _NO_RESULT or op.split(".")[0] == "call":
        return Instruction(op, (), tuple(operands), guard, negated)
    first = re.findall(r"%\w+", operands[0]) if operands else []
    return Instruction(op, tuple(first), tuple(operands[1:]), guard, negated)


class _Writer:
    """Writes Python for the instructions that path and addresses of a function depend on."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.lines = [line for part in function.parts for line in part]
        self.text: dict[int, str | None] = {id(line): self._line(line) for line in self.lines}
        self.unknown = self._unknown()

    def program(self) -> tuple[list[Callable[..., int]], tuple[int, ...]]:
        """Return functions of all parts, and offsets of arguments that branches depend on."""
        needed = self._needed(addresses=True)
        code = []
        for number, part in enumerate(self.function.parts):
            body = [f"def part{number}(r, s):"]
            for line in part:
                body += ["    " + text for text in self._python(line, needed)]
            body.append(f"    {self._leave(number, part)}")
            code.append("\n".join(body))
        space: dict[str, Any] = {"P": PARAMETERS}
        exec(compile("\n".join(code), f"<{self.function.symbol}>", "exec"), space)
        decisive = self._needed(addresses=False)
        offsets = set()
        for line in self.lines:
            if line.op.startswith("ld.param") and not decisive.isdisjoint(line.results):
                match = re.search(r"\+(\d+)\]", line.operands[0])
                offsets.add(int(match[1]) if match else 0)
        return [space[f"part{i}"] for i in range(len(code))], tuple(sorted(offsets))

    def _unknown(self) -> set[str]:
        """Return the registers that depend on numbers that are not computed."""
        unknown: set[str] = set()
        while True:
            before = len(unknown)
            for line in self.lines:
                used = [*self._registers(line)]
                if self.text[id(line)] is None or not unknown.isdisjoint(used):
                    unknown.update(line.results)
            if len(unknown) == before:
                return unknown

    def _needed(self, *, addresses: bool) -> set[str]:
        """Return the known registers that branches and addresses of accesses depend on."""
        needed: set[str] = set()
        for line in self.lines:
            if line.parts[0] in ("bra", "ret", "exit") and line.guard:
                needed.add(line.guard)
            if addresses and is_access(line):
                needed.update(self._registers(line, address=True))
        needed -= self.unknown
        makers: dict[str, list[Instruction]] = {}
        for line in self.lines:
            for result in line.results:
                makers.setdefault(result, []).append(line)
        todo = list(needed)
        while todo:
            for line in makers.get(todo.pop(), []):
                new = [r for r in self._registers(line) if r not in needed]
                needed.update(new)
                todo += new
        return needed

    @staticmethod
    def _registers(line: Instruction, *, address: bool = False) -> list[str]:
        operands = line.operands
        if address:
            operands = (place_of(line),)
        found = [r for one in operands for r in re.findall(r"%[a-z]+\d+", one)]
        return [*found, line.guard] if line.guard else found

    def _python(self, line: Instruction, needed: set[str]) -> list[str]:
        lines = []
        if is_access(line):
            number = len(self.function.accesses)
            known = self.unknown.isdisjoint(self._registers(line, address=True))
            store = line.parts[0] in ("st", "red")
            self.function.accesses.append(
                Access(bytes_of(line), store, known, line.parts[0] == "cp")
            )
            at = place_of(line)
            lines += [f"e = s.thread.accesses[{number}]", "e[0] += 1"]
            if known:
                lines += [f"a = {address_of(at)}", "if a < e[1]: e[1] = a", "if a > e[2]: e[2] = a"]
        made = self.text[id(line)]
        if made is not None and not needed.isdisjoint(line.results):
            lines.append(made)
        if line.guard and line.guard not in self.unknown and lines:
            condition = f"if {'not ' if line.negated else ''}r[{line.guard!r}]:"
            lines = [condition, *("    " + one for one in lines)]
        return lines

    def _leave(self, number: int, part: list[Instruction]) -> str:
        labels, parts = self.function.labels, self.function.parts
        after = number + 1 if number + 1 < len(parts) else -1
        if not part or part[-1].parts[0] not in ("bra", "ret", "exit", "trap", "brx"):
            return f"return {after}"
        line = part[-1]
        if line.parts[0] == "brx":
            raise NotImplementedError(f"[paper] a table of branches in {self.function.symbol}")
        to = labels[line.operands[0]] if line.parts[0] == "bra" else -1
        if line.guard is None:
            return f"return {to}"
        if line.guard in self.unknown:
            shorter = to < 0 or to > number  # forward, not through a loop again
            return f"return {to} if s.guess({number}, {shorter}) else {after}"
        return f"return {to} if {'not ' if line.negated else ''}r[{line.guard!r}] else {after}"

    def _line(self, line: Instruction) -> str | None:
        """Return Python of an instruction on integers; None for other or unknown ones."""
        if not line.results:
            return None
        try:
            value = value_of(line)
        except (KeyError, ValueError, IndexError):
            return None
        if value is None:
            return None
        if isinstance(value, list):
            return "; ".join(
                f"r[{name!r}] = {one}" for name, one in zip(line.results, value, strict=True)
            )
        return f"r[{line.results[0]!r}] = {value}"
