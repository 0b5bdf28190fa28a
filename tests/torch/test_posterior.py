"""Modules as targets: what torch computes against the native core, sampler by sampler.

The oracle is the same network of our layers, whose own oracles are in tests/oracle: both ways take
their random numbers from the same addresses, so that in float64 runs agree to rounding. Chains of
torch are those of a vmap; where bits are promised, they are run one by one.
"""

import pickle
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import PriorWarning

torch = pytest.importorskip("torch", reason="needs PyTorch")

import ribbit.torch  # noqa: E402
from ribbit.torch.likelihoods import row_terms  # noqa: E402
from tests.torch.modules import Attentive, Plain, Residual, dense, images, rows  # noqa: E402

nn = torch.nn
# Runs of a few steps judge arithmetic, not convergence.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning"),
]
PRIOR = {"*.bias": rb.Normal(0.7), "2.weight": rb.Normal(1.3, fan_in=True), "*": rb.Normal(1.0)}


def both(likelihood=None, prior=PRIOR, module=None, data=None, **options):
    """The same posterior in the native core and in torch, float64; torch's parameters turned."""
    given = module or dense(), likelihood or rb.Gaussian(), data or rows()
    options = {"prior": prior, "dtype": np.float64, **options}
    native = rb.torch.posterior(*given, native=True, **options)
    return native, rb.torch.posterior(*given, native=False, **options)


def turned(native, torch_target):
    """Places of the native parameters in torch's order: native theta = torch theta[places]."""
    numbers = np.arange(1.0, torch_target.dim + 1)
    state = torch_target.state_dict(numbers)
    weights = native.model.from_torch_state_dict(state, dtype=np.float64)
    extra = numbers[native.model.dim :]
    return np.concatenate([weights, extra]).astype(int) - 1


class SameNumbers:
    """The target of torch with its parameters in the native order, so that addresses agree."""

    def __init__(self, native, target):
        self.target, self.places = target, turned(native, target)
        self.back = np.argsort(self.places)
        self.dim, self.dtype, self.num_rows = target.dim, target.dtype, target.num_rows
        self.rows_per_chain = True
        for name in ("temperature", "likelihood_temperature", "normal_prior", "prior"):
            setattr(self, name, getattr(target, name))
        self.prior_sd = target.prior_sd[self.places]
        self.prior_mean = target.prior_mean[self.places]

    def value_and_grad(self, theta, rows=None):
        lp, grad = self.target.value_and_grad(np.ascontiguousarray(theta[..., self.back]), rows)
        return lp, np.ascontiguousarray(grad[..., self.places])

    def terms_and_grad(self, theta):
        terms, grad = self.target.terms_and_grad(np.ascontiguousarray(theta[..., self.back]))
        return terms, np.ascontiguousarray(grad[..., self.places])


LIKELIHOODS = {
    "known": (rb.Gaussian(0.3), 1, None),
    "learned": (rb.Gaussian(log_noise_prior=rb.Laplace(0.5)), 1, None),
    "student": (rb.StudentTNoise(3.0), 1, None),
    "rows": (rb.HeteroscedasticGaussian(min_sd=0.1), 2, None),
    "classes": (nn.CrossEntropyLoss(), 3, 3),
    "binary": (nn.BCEWithLogitsLoss(), 1, 2),
    "counts": (nn.PoissonNLLLoss(), 1, 5),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_values_and_gradients_are_those_of_the_core(name):
    likelihood, outputs, below = LIKELIHOODS[name]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.SiLU(), nn.LayerNorm(5), nn.Linear(5, outputs))
    x, y = rows()
    if below is not None:
        y = torch.arange(len(x)) % below
    how = {"temperature": 0.7, "likelihood_temperature": 1.3, "prior": rb.StudentT(4, 0.8)}
    native, target = both(likelihood, module=module, data=(x, y), **how)
    theta = target.init(seed=3, chains=3) + 0.1
    places = turned(native, target)
    for batch in (None, np.array([3, 1, 3, 20])):
        known, known_grad = native.value_and_grad(np.ascontiguousarray(theta[:, places]), batch)
        found, grad = target.value_and_grad(theta, batch)
        np.testing.assert_allclose(found, known, rtol=1e-12)
        np.testing.assert_allclose(grad[:, places], known_grad, rtol=1e-10, atol=1e-10)
    ours = np.ascontiguousarray(theta[:, places])
    terms, known = target.terms_and_grad(theta)[0], native.terms_and_grad(ours)[0]
    np.testing.assert_allclose(terms, known, rtol=1e-12)
    np.testing.assert_allclose(target.log_likelihood(theta), native.log_likelihood(ours))
    np.testing.assert_allclose(target.log_prior(theta), native.log_prior(ours))
    found, known = target.predictive(theta, x), native.predictive(ours, x)
    np.testing.assert_allclose(found.values, known.values, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        target.log_likelihood(theta, x, y), native.log_likelihood(ours, x, y), rtol=1e-10
    )


