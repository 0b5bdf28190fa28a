"""Runs the README's first example, `python tools/twelve_lines.py README.md`, and looks at its ends.

Needs nothing of the checkout but that page: what runs is the package that is installed.
"""

import re
import sys
import time
from pathlib import Path


def main() -> None:
    """Exit with an assertion where the example does not do what its page says."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    names: dict = {}
    start = time.perf_counter()
    exec(compile(code, "README.md", "exec"), names)
    seconds = time.perf_counter() - start
    rb, y = names["rb"], names["y"][names["test"]]
    inside = rb.metrics.coverage(y, names["lower"], names["upper"])
    assert names["draws"].positions.shape[:2] == (4, 500)
    # One split: 77 rows at 0.9 have an sd of 0.034.
    assert 0.8 < inside < 0.99, inside
    print(f"ran in {seconds:.1f} s from {Path(rb.__file__).parent}")


if __name__ == "__main__":
    main()
