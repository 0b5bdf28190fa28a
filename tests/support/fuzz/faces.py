"""The faces of other ecosystems: right arguments, and what is wrong for each.

A face whose wheels are not installed has no calls; ``tests/bad_input/test_faces.py`` says so.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

import ribbit as rb
from tests.support.fuzz import malformed as m
from tests.support.fuzz.problem import (
    CHAINS,
    HMC,
    LABELS,
    NORMAL,
    SEED,
    TARGET,
    THETA,
    Argument,
    Call,
    D,
    N,
    P,
    X,
    Y,
    choice,
    count,
    flag,
    fraction,
    positive,
)

ROWS = "list", "tuple"  # numbers of rows
# Of numbers that need not be of one dtype: a face converts what loses nothing.
VECTOR = m.arrays((P,), finite=False)


def sklearn() -> dict[str, Call]:
    """Both estimators; what is wrong with a parameter is said by ``fit``, their convention."""
    from ribbit.sklearn import BNNClassifier, BNNRegressor

    quick = {"hidden": (3,), "method": "hmc", "draws": 2, "chains": 2, "warmup": 1}
    quick |= {"options": {"num_leapfrog_steps": 2}, "random_state": 0}

    def parameters(kind: Any, y: Any) -> Callable[..., Any]:
        return lambda **given: kind(**{**quick, **given}).fit(X, y)

    def trained(kind: Any, y: Any, **given: Any) -> Callable[..., Any]:
        plan = {**quick, "method": "bbb", "warmup": None, "chains": 4, "options": None}
        return lambda **own: kind(**{**plan, "epochs": 1, **given, **own}).fit(X, y)

    unordered = "empty dict", "set", "frozenset"
    states = 0, m.integers(0, 2**64 - 1, none=True)
    common: dict[str, Argument] = {
        "hidden": ((3,), m.without(m.shapes(), "huge", *unordered), ("units",)),
        "activation": ("tanh", m.choices(), ("Activation",)),
        "method": choice("hmc"),
        "prior_scale": positive(1.0),
        "draws": count(2, none=True),
        "chains": count(2, 1, 2**31),
        "warmup": count(1, 0, none=True),
        "thin": count(1, none=True),
        "options": ({"num_leapfrog_steps": 2}, m.without(m.no("none"), "empty dict")),
        "store": (None, m.without(m.paths(), "None"), ("a path",)),
        "max_seconds": (None, m.reals(0.0, none=True)),
        "random_state": states,
        "verbose": (False, m.without(m.flags(), "one", "zero")),
    }
    fitted: dict[str, Argument] = {
        "epochs": count(1, none=True),
        "learning_rate": positive(1e-3, none=True),
        "batch_size": count(3, none=True),
        "early_stopping": flag(),
    }
    at = X, m.without(m.arrays((N, D), rows=True), "object array")
    regressor = BNNRegressor(**quick).fit(X, Y)
    classifier = BNNClassifier(**quick).fit(X, LABELS)
    samples: Argument = (2, m.integers(1, 2**31 - 1), ("num_samples",))
    sample = {"X": at, "n_samples": samples, "random_state": states}
    # Objects may be numbers, as in frames, and any width is one to learn from.
    table = X, m.without(m.arrays((N, D)), "object array", "a column more")
    return {
        "BNNRegressor": Call(
            parameters(BNNRegressor, Y),
            {**common, "noise": (0.5, m.without(m.reals(0.0), "text of digits", "list"))},
        ),
        "BNNRegressor by epochs": Call(trained(BNNRegressor, Y), fitted),
        "BNNRegressor with rows held out": Call(
            trained(BNNRegressor, Y, early_stopping=True),
            {"validation_fraction": fraction(0.5)},
        ),
        "BNNRegressor with dropout": Call(
            trained(BNNRegressor, Y, method="dropout"),
            {"dropout_rate": (0.1, m.without(m.reals(0.0, 1.0), "end"))},
        ),
        "BNNRegressor.fit": Call(
            BNNRegressor(**quick).fit,
            {
                "X": table,
                "y": (Y, m.without(m.arrays((N,)), "object array")),
                "sample_weight": (
                    np.ones(N),
                    m.without(m.arrays((N,), none=True), "number", "object array"),
                ),
            },
        ),
        "BNNRegressor.predict": Call(regressor.predict, {"X": at, "return_std": flag()}),
        "BNNRegressor.predict_interval": Call(
            regressor.predict_interval, {"X": at, "coverage": fraction(0.9)}
        ),
        "BNNRegressor.predict_quantiles": Call(
            regressor.predict_quantiles,
            {"X": at, "quantiles": ([0.1, 0.9], m.without(m.reals(0.0, 1.0)))},
        ),
        "BNNRegressor.sample_y": Call(regressor.sample_y, sample),
        "BNNRegressor.log_score": Call(regressor.log_score, {"X": table, "y": (Y, m.arrays((N,)))}),
        "BNNClassifier": Call(
            parameters(BNNClassifier, LABELS),
            {**common, "class_weight": (None, m.without(m.no("none"), "empty dict"))},
        ),
        "BNNClassifier by epochs": Call(trained(BNNClassifier, LABELS), fitted),
        "BNNClassifier.fit": Call(lambda X: BNNClassifier(**quick).fit(X, LABELS), {"X": table}),
        "BNNClassifier.predict": Call(classifier.predict, {"X": at}),
        "BNNClassifier.predict_proba": Call(classifier.predict_proba, {"X": at}),
        "BNNClassifier.sample_y": Call(classifier.sample_y, sample),
        "BNNClassifier.log_score": Call(
            classifier.log_score,
            {"X": table, "y": (LABELS, m.without(m.labels(N, 3), "object array"))},
        ),
    }


def torch() -> dict[str, Call]:
    """Modules as targets, native and not, and the operator."""
    import torch as th

    from ribbit.torch import attach, posterior, torch_log_density

    module = th.nn.Sequential(th.nn.Linear(D, 3), th.nn.Tanh(), th.nn.Linear(3, 1))
    native = posterior(module, rb.Gaussian(0.5), (X, Y), prior=NORMAL)
    foreign = posterior(module, rb.Gaussian(0.5), (X, Y), prior=NORMAL, native=False)
    operator = torch_log_density(TARGET)
    draws = rb.HMC(foreign, step_size=0.01, num_leapfrog_steps=1).sample(
        2, warmup=0, chains=1, progress=False
    )
    found = {
        "posterior": Call(
            posterior,
            {
                "module": (module, m.no()),
                "likelihood": (rb.Gaussian(0.5), m.no("callable")),
                "data": ((X, Y), m.no(), ("x", "y", "rows")),
                "prior": (NORMAL, m.without(m.no(), "dict")),
                "temperature": positive(1.0),
                "likelihood_temperature": positive(1.0),
                "dtype": (np.float32, m.without(m.dtypes(), "None")),
                "native": (None, m.flags(none=True)),
                "in_memory": flag(True),
                "vmap": flag(True),
                "chunk_size": count(1024),
            },
        ),
        "attach": Call(attach, {"result": (draws, m.no()), "target": (foreign, m.no())}),
        "torch_log_density": Call(torch_log_density, {"target": (TARGET, m.no())}),
        "LogDensity": Call(
            operator, {"theta": (th.from_numpy(THETA), m.without(VECTOR), ("theta",))}
        ),
    }
    single = m.arrays((P,), dtype=np.float32, exact=True, finite=False)
    loose = m.arrays((P,), finite=False)
    chains = 2, m.without(CHAINS[1], "repeated"), ("chain",)
    for kind, target in (("NativePosterior", native), ("ModulePosterior", foreign)):
        theta: Argument = (THETA.astype(np.float32), single)
        found |= {
            f"{kind}.value_and_grad": Call(
                target.value_and_grad,
                {"theta": theta, "rows": (None, m.without(m.no("none"), "empty array", *ROWS))},
            ),
            f"{kind}.init": Call(target.init, {"seed": SEED, "chains": chains}),
            f"{kind}.state_dict": Call(target.state_dict, {"theta": (THETA, loose)}),
            f"{kind}.unravel": Call(
                target.unravel, {"theta": (THETA, m.without(loose, "axis more"), ("unravel",))}
            ),
        }
    return found


def jax() -> dict[str, Call]:
    """A target inside JAX, and a function of JAX as a target."""
    import jax as j

    from ribbit.jax import from_jax, jax_log_density

    target = rb.Posterior(TARGET.model, X, Y, prior=NORMAL, likelihood=rb.Gaussian(0.5))
    theta = THETA.astype(np.float32)
    exact: Argument = (theta, m.arrays((P,), dtype=np.float32, exact=True, finite=False))
    inside = jax_log_density(target)
    density = from_jax(_square, P)
    chains = 2, m.without(CHAINS[1], "repeated"), ("chain",)
    # JAX takes float64 for float32 where jax_enable_x64 is not set, and lists of numbers.
    rounded = "float64 array", "nested list", "longdouble array", "other byte order"
    return {
        "jax_log_density": Call(jax_log_density, {"target": (target, m.no()), "prior": flag(True)}),
        "a function of jax_log_density": Call(
            inside,
            {"theta": (theta, m.without(exact[1], *rounded, "axis more", "huge broadcast"))},
        ),
        "a compiled gradient": Call(
            lambda theta: j.jit(j.grad(inside))(theta),
            {"theta": (theta, [("a column more", np.ones(P + 1, np.float32))])},
        ),
        "from_jax": Call(
            from_jax,
            {
                "fn": (_square, m.without(m.no(), "class", "NumPy class", "function", "lambda")),
                "dim": count(P, 1, 2**34),
                "dtype": (np.float32, m.without(m.dtypes(), "None")),
            },
        ),
        "from_jax of what is no scalar": Call(
            lambda fn: from_jax(fn, P), {"fn": (_square, [("pair", _pair), ("None", _nothing)])}
        ),
        "JaxDensity.init": Call(density.init, {"seed": SEED, "chains": chains}),
        "JaxDensity.value_and_grad": Call(
            density.value_and_grad,
            {
                "theta": (theta, m.without(exact[1])),
                "rows": (None, m.no("none")),
            },
        ),
    }


def _square(q: Any) -> Any:
    return -0.5 * (q @ q)


def _pair(q: Any) -> Any:
    return q @ q, q


def _nothing(q: Any) -> None:
    return None


def numpyro() -> dict[str, Call]:
    """A model as a target, a sampler as a kernel."""
    import numpyro as n
    import numpyro.distributions as dist

    from ribbit.numpyro import build_kernel, from_numpyro

    def model() -> None:
        n.sample("a", dist.Normal(0.0, 1.0).expand([P]).to_event(1))

    target = from_numpyro(model)
    draws = np.zeros((2, 3, P))
    return {
        "from_numpyro": Call(from_numpyro, {"model": (model, m.no("callable"))}),
        "build_kernel": Call(build_kernel, {"sampler": (HMC, m.no())}),
        "NumpyroDensity.samples": Call(
            target.samples,
            {"draws": (draws, m.arrays(draws.shape, rows=True, finite=False))},
        ),
        "RibbitKernel.init": Call(
            _kernel_init, {"init_params": (THETA, m.without(VECTOR, "None"))}
        ),
    }


def _kernel_init(init_params: Any) -> Any:
    import jax as j

    from ribbit.numpyro import build_kernel

    with j.enable_x64(True):
        return build_kernel(HMC).init(j.random.PRNGKey(0), 0, init_params)


def pymc() -> dict[str, Call]:
    """A model as a target, a target inside a model."""
    import pymc as pm

    from ribbit.pymc import from_pymc, pymc_log_density

    with pm.Model() as model:
        pm.Normal("a", 0.0, 1.0, shape=P)
    target = from_pymc(model)
    inside = pymc_log_density(TARGET)
    draws = np.zeros((2, 3, P))
    return {
        "from_pymc": Call(from_pymc, {"model": (model, m.no("none"))}),
        "pymc_log_density": Call(pymc_log_density, {"target": (TARGET, m.no())}),
        "an operation of pymc_log_density": Call(
            lambda theta: inside(theta).eval(), {"theta": (THETA, VECTOR)}
        ),
        "PymcDensity.samples": Call(
            target.samples,
            {"draws": (draws, m.arrays(draws.shape, rows=True, finite=False))},
        ),
    }


# of a face: what it needs, and its calls
FACES: dict[str, tuple[tuple[str, ...], Callable[[], dict[str, Call]]]] = {
    "sklearn": (("sklearn",), sklearn),
    "torch": (("torch",), torch),
    "jax": (("jax",), jax),
    "numpyro": (("jax", "numpyro"), numpyro),
    "pymc": (("pymc",), pymc),
}


def missing(face: str) -> list[str]:
    """Packages that a face needs and that are not installed."""
    return [name for name in FACES[face][0] if importlib.util.find_spec(name) is None]
