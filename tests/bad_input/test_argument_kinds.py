"""Arguments of a wrong kind or shape: the error names the argument, and shows what was given."""

import inspect
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import ShapeError
from tests.support.rubbish import target

TARGET = target()
WIDE = rb.Posterior(  # of 25 parameters 9 are integrated out
    *(rb.mlp(1, (8,), 1), np.linspace(-1, 1, 9)[:, None], np.linspace(-1, 1, 9)),
    prior=rb.Normal(1.0),
    likelihood=rb.Gaussian(0.3),
)
FIT = rb.BBB(TARGET).fit(2, progress=False)
NOTHING = {"progress": False, "warmup": 0, "chains": 2}

SAMPLERS = {
    "HMC": rb.HMC(TARGET, step_size=0.1, num_leapfrog_steps=2),
    "NUTS": rb.NUTS(TARGET, step_size=0.1),
    "MCLMC": rb.MCLMC(TARGET, step_size=0.1, decoherence_length=1.0),
    "SGLD": rb.SGLD(TARGET, step_size=1e-5, batch_size=2),
    "SGHMC": rb.SGHMC(TARGET, step_size=1e-5, batch_size=2),
    "BAOAB": rb.BAOAB(TARGET, step_size=1e-3, batch_size=2),
}
FITS = {
    "BBB": rb.BBB(TARGET),
    "DeepEnsemble": rb.DeepEnsemble(TARGET, members=3),
    "SWAG": rb.SWAG(TARGET),
    "LaplaceApproximation": rb.LaplaceApproximation(TARGET),
}


class NeedsArguments:
    def __call__(self, iterable: object) -> None:
        raise AssertionError


def fails() -> None:
    raise TypeError("mine")


WRONG = {
    "executor": [2, "threads", NeedsArguments(), lambda: None, len, [ThreadPoolExecutor]],
    "store": [3, True, b"folder", ["a"], FIT],
    "progress": ["yes", 1, [], int],
    "until": [True, 1.01, "converged", rb.Converged],
    "resume": [3, "folder", Path("folder"), {}, np.ones(3), FIT],
    "seed": [1.5, "1", np.random.RandomState(0)],
    "init": [{}, object(), np.array(["a"]), np.ones(3, np.complex128), rb.EnsembleStart],
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_argument_of_a_sampler_is_named(sampler: str, name: str) -> None:
    options = NOTHING | ({"chains": None} if name == "resume" else {})
    for value in WRONG[name]:
        with pytest.raises((TypeError, ValueError)) as caught:
            SAMPLERS[sampler].sample(3, **options | {name: value})
        text = str(caught.value)
        assert text.startswith(f"[{sampler}.sample] expected {name}"), text
        assert ", got " in text


@pytest.mark.parametrize("name", ["executor", "store", "progress", "resume", "seed"])
@pytest.mark.parametrize("fit", FITS)
def test_the_argument_of_a_fit_is_named(fit: str, name: str) -> None:
    if name not in inspect.signature(FITS[fit].fit).parameters:
        return
    for value in WRONG[name]:
        if name == "resume" and fit == "BBB" and value is FIT:
            continue
        with pytest.raises((TypeError, ValueError)) as caught:
            FITS[fit].fit(2, **{"progress": False, name: value})
        assert str(caught.value).startswith(f"[{fit}.fit] expected {name}"), str(caught.value)


def test_the_argument_of_a_run_in_a_thread_is_named() -> None:
    hmc = SAMPLERS["HMC"]
    with pytest.raises(TypeError, match=r"^\[HMC.sample\] expected progress as bool, callable"):
        hmc.sample(3, progress="yes", blocking=False)
    with pytest.raises(TypeError, match=r"^\[HMC.sample\] expected resume as Draws or a state"):
        hmc.sample(3, resume="folder", blocking=False)


def test_a_group_is_named() -> None:
    for value in (2, "mpi", [0, 1]):
        with pytest.raises(TypeError, match=r"^\[Posterior\] expected group as .*, got"):
            target(group=value)


def test_resume_says_how_to_go_on_with_files() -> None:
    with pytest.raises(TypeError, match=r"resume=rb.load\(path\) continues saved draws"):
        SAMPLERS["HMC"].sample(3, resume="folder")
    with pytest.raises(TypeError, match="init=fit"):
        SAMPLERS["HMC"].sample(3, resume=FIT)


def test_an_error_of_what_makes_an_executor_stays() -> None:
    with pytest.raises(TypeError, match=r"^mine$"):
        SAMPLERS["HMC"].sample(3, executor=fails, **NOTHING)


@pytest.mark.parametrize("shape", [(3, 25), (1, 25), (4, 24), (25, 4), (24,), (), (0, 25)])
@pytest.mark.parametrize("kind", [rb.HMC, rb.NUTS, rb.MCLMC])
def test_shapes_of_init_count_all_parameters(kind: type, shape: tuple[int, ...]) -> None:
    for given in (np.zeros(shape), np.zeros(shape, np.float32).tolist()):
        if np.shape(given) != shape:
            continue  # a list of no rows has no columns
        with pytest.raises(ShapeError) as caught:
            kind(WIDE).sample(2, init=given, chains=4, warmup=0, progress=False)
        text = str(caught.value)
        assert "expected init (25,) or (" in text
        assert ", 25)" in text
        assert f"got shape {shape}" in text


def test_shapes_of_init_of_fits_are_those_given() -> None:
    for shape in ((3,), (3, TARGET.dim + 1), (2, TARGET.dim)):
        with pytest.raises(ShapeError) as caught:
            FITS["DeepEnsemble"].fit(1, init=np.zeros(shape), progress=False)
        assert str(caught.value).endswith(f"(3, {TARGET.dim}), got shape {shape}")
