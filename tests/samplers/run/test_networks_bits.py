"""Every sampler on networks of every layer: what changes no bit.

The same runs from a state or a file, with other chains and threads.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ribbit as rb
from tests.support.sampled_networks import DROPPING, NAMES, NETWORKS, inputs, made_of

SAMPLERS = {
    "sgld": lambda t: rb.SGLD(t, step_size=1e-6, batch_size=33),
    "preconditioned": lambda t: rb.SGLD(
        t, step_size=1e-7, batch_size=None, preconditioner="rmsprop"
    ),
    "sghmc": lambda t: rb.SGHMC(t, step_size=1e-7, batch_size=33),
    "baoab": lambda t: rb.BAOAB(t, step_size=1e-4, batch_size=33),
    "hmc": lambda t: rb.HMC(t, step_size=0.005, num_leapfrog_steps=3),
    "nuts": lambda t: rb.NUTS(t, step_size=0.005, max_tree_depth=3),
}


@NAMES
@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("method", SAMPLERS)
def test_draws_do_not_depend_on_threads_chains_or_restarts(method, name):
    made = made_of(name, likelihood=3)
    sampler = SAMPLERS[method](made.native(np.float32))
    options = {"warmup": 3, "thin": 2, "seed": 8, "init": made.theta, "progress": False}
    rb.set_num_threads(2)
    whole = sampler.sample(4, chains=3, **options)
    assert np.all(np.any(np.diff(whole.positions, axis=1) != 0, axis=2).sum(axis=1) >= 1)
    for threads in (1, 4):
        rb.set_num_threads(threads)
        again = sampler.sample(4, chains=3, **options)
        assert again.positions.tobytes() == whole.positions.tobytes()
    for chain in range(3):
        alone = sampler.sample(4, chains=[chain], **options)
        assert alone.positions.tobytes() == whole.positions[chain : chain + 1].tobytes()
    first = sampler.sample(1, chains=3, **options)
    rest = sampler.sample(3, thin=2, resume=first, progress=False)
    joined = np.concatenate([first.positions, rest.positions], axis=1)
    assert joined.tobytes() == whole.positions.tobytes()


FITS = {
    "bbb": lambda t: rb.BBB(t, batch_size=33),
    "local": lambda t: rb.BBB(t, batch_size=33, estimator="local", num_samples=2),
    "flipout": lambda t: rb.BBB(t, estimator="flipout"),
    "ensemble": lambda t: rb.DeepEnsemble(t, members=3, batch_size=33),
    "dropout": lambda t: rb.MCDropout(t, batch_size=33),
}


def bits(fit):
    return [a.tobytes() for a in ([fit.mean, fit.scale] if hasattr(fit, "mean") else [fit.theta])]


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("method", FITS)
def test_fits_do_not_depend_on_threads_or_restarts(method):
    for name in DROPPING if method == "dropout" else NETWORKS:
        make, target = FITS[method], made_of(name, likelihood=1).native(np.float32)
        rb.set_num_threads(2)
        whole = make(target).fit(4, seed=3, progress=False)
        for threads in (1, 4):
            rb.set_num_threads(threads)
            assert bits(make(target).fit(4, seed=3, progress=False)) == bits(whole)
        half = make(target).fit(1, seed=3, progress=False)
        assert bits(half) != bits(whole)
        assert bits(make(target).fit(3, resume=half, progress=False)) == bits(whole)
        if method == "ensemble":
            one = rb.DeepEnsemble(target, members=1, batch_size=33).fit(4, seed=3, progress=False)
            assert one.theta.tobytes() == whole.theta[:1].tobytes()


@NAMES
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_two_threads_may_sample_from_one_target(name):
    target = made_of(name, likelihood=3).native(np.float32)
    sampler = rb.SGLD(target, step_size=1e-6, batch_size=33)
    fit = rb.MCDropout(made_of("spatial").native(np.float32), batch_size=33).fit(1, progress=False)
    x, _ = inputs(made_of("spatial"), 40)

    def both(seed):
        draws = sampler.sample(20, chains=2, seed=seed, warmup=0, progress=False)
        return draws.positions.tobytes(), fit.predict(x, 20, seed=seed).mean.tobytes()

    known = [both(seed) for seed in range(4)]
    assert len(set(known)) == 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(both, range(4))) == known


@NAMES
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_saved_draws_go_on(tmp_path, name):
    made = made_of(name, likelihood=3)
    target = made.native(np.float32)
    x = target.x[:20].reshape(-1, *made.model.input_shape)
    for make in SAMPLERS.values():
        draws = make(target).sample(3, warmup=2, chains=2, seed=1, progress=False)
        draws.save(tmp_path / "run")
        loaded = rb.load(tmp_path / "run")
        assert loaded.predict(x).probs.tobytes() == draws.predict(x).probs.tobytes()
        rest = [make(target).sample(2, resume=d, progress=False) for d in (draws, loaded)]
        assert rest[0].positions.tobytes() == rest[1].positions.tobytes()
