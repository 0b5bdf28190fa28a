"""rb.concatenate: what one run would have given, from memory or not; anything else is named."""

import dataclasses

import numpy as np
import pytest

import ribbit as rb
from ribbit.results import running
from ribbit.results.lazy import JoinedArray
from tests.support.targets import OPTIONS, Gaussian, Line, equal, posterior, same

# short runs, whose bits are looked at and not where they are
pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
]
X = np.linspace(-1.0, 1.0, 15).reshape(5, 3)
SAMPLERS = {
    "HMC": (rb.HMC, OPTIONS["fixed"], {}),
    "HMC adapted": (rb.HMC, OPTIONS["adapted"], {}),
    "NUTS": (rb.NUTS, {"step_size": 0.05, "max_tree_depth": 3}, {}),
    "MCLMC": (rb.MCLMC, {"step_size": 0.02, "decoherence_length": 0.5}, {"thin": 3}),
    "MCLMC adjusted": (rb.MCLMC, {"adjusted": True}, {}),
    "SGLD": (rb.SGLD, {"step_size": 1e-4, "batch_size": 20, "preconditioner": "rmsprop"}, {}),
    "SGHMC": (rb.SGHMC, {"step_size": 1e-5, "batch_size": 20}, {"thin": 5}),
    "BAOAB": (rb.BAOAB, {"step_size": 1e-2, "batch_size": 20}, {"thin": 5}),
}


class OnDisk:
    """As a store's array: a shape, a dtype and indexing; counts how much was read at once."""

    def __init__(self, array):
        self._array, self.shape, self.dtype = array, array.shape, array.dtype
        self.most = 0

    def __getitem__(self, key):
        found = np.array(self._array[key])
        self.most = max(self.most, found.size)
        return found


def lazily(draws):
    return dataclasses.replace(
        draws,
        positions=OnDisk(draws.positions),
        stats={name: OnDisk(values) for name, values in draws.stats.items()},
    )


def close(a, b):
    """Predictions gathered in parts are those of one run up to rounding."""
    assert a.num_draws == b.num_draws
    for name in ("mean", "std", "epistemic_std"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-10)


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_that_follow(name):
    make, how, options = SAMPLERS[name]
    sampler, predict = make(posterior(), **how), {"predict_at": X, "progress": False}
    options = {**options, **predict}
    whole = sampler.sample(17, warmup=25, seed=2, chains=2, save_warmup=True, **options)
    parts = [sampler.sample(6, warmup=25, seed=2, chains=2, save_warmup=True, **options)]
    for count in (1, 10):
        parts.append(sampler.sample(count, resume=parts[-1], **options))
    joined = rb.concatenate(parts)
    equal(whole, joined)
    assert same(joined.warmup_positions, whole.warmup_positions)
    assert set(joined.warmup_stats) == set(whole.warmup_stats)
    assert joined.complete
    assert joined.state is parts[-1].state
    assert joined.settings["num_draws"] == 17
    assert joined.settings["joined"] == {"axis": "draws", "parts": 3}
    close(joined.prediction, whole.prediction)
    assert joined.summary().rows[0][:2] == whole.summary().rows[0][:2]
    rest = sampler.sample(3, resume=joined, **options)
    equal(sampler.sample(20, warmup=25, seed=2, chains=2, **options), rest, rows=slice(17, None))


@pytest.mark.parametrize("name", SAMPLERS)
def test_chains_side_by_side(name):
    make, how, options = SAMPLERS[name]
    sampler, options = make(posterior(), **how), {**options, "predict_at": X, "progress": False}
    options |= {"warmup": 25, "seed": 2, "save_warmup": True}
    whole = sampler.sample(8, chains=[0, 1, 7, 4], **options)
    parts = [sampler.sample(8, chains=ids, **options) for ids in ([0, 1], [7], [4])]
    joined = rb.concatenate(parts, axis="chains")
    equal(whole, joined)
    assert same(joined.warmup_positions, whole.warmup_positions)
    assert joined.settings["chains"] == [0, 1, 7, 4]
    close(joined.prediction, whole.prediction)
    rest = {"predict_at": X, "progress": False, "thin": options.get("thin")}
    equal(
        sampler.sample(3, resume=whole, **rest),
        sampler.sample(3, resume=joined, **rest),
    )


