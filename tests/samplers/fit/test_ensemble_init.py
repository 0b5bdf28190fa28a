"""``sample(init="ensemble")``: starts that are trained, one for each chain."""

import os
import signal
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import FitWarning, NonFiniteError
from ribbit.samplers.sgmcmc.stepper import Stepper
from tests.oracle.stochastic_reference import run
from tests.support.targets import Gaussian

RNG = np.random.default_rng(1)
X = RNG.normal(size=(120, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.1 * RNG.normal(size=120)
QUICK = rb.EnsembleStart(max_steps=150, every=25, patience=3, finish=0)
FINISHED = rb.EnsembleStart(max_steps=150, every=25, patience=3, finish=60)

# runs of a few draws, whose starts are looked at
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")


def target(rows=120, dtype=np.float32):
    return rb.Posterior(
        rb.mlp(2, (8,), 1, activation="tanh"),
        X[:rows],
        Y[:rows],
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.2),
        dtype=dtype,
    )


SAMPLERS = {
    "HMC": lambda t: rb.HMC(t, step_size=1e-3, num_leapfrog_steps=2),
    "NUTS": lambda t: rb.NUTS(t, step_size=1e-3, max_tree_depth=2),
    "MCLMC": lambda t: rb.MCLMC(t, step_size=1e-3, decoherence_length=0.5),
    "SGLD": lambda t: rb.SGLD(t, step_size=1e-8, batch_size=20),
    "SGHMC": lambda t: rb.SGHMC(t, step_size=1e-9, batch_size=20),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_starts_at_trained_networks(name):
    """Near the members that are fitted alone, and far better than random weights."""
    posterior = target()
    draws = SAMPLERS[name](posterior).sample(
        2, warmup=0, thin=1, chains=3, seed=4, init=QUICK, progress=False
    )
    members = QUICK.fit(posterior, 3, seed=4, progress=False)
    np.testing.assert_allclose(draws.positions[:, 0], members.theta, atol=0.05)
    report = draws.settings["start"]
    assert report["kind"] == "ensemble"
    assert report["rows_held_out"] == 30
    assert report["attempts"] == [1, 1, 1]
    assert members.settings["steps"] == report["steps"]
    random = posterior.log_likelihood(posterior.init(seed=4, chains=3))
    assert (posterior.log_likelihood(members.theta) > random + 100.0).all()


def test_the_name_means_the_defaults():
    posterior = target(rows=40)
    hmc = SAMPLERS["HMC"](posterior)
    short, long = (
        hmc.sample(1, warmup=0, chains=1, init=init, progress=False)
        for init in ("ensemble", rb.EnsembleStart())
    )
    np.testing.assert_array_equal(short.positions, long.positions)
    with pytest.raises(ValueError, match="init as 'ensemble', got str"):
        hmc.sample(1, init="ensembles")


def test_chains_of_mclmc_start_at_members_that_end_on_all_rows():
    """What its warmup forgets; adjusted chains and other samplers have none."""
    posterior = target(rows=40)
    for adjusted, last in ((False, 5_000), (True, 0)):
        mclmc = rb.MCLMC(posterior, adjusted=adjusted)
        call = {"warmup": 100, "thin": 1, "chains": 2, "progress": False}
        starts = "ensemble", rb.EnsembleStart(), rb.EnsembleStart(finish=last)
        found = [mclmc.sample(1, init=start, **call) for start in starts]
        for draws in found[1:]:
            np.testing.assert_array_equal(draws.positions, found[0].positions)
            assert draws.settings["start"] == found[0].settings["start"]
        assert found[0].settings["start"]["finish"] == last
        assert found[0].settings["start"]["finish_steps"] == [last, last]
        other = mclmc.sample(1, init=rb.EnsembleStart(finish=10), **call)  # the control
        assert (other.positions != found[0].positions).all()


@pytest.mark.parametrize("batch", [30, 500])
def test_steps_on_all_rows_are_replayed(batch):
    """Adam on the rows held out too, its rate a falling cosine, with an order of its own."""
    posterior, steps = target(dtype=np.float64), 40
    how = {"max_steps": 100, "every": 15, "batch_size": batch, "learning_rate": 0.01}
    before = rb.EnsembleStart(**how).fit(posterior, [2, 7], seed=6, progress=False)
    found = rb.EnsembleStart(**how, finish=steps).fit(posterior, [2, 7], seed=6, progress=False)
    assert found.settings["finish_steps"] == [steps, steps]
    for name in ("steps", "held_out_log_likelihood"):  # of the weights before
        assert found.settings[name] == before.settings[name]

    def gradient(theta, rows):
        part = posterior if len(rows) == 120 else posterior.subset(np.sort(rows))
        own = part.value_and_grad(theta)[1] + theta  # without the prior
        return 120 / len(rows) * own - theta

    def replay(place, chain, rows=120):
        factors = 0.5 * (1.0 + np.cos(np.pi * np.arange(steps) / steps))
        key = (6 + 3 * 0x9E3779B97F4A7C15) % 2**64  # behind the three attempts of a seed
        where = {"rows": rows, "batch": min(batch, rows), "seed": key, "chain": chain}
        rule = {"kind": "adam", "step_size": 0.01, "decay1": 0.9, "decay2": 0.999, "epsilon": 1e-8}
        theta, zero = before.theta[place], np.zeros(steps)
        return run(gradient, theta, steps, **where, factors=factors, noises=zero, rule=rule)[-1]

    for place, chain in enumerate((2, 7)):
        np.testing.assert_allclose(found.theta[place], replay(place, chain), rtol=0, atol=1e-9)
    assert np.abs(found.theta[0] - replay(0, 2, rows=90)).max() > 1e-4  # control: 90 of the rows


def test_a_member_that_leaves_the_finite_numbers_at_the_end_stays_where_its_attempts_led(
    monkeypatch,
):
    posterior = target()
    before = QUICK.fit(posterior, 3, seed=2, progress=False)
    fine = FINISHED.fit(posterior, 3, seed=2, progress=False)
    right = Stepper.advance

    def wrong(self, state, num_steps, guard):
        if self.num_rows == 120 and 1 in state.chains and state.step >= 25:
            where = {"chain": 1, "step": state.step, "step_size": 1.0, "largest_gradient": 1.0}
            raise NonFiniteError("far out", state=state, **where)
        return right(self, state, num_steps, guard)

    monkeypatch.setattr(Stepper, "advance", wrong)
    with pytest.warns(FitWarning, match="finite numbers in the 60 steps .* for chain 1:") as caught:
        found = FINISHED.fit(posterior, 3, seed=2, progress=False)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(found.theta[[0, 2]], fine.theta[[0, 2]])
    np.testing.assert_array_equal(found.theta[1], before.theta[1])
    assert found.settings["finish_steps"] == [60, 0, 60]
    with pytest.warns(FitWarning, match="for chain 1:"):  # alone, and nobody is left
        alone = FINISHED.fit(posterior, [1], seed=2, progress=False)
    np.testing.assert_array_equal(alone.theta[0], before.theta[1])
    monkeypatch.undo()
    none = rb.EnsembleStart(learning_rate=1e30, max_steps=50, every=10, restarts=0, finish=40)
    with pytest.warns(FitWarning, match="chain 0, 1 in 1 attempt"):
        fit = none.fit(posterior, 2, progress=False)
    np.testing.assert_array_equal(fit.theta, posterior.init(seed=0, chains=2))


@pytest.mark.parametrize("how", [QUICK, FINISHED], ids=["held out", "all rows"])
def test_a_start_depends_on_its_own_chain_alone(how):
    posterior = target()
    every = how.fit(posterior, 6, seed=2, progress=False)
    some = how.fit(posterior, [4, 1], seed=2, progress=False)
    np.testing.assert_array_equal(some.theta, every.theta[[4, 1]])
    assert some.settings["steps"] == [every.settings["steps"][c] for c in (4, 1)]
    other = how.fit(posterior, [4, 1], seed=3, progress=False)
    assert not (other.theta == some.theta).any(axis=1).any()
    assert np.unique(every.theta, axis=0).shape[0] == 6


def test_threads_change_no_bit():
    posterior = target()
    found = []
    for threads in (1, 2):
        rb.set_num_threads(threads)
        found.append(FINISHED.fit(posterior, 3, progress=False).theta)
    rb.set_num_threads(2)
    np.testing.assert_array_equal(*found)


def test_training_stops_early_and_takes_the_best_weights():
    """On pure noise members end long before the last step, with what the held out rows liked."""
    noise = RNG.normal(size=120)
    posterior = rb.Posterior(
        rb.mlp(2, (32,), 1), X, noise, prior=rb.Normal(5.0), likelihood=rb.Gaussian(0.5)
    )
    how = rb.EnsembleStart(max_steps=50_000, every=20, patience=5)
    fit = how.fit(posterior, 2, progress=False)
    assert max(fit.settings["steps"]) < 20_000
    best = np.array(fit.settings["held_out_log_likelihood"])
    on = rb.EnsembleStart(max_steps=20, every=20, patience=5).fit(posterior, 2, progress=False)
    assert (best >= np.array(on.settings["held_out_log_likelihood"])).all()


def test_few_rows_judge_all_that_there_are():
    fit = FINISHED.fit(target(rows=12), 2, progress=False)
    assert fit.settings["rows_held_out"] == 0
    assert fit.settings["finish_steps"] == [60, 60]
    assert np.isfinite(fit.theta).all()


def test_members_that_fail_start_again_and_are_named(monkeypatch):
    """Chain 1 begins at weights whose gradients leave float32; the others do not notice."""
    posterior = target()
    right = rb.Posterior.init

    def wrong(self, seed=0, chains=None, **options):
        theta = right(self, seed, chains, **options)
        if seed in bad:
            theta[np.asarray(chains) == 1, -1] = 1e17  # the output's bias
        return theta

    def far(self, seed, chains):
        theta = right(self, seed, chains)
        for place, chain in enumerate(chains):
            if (seed, chain) in places:
                theta[place, -1] = 1e17
        return theta

    bad = {5}
    fine = QUICK.fit(posterior, 3, seed=5, progress=False)
    monkeypatch.setattr(rb.Posterior, "init", wrong)
    again = QUICK.fit(posterior, 3, seed=5, progress=False)
    assert again.settings["attempts"] == [1, 2, 1]
    np.testing.assert_array_equal(again.theta[[0, 2]], fine.theta[[0, 2]])
    assert (again.theta[1] != fine.theta[1]).any()
    assert posterior.log_likelihood(again.theta).min() > -5e3
    # Chain 1 fails every time, chain 2 once: neither what failed nor its place is another's.
    places = {(5, 1), ((5 + 0x9E3779B97F4A7C15) % 2**64, 1), (5, 2)}
    monkeypatch.setattr(rb.Posterior, "init", far)
    how = {"max_steps": 150, "every": 25, "patience": 3, "restarts": 1}
    with pytest.warns(FitWarning, match="none for chain 1 in 2"):
        before = rb.EnsembleStart(**how).fit(posterior, 4, seed=5, progress=False)
    with pytest.warns(FitWarning, match="none for chain 1 in 2"):
        found = rb.EnsembleStart(**how, finish=60).fit(posterior, 4, seed=5, progress=False)
    monkeypatch.setattr(rb.Posterior, "init", wrong)
    assert found.settings["attempts"] == [1, 2, 2, 1]
    assert found.settings["finish_steps"] == [60, 0, 60, 60]
    same = (found.theta == before.theta).all(axis=1)
    assert same.tolist() == [False, True, False, False]
    once = rb.EnsembleStart(max_steps=100, every=25, restarts=0)
    with pytest.warns(FitWarning, match=r"none for chain 1 in 1 attempt:") as caught:
        once.fit(posterior, 3, seed=5, progress=False)
    assert caught[0].filename == __file__
    hmc = SAMPLERS["HMC"](posterior)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # one of chain 1, which is far out, comes too
        hmc.sample(1, warmup=0, chains=3, init=once, seed=5, progress=False)
    assert caught[0].category is FitWarning
    assert caught[0].filename == __file__


def test_steps_that_leave_the_finite_numbers_end_at_the_best_weights():
    how = rb.EnsembleStart(learning_rate=1e30, max_steps=50, every=10, restarts=1)
    with pytest.warns(FitWarning, match="chain 0, 1 in 2 attempts"):
        fit = how.fit(target(), 2, progress=False)
    assert np.isfinite(fit.theta).all()


def test_runs_go_on_and_are_saved(tmp_path):
    posterior = target()
    hmc = SAMPLERS["HMC"](posterior)
    options = {"chains": 2, "progress": False, "warmup": 3}
    whole = hmc.sample(6, init=QUICK, **options)
    part = hmc.sample(2, init=QUICK, **options)
    rest = hmc.sample(4, resume=part, progress=False)
    joined = np.concatenate([part.positions, rest.positions], axis=1)
    np.testing.assert_array_equal(joined, whole.positions)
    whole.save(tmp_path / "draws")
    assert rb.load(tmp_path / "draws").settings["start"] == whole.settings["start"]
    fit = QUICK.fit(posterior, 2, progress=False)
    fit.save(tmp_path / "fit")
    np.testing.assert_array_equal(rb.load(tmp_path / "fit").theta, fit.theta)
    assert fit.predict(X[:3]).mean.shape == (3,)


def test_progress_says_what_is_done():
    said = []
    SAMPLERS["HMC"](target()).sample(3, warmup=0, chains=2, init=QUICK, progress=said.append)
    assert said[0]["title"] == "ensemble start"
    assert said[0]["phase"] == "fitting"
    assert said[-1]["title"] == "HMC"


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("phase", ["attempts", "all rows"])
def test_control_c_ends_the_fit(phase):
    """It comes during the fit: there are no draws yet."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press(snapshot):
        if snapshot["title"] == "ensemble start" and (phase == "attempts" or snapshot["done"] > 20):
            os.kill(os.getpid(), signal.SIGINT)

    endless = {
        "attempts": rb.EnsembleStart(max_steps=10**8, patience=10**6, every=10),
        "all rows": rb.EnsembleStart(max_steps=20, every=10, finish=2**31),
    }[phase]
    try:
        with pytest.raises(KeyboardInterrupt):
            SAMPLERS["HMC"](target()).sample(3, chains=2, init=endless, progress=press)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, old)


def test_max_seconds_counts_the_fit():
    endless = rb.EnsembleStart(max_steps=10**8, patience=10**6, every=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = SAMPLERS["HMC"](target()).sample(
            10**6, warmup=0, chains=2, init=endless, max_seconds=0.3, progress=False
        )
    assert not draws.complete
    assert draws.settings["start"]["attempts"] == [1, 1]
    assert draws.seconds < 30.0  # a shared machine


def test_steps_on_all_rows_that_the_time_cuts_off_are_given_up():
    how = {"max_steps": 50, "every": 25, "patience": 1}
    before = rb.EnsembleStart(**how).fit(target(), 2, progress=False)
    endless = rb.EnsembleStart(**how, finish=2**31)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = SAMPLERS["HMC"](target()).sample(
            10**6, warmup=0, chains=2, init=endless, max_seconds=0.5, progress=False
        )
    report = draws.settings["start"]
    assert report["finish_steps"] == [0, 0]
    assert report["steps"] == before.settings["steps"]
    np.testing.assert_allclose(draws.positions[:, 0], before.theta, atol=0.05)


def test_targets_without_rows_are_refused():
    with pytest.raises(TypeError, match="rows of data for init='ensemble'"):
        rb.HMC(Gaussian([1.0]), step_size=0.1, num_leapfrog_steps=2).sample(2, init="ensemble")
    dropping = rb.Model([rb.Dense(3), rb.Dropout(0.2), rb.Dense(1)], input_shape=(2,))
    posterior = rb.Posterior(dropping, X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.2))
    with pytest.raises(TypeError, match="without Dropout layers"):
        QUICK.fit(posterior)


def test_a_layer_that_is_integrated_out_is_trained_too():
    whole = target(dtype=np.float64)
    left = rb.Posterior(
        whole.model,
        X,
        Y,
        prior=whole.prior,
        likelihood=whole.likelihood,
        dtype=np.float64,
        marginalize="last_layer",
    )
    members = QUICK.fit(whole, 2, progress=False)
    np.testing.assert_array_equal(QUICK.fit(left, 2, progress=False).theta, members.theta)
    draws = rb.HMC(left, step_size=1e-6, num_leapfrog_steps=1).sample(
        1, warmup=0, chains=2, init=QUICK, progress=False
    )
    below = left.dim
    np.testing.assert_allclose(draws.positions[:, 0, :below], members.theta[:, :below], atol=1e-3)
    some = left.subset([3, 1, 4])
    theta = left.init(chains=2)
    again = rb.Posterior(
        whole.model,
        X[[3, 1, 4]],
        Y[[3, 1, 4]],
        prior=whole.prior,
        likelihood=whole.likelihood,
        dtype=np.float64,
        marginalize="last_layer",
    )
    np.testing.assert_array_equal(some.value_and_grad(theta)[0], again.value_and_grad(theta)[0])
    assert some.fingerprint == again.fingerprint


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 0.0},
        {"every": 0},
        {"restarts": -1},
        {"patience": 1.5},
        {"max_steps": 0},
        {"finish": -1},
    ],
)
def test_bad_settings(options):
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        rb.EnsembleStart(**options)


def test_on_arrays_of_a_device(device):
    """The same members, as far as rounding goes."""
    host = target(rows=40, dtype=np.float64)
    on_device = rb.Posterior(
        host.model,
        device.asarray(X[:40]),
        device.asarray(Y[:40]),
        prior=host.prior,
        likelihood=host.likelihood,
        dtype=np.float64,
    )
    how = rb.EnsembleStart(max_steps=20, every=10, finish=15)
    found = how.fit(on_device, 2, progress=False)
    wanted = how.fit(host, 2, progress=False)
    np.testing.assert_allclose(found.theta.get(), wanted.theta, rtol=1e-9, atol=1e-9)
