"""Targets as samplers and fits call them, and what they check of a target and of a state.

Shapes: C chains, P parameters, M terms.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks, overrides
from ribbit._arrays.namespace import dtype_in, errstate, from_host, host_dtype, namespace, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.errors import DTypeError, ShapeError
from ribbit.interrupt import InterruptGuard, foreign
from ribbit.protocols import Array, RowGroup
from ribbit.results.state import AnyState

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = [
    "BATCH_SIZE",
    "Density",
    "sums_over_rows",
    "total",
]

BATCH_SIZE = 128  # what samplers and fits of minibatches have by default


class Density:
    """A target with the optional members of its protocol filled in."""

    def __init__(
        self,
        target: Any,
        *,
        function: str,
        dropout: bool = True,
        by_rows: bool = False,
        group: bool = True,
    ) -> None:
        """Check a target, whether it may have dropout, must sum over rows, may have a group."""
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
        layers = tuple(getattr(target, "dropout_layers", ()))
        if layers and not dropout:
            module = hasattr(target, "state_dict")
            off = "call module.eval() before posterior()" if module else "take the layer out"
            raise TypeError(
                f"[{function}] expected a target without Dropout layers, got "
                f"{', '.join(map(str, layers))} (use MCDropout, or {off})"
            )
        if by_rows:
            sums_over_rows(function, target)
        self.group: RowGroup | None = getattr(target, "group", None)
        if self.group is not None and not group:
            raise ValueError(
                f"[{function}] expected a posterior without group=, got one whose rows lie on "
                f"{self.group.size} ranks: it needs all rows in one process"
            )
        self.target, self._function = target, function
        self.dim = int(dim)
        self.dtype = checks.float_dtype(function, getattr(target, "dtype", np.float64))
        self.xp: ModuleType = getattr(target, "array_namespace", None) or np
        self._dtype = self.dtype if self.xp is np else dtype_in(self.xp, self.dtype)
        # Whether the log density or its gradient was NaN at a finite position in host memory.
        self.undefined = False
        # Whether native calls poll an interrupt flag, and take a minibatch for each chain.
        self.interruptible = bool(self.native("interruptible"))
        self.rows_per_chain = bool(self.native("rows_per_chain"))
        self._native = native = self.native("leapfrog")
        self.evaluates_start = hasattr(native, "evaluates_start")
        self._counts = hasattr(native, "counts_steps")
        fused = hasattr(native, "in_transitions")
        if self.xp is np and _stands_for(native):
            self._native = native.__self__._leapfrog  # without checks of arrays that are ours
        # `protocols.NativeTransition.hamiltonian` and `NativeTree.no_u_turn`, for `call`; or None.
        self.transition = self.native("hamiltonian") if fused else None
        self.tree = self.native("no_u_turn")
        self._terms = self.native("terms_and_grad")
        # Set for a `protocols.Completes`, whose kept draws have full_dim parameters.
        self._completes = getattr(target, "complete", None)
        self.completes = self._completes is not None
        self.full_dim = int(target.full_dim) if self.completes else self.dim
        parts = [self.transition, *([self._completes] if self.completes else [])]
        # Many transitions in one call. The core makes them if these very methods run natively: a
        # wrapper has their attributes, and is no such method.
        self.run = self.native("_hamiltonian_run") if all(map(_stands_for, parts)) else None
        self._identified = overrides.followed(target, "fingerprint")
        self._referenced = overrides.followed(target, "precision_reference")

    def __reduce__(self) -> tuple[Any, ...]:
        # Its library is a module, which cannot be pickled; all follows from the target.
        return _density, (self.target, self._function)

    @property
    def fingerprint(self) -> dict[str, str] | None:
        """The parts by which the target identifies itself; None if it has none."""
        found = getattr(self.target, "fingerprint", None) if self._identified else None
        return found if isinstance(found, dict) else None

    @property
    def num_rows(self) -> int | None:
        """The target's number of rows, None if it has none."""
        rows = getattr(self.target, "num_rows", None)
        if rows is None:
            return None
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1:
            raise TypeError(
                f"[{self._function}] expected target.num_rows as an integer >= 1, "
                f"got {checks.summary(rows)}"
            )
        return int(rows)

    def batch_size(self, value: int | None) -> int | None:
        """Return the checked rows of a batch; None means all rows, the default at most all rows."""
        function, rows = self._function, self.num_rows
        if value is None:
            return rows
        size = checks.integer(function, "batch_size", value, minimum=1)
        if rows is None:
            raise ValueError(
                f"[{function}] expected batch_size=None for a target without num_rows, got {size}"
            )
        if size > rows and size != BATCH_SIZE:
            raise ValueError(
                f"[{function}] expected batch_size <= {rows}, the rows of the data, or None for "
                f"all of them, got {size}"
            )
        return min(size, rows)

    def check_state(self, function: str, state: Any) -> None:
        """Raise for a state of another size, array library or dtype, or on another target."""
        position, xp = state.position, self.xp
        if position.shape[1] != self.dim:
            hint = ""
            if getattr(self.target, "marginal", None) is not None or self.completes:
                hint = (
                    ": one of the two samplers integrates the last layer out. HMC and NUTS do so "
                    "if no step, length or mass is given and it pays; Posterior(marginalize=) "
                    "decides for all"
                )
            raise ShapeError(
                f"[{function}] expected a state of dim {self.dim}, got {position.shape[1]}{hint}"
            )
        if namespace(position, function=function) is not xp or host_dtype(position) != self.dtype:
            raise DTypeError(
                f"[{function}] expected a state of {xp.__name__} {self.dtype} arrays, "
                f"got {checks.summary(position)}"
            )
        self.check_target(function, state.target)

    def check_target(self, function: str, before: dict[str, str] | None) -> None:
        """Raise for a run on another target, whose fingerprint was `before`, if both are known."""
        now = self.fingerprint
        if before is None or now is None:
            return
        other = [name for name, value in now.items() if before.get(name, value) != value]
        if other == ["instruction set"]:
            name = other[0]
            raise ValueError(
                f"[{function}] expected a state of the same {name}, got one of {before[name]} "
                f"where {now[name]} computes: rounding would change within one run. RIBBIT_ISA="
                f"{before[name]} in the environment continues it bit-identically if the processor "
                "supports it; init=state.position starts another run here"
            )
        if other:
            raise ValueError(
                f"[{function}] expected a state of this target, got one with another "
                f"{', '.join(other)}: to start from where it ended give init=state.position"
            )

    @property
    def precision_reference(self) -> Any:
        """The same target with gradients in float32, if its own are less accurate."""
        return getattr(self.target, "precision_reference", None) if self._referenced else None

    def identify(self, guard: InterruptGuard | None) -> dict[str, str] | None:
        """Return the fingerprint. The first time all rows are read, and Ctrl-C ends that."""
        with foreign(guard):
            return self.fingerprint

    def native(self, name: str) -> Any:
        """Return member `name` of the target, None if it is of another density than its own."""
        return overrides.own(self.target, name)

    def call(self, method: Any, guard: InterruptGuard | None, *arrays: Any, **options: Any) -> Any:
        """Call a native method of the target so that Ctrl-C ends it."""
        if guard is None or self.interruptible:
            flag = None if guard is None else guard.flag
            return method(*arrays, **options, interrupt=flag)
        with foreign(guard):
            return method(*arrays, **options)

    def terms_and_grad(
        self, theta: Array, guard: InterruptGuard | None = None
    ) -> tuple[Array, Array]:
        """Return terms (C, M) float64 and gradient (C, P) at positions (C, P)."""
        if self._terms is not None:
            value, grad = self._evaluated(self._terms, theta, guard, terms=True)
        else:
            value, grad = self._evaluated(self.target.value_and_grad, theta, guard)
            value = self.xp.reshape(value, (theta.shape[0], 1))
        if self.xp is np and not self.undefined:
            unknown = np.isnan(value).any(axis=1) | np.isnan(grad).any(axis=1)
            self.undefined = bool(unknown.any() and np.isfinite(theta[unknown]).all(axis=1).any())
        return value, grad

    def evaluate(
        self,
        function: str,
        position: Array,
        chains: npt.NDArray[np.uint32],
        guard: InterruptGuard | None,
        *,
        resumed: bool = False,
    ) -> tuple[Array, Array, Array]:
        """Return terms, gradient and log density (C,) where chains start; ValueError if not finite.

        A state that is `resumed` needs a finite log density alone.
        """
        where = "the state's positions" if resumed else "the initial positions"

        def check(what: str, array: Array) -> None:
            values = to_host(array)
            good = np.isfinite(values)
            if not good.all():
                chain, *parameter = np.unravel_index(int(np.argmin(good)), values.shape)
                raise ValueError(
                    f"[{function}] expected a finite {what} at {where}, got "
                    f"{values[(chain, *parameter)]} for chain {chains[chain]}"
                    f"{''.join(f', parameter {p}' for p in parameter)}"
                )

        if not resumed:
            check("position", position)
        terms, grad = self.terms_and_grad(position, guard)
        with errstate(self.xp):
            logdensity = total(terms)
        check("log density", logdensity)
        if not resumed:
            check("gradient", grad)
        return terms, grad, logdensity

    def on_batch(
        self, theta: Array, rows: npt.NDArray[np.int64], guard: InterruptGuard | None = None
    ) -> tuple[Array, Array]:
        """Log density (C,), gradient (C, P) of a batch of rows (n,), or (C, n), one per chain."""
        return self._evaluated(self.target.value_and_grad, theta, guard, rows)

    def _evaluated(
        self,
        method: Any,
        theta: Array,
        guard: InterruptGuard | None,
        *rows: Any,
        terms: bool = False,
    ) -> tuple[Array, Array]:
        """Return checked copies of what the target gives for a copy of positions (C, P)."""
        theta = self.xp.asarray(theta, copy=True)
        with foreign(guard):
            found = method(theta, *rows)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TypeError(
                f"[{self._function}] expected the target to return (log density, gradient), "
                f"got {checks.summary(found)}"
            )
        value = self._checked("log density", found[0], self.xp.float64)
        grad = self._checked("gradient", found[1], self._dtype)
        chains = theta.shape[0]
        if terms and (value.ndim != 2 or value.shape[0] != chains):
            raise self._shape("terms", f"({chains}, M)", value)
        if not terms and value.shape != (chains,):
            raise self._shape("a log density", f"({chains},)", value)
        if grad.shape != theta.shape:
            raise self._shape("a gradient", f"{tuple(theta.shape)}", grad)
        return value, grad

    def not_finite(self, position: Array, largest: float, rate: str) -> str:
        """Return why steps from a position (P,) left the finite numbers, and advice.

        `largest` is the largest finite |gradient|; `rate` says what to make smaller.
        """
        terms, grad = self.terms_and_grad(position[None, :])
        if not (np.isnan(to_host(terms)).any() or np.isnan(to_host(grad)).any()):
            return f"largest |gradient| {largest:.3g}: use a smaller {rate}"
        return (
            "largest |gradient| NaN: the log density or its gradient is NaN where the largest "
            f"|parameter| is {np.abs(to_host(position)).max():.3g}. Correct the target there; if "
            f"the parameters ran away, use a smaller {rate}"
        )

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
        """Return position, momentum, terms, gradient at the ends of trajectories, and their steps.

        A chain that is lost, whose proposal could only be rejected, may end before `num_steps`.
        Without a gradient at the position it is evaluated first.
        """
        if grad is None and not self.evaluates_start:
            _, grad = self.terms_and_grad(position)
        arrays = position, momentum, grad, step_size, num_steps
        if self._native is None:
            return _python_leapfrog(self, *arrays, inverse_mass, guard)
        made = num_steps.copy()
        options = {"made": made} if self._counts else {}
        end = self.call(self._native, guard, *arrays, inverse_mass=inverse_mass, **options)
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
        if not self.completes or position.ndim == 0 or position.shape[-1] != self.full_dim:
            return position
        return self.target.reduce(function, position)

    def completed(self, state: AnyState, guard: InterruptGuard | None = None) -> Array:
        """Return what is kept of a state: its positions (C, P), completed if the target can."""
        if not self.completes:
            return state.position
        place: dict[str, Any] = {"seed": state.seed, "step": state.step, "chains": state.chains}
        if guard is None and not self.interruptible:
            return self.target.complete(state.position, **place)
        return self.call(self._completes, guard, state.position, **place)

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
    rows = np.arange(num_steps.shape[0])  # chains that have not ended
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
    """Sum (C, M) over M, (C,), in the same order for every C."""
    value = terms[:, 0]
    for m in range(1, terms.shape[1]):
        value = value + terms[:, m]
    return value


def _stands_for(method: Any) -> bool:
    """Whether the core's runs do what this method does: it is marked, with itself."""
    function = getattr(method, "__func__", method)
    return function is not None and getattr(function, "in_runs", None) is function


def sums_over_rows(function: str, target: Any) -> None:
    """Raise TypeError for a density that is no sum over rows: something is integrated out."""
    part = getattr(target, "integrated", None)
    if part is not None:
        raise TypeError(
            f"[{function}] expected a density that is a sum over rows, got one with its {part} "
            "integrated out (marginalize=): use HMC, NUTS or MCLMC, or the posterior without it"
        )
