"""Ribbit: Bayesian neural networks by MCMC and approximations, with a native core."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ribbit._arrays.keywords import ATTRIBUTES
from ribbit._arrays.threads import set_num_threads

if TYPE_CHECKING:  # the same names for those who read and do not run
    from ribbit import (
        datasets,
        diagnostics,
        distributed,
        errors,
        metrics,
        plots,
        protocols,
        random,
        samplers,
        schedules,
    )
    from ribbit._backends.library import get_cmake_dir, get_include
    from ribbit.chains import Chains
    from ribbit.models import layers, zoo
    from ribbit.models.layers import *
    from ribbit.models.model import Model
    from ribbit.models.zoo import *
    from ribbit.random import reparameterize
    from ribbit.results.discretization_bias import DiscretizationBias
    from ribbit.results.draws import Draws
    from ribbit.results.fits import DropoutFit, EnsembleFit, MeanField
    from ribbit.results.joining import concatenate
    from ribbit.results.laplace import LaplaceFit
    from ribbit.results.prediction import Prediction
    from ribbit.results.swag import SWAGFit
    from ribbit.samplers import *
    from ribbit.store import Store, load
    from ribbit.targets import likelihoods, priors
    from ribbit.targets.callable import CallableDensity
    from ribbit.targets.likelihoods import *
    from ribbit.targets.posterior import Posterior
    from ribbit.targets.priors import *

    __all__ = [
        "CallableDensity",
        "Chains",
        "DiscretizationBias",
        "Draws",
        "DropoutFit",
        "EnsembleFit",
        "LaplaceFit",
        "MeanField",
        "Model",
        "Posterior",
        "Prediction",
        "SWAGFit",
        "Store",
        "__version__",
        "concatenate",
        "datasets",
        "diagnostics",
        "distributed",
        "errors",
        "get_cmake_dir",
        "get_include",
        "layers",
        "likelihoods",
        "load",
        "metrics",
        "plots",
        "priors",
        "protocols",
        "random",
        "reparameterize",
        "samplers",
        "schedules",
        "set_num_threads",
        "show_versions",
        "zoo",
    ]
    __all__ += layers.__all__
    __all__ += likelihoods.__all__  # type: ignore[has-type]
    __all__ += priors.__all__  # type: ignore[has-type]
    __all__ += samplers.__all__  # type: ignore[has-type]
    __all__ += zoo.__all__  # type: ignore[has-type]

__version__ = "0.1.0"

# Imported when first asked for: 170 files take longer to read than NumPy does, and few programs
# need them all. By their place, of which the last part may be a module.
_LATER = {
    "": "datasets diagnostics distributed errors metrics plots protocols random samplers schedules",
    "_backends.library": "get_cmake_dir get_include",
    "chains": "Chains",
    "models": "layers zoo",
    "models.model": "Model",
    "random": "reparameterize",
    "results.discretization_bias": "DiscretizationBias",
    "results.draws": "Draws",
    "results.fits": "DropoutFit EnsembleFit MeanField",
    "results.joining": "concatenate",
    "results.laplace": "LaplaceFit",
    "results.prediction": "Prediction",
    "results.swag": "SWAGFit",
    "store": "Store load",
    "targets": "likelihoods priors",
    "targets.callable": "CallableDensity",
    "targets.posterior": "Posterior",
}
# Packages of other libraries: imported when asked for, no part of `__all__`.
_INTEGRATIONS = ("jax", "numpyro", "pymc", "sklearn", "torch")
_PLACES = {name: place for place, names in _LATER.items() for name in names.split()}
# Layers, priors, likelihoods, samplers and ready-made networks are public by their rooms' lists.
_ROOMS = ("models.layers", "models.zoo", "targets.priors", "targets.likelihoods", "samplers")


def _room(place: str) -> Any:
    return importlib.import_module(f"ribbit.{place}" if place else "ribbit")


def __getattr__(name: str) -> Any:
    if name == "__all__":
        here = ["__version__", "set_num_threads", "show_versions", *_PLACES]
        return sorted({*here, *(one for room in _ROOMS for one in _room(room).__all__)})
    if name.startswith("_"):
        raise AttributeError(f"module 'ribbit' has no attribute {name!r}")
    if name in _INTEGRATIONS:
        try:
            return _room(name)
        except ImportError as error:  # an AttributeError, so that hasattr and getattr work
            broken = None if isinstance(error, ModuleNotFoundError) else error
            raise AttributeError(f"ribbit.{name} cannot be imported: {error}") from broken
    if name in _PLACES:
        found = _named(_PLACES[name], name)
    else:
        rooms = (_room(place) for place in _ROOMS)
        room = next((one for one in rooms if name in one.__all__), None)
        if room is None:
            new = ATTRIBUTES["ribbit"].get(name)
            text = f"module 'ribbit' has no attribute {name!r}" + (f": use {new}" if new else "")
            # `from ribbit import name` asks here first, and would drop an AttributeError's text.
            imported = sys._getframe(1).f_code.co_name == "_handle_fromlist"
            raise (ImportError if new and imported else AttributeError)(text)
        found = getattr(room, name)
    globals()[name] = found
    return found


def _named(place: str, name: str) -> Any:
    """Return what a module has under a name: an object, or a module in it."""
    room = _room(place)
    if room.__name__ == "ribbit" or name not in vars(room):
        return _room(f"{place}.{name}".lstrip("."))
    return getattr(room, name)


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))


def show_versions() -> None:
    """Print versions, machine and settings for a bug report.

    Examples
    --------
    >>> rb.show_versions()
    ribbit ...
    """
    from ribbit._cli import versions  # reading package metadata is slow; few programs need it

    versions.show_versions()
