"""Stochastic gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

from typing import Any

from ribbit import schedules
from ribbit._arrays import checks
from ribbit.density import Density
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.samplers.sgmcmc.step_pilot import StepPilot
from ribbit.samplers.sgmcmc.stepper import Stepper, Stepping

__all__ = ["SGHMC"]


class SGHMC(Stepping):
    """Stochastic gradient Hamiltonian Monte Carlo in its friction form (Chen et al. 2014, eq. 15).

    Every step is v = (1 - a) v + eps g + sqrt(2 a eps) xi; theta += v. Here g is the gradient of
    the log density estimated on a minibatch (likelihood scaled by N/n), a the friction and xi
    standard normal. The estimate of the gradient noise is zero. There is no accept step: the draws
    are biased by the step size and by the noise of the minibatches. The sd of v is sqrt(eps). If a
    schedule changes eps, v is multiplied by the root of the ratio.

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity`, with ``num_rows`` for minibatches.
    step_size : float or "auto"
        eps, multiplied by the schedule. SGLD with step size 2 eps / a moves as far per step.
        "auto": found by short pilot runs, as for :class:`SGLD`.
    friction : float
        a, in (0, 1).
    batch_size : int or None
        Largest number of rows per step, drawn without replacement within an epoch of ceil(N /
        batch_size) batches. Batches differ by at most one row; each is scaled by its own N/n. None:
        all rows, also if there are fewer than the default.
    schedule : Schedule, optional
        From :mod:`ribbit.schedules`. Default: constant.
    track_lp : bool
        Evaluate the log density on all rows at every draw, for ``stats["lp"]``; else NaN.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong type or out of range, a batch larger than the data, or a target
        with Dropout layers.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> sghmc = rb.SGHMC(target, step_size=1e-4, batch_size=10)
    >>> draws = sghmc.sample(100, warmup=200, thin=5, seed=1, progress=False)
    >>> draws.positions.shape
    (4, 100, 10)
    """

    def __init__(
        self,
        target: Any,
        *,
        step_size: float | str = 1e-6,
        friction: float = 0.1,
        batch_size: int | None = 128,
        schedule: schedules.Schedule | None = None,
        track_lp: bool = False,
    ) -> None:
        density = Density(target, function="SGHMC", dropout=False, by_rows=True)
        super().__init__(density)
        rule = Rule("friction", friction=checks.fraction("SGHMC", "friction", friction))
        self._stepper = Stepper(
            "SGHMC",
            density,
            rule,
            step_size=step_size,
            batch_size=batch_size,
            schedule=schedule,
            track_lp=track_lp,
        )
        self._stepper.pilot = StepPilot("SGHMC", density, rule, batch_size=batch_size)
        self.settings = {
            "step_size": "auto" if self._stepper.step_size is None else self._stepper.step_size,
            "friction": rule.friction,
            "batch_size": self._stepper.batch_size,
            "schedule": repr(self._stepper.schedule),
        }
