"""SWAG: moments of the iterates, draws, what decides a fit, bad input."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import NonFiniteError
from ribbit.results.swag import SWAGFit
from tests.oracle import stochastic_reference, swag_reference
from tests.support.linear_posterior import DESIGN, DIM, NOISE, PRIOR, ROWS, X, Y, target

# Runs of a few epochs, whose objective rises: what they converge to does not matter here.
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
ARRAYS = ("mean", "squares", "deviations")


def network(rows=120):
    x = np.random.default_rng(0).normal(size=(rows, 4))
    return rb.Posterior(
        rb.mlp(4, (20, 10), 1), x, np.sin(x[:, 0]), prior=rb.Normal(0.7), likelihood=rb.Gaussian()
    )


def same(a, b):
    assert a.count == b.count
    for name in ARRAYS:
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes()
    assert a.state.position.tobytes() == b.state.position.tobytes()


# --- moments and draws ---------------------------------------------------------------------------


def test_moments_are_those_of_an_ensemble_s_iterates():
    """Adam at one rate: the iterates are the weights of ensembles trained as long."""
    density, options = network(), {"members": 2, "batch_size": 50, "learning_rate": 1e-2}
    fit = rb.SWAG(density, max_rank=4, **options).fit(3, swag_epochs=7, seed=5, progress=False)
    ensemble = rb.DeepEnsemble(density, **options)
    iterates = [ensemble.fit(3 + t, seed=5, progress=False).theta for t in range(1, 8)]
    assert fit.state.position.tobytes() == iterates[-1].tobytes()
    assert fit.deviations.shape == (2, 4, density.dim)
    for member in range(2):
        path = np.array(iterates)[:, member, :].astype(np.float64)
        mean, variance, deviations = swag_reference.moments(path, 4)
        np.testing.assert_allclose(fit.mean[member], mean, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(fit.variance[member], variance, rtol=1e-6, atol=1e-14)
        np.testing.assert_allclose(fit.deviations[member], deviations, rtol=1e-5, atol=1e-8)
        # the control: without the first iterate they are others
        assert np.abs(mean - path[1:].mean(axis=0)).max() > 1e-3


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("rates", [(0.02, 0.02), (0.02, 0.005)])
def test_iterates_of_gradient_descent_are_those_of_the_oracle(momentum, rates):
    swag = rb.SWAG(
        target(),
        learning_rate=rates[0],
        swag_learning_rate=rates[1],
        batch_size=7,
        optimizer="sgd",
        momentum=momentum,
    )
    start = np.array([0.3, -0.1, 0.2])
    fit = swag.fit(2, swag_epochs=5, seed=9, init=start, progress=False)

    def gradient(theta, rows):
        pull = DESIGN[rows].T @ (Y[rows] - DESIGN[rows] @ theta) / NOISE**2
        return ROWS / len(rows) * pull - theta / PRIOR**2

    theta, velocity, iterates = start, np.zeros(DIM), []
    for step in range(3 * 7):
        rows = stochastic_reference.batch_of(step, ROWS, 7, seed=9, chain=0)
        rate = rates[0] if step < 6 else rates[1]
        velocity = momentum * velocity + rate * gradient(theta, rows) / ROWS
        theta = theta + velocity
        if step >= 6 and step % 3 == 2:
            iterates.append(theta)
    mean, variance, deviations = swag_reference.moments(iterates, 20)
    np.testing.assert_allclose(fit.mean[0], mean, rtol=1e-10)
    np.testing.assert_allclose(fit.variance[0], variance, rtol=1e-8, atol=1e-15)
    np.testing.assert_allclose(fit.deviations[0], deviations, rtol=1e-8, atol=1e-14)


def by_hand():
    rng = np.random.default_rng(2)
    means, squares = rng.normal(size=(2, 4)), 10 * rng.uniform(0.5, 2.0, size=(2, 4))
    deviations = rng.normal(size=(2, 3, 4))
    return SWAGFit(means, squares, deviations, 10, 0, complete=True, settings={})


def test_draws_are_those_of_the_oracle():
    fit = by_hand()
    positions = fit.draws(9, seed=7).positions
    assert positions.shape == (1, 9, 4)
    for s in range(9):
        expected = swag_reference.draw(fit.mean, fit.variance, fit.deviations, s, seed=7)
        np.testing.assert_allclose(positions[0, s], expected, rtol=1e-10, atol=1e-12)
    assert fit.draws(40, seed=7).positions[:, :9].tobytes() == positions.tobytes()
    assert fit._starts(np.array([8, 1], np.uint32), 7).tobytes() == positions[0, [8, 1]].tobytes()
    assert fit._starts(None, 7).tobytes() == positions[0, :4].tobytes()
    assert fit.draws(9, seed=8).positions.tobytes() != positions.tobytes()


def test_many_draws_are_made_some_at_a_time(monkeypatch):
    fit = by_hand()
    whole = fit.draws(50, seed=1).positions
    monkeypatch.setattr("ribbit.results.swag._AT_ONCE", 28)
    assert fit.draws(50, seed=1).positions.tobytes() == whole.tobytes()


def test_the_law_of_draws():
    """Mean and covariance in closed form: 28 numbers within 6 standard errors, 6e-8 by chance."""
    fit, count = by_hand(), 200_000
    positions = fit.draws(2 * count, seed=3).positions[0]

    def worst(covariances):
        scores = []
        for member, c in enumerate(covariances):
            away = positions[member::2] - fit.mean[member]
            spread = np.diag(c)
            scores.append(np.abs(away.mean(axis=0)) / np.sqrt(spread / count))
            found = away.T @ away / count
            noise = np.sqrt((np.outer(spread, spread) + c**2) / count)
            scores.append((np.abs(found - c) / noise)[np.triu_indices(4)])
        return np.concatenate(scores).max()

    known = [
        swag_reference.covariance(v, d) for v, d in zip(fit.variance, fit.deviations, strict=True)
    ]
    assert worst(known) < 6.0
    # the controls: the members the other way round; both parts whole; too much diagonal
    assert worst(known[::-1]) > 50.0
    assert worst([2.0 * c for c in known]) > 50.0
    assert worst([(2.0 * c + 0.5 * np.diag(np.diag(c))) / 3.0 for c in known]) > 50.0


# --- what decides a fit --------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("batch", [48, None])
def test_bits_do_not_depend_on_threads_restarts_or_members(optimizer, batch):
    density = network(700)
    options = {
        "learning_rate": 1e-2 if optimizer == "adam" else 1e-4,
        "batch_size": batch,
        "optimizer": optimizer,
        "max_rank": 3,
    }
    swag = rb.SWAG(density, members=3, **options)
    rb.set_num_threads(2)
    whole = swag.fit(3, swag_epochs=5, seed=3, progress=False)
    rb.set_num_threads(1)
    same(swag.fit(3, swag_epochs=5, seed=3, progress=False), whole)
    rb.set_num_threads(2)
    part = swag.fit(1, swag_epochs=0, seed=3, progress=False)
    assert part.count == 0
    assert part.first_step is None
    part = swag.fit(2, swag_epochs=2, resume=part, progress=False)
    assert part.count == 2
    assert part.first_step == 3 * (1 if batch is None else 15)
    rest = swag.fit(0, swag_epochs=3, resume=part, progress=False)
    same(rest, whole)
    assert rest.settings == whole.settings
    two = rb.SWAG(density, members=2, **options).fit(3, swag_epochs=5, seed=3, progress=False)
    assert two.deviations.tobytes() == whole.deviations[:2].tobytes()
    assert two.squares.tobytes() == whole.squares[:2].tobytes()


@pytest.mark.parametrize("at", [5, 20, 30, 50])
def test_an_epoch_cut_short_is_finished_first(at, monkeypatch):
    """A fit stopped in the middle of an epoch goes on bit for bit."""
    swag = rb.SWAG(network(), learning_rate=1e-2, batch_size=10)
    whole = swag.fit(2, swag_epochs=4, progress=False)

    class Few:
        """At most five steps per call."""

        def size(self, left):
            return min(left, 5)

        def made(self, count):
            pass

    def broken(state, *arguments):
        if state.step >= at:
            raise OSError("mine")
        return advance(state, *arguments)

    monkeypatch.setattr("ribbit.samplers.fit.training.CallSize", Few)
    phase = swag._stepper if at < 24 else swag._collector
    advance = phase.advance
    with monkeypatch.context() as patch:
        patch.setattr(phase, "advance", broken)
        with pytest.raises(OSError, match="mine") as caught:
            swag.fit(2, swag_epochs=4, progress=False)
    part = caught.value.fit
    assert not part.complete
    assert part.state.step % 12 != 0
    epochs = part.state.step // 12
    assert part.count == max(0, epochs - 2)
    rest = swag.fit(max(0, 2 - epochs), swag_epochs=4 - part.count, resume=part, progress=False)
    same(rest, whole)


def test_a_fit_predicts_and_starts_others():
    density = network()
    fit = rb.SWAG(density, members=2, learning_rate=1e-2, batch_size=30).fit(
        20, swag_epochs=25, seed=1, progress=False
    )
    assert "2 members, 322 parameters, 25 iterates, rank 20" in repr(fit)
    assert fit.draws(3).positions.dtype == np.float32
    x = density.x[:5]
    mean = fit.predict(x, 100, seed=2).mean
    np.testing.assert_array_equal(mean, fit.draws(100, seed=2).predict(x).mean)
    sgld = rb.SGLD(density, step_size=1e-12, batch_size=20)
    run = sgld.sample(1, warmup=0, chains=[4, 1], seed=6, init=fit, progress=False)
    expected = fit.draws(5, seed=6).positions[0, [4, 1]]
    np.testing.assert_allclose(run.positions[:, 0], expected, atol=1e-4)
    again = rb.SWAG(density, batch_size=30).fit(0, swag_epochs=3, init=fit, progress=False)
    assert again.first_step == 0
    ensemble = rb.DeepEnsemble(density, members=2, batch_size=30).fit(2, progress=False)
    late = rb.SWAG(density, members=2, batch_size=30)
    assert late.fit(0, swag_epochs=3, init=ensemble, progress=False).count == 3


def test_all_rows_in_every_step_leave_no_spread():
    """The mean is the posterior's, and the variance no more than rounding."""
    swag = rb.SWAG(target(), learning_rate=0.02, batch_size=None, optimizer="sgd", momentum=0.5)
    fit = swag.fit(2_000, swag_epochs=50, progress=False)
    precision = DESIGN.T @ DESIGN / NOISE**2 + np.eye(DIM) / PRIOR**2
    mean = np.linalg.solve(precision, DESIGN.T @ Y / NOISE**2)
    np.testing.assert_allclose(fit.mean[0], mean, rtol=1e-10)
    assert fit.variance.max() < 1e-25


