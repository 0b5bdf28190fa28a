"""A posterior's precision on a device (made of the CPU, or CuPy's).

Log densities are as accurate as float32 in every precision: 4e-6 of the sum of their rows' sizes.
Gradients from TF32 products: 2^-8 of the largest entry, and not the bits of float32.
"""

import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit._backends.cuda import forward as cuda_forward
from ribbit._backends.cuda.programs import persistent
from ribbit._backends.precision import PRECISIONS
from ribbit.errors import PrecisionWarning
from ribbit.lockstep import chains as lockstep
from ribbit.targets.predictive import predictive_from_description
from tests.support.cuda.kernel_list import WIDE
from tests.support.cuda.precision_problem import build

# 100 wide: too wide for whole trajectories in one launch
NETWORKS = {"dense": rb.mlp(5, (100, 100), 2, activation="silu"), **WIDE}
REDUCED = ("mixed", "tf32")
TF32_BOUND = 2.0**-8  # of the largest entry of a gradient


@pytest.mark.parametrize("name", NETWORKS)
def test_values_gradients_and_outputs(device, name):
    targets = {p: build(device, NETWORKS[name], p) for p in PRECISIONS}
    theta = targets["float64"].init(3, chains=2)
    found = {}
    for precision, target in targets.items():
        given = device.asarray(theta.get().astype(target.dtype))
        x = device.asarray(target.x.get().reshape(-1, *target.model.input_shape))
        parts = (*target.value_and_grad(given), target.outputs(given, x))
        found[precision] = [part.get().astype(float) for part in parts]
    lp, grad, out = found["float64"]
    scale, size, largest = np.abs(lp).max(), np.abs(grad).max(), np.abs(out).max()
    error = {
        p: (
            np.abs(found[p][0] - lp).max() / scale,
            np.abs(found[p][1] - grad).max() / size,
            np.abs(found[p][2] - out).max() / largest,
        )
        for p in ("float32", *REDUCED)
    }
    for precision in REDUCED:
        assert error[precision][0] <= 4e-6
        assert 20 * error["float32"][1] < error[precision][1] <= TF32_BOUND
    assert error["mixed"][2] <= 4e-6
    assert 20 * error["mixed"][2] < error["tf32"][2] <= TF32_BOUND
    # the log densities of plain TF32 are those of float32, bit for bit
    np.testing.assert_array_equal(found["tf32"][0], found["float32"][0])


def test_values_without_gradients(device):
    """Log likelihoods alone, on all rows or some, have the bits of those with gradients."""
    for precision in REDUCED:
        target = build(device, NETWORKS["dense"], precision)
        theta = target.init(3, chains=2)
        lp, _ = target.value_and_grad(theta)
        alone = target.log_likelihood(theta) + target.log_prior(theta)
        np.testing.assert_array_equal(alone.get(), lp.get())
    rows = [3, 1, 3]
    pair = [build(device, NETWORKS["dense"], p) for p in ("float32", "tf32")]
    values = [t.value_and_grad(theta, rows) for t in pair]
    np.testing.assert_array_equal(values[0][0].get(), values[1][0].get())
    assert (values[0][1].get() != values[1][1].get()).any()


def test_rows_do_not_change_each_other(device, monkeypatch):
    """A row's outputs have the same bits alone, among many and panel by panel."""
    model = NETWORKS["dense"]
    for precision in REDUCED:
        target = build(device, model, precision, rows=90)
        theta, x = target.init(1, chains=3), target.x
        whole = target.outputs(theta, x).get()
        for some in (slice(0, 1), slice(17, 40)):
            np.testing.assert_array_equal(target.outputs(theta, x[some]).get(), whole[:, some])
        with monkeypatch.context() as patch:
            patch.setattr(cuda_forward, "_PANEL_ROWS", 20)
            patch.setattr(cuda_forward, "_MOST_SAMPLES", 2)
            np.testing.assert_array_equal(target.outputs(theta, x).get(), whole)


def test_moments_of_predictions(device):
    model, found = NETWORKS["dense"], {}
    for precision in ("float32", *REDUCED):
        target = build(device, model, precision)
        theta = target.init(1, chains=4)
        sums, _ = target.predictive_moments(device.reshape(theta, (4, 1, -1)), target.x)
        found[precision] = sums[1].get()
    size = np.abs(found["float32"]).max()
    assert np.abs(found["mixed"] - found["float32"]).max() <= 2e-5 * size
    assert 1e-4 * size < np.abs(found["tf32"] - found["float32"]).max() <= 4 * TF32_BOUND * size


