"""Tests of the estimators of scikit-learn; skipped without it."""
