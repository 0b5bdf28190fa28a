"""Scikit-learn estimators; ``import ribbit`` alone does not import scikit-learn.

Needs scikit-learn 1.6 or newer (extra ``sklearn``).

>>> from ribbit.sklearn import BNNClassifier, BNNRegressor
"""

from ribbit._arrays.keywords import explain
from ribbit._arrays.packages import needing

with needing("ribbit.sklearn", "sklearn"):
    from ribbit.sklearn.classifier import BNNClassifier
    from ribbit.sklearn.regressor import BNNRegressor

__all__ = ["BNNClassifier", "BNNRegressor"]

explain(globals())