def test_rows_of_each_chain_in_one_call():
    _, target = both()
    theta = target.init(seed=1, chains=3)
    batches = np.array([[0, 1, 2], [5, 5, 9], [20, 3, 4]])
    lp, grad = target.value_and_grad(theta, batches)
    for c in range(3):
        one, slope = target.value_and_grad(theta[c], batches[c])
        assert lp[c] == pytest.approx(one, rel=1e-13)
        np.testing.assert_allclose(grad[c], slope, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match=r"expected rows \(3, n\), got shape \(2, 3\)"):
        target.value_and_grad(theta, batches[:2])


def test_chunks_of_rows_add_up():
    _, target = both()
    _, small = both(chunk_size=5)
    theta = target.init(seed=1, chains=2)
    np.testing.assert_allclose(small.value_and_grad(theta)[0], target.value_and_grad(theta)[0])
    np.testing.assert_allclose(
        small.value_and_grad(theta)[1], target.value_and_grad(theta)[1], rtol=1e-10, atol=1e-11
    )


@pytest.mark.parametrize(
    "sampler",
    [
        lambda t: rb.HMC(t, step_size=0.02, num_leapfrog_steps=4),
        lambda t: rb.NUTS(t, step_size=0.02, max_tree_depth=3),
        lambda t: rb.SGLD(t, step_size=1e-4, batch_size=7),
        lambda t: rb.SGLD(t, step_size=1e-3, batch_size=7, preconditioner="rmsprop"),
        lambda t: rb.SGHMC(t, step_size=1e-4, batch_size=7),
        lambda t: rb.BAOAB(t, step_size=1e-2, batch_size=7),
        lambda t: rb.MCLMC(t, step_size=0.02, decoherence_length=0.5),
        lambda t: rb.MCLMC(t, adjusted=True, step_size=0.02, decoherence_length=0.1),
    ],
    ids=["hmc", "nuts", "sgld", "rmsprop", "sghmc", "baoab", "mclmc", "adjusted"],
)
def test_samplers_draw_what_they_draw_from_the_core(sampler):
    native, target = both()
    same = SameNumbers(native, target)
    start = native.init(seed=4, chains=2)
    how = {"warmup": 4, "chains": 2, "seed": 5, "progress": False, "init": start}
    known = sampler(native).sample(6, **how)
    found = sampler(same).sample(6, **how)
    np.testing.assert_allclose(found.positions, known.positions, rtol=1e-7, atol=1e-9)
    assert np.ptp(known.positions[:, :, 0]) > 0


