"""Samplers whose transitions the core makes: HMC and NUTS, as tables of options.

Shapes: C chains, P parameters.
"""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit import _core
from ribbit._arrays import checks, overrides
from ribbit._arrays.namespace import is_array, namespace, to_host
from ribbit._arrays.warning import warn
from ribbit.chains import AnyChains, NativeChains, Start
from ribbit.density import Density, restart
from ribbit.errors import DTypeError
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import State
from ribbit.sample import Sampler

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["HMC", "NUTS", "Hamiltonian"]


class Hamiltonian(Sampler):
    """Base class of the samplers of the core, which are dataclasses of their options."""

    _kernel: ClassVar[str]

    target: Any
    _options: dict[str, Any]  # as the core takes them
    _marginal: Density | None  # of the target with its last layer integrated out, if that is used
    _settings: list[dict[str, Any]]  # on the target, and on its marginal density

    def __post_init__(self) -> None:
        name = type(self).__name__
        density = Density(self.target, function=name, dropout=False)
        options = {}
        for field in dataclasses.fields(self)[1:]:  # type: ignore[arg-type]
            value = getattr(self, field.name)
            checks.unmasked(name, field.name, value)
            if is_array(value):
                library = namespace(value, function=name, name=field.name)
                if field.name == "inverse_mass_matrix" and library is not density.xp:
                    raise DTypeError(
                        f"[{name}] {field.name} must be a {density.xp.__name__} array, "
                        f"got {checks.summary(value)}"
                    )
                value = to_host(value).copy()
            # Settings are plain values; an array has a number for each chain or parameter.
            scalar = isinstance(value, np.ndarray | np.generic) and value.ndim == 0
            if scalar and value.dtype.kind in "biuf":  # item() of NaT would be None
                value = value.item()
            options[field.name] = list(value) if isinstance(value, list) else value
        resolved = _core.resolve_options(self._kernel, options, density.facts)
        marginal = None
        if resolved["leaves_motion"]:
            marginal = overrides.own(self.target, "marginal", overrides.WHOLE)
        if marginal is not None:
            marginal = Density(marginal, function=name, dropout=False)
        forms = [density, *([] if marginal is None else [marginal])]
        settings = [self._resolved(options, form) for form in forms]
        members = {"_density": density, "_options": options, "_marginal": marginal}
        for member, value in {**members, "_settings": settings, "settings": settings[0]}.items():
            object.__setattr__(self, member, value)  # the dataclass is frozen
        if not isinstance(options["step_size"], str):
            self._check_lengths(density, np.atleast_1d(np.asarray(options["step_size"], float)))

    @classmethod
    def _statistics_of(cls, *, thinned: bool) -> dict[str, str]:
        return _core.kernel_statistics(cls._kernel, thinned)

    def _settings_on(self, density: Density) -> dict[str, Any]:
        of_target, *of_marginal = self._settings
        return of_target if density is self._density else of_marginal[0]

    def _resolved(self, options: dict[str, Any], density: Density) -> dict[str, Any]:
        """Return the settings on a density."""
        found = _core.resolve_options(self._kernel, options, density.facts)
        settings = {name: found.get(name, value) for name, value in options.items()}
        step_size, mass = options["step_size"], options["inverse_mass_matrix"]
        if not isinstance(step_size, str):
            step_size = np.asarray(step_size, np.float64).tolist()
        if mass is None:
            prior = "prior" if found["inverse_mass"] is not None else None
            mass = "adapt" if found["adapt_mass"] else prior
        elif not isinstance(mass, str):
            mass = np.asarray(mass).tolist()
        return settings | {"step_size": step_size, "inverse_mass_matrix": mass}

    def _density_for(self, resume: Any) -> Density:
        marginal: Density | None = self._marginal
        if marginal is None:
            return self._density
        if resume is not None:
            state = getattr(resume, "state", resume)
            before = getattr(state, "target", None) or {}
            if before.get("integrated") != (marginal.fingerprint or {}).get("integrated"):
                return self._density
        return marginal

    def _chains(
        self, name: str, density: Density, start: Start, guard: InterruptGuard | None
    ) -> AnyChains:
        if start.state is not None:
            self._check_state(name, density, start.state)
        kind: Any = NativeChains
        if density.core is None:
            from ribbit.lockstep.chains import LockstepChains  # not needed for targets in the core

            kind = LockstepChains
        chains = kind(name, density, self._kernel, self._options, start)
        if start.position is not None:
            chains.start(start.position, guard)
        return chains  # type: ignore[no-any-return]

    def _check_state(self, name: str, density: Density, state: Any) -> None:
        """Raise unless a state is of this kernel and target."""
        if not isinstance(state, State):
            got = checks.summary(state)
            raise TypeError(f"[{name}] expected a state of {type(self).__name__}, got {got}")
        if state.kernel != self._kernel:
            raise ValueError(
                f"[{name}] expected a state of {type(self).__name__}, got one of "
                f"{state.kernel.upper()}: {restart(name)}"
            )
        density.check_same(name, state)
        if state.position.dtype != density.dtype:
            raise DTypeError(
                f"[{name}] expected a state of {density.dtype} arrays, "
                f"got {checks.summary(state.position)}"
            )

    def _check_lengths(self, density: Density, step_size: npt.NDArray[np.float64]) -> None:
        """Warn if a limit shortens trajectories with these step sizes (n,)."""

    def _warmed_up(self, density: Density, chains: Any) -> None:
        if isinstance(self._options["step_size"], str):
            self._check_lengths(density, chains.step_size)


