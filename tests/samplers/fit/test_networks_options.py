"""Options of MC dropout on networks of every layer."""

import pytest

import ribbit as rb
from tests.support.layer_problems import RELU, TANH, net, problem
from tests.support.sampled_networks import DROPPING, FRN, made_of
from tests.support.targets import same_density


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
            *(rb.Dropout(0.2), rb.Conv2D(3, 2), FRN(), RELU, rb.Dropout(0.4, spatial=True)),
            *(rb.MaxPool2D(2), FRN(), rb.Conv2D(2, 2, padding="same"), rb.LayerNorm()),
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
        prior = {k: rb.Normal(keep**0.5 / L) for k, keep in keeps.items()}
        return made.native(prior={**prior, "*": rb.Normal(1 / L)}).masked(**options)

    own = {k: keep for k, (keep, _) in keeps.items()}
    given = {k: 0.5**masks for k, (_, masks) in keeps.items()}
    found = made.native().masked(length_scale=L)
    same_density(found, known(own))
    same_density(made.native().masked(length_scale=L, rate=0.5), known(given, rate=0.5))
    for k in keeps:  # control: each keep probability left out
        with pytest.raises(AssertionError):
            same_density(found, known({name: v for name, v in own.items() if name != k}))
