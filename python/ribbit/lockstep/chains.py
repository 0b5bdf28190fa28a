"""Chains of HMC and NUTS that move all at once on arrays of any library.

Shapes: C chains, K rows of a block, P parameters.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import _core
from ribbit._arrays.namespace import from_host, to_host
from ribbit.chains import Block, PythonChains, Start, naming
from ribbit.density import Density
from ribbit.interrupt import InterruptGuard
from ribbit.lockstep.hmc import Point, hmc
from ribbit.lockstep.nuts import nuts
from ribbit.lockstep.starts import first_step_sizes, warn_of_precision
from ribbit.protocols import Array
from ribbit.results.state import State, Welford

if TYPE_CHECKING:
    import numpy.typing as npt

_MOVES = {"hmc": hmc, "nuts": nuts}
_LONGER = 2.5  # a block on a GPU takes 0.25 s, because reading statistics waits for it
_BYTES, _ROWS = 1 << 22, 4096  # largest block


class LockstepChains(PythonChains):
    """Chains in this process on a density outside the core."""

    def __init__(
        self,
        function: str,
        density: Density,
        kernel: str,
        options: dict[str, Any],
        start: Start,
    ) -> None:
        """Make chains that have no positions yet, or that continue."""
        super().__init__()
        self._function, self._density, self._kernel = function, density, kernel
        self.seed, self.ids, self.warmup = start.seed, start.ids, start.warmup
        self._thinning, self._counts = start.thinning, start.thinning.period > 1
        xp, count = density.xp, len(start.ids)
        with naming(function):
            self._tuner = _core.Tuner(kernel, options, density.facts, *start[1:4])
        row = count * density.full_dim * density.dtype.itemsize
        self._capacity = max(1, min(_ROWS, _BYTES // row))
        zero = xp.zeros((count,), dtype=xp.int64)
        mass = self._tuner.inverse_mass
        if mass is not None:
            with np.errstate(all="ignore"):
                mass = mass.astype(density.dtype)
            if not np.all(np.isfinite(mass) & (mass > 0)):
                text = f"inverse_mass_matrix must be positive and finite in {mass.dtype}"
                raise ValueError(f"[{function}] {text}")
            mass = from_host(xp, mass)
        self._at = Point(start.seed, start.ids, 0, zero, zero, zero, mass, None, zero)
        if start.state is not None:
            self._load(start.state)

    @property
    def state(self) -> State:
        """The state after the last step."""
        at, target = self._at, self._density.fingerprint or {}
        arrays = {
            "chains": at.chains[:, None],
            "position": at.position,
            "grad": at.grad,
            "terms": at.terms,
            "inverse_mass": at.mass,
            "window.mean": at.window and at.window.mean,
            "window.squares": at.window and at.window.squares,
            "divergences": at.divergences[:, None],
        }
        return State._of(
            {
                "kernel": self._kernel,
                "target": "".join(f"{name}={value}\n" for name, value in target.items()),
                "seed": at.seed,
                "warmup": self.warmup,
                "step": at.step,
                "window.count": 0 if at.window is None else at.window.count,
                **{name: to_host(array) for name, array in arrays.items() if array is not None},
                **self._tuner.fields(),
            }
        )

    def _load(self, state: State) -> None:
        """Continue from a state, with the values that warmup found and with the new options."""
        xp, fields, adapts = self._density.xp, state.fields, self._tuner.adapts_mass
        names = "position", "grad", "terms", "inverse_mass", "window.mean", "window.squares"
        q, grad, terms, mass, mean, squares = (
            from_host(xp, fields[name].copy()) if name in fields else None for name in names
        )
        then, now = state.target, self._density.fingerprint
        if then is None or now is None or then.keys() != now.keys():
            how = self._function, q, self.ids, None
            terms, grad, lp = self._density.evaluate(*how, resumed=True)
            if then is not None and now is not None:
                _check_same(self._function, state.terms.sum(axis=1), to_host(lp))
        count = int(fields["window.count"]) if adapts and mean is not None else 0
        before = state.divergences if self._counts else np.zeros_like(state.divergences)
        self._at = self._at._replace(
            step=state.step,
            position=q,
            grad=grad,
            terms=terms,
            mass=mass if adapts else self._at.mass,
            window=Welford(mean, squares, count) if count else None,
            divergences=from_host(xp, before.copy()),
        )
        tuned = ("step_size", "dual.")
        found = {k: np.array(v) for k, v in fields.items() if k.startswith(tuned)}
        with naming(self._function):
            self._tuner.load(found, state.step, fields.get("inverse_mass"))

    def start(self, position: Array, guard: InterruptGuard | None) -> None:
        """Begin at positions (C, dim) or (C, full_dim)."""
        density, at = self._density, self._at
        with naming(self._function):
            self._tuner.check_warmup()
        q = density.xp.asarray(density.reduced(self._function, position), copy=True)
        terms, grad, _ = density.evaluate(self._function, q, at.chains, guard)
        at = at._replace(position=q, grad=grad, terms=terms)
        found = (
            first_step_sizes(density, self._tuner, at, guard)
            if self._tuner.finds_step
            else np.ones(len(at.chains))
        )
        self._tuner.begin(found)
        if density.precision_reference is not None:
            steps = self._tuner.num_steps if self._kernel == "hmc" else None
            warn_of_precision(self._function, density, self._tuner, steps, at, guard)
        self._at = at

    @property
    def step_size(self) -> npt.NDArray[np.float64]:
        """Step sizes (C,) of the next transition."""
        return self._tuner.fields()["step_size"][:, 0]  # type: ignore[no-any-return]

    def advance(
        self, most: int, seconds: float, guard: InterruptGuard, stop: int = sys.maxsize
    ) -> Block:
        """Make at most `most` rows in about `seconds`; see `AnyChains`."""
        self.calls = []
        self.raise_deferred()
        xp, warming = self._density.xp, self.warming_up
        end = time.perf_counter() + (seconds if xp is np else _LONGER * seconds)
        most = min(most, self._capacity, sys.maxsize if warming else self.largest)
        positions, rows, begun = list[Array](), list[dict[str, Array]](), self._at
        last: dict[str, Array] = {}  # statistics of the last step, if a block ends between draws
        try:
            begun = self._at
            while len(rows) < most and not guard.requested:
                last = self._step(guard, positions, rows)
                over = self.step == stop or self.warming_up != warming
                if over or time.perf_counter() >= end:
                    break
        except BaseException as error:
            self._defer(error, guard, begun)
        if not rows:
            self.calls = [(self.step, last)] if last else []
            return None, {}
        stats = {name: _stacked(xp, [row[name] for row in rows]) for name in rows[0]}
        self.calls = [(self.step, stats)]
        return (xp.stack(positions, axis=1) if positions else None), stats

    def _step(
        self, guard: InterruptGuard, positions: list[Array], rows: list[dict[str, Array]]
    ) -> dict[str, Array]:
        """Make one transition, add its row if it has one, and return its statistics (C,)."""
        xp, tuner, at = self._density.xp, self._tuner, self._at
        q, grad, terms, stats = _MOVES[self._kernel](self._density, tuner, at, guard)
        after = at._replace(step=at.step + 1, position=q, grad=grad, terms=terms)
        drawn = after.step - self.warmup
        adapts, first_step = drawn <= 0, None
        if adapts:
            if tuner.collects(after.step):
                window = after.window or Welford.start(xp, q.shape)
                after = after._replace(window=window.update(xp, q))
            if tuner.closes(after.step):
                after = self._with_new_mass(after)
                if tuner.finds_step:
                    first_step = first_step_sizes(self._density, tuner, after, guard)
        keeps = adapts or self._thinning.count(drawn) > self._thinning.count(drawn - 1)
        if self._counts:
            diverging = from_host(xp, stats["diverging"])
            count = at.divergences + xp.astype(diverging, xp.int64)
            stats["divergences"] = count
            after = after._replace(divergences=count * 0 if keeps else count)
        position = None
        if keeps and (self._thinning.each or not adapts):
            position = self._density.completed(after, guard)
        # The lines above may fail, the lines below do not. So an error changes no state.
        if adapts and tuner.finds_step:
            tuner.observe(at.step, to_host(stats["acceptance_rate"]))
        if first_step is not None:
            tuner.begin(first_step, renewed=True)
        if drawn == 0:
            tuner.end_warmup()
        self._at = after
        if keeps:
            rows.append(stats)
        if position is not None:
            positions.append(position)
        return stats

    def _with_new_mass(self, at: Point) -> Point:
        """Set the inverse mass to the variances of the window."""
        mass = at.mass
        # If a load changed the options in warmup, the window may hold fewer than 2 positions.
        if at.window is not None and at.window.count > 1:
            mass = self._density.xp.astype(at.window.variance(), at.position.dtype)
        return at._replace(mass=mass, window=None)


def _check_same(
    function: str, before: npt.NDArray[np.float64], now: npt.NDArray[np.float64]
) -> None:
    """Raise if a state from another language has log densities (C,) that this target lacks."""
    # As in cpp/chains/hamiltonian_chains.cpp, which says why.
    other = np.abs(now - before) > 1e-4 * np.maximum(1.0, np.abs(before))
    if other.any():
        chain = int(np.argmax(other))
        raise ValueError(
            f"[{function}] the chains belong to another target: a chain had the log density "
            f"{before[chain]:.6f}, here it is {now[chain]:.6f}. Use the data and options of the "
            "first run, or start new chains"
        )


def _stacked(xp: Any, values: list[Array]) -> Array:
    """Return a statistic (C, K) of the rows of a block."""
    if isinstance(values[0], np.ndarray):
        return from_host(xp, np.stack(values, axis=1))
    return xp.stack(values, axis=1)