@pytest.mark.parametrize("kl", ["closed", "sampled"])
def test_bayes_by_backprop_fits_what_it_fits_in_the_core(kl):
    module = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))  # one order of parameters
    x, y = rows()
    native, target = both(module=module, data=(x[:, :1], y), prior=rb.Normal(0.8, mean=0.1))
    assert (turned(native, target) == np.arange(native.dim)).all()
    fits = []
    for one in (native, target):
        bbb = rb.BBB(one, batch_size=7, num_samples=3, kl=kl, learning_rate=0.03)
        fits.append(bbb.fit(4, seed=2, init=native.init(seed=1), progress=False))
    known, found = fits
    for name in ("mean", "scale", "elbo", "kl", "expected_log_likelihood"):
        np.testing.assert_allclose(getattr(found, name), getattr(known, name), rtol=1e-9)
    p, q = found.predict(x[:5, :1], 20), known.predict(x[:5, :1], 20)
    np.testing.assert_allclose(p.mean, q.mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("objective", ["map", "likelihood"])
def test_ensembles_and_swag_fit_what_they_fit_in_the_core(objective):
    module = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))
    x, y = rows()
    native, target = both(module=module, data=(x[:, :1], y))
    how = {"members": 2, "batch_size": 7, "objective": objective, "learning_rate": 0.02}
    start = native.init(seed=1, chains=2)
    known, found = (
        rb.DeepEnsemble(t, **how).fit(4, seed=3, init=start, progress=False)
        for t in (native, target)
    )
    np.testing.assert_allclose(found.theta, known.theta, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.predict(x[:4, :1]).mean, known.predict(x[:4, :1]).mean)
    draws = rb.SWAG(target, batch_size=7).fit(3, progress=False).draws(5)
    assert draws.predict(x[:4, :1]).mean.shape == (4,)


def test_mc_dropout_masks_have_addresses():
    target = rb.torch.posterior(
        dense(dropout=0.3), rb.Gaussian(0.2), rows(), prior=rb.Normal(1.0), native=False
    )
    assert target.dropout_layers == ("2: Dropout(p=0.3, inplace=False)",)
    with pytest.raises(TypeError, match="without Dropout layers"):
        rb.HMC(target)
    masked = target.masked()
    theta = target.init(seed=1)
    at = {"seed": 1, "step": 2}
    value, grad = masked.masked_value_and_grad(theta, **at)
    again, same = masked.masked_value_and_grad(theta, **at)
    assert value == again
    np.testing.assert_array_equal(grad, same)
    assert value != masked.masked_value_and_grad(theta, seed=1, step=3)[0]
    # a row's mask does not depend on the rows beside it
    parts = [masked.masked_value_and_grad(theta, [r], **at)[0] for r in range(target.num_rows)]
    prior = target.log_prior(theta)
    assert np.mean(np.array(parts) - prior) == pytest.approx(value - prior, rel=1e-5)
    # central differences, in float64 where there is something to see
    wide = rb.torch.posterior(
        dense(dropout=0.3),
        rb.Gaussian(0.2),
        rows(),
        prior=rb.Normal(1.0),
        native=False,
        dtype=np.float64,
    ).masked()
    theta = theta.astype(np.float64)
    slope = wide.masked_value_and_grad(theta, **at)[1][5]
    step = np.zeros_like(theta)
    step[5] = 1e-5
    ends = [wide.masked_value_and_grad(theta + s * step, **at)[0] for s in (1, -1)]
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


def test_mc_dropout_fits_and_predicts():
    target = rb.torch.posterior(
        dense(dropout=0.3), rb.Gaussian(0.2), rows(), prior=rb.Normal(1.0), native=False
    )
    mcd = rb.MCDropout(target, batch_size=8)
    fit = mcd.fit(4, seed=1, progress=False)
    on = mcd.fit(2, seed=1, progress=False)
    on = mcd.fit(2, resume=on, progress=False)
    np.testing.assert_array_equal(fit.theta, on.theta)
    x = rows()[0]
    whole = fit.predict(x, 6, seed=2)
    part = fit.predict(x[:5], 6, seed=2)
    np.testing.assert_allclose(whole.mean[:5], part.mean, rtol=1e-6)
    assert (whole.epistemic_std > 0).all()
    shared = fit.predict(x, 6, seed=2, masks="shared")
    assert not np.allclose(shared.mean, whole.mean)
    for bad in ({"rate": "concrete"}, {"length_scale": 1.0}):
        with pytest.raises(ValueError, match="for a module that torch runs"):
            rb.MCDropout(target, **bad)
    with pytest.raises(TypeError, match="without: use BBB"):
        rb.torch.posterior(
            dense(), rb.Gaussian(0.2), rows(), prior=rb.Normal(1.0), native=False
        ).masked()


