"""How a stochastic gradient moves the parameters, and which rows it is estimated on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Batches", "Rule"]

Kind = Literal["langevin", "friction", "adam"]


@dataclass(frozen=True)
class Rule:
    """How a gradient g moves theta; eps is the step size of the step, xi standard normal.

    Attributes
    ----------
    kind : {"langevin", "friction", "adam"}
        langevin: theta += (eps/2) G g + sqrt(eps G) xi with G = 1 unless `preconditioned`.
        friction: v = (1 - a) v + eps g + sqrt(2 a eps) xi; theta += v.
        adam: Kingma and Ba 2015, algorithm 1, uphill and without noise.
    friction : float
        The a above.
    preconditioned : bool
        G = 1 / (epsilon + sqrt(V)), V = decay V + (1 - decay) (g/N)^2 while warmup lasts.
    prior : float
        Weight of the log prior: 1, or 0 for the likelihood alone.
    decay1, decay2 : float
        Of the running first and second moments.
    epsilon : float
    """

    kind: Kind
    friction: float = 0.0
    preconditioned: bool = False
    prior: float = 1.0
    decay1: float = 0.9
    decay2: float = 0.999
    epsilon: float = 1e-8


@dataclass(frozen=True)
class Batches:
    """How the rows of an epoch are cut into batches.

    Attributes
    ----------
    num_rows : int or None
        N; None for a target without rows.
    size : int or None
        Rows of a batch; None: all there are.
    """

    num_rows: int | None
    size: int | None

    @property
    def count(self) -> int:
        """Steps of an epoch, M."""
        if self.size is None or self.num_rows is None:
            return 1
        return -(-self.num_rows // self.size)

    def places(self, step: int) -> tuple[int, int, int] | None:
        """Return epoch, first place in its order and number of rows of a step; None: all rows."""
        if self.size is None or self.num_rows is None or self.size == self.num_rows:
            return None
        epoch, number = divmod(step, self.count)
        begin = number * self.size
        return epoch, begin, min(self.size, self.num_rows - begin)