@pytest.mark.parametrize("axis", ["chains", "draws"])
def test_in_warmup(axis, monkeypatch):
    """Cut short while step sizes and masses are adapted: the tuning is joined too."""
    monkeypatch.setattr("ribbit.sample._SECONDS", 0.0)  # a display after every call
    hmc = rb.HMC(posterior(), **OPTIONS["adapted"])

    def some(chains, resume=None):
        options = {"chains": chains, "warmup": 60, "seed": 1} if resume is None else {}
        seen = []

        def stop(snapshot):
            seen.append(snapshot)
            raise KeyError

        with pytest.raises(KeyError) as caught:
            hmc.sample(5, resume=resume, progress=stop, save_warmup=True, **options)
        return caught.value.draws

    if axis == "draws":
        first = some(2)
        second = some(None, first)
        third = hmc.sample(5, resume=second, save_warmup=True, progress=False)
        parts = [first, second, third]
        joined = rb.concatenate(parts)
        whole = hmc.sample(5, chains=2, warmup=60, seed=1, save_warmup=True, progress=False)
        equal(whole, joined)
        assert same(whole.warmup_positions, joined.warmup_positions)
    else:
        joined = rb.concatenate([some([0]), some([1])], axis="chains")
        assert "dual.error" in joined.state.fields
        whole = hmc.sample(5, chains=2, warmup=60, seed=1, progress=False)
        equal(whole, hmc.sample(5, resume=joined, progress=False))


@pytest.mark.parametrize("axis", ["chains", "draws"])
def test_what_is_not_in_memory_stays_there(axis):
    hmc = rb.HMC(posterior(), **OPTIONS["fixed"])
    first = hmc.sample(50, chains=2, warmup=5, progress=False)
    if axis == "draws":
        second = hmc.sample(30, resume=first, progress=False)
    else:
        second = hmc.sample(50, chains=[2, 3], warmup=5, progress=False)
    memory = rb.concatenate([first, second], axis)
    for parts in ([lazily(first), lazily(second)], [first, lazily(second)]):
        joined = rb.concatenate(parts, axis)
        assert isinstance(joined.positions, JoinedArray)
        assert joined.positions.shape == memory.positions.shape
        assert len(joined) == len(memory)
        assert f"x {len(memory)} draws" in repr(joined)
        lazy = parts[1].positions
        assert lazy.most == 0  # nothing was read yet
        _ = joined.positions[0, -1]
        _ = joined.positions[:, 3:9]
        assert lazy.most <= 4 * 6 * 46
        equal(
            memory,
            dataclasses.replace(
                joined,
                positions=np.asarray(joined.positions),
                stats={name: np.asarray(values) for name, values in joined.stats.items()},
            ),
        )
        np.testing.assert_allclose(joined.predict(X).mean, memory.predict(X).mean, rtol=1e-6)
        assert np.array_equal(joined.predict(X).quantile(0.5), memory.predict(X).quantile(0.5))
        assert joined.summary(X).rows[0] == memory.summary(X).rows[0]
        equal(
            hmc.sample(3, resume=joined, progress=False),
            hmc.sample(3, resume=memory, progress=False),
        )


@pytest.mark.parametrize("axis", ["chains", "draws"])
def test_folders_of_runs(axis, tmp_path):
    """Joined where they lie: predictions, summaries and R-hat read a chunk at a time."""
    hmc = rb.HMC(posterior(), **OPTIONS["fixed"])
    options = {"warmup": 5, "progress": False, "save_warmup": True}
    hmc.sample(50, chains=2, store=tmp_path / "a", **options)
    first = rb.load(tmp_path / "a")
    if axis == "draws":
        hmc.sample(30, resume=first, progress=False, store=tmp_path / "b")
        whole = hmc.sample(80, chains=2, **options)
    else:
        hmc.sample(50, chains=[2, 3], store=tmp_path / "b", **options)
        whole = hmc.sample(50, chains=4, **options)
    joined = rb.concatenate([first, rb.load(tmp_path / "b")], axis)
    assert isinstance(joined.positions, JoinedArray)
    assert same(np.asarray(joined.positions), whole.positions)
    assert same(np.asarray(joined.warmup_positions), whole.warmup_positions)
    for name, values in whole.stats.items():
        assert same(np.asarray(joined.stats[name]), values)
    np.testing.assert_allclose(joined.predict(X).mean, whole.predict(X).mean, rtol=1e-6)
    assert joined.summary(X).rows[0] == whole.summary(X).rows[0]
    rhat = rb.diagnostics.weight_rhat(joined)
    assert np.array_equal(rhat, rb.diagnostics.weight_rhat(whole), equal_nan=True)
    equal(hmc.sample(3, resume=joined, progress=False), hmc.sample(3, resume=whole, progress=False))