def test_a_fit_that_still_rises_is_warned_of():
    swag = rb.SWAG(network(), learning_rate=1e-4, batch_size=30)
    with pytest.warns(rb.errors.FitWarning, match=r"\[SWAG.fit\].* still rose") as found:
        fit = swag.fit(5, swag_epochs=20, progress=False)
    assert found[0].filename == __file__
    summary = fit.summary()
    assert summary.converged is False
    for text in (str(found[0].message), summary.text):
        assert "init=fit.mean starts another fit there" in " ".join(text.split())
    assert "resume" not in summary.text
    again = swag.fit(1, init=fit.mean, progress=False)  # for as long as it takes
    assert again.history["objective"][-1] > fit.history["objective"][-1]
    assert fit.history["epoch"].tolist() == [*range(0, 5, 2), *range(6, 26)]


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"members": 0}, "members"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"swag_learning_rate": -1.0}, "swag_learning_rate"),
        ({"max_rank": 1}, "max_rank"),
        ({"batch_size": ROWS + 1}, f"batch_size <= {ROWS}"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"momentum": 1.0}, "momentum"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(ValueError, match=text):
        rb.SWAG(target(), **{"batch_size": 10} | options)


def test_bad_fits():
    swag = rb.SWAG(target(), batch_size=10)
    with pytest.raises(ValueError, match="num_epochs or swag_epochs >= 1, got 0 and 0"):
        swag.fit(0, swag_epochs=0)
    with pytest.raises(ValueError, match="swag_epochs"):
        swag.fit(1, swag_epochs=-1)
    one = swag.fit(1, swag_epochs=1, progress=False)
    for call in (lambda: one.draws(2), lambda: one.predict(X), lambda: one._starts(None, 0)):
        with pytest.raises(ValueError, match="a fit of at least 2 iterates, got 1: collect more"):
            call()
    with pytest.raises(ValueError, match="num_epochs=0 with a resume that has collected 1"):
        swag.fit(1, resume=one)
    with pytest.raises(TypeError, match=r"resume as an? SWAGFit that SWAG\.fit returned"):
        swag.fit(1, resume=by_hand())
    with pytest.raises(ValueError, match="max_rank=7 where it was 20"):
        rb.SWAG(target(), batch_size=10, max_rank=7).fit(0, resume=one)
    with pytest.raises(ValueError, match="one of init and resume"):
        swag.fit(0, init=one.mean[0], resume=one)
    with pytest.raises(ValueError, match=rf"expected init \({DIM},\)"):
        swag.fit(1, init=np.zeros(2))
    dropping = rb.Model([rb.Dense(3), rb.Dropout(0.1), rb.Dense(1)], input_shape=(2,))
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.1)}
    with pytest.raises(TypeError, match="without Dropout layers"):
        rb.SWAG(rb.Posterior(dropping, X, Y, **options))


