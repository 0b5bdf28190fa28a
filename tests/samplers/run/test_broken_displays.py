"""Standard error that cannot be written costs the display, never a draw."""

import errno
import io
import subprocess
import sys
import warnings

import numpy as np
import pytest

from ribbit import progress
from ribbit._arrays.warning import warn
from ribbit.errors import RibbitWarning
from ribbit.samplers import HMC
from tests.support.targets import OPTIONS, equal, posterior

ERRORS = {
    "full disk": OSError(errno.ENOSPC, "No space left on device"),
    "broken pipe": BrokenPipeError(errno.EPIPE, "Broken pipe"),
    "closed": ValueError("I/O operation on closed file."),
    "not text": TypeError("a bytes-like object is required"),
}


class Broken(io.StringIO):
    """A stream that fails from its n-th write on."""

    def __init__(self, error, terminal, after=0):
        super().__init__()
        self.error, self.terminal, self.after, self.writes = error, terminal, after, 0

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.writes += 1
        if self.writes > self.after:
            raise self.error
        return super().write(text)


@pytest.fixture(scope="module")
def hmc():
    return HMC(posterior(), **OPTIONS["fixed"])


@pytest.fixture
def _eager(monkeypatch):
    """Every step asks the display."""
    for name in ("LINE_SECONDS", "_INTERVAL", "_COST_FACTOR"):
        monkeypatch.setattr(progress, name, 0.0)


@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("error", ERRORS)
def test_the_run_goes_on_and_warns_once(hmc, monkeypatch, error, terminal, after):
    stream = Broken(ERRORS[error], terminal, after)
    expected = hmc.sample(20, warmup=0, chains=2, progress=False)
    before = sys.stdout
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        with pytest.warns(RibbitWarning, match=r"\[progress\] expected .* got") as caught:
            draws = hmc.sample(20, warmup=0, chains=2, progress=True)
        assert sys.stderr is stream  # rich puts its own there while it is live
    assert sys.stdout is before
    assert len(caught) == 1
    assert stream.writes <= after + 3  # silent afterwards; rich frees the terminal
    assert draws.complete
    equal(expected, draws)


def test_a_stream_that_does_not_know_whether_it_is_a_terminal(hmc, monkeypatch):
    closed = io.StringIO()
    closed.close()  # isatty raises
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", closed)
        assert hmc.sample(3, warmup=0, chains=1).complete  # a short run says nothing
        with pytest.warns(RibbitWarning, match=r"\[progress\]"):
            assert hmc.sample(3, warmup=0, chains=1, progress=True).complete


def test_a_callback_of_the_user_is_not_dropped(hmc):
    def fail(snapshot):
        raise OSError("mine")

    with pytest.raises(OSError, match="mine"):
        hmc.sample(3, warmup=0, chains=1, progress=fail)


def test_warnings_that_cannot_be_shown_are_dropped(monkeypatch):
    def fail(*args, **kwargs):
        raise ValueError("I/O operation on closed file.")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", fail)
        warn("[f] expected nothing, got nothing")
        warnings.simplefilter("error")
        with pytest.raises(RibbitWarning, match="nothing"):
            warn("[f] expected nothing, got nothing")


SCRIPT = """
import sys
import numpy as np
import ribbit as rb
x = np.ones((4, 2))
target = rb.Posterior(rb.mlp(2, (), 1), x, x[:, 0], prior=rb.Normal(1.0),
                      likelihood=rb.Gaussian(0.5))
hmc = rb.HMC(target, step_size=0.1, num_leapfrog_steps=2)
if "close" in sys.argv:
    sys.stderr.close()
sys.stdin.readline()
draws = hmc.sample(3, warmup=0, progress=True)
draws.save(sys.argv[1])
"""


@pytest.mark.parametrize("how", ["close", "pipe"])
def test_in_a_process_of_its_own(tmp_path, how):
    """Nobody reads standard error any more, as after ``2>&1 | head -1``, or it is closed."""
    path = tmp_path / "draws"
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), how],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    child.stderr.close()
    child.communicate(b"\n", timeout=60)
    assert path.exists()
    with np.load(path) as found:
        assert found["positions"].shape[1] == 3
