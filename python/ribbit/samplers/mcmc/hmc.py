"""Hamiltonian Monte Carlo."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit._arrays import checks, random_numbers, transitions
from ribbit._arrays.namespace import errstate, from_host, to_host
from ribbit.density import Density, total
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array, TransitionDraw
from ribbit.results.state import DualAveraging, State
from ribbit.samplers.mcmc.hamiltonian import Hamiltonian, Tuning
from ribbit.samplers.mcmc.options import mass_of_default

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["HMC"]

_SUMS = ("log_step", "log_average", "error", "centre", "log_settled")  # of the core's adaptation


class HMC(Hamiltonian):
    """Hamiltonian Monte Carlo with random trajectory lengths (Duane et al. 1987; Neal 2011).

    Each transition draws a momentum from N(0, M), makes leapfrog steps and accepts the end point
    with probability min(1, exp(-dH)). Random lengths (Mackenzie 1989) keep every direction moving.
    Chains are independent, also in warmup.

    With default settings, trajectories are one prior sd long on average, and the last layer of a
    regression is integrated out if that pays (`marginalize` of :class:`Posterior`). Kept draws get
    that layer from its exact conditional distribution; states and "lp" concern the other parameters
    only, and ``draws.settings["integrated"]`` is set. A given step size, length or mass turns this
    off.

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity`, such as :class:`ribbit.Posterior`.
    step_size : "auto", float or (C,) array
        Leapfrog step, for all chains or for each. "auto": found per chain in warmup by dual
        averaging (Hoffman and Gelman 2014, algorithm 5).
    trajectory_length : float, optional
        Mean length, in units of position (whitened by the inverse mass matrix, if there is one). It
        takes L = ceil(length / step size) steps. Default: prior sd * sqrt(temperature) for a unit
        mass, 1 with an inverse mass matrix.
    num_leapfrog_steps : int, optional
        L itself, instead of `trajectory_length`.
    randomize_length : bool
        True: each trajectory has a number of steps uniform on 1, 2, ..., 2 L. False: always L, as
        in Izmailov et al. (2021); some directions may then never move.
    inverse_mass_matrix : (P,) array, "prior" or "adapt", optional
        Diagonal of M^-1. "prior": prior_sd^2 * temperature. "adapt": the variances of each chain in
        warmup, in Stan's windows. None: ones; without a length, if the weights share no prior sd,
        "prior", or "adapt" if the target has no prior sds.
    step_size_jitter : float
        j in [0, 1): each draw and chain multiplies its step size by uniform(1 - j, 1 + j).
    target_accept : float
        Acceptance rate in (0, 1) that "auto" aims for. Higher gives smaller steps.
    max_num_leapfrog_steps : int, optional
        Longest trajectory, with a warning and the statistic "capped". Default: 100,000, or 2,048 (L
        at most 1,024) if step size and length are both automatic.
    divergence_threshold : float
        Energy error above which a transition is flagged as diverging. A trajectory with an infinite
        or NaN momentum ends early.

    Raises
    ------
    TypeError
        For arguments of the wrong type, no log density as target, or one with Dropout layers.
    ValueError
        For values out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import ribbit as rb
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> draws = rb.HMC(target).sample(200, warmup=200, seed=1, progress=False)
    >>> draws.positions.shape
    (4, 200, 2)
    """

    _statistics: ClassVar[dict[str, str]] = {
        "lp": "float64",
        "acceptance_rate": "float64",
        "accepted": "bool",
        "diverging": "bool",
        "energy": "float64",
        "energy_error": "float64",
        "n_steps": "int64",
        "step_size": "float64",
        "capped": "bool",
    }

    _several_in_warmup: ClassVar[bool] = True
    # What is looked at between transitions waits no longer: trajectories get longer in warmup.
    _call_seconds: ClassVar[float] = 0.02

    def __init__(
        self,
        target: Any,
        *,
        step_size: float | Array | str = "auto",
        trajectory_length: float | None = None,
        num_leapfrog_steps: int | None = None,
        randomize_length: bool = True,
        inverse_mass_matrix: Array | str | None = None,
        step_size_jitter: float = 0.0,
        target_accept: float = 0.9,
        max_num_leapfrog_steps: int | None = None,
        divergence_threshold: float = 1000.0,
    ) -> None:
        density = Density(target, function="HMC", dropout=False)
        super().__init__(density, divergence_threshold)
        self._step_size_jitter = checks.fraction(
            "HMC", "step_size_jitter", step_size_jitter, zero=True
        )
        no_length = trajectory_length is None and num_leapfrog_steps is None
        no_mass = inverse_mass_matrix is None
        if no_length and no_mass and isinstance(step_size, str):
            self._move_marginal(
                target,
                step_size=step_size,
                randomize_length=randomize_length,
                step_size_jitter=step_size_jitter,
                target_accept=target_accept,
                max_num_leapfrog_steps=max_num_leapfrog_steps,
                divergence_threshold=divergence_threshold,
            )
        if no_length and no_mass:
            inverse_mass_matrix = mass_of_default(density)
        self._tuning = tuning = Tuning(
            density,
            step_size=step_size,
            trajectory_length=trajectory_length,
            num_leapfrog_steps=num_leapfrog_steps,
            randomize_length=randomize_length,
            inverse_mass_matrix=inverse_mass_matrix,
            target_accept=target_accept,
            max_num_leapfrog_steps=max_num_leapfrog_steps,
        )
        self.settings = {
            "step_size": "auto" if tuning.step_size is None else tuning.step_size.tolist(),
            "trajectory_length": tuning.length,
            "num_leapfrog_steps": tuning.num_steps,
            "randomize_length": tuning.randomize_length,
            "inverse_mass_matrix": inverse_mass_matrix
            if inverse_mass_matrix is None or isinstance(inverse_mass_matrix, str)
            else to_host(inverse_mass_matrix).tolist(),
            "step_size_jitter": self._step_size_jitter,
            "target_accept": tuning.target_accept,
            "max_num_leapfrog_steps": tuning.max_steps,
            "divergence_threshold": self._threshold,
        }

    def _settled(self, warmup: int) -> int | None:
        return self._tuning.settled(warmup)

    @property
    def _several(self) -> bool:
        """Whether the target makes runs, and knows all that changes between transitions."""
        own = type(self)
        if own._advance is not Hamiltonian._advance or own._transition is not HMC._transition:
            return False  # a sampler that makes its own is not passed by
        fixed = not self._tuning.adapts_mass and self._step_size_jitter == 0.0
        return fixed and self._density.run is not None

    def _advance_several(
        self,
        state: Any,
        stops: npt.NDArray[np.int64],
        kept: npt.NDArray[Any] | None,
        guard: InterruptGuard | None,
    ) -> tuple[State, dict[str, Array]]:
        # Around a transition of a small network Python takes as long as the transition. The core
        # gives the same states and statistics, bit for bit.
        tuning, count = self._tuning, int(stops[-1]) - state.step
        dual = None if state.adaptation is None else state.adaptation.dual
        rule = tuning.rule(state.warmup)
        mass = state.inverse_mass
        position, terms, grad, step_size, reals, counts, flags, sums, made, told = (
            self._density.call(
                self._density.run,
                guard,
                np.ascontiguousarray(state.position),
                np.ascontiguousarray(state.grad),
                np.ascontiguousarray(state.terms),
                None if mass is None else np.ascontiguousarray(mass),
                seed=state.seed,
                step=state.step,
                chains=state.chains,
                threshold=self._threshold,
                count=count,
                step_size=np.ascontiguousarray(state.step_size),
                num_steps=np.ascontiguousarray(state.num_steps),
                capped=np.ascontiguousarray(state.capped),
                sums=None if dual is None else np.stack([getattr(dual, name) for name in _SUMS]),
                updates=0 if dual is None else dual.count,
                settled=0 if dual is None else dual.settled,
                ends=state.step + count >= state.warmup,
                keep=stops - state.step - 1,
                kept=kept,
                seconds=self._call_seconds,
                **rule,
            )
        )
        end = state.step + made
        lp, energy, error, acceptance, sizes = reals[:, :, :told]
        accepted, diverging, capped = flags[:, :, :told]
        lengths, divergences = counts[:, :, :told]
        info = {
            "lp": lp,
            "acceptance_rate": acceptance,
            "accepted": accepted,
            "diverging": diverging,
            "energy": energy,
            "energy_error": error,
            "n_steps": lengths,
            "step_size": sizes,
            "capped": capped,
            "divergences": divergences,
        }
        changes: dict[str, Any] = {}
        if state.adaptation is not None:
            if dual is not None:
                settled = dual.settled + max(0, min(made, end - rule["brief_until"]))
                found = dict(zip(_SUMS, sums, strict=True))
                dual = DualAveraging(**found, count=dual.count + made, settled=settled)
            changes = tuning.adapted(dual, step_size, last=end >= state.warmup)
        after = dataclasses.replace(
            state,
            position=position,
            logdensity=lp[:, -1].copy(),
            grad=grad,
            terms=terms,
            step=end,
            **changes,
        )
        self._evaluated.add(after)
        return after, info

    def _transition(
        self, state: State, guard: InterruptGuard | None
    ) -> tuple[State, dict[str, Array]]:
        step_size = state.step_size
        if self._step_size_jitter:
            u = random_numbers.uniform(
                self._density.xp,
                (state.chains.shape[0], 1),
                seed=state.seed,
                step=state.step,
                chains=state.chains,
                purpose=random_numbers.JITTER,
            )
            step_size = step_size * (
                1.0 - self._step_size_jitter + 2.0 * self._step_size_jitter * u[:, 0]
            )
        num_steps, capped = self._tuning.steps_of(state)
        if self._density.transition is not None:
            drawn = self._density.call(
                self._density.transition,
                guard,
                state.position,
                state.grad,
                state.terms,
                step_size,
                num_steps,
                inverse_mass=state.inverse_mass,
                seed=state.seed,
                step=state.step,
                chains=state.chains,
                divergence_threshold=self._threshold,
            )
        else:
            drawn = self._draw(state, step_size, num_steps, guard)
        info = {
            "lp": drawn.logdensity,
            "acceptance_rate": drawn.acceptance,
            "accepted": drawn.accepted,
            "diverging": drawn.diverging,
            "energy": drawn.energy,
            "energy_error": drawn.energy_error,
            "n_steps": from_host(self._density.xp, drawn.num_steps),
            "step_size": step_size,
            "capped": from_host(self._density.xp, capped),
        }
        state = State(
            position=drawn.position,
            logdensity=drawn.logdensity,
            grad=drawn.grad,
            terms=drawn.terms,
            step=state.step + 1,
            seed=state.seed,
            chains=state.chains,
            step_size=state.step_size,
            num_steps=state.num_steps,
            capped=state.capped,
            inverse_mass=state.inverse_mass,
            adaptation=state.adaptation,
            warmup=state.warmup,
            target=state.target,
        )
        if state.adaptation is not None:
            state = self._tuning.adapt(state, drawn.acceptance, guard)
        return state, info

    def _draw(
        self,
        state: State,
        step_size: Array,
        num_steps: npt.NDArray[np.int64],
        guard: InterruptGuard | None,
    ) -> TransitionDraw:
        """Compose a transition of a target's trajectories: on devices, and of own densities."""
        density, xp = self._density, self._density.xp
        seed, step, ids = state.seed, state.step, state.chains
        start, mass = state.position, state.inverse_mass
        p0 = random_numbers.normal(
            xp,
            (ids.shape[0], density.dim),
            density.dtype,
            seed=seed,
            step=step,
            chains=ids,
            purpose=random_numbers.MOMENTUM,
        )
        if mass is not None:
            p0 = p0 / xp.sqrt(mass)
        q, p, terms, grad, made = density.leapfrog(
            start, p0, state.grad, step_size, num_steps, mass, guard
        )
        with errstate(xp):
            kinetic0 = transitions.kinetic_energy(xp, p0, mass)
            kinetic = transitions.kinetic_energy(xp, p, mass)
            # A sum of differences. It is finite only if every term, the kinetic energy and so every
            # momentum is; position and gradient are looked at below.
            error = (kinetic - kinetic0) + total(state.terms - terms)
            finite = xp.isfinite(error) & transitions.finite_rows(xp, q, grad)
            error = xp.where(finite, error, xp.inf)
            accepted, rate = transitions.accept(xp, error, seed=seed, step=step, chains=ids)
            terms = transitions.select(xp, accepted, terms, state.terms)
            logdensity = total(terms)
            return TransitionDraw(
                position=transitions.select(xp, accepted, q, start),
                grad=transitions.select(xp, accepted, grad, state.grad),
                terms=terms,
                logdensity=logdensity,
                energy=xp.where(accepted, kinetic, kinetic0) - logdensity,
                energy_error=error,
                acceptance=rate,
                num_steps=made,
                accepted=accepted,
                diverging=error > self._threshold,  # inf included
            )
