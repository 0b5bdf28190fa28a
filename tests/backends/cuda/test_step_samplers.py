"""SGLD, SGHMC and deep ensembles on arrays of a device against the same on NumPy."""

import numpy as np
import pytest

import ribbit as rb
from ribbit import density, schedules
from ribbit._backends.cuda import density as cuda_density
from ribbit.samplers.sgmcmc import stepper
from tests.backends.cuda.steps_problem import pair
from tests.support.cuda.waits import allowed, no_waits
from tests.support.stepwise import started

SAMPLERS = {
    "sgld": (rb.SGLD, {"step_size": 1e-3, "schedule": schedules.polynomial(0.4, offset=5.0)}),
    "rmsprop": (rb.SGLD, {"step_size": 1e-4, "preconditioner": "rmsprop"}),
    "sghmc": (rb.SGHMC, {"step_size": 1e-4, "track_lp": True}),
    "baoab": (rb.BAOAB, {"step_size": 1e-2, "schedule": schedules.cosine(1000, final=0.1)}),
}


@pytest.mark.parametrize("case", SAMPLERS)
def test_draws_are_those_of_numpy(device, case):
    make, options = SAMPLERS[case]
    runs = [
        make(t, batch_size=10, **options).sample(
            5, warmup=6, thin=2, chains=3, seed=2**63 + 4, save_warmup=True, progress=False
        )
        for t in pair(device)
    ]
    host, on_device = runs
    assert not isinstance(on_device.positions, np.ndarray)
    np.testing.assert_allclose(on_device.positions.get(), host.positions, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        on_device.warmup_positions.get(), host.warmup_positions, rtol=0, atol=1e-10
    )
    for name, values in host.stats.items():
        np.testing.assert_allclose(on_device.stats[name].get(), values, rtol=1e-9)


@pytest.mark.parametrize("case", SAMPLERS)
def test_resume(device, case):
    make, options = SAMPLERS[case]
    sampler = make(pair(device, dtype="float32")[1], batch_size=10, **options)
    whole = sampler.sample(6, warmup=5, thin=3, chains=3, seed=4, progress=False).positions.get()
    first = sampler.sample(2, warmup=5, thin=3, chains=3, seed=4, progress=False)
    rest = sampler.sample(4, thin=3, resume=first, progress=False).positions.get()
    np.testing.assert_array_equal(np.concatenate([first.positions.get(), rest], axis=1), whole)
    alone = sampler.sample(6, warmup=5, thin=3, chains=[1], seed=4, progress=False)
    np.testing.assert_array_equal(alone.positions.get()[0], whole[1])


def test_a_call_waits_once(device, monkeypatch):
    asked, to_host = [], cuda_density.to_host

    def seen(array):
        asked.append(array.shape)
        with allowed(device):
            return to_host(array)

    for make, options in SAMPLERS.values():
        sampler = make(pair(device)[1], batch_size=10, **{**options, "schedule": None})
        start = sampler._density.target.init(chains=3)
        state = started(sampler, start, warmup=3)
        for count in (1, 40):
            state, _ = sampler._advance(state, count, None)  # compiles
            with monkeypatch.context() as patch:
                for module in (cuda_density, stepper, density):
                    if hasattr(module, "to_host"):
                        patch.setattr(module, "to_host", seen)
                with no_waits(device):
                    state, _ = sampler._advance(state, count, None)
                assert asked == [(3, 2)]
            asked.clear()


def test_ensembles(device):
    targets = pair(device)
    seen = []
    fits = [
        rb.DeepEnsemble(t, members=3, learning_rate=1e-2, batch_size=10, objective=objective).fit(
            4, seed=7, progress=seen.append
        )
        for objective in ("map", "likelihood")
        for t in targets
    ]
    assert seen
    for host, on_device in (fits[:2], fits[2:]):
        np.testing.assert_allclose(on_device.theta.get(), host.theta, rtol=0, atol=1e-10)
    host, fit = fits[:2]
    assert np.abs(fits[2].theta - host.theta).max() > 1e-4
    ensemble = rb.DeepEnsemble(targets[1], members=3, learning_rate=1e-2, batch_size=10)
    begun = ensemble.fit(1, seed=7, progress=False)
    rest = ensemble.fit(3, resume=begun, progress=False)
    assert rest.theta.get().tobytes() == fit.theta.get().tobytes()
    again = ensemble.fit(1, init=fit, progress=False)
    warm = ensemble.fit(1, init=fit.theta, progress=False)
    one = ensemble.fit(1, init=fit.theta[0, :].get().tolist(), progress=False)
    assert again.theta.get().tobytes() == warm.theta.get().tobytes()
    assert one.theta.shape == fit.theta.shape
    with pytest.raises(TypeError, match=f"init as {device.__name__} array"):
        ensemble.fit(1, init=host.theta, progress=False)
    assert not isinstance(fit.draws().positions, np.ndarray)
    np.testing.assert_allclose(
        fit.draws(9, seed=2).positions.get(), host.draws(9, seed=2).positions, atol=1e-10
    )
    ids = np.array([7, 0], np.uint32)
    np.testing.assert_allclose(fit._starts(ids, 0).get(), host._starts(ids, 0), atol=1e-10)
    draws = rb.SGLD(targets[1], step_size=1e-4, batch_size=10).sample(
        2, warmup=0, chains=4, init=fit, progress=False
    )
    assert draws.positions.shape == (4, 2, targets[1].dim)
