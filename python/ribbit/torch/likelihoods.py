"""Log likelihoods of rows as torch functions: those of `ribbit.likelihoods`, and losses."""

# Shapes: n rows, K outputs, J columns of y; everything float64.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from ribbit._arrays import checks
from ribbit.targets import likelihoods
from ribbit.targets.likelihoods import Likelihood

RowTerms: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Log likelihoods (n,) of outputs (n, K), y (n, J) and log noises, (1,) or (K,)."""

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def row_terms(likelihood: Likelihood, outputs: int) -> RowTerms:
    """Return the log likelihood of a likelihood's rows of that many outputs."""
    second = likelihood.constant
    log_known = [math.log(scale) for scale in likelihood.scales((outputs,))]

    def log_scale(f: torch.Tensor, log_noise: torch.Tensor | None) -> torch.Tensor:
        # (1,) or (K,)
        known = log_known if log_noise is None else log_noise
        return torch.as_tensor(known, dtype=f.dtype, device=f.device)

    def gaussian(f: torch.Tensor, y: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        return _normal((y - f), log_scale(f, noise)).sum(-1)

    def heteroscedastic(
        f: torch.Tensor, y: torch.Tensor, noise: torch.Tensor | None
    ) -> torch.Tensor:
        del noise
        mean, raw = f.chunk(2, dim=-1)
        # log(softplus(r)) is r to rounding below -37, where softplus underflows later on.
        inside = functional.softplus(raw.clamp(min=-40.0)).log()
        log_sd = torch.where(raw < -37.0, raw, inside)
        if second:
            floor = torch.full_like(raw, 2.0 * math.log(second))
            log_sd = 0.5 * torch.logaddexp(2.0 * log_sd, floor)
        return _normal(y - mean, log_sd).sum(-1)

    def categorical(f: torch.Tensor, y: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        del noise
        return functional.log_softmax(f, dim=-1).gather(-1, y.long())[..., 0]

    def bernoulli(f: torch.Tensor, y: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        del noise
        return functional.logsigmoid((2.0 * y - 1.0) * f).sum(-1)

    def poisson(f: torch.Tensor, y: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        del noise
        return (y * f - f.exp() - torch.lgamma(y + 1.0)).sum(-1)

    def student(f: torch.Tensor, y: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        df = second
        log_sd = log_scale(f, noise)
        u = (y - f) * torch.exp(-log_sd)
        norm = math.lgamma(0.5 * (df + 1.0)) - math.lgamma(0.5 * df) - 0.5 * math.log(df * math.pi)
        return (norm - log_sd - 0.5 * (df + 1.0) * torch.log1p(u * u / df)).sum(-1)

    table: dict[type[Likelihood], RowTerms] = {
        likelihoods.Gaussian: gaussian,
        likelihoods.HeteroscedasticGaussian: heteroscedastic,
        likelihoods.Categorical: categorical,
        likelihoods.Bernoulli: bernoulli,
        likelihoods.Poisson: poisson,
        likelihoods.StudentTNoise: student,
    }
    return table[type(likelihood)]


def _normal(residual: torch.Tensor, log_sd: torch.Tensor) -> torch.Tensor:
    # The bound keeps 0 * inf, a NaN, out; e**700 is near the largest float64.
    scaled = residual * torch.exp((-log_sd).clamp(max=700.0))
    return -0.5 * scaled * scaled - log_sd - _HALF_LOG_2PI


def of_loss(function: str, loss: Any) -> Likelihood | Callable[..., Any]:
    """Return the likelihood that a loss of torch stands for, or the callable itself."""
    nn = torch.nn
    if isinstance(loss, Likelihood):
        return likelihoods.check(function, loss)
    if isinstance(loss, nn.CrossEntropyLoss):
        if loss.weight is not None or loss.label_smoothing != 0.0 or loss.ignore_index >= 0:
            raise ValueError(
                f"[{function}] expected CrossEntropyLoss without weight, label_smoothing and "
                "ignore_index, which make it no log likelihood, got one with"
            )
        return likelihoods.Categorical()
    if isinstance(loss, nn.BCEWithLogitsLoss):
        if loss.weight is not None or loss.pos_weight is not None:
            raise ValueError(
                f"[{function}] expected BCEWithLogitsLoss without weight and pos_weight, which "
                "make it no log likelihood, got one with"
            )
        return likelihoods.Bernoulli()
    if isinstance(loss, nn.PoissonNLLLoss) and loss.log_input:
        return likelihoods.Poisson()
    instead = {
        nn.MSELoss: "rb.Gaussian(sd), or rb.Gaussian() to learn the noise",
        nn.L1Loss: "rb.StudentTNoise(df=4)",
        nn.SmoothL1Loss: "rb.StudentTNoise(df=4)",
        nn.HuberLoss: "rb.StudentTNoise(df=4)",
        nn.GaussianNLLLoss: "rb.HeteroscedasticGaussian(), of 2 K outputs",
        nn.NLLLoss: "rb.Categorical(), of logits",
        nn.BCELoss: "rb.Bernoulli(), of logits",
        nn.PoissonNLLLoss: "rb.Poisson(), of log rates",
    }
    for kind, better in instead.items():
        if isinstance(loss, kind):
            raise TypeError(
                f"[{function}] expected a likelihood, or a loss that is one, got {kind.__name__}, "
                f"which does not say how y is spread around the outputs: give {better}"
            )
    if not callable(loss) or isinstance(loss, type):
        raise TypeError(
            f"[{function}] expected a likelihood such as rb.Categorical(), a loss of torch or a "
            f"function (outputs, y) -> losses (n,), got {checks.summary(loss)}"
        )
    return loss