@dataclass(frozen=True, eq=False, repr=False)
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

    _kernel: ClassVar[str] = "hmc"

    target: Any
    _: KW_ONLY
    step_size: float | Array | str = "auto"
    trajectory_length: float | None = None
    num_leapfrog_steps: int | None = None
    randomize_length: bool = True
    inverse_mass_matrix: Array | str | None = None
    step_size_jitter: float = 0.0
    target_accept: float = 0.9
    max_num_leapfrog_steps: int | None = None
    divergence_threshold: float = 1000.0

    def _resolved(self, options: dict[str, Any], density: Density) -> dict[str, Any]:
        settings = super()._resolved(options, density)
        settings["num_leapfrog_steps"] = options["num_leapfrog_steps"]
        if self.num_leapfrog_steps is not None:
            settings["trajectory_length"] = None
        return settings

    def _settled(self, density: Density, warmup: int) -> int | None:
        if not isinstance(self.step_size, str) or self.num_leapfrog_steps is not None or warmup < 2:
            return None
        chain = np.zeros(1, np.uint32)
        tuner = _core.Tuner(self._kernel, self._options, density.facts, 0, chain, warmup)
        return max(tuner.brief_until, warmup // 2)

    def _check_lengths(self, density: Density, step_size: npt.NDArray[np.float64]) -> None:
        facts = density.facts
        count = _core.num_shortened(self._options, facts, step_size)
        if count == 0:
            return
        found = _core.resolve_options(self._kernel, self._options, facts)
        mean, most = found["max_mean_leapfrog_steps"], found["max_num_leapfrog_steps"]
        if mean < most:
            warn(
                f"[HMC] expected steps with which the default length takes at most {mean} leapfrogs"
                f" on average, got {count} of {step_size.size} smaller: those trajectories are "
                "shorter. The density is narrow in some directions: inverse_mass_matrix='adapt' or "
                "rb.MCLMC may take it further; max_num_leapfrog_steps=100_000 asks for the whole "
                "length",
            )
        else:
            warn(
                f"[HMC] expected at most {most} leapfrog steps per trajectory "
                f"(max_num_leapfrog_steps), got more for {count} of {step_size.size} step "
                "sizes: those trajectories are shorter than asked for",
            )


@dataclass(frozen=True, eq=False, repr=False)
class NUTS(Hamiltonian):
    """The no-U-turn sampler (Hoffman and Gelman 2014) in its multinomial form (Betancourt 2017).

    A transition draws a momentum from N(0, M). It doubles a trajectory, forwards or backwards at
    random, until the trajectory turns back or diverges. The new state is one of the trajectory's
    states, drawn with weights exp(-energy), later halves preferred. So you choose no trajectory
    length. Chains are independent, also in warmup. U-turns are detected by the sum of the momenta
    (Betancourt 2017, appendix A.4.2), also across the seam of two halves, as in Stan since 2.21.

    If warmup finds step size and mass, the last layer of a regression is integrated out if that
    pays, as in :class:`HMC`. In measurements (two to three seeds) this gave 3.5 times the effective
    draws per gradient on a 3-5-5-1 network, and 2 to 6 times on 8-30-1.

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity`, such as :class:`ribbit.Posterior`.
    step_size : float, (C,) array or "auto"
        Leapfrog step, for all chains or for each. "auto": found per chain in warmup by dual
        averaging (Hoffman and Gelman 2014, algorithm 5) of the mean acceptance over a tree. Until
        the last window of the mass ends, 50 transitions before the end of a long warmup, the depth
        of a tree is at most 6.
    max_tree_depth : int
        Largest number of doublings, 1 to 20: a draw takes up to 2^depth - 1 leapfrog steps.
    inverse_mass_matrix : (P,) array, "prior", "adapt", "auto" or None
        Diagonal of the inverse of M. "prior": prior_sd^2 * temperature. "adapt": the variances of
        each chain in warmup, in Stan's windows. None: ones. "auto": "prior", if the target has
        prior sds, until the first window ends, then "adapt"; a warmup under 20 transitions has no
        window. On a 3-5-5-1 network with learned noise "auto" had 1.2 to 1.4 times the effective
        draws per gradient of "prior", and 0.5 % divergent transitions instead of 6 %.
    target_accept : float
        Mean acceptance rate in (0, 1) that a step size of "auto" aims for.
    divergence_threshold : float
        Energy error above which a trajectory ends and its draw is flagged as diverging.

    Raises
    ------
    TypeError
        For arguments of the wrong type, no log density as target, or one with Dropout layers.
    ValueError
        For values out of range.

    See Also
    --------
    ribbit.HMC : trajectories of random lengths around a length that is known in advance.

    Examples
    --------
    >>> import numpy as np
    >>> import ribbit as rb
    >>> x = np.linspace(-1, 1, 30)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> draws = rb.NUTS(target).sample(200, warmup=200, seed=1, progress=False)
    >>> draws.positions.shape
    (4, 200, 2)
    >>> bool(draws.stats["reached_max_treedepth"].any())
    False
    """

    _kernel: ClassVar[str] = "nuts"

    target: Any
    _: KW_ONLY
    step_size: float | Array | str = "auto"
    max_tree_depth: int = 10
    inverse_mass_matrix: Array | str | None = "auto"
    target_accept: float = 0.8
    divergence_threshold: float = 1000.0
