"""Blocks of hybrid networks, in which maps become tokens and maps again, in the style of libraries.

Knows: kinds of attention between convolutions. Does not know: ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tests.support.mesh.vision_networks import GlobalResponseNorm, Permute
from torch import Tensor, nn
from torch.nn import functional as F


class CosineAttention(nn.Module):
    """Windows whose scores are cosines, with biases that a small network computes from positions."""

    def __init__(self, channels: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10)))
        self.biases = nn.Sequential(nn.Linear(2, 7), nn.ReLU(), nn.Linear(7, heads, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        size, area = self.size, self.size**2
        x = F.pad(x, (0, 0, 0, -width % size, 0, -height % size))
        tall, wide = x.shape[1] // size, x.shape[2] // size
        x = x.view(batch, tall, size, wide, size, channels).permute(0, 1, 3, 2, 4, 5).contiguous()
        x = x.view(-1, area, channels)
        bias = self.qkv.bias.clone()
        bias[channels : 2 * channels].zero_()
        qkv = F.linear(x, self.qkv.weight, bias).reshape(x.shape[0], area, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scores = scores * torch.clamp(self.scale, max=math.log(100.0)).exp()
        places = torch.linspace(-1, 1, 2 * area * area, dtype=x.dtype).view(area * area, 2)
        added = 16 * torch.sigmoid(self.biases(places).view(area, area, self.heads).permute(2, 0, 1))
        x = (F.softmax(scores + added.unsqueeze(0), dim=-1) @ v).transpose(1, 2).reshape(-1, area, channels)
        x = self.proj(x).view(batch, tall, wide, size, size, channels).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(batch, tall * size, wide * size, channels)[:, :height, :width]


class GridAttention(nn.Module):
    """Attention between pixels that are far apart: those of one place in each cell of a grid."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.attention, self.size = nn.MultiheadAttention(channels, 2, batch_first=True), size

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        size = self.size
        x = x.view(batch, channels, size, height // size, size, width // size)
        x = x.permute(0, 3, 5, 2, 4, 1).reshape(-1, size * size, channels)
        x = self.attention(x, x, x)[0]
        x = x.reshape(batch, height // size, width // size, size, size, channels)
        return x.permute(0, 5, 3, 1, 4, 2).reshape(batch, channels, height, width)


class PatchAttention(nn.Module):
    """Attention between pixels of one place in each patch, as in MobileViT."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(channels, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        rows, columns = math.ceil(height / 2), math.ceil(width / 2)
        x = F.interpolate(x, size=(2 * rows, 2 * columns), mode="bilinear", align_corners=False)
        x = x.reshape(batch * channels * rows, 2, columns, 2).transpose(1, 2)
        x = x.reshape(batch, channels, rows * columns, 4).transpose(1, 3).reshape(batch * 4, -1, channels)
        x = self.block(x)
        x = x.contiguous().view(batch, 4, rows * columns, -1).transpose(1, 3)
        x = x.reshape(batch * channels * rows, columns, 2, 2).transpose(1, 2)
        x = x.reshape(batch, channels, 2 * rows, 2 * columns)
        return F.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)


class ReducedAttention(nn.Module):
    """Attention of all tokens with those of a smaller map, as in SegFormer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(channels, channels), nn.Linear(channels, 2 * channels)
        self.smaller, self.norm = nn.Conv2d(channels, channels, 3, 3), nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        q = self.q(tokens).reshape(batch, height * width, 2, -1).permute(0, 2, 1, 3)
        small = tokens.permute(0, 2, 1).reshape(batch, channels, height, width)
        small = self.norm(self.smaller(small).reshape(batch, channels, -1).permute(0, 2, 1))
        k, v = self.kv(small).reshape(batch, -1, 2, 2, channels // 2).permute(2, 0, 3, 1, 4).unbind(0)
        out = torch.softmax(q @ k.transpose(-2, -1), -1) @ v
        out = out.transpose(1, 2).reshape(batch, height * width, channels)
        attended: Tensor = out.transpose(1, 2).unflatten(2, (height, width))
        return attended


class DecomposedAttention(nn.Module):
    """Attention with biases of rows and of columns, as in Segment Anything."""

    def __init__(self, channels: int, plane: tuple[int, int]) -> None:
        super().__init__()
        self.qkv, (height, width) = nn.Linear(channels, 3 * channels), plane
        self.down = nn.Parameter(torch.randn(height, height, channels))
        self.across = nn.Parameter(torch.randn(width, width, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        batch, height, width, channels = x.shape
        q, k, v = self.qkv(x).reshape(batch, height * width, 3, -1).permute(2, 0, 1, 3).unbind(0)
        scores = q @ k.transpose(-2, -1)
        places = q.reshape(batch, height, width, channels)
        down = torch.einsum("bhwc,hkc->bhwk", places, self.down)
        across = torch.einsum("bhwc,wkc->bhwk", places, self.across)
        scores = scores.view(batch, height, width, height, width)
        scores = scores + down[:, :, :, :, None] + across[:, :, :, None, :]
        scores = scores.view(batch, height * width, height * width).softmax(dim=-1)
        out: Tensor = (scores @ v).view(batch, height, width, channels).permute(0, 3, 1, 2)
        return out


class CovarianceAttention(nn.Module):
    """Attention between channels, by their products over all tokens."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.qkv, self.scale = nn.Linear(channels, 3 * channels), nn.Parameter(torch.ones(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        tokens = x.reshape(batch, channels, -1).transpose(1, 2)
        qkv = self.qkv(tokens).reshape(batch, -1, 3, 2, channels // 2).permute(2, 0, 3, 4, 1)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q, k = (one / one.norm(dim=-1, keepdim=True) for one in (q, k))
        scores = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        out: Tensor = (scores @ v).reshape(batch, channels, height, width)
        return out


class PooledAttention(nn.Module):
    """Features by the attention of one learnt query with all tokens."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, channels))
        self.q, self.kv = nn.Linear(channels, channels), nn.Linear(channels, 2 * channels)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).permute(0, 2, 1)
        batch, count, channels = tokens.shape
        q = self.q(self.query.expand(batch, -1, -1)).reshape(batch, 1, 2, -1).transpose(1, 2)
        k, v = self.kv(tokens).reshape(batch, count, 2, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v)
        pooled: Tensor = out.transpose(1, 2).reshape(batch, channels)
        return pooled


class Decoding(nn.Module):
    """Queries that attend to tokens, as in DETR."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(3, channels))
        layer = nn.TransformerDecoderLayer(channels, 2, 8, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).permute(0, 2, 1)
        found: Tensor = self.decoder(self.queries.unsqueeze(0).repeat(x.shape[0], 1, 1), tokens)
        return torch.einsum("bqc,bchw->bqhw", found, x)


class Mixer(nn.Module):
    """Matrices over tokens and over channels."""

    def __init__(self, channels: int, tokens: int) -> None:
        super().__init__()
        self.norm, self.tokens, self.channels = (
            nn.LayerNorm(channels),
            nn.Linear(tokens, tokens),
            nn.Linear(channels, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.tokens(self.norm(tokens).transpose(1, 2)).transpose(1, 2)
        out: Tensor = (tokens + F.silu(self.channels(tokens), inplace=True)).transpose(1, 2).reshape(x.shape)
        return out


class GatedChannels(nn.Module):
    """Channels that pooled ones gate, in a channels-last view."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate, self.weight = nn.Linear(channels, channels), nn.Parameter(torch.randn(channels))

    def forward(self, x: Any) -> Any:
        x = x.permute(0, 2, 3, 1)
        gate = self.gate(x.mean((1, 2))).sigmoid()[:, None, None].expand_as(x)
        norms = x.norm(p=2, dim=(1, 2), keepdim=True)
        x = x + torch.addcmul(self.weight.view(1, 1, 1, -1), self.weight.view(1, 1, 1, -1), x * norms)
        rows = torch.stack([one * 2 for one in x], 0)
        return (gate * rows).permute(0, 3, 1, 2)


def _between(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *parts, nn.Conv2d(4, 3, 3, padding=1))


def _last(*parts: nn.Module) -> nn.Module:
    return _between(Permute(0, 2, 3, 1), *parts, Permute(0, 3, 1, 2))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "cosines in windows": lambda: _last(CosineAttention(4, 2, 3)),
    "attention in a grid": lambda: nn.Sequential(
        nn.ZeroPad2d((0, 2, 0, 1)), _between(nn.Tanh(), GridAttention(4, 3))
    ),
    "attention of places in patches": lambda: _between(PatchAttention(4)),
    "attention with a smaller map": lambda: _between(ReducedAttention(4)),
    "decomposed biases": lambda: _between(DecomposedAttention(4, (11, 13))),
    "attention of channels": lambda: _between(CovarianceAttention(4)),
    "a pooling query": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), PooledAttention(4), nn.Linear(4, 5)),
    "a decoder": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), Decoding(4), nn.Conv2d(3, 2, 3)),
    "a mixer": lambda: _between(Mixer(4, 143)),
    "gated channels": lambda: _last(
        GlobalResponseNorm(4), nn.RMSNorm(4), Permute(0, 3, 1, 2), GatedChannels(4), Permute(0, 2, 3, 1)
    ),
}
