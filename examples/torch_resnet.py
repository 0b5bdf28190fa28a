"""A PyTorch network of your own under SGLD
========================================

``python examples/torch_resnet.py``

A residual network with group norms and attention, none of it Ribbit's, its data in a DataLoader.
It is trained as ever, then sampled from there: what it predicts comes with R-hat and calibration.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ribbit as rb
import ribbit.torch


class Block(nn.Module):
    """A residual block with group norms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(2, channels) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x):
        h = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            h = conv(torch.relu(norm(h)))
        return x + h


class ResNet(nn.Module):
    """A stem, a block, attention over the places of the image, and their mean."""

    def __init__(self, channels: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.block = Block(channels)
        self.attention = nn.MultiheadAttention(channels, 2, batch_first=True)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        h = self.block(self.stem(x)).flatten(2).transpose(1, 2)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(h.mean(dim=1))


def waves(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images (count, 1, 8, 8) of upright, level or crossed waves, and which they are."""
    generator = torch.Generator().manual_seed(seed)
    wave = torch.sin(torch.linspace(0.0, 4.0 * torch.pi, 8))
    patterns = torch.stack([wave.expand(8, 8), wave[:, None].expand(8, 8), wave[:, None] * wave])
    y = torch.randint(0, 3, (count,), generator=generator)
    return (patterns[y] + 1.2 * torch.randn(count, 8, 8, generator=generator))[:, None], y


def train(net: nn.Module, loader: DataLoader, epochs: int) -> None:
    """Train as ever."""
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-2)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()


def main(num_draws: int = 400, warmup: int = 1000, thin: int = 10) -> dict[str, float]:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # threads would wait for each other in products this small
    net, (x_test, y_test) = ResNet(), waves(300, seed=1)
    loader = DataLoader(TensorDataset(*waves(300, seed=0)), batch_size=100, shuffle=True)
    train(net, loader, epochs=30)

    # From here on it is twelve lines.
    target = rb.torch.posterior(net, nn.CrossEntropyLoss(), loader, prior=rb.Normal(0.3))
    sgld = rb.SGLD(target, step_size=5e-4, batch_size=target.batch_size)
    draws = sgld.sample(
        num_draws, warmup=warmup, thin=thin, chains=3, init=target.trained, progress=False
    )
    p, labels = draws.predict(x_test), y_test.numpy()
    rhat = rb.diagnostics.predictive_rhat(draws, x_test.numpy())
    found = {"accuracy": rb.metrics.accuracy(labels, p.probs), "rhat": float(rhat.max())}
    found |= {"nll": rb.metrics.nll(labels, p.probs), "ece": rb.metrics.ece(labels, p.probs)}
    alone = torch.softmax(net(x_test), dim=1).detach().numpy()
    found["nll_alone"] = rb.metrics.nll(labels, alone)
    found["ece_alone"] = rb.metrics.ece(labels, alone)
    print(draws.summary(x_test))
    print(" ".join(f"{name} {value:.3f}" for name, value in found.items()))
    net.load_state_dict(target.state_dict(draws.positions[0, -1]))  # a draw is a network again
    return found


if __name__ == "__main__":
    main()
