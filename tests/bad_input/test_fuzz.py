"""36,000 malformed calls over the whole public surface, made in a process of their own.

Every call has one or two wrong arguments (``tests/support/fuzz``): nothing may crash or hang, at
least 98 % of the calls must be refused with a sentence that names the argument, and what passes is
listed there. Nothing is random but for the pairs of arguments, which have a fixed seed.
"""

import inspect
import warnings

import pytest

import ribbit as rb
from tests.support.fuzz.native import CORE
from tests.support.fuzz.runner import ACCEPTED, TOTAL, check, run
from tests.support.fuzz.worker import CALLS, cases


def test_all():
    found = run(0, 1)
    assert len(found) == TOTAL
    check(found)
    for case in found:  # the list says no more than is true
        if case["verdict"] == "clear" and "," not in case["wrong"]:
            assert (case["call"], case["wrong"]) not in ACCEPTED, case


def test_nothing_that_the_native_module_is_given_ends_the_process():
    """Its callers check and name arguments; it only must not crash, nor run on."""
    found = run(0, 1, face="core")
    assert len(found) > 2_000
    assert not [case for case in found if case["verdict"] in ("crash", "hang")]


def test_there_are_enough_cases():
    everything = cases(TOTAL)
    assert len(everything) == TOTAL
    assert len([c for c in everything if len(c[1]) == 1]) > 15_000


# Calls of the native module without right arguments: a density without masks, an address.
REFUSED = {"a density with masks", "a density without masks", "PointerDensity"}


@pytest.mark.parametrize("name", sorted(CORE.keys() - REFUSED))
def test_right_arguments_of_the_native_module_pass(name):
    """The control of the test above."""
    CORE[name].function(**CORE[name].right())


@pytest.mark.parametrize("name", CALLS)
def test_right_arguments_pass(name):
    """The control: what is refused is refused for what is wrong."""
    import matplotlib

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.use("Agg")
        CALLS[name].function(**CALLS[name].right())


# Public names that are not called here: records that samplers and fits fill, bases of classes,
# protocols, errors, and what takes no argument.
NOT_CALLED = {
    *("Draws", "DropoutFit", "EnsembleFit", "Prediction", "State", "StochasticState"),
    *("MicrocanonicalState", "SWAGFit", "LaplaceFit", "RunHandle", "DiscretizationBias"),
    *("Likelihood", "Prior", "Sampler", "ScalePrior", "Scaler"),
    *("Bernoulli", "Categorical", "Poisson", "constant"),
    *("Affine", "Flatten", "GlobalAvgPool2D", "show_versions", "energy_efficiency"),
    *("get_cmake_dir", "get_include"),
    *("Communicator", "from_mpi"),
}
ROOMS = ("datasets", "diagnostics", "metrics", "plots", "schedules", "random", "distributed")


def test_every_public_name_is_called():
    called = {name.split(" ")[0].split(".")[-1] for name in CALLS}
    public = {name for room in ROOMS for name in getattr(rb, room).__all__}
    public |= {name for name in rb.__all__ if not inspect.ismodule(getattr(rb, name))}
    public.discard("__version__")
    assert public - called - NOT_CALLED == set()
    assert not called & NOT_CALLED
