"""Microcanonical Langevin Monte Carlo."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import to_host
from ribbit.adapter import Stepwise
from ribbit.chains import Start
from ribbit.density import Density, restart
from ribbit.interrupt import InterruptGuard
from ribbit.progress import ProgressOption
from ribbit.protocols import Array
from ribbit.results.discretization_bias import DiscretizationBias
from ribbit.results.draws import Draws
from ribbit.results.state import MicrocanonicalState
from ribbit.samplers.mcmc.energy_tuning import STEP_LIMIT, EnergyTuning, variances_of
from ribbit.samplers.mcmc.isokinetic import GRADIENTS, Dynamics
from ribbit.samplers.mcmc.layer_scales import scales_of
from ribbit.samplers.mcmc.microcanonical import Adjusted, Unadjusted
from ribbit.samplers.mcmc.shorter_steps import count_of, discretization_bias, set_by, state_of

__all__ = ["MCLMC"]

_FINISH = 5_000  # steps of Adam: warmup unlearns what fits too well, but finds no better mode


class Evaluated:
    """The states at which a sampler knows its density: all that it made and that still exist.

    A state is known by its position, terms and gradient, the arrays themselves: a state from a
    file, or with another position, is not. If arrays have no weak
    references, only the last ones count.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[], Any], ...]] = {}
        self._last: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[type[Evaluated], tuple[()]]:
        return Evaluated, ()

    def add(self, state: Any) -> None:
        """Know a state that has the terms and gradient of the density at its position."""
        known, key = self._known, id(state.terms)
        try:
            known[key] = (
                weakref.ref(state.terms, lambda _: known.pop(key, None)),
                weakref.ref(state.position),
                weakref.ref(state.grad),
            )
        except TypeError:
            self._last = state.terms, state.position, state.grad

    def __contains__(self, state: Any) -> bool:
        arrays, known = (state.terms, state.position, state.grad), self._known.get(id(state.terms))
        kept = self._last if known is None else tuple(one() for one in known)
        return bool(kept) and all(a is b for a, b in zip(arrays, kept, strict=True))


