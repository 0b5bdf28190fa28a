"""Members of targets that only samplers, fits and predictions call; see ``protocols.py``."""

from __future__ import annotations

from collections.abc import Iterable

_NAMES = (
    "advance advance_variational check_inputs compile complete drawn fingerprint flat gauss_newton "
    "inputs interruptible isokinetic kind leapfrog masked network_predictive "
    "noise_at noise_floor noise_scale noises normal_prior parameter_blocks parameter_groups "
    "precision_reference predictive predictive_moments prior_curvature prior_groups reduce "
    "rescaled residuals rows_per_chain shared_prior_sd subset subset_size term_names "
    "terms_and_grad"
)
_ENGINE = frozenset(_NAMES.split())


def public(names: Iterable[str]) -> list[str]:
    """Return the names without those of the engine, for ``dir`` and tab completion."""
    return [name for name in names if name not in _ENGINE]
