"""Modules as they are given: code in place, Dropout in eval mode, dtypes, random code, layouts.

The oracle is the module itself, run by torch with the weights of a position.
"""

import copy
import pickle
import warnings

import numpy as np
import pytest
from scipy import stats

import ribbit as rb
from ribbit.errors import ModuleWarning

torch = pytest.importorskip("torch", reason="needs PyTorch")

import ribbit.torch  # noqa: E402
from tests.torch.modules import dense, rows  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
PRIOR = {"prior": rb.Normal(1.0)}
# Runs of a few steps judge arithmetic, not convergence.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning"),
]


class Given(nn.Module):
    """Two layers and a buffer, whose forward is a function (module, x)."""

    def __init__(self, forward, outputs=1):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, outputs)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.4)
        self.register_buffer("scale", torch.ones(3))
        self.given = forward

    def forward(self, x):
        return self.given(self, x)


# --- code that works in place --------------------------------------------------------------------


def scaled(self, x):
    x.mul_(2.0)
    return self.head(self.layer(x))


def shifted(self, x):
    x += 1
    return self.head(torch.tanh(self.layer(x)))


def first_column_cleared(self, x):
    x[:, 0] = 0
    return self.head(self.layer(x))


def rectified(self, x):
    torch.relu_(x)
    return self.head(self.layer(x))


def rectified_by_option(self, x):
    functional.relu(x, inplace=True)
    return self.head(self.layer(x))


def copied_over(self, x):
    x.copy_(torch.tanh(x))
    return self.head(self.layer(x))


def written_out(self, x):
    torch.mul(x, 2, out=x)
    return self.head(self.layer(x))


def used_twice(self, x):
    h = self.layer(x)
    return self.head(self.relu(h) + h)


def result_left(self, x):
    h = self.layer(x)
    self.relu(h)
    return self.head(h)


def sum_under_two_names(self, x):
    h = self.layer(x)
    g = h
    h += x
    return self.head(g)


def by_a_view(self, x):
    x.view(-1).mul_(3)
    return self.head(torch.tanh(self.layer(x)))


def changes_a_buffer(self, x):
    self.scale += 1
    return self.head(self.layer(x) * self.scale)


def changes_a_parameter(self, x):
    with torch.no_grad():
        self.layer.weight.clamp_(-0.3, 0.3)
    return self.head(self.layer(x))


def adds_a_parameter_to_x(self, x):
    x += self.layer.weight[0]
    return self.head(self.layer(x))


IN_PLACE = [
    *(scaled, shifted, first_column_cleared, rectified, rectified_by_option, copied_over),
    *(written_out, used_twice, result_left, sum_under_two_names, by_a_view, changes_a_buffer),
    *(changes_a_parameter, adds_a_parameter_to_x),
]


def check_density(target, module, x, y):
    """Compare the density with that of the module at two positions, twice."""
    theta = target.init(1, chains=2)
    for _ in range(2):
        for row, lp in zip(theta, target.value_and_grad(theta)[0], strict=True):
            own = copy.deepcopy(module).eval()
            own.load_state_dict(target.state_dict(row))
            with torch.no_grad():
                f = own(x.clone()).double().numpy()[:, 0]
            known = stats.norm.logpdf(y.double().numpy(), f, 0.3).sum()
            assert lp == pytest.approx(known + stats.norm.logpdf(row).sum(), rel=1e-4)


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("forward", IN_PLACE, ids=lambda f: f.__name__)
def test_in_place_code_has_the_density_of_the_module(forward, native):
    x, y = rows()
    module, given = Given(forward), x.clone()
    target = rb.torch.posterior(module, rb.Gaussian(0.3), (given, y), native=native, **PRIOR)
    assert not target.native
    check_density(target, module, x, y)
    theta = target.init(2, chains=2)
    first = target.predictive(theta, given).values
    np.testing.assert_array_equal(target.predictive(theta, given).values, first)
    assert torch.equal(given, x)
    assert torch.equal(module.scale, torch.ones(3))


def test_relu_in_place_stays_native():
    x, y = rows()
    module = Given(lambda self, x: self.head(self.relu(self.layer(x))))
    target = rb.torch.posterior(module, rb.Gaussian(0.3), (x, y), **PRIOR)
    assert target.native
    check_density(target, module, x, y)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.act = nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU(True)

        def forward(self, x):
            h = self.act(self.one(x))
            out = self.two(h)
            out += h
            return self.act(out)

    module = nn.Sequential(Block(), nn.Linear(3, 1))
    target = rb.torch.posterior(module, rb.Gaussian(0.3), (x, y), **PRIOR)
    assert target.native
    check_density(target, module, x, y)


def test_a_loss_that_works_in_place_keeps_y():
    def loss(f, y):
        return y.sub_(f[:, 0]).square_()

    x, y = rows()
    target = rb.torch.posterior(dense(), loss, (x, y), **PRIOR)
    theta = target.init(1, chains=2)
    first = target.value_and_grad(theta)[0]
    np.testing.assert_array_equal(target.value_and_grad(theta)[0], first)
    with torch.no_grad():
        known = -((dense()(x)[:, 0] - y) ** 2).sum().item()
    found = target.log_likelihood(target.trained)
    assert found == pytest.approx(known, rel=1e-4)


