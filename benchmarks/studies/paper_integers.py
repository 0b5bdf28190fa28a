"""PTX instructions on integers as Python.

A register is an unsigned Python int of its width. Floats, shared memory, and instructions that no
address or branch of our kernels needs are not translated; they are None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["PARAMETERS", "Instruction", "address_of", "bytes_of", "is_access", "value_of"]

PARAMETERS = 1 << 62  # address of the arguments of a kernel, in a separate space
_SPECIAL = {
    f"%{name}.{axis}": 3 * i + j
    for i, name in enumerate(("tid", "ctaid", "ntid", "nctaid"))
    for j, axis in enumerate("xyz")
}
_WIDTHS = {"pred": 1, "16": 16, "32": 32, "64": 64, "8": 8}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_COMPARE |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}


@dataclass(frozen=True)
class Instruction:
    """One line: ``@guard op results, operands``."""

    op: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str | None = None
    negated: bool = False

    @property
    def parts(self) -> list[str]:
        """The opcode and its modifiers."""
        return self.op.split(".")


def _width(op: str) -> int:
    match = re.search(r"\.(?:[subf](8|16|32|64)|pred)$", op)
    return _WIDTHS[match[1] or "pred"] if match else 0


def is_access(line: Instruction) -> bool:
    head, space = line.parts[0], line.parts[1] if len(line.parts) > 1 else ""
    if head in ("ld", "ldu", "st", "red", "atom"):
        return space not in ("param", "shared", "local", "const") and "shared" not in line.op
    return head == "cp" and "global" in line.op


def bytes_of(line: Instruction) -> int:
    if line.parts[0] == "cp":
        return int(line.operands[2])
    many = re.search(r"\.v([248])", line.op)
    return (int(many[1]) if many else 1) * max(1, _width(line.op) // 8)


def place_of(line: Instruction) -> str:
    """Return the operand that is an address of device memory; the last of the two of a copy."""
    places = [one for one in line.operands if one.startswith("[")]
    return places[-1 if line.parts[0] == "cp" else 0]


def address_of(operand: str) -> str:
    match = re.match(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]", operand)
    if match is None:
        raise ValueError(operand)
    return f"({_operand(match[1], 64)} + {match[2] or 0})"


def _operand(text: str, width: int) -> str:
    if re.fullmatch(r"%[a-z]+\d+", text):
        return f"r[{text!r}]"
    if text in _SPECIAL:
        return f"s.place[{_SPECIAL[text]}]"
    if text in ("%laneid", "WARP_SZ"):
        return "0" if text == "%laneid" else "32"
    if "_param_0" in text:
        return "P"
    if width == 1 and text in ("1", "0"):
        return text
    return str(int(text.rstrip("U"), 0) & ((1 << width) - 1))


def _signed(text: str, width: int) -> str:
    """Return Python that reads a number of `width` bits as signed."""
    half = 1 << (width - 1)
    return f"(({text} ^ {half}) - {half})"


def value_of(line: Instruction) -> str | list[str] | None:
    """Return Python of the result of an instruction on integers."""
    parts, op = line.parts, line.parts[0]
    if any(re.fullmatch(r"f(16|32|64)|f16x2|bf16|bf16x2|tf32", p) for p in parts):
        return None
    width = _width(line.op)
    mask = (1 << width) - 1
    if op == "ld":
        if parts[1] in ("shared", "local", "const") or "{" in line.operands[0] or not width:
            return None
        if len(line.results) != 1:
            return None
        return f"s.load({address_of(line.operands[0])}, {width // 8})"
    if op == "cvta":
        return _operand(line.operands[0], 64)
    if op == "mov" and line.operands[0].startswith("{"):  # the low half comes first
        low, high = (one.strip() for one in line.operands[0].strip("{}").split(","))
        return f"{_operand(low, width // 2)} | {_operand(high, width // 2)} << {width // 2}"
    if op == "mov" and len(line.results) == 2:
        whole, half = _operand(line.operands[0], width), width // 2
        return [f"{whole} & {(1 << half) - 1}", f"{whole} >> {half}"]
    if len(line.results) != 1 or not width:
        return None
    return _arithmetic(line, width, mask)


def _arithmetic(line: Instruction, width: int, mask: int) -> str | None:
    parts, op, signed = line.parts, line.parts[0], line.parts[-1].startswith("s")
    wide = len(parts) > 1 and parts[1] == "wide"
    given = [_operand(one, 1 if op == "selp" and i == 2 else width)
             for i, one in enumerate(line.operands)]  # fmt: skip

    def read(i: int) -> str:
        return _signed(given[i], width) if signed else given[i]

    if op == "mov":
        return given[0]
    if op in ("add", "sub") and parts[1] not in ("cc", "sat"):
        return f"({given[0]} {'+' if op == 'add' else '-'} {given[1]}) & {mask}"
    if op in ("mul", "mad"):
        if parts[1] == "hi":
            return f"({read(0)} * {read(1)} >> {width}) & {mask}" if op == "mul" else None
        out = (1 << 2 * width) - 1 if wide else mask
        more = f" + {given[2]}" if op == "mad" else ""
        left, right = (read(0), read(1)) if wide else (given[0], given[1])
        return f"({left} * {right}{more}) & {out}"
    if op in ("div", "rem"):
        a, b = read(0), read(1)
        ratio = f"(abs({a}) // max(1, abs({b})) * (1 if ({a} < 0) == ({b} < 0) else -1))"
        return f"{ratio} & {mask}" if op == "div" else f"({a} - {ratio} * {b}) & {mask}"
    if op in _LOGIC:
        return f"{given[0]} {_LOGIC[op]} {given[1]}"
    if op == "not":
        return f"{given[0]} ^ {mask}"
    if op == "neg":
        return f"-{given[0]} & {mask}"
    if op == "abs":
        return f"abs({read(0)}) & {mask}"
    if op in ("min", "max"):
        return f"{op}({read(0)}, {read(1)}) & {mask}"
    if op == "shl":
        return f"({given[0]} << min({given[1]}, {width})) & {mask}"
    if op == "shr":
        return f"({read(0)} >> min({given[1]}, {width})) & {mask}"
    if op == "selp":
        return f"({given[0]} if {given[2]} else {given[1]})"
    if op == "setp":
        compared = f"int({read(0)} {_COMPARE[parts[1]]} {read(1)})"
        joined = parts[2] if parts[2] in _LOGIC else None
        return (
            f"{compared} {_LOGIC[joined]} {_operand(line.operands[2], 1)}" if joined else compared
        )
    if op == "cvt":
        return _converted(line, width)
    if op == "bfi":  # the low bits of the first into the second
        bits, place = f"((1 << {given[3]}) - 1)", given[2]
        kept = f"{given[1]} & ~({bits} << {place})"
        return f"({kept} | ({given[0]} & {bits}) << {place}) & {mask}"
    if op == "popc":
        return f"({given[0]}).bit_count()"
    return None


def _converted(line: Instruction, source: int) -> str | None:
    match = re.match(r"cvt\.([usb])(\d+)\.([usb])(\d+)$", line.op)
    if match is None:
        return None
    value = _operand(line.operands[0], source)
    value = f"{value} & {(1 << source) - 1}"
    if match[3] == "s":
        value = _signed(f"({value})", source)
    return f"{value} & {(1 << int(match[2])) - 1}"