def test_deviations_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setenv("RIBBIT_FREE_MEMORY", str(1 << 20))
    swag = rb.SWAG(network(), max_rank=10**7, batch_size=10)
    with pytest.raises(MemoryError, match="10000000 deviations of 1 members of 322 parameters"):
        swag.fit(1, swag_epochs=10**8)


@pytest.mark.parametrize("num_epochs", [0, 4])
def test_a_rate_that_is_too_large_brings_the_fit(num_epochs):
    swag = rb.SWAG(target(), learning_rate=10.0, batch_size=5, optimizer="sgd")
    with pytest.raises(NonFiniteError, match=r"in member 0 .* with learning rate / N") as caught:
        swag.fit(num_epochs, swag_epochs=10_000, progress=False)
    fit = caught.value.fit
    assert fit is caught.value.state
    assert np.isfinite(fit.state.position).all()
    assert fit.count == fit.state.step // 4 - num_epochs


def test_a_fit_without_spread_is_warned_of():
    """Adam on all rows stands still; minibatches at a large rate move the weights."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(100, 1))
    y = np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=100)
    density = rb.Posterior(
        rb.mlp(1, (10,), 1), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    )
    with pytest.warns(rb.errors.FitWarning, match=r"spread of the posterior.* smaller batch_size"):
        still = rb.SWAG(density, members=2).fit(3000, progress=False)
    moving = rb.SWAG(density, batch_size=16, swag_learning_rate=1e-2).fit(1000, progress=False)
    spread = [np.mean(fit.predict(x, 200).epistemic_std) for fit in (still, moving)]
    assert spread[1] > 0.02
    # few iterates say nothing of a spread
    rb.SWAG(density).fit(0, swag_epochs=5, init=moving, progress=False)
