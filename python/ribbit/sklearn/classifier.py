"""A Bayesian network as a classifier of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from ribbit._arrays import checks
from ribbit.models.model import Model
from ribbit.sklearn import methods, rows
from ribbit.sklearn.estimator import BNN, _seed
from ribbit.targets.likelihoods import Categorical
from ribbit.targets.prior_base import PriorLike
from ribbit.targets.priors import HalfNormal, Normal

__all__ = ["BNNClassifier"]

_WIDEST = 8.0  # scale of the half-normal prior of the sd of the output layer's weights
# Sd of its biases, log odds of classes. Under the learned sd they made a funnel: where that nears 0
# a bias stays as the data want it, so that its standardised position runs away.
_ODDS = 3.0
_KNOWN = 2.0  # sd of every layer, for methods that do not learn it


class BNNClassifier(ClassifierMixin, BNN):
    """A Bayesian neural network that predicts class probabilities.

    Columns of X are standardised inside. A fit does not depend on the order of the rows.

    Parameters
    ----------
    hidden : int or sequence of int, default (50,)
        Width of the hidden layer, or widths of several; () is a linear model.
    activation, method
        As in :class:`BNNRegressor`.
    prior_scale : float or "auto", default "auto"
        Sd of the normal prior of every weight, divided by the root of its layer's inputs, and of
        every bias. "auto" with "mclmc", "hmc" and "nuts" is 1 in the hidden layers, and 3 for the
        biases of the output layer. The chains learn the sd of the output layer's weights with the
        weights, from a half-normal prior of scale 8. It becomes large if the columns separate the
        classes, and small if labels are noisy. "auto" with other methods is 2 in every layer.
    draws, chains, warmup, thin, epochs, learning_rate, batch_size, dropout_rate
        As in :class:`BNNRegressor`.
    early_stopping, validation_fraction, options, store, max_seconds
        As in :class:`BNNRegressor`.
    class_weight : dict or "balanced", optional
        Weight of a row by its class; multiplied by `sample_weight`.
    random_state, verbose
        As in :class:`BNNRegressor`.

    Attributes
    ----------
    classes_ : (K,) array
        The labels: integers, strings or bool, as in y.
    posterior_, draws_, approximation_, summary_, converged_, n_draws_
        As for :class:`BNNRegressor`.
    n_features_in_, feature_names_in_
        As for :class:`BNNRegressor`.

    Raises
    ------
    TypeError, ValueError
        From ``fit``: for wrong parameters or data, columns that are not numbers (the message names
        them), sparse data, or a single class in y.

    Warns
    -----
    ConvergenceWarning, FitWarning, ScaleWarning
        As for :class:`BNNRegressor`.

    References
    ----------
    Neal (1996), "Bayesian learning for neural networks", section 4.1, for a learned sd of the
    weights of each layer.

    Gelman (2006), "Prior distributions for variance parameters in hierarchical models", section 7,
    for half-normal priors of such an sd.

    Examples
    --------
    >>> from ribbit.sklearn import BNNClassifier
    >>> X, y = rb.datasets.two_moons(100, seed=0)
    >>> model = BNNClassifier(method="ensemble", epochs=20, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:3]).shape
    (3, 2)
    """

    classes_: Any

    def __init__(
        self,
        hidden: int | tuple[int, ...] = (50,),
        *,
        activation: str = "tanh",
        method: str = "mclmc",
        prior_scale: float | str = "auto",
        draws: int | None = None,
        chains: int = 4,
        warmup: int | None = None,
        thin: int | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        dropout_rate: float = 0.1,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        options: dict[str, Any] | None = None,
        store: Any = None,
        max_seconds: float | None = None,
        class_weight: Any = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._set(locals())

    def _prior(self, name: str, network: Model) -> PriorLike:
        """Return the prior of the network: "auto" learns the sd of the output layer's weights."""
        if not isinstance(self.prior_scale, str):
            return super()._prior(name, network)
        checks.choice(name, "prior_scale", self.prior_scale, ("auto",))
        if not methods.learns_scales(self.method):
            return Normal(_KNOWN, fan_in=True)
        last = len(network.layers) - 1
        return {
            f"{last}.weight": Normal(HalfNormal(_WIDEST), fan_in=True),
            f"{last}.bias": Normal(_ODDS),
            "*": Normal(1.0, fan_in=True),
        }

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BNNClassifier:
        """Sample or fit the posterior of the network, and return self.

        Parameters
        ----------
        X : (N, D) array or frame
            Numbers; column names of pandas and polars frames are kept.
        y : (N,) array
            Labels: integers, strings or bool.
        sample_weight : (N,) array, optional
            Weight of each row, >= 0, in the likelihood and in the means and sds of columns.
            Integers that average at most 4 are treated as copies of rows.

        Returns
        -------
        BNNClassifier
        """
        name = "BNNClassifier.fit"
        X, y = self._validated(name, X, y, multi_output=False)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        own = None
        if self.class_weight is not None:
            if isinstance(self.class_weight, str):
                checks.choice(name, "class_weight", self.class_weight, ("balanced",))
            elif not isinstance(self.class_weight, Mapping):
                got = checks.summary(self.class_weight)
                raise TypeError(
                    f"[{name}] expected class_weight as 'balanced' or a dict by class, got {got}"
                )
            try:
                own = compute_sample_weight(self.class_weight, y)
            except (TypeError, ValueError) as error:
                got = checks.summary(self.class_weight)
                raise ValueError(
                    f"[{name}] expected class_weight of classes of y, got {got}: {error}"
                ) from error
        weights = self._weights(name, X, sample_weight, own)
        counted = y if weights is None else y[weights > 0]
        self.classes_ = np.unique(counted)
        if len(self.classes_) < 2:
            weighed = " in rows that sample_weight and class_weight count"
            where = "" if len(counted) == len(y) else weighed
            raise ValueError(
                f"[{name}] expected y of two classes or more{where}, got one class: "
                f"{self.classes_.tolist()}"
            )
        codes = np.searchsorted(self.classes_, y)  # of rows without weight any
        X, codes, weights = self._counted(name, X, codes, weights)
        self._fit(name, X, codes, weights, len(self.classes_), Categorical())
        return self

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class, averaged over the draws.

        Parameters
        ----------
        X : (N, D) array or frame

        Returns
        -------
        (N, K) array
            Columns as in ``classes_``; rows sum to one in float64.
        """
        return self._predicted("BNNClassifier.predict_proba", X).probs

    def predict(self, X: Any) -> Any:
        """Return the most probable class.

        Parameters
        ----------
        X : (N, D) array or frame

        Returns
        -------
        (N,) array of labels
        """
        found = self._predicted("BNNClassifier.predict", X).probs
        return self.classes_[np.argmax(found, axis=1)]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """Return random labels: each sample uses one function of the posterior at all rows.

        Parameters
        ----------
        X : (N, D) array or frame
        n_samples : int, default 1
        random_state : int, RandomState, Generator, SeedSequence or None, default 0

        Returns
        -------
        (N, n_samples) array of labels
        """
        name = "BNNClassifier.sample_y"
        found = self._predicted(name, X)
        seed = _seed(name, random_state)
        return self.classes_[np.asarray(found.sample(n_samples, seed=seed)).T]

    def log_score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean over rows of the log probability of the label.

        Parameters
        ----------
        X : (N, D) array or frame
        y : (N,) array of labels
        sample_weight : (N,) array, optional
            Weight of each row in the mean.

        Raises
        ------
        ValueError
            For a label that was not in the data.
        """
        name = "BNNClassifier.log_score"
        found = self._predicted(name, X)
        rows.target(name, y, numeric=False)
        try:
            labels = column_or_1d(y)
            codes = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
            known = self.classes_[codes] == labels
        except (TypeError, ValueError, RuntimeError, MemoryError) as error:
            got = checks.summary(y)
            raise ValueError(f"[{name}] expected y (N,) of labels, got {got}: {error}") from error
        if not np.all(known) or labels.dtype.kind in "cm":
            strange = labels[~known][0] if labels.dtype.kind not in "cm" else labels.dtype
            raise ValueError(
                f"[{name}] expected labels among {self.classes_.tolist()}, got {strange!r}"
            )
        return float(found.log_likelihood(codes, sample_weight=sample_weight))
