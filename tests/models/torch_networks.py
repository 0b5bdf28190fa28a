"""The networks of the zoo as PyTorch modules, of PyTorch's own layers; images are (N, C, H, W).

Modules are those of ``Model.to_torch_state_dict``: one per layer of ribbit, with its index.
"""

import torch
from torch import nn
from torch.nn import functional as F


def same(x, kernel, stride, value=0.0):
    """Pad the last axes for ceil(size / stride) places, the odd cell behind (TensorFlow)."""
    pads = []
    for size, k, s in zip(x.shape[2:], kernel, stride, strict=True):
        total = max((-(-size // s) - 1) * s + k - size, 0)
        pads = [total // 2, total - total // 2, *pads]
    return F.pad(x, pads, value=value)


class SameConv2d(nn.Conv2d):
    def forward(self, x):
        return super().forward(same(x, self.kernel_size, self.stride))


def frn(x, gamma, beta, tau=None):
    """Filter response normalisation of (N, C, ...), Singh and Krishnan (2020), section 3."""
    places = (-1, *(1,) * (x.ndim - 2))
    scale = torch.rsqrt(x.square().flatten(2).mean(2) + 1e-6)
    y = gamma.view(places) * x * scale.view(*scale.shape, *places[1:]) + beta.view(places)
    return y if tau is None else torch.maximum(y, tau.view(places))


class FilterResponseNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        for name in ("gamma", "beta", "tau"):
            setattr(self, name, nn.Parameter(torch.zeros(channels)))

    def before(self, x):
        return frn(x, self.gamma, self.beta)

    def forward(self, x):
        return torch.maximum(self.before(x), self.tau[:, None, None])


class Residual(nn.Module):
    def __init__(self, main, shortcut=()):
        super().__init__()
        self.main, self.shortcut = nn.Sequential(*main), nn.Sequential(*shortcut)

    def forward(self, x):
        return self.main(x) + self.shortcut(x)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


class Embedding(nn.Embedding):
    def forward(self, x):
        return super().forward(x.long()).mT  # (N, units, T)


class LSTM(nn.LSTM):
    def forward(self, x):
        states, _ = super().forward(x.mT)
        return states[:, -1]


def kink_distance(net, x):
    """Least distance (N,) of each row from a kink of `net`, over the rms of what meets there.

    Nearer than rounding the gradient of a row is one side's or the other's: float32 tests that
    compare gradients leave such rows out.
    """
    distances = []

    def note(module, inputs, output):
        (h,) = inputs
        if isinstance(module, FilterResponseNorm):
            gap = module.before(h) - module.tau[:, None, None]
        elif isinstance(module, nn.ReLU):
            gap = h
        else:
            kernel, stride = module.kernel_size, module.stride
            if h.ndim == 3:
                h, kernel, stride = h[:, :, None], (1, kernel), (1, stride)
            windows = F.unfold(h.flatten(0, 1)[:, None], kernel, stride=stride)
            first, second = windows.topk(2, dim=1).values.unbind(1)
            # all zero: behind a relu, whose gradient is 0
            gap = torch.where(first == 0, torch.inf, first - second).view(len(h), -1)
        distances.append(gap.abs().flatten(1).amin(1) / h.square().mean().sqrt())

    kinds = (FilterResponseNorm, nn.ReLU, nn.MaxPool1d, nn.MaxPool2d)
    hooks = [m.register_forward_hook(note) for m in net.modules() if isinstance(m, kinds)]
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    return torch.stack(distances).amin(0)


def lenet5():
    layers, channels = [], 1
    for filters in (6, 16, 120):
        layers += [nn.Conv2d(channels, filters, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(480, 84), nn.ReLU(), nn.Linear(84, 10))


def resnet20_frn():
    def unit(inputs, filters, kernel=3, stride=1):
        return [SameConv2d(inputs, filters, kernel, stride), FilterResponseNorm(filters)]

    layers, channels = [*unit(3, 16), nn.SiLU()], 16
    for filters in (16, 32, 64):
        for _ in range(3):
            stride = 1 if filters == channels else 2
            main = [*unit(channels, filters, 3, stride), nn.SiLU(), *unit(filters, filters)]
            shortcut = unit(channels, filters, 1, stride) if stride == 2 else ()
            layers += [Residual(main, shortcut), nn.SiLU()]
            channels = filters
    return nn.Sequential(*layers, Mean(), nn.Linear(64, 10))


def cnn_lstm():
    return nn.Sequential(
        Embedding(50, 128),
        nn.Conv1d(128, 64, 5),
        nn.SiLU(),
        nn.MaxPool1d(4),
        LSTM(64, 128, batch_first=True),
        nn.Linear(128, 2),
    )
