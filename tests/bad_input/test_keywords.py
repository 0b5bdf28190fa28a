"""Keywords that a function does not have: the error gives the name here."""

import inspect
import pickle
from types import FunctionType

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import keywords
from tests.support.public import public
from tests.support.rubbish import MESSAGE, MODEL, X, Y, target

TARGET = target()
HMC = rb.HMC(TARGET, step_size=0.1, num_leapfrog_steps=2)
DRAWS = HMC.sample(4, chains=2, warmup=0, progress=False)


CASES = {
    "[HMC.sample] expected num_draws=, got num_samples=": lambda: HMC.sample(num_samples=10),
    "[HMC.sample] expected chains=, seed=, got num_chains=, random_state=": (
        lambda: HMC.sample(10, num_chains=2, random_state=1)
    ),
    "[HMC.sample] expected warmup=, got burn_in=": lambda: HMC.sample(10, burn_in=1),
    "[HMC.sample] expected warmup=, got warmpu=: did you mean warmup?": (
        lambda: HMC.sample(10, warmpu=1)
    ),
    "[HMC.sample] expected step_size= in HMC(...), got epsilon=": (
        lambda: HMC.sample(10, epsilon=0.1)
    ),
    "[HMC.start] expected chains=, got n_chains=": lambda: HMC.start(10, n_chains=2),
    "[HMC.init] expected seed=, got random_state=": (
        lambda: HMC.init(np.zeros(TARGET.dim), random_state=1)
    ),
    "[HMC] expected target, got none": lambda: rb.HMC(),
    "[HMC] expected target_accept=, got target_accept_prob=": (
        lambda: rb.HMC(TARGET, target_accept_prob=0.9)
    ),
    "[HMC] expected num_draws= in sample(...), got num_samples=": (
        lambda: rb.HMC(TARGET, num_samples=9)
    ),
    "[NUTS] expected target_accept=, got adapt_delta=": (lambda: rb.NUTS(TARGET, adapt_delta=0.9)),
    "[HMC] expected target_accept=, randomize_length=, step_size_jitter=, "
    "got target_acceptance=, randomize=, jitter=": (
        lambda: rb.HMC(TARGET, target_acceptance=0.9, randomize=None, jitter=0.1)
    ),
    "[HMC.sample] expected save_draws=, save_warmup=, got keep_draws=, keep_warmup=": (
        lambda: HMC.sample(10, keep_draws=False, keep_warmup=True)
    ),
    "[MCLMC] expected desired_energy_var=, got energy_variance=": (
        lambda: rb.MCLMC(TARGET, energy_variance=0.1)
    ),
    "[SGLD] expected step_size=, batch_size=, got lr=, batchsize=": (
        lambda: rb.SGLD(TARGET, lr=1e-3, batchsize=2)
    ),
    "[BBB.fit] expected num_epochs=, got epochs=": lambda: rb.BBB(TARGET).fit(epochs=3),
    "[DeepEnsemble] expected members=, got n_models=": (
        lambda: rb.DeepEnsemble(TARGET, n_models=3)
    ),
    "[SWAG.fit] expected learning_rate= in SWAG(...), got learning_rate=": (
        lambda: rb.SWAG(TARGET).fit(3, learning_rate=0.1)
    ),
    "[Normal] expected 1 argument without a name (scale), got 2: the first argument is the "
    "standard deviation; the mean is 0, or mean= by name": lambda: rb.Normal(0.0, 1.0),
    "[Laplace] expected 1 argument without a name (scale), got 2: the first argument is the scale; "
    "the prior is centred at 0": lambda: rb.Laplace(0.0, 1.0),
    "[StudentT] expected 2 arguments without a name (df, scale), got 3: the arguments are df and "
    "scale, in this order; the prior is centred at 0": lambda: rb.StudentT(3.0, 0.0, 1.0),
    "[HalfNormal] expected 1 argument without a name (scale), got 2: the first argument is the "
    "scale, the only one": lambda: rb.HalfNormal(0.0, 1.0),
    "[Gaussian] expected 1 argument without a name (scale), got 2: the first argument is the sd of "
    "the noise; its mean is 0": lambda: rb.Gaussian(0.0, 0.1),
    "[Normal] expected mean=, scale=, got loc=, sigma=": lambda: rb.Normal(loc=0.0, sigma=1.0),
    "[StudentT] expected df=, got nu=": lambda: rb.StudentT(nu=3.0, scale=1.0),
    "[Gaussian] expected scale=, got sigma=": lambda: rb.Gaussian(sigma=0.3),
    "[Bernoulli] expected 0 arguments without a name, got 1": lambda: rb.Bernoulli(0.5),
    "[Dense] expected units=, got out_features=": lambda: rb.Dense(out_features=3),
    "[Dense] expected units once, got it twice, with a name and without": lambda: rb.Dense(
        3, units=3
    ),
    "[Dropout] expected rate=, got p=": lambda: rb.Dropout(p=0.1),
    "[mlp] expected hidden=, got hidden_sizes=": lambda: rb.mlp(1, hidden_sizes=(3,)),
    "[Posterior] expected prior, likelihood, got none": lambda: rb.Posterior(MODEL, X, Y),
    "[Posterior.init] expected seed=, got random_state=": lambda: TARGET.init(random_state=1),
    "[Draws.predict] expected x=, got X=": lambda: DRAWS.predict(X=X),
    "[Prediction.interval] expected coverage=, got hdi_prob=": (
        lambda: DRAWS.predict(X).interval(hdi_prob=0.9)
    ),
    "[load] expected path=, got filename=": lambda: rb.load(filename="a"),
    "[rhat] expected method=, got mehtod=: did you mean method?": (
        lambda: rb.diagnostics.rhat(DRAWS.positions, mehtod="rank")
    ),
    "[Categorical] expected no arguments, got classes=": lambda: rb.Categorical(classes=3),
    "[Dense] expected only units=, bias=, got activation=": (
        lambda: rb.Dense(3, activation="relu")
    ),
}


