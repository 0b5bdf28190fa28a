"""Errors for keywords that a function does not have: they give the name here."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, NoReturn

# Names here, each with the names that other libraries, or other functions here, have for it. Case,
# underscores, "num_" or "n_" in front and "_rate" or "_prob" at the end do not count.
_OTHERS = {
    "num_epochs": "max_epochs iter iterations max_iter steps",
    "num_draws": "samples results iter iter_sampling iterations mc_samples particles nsamples size",
    "chains": "chain chain_ids nchains",
    "warmup": "warmup_steps iter_warmup burn_in burn_in_steps burn discard tune",
    "thin": "thinning thin_by keep_every",
    "seed": "random_state random_seed rng_seed rng rng_key key prng_key generator",
    "random_state": "seed random_seed rng_seed rng rng_key key generator",
    "target_accept": "target_acceptance acceptance accept adapt_delta delta",
    "step_size": "epsilon eps step lr learning_rate step_scale scaling",
    "learning_rate": "lr eta step_size learning_rate_init eps epsilon",
    "swag_learning_rate": "swa_lr swag_lr swa_learning_rate",
    "max_rank": "max_num_models K rank",
    "num_leapfrog_steps": "leapfrog L integration_steps steps_per_sample steps",
    "trajectory_length": "path_length path_len traj_length integration_time int_time",
    "step_size_jitter": "jitter",
    "desired_energy_var": "energy_variance desired_energy_variance desired_energy_var_start",
    "decoherence_length": "momentum_decoherence_length decoherence L",
    "max_tree_depth": "max_depth tree_depth max_num_doublings",
    "inverse_mass_matrix": "mass_matrix inverse_mass inv_mass_matrix metric inv_metric mass",
    "friction": "alpha momentum_decay gamma",
    "batch_size": "batch bs minibatch_size subsample_size",
    "members": "ensemble_size models networks estimators ensembles size chains",
    "num_samples": "particles mc_samples draws size sample_shape",
    "progress": "progress_bar show_progress verbose callback callbacks tqdm",
    "verbose": "progress progress_bar show_progress",
    "init": "init_params initial_params init_strategy initvals inits initial_position x0 start",
    "position": "init init_params initial_params initial_position initial_positions q theta x0",
    "resume": "resume_from continue_from post_warmup_state checkpoint",
    "store": "folder dir directory save_path checkpoint_dir backend output_dir trace",
    "max_seconds": "timeout time_limit max_time time",
    "until": "stop stop_when criterion stopping",
    "rhat": "max_rhat r_hat",
    "ess": "min_ess",
    "hidden": "hidden_layer_sizes hidden_sizes hidden_dims hidden_features widths layers units",
    "in_features": "in_dim input_dim features inputs in_channels input_size",
    "out_features": "out_dim output_dim outputs output_size classes",
    "input_shape": "in_features input_size input_dim in_channels in_shape",
    "activation": "act activation_fn activation_function nonlinearity act_fn",
    "units": "out_features hidden_size features neurons width size embedding_dim output_dim",
    "filters": "out_channels channels features",
    "kernel_size": "kernel kernel_shape window",
    "pool_size": "kernel_size window window_shape",
    "padding": "pad pads",
    "bias": "use_bias with_bias",
    "vocab_size": "embeddings input_dim vocabulary_size tokens",
    "eps": "epsilon",
    "rate": "p prob dropout drop beta inverse_scale",
    "concentration": "alpha shape a",
    "scale": "sigma sd std stddev noise noise_std noise_scale noise_sd b standard_deviation",
    "mean": "loc mu location y_pred pred prediction predictions",
    "df": "nu dof degrees_of_freedom",
    "min_sd": "min_std min_scale",
    "noise": "sigma noise_std noise_sd noise_scale",
    "prior_scale": "prior prior_std prior_sd prior_sigma sigma_prior",
    "prior": "prior_scale prior_std prior_sd prior_variance prior_precision l2 weight_decay priors",
    "likelihood": "log_likelihood loss noise noise_model noise_std noise_scale noise_sd sigma",
    "target": "density posterior log_prob logp log_prob_fn logdensity_fn target_log_prob_fn model "
    "potential_fn potential log_density log_posterior",
    "fn": "f func function log_prob log_density logp target",
    "model": "network net bnn module architecture",
    "module": "network net bnn model",
    "x": "inputs input features X_train train_x Xs data X_test",
    "y": "targets target labels label outputs y_train train_y y_true",
    "label": "y_true y labels target y_test",
    "score": "y_score y_prob probs pred y_pred",
    "probs": "y_prob y_proba y_score y_pred prob p pred prediction",
    "p": "y_pred pred prediction predictions samples",
    "sample_weight": "weights weight sample_weights row_weights",
    "standardize": "standardise normalize normalise scale_data whiten",
    "subset": "subset_of_weights",
    "dtype": "data_type float_type",
    "method": "algorithm inference solver sampler",
    "coverage": "level confidence confidence_level prob hdi ci credible_mass mass",
    "interval": "coverage level confidence confidence_level hdi ci",
    "q": "quantiles quantile probs percentile",
    "quantiles": "q quantile probs percentiles",
    "return_std": "return_sd std return_var",
    "keep": "keep_draws save_draws store_samples",
    "save_draws": "keep keep_draws keep_samples store_samples save_samples",
    "save_warmup": "keep_warmup keep_burnin",
    "predict_at": "x_test x_new test_inputs",
    "path": "file filename fname filepath folder",
}
# Where another name is not enough: names (those of `_OTHERS` too), callables, and advice, which
# has the name as {0} and the class as {1}. Callables: a function, a method of any class, Class() or
# Class, which has the constructor and all methods.
_FITTERS = "BBB MCDropout LaplaceApproximation SWAG DeepEnsemble"
_RUNS = f"Sampler {_FITTERS}"
_CORES = "cores blas_cores jobs workers threads parallel parallel_chains chain_method"
_OPTION = "use options={{'{0}': ...}} in {1}(...)"
_HINTS = (
    ("quantiles", "Sampler", "use predict_at= in sample(...), then draws.prediction.quantile(q)"),
    ("quantiles", "BNNRegressor.predict", "use predict_quantiles(X, quantiles)"),
    ("resume", "load", "load it, then resume it with sample(...)"),
    ("chains seed", "discretization_bias", "the draws have it"),
    ("x value values", "cdf crps log_likelihood", "use y="),
    ("alpha", "interval credible_interval predict_interval", "use coverage= with 1 - alpha"),
    ("alpha", "BNNRegressor.predict", "use interval= with 1 - alpha"),
    ("alpha", "predict_quantiles", "use quantiles= with both ends"),
    ("randomize randomise", "HMC()", "use randomize_length=, True for 'uniform', False for None"),
    ("num_leapfrog_steps trajectory_length", "MCLMC", "use decoherence_length= in MCLMC(...)"),
    ("step_size_jitter num_leapfrog_steps trajectory_length", "Sampler", "use {0}= in HMC(...)"),
    ("max_tree_depth", "Sampler", "use {0}= in NUTS(...)"),
    ("batch_size", "HMC NUTS MCLMC", "use {0}= in SGLD(...), {1} takes all rows"),
    ("adapt_step_size", "Sampler", "use step_size='auto' in {1}(...)"),
    ("adapt_mass_matrix", "HMC NUTS MCLMC", "use inverse_mass_matrix='adapt' in {1}(...)"),
    ("dense_mass", "HMC NUTS MCLMC", "use inverse_mass_matrix= in {1}(...), which is diagonal"),
    ("discard_tuned_samples", "Sampler", "use save_warmup= in sample(...), its opposite"),
    (_CORES, f"{_RUNS} BNN", "use rb.set_num_threads(n), chains share all cores already"),
    ("num_draws num_samples", "DeepEnsemble", "use num_draws= in draws(...) of the fit"),
    ("num_draws num_samples", _FITTERS, "use num_draws= in predict(...) of the fit"),
    ("chains members", "BBB MCDropout LaplaceApproximation", "use members= in DeepEnsemble(...)"),
    ("members", "BNN", "use chains= in {1}(...)"),
    ("standardize", "BNN", "inputs are always standardized"),
    ("alpha l2 weight_decay", "BNN", "use prior_scale= in {1}(...), a small sd decays more"),
    ("step_size target_accept max_tree_depth trajectory_length friction", "BNN", _OPTION),
    ("num_leapfrog_steps inverse_mass_matrix desired_energy_var schedule", "BNN", _OPTION),
    ("prior_scale prior_std prior_sd", "Posterior() posterior", "use prior=rb.Normal({0})"),
    ("prior_variance", "Posterior() posterior", "use prior=rb.Normal({0} ** 0.5)"),
    ("prior_precision", "Posterior() posterior", "use prior=rb.Normal({0} ** -0.5)"),
    ("l2 weight_decay", "Posterior() posterior", "use prior=rb.Normal(sd), a small sd decays more"),
    ("sigma noise_std noise_scale", "Posterior() posterior", "use likelihood=rb.Gaussian({0})"),
    ("x y prior likelihood temperature standardize", _RUNS, "use {0}= in Posterior(...)"),
    ("likelihood_temperature sample_weight dtype", _RUNS, "use {0}= in Posterior(...)"),
)
# Former names of the package and of its classes, and what others call a method; "": it is gone.
_FORMER = {"mean_interval": "credible_interval", "mean_quantile": "credible_quantile"}
_LOAD = dict.fromkeys(("load_draws", "load_fit", "open_run"), "rb.load")
ATTRIBUTES = {
    "ribbit": {"StepBias": "rb.DiscretizationBias", **_LOAD},
    "Draws": {"judged": "monitored"},
    "Prediction": {**_FORMER, "quantile_rank_error": ""},
    "Summary": {"verdict": "message"},
    "MCLMC": {"step_bias": "discretization_bias"},
    "Sampler": {"run": "sample", "fit": "sample"},
    "Fit": {"sample": "draws"},
    **{one: {"sample": "fit(...).draws"} for one in _FITTERS.split()},
}
VALUES = {"minimal_norm": "mclachlan", "isokinetic_mclachlan": "mclachlan"}


def explain(names: dict[str, Any]) -> None:
    """Wrap the public functions of a module so that errors explain a keyword (0.1 us a call)."""
    for name in names["__all__"]:
        found = names[name]
        if isinstance(found, FunctionType) and found.__module__.startswith("ribbit."):
            names[name] = _explained(found)
            setattr(sys.modules[found.__module__], found.__name__, names[name])
        elif isinstance(found, type) and not issubclass(found, tuple | BaseException):
            for part in found.__mro__:
                if part.__module__.startswith("ribbit."):
                    _explain_methods(part)


def _explain_methods(cls: type) -> None:
    for name, value in list(vars(cls).items()):
        # A function with attributes is wrapped already, or compared with itself somewhere.
        if (
            isinstance(value, FunctionType)
            and not value.__dict__
            and (name == "__init__" or not name.startswith("_"))
        ):
            setattr(cls, name, _explained(value))
    if cls.__name__ in ATTRIBUTES and "__getattr__" not in vars(cls):
        cls.__getattr__ = _missing  # type: ignore[attr-defined]


def _missing(self: Any, name: str) -> Any:
    """Raise the error of a missing attribute, with the name here of a former one."""
    kinds = [ATTRIBUTES.get(one.__name__, {}) for one in type(self).__mro__]
    new = next((kind[name] for kind in kinds if name in kind), None)
    if new is None:  # raises the error of a property, or the usual one
        return object.__getattribute__(self, name)
    advice = f"use {new}" if new else "it is gone"
    raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: {advice}")


def _explained(function: FunctionType) -> Callable[..., Any]:
    method = "." in function.__qualname__.rpartition("<locals>.")[2]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # of its own
        _refuse(function, method, args, kwargs)

    return call


def _refuse(function: Any, method: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    """Raise TypeError for the arguments of a call that Python has refused."""
    cls = type(args[0]) if method and args else None
    order = getattr(cls, "_order", "")
    name = function.__name__
    title = name if cls is None else cls.__name__
    if cls is not None and name != "__init__":
        title += f".{name}"
    parameters = list(inspect.signature(function).parameters.values())[int(method) :]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    unknown = [key for key in kwargs if key not in named]
    count = len(args) - int(method)
    if unknown:
        told = {key: advice(key, named, cls, function.__name__) for key in unknown}
        parts = [f"unknown {key}=: {text}" for key, text in told.items() if text]
        if others := ", ".join(f"{key}=" for key, text in told.items() if not text):
            known = ", ".join(f"{one}=" for one in named) or "no arguments"
            parts.append(f"unknown {others}: expected {known}")
        raise TypeError(f"[{title}] {'; '.join(parts)}")
    if count > len(plain):
        values = f"{len(plain)} argument{'' if len(plain) == 1 else 's'} without a name"
        values += f" ({', '.join(plain)})" if plain else ""
        rest = ", ".join(f"{one}=" for one in named[len(plain) :])
        advice_ = order or (f": {rest} by name" if rest else "")
        raise TypeError(f"[{title}] expected {values}, got {count}{advice_}")
    twice = [key for key in plain[:count] if key in kwargs]
    if twice:
        raise TypeError(
            f"[{title}] expected {twice[0]} once, got it twice, with a name and without{order}"
        )
    needed = [p.name for p in parameters if p.default is p.empty and p.name in named[count:]]
    missing = [key for key in needed if key not in kwargs]
    raise TypeError(f"[{title}] expected {', '.join(missing)}, got none")


def advice(key: str, named: Iterable[str], cls: type | None, name: str) -> str:
    """Return what to use for the keyword `key` of a method, whose arguments are `named`, or ""."""
    from difflib import get_close_matches

    plain, there = _plain(key), _elsewhere(cls, name)
    here = {_plain(one): f"{one}=" for one in named}
    if text := _hint(key, cls, name):
        return text
    others = [one for one, also in _OTHERS.items() if plain in map(_plain, [one, *also.split()])]
    for one in (key, *others):
        if _plain(one) in here:
            return f"use {here[_plain(one)]}"
    for one in (key, *others):
        if text := _hint(one, cls, name):
            return text
        if _plain(one) in there:
            return f"use {there[_plain(one)]}"
    near = get_close_matches(plain, names := there | here, n=1, cutoff=0.83)
    return f"did you mean {names[near[0]]}?" if near else ""


def _hint(key: str, cls: type | None, name: str) -> str:
    """Return the advice of `_HINTS` for a keyword of a method, or ""."""
    places = {name}
    for one in () if cls is None else cls.__mro__:
        own = f"{one.__name__}()" if name == "__init__" else f"{one.__name__}.{name}"
        places |= {one.__name__, own}
    for words, where, text in _HINTS:
        if places.intersection(where.split()):
            for word in words.split():
                if _plain(word) == _plain(key):
                    return text.format(word, cls and cls.__name__)
    return ""


def _plain(name: str) -> str:
    return re.sub("^(num_|n_)|(_rate|_prob)$|_", "", name).lower()


def _elsewhere(cls: type | None, name: str) -> dict[str, str]:
    """Return arguments of the constructor and the main method of what runs, with their places."""
    runs = hasattr(cls, "sample") or hasattr(cls, "fit")
    if not (cls and runs and name in ("__init__", "sample", "fit")):
        return {}
    main = {"fit": "fit(...)", "sample": "sample(...)", "__init__": f"{cls.__name__}(...)"}
    return {
        _plain(key): f"{key}= in {place}"
        for one, place in main.items()
        if one != name and hasattr(cls, one)
        for key in list(inspect.signature(getattr(cls, one)).parameters)[1:]
    }
