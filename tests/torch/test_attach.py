"""Results from files and the module that predicts: the same network, or an error."""

import numpy as np
import pytest

import ribbit as rb

torch = pytest.importorskip("torch", reason="needs PyTorch")

import ribbit.torch  # noqa: E402
from tests.torch.modules import rows  # noqa: E402

nn = torch.nn
pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning"),
]
X, Y = rows()
IMAGES = torch.randn(12, 2, 4, 5, generator=torch.Generator().manual_seed(0))


def table(act=nn.Tanh, rate=0.2, eps=1e-5, swap=False):
    middle = [nn.LayerNorm(6, eps=eps), act()]
    middle = middle[::-1] if swap else middle
    return nn.Sequential(nn.Linear(3, 6), *middle, nn.Dropout(rate), nn.Linear(6, 1)).eval()


def image(act=nn.Tanh, rate=0.2, stride=1, padding=0):
    conv = nn.Conv2d(2, 3, 2, stride=stride, padding=padding)
    size = conv(IMAGES[:1]).numel()
    layers = [conv, act(), nn.Dropout(rate), nn.Flatten(), nn.Linear(size, 1)]
    return nn.Sequential(*layers).eval()


def target(module, native, likelihood=None):
    x, y = (X, Y) if isinstance(module[0], nn.Linear) else (IMAGES, IMAGES[:, 0, 0, 0])
    likelihood = likelihood or rb.Gaussian(0.3)
    return rb.torch.posterior(module, likelihood, (x, y), prior=rb.Normal(1.0), native=native)


def draws(t):
    return rb.SGLD(t, step_size=1e-4).sample(3, warmup=0, chains=2, progress=False)


RESULTS = {
    "draws": draws,
    "ensemble": lambda t: rb.DeepEnsemble(t, members=2).fit(1, progress=False),
    "mean field": lambda t: rb.BBB(t).fit(1, progress=False),
    "swag": lambda t: rb.SWAG(t).fit(3, progress=False),
    "dropout": lambda t: rb.MCDropout(t).fit(1, progress=False),
    "draws of dropout": lambda t: rb.MCDropout(t).fit(1, progress=False).draws(4, seed=2),
    "laplace": lambda t: rb.LaplaceApproximation(t).fit(1, progress=False),
}


def again(result, path):
    result.save(path)
    return rb.load(path)


def mean(result, x):
    how = {} if isinstance(result, rb.Draws) else {"num_draws": 5, "seed": 1}
    if isinstance(result, rb.EnsembleFit):
        how = {}
    return np.asarray(result.predict(x, **how).mean)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("make", [table, image])
@pytest.mark.parametrize("kind", RESULTS)
def test_results_of_files_predict_as_before_with_the_same_network_alone(
    kind, make, native, tmp_path
):
    if kind == "laplace" and not native:
        pytest.skip("needs the native core")
    x = X if make is table else IMAGES
    result = RESULTS[kind](target(make(), native))
    read = again(result, tmp_path / "result.npz")
    found = rb.torch.attach(read, target(make(), native))  # other weights, the same network
    np.testing.assert_allclose(mean(found, x), mean(result, x), rtol=1e-5, atol=1e-6)
    again(found, tmp_path / "again.npz")
    for other in (target(make(nn.ReLU), native), target(make(rate=0.3), native)):
        with pytest.raises(ValueError, match=r"^\[attach\] expected the target .* in place of"):
            rb.torch.attach(read, other)
    with pytest.raises(ValueError, match="whose parameters have another order"):
        rb.torch.attach(read, target(make(), not native))
    with pytest.raises(ValueError, match="another likelihood"):
        rb.torch.attach(result, target(make(), native, rb.Gaussian(0.5)))


@pytest.mark.parametrize("native", [True, False])
def test_options_of_layers_and_their_order_are_compared(native, tmp_path):
    read = again(draws(target(table(), native)), tmp_path / "table.npz")
    for other in (table(eps=1e-3), table(swap=True)):
        with pytest.raises(ValueError, match="in place of"):
            rb.torch.attach(read, target(other, native))
    read = again(draws(target(image(stride=2), native)), tmp_path / "image.npz")
    with pytest.raises(ValueError, match="in place of"):
        rb.torch.attach(read, target(image(stride=(2, 3)), native))


class Net(nn.Module):
    def __init__(self, act, scale=1.0):
        super().__init__()
        self.one, self.two, self.act, self.scale = nn.Linear(3, 6), nn.Linear(6, 1), act, scale

    def __getitem__(self, place):
        return self.one

    def forward(self, x):
        return self.scale * self.two(self.act(self.one(x)))


@pytest.mark.parametrize("native", [None, False])
def test_a_forward_that_differs_is_seen(native, tmp_path):
    read = again(draws(target(Net(torch.tanh), native)), tmp_path / "draws.npz")
    rb.torch.attach(read, target(Net(torch.tanh), native))
    for other in (Net(torch.relu), Net(torch.tanh, 1.001), Net(torch.sin)):
        with pytest.raises(ValueError, match=r"^\[attach\] expected the target that"):
            rb.torch.attach(read, target(other, native))


def test_draws_without_their_module_say_how_to_predict(tmp_path):
    read = again(draws(target(table(), False)), tmp_path / "draws.npz")
    with pytest.raises(TypeError, match=r"rb.torch.attach\(draws, target\)"):
        read.predict(X)
