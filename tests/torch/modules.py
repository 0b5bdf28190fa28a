"""Modules and targets that the tests of `ribbit.torch` share; imported where torch is there."""

import numpy as np
import torch
from torch import nn

import ribbit as rb
from tests.support.five_networks import NETWORKS
from tests.support.layer_problems import inputs


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
    """Posteriors of the five networks, float64, with different likelihoods and priors."""
    rng = np.random.default_rng(0)
    labels, normal = [0, 1, 1, 0, 1], rng.normal(size=(5, 2))
    given = {
        "perceptron": (normal[:, 0], rb.Gaussian(), rb.Normal(1.0)),
        "normalised": (normal[:, 0], rb.HeteroscedasticGaussian(min_sd=0.05), rb.Laplace(1.0)),
        "lenet": (labels, rb.Categorical(), rb.Normal(1.0)),
        "residual": (normal, rb.StudentTNoise(4.0), rb.StudentT(4, 1.0)),
        "cnn-lstm": (labels, rb.Categorical(), rb.Normal(1.0, fan_in=True)),
    }
    return {
        name: rb.Posterior(
            NETWORKS[name],
            inputs(NETWORKS[name], rng, 5).reshape(5, *NETWORKS[name].input_shape),
            y,
            prior=prior,
            likelihood=likelihood,
            dtype=np.float64,
        )
        for name, (y, likelihood, prior) in given.items()
    }
