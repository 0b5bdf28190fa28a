"""Gauss-Newton matrices of a posterior, row by row, and the same posterior with other scales."""

# Shapes: P parameters, Q of them in the subset, N rows, K outputs, J columns of y.

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.positions import one_position
from ribbit.models.model import Model
from ribbit.targets import prior_table
from ribbit.targets.information import known_likelihoods, noise_information, prior_curvature, roots
from ribbit.targets.likelihoods import Array64, Gaussian, Likelihood
from ribbit.targets.linearized import blocks, first_of, jacobian
from ribbit.targets.prior_base import LOG_NOISE
from ribbit.targets.priors import Normal
from ribbit.targets.spec import DensitySpec


class GaussNewton:
    """Base class of `Posterior`: its curvature, for Laplace approximations in host memory."""

    model: Model
    likelihood: Likelihood
    x: FloatArray
    temperature: float
    likelihood_temperature: float
    dim: int
    _spec: DensitySpec

    def subset_size(self, function: str, subset: str) -> tuple[int, int]:
        """Return the index of a subset's first parameter, and the number Q of its parameters."""
        if self._spec.backend.xp is not np:
            raise TypeError(f"[{function}] expected a target in host memory, got one on a device")
        if type(self.likelihood) not in known_likelihoods():
            names = ", ".join(sorted(kind.__name__ for kind in known_likelihoods()))
            got = type(self.likelihood).__name__
            raise TypeError(f"[{function}] expected a likelihood among {names}, got {got}")
        if self.dim != self.model.dim + self.noises:
            raise TypeError(
                f"[{function}] expected a target whose parameters are the network's weights (and "
                f"log_noise), got {self.dim} parameters for {self.model.dim} weights"
            )
        first = first_of(function, self.model, subset)
        return first, (self.dim if subset == "all" else self.model.dim) - first

    @property
    def noises(self) -> int:
        """Length of "log_noise": one number for each output, 0 if no noise is learned."""
        return self.likelihood.noises(self.model.output_shape)

    def gauss_newton(
        self, theta: FloatArray, subset: str, interrupt: Any = None
    ) -> Iterator[Array64]:
        """Yield blocks A (n, Q) float64; the sum of A^T A is the Gauss-Newton matrix."""
        # J^T (Fisher information of the outputs) J, tempered as the target is (Schraudolph 2002,
        # "Fast curvature matrix-vector products for second-order gradient descent", section 3).
        # Learned noises have their own information, for Gaussian noise 2 for each number of y.
        name = "Posterior.gauss_newton"
        self._needs_one_process(name)  # type: ignore[attr-defined]
        first, size = self.subset_size(name, subset)
        at = one_position(name, theta, self.dim).astype(np.float64)
        checks.interrupt_flag(name, interrupt)
        noises = self.noises
        noise = at[self.model.dim :] if noises else None
        weight = 1.0 / math.sqrt(self.temperature * self.likelihood_temperature)
        rows = self.x.reshape((-1, *self.model.input_shape))
        for block in blocks(rows.shape[0], self.model.output_shape[0] * size):
            f, derivatives = jacobian(name, self.model, at, rows[block], first, interrupt)
            root = weight * roots(self.likelihood, f, noise)
            count = float(f.shape[0])
            if self._spec.weights is not None:
                counts = self._spec.weights[block].astype(np.float64)
                root = root * np.sqrt(counts).reshape(-1, *(1,) * (root.ndim - 1))
                count = float(counts.sum())
            a = root[:, :, None] * derivatives if root.ndim == 2 else root @ derivatives
            a = a.reshape(-1, derivatives.shape[2])
            if a.shape[1] == size:
                yield a
                continue
            count *= self._spec.y.shape[1] / noises
            own = weight * math.sqrt(count * noise_information(self.likelihood))
            more = np.zeros((a.shape[0] + noises, size))
            more[:-noises, :-noises] = a
            more[-noises:, -noises:] = own * np.eye(noises)
            yield more

    def prior_curvature(self, theta: FloatArray, subset: str) -> Array64:
        """Return minus the second derivatives (Q,) of the tempered log prior, clipped at 0."""
        name = "Posterior.prior_curvature"
        first, size = self.subset_size(name, subset)
        table = self._spec.table
        at = one_position(name, theta, self.dim).astype(np.float64)
        found = prior_curvature(name, table.rows, table.centre, at)
        return found[first : first + size] / self.temperature

    @property
    def noise_scale(self) -> float | None:
        """The known sd of Gaussian noise that all outputs share; None for other noise."""
        scale = self.likelihood.scale if isinstance(self.likelihood, Gaussian) else None
        return None if isinstance(scale, tuple) else scale

    def residuals(self, theta: FloatArray) -> tuple[float, float]:
        """Return the weighted sum of squared residuals over the known noise variance, and N J."""
        scale, count = self.noise_scale, self._spec.total_rows * self._spec.y.shape[1]
        if scale is None:
            raise TypeError(
                f"[Posterior.residuals] expected Gaussian noise that is known, got "
                f"{self.likelihood!r}"
            )
        # log likelihood = -n log(sd) - n log(2 pi) / 2 - residuals / (2 sd^2)
        one_position("Posterior.residuals", theta, self.dim)
        value = float(self.log_likelihood(theta))  # type: ignore[attr-defined]
        constant = count * (math.log(scale) + 0.5 * math.log(2.0 * math.pi))
        return -2.0 * (value + constant), count

    def prior_groups(self, function: str, subset: str) -> dict[str, tuple[slice, float]]:
        """Return index and prior sd of each array of a subset's weights, by name."""
        first, _ = self.subset_size(function, subset)
        if self.temperature != 1.0 or self.likelihood_temperature != 1.0:
            raise ValueError(
                f"[{function}] expected temperatures of 1, whose evidence is the model's, got "
                f"{self.temperature:g} and {self.likelihood_temperature:g}"
            )
        found = {}
        for parameter, row in zip(self.model.parameters, self._spec.table.rows, strict=False):
            if parameter.offset < first:
                continue
            if int(row[2]) != Normal.kind:
                raise ValueError(
                    f"[{function}] expected normal priors, got another of {parameter.name}"
                )
            place = slice(parameter.offset, parameter.offset + parameter.size)
            found[parameter.name] = place, float(row[3])
        return found

    def rescaled(self, prior_sd: Mapping[str, float], noise_sd: float | None = None) -> Any:
        """Return this posterior with other sds of normal priors, by name, and of known noise."""
        name = "Posterior.rescaled"
        self.subset_size(name, "all")
        spec, groups = self._spec, {p.name: p for p in self.model.parameters}
        for key, value in checks.mapping(name, "prior_sd", prior_sd).items():
            checks.choice(name, "prior_sd", key, tuple(groups))
            checks.positive(name, "prior_sd", value)
        priors: dict[str, Any] = {}
        table, resolved = spec.table, prior_table.patterns_of(spec.prior)
        arrays = zip(self.model.parameters, table.rows, table.means, strict=False)
        for parameter, row, mean in arrays:
            if parameter.name not in prior_sd:
                priors[parameter.name] = prior_table.chosen(resolved, parameter.name)[1]
                continue
            if int(row[2]) != Normal.kind:
                raise ValueError(
                    f"[{name}] expected normal priors, got another of {parameter.name}"
                )
            priors[parameter.name] = Normal(prior_sd[parameter.name], mean=mean)
        if LOG_NOISE in resolved:
            priors[LOG_NOISE] = resolved[LOG_NOISE]
        likelihood = self.likelihood
        if noise_sd is not None:
            if self.noise_scale is None:
                raise TypeError(
                    f"[{name}] expected Gaussian noise that is known, got {likelihood!r}"
                )
            likelihood = Gaussian(checks.positive(name, "noise_sd", noise_sd))
        table = prior_table.resolve(
            name,
            priors,
            self.model.parameters,
            log_noise=spec.log_noise,
            noises=self.noises,
            dtype=spec.dtype,
        )
        made = dataclasses.replace(spec, prior=priors, likelihood=likelihood, table=table)
        return self._like(made)  # type: ignore[attr-defined]
