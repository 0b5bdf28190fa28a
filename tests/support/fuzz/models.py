"""Layers, models, priors, likelihoods and targets: right arguments, and what is wrong for each."""

import numpy as np

import ribbit as rb
from tests.support.fuzz import malformed as m
from tests.support.fuzz.problem import (
    CHAINS,
    CLASSES,
    DENSITY,
    INPUTS,
    LABELS,
    MODEL,
    NOISE,
    NORMAL,
    SEED,
    TARGET,
    THETA,
    THETAS,
    Call,
    D,
    K,
    N,
    P,
    X,
    Y,
    choice,
    count,
    flag,
    fraction,
    positive,
    scale,
)


class Alone:
    """A communicator of one rank."""

    rank, size = 0, 1

    def gather(self, send, receive, sizes):
        """What one rank gives is what all get."""
        receive[:] = send

    exchange = gather


ALONE = Alone()

# What a step size and a log density may be: not finite is the caller's business there.
ANY_RESULT = ("NaN", "inf", "-inf", "NumPy NaN", "half inf", "True", "list")
ANY_NUMBER = (*ANY_RESULT, "beyond floats", "beyond below")

LAYERS: dict[str, Call] = {
    "Activation": Call(rb.Activation, {"name": (("relu"), m.choices(), ("activation",))}),
    "Conv1D": Call(
        rb.Conv1D,
        {
            "filters": count(2, 1, 2**70),
            "kernel_size": count(2, 1, 2**70),
            "stride": count(1, 1, 2**70),
            "padding": (1, m.integers(0, 2**70)),
            "bias": flag(),
            "dilation": count(1, 1, 2**70),
            "groups": count(1, 1, 2**70),
        },
    ),
    "Conv2D": Call(
        rb.Conv2D,
        {
            "filters": count(2, 1, 2**70),
            "kernel_size": (2, m.without(m.integers(1, 2**70), "tuple")),
            "stride": (1, m.without(m.integers(1, 2**70), "tuple")),
            "padding": (1, m.without(m.integers(0, 2**70), "tuple")),
            "bias": flag(),
            "dilation": (1, m.without(m.integers(1, 2**70), "tuple")),
            "groups": count(1, 1, 2**70),
        },
    ),
    "Dense": Call(rb.Dense, {"units": count(2, 1, 2**70), "bias": flag()}),
    "Dropout": Call(
        rb.Dropout, {"rate": (0.5, m.without(m.reals(0.0, 1.0), "end")), "spatial": flag()}
    ),
    "Embedding": Call(
        rb.Embedding, {"vocab_size": count(5, 1, 2**70), "units": count(2, 1, 2**70)}
    ),
    "FilterResponseNorm": Call(rb.FilterResponseNorm, {"threshold": flag(), "eps": positive(1e-6)}),
    "GroupNorm": Call(rb.GroupNorm, {"groups": count(2, 1, 2**70), "eps": positive(1e-5)}),
    "LayerNorm": Call(rb.LayerNorm, {"eps": positive(1e-5)}),
    "LSTM": Call(rb.LSTM, {"units": count(2, 1, 2**70), "sequence": flag()}),
    "AvgPool2D": Call(
        rb.AvgPool2D,
        {
            "pool_size": (2, m.without(m.integers(1, 2**70), "tuple")),
            "stride": (1, m.without(m.integers(1, 2**70, none=True), "tuple")),
            "padding": (1, m.without(m.integers(0, 2**70), "tuple")),
        },
    ),
    "MaxPool1D": Call(
        rb.MaxPool1D,
        {
            "pool_size": count(2, 1, 2**70),
            "stride": count(1, 1, 2**70, none=True),
            "padding": (1, m.integers(0, 2**70)),
        },
    ),
    "MaxPool2D": Call(
        rb.MaxPool2D,
        {
            "pool_size": (2, m.without(m.integers(1, 2**70), "tuple")),
            "stride": (1, m.without(m.integers(1, 2**70, none=True), "tuple")),
            "padding": (1, m.without(m.integers(0, 2**70), "tuple")),
        },
    ),
    "Residual": Call(
        rb.Residual,
        {
            "main": ((rb.Dense(2),), m.no(), ("layer",)),
            "shortcut": ((), m.without(m.no(), "empty list", "empty array"), ("layer",)),
        },
    ),
    "mlp": Call(
        rb.mlp,
        {
            "in_features": count(2, 1, 2**70),
            "hidden": ((3,), m.without(m.shapes(), "huge", "empty dict", "set", "frozenset")),
            "out_features": count(2, 1, 2**70),
            "activation": choice("relu"),
        },
    ),
    "lenet5": Call(
        rb.lenet5,
        {
            "input_shape": ((28, 28, 1), m.shapes()),
            "num_classes": count(10, 1, 2**70),
            "activation": choice("relu"),
        },
    ),
    "resnet20_frn": Call(
        rb.resnet20_frn,
        {
            "num_classes": count(10, 1, 2**70),
            "input_shape": ((32, 32, 3), m.shapes()),
            "activation": choice("relu"),
        },
    ),
    "cnn_lstm": Call(
        rb.cnn_lstm,
        {
            "vocab_size": count(50, 1, 2**70),
            "length": count(30, 1, 2**70),
            "num_classes": count(2, 1, 2**70),
            "activation": choice("relu"),
        },
    ),
}

