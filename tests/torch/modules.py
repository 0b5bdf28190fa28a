"""Modules and targets that the tests of `ribbit.torch` share; imported where torch is there."""

import numpy as np
import torch
from torch import nn

import ribbit as rb


class Attentive(nn.Module):
    """Images (1, 4, 4) through a convolution, a group norm and attention: not of our layers."""

    def __init__(self, channels=4, classes=3, dropout=0.0):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, channels)
        self.look = nn.MultiheadAttention(channels, 2, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        h = torch.relu(self.norm(self.stem(x))).flatten(2).transpose(1, 2)
        h = h + self.look(h, h, h, need_weights=False)[0]
        return self.head(self.drop(h.mean(1)))


class Residual(nn.Module):
    """Images (1, 4, 4) through a residual block of our layers."""

    def __init__(self, channels=4):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)
        self.one = nn.Conv2d(channels, channels, 3, padding=1)
        self.head = nn.Linear(channels * 4, 3)

    def forward(self, x):
        h = self.stem(x)
        h = h + self.one(torch.relu(self.norm(h)))
        return self.head(torch.flatten(nn.functional.relu(h)[:, :, ::2, ::2].contiguous(), 1))


class Plain(nn.Module):
    """The same with a pooling layer of ours."""

    def __init__(self, channels=4):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)
        self.one = nn.Conv2d(channels, channels, 3, padding=1)
        self.pool = nn.AvgPool2d(2)
        self.head = nn.Linear(channels * 4, 3)

    def forward(self, x):
        h = self.stem(x)
        h = h + self.one(torch.relu(self.norm(h)))
        return self.head(torch.flatten(self.pool(h), 1))


def dense(seed=0, dropout=None):
    """A network of dense layers with random weights."""
    torch.manual_seed(seed)
    middle = [nn.Tanh()] if dropout is None else [nn.Tanh(), nn.Dropout(dropout)]
    return nn.Sequential(nn.Linear(3, 6), *middle, nn.Linear(6, 1))


def rows(count=24, seed=1):
    """Inputs (N, 3) and targets (N,)."""
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return x, torch.sin(x.sum(1))


def images(count=12, seed=1):
    """Images (N, 1, 4, 4) and labels (N,)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 4, 4, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


def targets():
    """Five posteriors of different networks, float64."""
    rng = np.random.default_rng(0)
    given = {"dtype": np.float64}
    layers = [rb.Conv2D(2, 3), rb.Activation("tanh"), rb.AvgPool2D(2), rb.Flatten(), rb.Dense(3)]
    residual = [rb.Dense(3), rb.Activation("silu"), rb.Dense(3)]
    return {
        "dense": rb.Posterior(
            rb.mlp(2, (4,), 1, activation="tanh"),
            rng.normal(size=(8, 2)),
            rng.normal(size=8),
            prior=rb.Normal(1.0),
            likelihood=rb.Gaussian(),
            **given,
        ),
        "convolution": rb.Posterior(
            rb.Model(layers, input_shape=(6, 6, 1)),
            rng.normal(size=(5, 6, 6, 1)),
            [0, 1, 2, 0, 1],
            prior=rb.Normal(1.0),
            likelihood=rb.Categorical(),
            **given,
        ),
        "residual": rb.Posterior(
            rb.Model([rb.Residual(residual), rb.LayerNorm(), rb.Dense(1)], input_shape=(3,)),
            rng.normal(size=(6, 3)),
            rng.integers(0, 2, 6),
            prior=rb.StudentT(4, 1.0),
            likelihood=rb.Bernoulli(),
            **given,
        ),
        "lstm": rb.Posterior(
            rb.Model([rb.Embedding(5, 2), rb.LSTM(3), rb.Dense(2)], input_shape=(4,)),
            rng.integers(0, 5, (4, 4)),
            [0, 1, 1, 0],
            prior=rb.Normal(1.0),
            likelihood=rb.Categorical(),
            **given,
        ),
        "noise of rows": rb.Posterior(
            rb.mlp(1, (3, 3), 2, activation="softplus"),
            rng.normal(size=(7, 1)),
            rng.normal(size=7),
            prior=rb.Laplace(1.0),
            likelihood=rb.HeteroscedasticGaussian(min_sd=0.05),
            **given,
        ),
    }
