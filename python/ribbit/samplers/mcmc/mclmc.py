"""Microcanonical Langevin Monte Carlo."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import errstate, to_host
from ribbit.protocols import Array
from ribbit.results.discretization_bias import DiscretizationBias
from ribbit.results.draws import Draws
from ribbit.results.state import MicrocanonicalState
from ribbit.samplers.mcmc.energy_tuning import STEP_LIMIT, EnergyTuning, variances_of
from ribbit.samplers.mcmc.isokinetic import GRADIENTS, Dynamics
from ribbit.samplers.mcmc.layer_scales import scales_of
from ribbit.samplers.mcmc.microcanonical import Adjusted, Unadjusted
from ribbit.samplers.mcmc.shorter_steps import count_of, discretization_bias, set_by, state_of
from ribbit.samplers.mcmc.starting import Evaluated
from ribbit.samplers.run import options
from ribbit.samplers.run.base import Sampler
from ribbit.samplers.run.interrupt import InterruptGuard
from ribbit.samplers.run.run import ProgressOption
from ribbit.samplers.run.target import Density, total

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["MCLMC"]

_FINISH = 5_000  # steps of Adam: warmup unlearns what fits too well, but finds no better mode


class MCLMC(Sampler):
    """Microcanonical Langevin Monte Carlo (Robnik, De Luca, Silverstein and Seljak 2023).

    A chain moves at constant speed; gradients turn its direction, and noise lets the direction
    forget itself. Started at the members of an ensemble it is what Sommer et al. (2025) run for
    Bayesian neural networks. Without an accept step it is biased, by as much as its steps lose
    energy: ``draws.summary()`` has the variance of the energy error per parameter. At 0.02 the
    narrowest of 40 directions of a Gaussian whose sds differ ten-fold, and that share a scale, is
    1.23 times as wide as it should be, the widest 3 % narrower; at 0.1, 1.5 times and 6 %; at
    0.0005, 6 % and 1 %. What all parameters do together is off by more of its own sds: the log
    density of 1,250 normals by 3, the log likelihood of 20 rows that make 20 of them a third as
    wide by 3.5. By default it is 0.02 of up to 1,250 parameters, and a step is a quarter of the
    decoherence length at most: then that narrowest direction is 1.16 times as wide, the log density
    0.1 of its sds off and the log likelihood 0.5. Few directions much wider than the others have
    half the effective draws by it, others as many at 20 steps a draw; steps of networks on more
    rows are shorter by far. :meth:`discretization_bias` finds the bias of a run.
    ``adjusted=True`` accepts trajectories of random length by their energy error (Robnik,
    Cohn-Gordon and Seljak 2025), which is exact. Chains never influence each other, not even in
    warmup.

    A step costs one gradient, and a draw every step would hardly differ from the last: ``thin`` of
    :meth:`sample` is 20 steps where none is given, and ``warmup``, which cools chains into good
    modes, as many steps as the draws take, 10,000 at least. In the adjusted form they count
    trajectories, 1 and 500.

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity` of at least two parameters.
    adjusted : bool
        Accept or reject trajectories.
    desired_energy_var : float, (float, float) or "auto"
        Variance of the energy error of a step divided by P, which sets the step size; two: at the
        beginning and at the end of warmup, the first larger to find better modes. The bias of
        variances falls with it. "auto": (0.5, 0.02), and of more than 1,250 parameters (1250 / P)^2
        times as much, since a bias that is small in each of many weights can be large in what they
        do together, such as the log likelihood. Not looked at when adjusted.
    step_limit : float, None or "auto"
        Of a step that is found, in decoherence lengths, from 80 % of warmup on; a state past its
        warmup keeps its step. "auto": 0.25, and None, no limit, where a length is given. Not looked
        at when adjusted or a step is given.
    step_size : float or "auto"
        "auto": found in warmup for every chain, from the energy errors; when adjusted by dual
        averaging.
    decoherence_length : float or "auto"
        Time, and at speed one the length, in which a direction forgets itself; when adjusted the
        mean length of a trajectory. "auto": the root of the sum of the variances of a chain's
        positions in warmup.
    inverse_mass_matrix : (P,) array, "auto", "layers", "inputs", "prior" or "adapt", optional
        Diagonal: the squares of the scales by which parameters are divided first. "layers": one
        scale for each array of weights or biases, in warmup and for each chain, from the variances
        of its positions there and from its gradients, which differ between layers by far more than
        within one. "inputs": beside these, for each layer of up to 64 inputs (the biases are
        one more), one matrix that its units share, by which their weights are whitened, from second
        moments of the same positions and gradients: steps are longer. Found in the first 60 % of
        warmup: a state that has come farther keeps what it has. Needs ``parameter_blocks``, which a
        posterior in host memory has; not when adjusted. "auto": one of these two where the target
        has ``parameter_groups``, as a :class:`ribbit.Posterior` does, and neither step nor length
        is given; else, and when adjusted, ones. It is "inputs" where the target has what that needs
        and a ``noise_floor`` of 0.05 or more, meant for y of sd 1, as
        ``HeteroscedasticGaussian(min_sd=0.05)`` has. With a smaller one or none networks predict
        most rows better with "inputs", and rows whose y is unlike that of rows near them worse.
        "prior": the variance of the tempered prior. "adapt": the variances of each chain in warmup.
        None: ones.
    integrator : {"leapfrog", "mclachlan"}
        The second has two gradients in a step and takes steps more than twice as long.
    target_accept : float
        What adjusted chains aim for.
    max_num_leapfrog_steps : int
        Cap of an adjusted trajectory, with the statistic "capped".
    divergence_threshold : float
        A larger energy error flags an adjusted transition as diverging; a step of the unadjusted
        form is diverging where it is not finite: it is undone and the chain turned round.
    batch_size : None
        All rows: gradients of minibatches would be refused, since their noise heats a chain whose
        energy nothing corrects.

    Raises
    ------
    TypeError
        For arguments of another kind, a target that is none, or one with Dropout layers.
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
        density = Density(target, function=name)
        options.no_dropout(name, target)
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
            self.ensemble_finish = _FINISH
        # Those of its class, as other samplers have them: here of the form.
        self.statistics = self._moves.statistics  # type: ignore[misc]
        self.chunked = self._moves.chunked  # type: ignore[misc]
        self.default_warmup = self._moves.default_warmup
        self.default_thin = self._moves.default_thin
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
            return self.default_warmup
        return max(self.default_warmup, thin * (num_draws or 0))

    def init(
        self,
        position: Array,
        *,
        seed: int = 0,
        chains: npt.ArrayLike | None = None,
        warmup: int = 0,
    ) -> MicrocanonicalState:
        """Start chains at given positions.

        Parameters
        ----------
        position : (P,) or (C, P) array
            Converted to the target's dtype and copied.
        seed : int
            64-bit key of all random numbers.
        chains : (C,) ids, optional
            Ids of the chains, default 0..C-1.
        warmup : int
            Steps (transitions of the adjusted form) during which :meth:`step` adapts what is
            "auto" or "adapt": then at least 100 (20).

        Returns
        -------
        MicrocanonicalState

        Raises
        ------
        TypeError, ValueError
            For a wrong kind or shape, and for a position that is not finite or has no finite log
            density or gradient; the text names the chain.
        """
        return self._init("MCLMC.init", position, seed, chains, warmup, None)

    def _init(
        self,
        function: str,
        position: Array,
        seed: int,
        chains: npt.ArrayLike | None,
        warmup: int,
        guard: InterruptGuard | None,
    ) -> MicrocanonicalState:
        density, xp = self._density, self._density.xp
        q, ids = self._start_arrays(function, position, seed, chains, warmup)
        least = self._moves.least_warmup
        if self._moves.tuning.adapts and warmup < least:
            found = ("auto", "adapt", "layers", "inputs")
            names = ", ".join(f"{k}={v!r}" for k, v in self.settings.items() if v in found)
            raise ValueError(f"[{function}] expected warmup >= {least} for {names}, got {warmup}")
        _finite(function, "position", ids, to_host(q))
        terms, grad = density.terms_and_grad(q, guard)
        with errstate(xp):
            logdensity = total(terms)
        _finite(function, "log density", ids, to_host(logdensity)[:, None])
        _finite(function, "gradient", ids, to_host(grad))
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
            state = dataclasses.replace(state, adaptation=self._adaptation(state))
        self._evaluated.add(state)
        return state

    def step(
        self, state: MicrocanonicalState, *, num_steps: int = 1
    ) -> tuple[MicrocanonicalState, dict[str, Array]]:
        """Make `num_steps` steps, or transitions of the adjusted form.

        Parameters
        ----------
        state : MicrocanonicalState
            Not changed.
        num_steps : int
            At least 1.

        Returns
        -------
        state : MicrocanonicalState
        info : dict of (C,) arrays
            Statistics of the last step: lp, energy_error, energy_variance (mean of the squared
            errors since warmup, divided by P), diverging, n_steps (gradients), step_size,
            decoherence_length, and divergences, their number in all steps of the call. Of the last
            transition of the adjusted form: lp, acceptance_rate, accepted, diverging, energy_error,
            n_steps, step_size, trajectory_length, capped.
        """
        count = checks.integer("MCLMC.step", "num_steps", num_steps, minimum=1, maximum=2**39)
        return self._advance(self._adopt("MCLMC.step", state, None), count, None)

    def discretization_bias(
        self, draws: Draws, *, num_steps: int | None = None, progress: ProgressOption = None
    ) -> DiscretizationBias:
        """Find how far the steps of unadjusted chains put their log likelihood off.

        Chains go on from where the draws ended, with a tenth of their step size and, as far, with
        their own. The error of their law goes with the square of the step size, so that the
        difference is 99 % of the bias of what forgets itself within half of that way, the half that
        is compared. What is slower has a bias that is not in it, of either sign.

        Parameters
        ----------
        draws : Draws
            Of the unadjusted form on this target, past their warmup, of two chains or more: with
            their step sizes, lengths, scales and integrator, whatever this sampler has. Not
            changed; the steps have the random numbers that ``resume=draws`` would have.
        num_steps : int, optional
            Short steps of each chain, a multiple of 100, 1,000 at least; default a tenth of the
            steps of the draws and their warmup, 2,000 at least. Each chain makes a tenth as many of
            its own. Of four chains the default finds a bias of an sd, of some where terms move
            slowly.
        progress : bool, callable or None
            As of :meth:`sample`.

        Returns
        -------
        DiscretizationBias
            By term, which of a :class:`ribbit.Posterior` are log likelihood and log prior, each
            divided by its temperature.

        Raises
        ------
        TypeError
            For what are no draws of MCLMC.
        ValueError
            For draws of the adjusted form, of another target, of one chain, or that ended in
            warmup, and for another number of steps.

        Examples
        --------
        1,250 normals, whose log density is three of its standard deviations off without a limit:

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

    def _adaptation(self, state: MicrocanonicalState) -> Any:
        """Return what is left to adapt: these options with the state's running sums."""
        shape, moves = tuple(state.position.shape), self._moves
        if isinstance(moves, Adjusted):
            return moves.adaptation(shape, state.step_size, state.adaptation)
        return moves.tuning.adaptation(shape, state.adaptation)

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
                "of the other form: to start from where it ended give init=state.position"
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
            adopted = dataclasses.replace(adopted, adaptation=self._adaptation(adopted))
        self._evaluated.add(adopted)
        return adopted

    def _current(
        self, function: str, state: MicrocanonicalState, guard: InterruptGuard | None
    ) -> MicrocanonicalState:
        """Check that a state is of this target, and evaluate it where this sampler has not."""
        density, xp = self._density, self._density.xp
        options.same_kind(function, density, state.position)
        options.same_target(function, density, state.target)
        changes: dict[str, Any] = {"target": density.fingerprint}
        if state not in self._evaluated:
            # Of another sampler, or from a file. On the same target the same bits come out.
            terms, grad = density.terms_and_grad(state.position, guard)
            with errstate(xp):
                logdensity = total(terms)
            _finite(function, "log density", state.chains, to_host(logdensity)[:, None])
            changes |= {"terms": terms, "grad": grad, "logdensity": logdensity}
        return dataclasses.replace(state, **changes)

    def _same_scales(self, function: str, state: MicrocanonicalState) -> None:
        """Raise ValueError where a step or a length that stays was found for other scales."""
        tuning, before = self._moves.tuning, state.inverse_mass
        if tuning.step_size is not None and tuning.length is not None:
            return
        if before is None and self._mass is None and state.mixing is None:
            return
        if (
            before is None
            or state.mixing is not None
            or self._mass is None
            or before.shape != self._mass.shape
        ):
            same = False
        else:
            same = bool(np.array_equal(to_host(before), to_host(self._mass)))
        if not same:
            raise ValueError(
                f"[{function}] expected a state whose step and length were found with this "
                "sampler's inverse_mass_matrix, got one of other scales: give the state's own "
                "(such as 'inputs', 'layers' or 'adapt'), or both step_size and decoherence_length"
            )


def _variance(value: Any, dim: int) -> tuple[float, float]:
    """Variance of energy errors at the beginning and at the end of warmup."""
    name = "desired_energy_var"
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(
                f"[MCLMC] expected {name} as a number, two or 'auto', got {checks.summary(value)}"
            )
        return variances_of(dim)
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise ValueError(
                f"[MCLMC] expected {name} as a number or two, got {checks.summary(value)}"
            )
        begin, end = (checks.positive("MCLMC", name, one) for one in value)
        return begin, end
    both = checks.positive("MCLMC", name, value)
    return both, both


def _auto(name: str, value: Any, expected: str = "a number or 'auto'") -> float | None:
    """Return a positive number; None for "auto"."""
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f"[MCLMC] expected {name} as {expected}, got {checks.summary(value)}")
        return None
    return checks.positive("MCLMC", name, value)


def _finite(
    function: str, what: str, chains: npt.NDArray[np.uint32], values: npt.NDArray[Any]
) -> None:
    good = np.isfinite(values)
    if not good.all():
        chain, place = np.unravel_index(int(np.argmin(good)), values.shape)
        parameter = f", parameter {place}" if values.shape[1] > 1 else ""
        raise ValueError(
            f"[{function}] expected a finite {what} at the chains' positions, "
            f"got {values[chain, place]} for chain {chains[chain]}{parameter}"
        )
