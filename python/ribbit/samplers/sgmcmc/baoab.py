"""Kinetic Langevin dynamics along stochastic gradients, to second order."""

from __future__ import annotations

from typing import Any

from ribbit import schedules
from ribbit._arrays import checks
from ribbit._arrays.namespace import dtype_in, to_host
from ribbit.density import Density
from ribbit.protocols import Array
from ribbit.samplers.mcmc.options import inverse_mass
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.samplers.sgmcmc.step_pilot import StepPilot
from ribbit.samplers.sgmcmc.stepper import Stepper, Stepping

__all__ = ["BAOAB"]

# Starts far up have energies that velocities would carry about for long (concrete, 50 units, from
# the prior: 1,200 nats above the mean after 10,000 steps without, 60 below with it).
_COOLING = 15.0


class BAOAB(Stepping):
    """Kinetic Langevin dynamics with symmetric minibatches.

    Positions theta move along velocities u, which gradients kick and noise refreshes. A step of
    size h, with scales s of the parameters, the gradient g of the log density estimated on a
    minibatch (likelihood scaled by N/n), friction a and standard normal xi, is

        u += h s g; theta += (h/2) s u; u = exp(-a h) u + sqrt(1 - exp(-2 a h)) xi;
        theta += (h/2) s u

    This is the BAOAB splitting (Leimkuhler and Matthews 2013), observed at the points where it
    takes gradients. There is no accept step. With all rows in every batch, positions of a Gaussian
    are exact for every stable h. Other targets have an error of order h^2. With minibatches, a
    random order of batches is used forwards, then backwards (Paulin, Whalley, Chada and Leimkuhler
    2025). Their noise then cancels up to order h^2; independent batches would heat the chain by
    order h.

    A step costs one gradient of a minibatch, and consecutive steps hardly differ. So :meth:`sample`
    has the defaults ``warmup=10_000`` and ``thin=50``. In the first three quarters of warmup the
    friction is 15 times as large, so that chains descend from their starts.

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity`, with ``num_rows`` for minibatches.
    step_size : float or "auto"
        h, a time, multiplied by the schedule. Without scales, h^2 corresponds to the step size of
        :class:`SGHMC`. "auto": found by short pilot runs (about a second on small networks) from
        ``target.init``: the largest power of two at which minibatches add at most 2 % of P/2 to the
        mean energy. It depends on target, options and seed alone; ``draws.summary()`` shows it.
    friction : float
        a, per unit of time. In units of the prior's scales, 2 damps directions critically that the
        data do not determine, so they mix fastest. Larger values reduce the heat of minibatches.
    batch_size : int or None
        Largest number of rows per step, drawn without replacement. A sweep of 2 ceil(N /
        batch_size) steps uses every row twice. Batches differ by at most one row; each is scaled by
        its own N/n. None: all rows, also if there are fewer than the default.
    inverse_mass_matrix : (P,) array or "prior", optional
        s^2. "prior": the variance of the tempered prior, prior_sd^2 * temperature. Default: "prior"
        if the target has ``prior_sd``, else ones.
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
    >>> sampler = rb.BAOAB(target, step_size=0.02, batch_size=None)
    >>> sampler.sample(10, warmup=100, thin=20, progress=False).positions.shape[1]
    10
    """

    _default_warmup = 10_000

    def __init__(
        self,
        target: Any,
        *,
        step_size: float | str = "auto",
        friction: float = 2.0,
        batch_size: int | None = 128,
        inverse_mass_matrix: Array | str | None = None,
        schedule: schedules.Schedule | None = None,
        track_lp: bool = False,
    ) -> None:
        name = "BAOAB"
        density = Density(target, function=name, dropout=False, by_rows=True)
        super().__init__(density)
        mass: Any = inverse_mass_matrix
        if isinstance(mass, str):
            checks.choice(name, "inverse_mass_matrix", mass, ("prior",))
        if mass is None and getattr(density.target, "prior_sd", None) is not None:
            mass = "prior"
        inverse = inverse_mass(density, mass, name)
        xp = density.xp
        ones = xp.ones((density.dim,), dtype=dtype_in(xp, density.dtype))
        scale = ones if inverse is None else xp.sqrt(inverse)
        rule = Rule(
            "kinetic", friction=checks.positive(name, "friction", friction), cooling=_COOLING
        )
        self._stepper = Stepper(
            name,
            density,
            rule,
            step_size=step_size,
            batch_size=batch_size,
            schedule=schedule,
            track_lp=track_lp,
            scale=scale,
        )
        # A cyclical schedule has draws of its own.
        self._default_thin = 1 if self._stepper.schedule.kind == "cyclical" else 50
        self._stepper.pilot = StepPilot(name, density, rule, batch_size=batch_size, scale=scale)
        self.settings = {
            "step_size": "auto" if self._stepper.step_size is None else self._stepper.step_size,
            "friction": rule.friction,
            "batch_size": self._stepper.batch_size,
            "inverse_mass_matrix": mass
            if mass is None or isinstance(mass, str)
            else to_host(inverse).tolist(),
            "schedule": repr(self._stepper.schedule),
        }
