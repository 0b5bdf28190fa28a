"""What the regressor and the classifier share: the parameters, the fit, the predictions."""

# Shapes: N rows, D columns, K outputs.

from __future__ import annotations

import dataclasses
import inspect
import os
import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ribbit._arrays import checks, columns
from ribbit._arrays.keywords import advice
from ribbit._arrays.warning import warn
from ribbit.errors import ConvergenceWarning, FitWarning, ScaleWarning
from ribbit.models.layers import Activation, Dense, Dropout
from ribbit.models.model import Model
from ribbit.results.prediction import Prediction
from ribbit.results.summary import NOT, Summary
from ribbit.sklearn import methods, rows
from ribbit.targets.likelihoods import Likelihood
from ribbit.targets.posterior import Posterior
from ribbit.targets.prior_base import PriorLike
from ribbit.targets.priors import Normal

__all__ = ["BNN"]

_MOST_ROWS = 1e12  # that weights may stand for: squares of their gradients overflow in float32


class BNN(BaseEstimator):
    """Base class of the estimators."""

    hidden: int | tuple[int, ...]
    activation: str
    method: str
    prior_scale: float | str
    draws: int | None
    chains: int
    warmup: int | None
    thin: int | None
    epochs: int | None
    learning_rate: float | None
    batch_size: int | None
    dropout_rate: float
    early_stopping: bool
    validation_fraction: float
    options: dict[str, Any] | None
    store: str | os.PathLike[str] | None
    max_seconds: float | None
    random_state: Any
    verbose: bool

    def _set(self, parameters: dict[str, Any]) -> None:
        """Set the parameters of a constructor, given as its local variables."""
        for name, value in parameters.items():
            if name != "self":
                setattr(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the parts that predict: copies hold no training rows."""
        state = dict(super().__getstate__())
        state.pop("posterior_", None)
        for key in ("draws_", "approximation_"):
            for part in ("predictive", "target"):
                of_rows = getattr(state.get(key), part, None)
                if of_rows is not None:
                    network = getattr(of_rows, "network_predictive", of_rows)
                    state[key] = dataclasses.replace(state[key], **{part: network})
        return state

    def set_params(self, **params: Any) -> BNN:
        """Set parameters; errors give the name here of a parameter."""
        for name in params:
            if name not in self._get_param_names() and (hint := self._advice(name)):
                title = f"{type(self).__name__}.set_params"
                raise ValueError(f"[{title}] unknown {name}=: {hint}")
        found: BNN = super().set_params(**params)
        return found

    def _advice(self, name: str) -> str:
        """Return what to use for an unknown parameter, or ""."""
        return advice(name, list(self._get_param_names()), type(self), "__init__")

    def __getattr__(self, name: str) -> Any:
        """Say why a copy has no posterior; called for attributes that are not there."""
        kind = type(self).__name__
        if name == "posterior_" and "draws_" in vars(self):
            raise AttributeError(
                f"[{kind}] posterior_ holds the training rows, which copies by pickle, joblib or "
                "copy.deepcopy leave out: take it from the estimator that was fitted, or fit again"
            )
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")

    def _plan(self, name: str) -> methods.Plan:
        """Return the checked parameters of the method."""
        if self.draws is not None:
            checks.integer(name, "draws", self.draws, minimum=1, maximum=2**31)
        options = (
            {} if self.options is None else dict(checks.mapping(name, "options", self.options))
        )
        plan = methods.Plan(
            function=name,
            method=self.method,
            chains=checks.integer(name, "chains", self.chains, minimum=1, maximum=2**31),
            draws=self.draws,
            warmup=self.warmup,
            thin=self.thin,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            early_stopping=checks.boolean(name, "early_stopping", self.early_stopping),
            validation_fraction=self.validation_fraction,
            options=options,
            store=self.store,
            max_seconds=self.max_seconds,
            progress=None if self._shown(name) else False,
        )
        plan.check()
        kind = methods.kind_of(self.method)
        known = [one for one in inspect.signature(kind).parameters if one != "target"]
        for option in options:
            if option not in known:
                hint = advice(str(option), known, kind, "options") or self._advice(str(option))
                hint = hint or f"expected options of {kind.__name__}, {', '.join(known)}"
                raise ValueError(f"[{name}] unknown option {option!r}: {hint}")
        return plan

    def _shown(self, name: str) -> bool:
        """Whether progress is shown; whole numbers are scikit-learn's way to say so."""
        if isinstance(self.verbose, int | np.integer):
            return bool(self.verbose)
        return checks.boolean(name, "verbose", self.verbose)

    def _network(self, name: str, inputs: int, outputs: int) -> Model:
        """Return the network, with a Dropout layer behind each activation where masks are asked."""
        layers: list[Any] = []
        rate = checks.fraction(name, "dropout_rate", self.dropout_rate)
        masked = self.method == "dropout"
        for width in checks.widths(name, self.hidden):
            layers += [Dense(width), Activation(self.activation)]
            if masked:
                layers.append(Dropout(rate))
        if masked and not layers:
            raise ValueError(f"[{name}] expected a hidden layer with method='dropout', got none")
        return Model((*layers, Dense(outputs)), input_shape=(inputs,))

    def _prior(self, name: str, network: Model) -> PriorLike:
        """Return the prior of the network's weights."""
        del network
        return Normal(checks.positive(name, "prior_scale", self.prior_scale), fan_in=True)

    def _validated(self, name: str, x: Any, y: Any = None, **how: Any) -> Any:
        """Return checked arrays; an error names the column and row."""
        rows.numbers(name, "X", x)
        if how and y is not None:
            rows.target(name, y, numeric=bool(how.get("y_numeric")))
        try:
            if how:
                return validate_data(self, x, y, dtype=np.float64, ensure_min_samples=2, **how)
            return validate_data(self, x, reset=False, dtype=np.float64)
        except (TypeError, ValueError, RuntimeError, MemoryError) as error:
            # scikit-learn's own sentence goes with ours: others look for it.
            kind = TypeError if isinstance(error, TypeError) else ValueError
            found = rows.fault(x)
            if found is not None:
                expected, advice = found
                kind = ValueError if expected.startswith("no ") else kind
                raise kind(f"[{name}] expected {expected}: {advice}: {error}") from error
            given = f"X {checks.summary(x)}" + (f", y {checks.summary(y)}" if how else "")
            expected = "X (N, D) and y of N rows" if how else "X (N, D)"
            raise kind(f"[{name}] expected {expected}, got {given}: {error}") from error

    def _fit(
        self,
        name: str,
        x: Any,
        y: Any,
        weights: Any,
        outputs: int,
        likelihood: Likelihood,
    ) -> None:
        """Fit to rows (N, D), targets (N,) or (N, K) and weights of `_counted`."""
        plan = self._plan(name)
        network = self._network(name, x.shape[1], outputs)
        prior = self._prior(name, network)
        seed = _seed(name, self.random_state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScaleWarning)  # `_counted` has warned
            target = Posterior(
                network,
                x,
                y,
                prior=prior,
                likelihood=likelihood,
                sample_weight=weights,
                standardize=True,
            )
        draws, fit = methods.run(plan, target, x, y, seed)
        self.posterior_, self.draws_, self.approximation_ = target, draws, fit
        self.n_draws_: int = draws.positions.shape[0] * draws.positions.shape[1]
        found: Summary = draws.summary() if fit is None else fit.summary()
        self.summary_, self.converged_ = found, found.converged
        if found.outcome == NOT and fit is None:
            warn(f"[{name}] {found.message}", ConvergenceWarning)
        elif found.outcome == NOT:
            warn(f"[{name}] {found.message}", FitWarning)

    def _predicted(self, name: str, x: Any) -> Prediction:
        """Return what the draws say at rows in the user's units."""
        check_is_fitted(self)
        x = self._validated(name, x)
        if self.method == "laplace" and self.approximation_ is not None:
            found: Prediction = self.approximation_.predict(x, self.n_draws_)
            return found
        return self.draws_.predict(x)

    def _weights(self, name: str, x: Any, sample_weight: Any, of_class: Any = None) -> Any:
        """Return checked weights (N,) of rows, times those of their class, or None."""
        # Rows that rounding loses next to others, in float32 too, weigh 0.
        if sample_weight is None and of_class is None:
            return None
        weights = np.ones(len(x))
        if sample_weight is not None:
            rows.numbers(name, "sample_weight", sample_weight)
            try:
                weights = _check_sample_weight(sample_weight, x, dtype=np.float64)
            except (TypeError, ValueError, RuntimeError, MemoryError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                got = checks.summary(sample_weight)
                raise kind(
                    f"[{name}] expected sample_weight of {len(x)} numbers, got {got}: {error}"
                ) from error
        what = "sample_weight" if of_class is None else "sample_weight times class_weight"
        with np.errstate(over="ignore", invalid="ignore"):
            weights = weights if of_class is None else weights * of_class
            single, total = weights.astype(np.float32), weights.sum()
        if not (weights >= 0).all():
            row = int(np.argmin(weights >= 0))
            raise ValueError(f"[{name}] expected {what} >= 0, got {weights[row]:.6g} in row {row}")
        if not total <= _MOST_ROWS:
            raise ValueError(
                f"[{name}] expected {what} of a sum <= {_MOST_ROWS:g}, since weights say how many "
                f"times a row counts, got {total:.6g}: divide them by a number"
            )
        if not (single > 0).any():
            raise ValueError(
                f"[{name}] expected {what} above 0 in float32, got {weights.max():.6g} at most"
            )
        return np.where(columns.counted(weights) & (single > 0), weights, 0.0)

    def _counted(self, name: str, x: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
        """Return rows in an order of their own, and weights or None if copies state them."""
        # Warns of cells that are far out, by the numbers of the rows as they came.
        titles = getattr(self, "feature_names_in_", None)
        for what, array in (("X", x), ("y", y)):
            if array.dtype.kind == "f":  # no labels
                scale = columns.spread(array, weights)[1]
                named = titles if what == "X" else None
                columns.warn_of_far_cells(name, what, array, scale, weights, titles=named)
        order = rows.ordered(x, y, weights)
        if weights is not None:
            counts = rows.copies(weights)
            if counts is None:
                order = order[weights[order] > 0]
                weights = weights[order]
            else:
                order, weights = np.repeat(order, counts[order]), None
        return np.ascontiguousarray(x[order]), np.ascontiguousarray(y[order]), weights


def _seed(name: str, random_state: Any) -> int:
    """Return a key of Ribbit's random numbers: a whole number is one itself."""
    if isinstance(random_state, np.random.Generator | np.random.SeedSequence):
        return checks.seed(name, random_state)
    if random_state is not None and not hasattr(random_state, "randint"):
        return checks.integer(name, "random_state", random_state, minimum=0, maximum=2**64 - 1)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"[{name}] expected random_state as an integer, a RandomState, a Generator, a "
            f"SeedSequence or None, got {checks.summary(random_state)}"
        ) from error
