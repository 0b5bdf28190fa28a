"""How the tests themselves are laid out."""

import re

from tests.support.paths import ROOT


def test_no_test_module_imports_another():
    """What two of them share lies in support/, in oracle/, or beside them in a file of its own."""
    found = []
    for path in (ROOT / "tests").rglob("*.py"):
        lines = path.read_text().splitlines()
        found += [(path.name, line) for line in lines if re.match(IMPORT, line)]
    assert not found


IMPORT = r"\s*(from|import) (tests\.(\w+\.)*test_|tests(\.\w+)* import test_|\.+\w*test_)"
