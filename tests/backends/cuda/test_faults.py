"""What the tests of all kernels would notice: planted faults, each beside its repaired twin.

Races are noticed by the order of threads, memory that nobody wrote by the NaN in it, and addresses
out of bounds by AddressSanitizer, under which all kernels run here once more.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ribbit
from ribbit._backends.cuda.programs import persistent
from tests.support.cuda import direct_norms
from tests.support.cuda.compiler import FIBERS, PHASES, digest, folder
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.problems import persistent_of, problem
from tests.support.cuda.thread_orders import ORDERS, compile_all, compiler, in_every_order
from tests.support.paths import CPP, ROOT

pytestmark = pytest.mark.kernels

HEADER = str(Path(__file__).with_name("faulty_kernels.h"))
THREADS = 64
RACES = {
    "MissingBarrier": np.arange(64.0, 0.0, -1.0),
    "PhaseCalledLast": np.arange(64.0, 0.0, -1.0),
    "ReadBetweenPhases": np.full(64, 2080.0 + 89440.0),
    "BarrierForSome": np.array([3.0, 2.0, 1.0]),
}
FOURS = ("CopyOfFour", "LoadOfFour", "WriteOfFour", "StoreOfFour")
UNWRITTEN = {"UnwrittenShared": (7, 0, 28.0), "UnwrittenRegister": (None, 5, 6.0)}


# Of norms that direct convolutions make: text of their headers, and what stands there instead.
_FIRST, _SECOND = direct_norms.NAMES[0], direct_norms.NAMES[2]
_LAST_READ = "block.phase([](int) {});  // the last step is read: its memory is the sink's"
_TREE = "block.phase([&](int t) {\n        if (t % kAlike >= half) return;"
_PAIRS = "block.phase([&](int t) {\n      Channels::each_pair"
_PAIRS_ANEW = (
    "block.phase([&](int thread) {\n      const int t = anew(thread);\n      Channels::each"
)
_DELTAS = "block.phase([&](int thread) {\n      const int t = anew(thread);\n      float (&own)"
_LINE = "if (!Tile::has_line(t, first, lines)) return;"
PLANTED = {
    "forward: memory of a step that others read": (_FIRST, _LAST_READ, "", 1),
    "forward: sums that nobody waits for": (_FIRST, _TREE, _TREE.replace("phase", "last"), 1),
    "forward: scales that nobody waits for": (_FIRST, _PAIRS, _PAIRS.replace("phase", "last"), 1),
    "forward: half of the sites": (_FIRST, "kAlike / 2; half", "kAlike / 4; half", 1),
    "forward: no threshold": (_FIRST, "parameters.tau != nullptr ? parameters.tau[at] :", "", 2),
    "forward: no sum": (_FIRST, "if (out.other.first != nullptr) {", "if (false) {", 1),
    "backward: memory of a step that others read": (_SECOND, _LAST_READ, "", 1),
    "backward: sums that nobody waits for": (_SECOND, _TREE, _TREE.replace("phase", "last"), 1),
    "backward: scales that nobody waits for": (
        *(_SECOND, _PAIRS_ANEW, _PAIRS_ANEW.replace("phase", "last")),
        2,
    ),
    "backward: terms that nobody waits for": (
        *(_SECOND, _DELTAS, _DELTAS.replace("phase", "last")),
        1,
    ),
    "backward: cut deltas": (_SECOND, "d = cut ? 0.0f : d;", "", 1),
    "backward: no way by the root": (_SECOND, "own[8 * i + 4 * half + j], shrink[j])",
        "own[8 * i + 4 * half + j], 0.0f)", 1),
    "backward: a delta that others read": (_SECOND, "if (deltas.delta != nullptr) write4(",
        "if (false) write4(", 1),
}  # fmt: skip


def name_of(kernel, *, faulty):
    return f"{kernel}<{'true' if faulty else 'false'}>"


@pytest.fixture(scope="module")
def _compiled():
    """Before the tests: a kernel that does not compile is no fault that they noticed."""
    kernels = (*RACES, *UNWRITTEN, "CopyNotAwaited", "MissingMeeting", "MissingArrival", *FOURS)
    compile_all([name_of(k, faulty=f) for k in kernels for f in (False, True)], (HEADER,))


def library(name):
    """Path of a sanitizer's library, None where g++ has none."""
    found = subprocess.run(
        ["g++", f"-print-file-name={name}.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return found if Path(found).is_absolute() else None


needs_asan = pytest.mark.skipif(not library("libasan"), reason="needs AddressSanitizer (libasan)")
needs_tsan = pytest.mark.skipif(not library("libtsan"), reason="needs ThreadSanitizer (libtsan)")


def outcome(kernel, *, faulty, n=None):
    """What a kernel makes of 1, 2, .. in every order."""
    values = np.arange(1.0, (n or THREADS) + 1)
    takes_input = kernel != "BarrierForSome"

    def run(device):
        out = xp.empty(THREADS)
        fields = [xp.asarray(values)] * takes_input + ([] if n is None else [n])
        device.launch(name_of(kernel, faulty=faulty), (1, 1, 1), *fields, out)
        return [out.get()]

    return in_every_order(run, (HEADER,))[0]


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("kernel", RACES)
def test_races(kernel):
    expected = RACES[kernel]
    np.testing.assert_array_equal(outcome(kernel, faulty=False)[: len(expected)], expected)
    with pytest.raises((AssertionError, RuntimeError)):
        outcome(kernel, faulty=True)


@pytest.mark.usefixtures("_compiled")
def test_copies_that_nobody_waits_for():
    values = np.arange(1.0, THREADS + 1, dtype=np.float32)
    expected = np.where(values == 6.0, np.float32(0.0), values)

    def run(faulty):
        def launch(device):
            out = xp.empty(THREADS, np.float32)
            name = name_of("CopyNotAwaited", faulty=faulty)
            device.launch(name, (1, 1, 1), xp.asarray(values), out)
            return [out.get()]

        return in_every_order(launch, (HEADER,))[0]

    np.testing.assert_array_equal(run(False), expected)
    with pytest.raises(AssertionError):
        run(True)


MEETING = f"""
import numpy as np
from tests.support.cuda.compiler import Compiler
from tests.support.cuda.cpu_device import NAMESPACE as xp, CpuDevice
device = CpuDevice(Compiler(headers=[{HEADER!r}]))
values, out = xp.asarray(np.arange(64.0)), xp.empty(256)
for fault in ("false", "true"):
    device.launch(f"MissingMeeting<{{fault}}>", (4, 1, 1), values, out)
    print("ran", fault, flush=True)
"""
ARRIVAL = MEETING.replace("MissingMeeting", "MissingArrival").replace(
    "values, out)", "values, xp.empty(256), xp.zeros(1, xp.uint32), out)"
)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("kernel", ["MissingMeeting", "MissingArrival"])
def test_blocks_that_do_not_meet(kernel):
    """Fibers see it by themselves; threads of the host under ThreadSanitizer."""
    values = np.arange(64.0)
    expected = np.concatenate([values + (b + 1) % 4 for b in range(4)])

    def launch(device, faulty=False):
        out = xp.empty(256)
        through = kernel == "MissingArrival"
        fields = [xp.empty(256), xp.zeros(1, xp.uint32)] * through
        device.launch(name_of(kernel, faulty=faulty), (4, 1, 1), xp.asarray(values), *fields, out)
        return [out.get()]

    np.testing.assert_array_equal(in_every_order(launch, (HEADER,))[0], expected)
    [alone] = launch(CpuDevice(compiler(FIBERS, (HEADER,))), faulty=True)
    assert np.isnan(alone).any()


@needs_tsan
@pytest.mark.parametrize("code", [MEETING, ARRIVAL], ids=["cluster", "grid"])
def test_blocks_that_do_not_meet_race(code):
    done = sanitized("-c", code, sanitizer="thread")
    assert done.stdout.split("\n")[:-1] == ["ran false", "ran true"], done.stderr
    before, _, _ = done.stderr.partition("data race")
    assert before != done.stderr
    assert "faulty_kernels.h" in done.stderr
    assert done.returncode != 0


@pytest.mark.parametrize("blocks", [8, 16])
def test_a_trajectory_whose_blocks_do_not_meet(monkeypatch, rng, blocks):
    """The same bits as one block's only where they wait for each other."""
    monkeypatch.setattr(persistent, "_MEETINGS", 0.0)
    target = problem(rng, rows=300, hidden=(9,), dtype="float32")
    arrays = (0.3 * rng.normal(size=(3, 1, target.dim))).astype("f")
    runner = FIBERS if FIBERS in dict(ORDERS) else PHASES

    def ends(way, blocks):
        device = CpuDevice(compiler(runner, (HEADER,)))
        device.clusters = False
        own = persistent_of(target, device=device)
        name, *rest = own._forms[blocks]
        if way is not None:
            name = name.replace("GridTrajectory<", f"TrajectoryThat<{way}, ")
        own._forms[blocks] = name, *rest
        monkeypatch.setattr(own, "_blocks_for", lambda chains: blocks)
        given = [xp.asarray(a) for a in (*arrays, np.array([0.01]))]
        return [a.get() for a in own.leapfrog(*given, np.array([3]), None)]

    alone, meeting, hasty = ends(None, 1), ends("Meeting", blocks), ends("NoMeeting", blocks)
    for a, b in zip(alone, meeting, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(alone[0], hasty[0])


@pytest.mark.slow  # a minute or two
@needs_tsan
def test_clusters_under_thread_sanitizer():
    options = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-q", "-s", "-m", "not slow"]
    options += ["-k", "cluster"]
    test = "tests/backends/cuda/test_trajectory.py"
    done = sanitized("-m", "pytest", *options, test, sanitizer="thread")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "ThreadSanitizer" not in done.stderr


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("kernel", FOURS)
def test_sixteen_bytes_from_another_place(kernel):
    """What a device refuses; by phases and by fibers."""
    values = np.arange(1.0, THREADS + 1, dtype=np.float32)

    def launch(device, faulty=False):
        out = xp.empty(THREADS, np.float32)
        device.launch(name_of(kernel, faulty=faulty), (1, 1, 1), xp.asarray(values), out)
        return [out.get()[:48]]

    np.testing.assert_array_equal(in_every_order(launch, (HEADER,))[0], values[:48])
    for runner in dict(ORDERS):
        with pytest.raises(RuntimeError, match="16 bytes"):
            launch(CpuDevice(compiler(runner, (HEADER,))), faulty=True)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("kernel", UNWRITTEN)
def test_memory_that_nobody_wrote(kernel):
    n, at, expected = UNWRITTEN[kernel]
    assert outcome(kernel, faulty=False, n=n)[at] == expected
    try:
        found = outcome(kernel, faulty=True, n=n)
    except AssertionError:
        return  # or it differs from order to order
    assert np.isnan(found[at])


def direct_headers(old="", new="", times=0):
    """The headers of direct convolutions with norms as one, with a fault."""
    text = "".join(
        (CPP / f"cuda/kernels/direct_{what}_kernels.h").read_text() for what in ("conv", "norm")
    ).replace('#include "cuda/kernels/direct_conv_kernels.h"', "")
    assert text.count(old) == times or not old
    path = folder("faults") / f"{digest(text, old, new)}.h"
    path.write_text(text.replace(old, new) if old else text)
    return (str(path),)


@pytest.mark.parametrize("fault", PLANTED)
def test_norms_of_direct_convolutions(rng, fault):
    """Five images, of which a block has four."""
    name, *planted = PLANTED[fault]
    run, check = direct_norms.problem(rng, name, 5)
    headers = direct_headers(*planted)
    compile_all([name], headers)  # what does not compile is no fault that was noticed
    with pytest.raises((AssertionError, RuntimeError)):
        check(in_every_order(run, headers))


@pytest.mark.parametrize("name", [_FIRST, _SECOND])
def test_norms_of_direct_convolutions_without_a_fault(rng, name):
    run, check = direct_norms.problem(rng, name, 5)
    check(in_every_order(run, direct_headers()))


def sanitized(*arguments, sanitizer="address"):
    """Run Python under AddressSanitizer or ThreadSanitizer."""
    path = [str(Path(ribbit.__file__).parents[1]), str(ROOT)]
    return subprocess.run(
        [sys.executable, *arguments],
        env={
            **os.environ,
            "LD_PRELOAD": library("libasan" if sanitizer == "address" else "libtsan"),
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's
            "RIBBIT_KERNEL_FLAGS": f"-fsanitize={sanitizer}",
            "PYTHONPATH": os.pathsep.join(path),
        },
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


@needs_asan
@pytest.mark.parametrize(
    ("kernel", "n"),
    [
        ("ReadPastTheEnd", 1),  # NumPy keeps small arrays to itself
        ("ReadPastTheEnd", 5),
        ("ReadPastTheEnd", 200_000),
        ("WritePastTheEnd", 1),
        ("SharedPastTheEnd", 5),
    ],
)
def test_out_of_bounds(kernel, n):
    """Aborts at the line of the fault, and only there."""
    code = f"""
import numpy as np
from tests.support.cuda.compiler import Compiler
from tests.support.cuda.cpu_device import NAMESPACE as xp, CpuDevice
device = CpuDevice(Compiler(headers=[{HEADER!r}]))
for _ in range(3):  # arrays that NumPy may use again
    values, out = xp.asarray(np.ones({n})), xp.empty(1)
for fault in ("false", "true"):
    device.launch(f"{kernel}<{{fault}}>", (1, 1, 1), values, {n}, out)
    print("ran", fault, flush=True)
"""
    done = sanitized("-c", code)
    assert done.stdout.split("\n")[:-1] == ["ran false"], done.stderr
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    assert "faulty_kernels.h" in done.stderr


@needs_asan
@pytest.mark.parametrize("name", [_FIRST, _SECOND])
def test_images_that_are_not_there(name):
    """Written by the last block, where only the last image is."""
    faults = [direct_headers(), direct_headers(_LINE, "", 3)]
    code = f"""
import numpy as np
from tests.support.cuda import direct_norms
from tests.support.cuda.compiler import Compiler
from tests.support.cuda.cpu_device import CpuDevice
run, check = direct_norms.problem(np.random.default_rng(1), {name!r}, 9)
for headers in {faults!r}:
    found = run(CpuDevice(Compiler(headers=headers)))
    print("ran", flush=True)
"""
    done = sanitized("-c", code)
    assert done.stdout.split("\n")[:-1] == ["ran"], done.stderr
    assert done.returncode != 0
    assert "AddressSanitizer: heap-" in done.stderr


@pytest.mark.slow  # a minute and a half; .ci/run has it beside the sanitizers of native tests
@needs_asan
def test_all_kernels_under_address_sanitizer():
    """`faulthandler` and capturing are off: a report must reach the assertion."""
    files = ("kernels", "orders", "direct_norms")
    tests = [f"tests/backends/cuda/test_{what}.py" for what in files]
    options = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-q", "-s", "-m", "not slow"]
    done = sanitized("-m", "pytest", *options, *tests)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "AddressSanitizer" not in done.stderr