# --- modules that our layers do not cover --------------------------------------------------------


def attentive(**options):
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(*images())
    loader = torch.utils.data.DataLoader(data, batch_size=5)
    return rb.torch.posterior(
        Attentive(), nn.CrossEntropyLoss(), loader, prior=rb.Normal(0.5), **options
    )


def test_attention_runs_in_torch_with_the_loaders_batches():
    target = attentive()
    assert not target.native
    assert "not one of our layers" in target.why
    assert target.batch_size == 5
    draws = rb.SGLD(target, step_size=1e-4, batch_size=target.batch_size).sample(
        4, warmup=2, chains=3, seed=1, progress=False
    )
    x, _ = images()
    p = draws.predict(x)
    assert p.probs.shape == (12, 3)
    np.testing.assert_allclose(p.probs.sum(axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(draws.predict(x.numpy()).probs, p.probs)
    # what a draw predicts is what the module predicts with its weights
    module = Attentive()
    module.load_state_dict(target.state_dict(draws.positions[1, 2]))
    with torch.no_grad():
        known = module.eval()(x).numpy()
    found = target.outputs(draws.positions[1, 2], x)
    np.testing.assert_allclose(found, known, rtol=1e-4, atol=1e-5)


def test_a_chain_alone_is_the_same_bit_for_bit_without_vmap():
    target = attentive(vmap=False)
    sgld = rb.SGLD(target, step_size=1e-4, batch_size=5)
    how = {"warmup": 2, "seed": 1, "progress": False}
    known = sgld.sample(4, chains=3, **how)
    alone = sgld.sample(4, chains=[2], **how)
    np.testing.assert_array_equal(alone.positions[0], known.positions[2])
    first = sgld.sample(2, chains=3, **how)
    on = sgld.sample(2, resume=first, progress=False)
    np.testing.assert_array_equal(on.positions, known.positions[:, 2:])


def test_starts():
    target = attentive()
    torch.manual_seed(0)
    module = Attentive()
    views = target.unravel(target.trained)
    for name, value in module.named_parameters():
        np.testing.assert_array_equal(views[name], value.detach().numpy())
    start = target.unravel(target.init(seed=1, chains=2))
    assert (start["norm.weight"] == 1.0).all()
    assert (start["norm.bias"] == 0.0).all()
    assert np.ptp(start["head.weight"]) > 0
    np.testing.assert_array_equal(target.init(seed=1, chains=[1])[0], target.init(1, 2)[1])
    draws = rb.HMC(target, step_size=1e-4, num_leapfrog_steps=2).sample(
        1, warmup=0, chains=2, init=target.trained, progress=False
    )
    np.testing.assert_allclose(draws.positions[0, 0], target.trained, atol=0.02)


def test_fixed_parameters_stay_and_the_rest_moves():
    module = dense()
    module[0].requires_grad_(False)
    target = rb.torch.posterior(module, rb.Gaussian(0.2), rows(), prior=rb.Normal(1.0))
    assert target.dim == 7
    assert "requires_grad=False" in target.why
    state = target.state_dict(np.zeros(7, np.float32))
    torch.testing.assert_close(state["0.weight"], module[0].weight)
    assert (state["2.weight"] == 0).all()


def test_a_shared_array_is_one_parameter():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.head = nn.Linear(3, 1)

        def forward(self, x):
            return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))

    target = rb.torch.posterior(Tied(), rb.Gaussian(0.2), rows(), prior=rb.Normal(1.0))
    assert target.dim == 9 + 3 + 3 + 3 + 1
    state = target.state_dict(np.arange(19, dtype=np.float32))
    assert torch.equal(state["first.weight"], state["second.weight"])
    Tied().load_state_dict(state)


