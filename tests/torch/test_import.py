"""`rb.torch` and the like without an import of their own."""

import importlib

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import packages

NAMES = ("jax", "numpyro", "pymc", "sklearn", "torch")


def test_torch_is_imported_when_it_is_asked_for(monkeypatch):
    pytest.importorskip("torch", reason="needs PyTorch")

    module = importlib.import_module("ribbit.torch")
    monkeypatch.delattr(rb, "torch")
    assert rb.torch is module
    assert callable(rb.torch.posterior)


@pytest.mark.parametrize("name", NAMES)
def test_a_package_that_is_missing_is_named_with_its_command(name, monkeypatch):
    def room(place):
        raise packages.missing(f"ribbit.{place}", place)

    monkeypatch.delattr(rb, name, raising=False)
    monkeypatch.setattr(rb, "_room", room)
    with pytest.raises(AttributeError, match=rf"^ribbit\.{name} cannot .*pip install ") as error:
        getattr(rb, name)
    assert error.value.__suppress_context__
    assert error.value.__cause__ is None
    assert not hasattr(rb, name)


def test_a_directory_of_names_imports_nothing():
    assert not set(NAMES) & set(dir(rb))
    with pytest.raises(AttributeError, match="has no attribute 'tensorflow'"):
        rb.tensorflow  # noqa: B018


def test_a_module_as_model_or_target_is_sent_to_torch_posterior():
    torch = pytest.importorskip("torch", reason="needs PyTorch")

    class Net(torch.nn.Sequential):
        pass

    x, y = np.zeros((4, 1)), np.zeros(4)
    terms = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian()}
    for standardize in (False, True):
        with pytest.raises(TypeError, match=r"model as a Model, got .*Net: rb\.torch\.posterior\("):
            rb.Posterior(Net(torch.nn.Linear(1, 1)), x, y, standardize=standardize, **terms)
    with pytest.raises(TypeError, match=r"got .*Net: rb\.torch\.posterior\("):
        rb.HMC(Net(torch.nn.Linear(1, 1)))
    with pytest.raises(TypeError, match=r"got function: .*rb\.jax\.from_jax.*rb\.torch\.posterior"):
        rb.Posterior(lambda theta: theta.sum(), x, y, **terms)
