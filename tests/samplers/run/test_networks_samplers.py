"""Every sampler on a convolutional, a residual and a recurrent network.

Native steps are replayed by the oracle's gradients; the same runs without native steps, from a
state, with other chains and threads.
"""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.threads import num_threads
from tests.gates.test_integrator import energy_error, faulty, native_trajectory
from tests.oracle.dropout_reference import PREDICTIVE_MASK
from tests.oracle.op_reference import OPS
from tests.oracle.reference import WEIGHT_NOISE, hmc_run, network, normal
from tests.oracle.stochastic_reference import batch_of, first_velocity, run
from tests.samplers.sgmcmc.test_stochastic import Foreign
from tests.support.layer_problems import RELU, SILU, TANH, mask_factors, net, problem, weights
from tests.targets.test_masked_posterior import same_density

SEED = 2**63 + 11
ROWS = 70
FRN = rb.FilterResponseNorm()


def unit(*layers):
    return [rb.Conv2D(3, 3, padding="same"), FRN, *layers]


NETWORKS = {
    "conv": net((6, 5, 2), rb.Conv2D(3, 3, padding="same"), TANH, rb.MaxPool2D(2), rb.Conv2D(2, 2)),
    "residual": rb.Model(
        [*unit(SILU), rb.Residual([*unit(SILU), *unit()]), SILU, rb.GlobalAvgPool2D(), rb.Dense(2)],
        input_shape=(4, 4, 2),
    ),
    "lstm": net((6,), rb.Embedding(5, 3), rb.LSTM(3, sequence=True), rb.LSTM(2)),
}
NAMES = pytest.mark.parametrize("name", NETWORKS)
DROPPING = {
    "plain": net((5, 4, 2), rb.Dropout(0.2), rb.Conv2D(3, 2), TANH, rb.Dropout(0.4)),
    "spatial": net(
        (5, 4, 2), rb.Conv2D(5, 2), SILU, rb.Dropout(0.4, spatial=True), rb.Conv2D(2, 2), TANH
    ),
    "before the last layer": net((5, 4, 2), rb.Conv2D(3, 2), FRN, SILU, rb.Dropout(0.3)),
    "in a residual": net(
        (4, 4, 2),
        rb.Conv2D(3, 2),
        rb.Residual([TANH, rb.Dropout(0.3, spatial=True), rb.Conv2D(3, 3, padding="same")]),
        rb.Residual([rb.Conv2D(3, 1), rb.Dropout(0.2)], [SILU]),
    ),
    "in a residual of the input": net(
        (4, 3, 2), rb.Residual([rb.Conv2D(2, 3, padding="same"), TANH, rb.Dropout(0.4)])
    ),
    "one mask beside the identity": net((4, 3, 2), rb.Conv2D(3, 2), rb.Residual([rb.Dropout(0.3)])),
    "of the outputs": rb.Model(
        [rb.Conv2D(3, 2), rb.Flatten(), rb.Dense(9), rb.Dropout(0.3)], input_shape=(4, 3, 2)
    ),
    "of a row": rb.Model(
        [rb.Dense(5), rb.LayerNorm(), TANH, rb.Dropout(0.3), rb.Dense(2)], input_shape=(3,)
    ),
    "masked lstm": net(
        (6,), rb.Embedding(5, 3), rb.Dropout(0.3, spatial=True), rb.LSTM(4), rb.Dropout(0.4)
    ),
}


def made_of(name, likelihood=0):
    """A problem whose weights are small enough to step on."""
    found = problem({**DROPPING, **NETWORKS}[name], likelihood=likelihood, num_rows=ROWS)
    found.theta[...] *= 0.7
    return found


def scaled(made):
    """Gradient on a batch."""
    return lambda theta, rows: made.reference.gradient(theta, rows)[0]


# --- every step ----------------------------------------------------------------------------------

CASES = {
    "sgld": (rb.SGLD, {"step_size": 1e-5}, {"kind": "sgld"}),
    "preconditioned": (
        rb.SGLD,
        {"step_size": 1e-6, "preconditioner": "rmsprop"},
        {"kind": "sgld", "decay": 0.99, "epsilon": 1e-5, "adapt_until": 6},
    ),
    "sghmc": (
        rb.SGHMC,
        {"step_size": 1e-6, "friction": 0.15},
        {"kind": "sghmc", "friction": 0.15},
    ),
}