# --- modules that our layers cover ----------------------------------------------------------------


def test_residual_images_run_in_the_core_with_channels_first():
    torch.manual_seed(0)
    module, (x, y) = Plain(), images()
    target = rb.torch.posterior(module, rb.Categorical(), (x, y), prior=rb.Normal(0.5))
    assert target.native
    assert isinstance(target, rb.Posterior)
    with torch.no_grad():
        known = module(x).numpy()
    np.testing.assert_allclose(target.outputs(target.trained, x), known, rtol=1e-4, atol=1e-5)
    state = target.state_dict(target.trained)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=0)
    draws = rb.SGLD(target, step_size=1e-4, batch_size=5).sample(
        4, warmup=2, chains=2, progress=False
    )
    other = rb.torch.posterior(module, rb.Categorical(), (x, y), prior=rb.Normal(0.5), native=False)
    module.load_state_dict(target.state_dict(draws.positions[1, 3]))
    p = draws.predict(x)
    assert p.probs.shape == (12, 3)
    assert target.inputs(3).shape == (3, 1, 4, 4)
    assert draws.summary(x).rows
    assert rb.diagnostics.predictive_rhat(draws, x.numpy()).shape == (12, 3)
    torch_theta = rb.torch.posterior(
        module, rb.Categorical(), (x, y), prior=rb.Normal(0.5), native=False
    ).trained
    np.testing.assert_allclose(
        other.outputs(torch_theta, x),
        target.outputs(draws.positions[1, 3], x),
        rtol=1e-3,
        atol=1e-4,
    )
    back = pickle.loads(pickle.dumps(target))
    np.testing.assert_array_equal(back.trained, target.trained)


def test_masks_of_images_take_channels_first():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Dropout2d(0.4), nn.Flatten())
    module.append(nn.Linear(8, 3))
    x, y = images()
    given = module, nn.CrossEntropyLoss(), (x, y)
    for native in (True, False):
        target = rb.torch.posterior(*given, prior=rb.Normal(0.5), native=native)
        fit = rb.MCDropout(target, batch_size=6).fit(2, progress=False)
        assert fit.predict(x, 5).probs.shape == (12, 3)
        assert (fit.predict(x, 5).mutual_information > 0).any()


def test_laplace_of_a_module_needs_the_core():
    native, target = both(rb.Gaussian(0.2))
    laplace = rb.LaplaceApproximation(native, subset="last_layer", batch_size=8)
    assert laplace.fit(2, progress=False).predict(rows()[0]).mean.shape == (24,)
    with pytest.raises(TypeError, match="gauss_newton"):
        rb.LaplaceApproximation(target)


def test_what_is_not_covered_says_why():
    given = rb.Categorical(), images()
    target = rb.torch.posterior(Residual(), *given, prior=rb.Normal(0.5))
    assert not target.native
    with pytest.raises(TypeError, match=r"^\[posterior\] expected a module that our layers cover"):
        rb.torch.posterior(Residual(), *given, prior=rb.Normal(0.5), native=True)


def test_a_module_whose_outputs_differ_from_its_layers_is_not_compiled():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), Scaled(4, 1))
    target = rb.torch.posterior(module, rb.Gaussian(0.2), rows(), prior=rb.Normal(1.0))
    assert not target.native
    x = rows()[0]
    with torch.no_grad():
        known = module(x).numpy()
    np.testing.assert_allclose(target.outputs(target.trained, x), known, rtol=1e-5)


# --- data, files, errors --------------------------------------------------------------------------


class Squares(torch.utils.data.Dataset):
    """Rows that are made when they are asked for."""

    def __len__(self):
        return 30

    def __getitem__(self, i):
        x = torch.tensor([i / 30, 1.0, -i / 30])
        return x, x[0] ** 2