MODELS: dict[str, Call] = {
    "Model": Call(
        rb.Model,
        {"layers": ([rb.Dense(1)], m.no(), ("layer",)), "input_shape": ((2,), m.shapes())},
    ),
    "Model.apply": Call(
        MODEL.apply,
        {"theta": (THETA, m.without(m.arrays((P,), exact=True, finite=False), "float32 array"))}
        | {"x": INPUTS},
    ),
    "Model.init": Call(
        MODEL.init,
        {
            "seed": SEED,
            "chains": (2, m.without(CHAINS[1], "repeated"), ("chain",)),
            "scheme": choice("he"),
            "dtype": (np.float32, m.dtypes()),
        },
    ),
    "Model.unravel": Call(
        MODEL.unravel,
        {
            "theta": (
                THETA,
                [
                    *m.without(
                        m.arrays((P,), finite=False, more=True), "empty list", "no rows", "empty"
                    ),
                    ("too short", np.zeros(P - 1)),
                    ("list", THETA.tolist()),
                ],
                ("shape", "array"),
            )
        },
    ),
    "Model.ravel": Call(MODEL.ravel, {"views": (MODEL.unravel(THETA), m.no(), ("names",))}),
    "Model.from_description": Call(
        rb.Model.from_description, {"description": (MODEL.describe(), m.no(), ("layers",))}
    ),
    "Model.from_torch_state_dict": Call(
        MODEL.from_torch_state_dict,
        {
            "state_dict": (
                {
                    "0.weight": np.ones((3, D)),
                    "0.bias": np.ones(3),
                    "2.weight": np.ones((1, 3)),
                    "2.bias": np.ones(1),
                },
                m.no(),
                ("arrays", "dict"),
            ),
            "dtype": (np.float32, m.dtypes()),
        },
    ),
}