@pytest.mark.parametrize("text", CASES)
def test_the_error_gives_the_name_here(text: str) -> None:
    with pytest.raises(TypeError) as caught:
        CASES[text]()
    assert str(caught.value) == text
    assert MESSAGE.match(text)
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize("old", keywords.ATTRIBUTES)
def test_a_former_attribute_gives_the_name_here(old: str) -> None:
    new = keywords.ATTRIBUTES[old]
    owner = next(one for one in (rb, DRAWS.predict(X), rb.MCLMC(TARGET)) if hasattr(one, new))
    with pytest.raises(AttributeError, match=rf"no attribute '{old}': use (rb\.)?{new}$"):
        getattr(owner, old)
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        owner.other  # noqa: B018


def test_estimators_give_the_name_here() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    from ribbit.sklearn import BNNClassifier, BNNRegressor

    with pytest.raises(TypeError, match=r"\[BNNRegressor\] expected hidden=, epochs=, got"):
        BNNRegressor(hidden_layer_sizes=(3,), max_iter=10)
    with pytest.raises(TypeError, match=r"\[BNNClassifier\] expected random_state=, got seed="):
        BNNClassifier(seed=1)
    with pytest.raises(TypeError, match=r"\[BNNRegressor.fit\] expected epochs= in BNNRegressor"):
        BNNRegressor().fit(X, Y, epochs=3)


def test_an_error_inside_a_function_is_not_touched() -> None:
    def fail(**snapshot: object) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"positional argument.* but 1 was given"):
        HMC.sample(10, progress=fail)


def test_everything_public_explains_its_keywords() -> None:
    found, missing = public(), []
    for name, one in found.items():
        if isinstance(one, FunctionType):
            missing += [] if hasattr(one, "__wrapped__") else [name]
        elif isinstance(one, type) and not issubclass(one, tuple):
            init = one.__init__
            if isinstance(init, FunctionType) and init.__module__.startswith("ribbit."):
                missing += [] if hasattr(init, "__wrapped__") else [name]
    assert len(found) > 100
    assert not missing


def test_signatures_and_pickles_stay() -> None:
    assert list(inspect.signature(rb.Dense).parameters) == ["units", "bias"]
    assert list(inspect.signature(HMC.sample).parameters)[:2] == ["num_draws", "warmup"]
    for one in (rb.mlp, rb.leapfrog, rb.load, rb.Normal(1.0)):
        assert pickle.loads(pickle.dumps(one)) == one


def test_every_name_of_the_table_is_the_name_of_an_argument() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    known: set[str] = set()
    for one in public().values():
        parts = [one] if isinstance(one, FunctionType) else []
        if isinstance(one, type):
            parts = [value for _, value in inspect.getmembers(one, inspect.isfunction)]
        for part in parts:
            known |= set(inspect.signature(part).parameters)
    assert set(keywords._OTHERS) - known <= {"module"}  # of PyTorch
