"""What samplers ask of a target: its own trajectory, or a loop over its gradient."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks, overrides
from ribbit._arrays.namespace import dtype_in, errstate, from_host, namespace, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.errors import DTypeError, ShapeError
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array, RowGroup, TransitionDraw, TreeDraw
from ribbit.results.state import AnyState

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["Density"]


class Density:
    """A target with the optional members of its protocol filled in.

    Attributes
    ----------
    target
        The object itself.
    dim : int
    dtype : numpy dtype
        float32 or float64.
    xp : module
        Library of its arrays.
    interruptible : bool
        Whether its native trajectory polls an interrupt flag.
    has_native_tree : bool
        Whether it is a `protocols.NativeTree`.
    has_native_transition : bool
        Whether it is a `protocols.NativeTransition`.
    has_native_run : bool
        Whether it makes many such transitions in one call.
    rows_per_chain : bool
        Whether it takes a minibatch for each chain in one call.
    full_dim : int
        Parameters of a kept draw: `dim`, and where the target is a `protocols.Completes` more.
    completes : bool
        Whether it is one.
    undefined : bool
        Whether the log density or its gradient was NaN at a finite position in host memory.
    group : RowGroup or None
        Processes that evaluate it together.
    """

    def __init__(self, target: Any, *, function: str) -> None:
        methods = (getattr(target, name, None) for name in ("value_and_grad", "terms_and_grad"))
        if isinstance(target, type) or not any(map(callable, methods)):
            advice = checks.foreign(target)
            if not advice and hasattr(target, "parameters") and hasattr(target, "apply"):
                advice = ": rb.Posterior(model, x, y, prior=..., likelihood=...) makes one"
            raise TypeError(
                f"[{function}] expected a target with dim and value_and_grad(theta), "
                f"got {checks.summary(target)}{advice}"
            )
        dim = getattr(target, "dim", None)
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
            raise TypeError(
                f"[{function}] expected target.dim as an integer >= 1, got {checks.summary(dim)}"
            )
        overrides.check(function, target)
        self.target = target
        self.undefined = False
        self.group: RowGroup | None = getattr(target, "group", None)
        self.dim = int(dim)
        self.dtype = checks.float_dtype(function, getattr(target, "dtype", np.float64))
        self.xp: ModuleType = getattr(target, "array_namespace", None) or np
        self.interruptible = bool(self.native("interruptible"))
        self.rows_per_chain = bool(self.native("rows_per_chain"))
        self._function = function
        self._native = self.native("leapfrog")
        self.evaluates_start = hasattr(self._native, "evaluates_start")
        self._counts = hasattr(self._native, "counts_steps")
        fused = hasattr(self._native, "in_transitions")
        self._transition = self.native("hamiltonian") if fused else None
        self.has_native_transition = self._transition is not None
        self._tree = self.native("no_u_turn")
        self.has_native_tree = self._tree is not None
        self._terms = self.native("terms_and_grad")
        self._completes = getattr(target, "complete", None)
        self.completes = self._completes is not None
        parts = [self._transition, *([self._completes] if self.completes else [])]
        # The very methods that run natively: a wrapper has their attributes, and is no such method.
        in_runs = all(_stands_for(part) for part in parts)
        self._run = self.native("_hamiltonian_run") if in_runs else None
        self.has_native_run = self._run is not None
        self._identified = overrides.followed(target, "fingerprint")
        self.full_dim = self.dim if self._completes is None else int(target.full_dim)
        self._dtype = self.dtype if self.xp is np else dtype_in(self.xp, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        # Its library is a module, which cannot be pickled; all follows from the target.
        return _density, (self.target, self._function)

    @property
    def fingerprint(self) -> dict[str, str] | None:
        """What the target says it is, part by part; None where it says nothing."""
        found = getattr(self.target, "fingerprint", None) if self._identified else None
        return found if isinstance(found, dict) else None

    def identify(self, guard: InterruptGuard | None) -> dict[str, str] | None:
        """Return the fingerprint. The first time all rows are read, and Ctrl-C ends that."""
        if guard is not None:
            guard.begin_foreign()
        try:
            return self.fingerprint
        finally:
            if guard is not None:
                guard.foreign = False

    def native(self, name: str) -> Any:
        """Return member `name` of the target, None if it is of another density than its own."""
        return overrides.own(self.target, name)

    def terms_and_grad(
        self, theta: Array, guard: InterruptGuard | None = None
    ) -> tuple[Array, Array]:
        """Terms (C, M) float64 and gradient (C, P); the target sees a copy and is copied from."""
        xp = self.xp
        copy = xp.asarray(theta, copy=True)
        if guard is not None:
            guard.begin_foreign()
        try:
            if self._terms is not None:
                value, grad = self._pair(self._terms(copy))
            else:
                value, grad = self._pair(self.target.value_and_grad(copy))
        finally:
            if guard is not None:
                guard.foreign = False
        chains = theta.shape[0]
        value = self._checked("log density", value, xp.float64)
        grad = self._checked("gradient", grad, self._dtype)
        if self._terms is None:
            if value.shape != (chains,):
                raise self._shape("a log density", f"({chains},)", value)
            value = xp.reshape(value, (chains, 1))
        elif value.ndim != 2 or value.shape[0] != chains:
            raise self._shape("terms", f"({chains}, M)", value)
        if grad.shape != (chains, self.dim):
            raise self._shape("a gradient", f"({chains}, {self.dim})", grad)
        if xp is np and not self.undefined:
            unknown = np.isnan(value).any(axis=1) | np.isnan(grad).any(axis=1)
            self.undefined = bool(unknown.any() and np.isfinite(theta[unknown]).all(axis=1).any())
        return value, grad

    def not_finite(self, position: Array, largest: float, rate: str) -> str:
        """Return why steps from a position (P,) left the finite numbers, and advice.

        `largest`: the largest finite |gradient|; `rate`: what to make smaller.
        """
        terms, grad = self.terms_and_grad(position[None, :])
        if not (np.isnan(to_host(terms)).any() or np.isnan(to_host(grad)).any()):
            return f"largest |gradient| {largest:.3g}: use a smaller {rate}"
        return (
            "largest |gradient| NaN: the log density or its gradient is NaN where the largest "
            f"|parameter| is {np.abs(to_host(position)).max():.3g}. Correct the target there; if "
            f"the parameters ran away, use a smaller {rate}"
        )

    def on_batch(
        self, theta: Array, rows: npt.NDArray[np.int64], guard: InterruptGuard | None = None
    ) -> tuple[Array, Array]:
        """Log density (C,), gradient (C, P) of a batch of rows (n,), or (C, n), one per chain."""
        xp = self.xp
        if guard is not None:
            guard.begin_foreign()
        try:
            found = self.target.value_and_grad(xp.asarray(theta, copy=True), rows)
        finally:
            if guard is not None:
                guard.foreign = False
        value, grad = self._pair(found)
        value = self._checked("log density", value, xp.float64)
        grad = self._checked("gradient", grad, self._dtype)
        if value.shape != theta.shape[:1]:
            raise self._shape("a log density", f"{theta.shape[:1]}", value)
        if grad.shape != theta.shape:
            raise self._shape("a gradient", f"{theta.shape}", grad)
        return value, grad

    def leapfrog(
        self,
        position: Array,
        momentum: Array,
        grad: Array | None,
        step_size: Array,
        num_steps: npt.NDArray[np.int64],
        inverse_mass: Array | None,
        guard: InterruptGuard | None = None,
    ) -> tuple[Array, Array, Array, Array, npt.NDArray[np.int64]]:
        """Position, momentum (C, P), terms (C, M) and gradient at the ends of trajectories.

        And the leapfrog steps (C,) that were made: a chain that is lost, whose proposal could only
        be rejected, may end before `num_steps`. A gradient at the position of None is evaluated
        first.
        """
        if grad is None and not self.evaluates_start:
            _, grad = self.terms_and_grad(position)
        if self._native is None:
            return _python_leapfrog(
                self, position, momentum, grad, step_size, num_steps, inverse_mass, guard
            )
        made = num_steps.copy()
        options: dict[str, Any] = {"inverse_mass": inverse_mass}
        if self._counts:
            options["made"] = made
        if guard is None or self.interruptible:
            options["interrupt"] = None if guard is None else guard.flag
            end = self._native(position, momentum, grad, step_size, num_steps, **options)
        else:
            guard.begin_foreign()
            try:
                end = self._native(position, momentum, grad, step_size, num_steps, **options)
            finally:
                guard.foreign = False
        q, p, terms, g = end
        shape = position.shape
        if q.shape != shape or p.shape != shape or g.shape != shape or terms.shape[0] != shape[0]:
            raise ShapeError(
                f"[{self._function}] expected target.leapfrog to return position, momentum "
                f"{shape}, terms ({shape[0]}, M) and gradient {shape}, "
                f"got {q.shape}, {p.shape}, {terms.shape}, {g.shape}"
            )
        return q, p, terms, g, made

    def reduced(self, function: str, position: Array) -> Array:
        """Return a start (.., P) without what a `protocols.Completes` adds; others as they are."""
        if self._completes is None or position.ndim == 0 or position.shape[-1] != self.full_dim:
            return position
        return self.target.reduce(function, position)

    def completed(self, state: AnyState, guard: InterruptGuard | None = None) -> Array:
        """Return what is kept of a state: its positions (C, P), completed where the target can."""
        if self._completes is None:
            return state.position
        place: dict[str, Any] = {"seed": state.seed, "step": state.step, "chains": state.chains}
        if self.interruptible:
            flag = None if guard is None else guard.flag
            return self._completes(state.position, **place, interrupt=flag)
        if guard is None:
            return self._completes(state.position, **place)
        guard.begin_foreign()
        try:
            return self._completes(state.position, **place)
        finally:
            guard.foreign = False

    def native_transition(
        self, *vectors: Array, guard: InterruptGuard | None = None, **options: Any
    ) -> TransitionDraw:
        """Call the target's `protocols.NativeTransition.hamiltonian`."""
        found: TransitionDraw = self._guarded(self._transition, vectors, options, guard)
        return found

    def native_run(
        self, *vectors: Any, guard: InterruptGuard | None = None, **options: Any
    ) -> tuple[Any, ...]:
        """Make many transitions in one call; see ``samplers/mcmc/hamiltonian_run.py``."""
        assert self._run is not None
        found: tuple[Any, ...] = self._guarded(self._run, vectors, options, guard)
        return found

    def native_tree(
        self, *vectors: Array, guard: InterruptGuard | None = None, **options: Any
    ) -> TreeDraw:
        """Call the target's `protocols.NativeTree.no_u_turn`."""
        found: TreeDraw = self._guarded(self._tree, vectors, options, guard)
        return found

    def _guarded(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        guard: InterruptGuard | None,
    ) -> Any:
        """Call what is native of the target so that Ctrl-C ends it."""
        if guard is None or self.interruptible:
            flag = None if guard is None else guard.flag
            return function(*arguments, **options, interrupt=flag)
        guard.begin_foreign()
        try:
            return function(*arguments, **options)
        finally:
            guard.foreign = False

    def _pair(self, result: Any) -> tuple[Any, Any]:
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"[{self._function}] expected the target to return (log density, gradient), "
                f"got {checks.summary(result)}"
            )
        return result[0], result[1]

    def _checked(self, name: str, array: Any, dtype: Any) -> Array:
        """Copy of what a target returned, in `dtype`."""
        xp = self.xp
        if namespace(array, function=self._function) is not xp:
            raise DTypeError(
                f"[{self._function}] expected the target's {name} as {xp.__name__} array, "
                f"got {checks.summary(array)}"
            )
        if array.dtype != dtype:
            if not xp.isdtype(array.dtype, "real floating"):
                raise DTypeError(
                    f"[{self._function}] expected the target's {name} as real floats, "
                    f"got dtype {array.dtype}"
                )
            return xp.astype(array, dtype)
        return xp.asarray(array, copy=True)

    def _shape(self, what: str, expected: str, got: Array) -> ShapeError:
        return ShapeError(
            f"[{self._function}] expected {what} {expected} from the target, got shape {got.shape}"
        )