# A scale of the noise, or one for each output.
EACH = (1.0, m.without(m.reals(0.0, none=True), "list", "tuple", "array"))
TARGETS: dict[str, Call] = {
    "Normal": Call(
        rb.Normal,
        {
            "scale": scale(),
            "fan_in": flag(),
            "mean": (0.0, m.without(m.reals(), "empty dict", "dict", "list", "tuple", "array")),
        },
    ),
    "Laplace": Call(rb.Laplace, {"scale": scale(), "fan_in": flag()}),
    "Logistic": Call(rb.Logistic, {"scale": scale(), "fan_in": flag()}),
    "StudentT": Call(rb.StudentT, {"df": positive(4.0), "scale": scale(), "fan_in": flag()}),
    "ScaleMixture": Call(
        rb.ScaleMixture,
        {"weight": fraction(0.5), "scale1": scale(), "scale2": scale(2.0), "fan_in": flag()},
    ),
    "GammaPrecision": Call(
        rb.GammaPrecision, {"concentration": positive(3.0), "rate": positive(1.0)}
    ),
    "InverseGamma": Call(rb.InverseGamma, {"concentration": positive(3.0), "rate": positive(1.0)}),
    "HalfNormal": Call(rb.HalfNormal, {"scale": scale()}),
    "Horseshoe": Call(
        rb.Horseshoe,
        {
            "global_scale": scale(),
            "slab_scale": scale(),
            "slab_df": positive(4.0),
            "fan_in": flag(),
        },
    ),
    "HalfCauchy": Call(rb.HalfCauchy, {"scale": scale()}),
    "Gaussian": Call(rb.Gaussian, {"scale": EACH, "per_output": flag(True)}),
    "Gaussian of unknown noise": Call(
        rb.Gaussian, {"log_noise_prior": (NORMAL, m.no("none"), ("prior",))}
    ),
    "HeteroscedasticGaussian": Call(
        rb.HeteroscedasticGaussian, {"min_sd": (0.1, m.without(m.reals(0.0), "end"))}
    ),
    "StudentTNoise": Call(
        rb.StudentTNoise, {"df": positive(4.0), "scale": EACH, "per_output": flag(True)}
    ),
    "Posterior": Call(
        rb.Posterior,
        {
            "model": (MODEL, m.no()),
            "x": (X, m.arrays((N, D)), ("y",)),
            "y": (Y, m.arrays((N,))),
            "prior": (NORMAL, m.no()),
            "likelihood": (NOISE, m.no()),
            "temperature": positive(1.0),
            "likelihood_temperature": positive(1.0),
            "dtype": (np.float32, m.without(m.dtypes(), "None")),
            "precision": choice("float32", none=True),
            "shards": count(4, high=16, none=True),
            "group": (None, m.no("none")),
        },
    ),
    "Group": Call(rb.distributed.Group, {"communicator": (ALONE, m.no())}),
    "Group.rows": Call(
        rb.distributed.Group(ALONE).rows, {"count": count(600), "shards": count(4, high=16)}
    ),
    "Posterior of classes": Call(
        lambda y: rb.Posterior(CLASSES.model, X, y, prior=NORMAL, likelihood=rb.Categorical()),
        {"y": (LABELS, m.labels(N, K))},
    ),
    "Posterior.init": Call(
        TARGET.init,
        {
            "seed": SEED,
            "chains": (2, m.without(CHAINS[1], "repeated"), ("chain",)),
            "scheme": choice("he"),
        },
    ),
    "Posterior.value_and_grad": Call(
        TARGET.value_and_grad,
        {
            "theta": THETAS,
            "rows": (
                np.arange(3),
                [
                    *m.without(m.arrays((3,), dtype=np.int64, rows=True, none=True), "number"),
                    ("no row", np.array([-1])),
                    ("row more", np.array([N])),
                    ("a half", [0.5]),
                ],
            ),
        },
    ),
    "Posterior.log_prior": Call(TARGET.log_prior, {"theta": THETAS}),
    "Posterior.log_likelihood": Call(TARGET.log_likelihood, {"theta": THETAS}),
    "Posterior.log_likelihood of rows": Call(
        TARGET.log_likelihood,
        {
            "theta": (
                THETA[None],
                m.without(m.arrays((1, P), exact=True, finite=False, rows=True), "float32 array"),
            ),
            "x": INPUTS,
            "y": (Y, m.arrays((N,))),
        },
    ),
    "Posterior.unravel": Call(
        TARGET.unravel,
        {
            "theta": (
                THETA,
                m.without(m.arrays((P,), finite=False), "axis more"),
                ("shape", "array"),
            )
        },
    ),
    "Posterior.outputs": Call(
        TARGET.outputs,
        {"theta": (THETA, m.without(m.arrays((P,), exact=True, finite=False), "float32 array"))}
        | {"x": INPUTS},
    ),
    "Posterior.predictive": Call(
        TARGET.predictive,
        {
            "theta": (
                THETA[None],
                m.without(m.arrays((1, P), exact=True, finite=False, rows=True), "float32 array"),
            ),
            "x": INPUTS,
        },
    ),
    "Posterior.terms_and_grad": Call(TARGET.terms_and_grad, {"theta": THETAS}),
    "Posterior.check_inputs": Call(TARGET.check_inputs, {"x": INPUTS}),
    "Posterior.leapfrog": Call(
        TARGET.leapfrog,
        {
            "position": (THETA[None], m.arrays((1, P), exact=True, finite=False), ("momentum",)),
            "momentum": (THETA[None], m.arrays((1, P), exact=True, finite=False)),
            "grad": (THETA[None], m.arrays((1, P), exact=True, finite=False, none=True)),
            "step_size": (0.1, m.without(m.reals(), *ANY_NUMBER)),
            "num_steps": (2, m.without(m.integers(1, 2**62), "list")),
        },
    ),
    "CallableDensity": Call(
        rb.CallableDensity,
        {
            "fn": (len, m.no("callable")),
            "dim": count(3, 1, 2**34),
            "batched": flag(),
        },
    ),
    "CallableDensity.init": Call(
        DENSITY.init, {"seed": SEED, "chains": (2, m.without(CHAINS[1], "repeated"), ("chain",))}
    ),
    "CallableDensity.value_and_grad": Call(DENSITY.value_and_grad, {"theta": THETAS}),
    "CallableDensity result": Call(
        lambda lp, grad: rb.CallableDensity(lambda theta: (lp, grad), P).value_and_grad(THETA),
        {
            "lp": (0.0, m.without(m.reals(), *ANY_RESULT)),
            "grad": (THETA, m.without(m.arrays((P,), finite=False), "list of None")),
        },
    ),
}
