"""Scores of predicted probabilities, and differences between two of them."""

from __future__ import annotations

import numpy as np

import ribbit as rb


def log_likelihood(y: np.ndarray, probs: np.ndarray) -> float:
    """Mean log probability of the label per test row, in nats."""
    return -float(rb.metrics.nll(y, probs))


def scores(y: np.ndarray, probs: np.ndarray, truth: np.ndarray | None = None) -> dict[str, float]:
    """Accuracy, log likelihood and ECE; with `truth`, agreement and total variation with it."""
    out = {
        "accuracy": float(rb.metrics.accuracy(y, probs)),
        "log_likelihood": log_likelihood(y, probs),
        "ece": float(rb.metrics.ece(y, probs)),
    }
    if truth is not None:
        out["agreement"] = float(rb.diagnostics.agreement(truth, probs))
        out["total_variation"] = float(rb.diagnostics.total_variation(truth, probs))
    return out


def columns(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """Turn one dictionary per split into a list over splits per score."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def minus(a: list[float], b: list[float]) -> list[float]:
    """Subtract split by split."""
    return [x - y for x, y in zip(a, b, strict=True)]
