"""A target with a fault in what ships, for gates that must notice it."""

import numpy as np


class Planted:
    """The target with a fault in what ships: the native steps, or the gradient for the loop."""

    def __init__(self, inner, *, noise=1.0, step=1.0, gradient=None, native=True):
        self.inner, self.dim, self.dtype = inner, inner.dim, inner.dtype
        self.num_rows, self.noise, self.step, self.gradient = inner.num_rows, noise, step, gradient
        if native:
            self.advance = self._advance

    def value_and_grad(self, theta, rows=None):
        value, grad = self.inner.value_and_grad(theta, rows=rows)
        return value, grad if self.gradient is None else self.gradient(self.inner, theta, grad)

    def _advance(self, *args, step_size, noise, previous_step_size, **kwargs):
        # noise goes with sqrt(step size): undo what a wrong step size does to it
        level = self.noise / np.sqrt(self.step)
        return self.inner.advance(
            *args,
            step_size=step_size * self.step,
            noise=noise * level,
            previous_step_size=previous_step_size * self.step,
            **kwargs,
        )
