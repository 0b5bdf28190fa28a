"""Tab completion shows members that users need."""

import dataclasses

import numpy as np
import pytest

import ribbit as rb

X = np.linspace(-1, 1, 6)[:, None]
TERMS = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian()}
TARGET = rb.Posterior(rb.mlp(1, 3, 1), X, X, **TERMS)
SAMPLERS = ("HMC", "NUTS", "MCLMC", "SGLD", "SGHMC", "BAOAB")
FITS = ("BBB", "MCDropout", "SWAG", "LaplaceApproximation", "DeepEnsemble")
DENSITY = """array_namespace columns describe dim dropout_layers dtype init likelihood
likelihood_temperature log_likelihood log_prior num_rows outputs prior prior_mean prior_predictive
prior_sd temperature unravel value_and_grad"""
POSTERIOR = """full_dim group instruction_set integrated joint marginal model precision
sample_weight shards x y"""
MODULE = "batch_size module native num_outputs parameters rows state_dict trained why"


def shown(one: object) -> set[str]:
    return {name for name in dir(one) if not name.startswith("_")}


@pytest.mark.parametrize("name", SAMPLERS)
def test_members_of_samplers(name: str) -> None:
    kind = getattr(rb, name)
    more = {"discretization_bias"} if name == "MCLMC" else set()
    if dataclasses.is_dataclass(kind):
        more = {field.name for field in dataclasses.fields(kind)} - {"target"}
    assert shown(kind) == {"sample"} | more
    assert shown(kind(TARGET)) - {"target"} == {"sample", "settings"} | more


def test_members_of_a_handle() -> None:
    with rb.HMC(TARGET).sample(1, warmup=1, blocking=False) as run:
        assert shown(run) == {"draws", "progress", "running", "stop", "wait"}


@pytest.mark.parametrize("name", FITS)
def test_members_of_fits(name: str) -> None:
    assert shown(getattr(rb, name)) == {"fit"}


def test_members_of_a_posterior() -> None:
    assert shown(TARGET) == {*DENSITY.split(), *POSTERIOR.split()}
    assert callable(TARGET.leapfrog)  # is there, for samplers
    assert len(shown(rb.Posterior)) > len(shown(TARGET))


def test_members_of_a_module_posterior() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    target = rb.torch.posterior(torch.nn.Linear(1, 1), rb.Gaussian(), (X, X), prior=rb.Normal(1.0))
    assert shown(target) == {*DENSITY.split(), *MODULE.split()}
