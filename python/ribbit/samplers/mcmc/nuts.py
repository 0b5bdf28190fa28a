"""The no-U-turn sampler."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit._arrays import checks, random_numbers
from ribbit._arrays.namespace import errstate, from_host, to_host
from ribbit.density import Density, total
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array, TreeDraw
from ribbit.results.state import State
from ribbit.samplers.mcmc.hamiltonian import Hamiltonian, Tuning, windows
from ribbit.samplers.mcmc.no_u_turn import no_u_turn
from ribbit.samplers.mcmc.options import inverse_mass

if TYPE_CHECKING:
    pass


__all__ = ["NUTS"]

_DEEPEST = 20  # a million leapfrog steps
# Of warmup until the last window ends. Gradients until the answer of bnn in benchmarks.effective,
# three seeds: 4.1 to 4.4 million without, 1.5 to 1.7 with 6, 1.2 to 1.5 with 5; of its marginal 1.6
# to 1.7, 0.65 to 0.66, 0.56 to 0.62. On normals whose sds differ 300-fold draws are as good.
_EARLY_DEPTH = 6


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

    _statistics: ClassVar[dict[str, str]] = {
        "lp": "float64",
        "acceptance_rate": "float64",
        "diverging": "bool",
        "energy": "float64",
        "energy_error": "float64",
        "n_steps": "int64",
        "tree_depth": "int64",
        "reached_max_treedepth": "bool",
        "step_size": "float64",
    }

    _probe_steps = 16

    def __init__(
        self,
        target: Any,
        *,
        step_size: float | Array | str = "auto",
        max_tree_depth: int = 10,
        inverse_mass_matrix: Array | str | None = "auto",
        target_accept: float = 0.8,
        divergence_threshold: float = 1000.0,
    ) -> None:
        density = Density(target, function="NUTS", dropout=False)
        super().__init__(density, divergence_threshold)
        self._depth = checks.integer(
            "NUTS", "max_tree_depth", max_tree_depth, minimum=1, maximum=_DEEPEST
        )
        # A mass that nobody asked for may stay where it starts when warmup is short.
        self._auto_mass = isinstance(inverse_mass_matrix, str) and inverse_mass_matrix == "auto"
        if self._auto_mass and isinstance(step_size, str):
            self._move_marginal(
                target,
                step_size=step_size,
                max_tree_depth=max_tree_depth,
                target_accept=target_accept,
                divergence_threshold=divergence_threshold,
            )
        self._tuning = tuning = Tuning(
            density,
            step_size=step_size,
            trajectory_length=None,
            num_leapfrog_steps=1,
            randomize_length=False,
            inverse_mass_matrix="adapt" if self._auto_mass else inverse_mass_matrix,
            target_accept=target_accept,
            max_num_leapfrog_steps=1,
            function="NUTS",
        )
        if self._auto_mass and _states_prior(target):
            tuning.inverse_mass = inverse_mass(density, "prior", "NUTS")
        self.settings = {
            "step_size": "auto" if tuning.step_size is None else tuning.step_size.tolist(),
            "max_tree_depth": self._depth,
            "inverse_mass_matrix": inverse_mass_matrix
            if inverse_mass_matrix is None or isinstance(inverse_mass_matrix, str)
            else to_host(inverse_mass_matrix).tolist(),
            "target_accept": tuning.target_accept,
            "divergence_threshold": self._threshold,
        }

    def _check_warmup(self, function: str, warmup: int) -> None:
        if not self._auto_mass or (warmup == 0 and self._tuning.step_size is None):
            super()._check_warmup(function, warmup)

    def _transition(
        self, state: State, guard: InterruptGuard | None
    ) -> tuple[State, dict[str, Array]]:
        xp = self._density.xp
        drawn = self._draw(state, guard)
        with errstate(xp):
            logdensity = total(drawn.terms)
            info = {
                "lp": logdensity,
                "acceptance_rate": from_host(xp, drawn.acceptance),
                "diverging": from_host(xp, drawn.diverging),
                "energy": from_host(xp, drawn.kinetic) - logdensity,
                "energy_error": from_host(xp, drawn.energy_error),
                "n_steps": from_host(xp, drawn.num_steps),
                "tree_depth": from_host(xp, drawn.depth),
                "reached_max_treedepth": from_host(xp, drawn.at_max_depth),
                "step_size": state.step_size,
            }
        state = dataclasses.replace(
            state,
            position=drawn.position,
            logdensity=logdensity,
            grad=drawn.grad,
            terms=drawn.terms,
            step=state.step + 1,
        )
        if state.adaptation is not None:
            state = self._tuning.adapt(state, drawn.acceptance, guard, settles=False)
        return state, info

    def _draw(self, state: State, guard: InterruptGuard | None) -> TreeDraw:
        """Draw a momentum and grow the trees, in the target's native code where it has some."""
        density, xp, mass = self._density, self._density.xp, state.inverse_mass
        address: dict[str, Any] = {"seed": state.seed, "step": state.step, "chains": state.chains}
        momentum = random_numbers.normal(
            xp,
            (state.chains.shape[0], density.dim),
            density.dtype,
            **address,
            purpose=random_numbers.MOMENTUM,
        )
        if mass is not None:
            momentum = momentum / xp.sqrt(mass)
        if density.tree is None:
            grow: Callable[..., TreeDraw] = functools.partial(no_u_turn, density, guard=guard)
        else:
            grow = functools.partial(density.call, density.tree, guard)
        return grow(
            state.position,
            momentum,
            state.grad,
            state.terms,
            state.step_size,
            **address,
            inverse_mass=mass,
            max_tree_depth=self._depth_of(state),
            divergence_threshold=self._threshold,
        )

    def _depth_of(self, state: State) -> int:
        """Return the doublings that the next tree may have, fewer while the mass is on its way."""
        if self._tuning.step_size is not None:
            return self._depth
        early = max(windows(state.warmup)[1], default=0)
        return min(self._depth, _EARLY_DEPTH) if state.step < early else self._depth


def _states_prior(target: Any) -> bool:
    """Whether a target has a finite sd of the prior of every parameter."""
    sd = getattr(target, "prior_sd", None)
    if sd is None:
        return False
    host = to_host(sd)
    return bool(np.all(np.isfinite(host) & (host > 0.0)))