@NAMES
@pytest.mark.parametrize("path", ["native", "python"])
@pytest.mark.parametrize("case", CASES)
def test_stochastic_steps_are_the_oracles(case, path, name):
    make, options, rule = CASES[case]
    made = made_of(name, likelihood=1)
    density = made.native() if path == "native" else Foreign(made.native())
    start = np.stack([made.theta, 0.9 * made.theta])
    for batch in (33, None):
        sampler = make(density, batch_size=batch, **options)
        state = sampler.init(start, seed=SEED, chains=[0, 9], warmup=6)
        draws = sampler.sample(4, resume=state, keep_warmup=True, progress=False)
        found = np.concatenate([draws.warmup_positions, draws.positions], axis=1)
        for c, chain in enumerate((0, 9)):
            extra = {"step_size": options["step_size"]}
            if case == "sghmc":
                extra["velocity"] = first_velocity(
                    made.theta.size, options["step_size"], seed=SEED, chain=chain
                )
            where = {"rows": ROWS, "batch": batch, "seed": SEED, "chain": chain}
            rules = {**rule, **extra}
            expected = run(scaled(made), start[c], 10, **where, rule=rules)
            np.testing.assert_allclose(found[c], expected, rtol=1e-9, atol=1e-11)
            if chain:  # control: the batches and noise of another chain
                where["chain"] = 0
                other = run(scaled(made), start[c], 10, **where, rule=rules)
                assert np.abs(found[c] - other).max() > 1e-6


@NAMES
@pytest.mark.parametrize("path", ["native", "python"])
def test_hmc_is_replayed(path, name):
    made = made_of(name)
    density = made.native() if path == "native" else Foreign(made.native())
    step = {"conv": 0.015, "residual": 0.02, "lstm": 0.05}[name]
    hmc = rb.HMC(density, step_size=step, num_leapfrog_steps=3)
    draws = hmc.sample(8, warmup=0, chains=2, seed=SEED, init=made.theta, progress=False)
    accepted = np.asarray(draws.stats["accepted"])
    assert 0 < accepted.sum() < accepted.size  # both branches are met
    for chain in range(2):
        options = {"seed": SEED, "chain": chain, "num_steps": 3}
        known, flags = hmc_run(made.reference, made.theta, 8, step_size=step, **options)
        np.testing.assert_array_equal(accepted[chain], flags)
        np.testing.assert_allclose(draws.positions[chain], known, rtol=0, atol=1e-8)
    wrong, _ = hmc_run(made.reference, made.theta, 8, step_size=1.001 * step, **options)
    assert np.abs(draws.positions[1] - wrong).max() > 1e-6  # control


ADAM = {"kind": "adam", "step_size": 0.01, "decay1": 0.9, "decay2": 0.999, "epsilon": 1e-8}


@NAMES
@pytest.mark.parametrize("objective", ["map", "likelihood"])
def test_deep_ensembles_are_replayed(objective, name):
    made = made_of(name, likelihood=3)
    start = np.stack([made.theta, 0.9 * made.theta])
    fit = rb.DeepEnsemble(
        made.native(), members=2, batch_size=33, learning_rate=0.01, objective=objective
    ).fit(3, seed=SEED, init=start, progress=False)

    def gradient(theta, rows):
        if objective == "map":
            return made.reference.gradient(theta, rows)[0]
        return made.reference.log_likelihood(theta, rows)[1]

    for member in range(2):
        where = {"rows": ROWS, "batch": 33, "seed": SEED, "chain": member}
        known = run(gradient, start[member], 9, **where, noises=np.zeros(9), rule=ADAM)[-1]
        np.testing.assert_allclose(fit.theta[member], known, rtol=1e-7, atol=1e-8)
    if objective == "likelihood":  # control: with the prior
        known = run(scaled(made), start[1], 9, **where, noises=np.zeros(9), rule=ADAM)[-1]
        assert np.abs(fit.theta[1] - known).max() > 1e-4


