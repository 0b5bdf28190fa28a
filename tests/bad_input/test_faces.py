"""Malformed calls of the faces of other ecosystems, as ``test_fuzz.py`` makes those of the rest.

A face is skipped, and named, where its packages are not installed.
"""

import importlib
import warnings

import pytest

from tests.support.fuzz.faces import FACES, missing
from tests.support.fuzz.runner import check, run

# Public names that are not called here: what the functions beside them return.
NOT_CALLED = {"NativePosterior", "ModulePosterior", "ModuleDensity", "LogDensity", "JaxDensity"}
NOT_CALLED |= {"NumpyroDensity", "RibbitKernel", "PymcDensity"}


@pytest.fixture(params=FACES)
def face(request):
    absent = missing(request.param)
    if absent:
        pytest.skip(f"ribbit.{request.param} needs {', '.join(absent)}")
    return request.param


@pytest.fixture
def calls(face):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FACES[face][1]()


def test_wrong_arguments_are_refused(face):
    found = run(0, 1, face=face)
    assert len(found) > 150
    check(found)


def test_right_arguments_pass_and_every_public_name_is_called(face, calls):
    """The control: what is refused is refused for what is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in calls.values():
            call.function(**call.right())
    public = set(importlib.import_module(f"ribbit.{face}").__all__)
    called = {name.split(".")[0].split(" ")[0] for name in calls}
    assert public - called - NOT_CALLED == set()
