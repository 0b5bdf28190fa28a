"""Modules of PyTorch against our models: matched by their calls, refused where they differ.

The oracle without PyTorch: convolutions by their formula, of weights that are drawn here.
"""

import numpy as np
import pytest

import ribbit as rb

torch = pytest.importorskip("torch")
nn = torch.nn
FUNCTION = r"^\[Model\.from_torch\] expected "


def trained(module, seed=0):
    """The module with random weights and statistics, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.data.copy_(0.5 * torch.randn(p.shape, generator=generator))
    for part in module.modules():
        if hasattr(part, "running_mean"):
            part.running_mean.copy_(torch.randn(part.running_mean.shape, generator=generator))
            part.running_var.copy_(0.5 + torch.rand(part.running_var.shape, generator=generator))
    return module.eval()


def rows_of(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(model, module, x):
    """What the module gives is what the model gives, float64."""
    theta = model.from_torch(module, x, dtype=np.float64)
    rows = x.double().numpy()
    rows = np.moveaxis(rows, 1, -1) if rows.ndim == 4 else rows
    with torch.no_grad():
        known = module.double()(x.double()).numpy()
    np.testing.assert_allclose(model.apply(theta, rows), known, rtol=1e-10, atol=1e-10)
    module.float()
    return theta


class Reordered(nn.Module):
    """Declares its layers, all of one shape, in another order than it calls them."""

    def __init__(self):
        super().__init__()
        self.last, self.first, self.middle = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.middle(x)))


def test_layers_declared_in_another_order_are_matched_by_their_calls():
    model, net, x = rb.mlp(4, (4, 4), 4, activation="tanh"), trained(Reordered()), rows_of(5, 4)
    check(model, net, x)
    # what the names alone give is wrong, and shapes say nothing
    theta = model.from_torch_state_dict(net.state_dict(), dtype=np.float64)
    wrong = model.apply(theta, x.numpy()) - net(x).detach().numpy()
    assert np.abs(wrong).max() > 0.1


def test_a_shortcut_that_is_called_first_is_matched_as_declared():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.shortcut = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            beside = self.shortcut(x)
            return self.main(x) * 1.0 + beside

    model = rb.Model(
        [rb.Residual([rb.Dense(4), rb.Activation("tanh"), rb.Dense(4)], [rb.Dense(4)])],
        input_shape=(4,),
    )

    class Deeper(Block):
        def __init__(self):
            super().__init__()
            self.main = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
            self.shortcut = nn.Linear(4, 4)

    check(model, trained(Deeper()), rows_of(3, 4))


@pytest.mark.parametrize("example", [rows_of(5, 4), rows_of(5, 4).numpy(), rows_of(5, 4).tolist()])
def test_dtype_example_and_module_are_left_alone(example):
    model, net = rb.mlp(4, (4, 4), 4, activation="tanh"), trained(Reordered()).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    theta = model.from_torch(net, example)
    assert theta.dtype == np.float32
    assert theta.shape == (model.dim,)
    assert net.training
    assert not net.first._forward_hooks
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net.first.weight.dtype == torch.float32


# --- the first layer that differs is named -------------------------------------------------------


def ours(activation="tanh", **options):
    layers = [rb.Conv2D(4, 3, **options), rb.Activation(activation), rb.Conv2D(5, 2)]
    return rb.Model([*layers, rb.Flatten(), rb.Dense(2)], input_shape=(8, 8, 3))


def test_padding_of_cells_is_not_same():
    x = rows_of(3, 3, 8, 8)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(4, 5, 2))
    net = trained(nn.Sequential(net, nn.Flatten(), nn.Linear(45, 2)))
    check(ours(stride=2, padding=1), net, x)
    with pytest.raises(
        ValueError, match=FUNCTION + r"layer 0, Conv2D\(.*'0\.0', Conv2d\(.*look at its arguments"
    ):
        ours(stride=2, padding="same").from_torch(net, x)


def test_an_activation_that_differs_is_found_before_the_next_layer():
    x = rows_of(3, 3, 8, 8)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.3), nn.Conv2d(4, 5, 2), nn.Flatten())
    net = trained(nn.Sequential(net, nn.Linear(125, 2)))
    expected = r"layer 2, Conv2D\(.*'0\.2'.*inputs differ already: look between layer 0 and it"
    with pytest.raises(ValueError, match=FUNCTION + expected):
        ours().from_torch(net, x)
    same = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    with pytest.raises(ValueError, match=FUNCTION + "the model to agree .* look behind layer 0"):
        rb.Model([rb.Dense(3)], input_shape=(4,)).from_torch(trained(same), rows_of(5, 4))


@pytest.mark.parametrize("norm", [nn.LayerNorm(4, eps=1e-3), nn.GroupNorm(2, 4, eps=1e-3)])
def test_the_epsilon_of_a_norm_is_checked(norm):
    net = trained(nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2)))

    def model(**options):
        own = rb.LayerNorm(**options) if isinstance(norm, nn.LayerNorm) else None
        own = own or rb.GroupNorm(2, **options)
        return rb.Model([rb.Dense(4), own, rb.Dense(2)], input_shape=(3,))

    check(model(eps=1e-3), net, rows_of(5, 3))
    with pytest.raises(
        ValueError, match=FUNCTION + r"layer 1, .* with eps=0\.001 .* got eps=1e-05"
    ):
        model().from_torch(net, 100 * rows_of(5, 3))


def test_control_a_difference_of_a_hundredth_of_a_percent_is_seen():
    net, model = trained(nn.Sequential(nn.Linear(3, 4), nn.ELU(1.01))), None
    model = rb.Model([rb.Dense(4), rb.Activation("elu")], input_shape=(3,))
    with pytest.raises(ValueError, match="look behind layer 0"):
        model.from_torch(net, rows_of(5, 3))
    check(model, trained(nn.Sequential(nn.Linear(3, 4), nn.ELU())), rows_of(5, 3))


@pytest.mark.parametrize(
    ("module", "example", "error", "text"),
    [
        (lambda: nn.Linear(3, 2).state_dict(), rows_of(5, 3), TypeError, "torch.nn.Module"),
        (lambda: nn.Linear(3, 2), rows_of(5, 4), ValueError, r"rows \(N, 3\)"),
        (lambda: nn.Linear(3, 2), rows_of(0, 3), ValueError, r"rows \(N, 3\)"),
        (lambda: nn.Linear(3, 2), "rows", TypeError, "example as an array"),
        (lambda: nn.Linear(4, 2), rows_of(5, 3), ValueError, "that the module takes"),
        (lambda: nn.Linear(3, 4), rows_of(5, 3), ValueError, r"of shape \(2, 3\)"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), rows_of(5, 3), ValueError, "2 a"),
        (
            lambda: nn.Sequential(*[nn.Linear(3, 3)] * 2),
            rows_of(5, 3),
            ValueError,
            "'0' called twice: weights cannot be shared",
        ),
    ],
)
def test_what_is_refused(module, example, error, text):
    with pytest.raises(error, match=FUNCTION + ".*" + text):
        rb.Model([rb.Dense(2)], input_shape=(3,)).from_torch(module(), example)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend = nn.Linear(3, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        h = self.embed(x[:, None, :])
        return self.last(self.attend(h, h, h)[0].mean(dim=1))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (Attention, "that Ribbit has .*, got 'attend', MultiheadAttention: sample the module"),
        (lambda: nn.GRUCell(3, 2), "that Ribbit has .*, got GRUCell: sample the module"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.PReLU()), "got '1', PReLU"),
    ],
)
def test_layers_of_other_kinds_are_refused_by_name(module, text):
    model = rb.Model([rb.Dense(4), rb.Dense(2)], input_shape=(3,))
    with pytest.raises(ValueError, match=FUNCTION + ".*" + text):
        model.from_torch(module(), rows_of(5, 3))


class Spare(nn.Module):
    def __init__(self):
        super().__init__()
        self.spare, self.used = nn.GRU(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.used(x)


def test_a_layer_of_another_kind_that_is_not_called_does_not_matter():
    check(rb.Model([rb.Dense(2)], input_shape=(3,)), trained(Spare()), rows_of(5, 3))


# --- batch normalisation -------------------------------------------------------------------------


def image(*layers):
    return rb.Model([*layers, rb.Flatten(), rb.Dense(2)], input_shape=(6, 6, 3))


TANH = rb.Activation("tanh")
FOLDED = {
    "behind a convolution": (
        lambda: image(rb.Conv2D(4, 3, padding=1), TANH),
        lambda: [nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.Tanh()],
    ),
    "behind a convolution of groups": (
        lambda: image(rb.Conv2D(6, 3, groups=3, padding=1), TANH),
        lambda: [nn.Conv2d(3, 6, 3, padding=1, groups=3), nn.BatchNorm2d(6), nn.Tanh()],
    ),
    "before a convolution": (
        lambda: image(rb.Conv2D(6, 3)),
        lambda: [nn.BatchNorm2d(3), nn.Conv2d(3, 6, 3)],
    ),
    "before a convolution of groups": (
        lambda: image(rb.Conv2D(6, 3, groups=3)),
        lambda: [nn.BatchNorm2d(3, affine=False), nn.Conv2d(3, 6, 3, groups=3, bias=False)],
    ),
    "alone": (
        lambda: image(rb.Conv2D(4, 3), TANH, rb.Affine(), rb.Activation("elu")),
        lambda: [nn.Conv2d(3, 4, 3), nn.Tanh(), nn.BatchNorm2d(4), nn.ELU()],
    ),
    "alone behind a convolution": (
        lambda: image(rb.Conv2D(4, 3), rb.Affine(), TANH),
        lambda: [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0.1), nn.Tanh()],
    ),
    "alone before padding": (
        lambda: image(rb.Affine(), rb.Conv2D(4, 3, padding=1)),
        lambda: [nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1)],
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_batch_normalisation_goes_to_its_neighbour(name):
    model, layers = (make() for make in FOLDED[name])
    x = rows_of(4, 3, 6, 6)
    features = nn.Sequential(*layers)(x).flatten(1).shape[1]
    check(model, trained(nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 2))), x)


def test_batch_normalisation_of_rows_and_of_a_flattened_image():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    check(rb.mlp(3, (4,), 2, activation="tanh"), trained(net), rows_of(5, 3))
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.BatchNorm1d(32), nn.Linear(32, 2))
    model = rb.Model(
        [rb.Conv2D(2, 3), rb.Flatten(), rb.Affine(), rb.Dense(2)], input_shape=(6, 6, 3)
    )
    check(model, trained(net), rows_of(5, 3, 6, 6))


@pytest.mark.parametrize(
    ("layers", "own", "text"),
    [
        (
            lambda: [nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(4), nn.Tanh()],
            [rb.Conv2D(4, 3)],
            r"got '2': put rb\.Affine\(\) in its place",
        ),
        (
            lambda: [nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1)],
            [rb.Conv2D(4, 3, padding=1)],
            "without padding, got '0'",
        ),
        (
            lambda: [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)],
            [rb.Conv2D(4, 3, bias=False)],
            "layer 0 with a bias, where the shift of batch normalisation '1'",
        ),
    ],
)
def test_batch_normalisation_without_a_place_is_refused(layers, own, text):
    net = trained(nn.Sequential(*layers()))
    with pytest.raises(ValueError, match=FUNCTION + ".*" + text):
        image(*own).from_torch(net, rows_of(4, 3, 6, 6))


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(4).train(), nn.BatchNorm2d(4, track_running_stats=False).eval()]
)
def test_batch_normalisation_in_training_mode_is_refused(norm):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm)
    with pytest.raises(ValueError, match=FUNCTION + ".* evaluation mode, .* got '1'"):
        image(rb.Conv2D(4, 3)).from_torch(net, rows_of(4, 3, 6, 6))


# --- whole networks ------------------------------------------------------------------------------


def test_sequences_and_tokens():
    net = nn.Sequential(nn.Conv1d(3, 4, 3, padding=2, dilation=2), nn.ELU(), nn.Flatten())
    net = trained(nn.Sequential(net, nn.Linear(28, 2)))
    model = rb.Model(
        [rb.Conv1D(4, 3, padding=2, dilation=2), rb.Activation("elu"), rb.Flatten(), rb.Dense(2)],
        input_shape=(7, 3),
    )
    x = rows_of(5, 3, 7)
    for example in (x, x.mT):
        theta = model.from_torch(net, example, dtype=np.float64)
        known = net.double()(x.double()).detach().numpy()
        np.testing.assert_allclose(model.apply(theta, x.mT.numpy()), known, atol=1e-6)
        net.float()

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)
            self.lstm = nn.LSTM(3, 4, batch_first=True)
            self.words = nn.Embedding(9, 3)

        def forward(self, tokens):
            return self.head(self.lstm(self.words(tokens))[0][:, -1])

    tokens = torch.arange(12).reshape(2, 6) % 9
    model = rb.Model([rb.Embedding(9, 3), rb.LSTM(4), rb.Dense(2)], input_shape=(6,))
    net = trained(Recurrent())
    theta = model.from_torch(net, tokens, dtype=np.float64)
    known = net(tokens).detach().numpy()
    np.testing.assert_allclose(model.apply(theta, tokens.numpy()), known, atol=1e-5)


def test_a_residual_network_with_batch_normalisation():
    class Block(nn.Module):
        def __init__(self, channels, filters, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(filters)
            self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(filters)
            self.relu = nn.ReLU(inplace=True)
            self.down = None
            if stride != 1:
                self.down = nn.Sequential(
                    nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
                )

        def forward(self, x):
            beside = x if self.down is None else self.down(x)
            return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + beside)

    net = nn.Sequential(
        *[nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)],
        *[nn.MaxPool2d(3, 2, 1), Block(4, 4, 1), Block(4, 6, 2), nn.AdaptiveAvgPool2d(1)],
        *[nn.Flatten(), nn.Linear(6, 3)],
    )

    def block(filters, stride):
        return rb.Residual(
            [
                rb.Conv2D(filters, 3, stride=stride, padding=1),
                rb.Activation("relu"),
                rb.Conv2D(filters, 3, padding=1),
            ],
            [rb.Conv2D(filters, 1, stride=stride)] if stride > 1 else [],
        )

    relu = rb.Activation("relu")
    model = rb.Model(
        [
            *[rb.Conv2D(4, 7, stride=2, padding=3), relu, rb.MaxPool2D(3, stride=2, padding=1)],
            *[block(4, 1), relu, block(6, 2), relu, rb.GlobalAvgPool2D(), rb.Dense(3)],
        ],
        input_shape=(16, 16, 3),
    )
    check(model, trained(net), rows_of(3, 3, 16, 16))


def test_a_module_that_changes_its_input_is_compared_at_the_input_that_it_was_given():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            x.mul_(2.0)
            return self.layer(x)

    x = rows_of(5, 3)
    given = x.clone()
    with pytest.raises(ValueError, match=FUNCTION):
        rb.Model([rb.Dense(2)], input_shape=(3,)).from_torch(Doubled(), x)
    assert torch.equal(x, given)