class MCLMC(Stepwise):
    """Microcanonical Langevin Monte Carlo (Robnik, De Luca, Silverstein and Seljak 2023).

    A chain moves at constant speed. Gradients turn its direction, and noise makes the direction
    forget itself over the decoherence length. Started from the members of an ensemble, it is the
    sampler of Sommer et al. (2025) for Bayesian neural networks. Chains are independent, also in
    warmup.

    The default form has no accept step, so it is biased: larger steps make larger energy errors and
    a larger bias. With the defaults, of 40 directions of a Gaussian whose sds differ ten-fold, the
    narrowest is 16 % too wide. :meth:`discretization_bias` estimates the bias of a run.
    ``adjusted=True`` accepts or rejects trajectories of random length by their energy error
    (Robnik, Cohn-Gordon and Seljak 2025), which is exact.

    A step costs one gradient, and consecutive steps hardly differ. So :meth:`sample` has other
    defaults: ``thin=20``, and a warmup of as many steps as the draws take, at least 10,000. With
    ``adjusted=True`` both count trajectories, with the defaults 1 and 500.

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity` of at least two parameters.
    adjusted : bool
        Accept or reject trajectories.
    desired_energy_var : float, (float, float) or "auto"
        Variance of a step's energy error divided by the number of parameters P. It sets the step
        size, and with it the bias. Two numbers: at the start of warmup (larger, to find better
        modes) and at its end. "auto": (0.5, 0.02), times (1250 / P)^2 if P > 1,250, because small
        biases of many weights add up. Ignored if adjusted.
    step_limit : float, None or "auto"
        Largest step that warmup may choose, in decoherence lengths, from 80 % of warmup on. "auto":
        0.25, or None (no limit) if a length is given. Ignored if adjusted or if a step is given.
    step_size : float or "auto"
        "auto": found in warmup for every chain from the energy errors, or by dual averaging if
        adjusted.
    decoherence_length : float or "auto"
        Length over which a direction is forgotten; if adjusted, the mean length of a trajectory.
        "auto": the root of the summed variances of a chain's positions in warmup.
    inverse_mass_matrix : (P,) array, "auto", "layers", "inputs", "prior" or "adapt", optional
        Squared scales by which parameters are divided. None: ones. "prior": the variance of the
        tempered prior. "adapt": the variances of each chain in warmup. "layers": a scale per chain
        for each array of weights or biases, from positions and gradients in warmup. "inputs": as
        "layers", with a matrix that whitens the weights of each layer of up to 64 inputs. It is
        found in the first 60 % of warmup, for a posterior in host memory and ``adjusted=False``.
        "auto": None if adjusted, if a step or length is given, or without ``parameter_groups``.
        Else "layers", or "inputs" if possible and the target's ``noise_floor`` is at least 0.05, as
        for ``HeteroscedasticGaussian(min_sd=0.05)``. With a lower floor "inputs" predicts most rows
        better and outliers worse.
    integrator : {"leapfrog", "mclachlan"}
        "mclachlan" takes two gradients per step, and steps more than twice as long.
    target_accept : float
        Acceptance rate in (0, 1) that adjusted chains aim for.
    max_num_leapfrog_steps : int
        Longest adjusted trajectory; the statistic "capped" flags those that reach it.
    divergence_threshold : float
        Energy error above which an adjusted transition is flagged as diverging. An unadjusted step
        diverges if it is not finite; it is undone, and the chain turns round.
    batch_size : None
        Any number is refused: the noise of minibatch gradients would heat the chains.

    Raises
    ------
    TypeError
        For arguments of the wrong type, no log density as target, or one with Dropout layers.
    ValueError
        For values out of range, a target of one parameter, or a batch size.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> start = rb.DeepEnsemble(target, members=4, batch_size=10).fit(50, progress=False)
    >>> mclmc = rb.MCLMC(target)
    >>> draws = mclmc.sample(100, warmup=1000, thin=10, init=start, seed=1, progress=False)
    >>> draws.positions.shape
    (4, 100, 10)
    """

    def __init__(
        self,
        target: Any,
        *,
        adjusted: bool = False,
        desired_energy_var: float | tuple[float, float] | str = "auto",
        step_limit: float | str | None = "auto",
        step_size: float | str = "auto",
        decoherence_length: float | str = "auto",
        inverse_mass_matrix: Array | str | None = "auto",
        integrator: str = "leapfrog",
        target_accept: float = 0.9,
        max_num_leapfrog_steps: int = 100_000,
        divergence_threshold: float = 1000.0,
        batch_size: None = None,
    ) -> None:
        name = "MCLMC"
        density = Density(target, function=name, dropout=False)
        super().__init__(density)
        if density.dim < 2:
            raise ValueError(
                f"[{name}] expected a target of at least 2 parameters, got 1: a direction needs two"
            )
        if batch_size is not None:
            raise ValueError(
                f"[{name}] expected batch_size=None, got {checks.summary(batch_size)}: the noise "
                "of minibatches heats chains that nothing corrects (SGLD, SGHMC take them)"
            )
        self._adjusted = checks.boolean(name, "adjusted", adjusted)
        step = _auto("step_size", step_size)
        tunes = step is None and not self._adjusted  # else nothing looks at it
        variance = _variance(desired_energy_var, density.dim if tunes else 1)
        length = _auto("decoherence_length", decoherence_length)
        stated = step is not None or length is not None
        limit: float | None = None
        if step_limit is not None:
            limit = _auto("step_limit", step_limit, "a number, None or 'auto'")
            if limit is None and length is None:
                limit = STEP_LIMIT
        limit = limit if tunes else None
        mass, self._mass = scales_of(
            density, inverse_mass_matrix, auto=not (stated or self._adjusted)
        )
        if mass == "inputs" and self._adjusted:
            raise ValueError(
                f"[{name}] expected inverse_mass_matrix='layers', or another, with adjusted=True, "
                "got 'inputs'"
            )
        tuning = EnergyTuning(
            density,
            variance=variance,
            step_size=step,
            length=length,
            mass=mass if mass in ("adapt", "layers", "inputs") else None,
            step_limit=limit,
        )
        dynamics = Dynamics(density, checks.choice(name, "integrator", integrator, GRADIENTS))
        target_accept = checks.fraction(name, "target_accept", target_accept)
        most = checks.integer(
            name, "max_num_leapfrog_steps", max_num_leapfrog_steps, minimum=1, maximum=2**31
        )
        threshold = checks.positive(name, "divergence_threshold", divergence_threshold)
        self._moves: Adjusted | Unadjusted
        if self._adjusted:
            self._moves = Adjusted(
                density,
                dynamics,
                tuning,
                target_accept=target_accept,
                max_steps=most,
                threshold=threshold,
            )
        else:
            self._moves = Unadjusted(density, dynamics, tuning)
            self._ensemble_finish = _FINISH
        # Those of its class, as other samplers have them: here of the form.
        self._statistics = self._moves.statistics  # type: ignore[misc]
        self._chunked = self._moves.chunked
        self._default_warmup = self._moves.default_warmup
        self._default_thin = self._moves.default_thin
        self._evaluated = Evaluated()
        self.settings = {
            "adjusted": self._adjusted,
            "desired_energy_var": list(variance),
            "step_limit": limit,
            "step_size": step_size if isinstance(step_size, str) else tuning.step_size,
            "decoherence_length": decoherence_length
            if isinstance(decoherence_length, str)
            else tuning.length,
            "inverse_mass_matrix": to_host(self._mass).tolist() if mass == "given" else mass,
            "integrator": dynamics.integrator,
            "target_accept": target_accept,
            "max_num_leapfrog_steps": most,
            "divergence_threshold": threshold,
        }

    def _warmup(self, num_draws: int | None, thin: int) -> int:
        if self._adjusted:
            return self._default_warmup
        return max(self._default_warmup, thin * (num_draws or 0))

    def _init(
        self, function: str, start: Start, guard: InterruptGuard | None
    ) -> MicrocanonicalState:
        density, (q, seed, ids, warmup, *_) = self._density, start
        least = self._moves.least_warmup
        if self._moves.tuning.adapts and warmup < least:
            found = ("auto", "adapt", "layers", "inputs")
            names = ", ".join(f"{k}={v!r}" for k, v in self.settings.items() if v in found)
            raise ValueError(f"[{function}] expected warmup >= {least} for {names}, got {warmup}")
        terms, grad, logdensity = density.evaluate(function, q, ids, guard)
        zero = np.zeros(len(ids))
        state = MicrocanonicalState(
            position=q,
            logdensity=logdensity,
            grad=grad,
            terms=terms,
            velocity=None,
            step=0,
            seed=seed,
            chains=ids,
            step_size=zero,
            decoherence_length=zero,
            energy_squares=zero,
            inverse_mass=self._mass,
            warmup=warmup,
            target=density.fingerprint,
        )
        state = dataclasses.replace(state, **self._moves.start(state, guard))
        if warmup:
            state = dataclasses.replace(state, adaptation=self._moves.adaptation(state))
        self._evaluated.add(state)
        return state

    def discretization_bias(
        self, draws: Draws, *, num_steps: int | None = None, progress: ProgressOption = None
    ) -> DiscretizationBias:
        """Return the estimated bias of the log likelihood from the step size of unadjusted chains.

        The chains continue from the end of the draws, once with a tenth of their step size and
        once, over the same distance, with their own. The difference is 99 % of the bias, because
        the bias grows with the square of the step size. It misses the bias of slow functions, which
        do not forget their start within half of that distance.

        Parameters
        ----------
        draws : Draws
            Draws of the unadjusted form on this target, past warmup, of at least two chains. Step
            sizes, lengths, scales and integrator are taken from them, not from this sampler. Not
            changed; the random numbers are those that ``resume=draws`` would use.
        num_steps : int, optional
            Number of short steps of each chain, a multiple of 100, at least 1,000. Default: a tenth
            of the steps of draws and warmup, at least 2,000. Each chain also makes a tenth as many
            steps of its own size. With four chains the default detects a bias of about one sd.
        progress : bool, callable or None
            As in :meth:`sample`.

        Returns
        -------
        DiscretizationBias
            By term. The terms of a :class:`ribbit.Posterior` are log likelihood and log prior, each
            divided by its temperature.

        Raises
        ------
        TypeError
            If `draws` are not draws of MCLMC.
        ValueError
            For draws of the adjusted form, of another target, of one chain, or that ended in
            warmup, and for a wrong number of steps.

        Examples
        --------
        1,250 normals, whose log density is off by three of its standard deviations without a limit:

        >>> target = rb.Posterior(
        ...     rb.Model([rb.Dense(1, bias=False)], input_shape=(1250,)),
        ...     np.zeros((1, 1250)), np.zeros((1, 1)),
        ...     prior=rb.Normal(1.0), likelihood=rb.Gaussian(1.0),
        ... )
        >>> mclmc = rb.MCLMC(target, step_limit=None)
        >>> draws = mclmc.sample(100, seed=1, progress=False)
        >>> found = mclmc.discretization_bias(draws, progress=False)
        >>> bool(-95.0 < found.bias[1] < -60.0)
        True
        """
        density, state = self._density, state_of(draws)
        dynamics = Dynamics(density, draws.settings["integrator"])
        return discretization_bias(
            density,
            Unadjusted(density, dynamics, self._moves.tuning),
            self._current("MCLMC.discretization_bias", state, None),
            count_of(num_steps, state),
            set_by=set_by(draws.settings, state),
            progress=progress,
        )

    def _advance(
        self, state: Any, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[MicrocanonicalState, dict[str, Array]]:
        state, info = self._moves.advance(state, num_steps, guard)
        self._evaluated.add(state)
        return state, info

    def _adopt(
        self, function: str, state: Any, guard: InterruptGuard | None
    ) -> MicrocanonicalState:
        """Put this sampler's target and fixed settings into a state; what was adapted stays."""
        if not isinstance(state, MicrocanonicalState):
            raise TypeError(
                f"[{function}] expected a MicrocanonicalState, got {checks.summary(state)}"
            )
        if (state.velocity is None) != self._adjusted:
            raise ValueError(
                f"[{function}] expected a state of MCLMC with adjusted={self._adjusted}, got one "
                f"of the other form: {restart(function)}"
            )
        state = self._current(function, state, guard)
        tuning, count = self._moves.tuning, len(state.chains)
        changes: dict[str, Any] = {}
        if tuning.step_size is not None:
            changes["step_size"] = np.full(count, tuning.step_size)
        if tuning.length is not None:
            changes["decoherence_length"] = np.full(count, tuning.length)
        if tuning.inputs is not None and state.mixing is not None:
            tuning.inputs.check(state.mixing, count)
            tuning.inputs.check_scales(state.inverse_mass, count)
        if not tuning.adapts_mass:
            self._same_scales(function, state)
            changes |= {"inverse_mass": self._mass, "mixing": None}
        elif tuning.inputs is None and state.mixing is not None:
            self._same_scales(function, state)
            changes["mixing"] = None
        adopted: MicrocanonicalState = dataclasses.replace(state, **changes)
        if adopted.step < adopted.warmup:
            adopted = dataclasses.replace(adopted, adaptation=self._moves.adaptation(adopted))
        self._evaluated.add(adopted)
        return adopted

    def _current(
        self, function: str, state: MicrocanonicalState, guard: InterruptGuard | None
    ) -> MicrocanonicalState:
        """Check that a state is of this target, and evaluate it where this sampler has not."""
        density = self._density
        density.check_state(function, state)
        changes: dict[str, Any] = {"target": density.fingerprint}
        if state not in self._evaluated:
            # Of another sampler, or from a file. On the same target the same bits come out.
            terms, grad, logdensity = density.evaluate(
                function, state.position, state.chains, guard, resumed=True
            )
            changes |= {"terms": terms, "grad": grad, "logdensity": logdensity}
        return dataclasses.replace(state, **changes)

    def _same_scales(self, function: str, state: MicrocanonicalState) -> None:
        """Raise ValueError where a step or a length that stays was found for other scales."""
        tuning, before = self._moves.tuning, state.inverse_mass
        if tuning.step_size is not None and tuning.length is not None:
            return
        if before is None or self._mass is None:
            same = before is None and self._mass is None
        else:
            same = np.array_equal(to_host(before), to_host(self._mass))
        if not same or state.mixing is not None:
            raise ValueError(
                f"[{function}] expected a state whose step and length were found with this "
                "sampler's inverse_mass_matrix, got one of other scales: give the state's own "
                "(such as 'inputs', 'layers' or 'adapt'), or both step_size and decoherence_length"
            )


def _variance(value: Any, dim: int) -> tuple[float, float]:
    """Variance of energy errors at the beginning and at the end of warmup."""
    name = "desired_energy_var"
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise ValueError(
                f"[MCLMC] expected {name} as a number or two, got {checks.summary(value)}"
            )
        begin, end = (checks.positive("MCLMC", name, one) for one in value)
        return begin, end
    both = _auto(name, value, "a number, two or 'auto'")
    return variances_of(dim) if both is None else (both, both)


def _auto(name: str, value: Any, expected: str = "a number or 'auto'") -> float | None:
    """Return a positive number; None for "auto"."""
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f"[MCLMC] expected {name} as {expected}, got {checks.summary(value)}")
        return None
    return checks.positive("MCLMC", name, value)
