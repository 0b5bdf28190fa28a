"""Errors for keywords that a function does not have: they give the name here."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn

__all__ = ["ATTRIBUTES", "bound", "explain"]

# Names here, each with the names that other libraries, or other functions here, have for it.
_OTHERS = {
    "num_draws": "draws num_samples n_samples nsamples samples n_draws ndraws num_results iter "
    "iter_sampling niter n_iter num_iter num_iterations",
    "draws": "num_draws num_samples n_samples nsamples samples n_draws ndraws num_results iter "
    "iter_sampling niter",
    "chains": "num_chains n_chains nchains chain",
    "warmup": "num_warmup n_warmup warmup_steps num_warmup_steps iter_warmup burn_in burnin burn "
    "num_burnin_steps num_burnin n_burn nburn discard tune num_tune",
    "thin": "thinning thin_by num_thin keep_every",
    "seed": "random_state random_seed rng_seed rng rng_key key prng_key generator",
    "random_state": "seed random_seed rng_seed rng rng_key key generator",
    "target_accept": "target_acceptance target_accept_prob target_accept_rate acceptance_rate "
    "target_acceptance_rate adapt_delta delta accept_prob",
    "step_size": "epsilon eps stepsize step lr learning_rate step_scale scaling",
    "learning_rate": "lr eta step_size learning_rate_init stepsize eps epsilon",
    "swag_learning_rate": "swa_lr swag_lr swa_learning_rate",
    "num_leapfrog_steps": "num_leapfrog n_leapfrog leapfrog_steps n_leapfrog_steps L "
    "num_integration_steps steps_per_sample num_steps n_steps",
    "max_num_leapfrog_steps": "max_steps max_leapfrog_steps",
    "trajectory_length": "path_length path_len traj_length integration_time int_time",
    "randomize_length": "randomize randomise",
    "step_size_jitter": "jitter stepsize_jitter",
    "desired_energy_var": "energy_variance desired_energy_variance desired_energy_var_start "
    "desired_energy_var_end",
    "decoherence_length": "momentum_decoherence_length decoherence",
    "max_tree_depth": "max_treedepth max_depth treedepth tree_depth max_num_doublings",
    "inverse_mass_matrix": "mass_matrix inverse_mass inv_mass_matrix inv_mass metric inv_metric "
    "mass step_metric",
    "friction": "alpha momentum_decay gamma",
    "batch_size": "batchsize batch bs minibatch_size mini_batch_size subsample_size",
    "num_epochs": "epochs n_epochs nepochs max_epochs max_iter n_iter num_iter num_iterations "
    "num_steps n_steps iterations",
    "epochs": "num_epochs n_epochs nepochs max_epochs max_iter n_iter num_iter iterations",
    "members": "num_members n_members ensemble_size num_models n_models num_networks n_networks "
    "n_estimators num_ensembles size",
    "num_samples": "n_samples num_particles mc_samples samples",
    "progress": "progress_bar progressbar show_progress verbose callback callbacks tqdm",
    "init": "init_params initial_params initvals inits initial_position initial_positions "
    "initial_state current_state init_state start starts x0 p0 warm_start",
    "resume": "resume_from continue_from post_warmup_state checkpoint",
    "store": "folder dir directory save_path checkpoint_dir backend output_dir trace",
    "executor": "n_jobs cores pool n_workers num_workers workers parallel chain_method",
    "max_seconds": "timeout time_limit max_time maxtime time",
    "until": "stop stop_when criterion stopping",
    "hidden": "hidden_layer_sizes hidden_sizes hidden_dims hidden_units hidden_size widths layers "
    "units",
    "in_features": "in_dim input_dim n_features num_features num_inputs n_inputs in_channels "
    "input_size",
    "out_features": "out_dim output_dim num_outputs n_outputs output_size num_classes n_classes",
    "input_shape": "in_features input_size input_dim in_channels in_shape",
    "activation": "act activation_fn activation_function nonlinearity act_fn",
    "name": "activation function",
    "units": "out_features n_units num_units hidden_size features neurons width size "
    "embedding_dim output_dim",
    "filters": "out_channels num_filters n_filters channels features",
    "kernel_size": "kernel kernel_shape window",
    "pool_size": "kernel_size window window_shape",
    "stride": "strides subsample",
    "padding": "pad pads",
    "bias": "use_bias with_bias",
    "dilation": "dilation_rate",
    "vocab_size": "num_embeddings input_dim vocabulary_size n_tokens",
    "groups": "num_groups n_groups",
    "eps": "epsilon",
    "rate": "p prob dropout dropout_rate drop_rate dropout_prob beta inverse_scale",
    "concentration": "alpha shape a",
    "scale": "sigma sd std stddev stdev scale_ noise noise_std noise_scale noise_sd b "
    "standard_deviation",
    "mean": "loc mu location",
    "df": "nu dof degrees_of_freedom",
    "min_sd": "min_std min_scale",
    "noise": "sigma noise_std noise_sd noise_scale",
    "prior_scale": "prior prior_std prior_sd prior_sigma sigma_prior weight_decay alpha",
    "prior": "prior_scale prior_std prior_sd prior_sigma priors weight_decay",
    "likelihood": "log_likelihood loss noise noise_model",
    "target": "density posterior log_prob logprob logp log_prob_fn logdensity_fn "
    "target_log_prob_fn potential_fn potential log_density",
    "fn": "f func function log_prob log_density logp target",
    "model": "network net bnn module architecture",
    "module": "network net bnn model",
    "x": "X inputs input features X_train x_train Xs data X_test x_test",
    "X": "x inputs input features X_train x_train data",
    "y": "Y targets target labels label outputs y_train",
    "sample_weight": "weights weight sample_weights row_weights",
    "standardize": "standardise normalize normalise scale_data whiten",
    "dtype": "data_type float_type",
    "method": "algorithm inference solver sampler",
    "coverage": "level confidence confidence_level alpha prob hdi_prob credible_mass mass",
    "q": "quantiles quantile probs percentile",
    "return_std": "return_sd std return_var",
    "keep": "keep_draws save_draws store_samples",
    "save_draws": "keep keep_draws keep_samples store_samples save_samples",
    "save_warmup": "keep_warmup discard_tuned_samples keep_burnin",
    "predict_at": "x_test X_test x_new test_inputs",
    "path": "file filename fname file_name folder",
}
# Former names of attributes of the package and its classes, with the new names.
ATTRIBUTES = {
    "StepBias": "DiscretizationBias",
    "load_draws": "load",
    "load_fit": "load",
    "mean_interval": "credible_interval",
    "mean_quantile": "credible_quantile",
    "open_run": "load",
    "step_bias": "discretization_bias",
}
_HERE: dict[str, list[str]] = {}
for _ours, _words in _OTHERS.items():
    for _word in _words.split():
        _HERE.setdefault(_word, []).append(_ours)


def explain(names: dict[str, Any]) -> None:
    """Wrap the public functions and methods of a module: errors give the name here of a keyword.

    A call costs 0.1 us more.
    """
    for name in names["__all__"]:
        found = names[name]
        if isinstance(found, FunctionType) and found.__module__.startswith("ribbit."):
            names[name] = _explained(found)
            setattr(sys.modules[found.__module__], found.__name__, names[name])
        elif isinstance(found, type) and not issubclass(found, tuple | BaseException):
            for part in found.__mro__:
                if part.__module__.startswith("ribbit."):
                    _explain_methods(part)
                    _explain_attributes(part)


def _explain_methods(cls: type) -> None:
    for name, value in list(vars(cls).items()):
        # A function with attributes is wrapped already, or compared with itself somewhere.
        if (
            isinstance(value, FunctionType)
            and not value.__dict__
            and (name == "__init__" or not name.startswith("_"))
        ):
            setattr(cls, name, _explained(value))


def _explain_attributes(cls: type) -> None:
    """Have the error for an attribute's former name give its name here."""
    here = {old: new for old, new in ATTRIBUTES.items() if new in vars(cls)}
    if not here or "__getattr__" in vars(cls):
        return

    def missing(self: Any, name: str) -> Any:
        if name not in here:  # raises the error of a property, or the usual one
            return object.__getattribute__(self, name)
        text = f"{type(self).__name__!r} object has no attribute {name!r}: use {here[name]}"
        raise AttributeError(text)

    cls.__getattr__ = missing  # type: ignore[attr-defined]


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


