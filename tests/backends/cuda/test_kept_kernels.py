"""Kernels that the tests compile for the CPU are kept for a while, not for good."""

import os
import time

from tests.support.cuda import compiler


def test_folders_that_nobody_uses_go(tmp_path, monkeypatch):
    monkeypatch.setenv("RIBBIT_KERNEL_CACHE", str(tmp_path))
    now = time.time()
    made = [compiler.folder(compiler.digest(str(days))) for days in range(8)]
    for days, path in enumerate(made):
        (path / "one.so").write_text("")
        os.utime(path, (now, now - (days + 0.5) * 24 * 3600))
    other = compiler.folder("faults")
    os.utime(other, (0, 0))
    assert compiler.used(made[6]) == made[6]
    left = [path.exists() for path in made]
    # the one that is used now and the three newest; more of them if they are of today
    assert left == [True, True, True, False, False, False, True, False]
    assert other.exists()
    for path in made[:3]:
        os.utime(path, (now, now - 3600))
    new = [compiler.folder(compiler.digest(f"new {i}")) for i in range(4)]
    compiler.used(new[0])
    assert all(path.exists() for path in (*new, *made[:3]))