def test_indexing_of_what_is_joined():
    """As NumPy's, for all kinds of keys; three hundred random ones, and some by hand."""
    rng = np.random.default_rng(3)
    for axis in (0, 1):
        shapes = [(2, 4, 3), (1, 4, 3), (3, 4, 3)] if axis == 0 else [(2, n, 3) for n in (4, 1, 5)]
        arrays = [rng.normal(size=shape) for shape in shapes]
        whole = np.concatenate(arrays, axis=axis)
        joined = JoinedArray([OnDisk(a) for a in arrays], axis)
        assert (joined.shape, joined.dtype) == (whole.shape, whole.dtype)
        assert (joined.ndim, joined.size, len(joined)) == (3, whole.size, len(whole))
        assert same(np.asarray(joined), whole)
        assert same(joined.reshape((-1, 3)), whole.reshape(-1, 3))
        keys = [..., (..., 0), (0, ...), slice(None), (slice(None), None), (slice(None), [0, 2])]
        keys += [whole > 0, (slice(50, 60),), (slice(None), slice(60, 50))]
        for _ in range(300):
            key = []
            for size in whole.shape[: rng.integers(1, 4)]:
                if rng.random() < 0.4:
                    key.append(int(rng.integers(-size, size)))
                else:
                    low, high = rng.integers(-size - 2, size + 3, size=2)
                    key.append(slice(int(low), int(high), int(rng.choice([-3, -1, 1, 2, 4]))))
            keys.append(tuple(key))
        for key in keys:
            assert same(joined[key], np.asarray(whole[key])), (axis, key)
        for key in (whole.shape[0], (0, whole.shape[1]), (-whole.shape[0] - 1,)):
            with pytest.raises(IndexError):
                joined[key]


def test_shared_starts_stay_shared():
    hmc = rb.HMC(posterior(), **OPTIONS["fixed"])
    start = np.repeat(posterior().init(0, 2), 2, axis=0)
    parts = [hmc.sample(12, init=start, chains=[4 * i + j for j in range(4)]) for i in (0, 1)]
    joined = rb.concatenate(parts, axis="chains")
    assert joined.settings["start"] == {"superchains": [0, 0, 1, 1, 2, 2, 3, 3]}
    assert "nested R-hat" in joined.summary().text


def test_what_a_rule_was_looking_at():
    hmc = rb.HMC(Line([1.0, 2.0, 0.3]), step_size=0.5, num_leapfrog_steps=3)
    rule = rb.Converged(rhat=1.1, ess=100, at=np.eye(3))
    first = hmc.sample(until=rule, warmup=10, progress=False)
    second = hmc.sample(until=rule, resume=first, progress=False)
    joined = rb.concatenate([first, second])
    assert joined.monitored.shape == (4, len(first) + len(second), 6)  # predictions, weights
    assert joined.summary().converged


def close_laws(p, q):
    np.testing.assert_allclose(p.credible_interval(), q.credible_interval(), rtol=1e-6)
    np.testing.assert_allclose(p.interval(), q.interval(), rtol=1e-6)


def test_without_draws():
    hmc = rb.HMC(posterior(), **OPTIONS["fixed"])
    options = {"save_draws": False, "predict_at": (X, X[:, :1]), "progress": False}
    first = hmc.sample(20, chains=2, warmup=5, **options)
    joined = rb.concatenate([first, hmc.sample(10, resume=first, **options)])
    whole = hmc.sample(30, chains=2, warmup=5, **options)
    assert joined.positions.shape == (2, 0, 46)
    close(joined.prediction, whole.prediction)
    close_laws(joined.prediction, whole.prediction)
    assert np.isclose(joined.prediction.log_likelihood(), whole.prediction.log_likelihood())
    others = [hmc.sample(30, chains=[i], warmup=5, **options) for i in (0, 1)]
    close_laws(rb.concatenate(others, axis="chains").prediction, whole.prediction)
    assert joined.summary().rows[0][:2] == whole.summary().rows[0][:2]


def test_kept_predictions_are_thinned_alike(monkeypatch):
    """Every draw of a short run and every fourth of a long one: every fourth of both."""
    options = {"save_draws": False, "predict_at": X, "progress": False}
    hmc = rb.HMC(posterior(), **OPTIONS["fixed"])
    start = hmc.sample(20, chains=2, warmup=5, **options)
    one = start.prediction.running.kept.mean
    monkeypatch.setattr(running, "_KEPT", 900)  # about 18 draws
    runs = [start, hmc.sample(60, resume=start, **options)]
    assert [run.prediction.running._thin for run in runs] == [1, 4]
    two = runs[1].prediction.running.kept.mean
    joined = rb.concatenate(runs).prediction
    assert joined.running._thin == 4
    fourth = one.reshape(20, 2, *one.shape[1:])[::4].reshape(10, *one.shape[1:])
    assert same(joined.running.kept.mean, np.concatenate([fourth, two]))
    monkeypatch.setattr(running, "_KEPT", 10)  # less than a draw: nothing is kept
    runs[1] = hmc.sample(60, resume=start, **options)
    with pytest.raises(ValueError, match="no draw was kept"):
        rb.concatenate(runs).prediction.credible_interval()


