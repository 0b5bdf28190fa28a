"""stub"""

from benchmarks.harness import machine

DOCUMENT = machine.ROOT / "docs" / "effective.md"


def page(lines, command):
    return str(lines)


def write(path, lines, command):
    path.write_text(page(lines, command))
