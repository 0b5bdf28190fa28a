"""Targets for samplers and fits, with the checks of a target and of a state.

Shapes: C chains, P parameters, M terms.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks, overrides
from ribbit._arrays.namespace import dtype_in, errstate, host_dtype, namespace, to_host
from ribbit._backends.cpu import NATIVE
from ribbit.errors import DTypeError, ShapeError
from ribbit.interrupt import InterruptGuard, foreign
from ribbit.protocols import Array, RowGroup

if TYPE_CHECKING:
    import numpy.typing as npt

BATCH_SIZE = 128  # default of samplers and fits on minibatches


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
            got = f"{checks.summary(target)}{advice}"
            expected = "a target with dim and value_and_grad(theta)"
            raise TypeError(f"[{function}] expected {expected}, got {got}")
        dim = getattr(target, "dim", None)
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
            got = checks.summary(dim)
            raise TypeError(f"[{function}] expected target.dim as an integer >= 1, got {got}")
        overrides.check(function, target)
        layers = tuple(getattr(target, "dropout_layers", ()))
        if layers and not dropout:
            module = hasattr(target, "state_dict")
            off = "call module.eval() before posterior()" if module else "take the layer out"
            got = f"{', '.join(map(str, layers))} (use MCDropout, or {off})"
            raise TypeError(f"[{function}] expected a target without Dropout layers, got {got}")
        if by_rows:
            sums_over_rows(function, target)
        self.group: RowGroup | None = getattr(target, "group", None)
        if self.group is not None and not group:
            ranks = f"{self.group.size} ranks: it needs all rows in one process"
            got = f"one whose rows lie on {ranks}"
            raise ValueError(f"[{function}] expected a posterior without group=, got {got}")
        self.target, self._function = target, function
        self.dim = int(dim)
        self.dtype = checks.float_dtype(function, getattr(target, "dtype", np.float64))
        self.xp: ModuleType = getattr(target, "array_namespace", None) or np
        self._dtype = self.dtype if self.xp is np else dtype_in(self.xp, self.dtype)
        self.monitor: Any = None  # of runs without inputs of their own, kept by `until`
        # Whether the log density or its gradient was NaN at a finite position in host memory.
        self.undefined = False
        # Whether native calls poll an interrupt flag, and take a minibatch for each chain.
        self.interruptible = bool(self.native("interruptible"))
        self.rows_per_chain = bool(self.native("rows_per_chain"))
        self._native = native = self.native("leapfrog")
        self.has_leapfrog = native is not None  # the target makes whole trajectories
        self._counts = hasattr(native, "counts_steps")
        self._terms = self.native("terms_and_grad")
        # Set if a layer is integrated out; kept draws then have full_dim parameters.
        self._completes = getattr(target, "complete", None)
        self.completes = self._completes is not None
        self.full_dim = int(target.full_dim) if self.completes else self.dim
        # The target in the core, if these very methods are the target's own: a wrapper has their
        # attributes, and is no such method.
        moves = native or getattr(target, "value_and_grad", None)
        parts = [moves, *([self._completes] if self.completes else [])]
        core = getattr(target, "_native", None) if all(map(_stands_for, parts)) else None
        self.core = core if isinstance(core, NATIVE) else None
        self._identified = overrides.followed(target, "fingerprint")
        self._referenced = overrides.followed(target, "precision_reference")

    def __reduce__(self) -> tuple[Any, ...]:
        # Its library is a module, which cannot be pickled; all follows from the target.
        return functools.partial(Density, function=self._function), (self.target,)

    @property
    def fingerprint(self) -> dict[str, str] | None:
        """The parts by which the target identifies itself; None if it has none."""
        found = getattr(self.target, "fingerprint", None) if self._identified else None
        if not isinstance(found, dict):
            return None
        # A state has a line "name=value" for each part.
        return {
            str(name).replace("=", ":").replace("\n", " "): str(value).replace("\n", " ")
            for name, value in found.items()
        }

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """The facts on which options of kernels depend."""
        target, name = self.target, self._function
        sd, shared = (getattr(target, key, None) for key in ("prior_sd", "shared_prior_sd"))
        if sd is not None:
            sd = np.ascontiguousarray(to_host(sd), np.float64)
            if sd.shape != (self.dim,):
                raise ShapeError(
                    f"[{name}] target.prior_sd must have shape ({self.dim},), got {sd.shape}"
                )
        if shared is not None and not isinstance(shared, int | float | np.number):
            got = checks.summary(shared)
            raise TypeError(f"[{name}] target.shared_prior_sd must be a number or None, got {got}")
        temperature = getattr(target, "temperature", 1.0)
        return {
            "dim": self.dim,
            "temperature": checks.positive(name, "target.temperature", temperature),
            "shared_prior_sd": shared,
            "prior_sd": sd,
        }

    @property
    def num_rows(self) -> int | None:
        """The target's number of rows, None if it has none."""
        rows = getattr(self.target, "num_rows", None)
        if rows is None:
            return None
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1:
            name, got = self._function, checks.summary(rows)
            raise TypeError(f"[{name}] expected target.num_rows as an integer >= 1, got {got}")
        return int(rows)

    def batch_size(self, value: int | None) -> int | None:
        """Return the checked rows of a batch; None means all rows, the default at most all rows."""
        function, rows = self._function, self.num_rows
        if value is None:
            return rows
        size = checks.integer(function, "batch_size", value, minimum=1)
        if rows is None:
            expected = "batch_size=None for a target without num_rows"
            raise ValueError(f"[{function}] expected {expected}, got {size}")
        if size > rows and size != BATCH_SIZE:
            expected = f"batch_size <= {rows}, the rows of the data, or None for all of them"
            raise ValueError(f"[{function}] expected {expected}, got {size}")
        return min(size, rows)

    def check_state(self, function: str, state: Any) -> None:
        """Raise for a state of another size, array library or dtype, or on another target."""
        position, xp = state.position, self.xp
        self.check_same(function, state)
        if namespace(position, function=function) is not xp or host_dtype(position) != self.dtype:
            kind, got = f"{xp.__name__} {self.dtype}", checks.summary(position)
            raise DTypeError(f"[{function}] expected a state of {kind} arrays, got {got}")

    def check_same(self, function: str, state: Any) -> None:
        """Raise for a state of another size or on another target."""
        dim, before = state.position.shape[1], state.target
        wrong = f"[{function}] expected a state of dim {self.dim}, got {dim}"
        forms = {(parts or {}).get("integrated") for parts in (before, self.fingerprint)}
        if dim != self.dim and len(forms) > 1:
            raise ShapeError(
                f"{wrong}: one of the two samplers integrates the last layer out. HMC and NUTS do "
                "so if no step, length or mass is given and it pays; Posterior(marginalize=) "
                f"decides for all. {restart(function)}"
            )
        self.check_target(function, before)
        if dim != self.dim:
            raise ShapeError(wrong)

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
                f"supports it; {restart(function)}"
            )
        if other:
            got = f"one with another {', '.join(other)}"
            raise ValueError(
                f"[{function}] expected a state of this target, got {got}: {restart(function)}"
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
            return method(*arrays, **options, interrupt=guard and guard.flag)
        with foreign(guard):
            return method(*arrays, **options)

    def terms_and_grad(
        self, theta: Array, guard: InterruptGuard | None = None
    ) -> tuple[Array, Array]:
        """Return terms (C, M) float64 and gradient (C, P) at positions (C, P)."""
        terms, grad = self.gradient(theta, guard)
        if self.xp is np and not all_finite(terms, grad):
            self.note_undefined(theta, terms, grad)
        return terms, grad

    def gradient(self, theta: Array, guard: InterruptGuard | None = None) -> tuple[Array, Array]:
        """Return the same as `terms_and_grad` without a check for NaN."""
        if self._terms is not None:
            return self._evaluated(self._terms, theta, guard, terms=True)
        method = self.target.value_and_grad
        if guard is None and getattr(method, "copies", False):
            value, grad = method(theta)
        else:
            value, grad = self._evaluated(method, theta, guard)
        return value[:, None], grad

    def note_undefined(self, theta: Array, terms: Array, grad: Array) -> None:
        """Note whether terms or gradients in NumPy arrays are NaN at a finite position."""
        unknown = np.isnan(terms).any(axis=1) | np.isnan(grad).any(axis=1)
        self.undefined |= bool(unknown.any() and np.isfinite(theta[unknown]).all(axis=1).any())

    def evaluate(
        self,
        function: str,
        position: Array,
        chains: npt.NDArray[np.uint32],
        guard: InterruptGuard | None,
        *,
        resumed: bool = False,
    ) -> tuple[Array, Array, Array]:
        """Return terms, gradient, log density (C,) where chains start; ValueError if not finite."""
        where = "the state's positions" if resumed else "the initial positions"

        def check(what: str, array: Array) -> None:
            values = to_host(array)
            good = np.isfinite(values)
            if not good.all():
                chain, *parameter = np.unravel_index(int(np.argmin(good)), values.shape)
                place = "".join(f", parameter {p}" for p in parameter)
                got = f"{values[(chain, *parameter)]} for chain {chains[chain]}{place}"
                raise ValueError(f"[{function}] expected a finite {what} at {where}, got {got}")

        if not resumed:  # a state needs a finite log density alone
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
        """Return checked copies of the results of the target at a copy of positions (C, P)."""
        theta = theta.copy() if self.xp is np else self.xp.asarray(theta, copy=True)
        if guard is None:  # a function may take less time than the context
            found = method(theta, *rows)
        else:
            with foreign(guard):
                found = method(theta, *rows)
        if not isinstance(found, tuple | list) or len(found) != 2:
            expected = "the target to return (log density, gradient)"
            got = checks.summary(found)
            raise TypeError(f"[{self._function}] expected {expected}, got {got}")
        value = self._checked("log density", found[0], self.xp.float64)
        grad = self._checked("gradient", found[1], self._dtype)
        chains, wrong = theta.shape[0], None
        if terms and (value.ndim != 2 or value.shape[0] != chains):
            wrong = f"terms ({chains}, M)", value
        elif not terms and value.shape != (chains,):
            wrong = f"a log density ({chains},)", value
        elif grad.shape != theta.shape:
            wrong = f"a gradient {tuple(theta.shape)}", grad
        if wrong is not None:
            expected = f"expected {wrong[0]} from the target, got shape {wrong[1].shape}"
            raise ShapeError(f"[{self._function}] {expected}")
        return value, grad

    def not_finite(self, position: Array, largest_gradient: float, rate: str) -> str:
        """Return why steps from a position (P,) left the finite numbers, and advice."""
        terms, grad = self.terms_and_grad(position[None, :])
        if not (np.isnan(to_host(terms)).any() or np.isnan(to_host(grad)).any()):
            return f"largest |gradient| {largest_gradient:.3g}: use a smaller {rate}"
        return (
            "largest |gradient| NaN: the log density or its gradient is NaN where the largest "
            f"|parameter| is {np.abs(to_host(position)).max():.3g}. Correct the target there; if "
            f"the parameters ran away, use a smaller {rate}"
        )

    def leapfrog(
        self,
        position: Array,
        momentum: Array,
        grad: Array,
        step_size: Array,
        num_steps: npt.NDArray[np.int64],
        inverse_mass: Array | None,
        guard: InterruptGuard | None = None,
    ) -> tuple[Array, Array, Array, Array, npt.NDArray[np.int64]]:
        """Return the ends of the target's own trajectories, see `ribbit.lockstep.hmc.leapfrog`."""
        arrays = position, momentum, grad, step_size, num_steps
        made = num_steps.copy()
        options = {"made": made} if self._counts else {}
        end = self.call(self._native, guard, *arrays, inverse_mass=inverse_mass, **options)
        q, p, terms, g = end
        shape = position.shape
        if q.shape != shape or p.shape != shape or g.shape != shape or terms.shape[0] != shape[0]:
            wanted = f"position, momentum {shape}, terms ({shape[0]}, M) and gradient {shape}"
            got = f"{q.shape}, {p.shape}, {terms.shape}, {g.shape}"
            name = self._function
            raise ShapeError(f"[{name}] expected target.leapfrog to return {wanted}, got {got}")
        return q, p, terms, g, made

    def reduced(self, function: str, position: Array) -> Array:
        """Return a start (.., P) without a layer that is integrated out."""
        if not self.completes or position.ndim == 0 or position.shape[-1] != self.full_dim:
            return position
        return self.target.reduce(function, position)

    def widened(self, position: Array) -> Array:
        """Return a start (C, dim) as (C, full_dim). The core ignores the integrated layer."""
        return self.target._widen(position) if self.completes else position

    def completed(self, state: Any, guard: InterruptGuard | None = None) -> Array:
        """Return the draws (C, P) of a state: its positions, completed if the target can."""
        if not self.completes:
            return state.position
        place: dict[str, Any] = {"seed": state.seed, "step": state.step, "chains": state.chains}
        if guard is None and not self.interruptible:
            return self.target.complete(state.position, **place)
        return self.call(self._completes, guard, state.position, **place)

    def _checked(self, name: str, array: Any, dtype: Any) -> Array:
        """Return a copy in `dtype` of an array from the target."""
        xp = self.xp
        if xp is np and type(array) is np.ndarray and array.dtype == dtype:
            return array.copy()
        expected = f"[{self._function}] expected the target's {name} as"
        if namespace(array, function=self._function) is not xp:
            got = checks.summary(array)
            raise DTypeError(f"{expected} {xp.__name__} array, got {got}")
        if array.dtype != dtype:
            if not xp.isdtype(array.dtype, "real floating"):
                raise DTypeError(f"{expected} real floats, got dtype {array.dtype}")
            return xp.astype(array, dtype)
        return xp.asarray(array, copy=True)


def all_finite(terms: Array, grad: Array) -> bool:
    """Return whether all numbers of two NumPy arrays are finite."""
    # A sum of squares is finite if all numbers are, unless it overflows.
    sum_ = terms.item() if terms.size == 1 else np.vdot(terms, terms).item()
    if math.isfinite(sum_ + np.vdot(grad, grad).item()):  # NumPy's scalars would warn
        return True
    return bool(np.isfinite(terms).all() and np.isfinite(grad).all())


def total(terms: Array) -> Array:
    """Sum (C, M) over M, (C,), in the same order for every C."""
    value = terms[:, 0]
    for m in range(1, terms.shape[1]):
        value = value + terms[:, m]
    return value


def _stands_for(method: Any) -> bool:
    """Return whether the core can replace a method: its mark `in_core` is the method itself."""
    function = getattr(method, "__func__", method)
    return function is not None and getattr(function, "in_core", None) is function


def restart(function: str) -> str:
    """Return how to start other chains where a state ended."""
    place = "chains.position" if function.startswith("Chains") else "draws.positions[:, -1]"
    return f"init={place} starts another run where it ended"


def sums_over_rows(function: str, target: Any) -> None:
    """Raise TypeError for a density that is no sum over rows: something is integrated out."""
    part = getattr(target, "integrated", None)
    if part is not None:
        raise TypeError(
            f"[{function}] expected a density that is a sum over rows, got one with its {part} "
            "integrated out (marginalize=): use HMC, NUTS or MCLMC, or the posterior without it"
        )
