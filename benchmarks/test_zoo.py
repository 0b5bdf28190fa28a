"""Every sampler on every network of the zoo; one group per network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ribbit as rb
from benchmarks.harness import machine
from benchmarks.harness.workload import WrongAnswerError
from benchmarks.studies.zoo import NETWORKS, SAMPLERS, same_bits, standard
from ribbit.models import zoo


def test_nothing_is_left_out() -> None:
    """A network or a sampler that is added to Ribbit needs a row here."""
    assert sorted(NETWORKS) == sorted(zoo.__all__)
    runs = [
        name
        for name in rb.samplers.__all__
        if {"sample", "fit"} & set(dir(getattr(rb.samplers, name)))
    ]
    assert sorted(SAMPLERS) == sorted(runs)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_sampler(network: str, sampler: str, benchmark: Any) -> None:
    """A first step is the reference's, two runs are equal to the bit; then the time."""
    machine.limit_blas(1)  # for the reference
    with machine.pinned(2, anywhere=benchmark.disabled) as threads:
        rb.set_num_threads(1 if benchmark.disabled else threads)
        run, check = SAMPLERS[sampler](NETWORKS[network])
        first = run()
        benchmark.group = f"zoo: {network}"
        benchmark.extra_info.update(errors=check(first), threads=threads)
        if benchmark.disabled:
            benchmark.pedantic(lambda: first)  # it has run, once is enough
        else:
            benchmark.pedantic(run, rounds=3)


def test_checks_have_teeth() -> None:
    """A drift 14 % off, noise 2 % too loud, one bit and NaN are rejected."""
    rng = np.random.default_rng(3)
    noise, drift = rng.standard_normal((2, 100_000))
    standard("right", drift, noise)
    with pytest.raises(WrongAnswerError, match="along_drift"):
        standard("drift", drift, noise + 0.14 * 40.0 * drift / np.linalg.norm(drift))
    with pytest.raises(WrongAnswerError, match="variance"):
        standard("loud", drift, 1.02 * noise)
    same_bits("right", (noise, noise.copy()))
    for wrong in (np.nextafter(noise, 9.0), np.full_like(noise, np.nan)):
        with pytest.raises(WrongAnswerError, match="two runs"):
            same_bits("wrong", (wrong, noise))
