"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Any

from ribbit import schedules
from ribbit._arrays import checks
from ribbit.density import Density
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.samplers.sgmcmc.step_pilot import StepPilot
from ribbit.samplers.sgmcmc.stepper import Stepper, Stepping

__all__ = ["SGLD"]


class SGLD(Stepping):
    """Stochastic gradient Langevin dynamics (Welling and Teh 2011, eq. 4).

    Every step is theta += (eps/2) g + sqrt(eps) xi, with the gradient g of the log density
    estimated on a minibatch (likelihood scaled by N/n) and standard normal xi. There is no accept
    step: the draws are biased by the step size and by the noise of the minibatches. Both errors
    vanish as eps goes to 0.

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity`, with ``num_rows`` for minibatches.
    step_size : float or "auto"
        eps, multiplied by the schedule. "auto": found by short pilot runs (about a second on small
        networks) from ``target.init``. It is the largest power of two (times the prior's mean
        variance) with a mean energy at most 2 % of P/2 above the mean energy at a quarter of the
        step size. It depends on target, options and seed alone; ``draws.summary()`` shows it. Not
        with a preconditioner, which moves in warmup.
    batch_size : int or None
        Largest number of rows per step, drawn without replacement within an epoch of ceil(N /
        batch_size) batches. Batches differ by at most one row; each is scaled by its own N/n. None:
        all rows, also if there are fewer than the default.
    preconditioner : "rmsprop", optional
        theta += (eps/2) (G g + Gamma) + sqrt(eps G) xi with the diagonal G = 1 / (1e-5 + sqrt(V)),
        V = 0.99 V + 0.01 (g/N)^2 (Li et al. 2016, section 3). V moves during warmup only. For kept
        draws G is constant, so the correction term Gamma_i = sum_j dG_ij/dtheta_j is zero.
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
    >>> sgld = rb.SGLD(target, step_size=1e-3, batch_size=10)
    >>> draws = sgld.sample(100, warmup=200, thin=5, seed=1, progress=False)
    >>> draws.positions.shape
    (4, 100, 10)
    """

    def __init__(
        self,
        target: Any,
        *,
        step_size: float | str = 1e-5,
        batch_size: int | None = 128,
        preconditioner: str | None = None,
        schedule: schedules.Schedule | None = None,
        track_lp: bool = False,
    ) -> None:
        density = Density(target, function="SGLD", dropout=False, by_rows=True)
        super().__init__(density)
        if preconditioner is not None:
            checks.choice("SGLD", "preconditioner", preconditioner, ("rmsprop",))
            if isinstance(step_size, str):
                raise ValueError(
                    "[SGLD] expected a number as step_size with a preconditioner, which moves in "
                    f"warmup, got {step_size!r}"
                )
        rule = Rule(
            "langevin", preconditioned=preconditioner is not None, decay2=0.99, epsilon=1e-5
        )
        self._stepper = Stepper(
            "SGLD",
            density,
            rule,
            step_size=step_size,
            batch_size=batch_size,
            schedule=schedule,
            track_lp=track_lp,
        )
        self._stepper.pilot = StepPilot("SGLD", density, rule, batch_size=batch_size)
        self.settings = {
            "step_size": "auto" if self._stepper.step_size is None else self._stepper.step_size,
            "batch_size": self._stepper.batch_size,
            "preconditioner": preconditioner,
            "schedule": repr(self._stepper.schedule),
        }
