"""python -m ribbit: versions, the self-test and its exit code."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit.__main__ import main
from ribbit._arrays import cupy
from ribbit._cli import doctor
from ribbit._cli import versions as _versions
from ribbit._cli.versions import device_status, show_versions, versions


def test_show_versions(capsys):
    assert show_versions() is None
    text = capsys.readouterr().out
    for name, value in versions().items():
        assert name in text
        assert value in text
    for name in (
        "ribbit",
        "python",
        "numpy",
        "instruction set",
        "threads",
        "cuda",
        "nvrtc",
        "cupy",
        "processor",
    ):
        assert name in versions()
    assert _core.isa() in versions()["instruction set"]


def test_doctor_passes(capsys):
    """Every check holds, in under 5 s (three times that on a loaded machine)."""
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "all checks passed" in text
    assert "FAIL" not in text
    missing = doctor.device_status()
    assert f"device: not checked ({missing})" in text if missing else "device " in text
    for isa in _core.available_isas():
        assert isa in text
    seconds = float(text.rsplit("(", 1)[1].split(" s)")[0])
    assert seconds < 15


def test_doctor_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "ribbit", "doctor"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all checks passed" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("philox4x32", lambda f: lambda c, k: f(c, k) + 1),
        ("fill_normal", lambda f: lambda out, *a: (f(out, *a), out.__imul__(1.02))[0]),
    ],
)
def test_doctor_finds_a_fault_in_the_random_numbers(monkeypatch, capsys, name, fault):
    monkeypatch.setattr(doctor._core, name, fault(getattr(_core, name)))
    assert main(["doctor"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_doctor_finds_a_wrong_gradient(monkeypatch):
    """An error of 1e-5 of the gradient is caught; so is an exception."""
    right = rb.Posterior.value_and_grad

    def wrong(self, theta, rows=None):
        lp, grad = right(self, theta, rows)
        return lp, grad * (1 + 1e-5)

    monkeypatch.setattr(rb.Posterior, "value_and_grad", wrong)
    assert not doctor.check_gradient()[0]

    def broken(self, theta, rows=None):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(rb.Posterior, "value_and_grad", broken)
    check = doctor._run("gradient", doctor.check_gradient)
    assert not check.passed
    assert check.detail == "RuntimeError: no kernel"


def test_doctor_finds_a_wrong_posterior(monkeypatch):
    """Noise taken 50 % too large is caught by the closed form."""
    right = doctor.Gaussian
    monkeypatch.setattr(doctor, "Gaussian", lambda scale=None: right(scale and 1.5 * scale))
    assert not doctor.check_hmc()[0]


def test_doctor_checks_the_device(device, monkeypatch):
    """Wrong normals and a wrong gradient of the device are caught."""
    assert doctor.check_device(device)[0]
    normals = doctor._normals
    monkeypatch.setattr(doctor, "_normals", lambda *a: np.nextafter(normals(*a), 9))
    assert not doctor.check_device(device)[0]
    monkeypatch.undo()
    value_and_grad = rb.Posterior.value_and_grad

    def wrong(self, theta, rows=None):
        lp, grad = value_and_grad(self, theta, rows)
        return lp, grad * (1 + 1e-9 * (self.array_namespace is not np))

    monkeypatch.setattr(rb.Posterior, "value_and_grad", wrong)
    assert not doctor.check_device(device)[0]


@pytest.fixture
def machine(monkeypatch):
    """A machine with a device, a driver and CuPy; tests take away."""
    nvrtc = SimpleNamespace(getVersion=lambda: (13, 1), getSupportedArchs=lambda: [80, 90])
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 1, getDeviceProperties=lambda number: {"name": b"A"}
    )
    device = SimpleNamespace(id=0, compute_capability="90")
    cuda = SimpleNamespace(nvrtc=nvrtc, runtime=runtime, Device=lambda: device)
    module = SimpleNamespace(is_available=lambda: True, cuda=cuda)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    found = {"cupy-cuda13x": "14.2.0"}
    monkeypatch.setattr(_versions, "_version", found.get)
    monkeypatch.setattr(_versions, "_driver", lambda: "driver 580.1")
    return SimpleNamespace(cupy=module, cuda=cuda, device=device, versions=found, nvrtc=nvrtc)


def test_one_device_is_not_many(machine):
    """The driver, the number of devices, their name and what keeps kernels from running."""
    assert versions()["cuda"] == "driver 580.1, 1 device (A)"
    assert device_status() == ""
    machine.cuda.runtime.getDeviceCount = lambda: 2
    assert versions()["cuda"] == "driver 580.1, 2 devices (A)"
    machine.device.compute_capability = "75"
    assert versions()["cuda"].endswith(
        "2 devices (A): expected a CUDA device of compute capability 8.0 or more, got 7.5"
    )


def test_what_is_missing_comes_in_the_order_to_mend_it(machine, monkeypatch):
    def fail():
        raise RuntimeError("no libnvrtc")

    machine.nvrtc.getVersion = fail
    assert device_status().startswith("expected NVRTC, CUDA's run-time compiler, got none")
    machine.cupy.is_available = lambda: False
    assert device_status() == "expected a CUDA device, got none: is a driver installed?"
    assert versions()["cuda"] == "driver 580.1, 0 devices"
    monkeypatch.setattr(_versions, "_driver", lambda: "")
    assert device_status().startswith("no driver; expected a CUDA device")
    machine.versions["cupy"] = "14.2.0"
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "a CuPy that cannot be loaded" in device_status()
    assert "devices not looked for (CuPy cannot be loaded" in versions()["cuda"]
    machine.versions.clear()
    assert device_status() == "no driver; no CuPy"
    assert versions()["cuda"] == "no driver, devices not looked for (no CuPy)"


def test_cupy_of_conda_is_found(monkeypatch):
    versions_of = {"cupy": "14.2.0"}
    monkeypatch.setattr(_versions, "_version", versions_of.get)
    monkeypatch.setattr(cupy, "nvrtc_version", lambda: "13.1")
    assert versions()["cupy"] == "14.2.0 (cupy)"
    assert versions()["nvrtc"] == "13.1"

    def missing():
        raise ImportError("no libnvrtc")

    monkeypatch.setattr(cupy, "nvrtc_version", missing)
    assert versions()["nvrtc"] == "not found (no libnvrtc)"
    versions_of.clear()
    assert versions()["cupy"] == "not installed"
    assert versions()["nvrtc"] == "not looked for (no CuPy)"


def test_doctor_reports_an_instruction_set_that_crashes(monkeypatch):
    monkeypatch.setenv("RIBBIT_ISA", "")
    passed, detail = doctor.check_isa("no-such-set")
    assert not passed
    assert detail


def test_command_line(capsys):
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out
    assert main(["versions"]) == 0
    assert "numpy" in capsys.readouterr().out
    with pytest.raises(SystemExit) as error:
        main(["--help"])
    assert error.value.code == 0
    with pytest.raises(SystemExit) as error:
        main(["dance"])
    assert error.value.code == 2


def test_version_of_the_command_line(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0
    assert capsys.readouterr().out == f"ribbit {rb.__version__}\n"