@pytest.mark.parametrize("name", DROPPING)
def test_mc_dropout_is_replayed(name):
    """Adam under the masks of the batch's rows at every step."""
    made = made_of(name)
    for batch in (33, None):
        mcd = rb.MCDropout(made.native(), batch_size=batch, learning_rate=0.01)
        fit = mcd.fit(3, seed=SEED, init=made.theta, progress=False)

        def replay(shift, batch=batch):
            steps = itertools.count(shift)

            def gradient(theta, rows):
                factors = mask_factors(made.model, rows, seed=SEED, step=next(steps))
                return made.reference.gradient(theta, rows, factors)[0]

            count = 3 * (1 if batch is None else 3)
            where = {"rows": ROWS, "batch": batch, "seed": SEED, "chain": 0}
            noises = np.zeros(count)
            return run(gradient, made.theta, count, **where, noises=noises, rule=ADAM)[-1]

        np.testing.assert_allclose(fit.theta, replay(0), rtol=1e-7, atol=1e-8)
        assert np.abs(fit.theta - replay(1)).max() > 1e-4  # control: the masks of the next step


@NAMES
def test_bbb_is_replayed(name):
    """Reparameterised gradients by the oracle, Adam, and the records of each epoch."""
    made = made_of(name, likelihood=1)
    dim, epochs, batch, rate = made.theta.size, 2, 33, 0.01
    bbb = rb.BBB(made.native(), batch_size=batch, learning_rate=rate, kl="sampled", init_scale=0.1)
    fit = bbb.fit(epochs, seed=SEED, init=made.theta, progress=False)
    mean, rho = made.theta.copy(), np.full(dim, np.log(np.expm1(0.1)))
    first, second, recorded = np.zeros((2, dim)), np.zeros((2, dim)), 0.0
    for step in range(3 * epochs):
        rows = batch_of(step, ROWS, batch, seed=SEED, chain=0)
        e = normal(dim, seed=SEED, step=step, chain=0, purpose=WEIGHT_NOISE)
        scale, share = np.logaddexp(0, rho), len(rows) / ROWS
        value, gradient, _ = made.reference.log_likelihood(mean + scale * e, rows)
        by_weight = share * (gradient + made.reference.log_prior(mean + scale * e)[1])
        by_scale = by_weight * e + share / scale
        g = np.stack([by_weight, by_scale / (1 + np.exp(-rho))])
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        corrected = first / (1 - 0.9 ** (step + 1))
        move = rate * corrected / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
        mean, rho = mean + move[0], rho + move[1]
        recorded += share * value if step >= 3 else 0.0
    np.testing.assert_allclose(fit.mean, mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(fit.scale, np.logaddexp(0, rho), rtol=1e-7)
    assert fit.expected_log_likelihood[-1] == pytest.approx(recorded, rel=1e-9)
    assert np.abs(fit.mean - made.theta).max() > 0.01  # it moved


def test_order_of_the_energy_error_is_two():
    """On a smooth network with filter response normalisation. Control: a full first kick."""
    smooth = rb.FilterResponseNorm(threshold=False)
    model = rb.Model(
        [
            *(rb.Conv2D(2, 3, padding="same"), smooth, SILU),
            rb.Residual([rb.Conv2D(2, 2, padding="same"), smooth, TANH]),
            *(rb.GlobalAvgPool2D(), rb.Dense(1)),
        ],
        input_shape=(3, 3, 1),
    )
    made = problem(model, num_rows=12)
    target = made.native()

    def order(trajectory, starts):
        steps = [0.004, 0.002, 0.001]
        errors = np.zeros((len(steps), starts))
        for i, s in itertools.product(range(len(steps)), range(starts)):
            rng = np.random.default_rng((79, s))
            theta, momentum = weights(model, rng), rng.normal(size=model.dim)
            # an exact start would do no better: the order is that of every trajectory
            where = theta, momentum, steps[i], round(0.1 / steps[i])
            errors[i, s] = energy_error(target, trajectory, *where)[0]
        rms = np.sqrt(np.mean(errors**2, axis=1))
        return float(np.polyfit(np.log(steps), np.log(rms), 1)[0])

    assert order(native_trajectory, 20) == pytest.approx(2.0, abs=0.05)
    assert order(faulty("full first kick"), 5) < 1.5


# --- bits ----------------------------------------------------------------------------------------

SAMPLERS = {
    "sgld": lambda t: rb.SGLD(t, step_size=1e-6, batch_size=33),
    "preconditioned": lambda t: rb.SGLD(
        t, step_size=1e-7, batch_size=None, preconditioner="rmsprop"
    ),
    "sghmc": lambda t: rb.SGHMC(t, step_size=1e-7, batch_size=33),
    "hmc": lambda t: rb.HMC(t, step_size=0.005, num_leapfrog_steps=3),
}


@pytest.fixture
def _threads():
    before = num_threads()
    yield
    rb.set_num_threads(before)


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
@pytest.mark.filterwarnings("ignore:.*expected chains within 20 prior")
def test_saved_draws_go_on(tmp_path, name):
    made = made_of(name, likelihood=3)
    target = made.native(np.float32)
    x = target.x[:20].reshape(-1, *made.model.input_shape)
    for make in SAMPLERS.values():
        draws = make(target).sample(3, warmup=2, chains=2, seed=1, progress=False)
        draws.save(tmp_path / "run")
        loaded = rb.load_draws(tmp_path / "run")
        assert loaded.predict(x).probs.tobytes() == draws.predict(x).probs.tobytes()
        rest = [make(target).sample(2, resume=d, progress=False) for d in (draws, loaded)]
        assert rest[0].positions.tobytes() == rest[1].positions.tobytes()


# --- predictions under masks ---------------------------------------------------------------------


def fitted(made, dtype=np.float64):
    """A fit whose weights stay where they start."""
    mcd = rb.MCDropout(made.native(dtype), batch_size=None, learning_rate=1e-12)
    return mcd.fit(1, seed=1, init=made.theta, progress=False)


def inputs(made, num_rows):
    """Rows for the native library and for the oracle."""
    x = np.resize(made.reference.x, (num_rows, made.reference.x.shape[1]))
    return x.reshape(-1, *made.model.input_shape), x


@pytest.mark.parametrize("masks", ["row", "shared"])
@pytest.mark.parametrize("name", DROPPING)
def test_predictions_mask_by_mask(name, masks):
    """Few rows share panels (up to 16), many do not; layers below the first mask are shared."""
    made, samples = made_of(name), 20
    fit = fitted(made)
    for num_rows in (1, 3, 16, 17, 70):
        x, flat = inputs(made, num_rows)
        found = fit.draws(samples, seed=SEED, masks=masks).predict(x, keep=True).samples[0]
        rows = np.arange(num_rows) if masks == "row" else np.zeros(num_rows, int)
        for s in (0, 1, samples - 1):
            where = {"seed": SEED, "step": 0, "sample": s, "purpose": PREDICTIVE_MASK}
            factors = mask_factors(made.model, rows, **where)
            known = network(made.model.table, fit.theta, flat, factors)[0]
            np.testing.assert_allclose(found[s], known, rtol=1e-10, atol=1e-12)
    other = mask_factors(made.model, rows, **{**where, "sample": 0})  # control
    wrong = network(made.model.table, fit.theta, flat, other)[0]
    assert np.abs(found[-1] - wrong).max() > 1e-6


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("name", DROPPING)
def test_a_row_is_predicted_the_same_in_any_company(name):
    made = made_of(name)
    fit = fitted(made, np.float32)
    x, _ = inputs(made, 100)
    draws = fit.draws(33, seed=2)
    whole = draws.predict(x, keep=True)
    moments = draws.predict(x)
    for threads in (1, 2, 4):
        rb.set_num_threads(threads)
        assert fit.draws(33, seed=2).predict(x).mean.tobytes() == moments.mean.tobytes()
    np.testing.assert_array_equal(draws.predict(x[:37]).mean, moments.mean[:37])
    for few in (1, 5, 16, 17):
        found = draws.predict(x[:few], keep=True).samples
        np.testing.assert_allclose(found, whole.samples[:, :, :few], rtol=1e-4, atol=1e-5)
    # masks belong to rows by their place, so that equal rows differ; shared masks do not
    equal = np.repeat(x[:1], 40, axis=0)
    for masks in ("row", "shared"):
        found = fit.draws(33, seed=2, masks=masks).predict(equal, keep=True).samples[0]
        spread = np.ptp(found, axis=1).max()
        assert (spread > 1e-3) == (masks == "row")
    np.testing.assert_array_equal(draws.predict(x).quantile([0.1, 0.9]), whole.quantile([0.1, 0.9]))


def enumerated(made, theta, flat, rate):
    """Mean and variance (n,) of the first output over all masks of the only Dropout layer."""
    (row,) = (r for r, entries in enumerate(made.model.table) if OPS[entries[0]] == "dropout")
    channels = int(made.model.table[row, rb.layers.COLUMNS.index("channels")])
    size = int(made.model.table[row, 2])
    first = second = 0.0
    for kept in itertools.product([0.0, 1.0], repeat=channels):
        p = math.prod(1 - rate if k else rate for k in kept)
        factors = np.tile(np.array(kept) / (1 - rate), (len(flat), size // channels))
        f = network(made.model.table, theta, flat, {row: factors})[0][:, 0]
        first, second = first + p * f, second + p * f**2
    return first, second - first**2


@pytest.mark.parametrize("masks", ["row", "shared"])
def test_spatial_masks_follow_their_enumeration(masks):
    """20,000 masks of 5 channels, means and variances of 6 rows at 5.5 standard errors:
    false-fail rate 5e-7. Control: a rate 10 % larger."""
    made = made_of("spatial")
    fit = fitted(made)
    x, flat = inputs(made, 6)
    count = 20_000
    found = fit.draws(count, seed=3, masks=masks).predict(x, keep=True).samples[0, ..., 0]
    errors = {}
    for rate in (0.4, 0.44):
        mean, variance = enumerated(made, fit.theta, flat, rate)
        squares = (found - mean) ** 2
        errors[rate] = max(
            np.max(np.abs(found.mean(axis=0) - mean) / np.sqrt(variance / count)),
            np.max(np.abs(squares.mean(axis=0) - variance) / squares.std(axis=0) * count**0.5),
        )
    assert errors[0.4] < 5.5 < errors[0.44]


# --- predictive moments --------------------------------------------------------------------------


def entropy(p):
    return -np.sum(p * np.log(p), axis=-1)


def check_moments(prediction, samples, likelihood):
    """Streamed moments are those of the samples (S, N, K)."""
    close = {"rtol": 1e-6, "atol": 1e-7}
    np.testing.assert_allclose(prediction.epistemic_std, samples.std(axis=0), **close)
    if likelihood == 3:
        mean = samples.mean(axis=0)
        np.testing.assert_allclose(prediction.probs, mean, **close)
        np.testing.assert_allclose(prediction.entropy, entropy(mean), **close)
        known = entropy(mean) - entropy(samples).mean(axis=0)
        np.testing.assert_allclose(prediction.mutual_information, known, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_allclose(prediction.mean, samples.mean(axis=0), **close)


def outputs_of(made, thetas, flat, likelihood):
    """Predictions (S, N, K) of plain draws, by the oracle."""
    f = np.stack([network(made.model.table, t[: made.model.dim], flat)[0] for t in thetas])
    if likelihood == 3:
        f = np.exp(f - f.max(axis=-1, keepdims=True))
        f /= f.sum(axis=-1, keepdims=True)
    return f


@NAMES
@pytest.mark.parametrize("likelihood", [1, 3])
def test_moments_are_those_of_plain_draws(likelihood, name):
    made = made_of(name, likelihood)
    target = made.native()
    spread = made.theta + 0.3 * np.random.default_rng(1).normal(size=(2, 7, made.theta.size))
    for num_rows in (1, 5, 40):
        x, flat = inputs(made, num_rows)
        for positions in (spread, spread[:1, :1], np.ascontiguousarray(spread[:1])):
            draws = rb.Draws(positions, {}, True, None, {}, predictive=target)
            known = outputs_of(made, positions.reshape(-1, made.theta.size), flat, likelihood)
            check_moments(draws.predict(x), known, likelihood)
            if likelihood == 1:
                noise = np.exp(positions[..., -1]).reshape(-1)
                found = draws.predict(x).aleatoric_std
                np.testing.assert_allclose(found, np.sqrt(np.mean(noise**2)), rtol=1e-9)
    with pytest.raises(AssertionError):  # control: one draw less
        check_moments(draws.predict(x), known[1:], likelihood)


@NAMES
def test_drawn_weights_predict_as_their_draws_do(name):
    made = made_of(name, likelihood=3)
    fit = rb.BBB(made.native(), init_scale=0.2, learning_rate=1e-12).fit(
        1, init=made.theta, progress=False
    )
    for num_rows in (1, 40):
        x, flat = inputs(made, num_rows)
        streamed, plain = fit.predict(x, 30, seed=4), fit.draws(30, seed=4).predict(x)
        np.testing.assert_array_equal(streamed.probs, plain.probs)
        check_moments(streamed, outputs_of(made, fit.sample(30, seed=4), flat, 3), 3)


@pytest.mark.parametrize("name", DROPPING)
def test_moments_under_masks(name):
    for likelihood in (0, 3):
        made = made_of(name, likelihood)
        fit = fitted(made)
        for num_rows in (3, 40):
            x, flat = inputs(made, num_rows)
            samples = []
            for s in range(12):
                where = {"seed": 6, "step": 0, "sample": s, "purpose": PREDICTIVE_MASK}
                factors = mask_factors(made.model, np.arange(num_rows), **where)
                samples.append(network(made.model.table, fit.theta, flat, factors)[0])
            f = np.stack(samples)
            if likelihood == 3:
                f = np.exp(f) / np.exp(f).sum(axis=-1, keepdims=True)
            check_moments(fit.predict(x, 12, seed=6), f, likelihood)


# --- options of MC dropout -----------------------------------------------------------------------


@pytest.mark.parametrize("name", DROPPING)
def test_learned_rates_need_dense_layers(name):
    target = made_of(name).native()
    text = r"^\[MCDropout\] expected a network of dense layers for rate='concrete'"
    with pytest.raises(TypeError, match=text):
        rb.MCDropout(target, rate="concrete")
    assert rb.MCDropout(target, rate=0.1, batch_size=None).settings["rates"][0] == 0.1


def test_learned_rates_need_units():
    layers = [rb.Dropout(0.2, spatial=True), rb.Flatten(), rb.Dense(2)]
    made = problem(rb.Model(layers, input_shape=(3, 2)))
    with pytest.raises(TypeError, match=r"^\[MCDropout\] expected a network of dense layers"):
        rb.MCDropout(made.native(), rate="concrete")


@pytest.mark.parametrize("method", ["BBB", "SGLD", "HMC", "SGHMC", "DeepEnsemble"])
def test_other_methods_refuse_spatial_dropout(method):
    with pytest.raises(TypeError, match=rf"^\[{method}\] expected a target without Dropout"):
        getattr(rb, method)(made_of("spatial").native())


L = 0.7
SCALES = {  # keep probabilities and masks below these weights; all else has precision L^2
    "through norms and pools": (
        net(
            (6, 5, 2),
            *(rb.Dropout(0.2), rb.Conv2D(3, 2), FRN, RELU, rb.Dropout(0.4, spatial=True)),
            *(rb.MaxPool2D(2), FRN, rb.Conv2D(2, 2, padding="same"), rb.LayerNorm()),
            rb.Dropout(0.3),
        ),
        {"1.weight": (0.8, 1), "7.weight": (0.6, 1), "11.weight": (0.7, 1)},
    ),
    "two masks in a row": (
        net((4, 3, 2), rb.Dropout(0.1), rb.Dropout(0.5, spatial=True), rb.Conv2D(2, 2)),
        {"2.weight": (0.9 * 0.5, 2)},
    ),
    "shortcuts": (  # a sum takes the smaller one
        net(
            (4, 3, 2),
            rb.Dropout(0.3),
            rb.Residual([rb.Conv2D(2, 1)]),
            rb.Residual([rb.Dropout(0.5), rb.Conv2D(2, 1)]),
        ),
        {"1.main.0.weight": (0.7, 1), "2.main.1.weight": (0.7 * 0.5, 2), "4.weight": (0.7, 1)},
    ),
    "a mask in one path": (
        net((4, 3, 2), rb.Residual([rb.Conv2D(2, 1), rb.Dropout(0.2)], [rb.Conv2D(2, 1)])),
        {"2.weight": (0.8, 1)},
    ),
    "an embedding": (
        net((5,), rb.Embedding(4, 3), rb.Dropout(0.25), rb.Conv1D(2, 2), TANH),
        {"2.weight": (0.75, 1)},
    ),
    "an lstm": (
        DROPPING["masked lstm"],
        {"2.weight": (0.7, 1), "5.weight": (0.6, 1)},
    ),
}


@pytest.mark.parametrize("name", SCALES)
def test_length_scales_by_hand(name):
    model, keeps = SCALES[name]
    made = problem(model, num_rows=9)

    def known(keeps, **options):
        prior = {k: rb.Normal(1 / (L * keep**0.5)) for k, keep in keeps.items()}
        return made.native(prior={**prior, "*": rb.Normal(1 / L)}).masked(**options)

    own = {k: keep for k, (keep, _) in keeps.items()}
    given = {k: 0.5**masks for k, (_, masks) in keeps.items()}
    found = made.native().masked(length_scale=L)
    same_density(found, known(own))
    same_density(made.native().masked(length_scale=L, rate=0.5), known(given, rate=0.5))
    for k in keeps:  # control: each keep probability left out
        with pytest.raises(AssertionError):
            same_density(found, known({name: v for name, v in own.items() if name != k}))