def test_a_dataset_is_read_once_or_whenever_it_is_needed():
    how = {"prior": rb.Normal(1.0), "native": False}
    whole = rb.torch.posterior(dense(), rb.Gaussian(0.2), Squares(), **how)
    lazy = rb.torch.posterior(dense(), rb.Gaussian(0.2), Squares(), in_memory=False, **how)
    theta = whole.init(seed=1, chains=2)
    assert np.array_equal(whole.value_and_grad(theta)[0], lazy.value_and_grad(theta)[0])
    part = whole.subset([3, 4, 5])
    assert part.num_rows == 3
    assert part.fingerprint["data"] != whole.fingerprint["data"]


def test_saved_draws_predict_once_they_are_attached(tmp_path):
    target = attentive()
    draws = rb.SGLD(target, step_size=1e-4, batch_size=5).sample(
        3, warmup=1, chains=2, progress=False
    )
    draws.save(tmp_path / "draws.npz")
    read = rb.load(tmp_path / "draws.npz")
    x, _ = images()
    with pytest.raises(TypeError, match="without `predictive`"):
        read.predict(x)
    again = rb.torch.attach(read, target)
    np.testing.assert_array_equal(again.predict(x).probs, draws.predict(x).probs)
    with pytest.raises(ValueError, match=r"^\[attach\] expected a result of"):
        rb.torch.attach(read, both()[1])
    on = rb.SGLD(target, step_size=1e-4, batch_size=5).sample(1, resume=read, progress=False)
    assert len(on) == 1


def test_a_function_of_yours_samples_and_does_not_predict():
    def loss(outputs, y):
        return (outputs[:, 0] - y) ** 2 / (2 * 0.2**2)

    given = dense(), loss, rows()
    target = rb.torch.posterior(*given, prior=rb.Normal(1.0), dtype=np.float64)
    known = rb.torch.posterior(
        dense(), rb.Gaussian(0.2), rows(), prior=rb.Normal(1.0), native=False, dtype=np.float64
    )
    theta = known.init(seed=1)
    np.testing.assert_allclose(
        target.value_and_grad(theta)[1], known.value_and_grad(theta)[1], rtol=1e-10
    )
    hmc = rb.HMC(target, step_size=1e-3, num_leapfrog_steps=2)
    draws = hmc.sample(2, warmup=0, chains=2, progress=False)
    with pytest.raises(TypeError, match="without `predictive`"):
        draws.predict(rows()[0])
    total = rb.torch.posterior(
        dense(), lambda f, y: ((f[:, 0] - y) ** 2).mean(), rows(), prior=rb.Normal(1.0)
    )
    with pytest.raises(ValueError, match="expected a loss for each row"):
        total.value_and_grad(total.trained)


def test_targets_travel_and_know_themselves():
    target = attentive()
    back = pickle.loads(pickle.dumps(target))
    theta = target.init(seed=2)
    np.testing.assert_array_equal(back.value_and_grad(theta)[1], target.value_and_grad(theta)[1])
    assert back.fingerprint == target.fingerprint
    assert attentive(temperature=2.0).fingerprint != target.fingerprint