# --- Dropout -------------------------------------------------------------------------------------


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.head = nn.Linear(1, 4), nn.Linear(4, 1)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.head(self.layer(self.up(x[:, :, None])).mean(1))


def by_function(self, x):
    return self.head(functional.dropout(self.layer(x), training=self.training))


def by_one_layer_twice(self, x):
    return self.head(self.drop(self.layer(self.drop(x))))


DROPPING = {
    "nested": lambda: nn.Sequential(nn.Linear(3, 6), nn.Sequential(nn.Tanh(), nn.Dropout(0.5))),
    "function": lambda: Given(by_function),
    "reused": lambda: Given(by_one_layer_twice),
    "transformer": Transformer,
}


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_in_evaluation_mode_does_nothing(name, native):
    torch.manual_seed(0)
    x, y = rows()
    module = DROPPING[name]()
    if name == "nested":
        module.append(nn.Linear(6, 1))
    target = rb.torch.posterior(module.eval(), rb.Gaussian(0.3), (x, y), native=native, **PRIOR)
    check_density(target, module, x, y)
    assert not module.training
    for same in (target, pickle.loads(pickle.dumps(target)), target.subset([0, 1])):
        assert same.dropout_layers == ()
    how = {"progress": False}
    rb.HMC(target, step_size=1e-3, num_leapfrog_steps=1).sample(1, warmup=0, chains=1, **how)
    for fit in (rb.DeepEnsemble(target, members=1), rb.BBB(target), rb.SWAG(target)):
        assert np.isfinite(fit.fit(2, **how).draws(2).predict(x).mean).all()


@pytest.mark.parametrize("native", [None, False])
def test_dropout_in_training_mode_is_for_mc_dropout(native):
    x, y = rows()
    given = dense(dropout=0.3), rb.Gaussian(0.3), (x, y)
    target = rb.torch.posterior(*given, native=native, **PRIOR)
    with pytest.raises(TypeError, match=r"^\[HMC\] .*Dropout.*call module.eval\(\)"):
        rb.HMC(target)
    given[0][2].eval()  # the layer alone
    assert rb.torch.posterior(*given, native=native, **PRIOR).dropout_layers == ()


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("training", [True, False])
def test_mc_dropout_of_trained_weights_needs_no_training(native, training):
    x, y = rows()
    module = dense(dropout=0.3).train(training)
    target = rb.torch.posterior(module, rb.Gaussian(), (x, y), native=native, **PRIOR)
    fit = rb.MCDropout(target).fit(0, init=target.trained, progress=False)
    np.testing.assert_array_equal(fit.theta, target.trained)
    with torch.no_grad():
        known = module.eval()(x)[:, 0].numpy()
    p = fit.predict(x, 1000, seed=1)
    # The output is linear in the masks: the mean of 1,000 is within 7 of its own sds, 1e-10.
    assert (np.abs(p.mean - known) < 7 * np.asarray(p.epistemic_std) / 1000**0.5).all()