def bound(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
    """Raise an error, under another method's `name`, if a later call of a method would fail."""
    try:
        inspect.signature(method).bind(*args, **kwargs)
        return
    except TypeError:
        pass
    _refuse(method.__func__, True, (method.__self__, *args), kwargs, name)


def _refuse(
    function: Any,
    method: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str | None = None,
) -> NoReturn:
    """Raise TypeError for the arguments of a call that Python has refused."""
    cls = type(args[0]) if method and args else None
    order = getattr(cls, "_order", "")
    name = name or function.__name__
    title = name if cls is None else cls.__name__
    if cls is not None and name != "__init__":
        title += f".{name}"
    parameters = list(inspect.signature(function).parameters.values())[int(method) :]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    unknown = [key for key in kwargs if key not in named]
    count = len(args) - int(method)
    if unknown:
        wanted, advice = zip(*(_wanted(key, named, cls, name) for key in unknown), strict=True)
        got = ", ".join(f"{key}=" for key in unknown)
        raise TypeError(
            f"[{title}] expected {', '.join(dict.fromkeys(wanted))}, got {got}{advice[0]}"
        )
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


def _wanted(key: str, named: list[str], cls: type | None, name: str) -> tuple[str, str]:
    """Return the keyword to use instead of `key`, and advice."""
    from difflib import get_close_matches

    elsewhere = _elsewhere(cls, name)
    others = _HERE.get(key, [])
    for one in others:
        if one in named:
            return f"{one}=", ""
    for one in (key, *others):
        if one in elsewhere:
            return f"{one}= in {elsewhere[one]}", ""
    for known in (named, list(elsewhere)):
        near = get_close_matches(key, known, n=1, cutoff=0.7)
        if near:
            place = "" if known is named else f" in {elsewhere[near[0]]}"
            return f"{near[0]}={place}", f": did you mean {near[0]}?"
    return f"only {', '.join(f'{one}=' for one in named)}" if named else "no arguments", ""


def _elsewhere(cls: type | None, name: str) -> dict[str, str]:
    """Return the keywords of the constructor and the main methods of a class, and their places."""
    found: dict[str, str] = {}
    for one in ("__init__", "sample", "fit", "predict"):
        function = getattr(cls, one, None)
        if one == name or not isinstance(function, FunctionType):
            continue
        place = f"{cls.__name__}(...)" if one == "__init__" else f"{one}(...)"  # type: ignore[union-attr]
        for key in list(inspect.signature(function).parameters)[1:]:
            found.setdefault(key, place)
    return found
