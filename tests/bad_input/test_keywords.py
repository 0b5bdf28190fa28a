"""Keywords that a function does not have: the error gives the name here."""

import functools
import inspect
import pickle
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import keywords
from tests.support.public import public
from tests.support.rubbish import MODEL, X, Y, target

TARGET = target()
HMC = rb.HMC(TARGET, step_size=0.1, num_leapfrog_steps=2)
DRAWS = HMC.sample(4, chains=2, warmup=0, progress=False)


FIT = rb.BBB(TARGET).fit(2, progress=False)
PREDICTION = DRAWS.predict(X)
CORES = "use rb.set_num_threads(n), chains share all cores already"

CASES = {
    "[HMC.sample] unknown num_samples=: use num_draws=": lambda: HMC.sample(num_samples=10),
    "[HMC.sample] unknown num_chains=: use chains=; unknown random_state=: use seed=": (
        lambda: HMC.sample(10, num_chains=2, random_state=1)
    ),
    "[HMC.sample] unknown burn_in=: use warmup=": lambda: HMC.sample(10, burn_in=1),
    "[HMC.sample] unknown warmpu=: did you mean warmup=?": lambda: HMC.sample(10, warmpu=1),
    "[HMC.sample] unknown epsilon=: use step_size= in HMC(...)": (
        lambda: HMC.sample(10, epsilon=0.1)
    ),
    "[HMC.sample] unknown n_chains=: use chains=": lambda: HMC.sample(
        10, n_chains=2, blocking=False
    ),
    "[Chains] unknown random_state=: use seed=": lambda: rb.Chains(HMC, random_state=1),
    "[Chains] unknown initial_position=: use init=": (
        lambda: rb.Chains(HMC, initial_position=np.zeros(TARGET.dim))
    ),
    "[HMC] expected target, got none": lambda: rb.HMC(),
    "[HMC] unknown model=: use target=": lambda: rb.HMC(model=TARGET),
    "[HMC] unknown target_accept_prob=: use target_accept=": (
        lambda: rb.HMC(TARGET, target_accept_prob=0.9)
    ),
    "[HMC] unknown num_samples=: use num_draws= in sample(...)": (
        lambda: rb.HMC(TARGET, num_samples=9)
    ),
    "[NUTS] unknown adapt_delta=: use target_accept=": lambda: rb.NUTS(TARGET, adapt_delta=0.9),
    "[HMC] unknown target_acceptance=: use target_accept=; unknown randomize=: use "
    "randomize_length=, True for 'uniform', False for None; unknown jitter=: use "
    "step_size_jitter=": (
        lambda: rb.HMC(TARGET, target_acceptance=0.9, randomize=None, jitter=0.1)
    ),
    "[NUTS] unknown jitter=: use step_size_jitter= in HMC(...)": (
        lambda: rb.NUTS(TARGET, jitter=0.1)
    ),
    "[SGLD] unknown step_size_jitter=: use step_size_jitter= in HMC(...)": (
        lambda: rb.SGLD(TARGET, step_size_jitter=0.1)
    ),
    "[HMC] unknown max_tree_depth=: use max_tree_depth= in NUTS(...)": (
        lambda: rb.HMC(TARGET, max_tree_depth=8)
    ),
    "[HMC.sample] unknown quantiles=: use predict_at= in sample(...), then "
    "draws.prediction.quantile(q)": lambda: HMC.sample(3, quantiles=[0.1]),
    "[HMC.sample] unknown keep_draws=: use save_draws=; unknown keep_warmup=: use save_warmup=": (
        lambda: HMC.sample(10, keep_draws=False, keep_warmup=True)
    ),
    "[HMC.sample] unknown discard_tuned_samples=: use save_warmup= in sample(...), its opposite": (
        lambda: HMC.sample(10, discard_tuned_samples=True)
    ),
    f"[HMC.sample] unknown cores=: {CORES}": lambda: HMC.sample(10, cores=2),
    f"[NUTS] unknown chain_method=: {CORES}": lambda: rb.NUTS(TARGET, chain_method="parallel"),
    f"[DeepEnsemble] unknown n_jobs=: {CORES}": lambda: rb.DeepEnsemble(TARGET, n_jobs=2),
    "[HMC.sample] unknown temperature=: use temperature= in Posterior(...)": (
        lambda: HMC.sample(10, temperature=0.1)
    ),
    "[SGLD] unknown lr=: use step_size=; unknown temperature=: use temperature= in "
    "Posterior(...)": lambda: rb.SGLD(TARGET, lr=1e-3, temperature=0.1),
    "[HMC] unknown weight_decay=: use prior= in Posterior(...)": (
        lambda: rb.HMC(TARGET, weight_decay=0.1)
    ),
    "[MCLMC] unknown energy_variance=: use desired_energy_var=": (
        lambda: rb.MCLMC(TARGET, energy_variance=0.1)
    ),
    "[MCLMC] unknown L=: use decoherence_length=": lambda: rb.MCLMC(TARGET, L=3.0),
    "[MCLMC] unknown num_leapfrog_steps=: use decoherence_length= in MCLMC(...)": (
        lambda: rb.MCLMC(TARGET, num_leapfrog_steps=3)
    ),
    "[MCLMC.sample] unknown batch_size=: use batch_size= in SGLD(...), MCLMC takes all rows": (
        lambda: rb.MCLMC(TARGET).sample(5, batch_size=8)
    ),
    "[MCLMC.discretization_bias] unknown num_chains=: the draws have it": (
        lambda: rb.MCLMC(TARGET).discretization_bias(DRAWS, num_chains=2)
    ),
    "[NUTS] unknown adapt_step_size=: use step_size='auto' in NUTS(...)": (
        lambda: rb.NUTS(TARGET, adapt_step_size=True)
    ),
    "[NUTS] unknown dense_mass=: use inverse_mass_matrix= in NUTS(...), which is diagonal": (
        lambda: rb.NUTS(TARGET, dense_mass=True)
    ),
    "[SGLD] unknown lr=: use step_size=; unknown batchsize=: use batch_size=": (
        lambda: rb.SGLD(TARGET, lr=1e-3, batchsize=2)
    ),
    "[BBB.fit] unknown epochs=: use num_epochs=": lambda: rb.BBB(TARGET).fit(epochs=3),
    "[BBB] unknown num_chains=: use members= in DeepEnsemble(...)": (
        lambda: rb.BBB(TARGET, num_chains=4)
    ),
    "[BBB] unknown n_estimators=: use members= in DeepEnsemble(...)": (
        lambda: rb.BBB(TARGET, n_estimators=4)
    ),
    "[SWAG.fit] unknown num_chains=: use members= in SWAG(...)": (
        lambda: rb.SWAG(TARGET).fit(3, num_chains=4)
    ),
    "[SWAG] unknown max_num_models=: use max_rank=": lambda: rb.SWAG(TARGET, max_num_models=4),
    "[LaplaceApproximation] unknown subset_of_weights=: use subset=": (
        lambda: rb.LaplaceApproximation(TARGET, subset_of_weights="last_layer")
    ),
    "[BBB.fit] unknown n_samples=: use num_draws= in predict(...) of the fit": (
        lambda: rb.BBB(TARGET).fit(n_samples=1000)
    ),
    "[MeanField.predict] unknown mc_samples=: use num_draws=": (
        lambda: FIT.predict(X, mc_samples=3)
    ),
    "[MeanField.predict] unknown num_particles=: use num_draws=": (
        lambda: FIT.predict(X, num_particles=3)
    ),
    "[MCDropout] unknown prior_precision=: use prior= in Posterior(...)": (
        lambda: rb.MCDropout(TARGET, prior_precision=1.0)
    ),
    "[DeepEnsemble] unknown n_models=: use members=": lambda: rb.DeepEnsemble(TARGET, n_models=3),
    "[SWAG.fit] unknown learning_rate=: use learning_rate= in SWAG(...)": (
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
    "[Normal] unknown loc=: use mean=; unknown sigma=: use scale=": (
        lambda: rb.Normal(loc=0.0, sigma=1.0)
    ),
    "[StudentT] unknown nu=: use df=": lambda: rb.StudentT(nu=3.0, scale=1.0),
    "[Gaussian] unknown sigma=: use scale=": lambda: rb.Gaussian(sigma=0.3),
    "[Bernoulli] expected 0 arguments without a name, got 1": lambda: rb.Bernoulli(0.5),
    "[Dense] unknown out_features=: use units=": lambda: rb.Dense(out_features=3),
    "[Dense] expected units once, got it twice, with a name and without": lambda: rb.Dense(
        3, units=3
    ),
    "[Dropout] unknown p=: use rate=": lambda: rb.Dropout(p=0.1),
    "[mlp] unknown hidden_sizes=: use hidden=": lambda: rb.mlp(1, hidden_sizes=(3,)),
    "[mlp] unknown hidden_features=: use hidden=": lambda: rb.mlp(1, hidden_features=(3,)),
    "[Posterior] expected prior, likelihood, got none": lambda: rb.Posterior(MODEL, X, Y),
    "[Posterior] unknown prior_precision=: use prior=rb.Normal(prior_precision ** -0.5)": (
        lambda: rb.Posterior(MODEL, X, Y, prior_precision=1.0)
    ),
    "[Posterior] unknown noise_std=: use likelihood=rb.Gaussian(noise_std)": (
        lambda: rb.Posterior(MODEL, X, Y, noise_std=1.0)
    ),
    "[Posterior] unknown train_x=: use x=": lambda: rb.Posterior(MODEL, train_x=X),
    "[Posterior.init] unknown random_state=: use seed=": lambda: TARGET.init(random_state=1),
    "[Draws.predict] unknown X=: use x=": lambda: DRAWS.predict(X=X),
    "[Prediction.interval] unknown hdi_prob=: use coverage=": (
        lambda: PREDICTION.interval(hdi_prob=0.9)
    ),
    "[Prediction.interval] unknown alpha=: use coverage= with 1 - alpha": (
        lambda: PREDICTION.interval(alpha=0.1)
    ),
    "[Prediction.cdf] unknown x=: use y=": lambda: PREDICTION.cdf(x=Y),
    "[Prediction.sample] unknown sample_shape=: use num_samples=": (
        lambda: PREDICTION.sample(sample_shape=(3,))
    ),
    "[Prediction.sample] unknown num_draws=: use num_samples=": (
        lambda: PREDICTION.sample(num_draws=3)
    ),
    "[Converged] unknown min_ess=: use ess=": lambda: rb.Converged(min_ess=400),
    "[load] unknown filename=: use path=": lambda: rb.load(filename="a"),
    "[load] unknown resume=: load it, then resume it with sample(...)": lambda: rb.load(
        "a", resume=True
    ),
    "[rhat] unknown mehtod=: did you mean method=?": (
        lambda: rb.diagnostics.rhat(DRAWS.positions, mehtod="rank")
    ),
    "[auroc] unknown y_true=: use label=; unknown y_score=: use score=": (
        lambda: rb.metrics.auroc(y_true=[0, 1], y_score=[0.1, 0.9])
    ),
    "[rmse] unknown y_true=: use y=; unknown y_pred=: use mean=": (
        lambda: rb.metrics.rmse(y_true=Y, y_pred=Y)
    ),
    "[nll] unknown y_true=: use y=; unknown y_pred=: use probs=": (
        lambda: rb.metrics.nll(y_true=Y, y_pred=Y)
    ),
    "[Categorical] unknown classes=: expected no arguments": lambda: rb.Categorical(classes=3),
    "[Dense] unknown activation=: expected units=, bias=": (lambda: rb.Dense(3, activation="relu")),
    "[Dense] unknown use_bias=: use bias=; unknown foo=, bar=: expected units=, bias=": (
        lambda: rb.Dense(3, foo=1, use_bias=True, bar=1)
    ),
}


@pytest.mark.parametrize("text", CASES)
def test_the_error_gives_the_name_here(text: str) -> None:
    with pytest.raises(TypeError) as caught:
        CASES[text]()
    assert str(caught.value) == text
    assert caught.value.__cause__ is caught.value.__context__ is None


OWNERS = {
    "ribbit": rb,
    "Draws": DRAWS,
    "Prediction": PREDICTION,
    "Summary": DRAWS.summary(),
    "MCLMC": rb.MCLMC(TARGET),
    "Sampler": HMC,
    "Fit": rb.DeepEnsemble(TARGET, members=2).fit(2, progress=False),
} | {name: getattr(rb, name)(TARGET) for name in keywords._FITTERS.split() if name != "MCDropout"}
FORMER = [(owner, old) for owner, names in keywords.ATTRIBUTES.items() for old in names]


@pytest.mark.parametrize(("owner", "old"), [one for one in FORMER if one[0] in OWNERS])
def test_a_former_attribute_gives_the_name_here(owner: str, old: str) -> None:
    new, has = keywords.ATTRIBUTES[owner][old], OWNERS[owner]
    advice = f"use {re.escape(new)}" if new else "it is gone"
    with pytest.raises(AttributeError, match=rf"no attribute '{old}': {advice}$"):
        getattr(has, old)
    assert not hasattr(has, old)
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        has.other  # noqa: B018
    if new:
        assert hasattr(has, re.split(r"\(", new.removeprefix("rb."))[0])


def test_an_import_gives_the_name_here() -> None:
    with pytest.raises(ImportError, match=r"no attribute 'load_draws': use rb\.load$"):
        from ribbit import load_draws  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'other'"):
        from ribbit import other  # noqa: F401


def test_values_give_the_name_here() -> None:
    with pytest.raises(ValueError, match="got str 'minimal_norm': use 'mclachlan'"):
        rb.MCLMC(TARGET, integrator="minimal_norm")
    with pytest.raises(TypeError, match=r"expected auroc\(label, score\), got them in"):
        rb.metrics.auroc([0.1, 0.9], [0, 1])
    with pytest.raises(TypeError, match=r"got float 1\.0: for example rb\.Normal\(1\.0\)$"):
        rb.Posterior(MODEL, X, Y, prior=1.0, likelihood=rb.Gaussian(0.1))
    for likelihood in ("gaussian", rb.Gaussian):
        with pytest.raises(TypeError, match=r"such as rb\.Gaussian\(0\.1\), got "):
            rb.Posterior(MODEL, X, Y, prior=rb.Normal(1.0), likelihood=likelihood)
    with pytest.raises(TypeError, match=r"a list of Draws, such as \[a, b\], got ribbit\.Draws"):
        rb.concatenate(DRAWS, DRAWS)
    with pytest.raises(ValueError, match=r"warmup must be at least 1 for step_size='auto', got 0"):
        rb.Chains(rb.HMC(TARGET), warmup=0)
    with pytest.raises(ValueError, match=r">= 100 for step_size='auto', decoherence_length='auto'"):
        rb.MCLMC(TARGET).sample(5, warmup=50)


ESTIMATOR_CASES = {
    "[BNNRegressor] unknown hidden_layer_sizes=: use hidden=; unknown max_iter=: use epochs=": (
        lambda one, _: one(hidden_layer_sizes=(3,), max_iter=10)
    ),
    "[BNNClassifier] unknown seed=: use random_state=": lambda _, one: one(seed=1),
    "[BNNRegressor] unknown n_members=: use chains= in BNNRegressor(...)": (
        lambda one, _: one(n_members=3)
    ),
    "[BNNRegressor] unknown target_accept_prob=: use options={'target_accept': ...} in "
    "BNNRegressor(...)": lambda one, _: one(target_accept_prob=0.9),
    f"[BNNRegressor] unknown n_jobs=: {CORES}": lambda one, _: one(n_jobs=2),
    "[BNNRegressor] unknown progressbar=: use verbose=": lambda one, _: one(progressbar=True),
    "[BNNRegressor] unknown alpha=: use prior_scale= in BNNRegressor(...), a small sd decays "
    "more": lambda one, _: one(alpha=0.1),
    "[BNNClassifier] unknown standardize=: inputs are always standardized": (
        lambda _, one: one(standardize=True)
    ),
    "[BNNRegressor.fit] unknown epochs=: use epochs= in BNNRegressor(...)": (
        lambda one, _: one().fit(X, Y, epochs=3)
    ),
    "[BNNRegressor.predict] unknown alpha=: use interval= with 1 - alpha": (
        lambda one, _: one().predict(X, alpha=0.1)
    ),
    "[BNNRegressor.predict] unknown coverage=: use interval=": (
        lambda one, _: one().predict(X, coverage=0.9)
    ),
    "[BNNRegressor.predict_interval] unknown alpha=: use coverage= with 1 - alpha": (
        lambda one, _: one().predict_interval(X, alpha=0.1)
    ),
    "[BNNRegressor.predict_quantiles] unknown alpha=: use quantiles= with both ends": (
        lambda one, _: one().predict_quantiles(X, alpha=0.1)
    ),
    "[BNNRegressor.predict_quantiles] unknown q=: use quantiles=": (
        lambda one, _: one().predict_quantiles(X, q=[0.1])
    ),
    "[BNNRegressor.sample_y] unknown num_samples=: use n_samples=": (
        lambda one, _: one().sample_y(X, num_samples=3)
    ),
    "[BNNRegressor.set_params] unknown num_samples=: use draws=": (
        lambda one, _: one().set_params(num_samples=3)
    ),
    "[BNNRegressor.fit] unknown option 'jitter': use step_size_jitter=": (
        lambda one, _: one(method="hmc", options={"jitter": 0.1}).fit(X, Y)
    ),
    "[BNNRegressor.fit] unknown option 'energy_variance': use desired_energy_var=": (
        lambda one, _: one(options={"energy_variance": 0.1}).fit(X, Y)
    ),
    "[BNNRegressor.fit] unknown option 'num_samples': use draws=": (
        lambda one, _: one(options={"num_samples": 3}).fit(X, Y)
    ),
}


@pytest.mark.parametrize("text", ESTIMATOR_CASES)
def test_estimators_give_the_name_here(text: str) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    from ribbit.sklearn import BNNClassifier, BNNRegressor

    with pytest.raises((TypeError, ValueError)) as caught:
        ESTIMATOR_CASES[text](BNNRegressor, BNNClassifier)
    assert str(caught.value) == text


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
    for one in (rb.mlp, rb.load, rb.Normal(1.0)):
        assert pickle.loads(pickle.dumps(one)) == one


def callables() -> Iterator[tuple[type | None, FunctionType]]:
    """Public functions, and the constructors and public methods of public classes."""
    for one in public().values():
        if isinstance(one, FunctionType):
            yield None, one
        elif isinstance(one, type) and not inspect.isabstract(one):
            for name, part in inspect.getmembers(one, inspect.isfunction):
                if part.__module__.startswith("ribbit.") and name.strip("_") in ("init", name):
                    yield one, part


def arguments(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", "args", "kwargs"}


def test_advice_names_arguments_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wrong name of the table at every public callable."""
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    everything = {name.rpartition(".")[2]: one for name, one in public().items()}
    words = {w for ours, others in keywords._OTHERS.items() for w in (ours, *others.split())}
    words |= {word for row in keywords._HINTS for word in row[0].split()}
    words = set({keywords._plain(word): word for word in sorted(words)}.values())
    for slow in ("_plain", "_elsewhere"):
        monkeypatch.setattr(keywords, slow, functools.cache(getattr(keywords, slow)))
    used: set[str] = set()
    told = set(" ".join(row[1] for row in keywords._HINTS).replace("()", "").split())
    alike = {}  # a method of many classes that the table does not name is one
    for cls, function in callables():
        named = told.intersection(one.__name__ for one in getattr(cls, "__mro__", ()))
        alike[inspect.unwrap(function), cls if named else None] = cls, function
    for cls, function in alike.values():
        own, name = arguments(function), function.__name__
        for word in words - own:
            text = keywords.advice(word, own, cls, name)
            used |= {text}
            for argument in re.findall(r"(\w+)=", text):
                place: Any = function
                if found := re.search(rf"\b{argument}=[^,]* in (\w+)\(\.\.\.\)", text):
                    place = everything.get(found[1]) or getattr(cls, found[1], None)
                    if "of the fit" in text:
                        kind = inspect.signature(cls.fit).return_annotation  # type: ignore[union-attr]
                        place = getattr(everything[kind], found[1])
                assert argument in arguments(place), (cls, name, word, text)
            for option in re.findall(r"'(\w+)': \.\.\.", text):
                samplers = [getattr(rb, one) for one in rb.samplers.__all__]
                assert any(option in arguments(one) for one in samplers), text
            for other in re.findall(r"rb\.(\w+)", text):
                assert other in everything, text
    assert len(used) > 200


def test_every_row_of_the_table_is_used() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    known = {name for _, function in callables() for name in arguments(function)}
    assert set(keywords._OTHERS) - known <= {"module"}  # of PyTorch
    places = {name.rpartition(".")[2] for name in public()} | {"BNN", "Fit", "posterior"}
    for cls, function in callables():
        kinds = [] if cls is None else [one.__name__ for one in cls.__mro__]
        places |= {function.__name__, *(f"{one}()" for one in kinds)}
        places |= {f"{one}.{function.__name__}" for one in kinds}
    for words, where, text in keywords._HINTS:
        assert set(where.split()) <= places, (words, text)
