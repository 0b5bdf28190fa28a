"""How the rows of an epoch are cut into batches: the Python side of ``core/permutation_hd.h``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Batches:
    """An epoch of N rows in ceil(N / size) batches whose sizes differ by one row at most."""

    # The likelihood of n rows counts N / n times: in a step as long as the others, a short last
    # batch would have the noise of few rows.

    num_rows: int | None  # N; None for a target without rows
    size: int | None  # the most rows of a batch; None: all there are
    # an epoch goes through its batches and back again: 2 M steps, with one order of the rows
    and_back: bool = False

    @property
    def count(self) -> int:
        """Batches of an epoch, M."""
        if self.size is None or self.num_rows is None:
            return 1
        return -(-self.num_rows // self.size)

    @property
    def steps(self) -> int:
        """Steps of an epoch: M, or 2 M."""
        return 2 * self.count if self.and_back else self.count

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of the batches that occur: one number or two, the larger one first."""
        if self.num_rows is None:
            return ()
        base, longer = divmod(self.num_rows, self.count)
        return (base,) if longer == 0 else (base + 1, base)

    def places(self, step: int) -> tuple[int, int, int] | None:
        """Return epoch, first place in its order and number of rows of a step; None: all rows."""
        if self.size is None or self.num_rows is None or self.size == self.num_rows:
            return None
        epoch, place = divmod(step, self.steps)
        number = min(place, self.steps - 1 - place) if self.and_back else place
        base, longer = divmod(self.num_rows, self.count)
        return epoch, number * base + min(number, longer), base + (number < longer)

    def rows(self, step: int) -> int:
        """Return the number of rows of a step's batch."""
        return int(self.counts(np.array([step]))[0])

    def counts(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of rows of the batches of `steps`; 0 for a target without rows."""
        base, longer = divmod(self.num_rows or 0, self.count)
        place = steps % self.steps
        number = np.minimum(place, self.steps - 1 - place) if self.and_back else place
        rows: npt.NDArray[np.int64] = base + (number < longer)
        return rows