def test_saved_and_joined(tmp_path):
    hmc = rb.HMC(posterior(), **OPTIONS["fixed"])
    first = hmc.sample(6, chains=2, warmup=5, progress=False)
    second = hmc.sample(4, resume=first, progress=False)
    first.save(tmp_path / "a")
    joined = rb.concatenate([rb.load(tmp_path / "a"), second])
    joined.save(tmp_path / "b")
    equal(hmc.sample(10, chains=2, warmup=5, progress=False), rb.load(tmp_path / "b"))
    assert rb.concatenate([first]) is first


def hmc_of(**how):
    return rb.HMC(posterior(), **{**OPTIONS["fixed"], **how})


BASE = hmc_of().sample(4, chains=2, warmup=3, progress=False)
OTHERS = {
    "another target": (
        lambda: rb.HMC(posterior(temperature=2.0), **OPTIONS["fixed"]),
        {},
        "another temperature in draws 1",
    ),
    "another size": (
        lambda: rb.HMC(Gaussian([1.0, 2.0]), step_size=0.1, num_leapfrog_steps=2),
        {"init": np.zeros((2, 2))},
        "one dim, got 46 in draws 0 and 2 in draws 1",
    ),
    "another dtype": (
        lambda: rb.HMC(posterior(dtype=np.float64), **OPTIONS["fixed"]),
        {},
        "one dtype",
    ),
    "another sampler": (
        lambda: rb.NUTS(posterior(), step_size=0.1),
        {},
        "one sampler, got 'HMC' in draws 0 and 'NUTS'",
    ),
    "another setting": (lambda: hmc_of(step_size=0.03), {}, "one step_size"),
    "another seed": (hmc_of, {"seed": 4}, "one seed"),
    "another warmup": (hmc_of, {"warmup": 9}, "one warmup"),
    "another thinning": (hmc_of, {"thin": 2}, "one thin"),
    "without draws": (hmc_of, {"save_draws": False, "predict_at": X}, "one save_draws"),
}


@pytest.mark.parametrize("axis", ["chains", "draws"])
@pytest.mark.parametrize("name", OTHERS)
def test_others_are_named(name, axis):
    make, options, text = OTHERS[name]
    options = {"warmup": 3, "chains": [2, 3] if axis == "chains" else 2, **options}
    other = make().sample(4, progress=False, **options)
    with pytest.raises(ValueError, match=text) as caught:
        rb.concatenate([BASE, other], axis=axis)
    assert str(caught.value).startswith("[concatenate] expected")


def test_what_does_not_fit_together():
    hmc = hmc_of()
    second = hmc.sample(2, resume=BASE, progress=False)
    third = hmc.sample(2, resume=second, progress=False)
    elsewhere = hmc.sample(4, chains=[2, 3], warmup=3, progress=False)
    for parts in ([BASE, third], [BASE, BASE], [second, BASE], [BASE, second, second]):
        with pytest.raises(ValueError, match="expected draws that follow each other"):
            rb.concatenate(parts)
    with pytest.raises(ValueError, match=r"expected chains \[0, 1\] in all draws"):
        rb.concatenate([BASE, elsewhere])
    with pytest.raises(ValueError, match=r"distinct chain ids, got \[0, 1\] again in draws 1"):
        rb.concatenate([BASE, BASE], axis="chains")
    with pytest.raises(ValueError, match="one number of draws, got 4 in draws 0 and 5"):
        rb.concatenate([BASE, hmc.sample(5, chains=[2], warmup=3, progress=False)], axis="chains")
    # a run may be joined from its middle on
    assert len(rb.concatenate([second, third])) == 4


def test_cyclical_schedules():
    """Whose draws are no regular steps."""
    schedule = rb.schedules.cyclical(4, 10, draws_per_cycle=2)
    sgld = rb.SGLD(posterior(), step_size=1e-4, batch_size=20, schedule=schedule)
    first = sgld.sample(3, chains=2, warmup=0, progress=False)
    second = sgld.sample(3, resume=first, progress=False)
    equal(sgld.sample(6, chains=2, warmup=0, progress=False), rb.concatenate([first, second]))
    with pytest.raises(ValueError, match="in their order"):
        rb.concatenate([second, first])


@pytest.mark.parametrize("value", [None, 3, "x", BASE, [BASE, None], [BASE.positions], []])
def test_rubbish(value):
    with pytest.raises((TypeError, ValueError), match=r"^\[concatenate\] expected draws"):
        rb.concatenate(value)


def test_a_fit_and_a_wrong_axis():
    fit = rb.BBB(posterior(), batch_size=None).fit(1, progress=False)
    with pytest.raises(TypeError, match="got draws of a fit"):
        rb.concatenate([fit.draws(3)])
    with pytest.raises(ValueError, match="axis"):
        rb.concatenate([BASE], axis="draw")
