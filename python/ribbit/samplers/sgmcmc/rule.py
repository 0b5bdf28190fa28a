"""How a stochastic gradient moves the parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ribbit._arrays.update_rules import MOMENTS

Kind = Literal["langevin", "friction", "adam", "kinetic"]


@dataclass(frozen=True)
class Rule:
    """How a gradient g moves theta; eps is the step size of the step, xi standard normal."""

    # langevin: theta += (eps/2) G g + sqrt(eps G) xi with G = 1 unless `preconditioned`. friction:
    # v = (1 - a) sqrt(eps / eps_before) v + eps g + sqrt(2 a eps) xi; theta += v; without noise
    # stochastic gradient descent with momentum 1 - a. adam: Kingma and Ba 2015, algorithm 1, uphill
    # and without noise. kinetic, with h for eps and scales s: u += h s g; theta += (h/2) s u; u =
    # exp(-a h) u + sqrt(1 - exp(-2 a h)) xi; theta += (h/2) s u. Epochs go through their batches
    # and back.
    kind: Kind
    friction: float = 0.0  # the a above
    cooling: float = 1.0  # kinetic: factor of the friction in the first three quarters of warmup
    # G = 1 / (epsilon + sqrt(V)), V = decay V + (1 - decay) (g/N)^2 while warmup lasts
    preconditioned: bool = False
    prior: float = 1.0  # weight of the log prior: 1, or 0 for the likelihood alone
    decay1: float = 0.9  # of the running first and second moments
    decay2: float = 0.999
    epsilon: float = 1e-8
    noisy: bool = True  # False: xi = 0, and the first velocity is 0; Adam's rule is so always

    @property
    def moments(self) -> tuple[bool, bool]:
        """Whether a state has a first and a second moment."""
        first, second = MOMENTS[self.kind]
        return first, second or self.preconditioned

    @property
    def optimises(self) -> bool:
        """Whether the steps climb, and draw no noise."""
        return self.kind == "adam" or not self.noisy
