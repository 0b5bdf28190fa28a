"""Where a save may land: links are followed, permissions kept, and only files are replaced."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from ribbit.results import atomic_file
from ribbit.samplers import HMC
from ribbit.store import load
from tests.support.targets import Gaussian, equal

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links, modes and pipes of POSIX")


@pytest.fixture(scope="module")
def draws():
    return HMC(Gaussian([1.0, 2.0]), step_size=0.1, num_leapfrog_steps=2).sample(3, init=[0, 0])


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_pipe_is_left_alone(draws, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"\[Draws.save\] path must be a regular file .*, got a pipe"):
        draws.save(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_a_device_is_left_alone(draws):
    before = os.stat("/dev/null")
    with pytest.raises(
        OSError, match=r"\[Draws.save\] path must be a regular file .*, got a device"
    ):
        draws.save("/dev/null")
    after = os.stat("/dev/null")
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


def test_a_socket_is_left_alone(draws, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        with pytest.raises(OSError, match="got a socket"):
            draws.save("socket")
    assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)


def test_a_link_is_followed(draws, tmp_path):
    (tmp_path / "folder").mkdir()
    real, link = tmp_path / "folder" / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to("folder/real")
    draws.save(link)
    assert link.is_symlink()
    equal(draws, load(real))
    assert [p.name for p in real.parent.iterdir()] == ["real"]


def test_a_link_to_a_new_name_makes_it(draws, tmp_path):
    (tmp_path / "link").symlink_to("new")
    draws.save(tmp_path / "link")
    equal(draws, load(tmp_path / "new"))
    (tmp_path / "to_pipe").symlink_to("pipe")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="got a pipe"):
        draws.save(tmp_path / "to_pipe")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="got a circle of links"):
        draws.save(tmp_path / "a")


@pytest.mark.parametrize("given", [0o600, 0o640, 0o664])
def test_the_mode_is_kept(draws, tmp_path, given):
    path = tmp_path / "run"
    path.write_bytes(b"old")
    path.chmod(given)
    draws.save(path)
    assert mode(path) == given
    equal(draws, load(path))


def test_a_private_file_is_private_while_it_is_written(draws, tmp_path, monkeypatch):
    path, seen = tmp_path / "run", []
    path.write_bytes(b"old")
    path.chmod(0o600)
    real = np.savez

    def savez(file, **arrays):
        seen.extend(mode(p) for p in tmp_path.iterdir())
        real(file, **arrays)

    monkeypatch.setattr(np, "savez", savez)
    draws.save(path)
    assert seen == [0o600, 0o600]


KILLED = """
import os, sys
import numpy as np
import ribbit as rb
draws = rb.load(sys.argv[1])
def half(file, **arrays):
    file.write(b"half")
    file.flush()
    if sys.argv[2] == "die":
        os.kill(os.getpid(), 9)
    print("writing", flush=True)
    sys.stdin.read()
np.savez = half
draws.save(sys.argv[1])
"""


def test_what_a_killed_save_left_goes_with_the_next(draws, tmp_path):
    path = tmp_path / ("long name " * 25)[:250]  # a name has at most 255 bytes
    draws.save(path)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), "die"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / ".other.0123456789ab.tmp").touch()  # not ours
    draws.save(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.0123456789ab.tmp", path.name]
    equal(draws, load(path))


def test_a_save_that_is_alive_keeps_its_temporary_file(draws, tmp_path):
    path = tmp_path / "run"
    draws.save(path)
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "writing\n"
    draws.save(path)
    assert len(list(tmp_path.iterdir())) == 2
    child.communicate()  # it ends its half-written save, over ours
    assert child.returncode == 0
    assert path.read_bytes() == b"half"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_saves_at_once_all_succeed(draws, tmp_path):
    """Threads that clean up while others create: a temporary file is never lost to a race."""
    path, errors, end = tmp_path / "run", [], time.perf_counter() + 1.0

    def work():
        while time.perf_counter() < end:
            try:
                atomic_file.write_atomically("f", path, lambda file: file.write(b"whole"))
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