# --- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [None, False])
def test_double_weights_make_a_double_target(native):
    x, y = rows()
    given = dense().double(), rb.Gaussian(0.3), (x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = rb.torch.posterior(*given, native=native, **PRIOR)
        assert target.dtype == np.float64
        single = rb.torch.posterior(*given, native=native, dtype=np.float32, **PRIOR)
        assert single.dtype == np.float32
    state = target.state_dict(target.trained)
    assert all(torch.equal(state[name], value) for name, value in given[0].state_dict().items())


def test_weights_of_other_dtypes_are_named():
    data = rb.Gaussian(0.3), rows()
    mixed = dense()
    mixed[2].double()
    for module, dtype in ((dense().half(), "float32"), (dense().bfloat16(), "float32")):
        with pytest.warns(ModuleWarning, match="parameters of float32 or of float64, got"):
            assert rb.torch.posterior(module, *data, **PRIOR).dtype == dtype
    with pytest.warns(ModuleWarning, match="got float32, float64: all are sampled in float64"):
        assert rb.torch.posterior(mixed, *data, **PRIOR).dtype == np.float64
    bad = {"the meta device": dense().to("meta"), "call the module once": nn.LazyLinear(1)}
    for got, module in bad.items():
        with pytest.raises(TypeError, match=r"^\[posterior\] expected parameter .*" + got):
            rb.torch.posterior(module, *data, **PRIOR)


# --- code that is random -------------------------------------------------------------------------

GENERATOR = torch.Generator()
RANDOM = {
    "randn": lambda self, x: self.head(x) + torch.randn(len(x), 1),
    "small": lambda self, x: self.head(x + 1e-6 * torch.rand_like(x)),
    "bernoulli": lambda self, x: self.head(x * torch.bernoulli(torch.full_like(x, 0.5))),
    "in place": lambda self, x: self.head(x + torch.empty_like(x).normal_()),
    "dropout": lambda self, x: self.head(functional.dropout(x, 0.5, training=True)),
    "rrelu": lambda self, x: self.head(functional.rrelu(x, training=True)),
    "numpy": lambda self, x: self.head(x) + float(np.random.rand()),  # noqa: NPY002
    "own generator": lambda self, x: self.head(x + torch.randn(x.shape, generator=GENERATOR)),
}


@pytest.mark.parametrize("how", [{}, {"native": True}, {"native": False, "vmap": False}])
@pytest.mark.parametrize("name", RANDOM)
def test_a_random_module_is_refused(name, how):
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    module = Given(RANDOM[name])
    torch.set_rng_state(before[0])
    with pytest.raises(TypeError, match=r"^\[posterior\] .* which is random"):
        rb.torch.posterior(module, rb.Gaussian(0.3), rows(), **PRIOR, **how)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_code_that_is_random_later_on_is_refused_then():
    def late(self, x):
        return self.head(x) + (torch.randn(len(x), 1) if len(x) > 8 else 0.0)

    x, y = rows()
    target = rb.torch.posterior(Given(late), rb.Gaussian(0.3), (x, y), **PRIOR)
    with pytest.raises(TypeError, match="which is random"):
        target.value_and_grad(target.trained)
    with pytest.raises(TypeError, match="which is random"):
        target.outputs(target.trained, x)
    with pytest.raises(TypeError, match="which is random"):
        rb.torch.posterior(dense(), lambda f, y: f[:, 0] + torch.rand(len(y)), (x, y), **PRIOR)


# --- outputs that are probabilities --------------------------------------------------------------

LINKS = {
    "softmax": (rb.Categorical(), 3, lambda f: torch.softmax(f, 1)),
    "log softmax": (rb.Categorical(), 3, lambda f: functional.log_softmax(f, 1)),
    "sigmoid of classes": (rb.Categorical(), 3, torch.sigmoid),
    "sigmoid": (rb.Bernoulli(), 1, torch.sigmoid),
    "log sigmoid": (nn.BCEWithLogitsLoss(), 1, functional.logsigmoid),
    "softplus": (rb.Poisson(), 1, functional.softplus),
    "exp": (rb.Poisson(), 1, torch.exp),
}


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("name", LINKS)
def test_a_network_that_applies_what_its_likelihood_applies_is_named(name, native):
    likelihood, outputs, link = LINKS[name]
    x = rows()[0]
    data = x, torch.arange(len(x)) % max(2, outputs)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = Given(forward, outputs)
        rb.torch.posterior(module, likelihood, data, native=native, **PRIOR)
    module = Given(lambda self, x: link(forward(self, x)), outputs)
    with pytest.warns(ModuleWarning, match="itself: leave") as caught:
        rb.torch.posterior(module, likelihood, data, native=native, **PRIOR)
    assert [w.filename for w in caught] == [__file__]


def test_logits_of_one_sign_are_left_alone():
    x = rows()[0]
    labels = torch.arange(len(x)) % 3
    given = {
        "distances": lambda self, x: -(self.head(self.layer(x)) ** 2),
        "bounded": lambda self, x: torch.tanh(self.head(x)),
        "rectified": lambda self, x: torch.relu(self.head(x)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for forward in given.values():
            rb.torch.posterior(Given(forward, 3), rb.Categorical(), (x, labels), **PRIOR)
        module = nn.Sequential(nn.Linear(3, 1), nn.Sigmoid())  # a mean between 0 and 1
        rb.torch.posterior(module, rb.Gaussian(0.3), rows(), **PRIOR)


# --- layouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 4, 4), (3, 4, 5)])
def test_a_posterior_with_other_scales_takes_channels_first(shape):
    torch.manual_seed(0)
    size = 2 * (shape[1] - 1) * (shape[2] - 1)
    module = nn.Sequential(nn.Conv2d(shape[0], 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(size, 1))
    x = torch.randn(12, *shape)
    target = rb.torch.posterior(module, rb.Gaussian(0.3), (x, x[:, 0, 0, 0]), **PRIOR)
    made = target.rescaled({"0.weight": 0.4})
    with torch.no_grad():
        known = module(x).numpy()
    parts = (made, made.subset([0, 3]), pickle.loads(pickle.dumps(made)), target.subset([1]))
    for part in parts:
        assert part.names == target.names
        np.testing.assert_allclose(part.outputs(target.trained, x), known, atol=1e-5)
        assert part.inputs(3).shape[1:] == shape
    fit = rb.LaplaceApproximation(target, tune_prior="shared").fit(2, progress=False)
    draws = fit.draws(3)
    module.load_state_dict(target.state_dict(draws.positions[0, 1]))
    with torch.no_grad():
        known = module(x).numpy()[:, 0]
    found = draws.predictive.outputs(draws.positions[0, 1], x)[:, 0]
    np.testing.assert_allclose(found, known, atol=1e-4)


def test_a_state_dict_has_the_buffers():
    module = Given(lambda self, x: self.head(self.relu(self.layer(x))))
    target = rb.torch.posterior(module, rb.Gaussian(0.3), rows(), **PRIOR)
    assert target.native
    module.load_state_dict(target.state_dict(target.trained))