def test_narrow_products_stay_in_float32(device):
    """Bits of float32 where every product has 16 columns or fewer."""
    model = rb.Model(
        [rb.Conv2D(16, 3), rb.Activation("tanh"), rb.Flatten(), rb.Dense(3)],
        input_shape=(5, 4, 2),
    )
    found = []
    for precision in ("float32", *REDUCED):
        target = build(device, model, precision)
        lp, grad = target.value_and_grad(target.init(0, chains=2))
        found.append((lp.get(), grad.get()))
    # but the delta of the flattened image, 96 columns, which the convolution's weights see
    last = model.parameters[-2]
    for lp, grad in found[1:]:
        np.testing.assert_array_equal(lp, found[0][0])
        np.testing.assert_array_equal(grad[:, last.offset :], found[0][1][:, last.offset :])


def test_gradients_of_few_inputs_stay_in_float32(device, monkeypatch):
    """Weights of 5 inputs, whatever their outputs; those of 100 go to tensor cores."""
    monkeypatch.setattr(persistent, "fits", lambda *_: False)
    kinds = {(100,): {"Product"}, (100, 100): {"Product", "WideTensorProduct"}}
    for precision in REDUCED:
        for hidden, expected in kinds.items():
            target = build(device, rb.mlp(5, hidden, 1), precision)
            target.value_and_grad(target.init(0, chains=1))
            (program,) = target._native._programs.values()
            names = [name for name in program.names if "GradientSink" in name]
            assert {name.partition("<")[0] for name in names} == expected


def test_small_networks_stay_in_float32(device):
    """Whole trajectories in one launch: the same draws whatever the precision, and no probe."""
    model = rb.mlp(5, (50, 50), 1)
    runs = []
    for precision in ("float32", *REDUCED):
        target = build(device, model, precision)
        assert target.precision_reference is None
        assert target._native._persistent is not None
        sampler = rb.HMC(target, step_size=1e-3, num_leapfrog_steps=4)
        runs.append(sampler.sample(3, warmup=0, chains=2, progress=False).positions.get())
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


def run(target, draws=5, **options):
    options = {"warmup": 0, "chains": 4, "seed": 2, "progress": False, **options}
    return rb.HMC(target, step_size=2e-3, num_leapfrog_steps=8).sample(draws, **options)


def test_hmc(device):
    """Energy errors near those of float32, from the same starts; acceptance likewise."""
    first, draws = {}, {}
    for precision in ("float32", *REDUCED):
        target = build(device, NETWORKS["dense"], precision)
        draws[precision] = run(target, 8)
        first[precision] = draws[precision].stats["energy_error"].get()[:, 0]
        assert draws[precision].settings["precision"] == precision
    assert np.abs(first["mixed"] - first["float32"]).max() < 0.02
    assert (first["mixed"] != first["float32"]).all()
    rates = {p: d.stats["acceptance_rate"].get().mean() for p, d in draws.items()}
    assert rates["float32"] > 0.9
    for precision in REDUCED:
        assert abs(rates[precision] - rates["float32"]) < 0.05


def test_energies_of_draws_are_those_of_float32(device):
    """The log density that a draw was accepted with, bit for bit."""
    target, exact = (build(device, NETWORKS["dense"], p) for p in ("tf32", "float32"))
    draws = run(target)
    assert draws.stats["accepted"].get().any()
    for d in range(len(draws)):
        terms, _ = exact.terms_and_grad(draws.positions[:, d, :])
        np.testing.assert_array_equal(
            draws.stats["lp"].get()[:, d], (terms[:, 0] + terms[:, 1]).get()
        )


def test_trajectories_are_reversible(device):
    """To rounding of positions: forces of TF32 are functions of the position alone."""
    for precision in REDUCED:
        target = build(device, NETWORKS["dense"], precision)
        q = target.init(0, chains=2)
        p = rb.random.normal((2, target.dim), seed=3)
        p = device.asarray(np.asarray(p, np.float32))
        there, turned, _, grad = target.leapfrog(q, p, None, 1e-3, 10)
        back = target.leapfrog(there, -turned, grad, 1e-3, 10)[0]
        moved = np.abs(there.get() - q.get()).max()
        assert np.abs(back.get() - q.get()).max() < 1e-5 * moved


