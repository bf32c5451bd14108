"""Models of images as torch modules. Rows are flat: channels · height · width numbers, in this order.

Group norm, which looks at one image alone, stands where others have batch norm. Nothing works in place.
"""

from math import gcd

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from federation.models.layout import cnn_map, resnet_blocks
from federation.plan_fields import CnnModel, Resnet18Model


def flat(outputs: Tensor) -> Tensor:
    """Return (B,) of one output a row, else the outputs as they are."""
    return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs


class Cnn(nn.Module):
    """Two convolutions and a hidden layer. Input (B, channels·height·width); output (B,) log-odds, or (B, classes)."""

    def __init__(self, spec: CnnModel, outputs: int) -> None:
        super().__init__()
        self.shape = (spec.channels, spec.height, spec.width)
        self.first = nn.Conv2d(spec.channels, 16, 8, stride=2, padding=3)
        self.second = nn.Conv2d(16, 32, 4, stride=2)
        self.hidden = nn.Linear(32 * cnn_map(spec.height) * cnn_map(spec.width), 32)
        self.output = nn.Linear(32, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the log-odds of `rows`."""
        images = rows.reshape(-1, *self.shape)
        images = max_pool2d(relu(self.first(images)), 2, 1)
        images = max_pool2d(relu(self.second(images)), 2, 1)
        return flat(self.output(relu(self.hidden(images.flatten(1)))))


class Block(nn.Module):
    """Two convolutions beside a shortcut. Input (B, channels, h, w); output (B, wide, h/stride, w/stride)."""

    def __init__(self, channels: int, wide: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, wide, 3, stride=stride, padding=1, bias=False)
        self.first_norm = _norm(wide)
        self.second = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.second_norm = _norm(wide)
        self.changes = channels != wide
        if self.changes:
            self.shortcut = nn.Conv2d(channels, wide, 1, stride=stride, bias=False)
            self.shortcut_norm = _norm(wide)

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature maps of `images`."""
        inner = self.second_norm(self.second(relu(self.first_norm(self.first(images)))))
        return relu(inner + (self.shortcut_norm(self.shortcut(images)) if self.changes else images))


class Resnet18(nn.Module):
    """Eighteen layers for small images (He et al. 2016), group norm (Wu, He 2018).

    Input (B, channels·height·width) float32; output (B,) log-odds, or (B, classes).
    """

    def __init__(self, spec: Resnet18Model, outputs: int) -> None:
        super().__init__()
        self.shape = (spec.channels, spec.height, spec.width)
        self.stem = nn.Conv2d(spec.channels, spec.filters, 3, padding=1, bias=False)
        self.stem_norm = _norm(spec.filters)
        self.blocks = nn.ModuleList(Block(*sizes) for sizes in resnet_blocks(spec.filters))
        self.output = nn.Linear(8 * spec.filters, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the log-odds of `rows`."""
        images = relu(self.stem_norm(self.stem(rows.reshape(-1, *self.shape))))
        for block in self.blocks:
            images = block(images)
        return flat(self.output(images.mean((2, 3))))


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(gcd(32, channels), channels)