MODULE = nn.Linear(3, 1)
BAD = {
    "module": ((3, rb.Gaussian(1.0), rows()), "expected module as a torch.nn.Module"),
    "fixed": ((nn.Tanh(), rb.Gaussian(1.0), rows()), "parameters that require a gradient"),
    "mse": ((MODULE, nn.MSELoss(), rows()), "give rb.Gaussian"),
    "weights": ((MODULE, nn.CrossEntropyLoss(label_smoothing=0.1), rows()), "label_smoothing"),
    "no loss": ((MODULE, 3, rows()), "expected a likelihood such as"),
    "no pair": ((MODULE, rb.Gaussian(1.0), rows()[0]), r"expected data as \(x, y\)"),
    "lengths": ((MODULE, rb.Gaussian(1.0), (torch.zeros(3, 3), torch.zeros(2))), "as many rows"),
    "nan": ((MODULE, rb.Gaussian(1.0), (torch.full((2, 3), np.nan), torch.zeros(2))), "finite x"),
    "width": ((MODULE, rb.Categorical(), rows()), "2 outputs"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    given, message = BAD[name]
    with pytest.raises((TypeError, ValueError), match=r"^\[posterior\] .*" + message):
        rb.torch.posterior(*given, prior=rb.Normal(1.0))


def test_iterable_data_and_learned_scales_are_refused_by_name():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(TypeError, match="IterableDataset"):
        rb.torch.posterior(MODULE, rb.Gaussian(1.0), Stream(), prior=rb.Normal(1.0))
    with pytest.raises(ValueError, match="priors of known scales"):
        rb.torch.posterior(dense(), rb.Gaussian(1.0), rows(), prior=rb.Horseshoe(1.0), native=False)
    target = both()[1]
    with pytest.raises(ValueError, match="estimator='reparam'"):
        rb.BBB(target, estimator="flipout").fit(1, progress=False)
    with pytest.raises(ValueError, match="as the module takes it"):
        target.outputs(target.trained, torch.zeros(2, 5))


@pytest.mark.parametrize(
    ("likelihood", "noises"),
    [
        (rb.Gaussian(), 2),
        (rb.Gaussian(per_output=False), 1),
        (rb.Gaussian([0.1, 3.0]), 0),
        (rb.StudentTNoise(4.0), 2),
        (rb.StudentTNoise(4.0, [0.1, 3.0]), 0),
    ],
    ids=repr,
)
def test_noise_of_each_output_is_that_of_the_core(likelihood, noises):
    x, y = rows()
    module = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    native, target = both(likelihood, rb.Normal(0.7), module, (x, torch.stack([y, 9 * y], 1)))
    assert target.dim == native.dim == native.model.dim + noises
    theta = 0.5 * np.random.default_rng(0).normal(size=(3, target.dim))
    places = turned(native, target)
    values, grads = target.value_and_grad(theta)
    expected, known = native.value_and_grad(theta[:, places])
    np.testing.assert_allclose(values, expected, rtol=1e-11)
    np.testing.assert_allclose(grads[:, places], known, rtol=1e-9, atol=1e-9)
    found, terms = target.predictive(theta, x), native.predictive(theta[:, places], x)
    np.testing.assert_allclose(found.noise_sd, terms.noise_sd, rtol=1e-12)
    if noises:
        logs = target.unravel(theta)["log_noise"]
        np.testing.assert_array_equal(logs, theta[:, -noises:].reshape(logs.shape))
    drawn = rb.HMC(target, step_size=0.01, num_leapfrog_steps=2).sample(4, chains=2, progress=False)
    assert drawn.predict(x).std.shape == (24, 2)


def test_row_terms_at_the_ends():
    terms = row_terms(rb.HeteroscedasticGaussian(), 2)
    f = torch.tensor([[0.0, -800.0]], dtype=torch.float64, requires_grad=True)
    value = terms(f, torch.zeros(1, 1, dtype=torch.float64), None)
    (grad,) = torch.autograd.grad(value.sum(), f)
    assert torch.isfinite(value).all()
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("native", [True, False])
def test_a_prior_behind_a_wider_one_is_named_once(native):
    hidden = {"*": rb.Normal(1.0), "2.weight": rb.Normal(0.5)}
    with pytest.warns(PriorWarning, match="got '2.weight' behind '\\*'") as caught:
        target = rb.torch.posterior(dense(), rb.Gaussian(), rows(), prior=hidden, native=native)
    assert [w.filename for w in caught if w.category is PriorWarning] == [__file__]
    with warnings.catch_warnings():  # neither parts of it nor copies say it again
        warnings.simplefilter("error", PriorWarning)
        pickle.loads(pickle.dumps(target)).subset(np.arange(5))