def _density(target: Any, function: str) -> Density:
    return Density(target, function=function)


def _python_leapfrog(
    density: Density,
    position: Array,
    momentum: Array,
    grad: Array,
    step_size: Array,
    num_steps: npt.NDArray[np.int64],
    inverse_mass: Array | None,
    guard: InterruptGuard | None,
) -> tuple[Array, Array, Array, Array, npt.NDArray[np.int64]]:
    """Run the same trajectory from gradients alone; chains leave the batch as they finish."""
    xp = density.xp
    q, p, g = position, momentum, grad
    eps = xp.astype(step_size, q.dtype)[:, None]  # (C, 1)
    rows = np.arange(num_steps.shape[0])  # chains still on their way
    ended: list[tuple[npt.NDArray[np.intp], Array, Array, Array, Array]] = []
    step, made = 0, np.empty_like(num_steps)
    with errstate(xp):
        drift = eps if inverse_mass is None else eps * inverse_mass
        p = p + (0.5 * eps) * g
    while True:
        if guard is not None and guard.requested:
            raise Interrupted
        step += 1
        with errstate(xp):
            q = q + drift * p
        terms, g = density.terms_and_grad(q, guard)
        ends = num_steps[rows] == step
        if xp is np:
            # A lost chain stops here: user code never sees the NaN that would follow. Elsewhere
            # the check would wait for the device.
            ends |= ~(np.isfinite(g).all(axis=1) & np.isfinite(terms).all(axis=1))
        made[rows[ends]] = step
        with errstate(xp):
            if ends.all():
                ended.append((rows, q, p + (0.5 * eps) * g, terms, g))
                break
            if ends.any():
                out, stay = np.flatnonzero(ends), np.flatnonzero(~ends)
                last = p + (0.5 * eps) * g
                ended.append((rows[out], *_take(xp, out, q, last, terms, g)))
                rows = rows[stay]
                q, p, g, eps = _take(xp, stay, q, p, g, eps)
                drift = _take(xp, stay, drift)[0] if drift.shape[0] == ends.shape[0] else drift
            p = p + eps * g
    if len(ended) == 1:
        return (*ended[0][1:], made)
    back = np.argsort(np.concatenate([group[0] for group in ended]))
    columns = [xp.concat([group[i] for group in ended], axis=0) for i in range(1, 5)]
    q, p, terms, g = _take(xp, back, *columns)
    return q, p, terms, g, made


def _take(xp: ModuleType, rows: npt.NDArray[np.intp], *arrays: Array) -> list[Array]:
    index = from_host(xp, rows)
    return [xp.take(array, index, axis=0) for array in arrays]


def total(terms: Array) -> Array:
    """Sum (C, M) over M, (C,), in one fixed order whatever C is."""
    value = terms[:, 0]
    for m in range(1, terms.shape[1]):
        value = value + terms[:, m]
    return value


def _stands_for(method: Any) -> bool:
    """Whether the core's runs do what this method does: it is marked, with itself."""
    function = getattr(method, "__func__", method)
    return function is not None and getattr(function, "in_runs", None) is function
