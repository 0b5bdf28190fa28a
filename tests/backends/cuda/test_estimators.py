"""Noise for each row on arrays of a device: local reparameterisation and flipout, against the CPU.

Normals and signs have the CPU's bits; what differs is the order of sums, and in float32 softplus:
bounds as in test_variational.py.
"""

from dataclasses import replace

import numpy as np
import pytest

import ribbit as rb
from ribbit._backends.codes import ESTIMATORS
from ribbit._backends.cuda.programs import gradient, slices
from ribbit._backends.cuda.programs import row_noise as row_noise_program
from ribbit._backends.cuda.programs.row_noise import PairedProgram, bytes_per_sample
from tests.backends.cuda.variational_problem import (
    BOUND,
    COUNTS,
    PRIORS,
    ROWS,
    Y,
    advance,
    check,
    pair,
    same,
    unchanged,
)
from tests.support import layer_problems
from tests.support.layer_problems import SILU, TANH, net
from tests.support.row_noise import NETWORKS

NAMES = tuple(ESTIMATORS)
BOTH = pytest.mark.parametrize("estimator", ["local", "flipout"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
IMAGE_ROWS = 37
BLACK = net((5, 5, 1), rb.Conv2D(3, 3, padding="same", bias=False), TANH, rb.Conv2D(2, 3))


def image_pair(device, model, *, dtype="float64", x=None, num_rows=IMAGE_ROWS, **options):
    """A network of any layers, with learned noise, on NumPy and on the device."""
    made = layer_problems.problem(model, likelihood=1, num_rows=num_rows, temperature=0.8)
    host = made.native(np.dtype(dtype), **options)
    rows = made.reference.x.reshape(-1, *model.input_shape) if x is None else x
    given = {"prior": rb.Normal(layer_problems.PRIOR_SD), "likelihood": rb.Gaussian()}
    given |= {"temperature": 0.8, "dtype": dtype, **options}
    if x is not None:
        host = rb.Posterior(model, x, made.reference.y, **given)
    there = rb.Posterior(model, device.asarray(rows), device.asarray(made.reference.y), **given)
    return host, there


# --- steps ---------------------------------------------------------------------------------------


@BOTH
@DTYPES
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("batch", "samples"), [(ROWS, 1), (ROWS, 3), (32, 3), (35, 2)])
def test_steps_are_those_of_the_cpu(device, batch, samples, closed, dtype, estimator):
    options = {"temperature": 0.8, "likelihood_temperature": 1.3, "likelihood": rb.Gaussian()}
    targets = pair(device, dtype=dtype, **options)
    check(targets, batch=batch, samples=samples, closed=closed, first=7, estimator=estimator)


@BOTH
@pytest.mark.parametrize("prior", PRIORS)
def test_priors(device, prior, estimator):
    targets = pair(device, prior=PRIORS[prior], temperature=0.8)
    closed = targets[0].normal_prior
    check(targets, batch=32, samples=2, closed=closed, estimator=estimator)
    if closed:
        check(targets, batch=32, samples=2, closed=False, estimator=estimator)


@BOTH
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(device, name, estimator):
    """Images, sequences, norms, shortcuts; the parameters of other layers are drawn once."""
    check(image_pair(device, NETWORKS[name]), batch=20, samples=2, estimator=estimator)


@BOTH
@pytest.mark.parametrize("name", ["conv2d", "frn", "embedding and lstm"])
def test_networks_in_float32(device, name, estimator):
    targets = image_pair(device, NETWORKS[name], dtype="float32")
    check(targets, batch=IMAGE_ROWS, samples=2, closed=False, estimator=estimator, steps=4)


@BOTH
def test_an_activation_after_the_last_layer_and_no_bias(device, estimator):
    layers = [rb.Dense(4, bias=False), SILU, rb.Dense(1, bias=False), TANH]
    model = rb.Model(layers, input_shape=(5,))
    check(pair(device, model=model), batch=32, estimator=estimator)


@BOTH
@pytest.mark.parametrize("batch", [ROWS, 32])
def test_constants_of_rows(device, batch, estimator):
    targets = pair(device, likelihood=rb.Poisson(), y=COUNTS)
    check(targets, batch=batch, samples=2, estimator=estimator)


@BOTH
def test_large_steps_of_the_40_bit_counter(device, estimator):
    steps, weights = np.full(3, 0.01), np.full(3, 0.3)
    options = {"batch": 32, "first": 2**39 + 5, "step_size": steps, "kl_weight": weights}
    check(pair(device), **options, closed=False, estimator=estimator)


@BOTH
def test_images_of_bytes(device, estimator):
    rng = np.random.default_rng(4)
    x = rng.integers(0, 255, size=(37, 6, 5, 2)).astype(np.uint8)
    y = rng.integers(0, 3, size=37)
    layers = [rb.Conv2D(5, 3, padding="same"), rb.FilterResponseNorm(), rb.Flatten(), rb.Dense(3)]
    model = rb.Model(layers, input_shape=x.shape[1:])
    given = {"prior": PRIORS["laplace"], "likelihood": rb.Categorical(), "dtype": "float64"}
    targets = [rb.Posterior(model, a(x), a(y), **given) for a in (np.asarray, device.asarray)]
    check(targets, batch=16, samples=2, closed=False, estimator=estimator)


@BOTH
@DTYPES
def test_variances_of_zero_have_no_slope(device, dtype, estimator):
    """Black images without a bias, or all but black ones: a derivative of zero, not NaN."""
    point = np.zeros((9, 5, 5, 1))
    point[:, 2, 2] = 1.0
    for x in (np.zeros_like(point), point, np.full_like(point, 1e-25)):
        targets = image_pair(device, BLACK, dtype=dtype, x=x, num_rows=9)
        check(targets, batch=9, estimator=estimator)


@BOTH
@pytest.mark.parametrize("name", ["strided", "embedding and lstm"])
def test_panels_and_partial_sums(device, monkeypatch, name, estimator):
    """Panels, the last one short, and slices of their sums add up to one pass."""
    host, there = image_pair(device, NETWORKS[name])
    options = {"batch": IMAGE_ROWS, "samples": 2, "estimator": estimator}
    whole = advance(there, **options)
    monkeypatch.setattr(gradient, "run_rows", lambda *_: 10)
    monkeypatch.setattr(slices, "_SLICE", 16)
    targets = host, image_pair(device, NETWORKS[name])[1]
    check(targets, **options)
    check(targets, **{**options, "batch": 33})
    assert np.any(advance(targets[1], **options)[0].get() != whole[0].get())  # summed otherwise


# --- what the checks notice ----------------------------------------------------------------------

FAULTS = {  # estimator, part of a launch's name, number of a member and its change; None: left out
    "another layer's normals": ("local", "LocalNoise", 6, lambda layer: layer + 2),
    "another purpose": ("local", "LocalNoise", 5, lambda purpose: purpose - 1),
    "the next row's normals": ("local", "LocalNoise", 3, lambda row: row + 1),
    "no variance of a bias": ("local", "VarianceSink", -9, lambda sds: None),
    "no slope": ("local", "Multiply", None, None),
    "no variance in what goes down": ("local", "LocalDeltaSink", None, None),
    "signs of the wrong side": ("flipout", "RowSigns", 6, lambda layer: layer ^ 1),
    "signs of another row": ("flipout", "RowSigns", 3, lambda row: row + 1),
    "deltas without signs": ("flipout", "FlipRows", None, None),
    "no deviations in what goes down": ("flipout", "FlipoutDeltaSink", None, None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(device, monkeypatch, fault):
    estimator, part, member, change = FAULTS[fault]
    write = PairedProgram._write
    found = []

    def faulty(self):
        write(self)
        for launch in [a for a in self._gradient if part in a.name]:
            at = self._gradient.index(launch)
            found.append(at)
            if member is None:
                del self._gradient[at]
            else:
                fields = list(launch.fields)
                fields[member] = change(fields[member])
                self._gradient[at] = replace(launch, fields=tuple(fields))

    options = {"batch": IMAGE_ROWS, "samples": 2, "estimator": estimator}
    check(image_pair(device, NETWORKS["conv2d"]), **options)
    monkeypatch.setattr(PairedProgram, "_write", faulty)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(image_pair(device, NETWORKS["conv2d"]), **options)
    assert found


@pytest.mark.parametrize("wrong", NAMES)
@pytest.mark.parametrize("right", NAMES)
def test_estimators_differ(device, right, wrong):
    host, there = pair(device)
    a = advance(host, steps=1, estimator=right)
    b = advance(there, steps=1, estimator=wrong)
    assert np.allclose(b[0].get()[2], a[0][2], rtol=1e-10) == (right == wrong)


# --- bits ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("name", ["dense", "strided"])
def test_what_changes_no_bit(device, monkeypatch, name, estimator):
    """Runs, the order of threads, groups of samples, and calls."""
    options = {"batch": 32, "samples": 5, "estimator": estimator, "closed": False}
    # more than one block of threads in every kernel
    model = rb.mlp(5, (110, 20), 1)

    def target():
        if name == "dense":
            return pair(device, model=model, dtype="float32", prior=PRIORS["laplace"])[1]
        return image_pair(device, NETWORKS[name], dtype="float32", num_rows=70)[1]

    whole = unchanged(device, monkeypatch, target, options)
    same(advance(target(), **options), whole)
    one = target()
    parts = [advance(one, steps=2, **options)]
    parts.append(advance(one, steps=6, first=2, state=parts[0][0], **options))
    np.testing.assert_array_equal(parts[1][0].get(), whole[0].get())
    np.testing.assert_array_equal(np.concatenate([p[1] for p in parts], axis=1), whole[1])
    other = advance(target(), **options, seed=3)  # the control
    assert np.abs(other[0].get() - whole[0].get()).max() > 1e-3


@BOTH
def test_the_host_waits_once(device, estimator):
    if device.__name__ == "cupy":
        pytest.skip("waits are counted on the device made of the CPU")
    target = pair(device)[1]
    start = device.asarray(np.zeros((6, target.dim)))
    for steps in (1, 8):
        before = device.waits
        advance(target, steps=steps, batch=32, samples=2, state=start, estimator=estimator)
        assert device.waits == before + 1


@BOTH
def test_memory_of_a_sample(device, monkeypatch, estimator):
    """What a program keeps for each sample is what was asked for, whatever N beyond a panel."""
    model = NETWORKS["strided"]
    monkeypatch.setattr(gradient, "run_rows", lambda *_: 10)
    monkeypatch.setattr(row_noise_program, "run_rows", lambda *_: 10)
    made = []
    init = PairedProgram.__init__

    def noting(self, *args, **options):
        init(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(PairedProgram, "__init__", noting)
    sizes = []
    for num_rows in (20, 70):
        target = image_pair(device, model, num_rows=num_rows)[1]
        advance(target, steps=1, batch=num_rows, samples=3, estimator=estimator)
        program = made.pop()
        kept = sum(int(a.nbytes) for a in program._keep if a.shape[0] in (3, 2))
        sizes.append(kept)
        asked = 3 * bytes_per_sample(target._native._tables, num_rows, 8, ESTIMATORS[estimator])
        assert kept <= asked
    noises = target.dim - target.model.dim
    terms = 3 * 8 * (1 + noises) * 5  # sums of the five more panels: likelihood and noises
    assert sizes[1] == sizes[0] + terms


# --- failures and fits ---------------------------------------------------------------------------


@BOTH
@DTYPES
def test_a_step_that_fails_is_named(device, dtype, estimator):
    sizes = np.array([0.01, 0.01, 0.01, np.inf, 0.01, 0.01])
    options = {"step_size": sizes, "kl_weight": np.full(6, 0.3), "batch": 32, "samples": 2}
    host, there = (advance(t, **options, estimator=estimator) for t in pair(device, dtype=dtype))
    assert there[2] == host[2] == 3
    assert there[3] == pytest.approx(host[3], rel=1e-4)
    np.testing.assert_allclose(there[1][:, :4], host[1][:, :4], rtol=1e-4)
    np.testing.assert_array_equal(np.isfinite(there[0].get()), np.isfinite(host[0]))


@pytest.mark.parametrize("kl", ["closed", "sampled"])
@pytest.mark.parametrize("batch", [None, 32])
@pytest.mark.parametrize("estimator", NAMES[1:])
def test_a_fit_is_that_of_numpy(device, estimator, batch, kl):
    options = {"batch_size": batch, "num_samples": 2, "kl": kl, "estimator": estimator}
    fits = [
        rb.BBB(t, **options).fit(4, seed=3, progress=False)
        for t in pair(device, likelihood=rb.Gaussian(), temperature=0.8, y=Y)
    ]
    for name in ("mean", "scale"):
        found = getattr(fits[1], name)
        np.testing.assert_allclose(found.get(), getattr(fits[0], name), rtol=0, atol=1e-10)
    for name in ("elbo", "kl", "expected_log_likelihood"):
        np.testing.assert_allclose(getattr(fits[1], name), getattr(fits[0], name), rtol=1e-10)
    assert repr(fits[1]) == repr(fits[0])


@pytest.mark.parametrize("estimator", NAMES[1:])
def test_a_fit_goes_on(device, estimator):
    target = image_pair(device, NETWORKS["strided"])[1]
    bbb = rb.BBB(target, batch_size=20, estimator=estimator)
    whole = bbb.fit(5, seed=3, progress=False)
    rest = bbb.fit(3, resume=bbb.fit(2, seed=3, progress=False), progress=False)
    np.testing.assert_array_equal(rest.mean.get(), whole.mean.get())
    np.testing.assert_array_equal(rest.scale.get(), whole.scale.get())
    np.testing.assert_array_equal(rest.elbo, whole.elbo)
    assert whole.draws(3, seed=7).positions.shape == (1, 3, target.dim)


def test_fits_of_float64_meet_the_bound(device):
    """Estimators that change between fits of one target leave nothing behind."""
    host, there = pair(device)
    for name in (*NAMES, *NAMES[::-1]):
        fits = [rb.BBB(t, estimator=name).fit(2, progress=False) for t in (host, there)]
        bound = BOUND["float64"]
        np.testing.assert_allclose(fits[1].mean.get(), fits[0].mean, rtol=bound, atol=bound)