def hostile(xp, precision, noise):
    """8-100-100-1 with little noise, and where its chains are after a while."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 8))
    y = np.sin(x @ rng.normal(size=(8, 1))) + noise * rng.normal(size=(100, 1))
    model = rb.mlp(8, (100, 100), 1, activation="silu")
    return build(xp, model, precision, data=(x, y), noise=noise)


@pytest.mark.parametrize(("noise", "step_size", "warns"), [(0.01, 2e-4, True), (0.3, 2e-3, False)])
def test_probe(device, monkeypatch, noise, step_size, warns):
    """Warns where energy errors are not float32's, with the number; draws are the same without."""
    host = hostile(np, "float32", noise)
    options = {"step_size": step_size, "num_leapfrog_steps": 30}
    start = rb.HMC(host, **options).sample(1, warmup=60, chains=4, seed=3, progress=False)
    init = device.asarray(start.positions[:, -1])
    target = hostile(device, "tf32", noise)
    options["num_leapfrog_steps"] = 8

    def sample(target):
        return rb.HMC(target, **options).sample(2, warmup=0, init=init, seed=1, progress=False)

    if warns:
        with pytest.warns(
            PrecisionWarning, match=r"\[HMC.sample\] .* got 0\.[1-9]\d* over 16 traj"
        ):
            draws = sample(target)
    else:
        draws = sample(target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample(hostile(device, "mixed", noise))
        monkeypatch.setattr(lockstep, "warn_of_precision", lambda *_, **__: None)
        alone = sample(target)
    np.testing.assert_array_equal(draws.positions.get(), alone.positions.get())


def test_other_samplers_and_fits(device):
    """Every gradient follows the precision: close to float32's, with other bits."""
    model = rb.mlp(5, (100, 100), 1, activation="silu")
    found = {}
    for precision in ("float32", *REDUCED):
        target = build(device, model, precision)
        sgld = rb.SGLD(target, step_size=1e-5, batch_size=8)
        found[precision] = [sgld.sample(4, warmup=0, chains=2, progress=False).positions.get()]
        for estimator in ("reparam", "local", "flipout"):
            fit = rb.BBB(target, learning_rate=1e-3, batch_size=8, estimator=estimator)
            found[precision].append(fit.fit(2, progress=False).mean.get())
    for precision in REDUCED:
        for a, b in zip(found[precision], found["float32"], strict=True):
            assert 0 < np.abs(a - b).max() < 0.01 * np.abs(b).max()


def test_masked_posteriors_keep_it(device):
    """And their `precision` is still that of the noise; saved fits remember both."""
    layers = [rb.Dense(100), rb.Activation("silu"), rb.Dropout(0.2), rb.Dense(100)]
    model = rb.Model([*layers, rb.Dense(1)], input_shape=(5,))
    fits = {}
    for precision in ("float32", *REDUCED):
        target = build(device, model, precision)
        masked = target.masked(precision=4.0)
        assert masked._native.precision == precision
        assert masked.likelihood.scale == 0.5
        fits[precision] = rb.MCDropout(target, precision=4.0, batch_size=8).fit(2, progress=False)
        assert fits[precision].settings["precision"] == 4.0
        prediction = fits[precision].predict(target.x, 3)
        assert prediction.mean.get().shape == (30, 1)
    for precision in REDUCED:
        other = fits[precision].theta.get() - fits["float32"].theta.get()
        assert 0 < np.abs(other).max() < 0.01


def test_saved_draws_remember_it(device, tmp_path):
    target = build(device, NETWORKS["dense"], "mixed")
    draws = run(target, 2)
    draws.save(tmp_path / "run")
    back = rb.load(tmp_path / "run")
    assert back.settings["precision"] == "mixed"
    assert back.predictive.precision == "mixed"
    assert back.predictive.describe()["precision"] == "mixed"
    with pytest.raises(ValueError, match=r"expected precision as one of float32, .* 'half'"):
        predictive_from_description(target.describe() | {"precision": "half"})


def test_tf32_warns(device):
    model = rb.mlp(3, (4,), 1)
    x, y = device.asarray(np.ones((5, 3))), device.asarray(np.ones((5, 1)))
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(1.0)}
    with pytest.warns(PrecisionWarning, match=r"'float32' or 'mixed' .*, got 'tf32'"):
        target = rb.Posterior(model, x, y, precision="tf32", **options)
    assert target.precision == "tf32"
    assert "precision='tf32'" in repr(target)
    rb.Posterior(model, x, y, precision="mixed", **options)  # does not


def test_options(device):
    model = rb.mlp(3, (4,), 1)

    def made(xp=device, **options):
        return build(xp, model, options.pop("precision", None), **options)

    for xp in (np, device):
        assert (made(xp).precision, made(xp).dtype) == ("float32", np.float32)
        for given in ({"precision": "float64"}, {"dtype": "float64"}):
            target = made(xp, **given)
            assert (target.precision, target.dtype) == ("float64", np.float64)
        for precision, dtype in (("float32", "float64"), ("float64", "float32")):
            with pytest.raises(ValueError, match=rf"dtype {precision} for precision='{precision}'"):
                made(xp, precision=precision, dtype=dtype)
        with pytest.raises(ValueError, match="expected precision as 'float32' or 'mixed' or"):
            made(xp, precision="half")
        with pytest.raises(TypeError, match="expected precision as 'float32' or"):
            made(xp, precision=3)
    for precision in REDUCED:
        with pytest.raises(ValueError, match=r"for data in host memory, got '"):
            made(np, precision=precision)
        with pytest.raises(ValueError, match="expected dtype float32 for precision"):
            made(precision=precision, dtype="float64")


def test_old_devices(device, monkeypatch):
    native = build(device, rb.mlp(3, (4,), 1), "float32")._native
    monkeypatch.setattr(type(native._device), "tensor_cores", False)
    for precision in REDUCED:
        with pytest.raises(ValueError, match=r"compute capability 8\.0 or more .*'" + precision):
            build(device, rb.mlp(3, (4,), 1), precision)
