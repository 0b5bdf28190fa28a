"""A Bayesian network as a regressor of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from ribbit._arrays import checks
from ribbit.errors import ShapeError
from ribbit.sklearn import rows
from ribbit.sklearn.estimator import BNN, _seed
from ribbit.targets.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood
from ribbit.targets.stepped import step_of
from ribbit.targets.units import target_units

__all__ = ["BNNRegressor"]

_STEPS = 0.25  # share of rows with frequent values from which y takes steps


class BNNRegressor(RegressorMixin, BNN):
    """A Bayesian neural network that predicts numbers, with their uncertainty.

    Columns of X and y are standardised inside; all results are in their own units. A fit does not
    depend on the order of the rows.

    Parameters
    ----------
    hidden : int or sequence of int, default (50,)
        Width of the hidden layer, or widths of several; () is a linear model.
    activation : str, default "tanh"
        identity, relu, tanh, silu, sigmoid, gelu, softplus, leaky_relu or elu.
    method : str, default "mclmc"
        Chains: "mclmc", "hmc", "nuts", and with minibatches "sgld", "sghmc", "baoab". Fits: "bbb"
        (Bayes by Backprop), "dropout", "ensemble", "laplace" (linearized), "swag".
    noise : {"varying", "constant"}, float or sequence of float, default "varying"
        "varying": an sd for every row and column of y. "constant": one sd for each column. Numbers:
        known sds in the units of y, one for all columns or one for each. If y has steps, such as
        grades, a varying sd is at least the sd of rounding to them, and always at least
        `min_noise`.
    min_noise : float, default 0.01
        Smallest sd of a row with ``noise="varying"``, as a share of the sd of y. Smaller values
        need longer chains: if the noise nearly vanishes, chains hardly move.
    prior_scale : float, default 1.0
        Sd of the normal prior of every weight, divided by the root of its layer's inputs, and of
        every bias, in standardised units.
    draws : int, optional
        Draws of each chain, or of a fit (default 1,000). Default for chains: at least 100, until
        R-hat is at most 1.03 with 350 effective draws, and at most 250. With "mclmc", whose draws
        cost less, at most 3,000, or as many as fit into 32 MiB for all chains.
    chains : int, default 4
        Number of chains, each started at a network trained for it; members of "ensemble" and
        "swag".
    warmup, thin : int, optional
        Steps of a chain before the first draw, and between draws.
    epochs : int, optional
        Passes over the rows, for fits. Default: as many as make 10,000 steps.
    learning_rate : float, optional
        Learning rate of fits. It falls to 0 along a cosine, or is constant with `early_stopping`.
    batch_size : int, optional
        Largest number of rows per step, for fits and for chains with minibatches. Default 128.
    dropout_rate : float, default 0.1
        Rate of "dropout".
    early_stopping : bool, default False
        For "bbb", "dropout" and "ensemble": hold rows out, and keep the weights that predict them
        best.
    validation_fraction : float, default 0.1
        Share of the rows that `early_stopping` holds out.
    options : dict, optional
        Further arguments of the method's class, such as ``{"adjusted": True}`` for
        :class:`ribbit.MCLMC`.
    store : path, optional
        Folder of the run: the same fit resumes an interrupted one.
    max_seconds : float, optional
        End chains after this time and keep the draws so far.
    random_state : int, RandomState, Generator, SeedSequence or None
        An integer is the key of all random numbers.
    verbose : bool, default False
        Show progress.

    Attributes
    ----------
    posterior_ : Posterior
        The target, with the training rows. Copies by pickle, joblib or ``copy.deepcopy`` predict
        the same without it, so that a file contains no rows.
    draws_ : Draws
    approximation_ : fit or None
        The fit; None for chains.
    summary_ : Summary
        Summary of the chains or of the fit: a table, ``outcome``, and ``message``, which says what
        to do next.
    converged_ : bool or None
        True if the outcome is "converged" or "predictions converged, weights did not", False if it
        is "not converged", None if it is "too short to tell".
    n_draws_ : int
        Draws of all chains.
    n_features_in_ : int
    feature_names_in_ : (D,) array
        Only if X was a frame with names.

    Raises
    ------
    TypeError, ValueError
        From ``fit``: for wrong parameters or data, columns that are not numbers (the message names
        them), or sparse data.

    Warns
    -----
    ConvergenceWarning, FitWarning
        From ``fit``: the outcome of the chains, or of the fit, is "not converged".
    ScaleWarning
        From ``fit``: a few extreme values flatten a column of X or y; see
        :func:`ribbit.datasets.standardize` for the rule.

    Notes
    -----
    There is no ``partial_fit``, because a posterior depends on all rows. Threads are set by
    :func:`ribbit.set_num_threads`. Workers of joblib's processes use as many as joblib leaves to
    each (OMP_NUM_THREADS), unless RIBBIT_NUM_THREADS is set.

    Examples
    --------
    >>> from ribbit.sklearn import BNNRegressor
    >>> X, y = rb.datasets.energy_efficiency()
    >>> model = BNNRegressor(method="ensemble", epochs=20, random_state=0).fit(X[:400], y[:400])
    >>> mean, std = model.predict(X[400:], return_std=True)
    >>> lower, upper = model.predict_interval(X[400:], 0.9)
    >>> mean.shape, std.shape, lower.shape
    ((368,), (368,), (368,))
    """

    def __init__(
        self,
        hidden: int | tuple[int, ...] = (50,),
        *,
        activation: str = "tanh",
        method: str = "mclmc",
        noise: str | float = "varying",
        min_noise: float = 0.01,
        prior_scale: float = 1.0,
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
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._set(locals())

    # With metadata routing a Pipeline passes these on without set_predict_request.
    __metadata_request__predict = {"interval": True, "return_std": True}  # noqa: RUF012

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what this takes: y of several columns too."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BNNRegressor:
        """Sample or fit the posterior of the network, and return self.

        Parameters
        ----------
        X : (N, D) array or frame
            Numbers; column names of pandas and polars frames are kept.
        y : (N,) or (N, K) array
        sample_weight : (N,) array, optional
            Weight of each row, >= 0, in the likelihood and in the means and sds of columns.
            Integers that average at most 4 are treated as copies of rows.

        Returns
        -------
        BNNRegressor
        """
        name = "BNNRegressor.fit"
        X, y = self._validated(name, X, y, multi_output=True, y_numeric=True)
        weights = self._weights(name, X, sample_weight)
        X, y, weights = self._counted(name, X, np.asarray(y, np.float64), weights)
        width = 1 if y.ndim == 1 else y.shape[1]
        likelihood = self._likelihood(name, y.reshape(len(y), -1), weights)
        outputs = 2 * width if isinstance(likelihood, HeteroscedasticGaussian) else width
        self._fit(name, X, y, weights, outputs, likelihood)
        return self

    def _likelihood(self, name: str, y: Any, weights: Any) -> Likelihood:
        """Return the noise of targets (N, K), in their standardised units."""
        scale = target_units(name, y, weights)[1]
        floor = checks.positive(name, "min_noise", self.min_noise)
        if not isinstance(self.noise, str):
            if not np.isscalar(self.noise):
                return Gaussian(self._known(name, scale))
            known = checks.positive(name, "noise", self.noise)
            if scale.size > 1 and np.ptp(scale) > 1e-6 * scale.max():
                raise ValueError(
                    f"[{name}] expected noise='varying' or 'constant' for y of {scale.size} "
                    f"columns, got {known!r}: columns in different units need a sequence with one "
                    "sd for each"
                )
            return Gaussian(known / float(scale[0]))
        if checks.choice(name, "noise", self.noise, ("varying", "constant")) == "constant":
            return Gaussian()
        found = [(*step_of(y[:, j]), scale[j]) for j in range(y.shape[1])]
        floors = [
            step / sd / 12.0**0.5
            for step, _, share, sd in found
            if share >= _STEPS and np.isfinite(step)
        ]
        return HeteroscedasticGaussian(min_sd=max(floor, min(floors, default=0.0)))

    def _known(self, name: str, scale: Any) -> tuple[float, ...]:
        """Return the known sds of columns whose sds are `scale` (K,), over these."""
        given = checks.numeric(name, "noise", self.noise)
        if given.shape != scale.shape:
            raise ShapeError(
                f"[{name}] expected noise of shape {scale.shape}, one sd for each column of y, got "
                f"{checks.summary(self.noise)}"
            )
        pairs = enumerate(zip(given.tolist(), scale.tolist(), strict=True))
        return tuple(checks.positive(name, f"noise[{j}]", sd) / width for j, (sd, width) in pairs)

    def predict(self, X: Any, return_std: bool = False, interval: float | None = None) -> Any:
        """Return the mean of y, and optionally its uncertainty.

        Both options pass through a ``Pipeline``: ``pipeline.predict(X, interval=0.9)``.

        Parameters
        ----------
        X : (N, D) array or frame
        return_std : bool, default False
            Also return the sd of a new y, with noise.
        interval : float, optional
            Also return the ends of the central interval that contains a new y with this
            probability, in (0, 1), as :meth:`predict_interval` does.

        Returns
        -------
        (N,) or (N, K) array
            The mean.
        (mean, std)
            With ``return_std=True``: two such arrays.
        (3, N) or (3, N, K) array
            With `interval`: ``mean, lower, upper = model.predict(X, interval=0.9)``. With
            ``return_std=True`` too (4, ...): mean, std, lower, upper. A
            ``TransformedTargetRegressor(func=..., inverse_func=...)`` maps all of an array (3, N)
            back; leave `return_std` out there.

        Raises
        ------
        TypeError, ValueError
            If the columns differ from the fit's, a cell is not a number, or `interval` is outside
            (0, 1).

        Examples
        --------
        >>> from ribbit.sklearn import BNNRegressor
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> X, y = rb.datasets.energy_efficiency()
        >>> model = BNNRegressor(method="ensemble", epochs=20, random_state=0)
        >>> pipeline = make_pipeline(StandardScaler(), model).fit(X[:400], y[:400])
        >>> mean, lower, upper = pipeline.predict(X[400:], interval=0.9)
        >>> lower.shape
        (368,)
        """
        name = "BNNRegressor.predict"
        return_std = checks.boolean(name, "return_std", return_std)
        if interval is not None:
            interval = checks.fraction(name, "interval", interval)
        found = self._predicted(name, X)
        result = (found.mean, found.std) if return_std else (found.mean,)
        if interval is not None:
            return np.stack([*result, *found.interval(interval)])
        return result if return_std else result[0]

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[Any, Any]:
        """Return the central interval that contains a new y with probability `coverage`.

        Parameters
        ----------
        X : (N, D) array or frame
        coverage : float, default 0.9
            In (0, 1).

        Returns
        -------
        lower, upper : (N,) or (N, K) array
            The central interval.
        """
        return self._predicted("BNNRegressor.predict_interval", X).interval(coverage)

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> Any:
        """Return quantiles of a new y.

        Parameters
        ----------
        X : (N, D) array or frame
        quantiles : sequence of float
            Q numbers in (0, 1).

        Returns
        -------
        (N, Q) or (N, K, Q) array
        """
        name = "BNNRegressor.predict_quantiles"
        found = self._predicted(name, X)
        levels = checks.numeric(name, "quantiles", quantiles)
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            got = checks.summary(quantiles)
            raise ValueError(f"[{name}] expected quantiles as numbers in (0, 1), got {got}")
        return np.moveaxis(np.asarray(found.quantile(levels.tolist())), 0, -1)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """Return random y: each sample uses one function of the posterior at all rows, plus noise.

        Parameters
        ----------
        X : (N, D) array or frame
        n_samples : int, default 1
        random_state : int, RandomState, Generator, SeedSequence or None, default 0

        Returns
        -------
        (N, n_samples) or (N, K, n_samples) array
            In the layout of `GaussianProcessRegressor.sample_y`.
        """
        name = "BNNRegressor.sample_y"
        found = self._predicted(name, X)
        seed = _seed(name, random_state)
        return np.moveaxis(np.asarray(found.sample(n_samples, seed=seed)), 0, -1)

    def log_score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean over rows of the log predictive density, in the units of y.

        Parameters
        ----------
        X : (N, D) array or frame
        y : (N,) or (N, K) array
        sample_weight : (N,) array, optional
            Weight of each row in the mean.
        """
        name = "BNNRegressor.log_score"
        found = self._predicted(name, X)
        rows.target(name, y, numeric=True)
        y = checks.numeric(name, "y", y).astype(np.float64)
        return float(found.log_likelihood(y, sample_weight=sample_weight))
