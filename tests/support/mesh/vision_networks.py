"""Small networks of channels-last layers, windows and tokens, in the style in which libraries write them.

Knows: ConvNeXt, Swin and vision transformers. Does not know: ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LayerNorm2d(nn.LayerNorm):
    """Layer normalisation over the channels of a map."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class RmsNorm2d(nn.Module):
    """Root mean square normalisation over the channels of a map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(dim=1, keepdim=True) + 1e-6)
        return x * self.weight.reshape(1, -1, 1, 1)


class MomentNorm2d(nn.Module):
    """Layer normalisation over channels, by the moments."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(channels)), nn.Parameter(torch.rand(channels))

    def forward(self, x: Tensor) -> Tensor:
        spread, middle = torch.var_mean(x, dim=1, unbiased=False, keepdim=True)
        x = (x - middle) * torch.rsqrt(spread + 1e-6)
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class GlobalResponseNorm(nn.Module):
    """Channels weighted by their norms over the plane; channels last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(1, 1, 1, channels))
        self.beta = nn.Parameter(torch.rand(1, 1, 1, channels))

    def forward(self, x: Tensor) -> Tensor:
        norms = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        out: Tensor = self.gamma * (x * (norms / (norms.mean(dim=-1, keepdim=True) + 1e-6))) + self.beta + x
        return out


class Permute(nn.Module):
    """Dimensions in another order."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return torch.permute(x, self.dims)


def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """Return a map without the values of some images."""
    if not training:
        return x
    return x * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - rate).div_(1 - rate)


class ConvNextBlock(nn.Module):
    """A depthwise convolution, and matrices over channels in a channels-last view."""

    def __init__(self, channels: int, responds: bool = False) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
            Permute(0, 2, 3, 1),
            nn.LayerNorm(channels, eps=1e-6),
            nn.Linear(channels, 3 * channels),
            nn.GELU(),
            GlobalResponseNorm(3 * channels) if responds else nn.Identity(),
            nn.Linear(3 * channels, channels),
            Permute(0, 3, 1, 2),
        )
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x + drop_path(self.scale * self.block(x), 0.2, self.training)


def convnext(responds: bool = False) -> nn.Module:
    """Return two stages of a ConvNeXt, with all three norms of maps."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 2, stride=2),
        LayerNorm2d(4),
        ConvNextBlock(4, responds),
        RmsNorm2d(4),
        nn.Conv2d(4, 6, 2, stride=2),
        MomentNorm2d(6),
        ConvNextBlock(6, responds),
        nn.AdaptiveAvgPool2d(1),
        LayerNorm2d(6),
        nn.Flatten(1),
        nn.Linear(6, 5),
    )


def window_attention(x: Tensor, layer: WindowAttention, height: int, width: int) -> Tensor:
    """Return the attention of windows, by functions of the layer's parameters."""
    batch, size = x.shape[0], layer.size
    right, below = -width % size, -height % size
    x = F.pad(x, (0, 0, 0, right, 0, below))
    tall, wide = height + below, width + right
    shift = [0 if size >= extent else layer.shift for extent in (tall, wide)]
    if sum(shift) > 0:
        x = torch.roll(x, shifts=(-shift[0], -shift[1]), dims=(1, 2))
    count = (tall // size) * (wide // size)
    x = x.view(batch, tall // size, size, wide // size, size, -1)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(batch * count, size * size, -1)
    qkv = F.linear(x, layer.qkv.weight, layer.qkv.bias)
    qkv = qkv.reshape(x.size(0), x.size(1), 3, layer.heads, -1).permute(2, 0, 3, 1, 4)
    q, k, v = qkv[0], qkv[1], qkv[2]
    scores = (q * q.shape[-1] ** -0.5).matmul(k.transpose(-2, -1)) + layer.biases()
    if sum(shift) > 0:
        scores = scores.view(batch, count, layer.heads, size * size, size * size)
        scores = scores + _mask(x, (tall, wide), size, shift).unsqueeze(1).unsqueeze(0)
        scores = scores.view(-1, layer.heads, size * size, size * size)
    scores = F.dropout(F.softmax(scores, dim=-1), p=layer.dropped, training=layer.training)
    x = scores.matmul(v).transpose(1, 2).reshape(batch * count, size * size, -1)
    x = F.linear(x, layer.proj.weight, layer.proj.bias)
    x = x.view(batch, tall // size, wide // size, size, size, -1)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(batch, tall, wide, -1)
    if sum(shift) > 0:
        x = torch.roll(x, shifts=(shift[0], shift[1]), dims=(1, 2))
    return x[:, :height, :width, :].contiguous()


def _mask(x: Tensor, plane: tuple[int, int], size: int, shift: list[int]) -> Tensor:
    """Return the mask between pixels that are neighbours only because of the shift."""
    mask, number = x.new_zeros(plane), 0
    edges = [((0, -size), (-size, -step), (-step, None)) for step in shift]
    for top, bottom in edges[0]:
        for left, right in edges[1]:
            mask[top:bottom, left:right] = number
            number += 1
    rows, columns = plane[0] // size, plane[1] // size
    mask = mask.view(rows, size, columns, size).permute(0, 2, 1, 3).reshape(rows * columns, size * size)
    apart = mask.unsqueeze(1) - mask.unsqueeze(2)
    return apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)


class WindowAttention(nn.Module):
    """Attention in shifted windows, with biases of relative positions."""

    relative: Tensor

    def __init__(self, channels: int, size: int, shift: int, heads: int, dropped: float = 0.0) -> None:
        super().__init__()
        self.size, self.shift, self.heads, self.dropped = size, shift, heads, dropped
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.table = nn.Parameter(torch.randn((2 * size - 1) ** 2, heads))
        places = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + size - 1
        self.register_buffer("relative", (apart[..., 0] * (2 * size - 1) + apart[..., 1]).flatten())

    def biases(self) -> Tensor:
        """Return the biases ``(1, head, pixel, pixel)``."""
        area = self.size**2
        return self.table[self.relative].view(area, area, -1).permute(2, 0, 1).contiguous().unsqueeze(0)

    def forward(self, x: Tensor) -> Tensor:
        return window_attention(x, self, *x.shape[1:3])


class SwinBlock(nn.Module):
    """Attention in windows and two matrices, with residuals; channels last."""

    def __init__(self, channels: int, size: int, shift: int, heads: int, dropped: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attn = WindowAttention(channels, size, shift, heads, dropped)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels),
            nn.GELU(),
            nn.Dropout(dropped),
            nn.Linear(2 * channels, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + drop_path(self.attn(self.norm1(x)), 0.2, self.training)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class SlicedMerging(nn.Module):
    """Every second row and column, joined as channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * channels)
        self.reduction = nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        height, width, _ = x.shape[-3:]
        x = F.pad(x, (0, 0, 0, width % 2, 0, height % 2))
        parts = [x[..., row::2, column::2, :] for column in (0, 1) for row in (0, 1)]
        out: Tensor = self.reduction(self.norm(torch.cat(parts, -1)))
        return out


class ReshapedMerging(SlicedMerging):
    """The same by a view."""

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        x = F.pad(x, (0, 0, 0, width % 2, 0, height % 2))
        height, width = x.shape[1:3]
        x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).permute(0, 1, 3, 4, 2, 5).flatten(3)
        out: Tensor = self.reduction(self.norm(x))
        return out


def swin(merging: type[nn.Module] = SlicedMerging, dropped: float = 0.0) -> nn.Module:
    """Return two stages of a Swin transformer."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 2, stride=2),
        Permute(0, 2, 3, 1),
        nn.LayerNorm(4),
        SwinBlock(4, 3, 0, 2, dropped),
        SwinBlock(4, 3, 1, 2, dropped),
        merging(4),
        SwinBlock(8, 3, 1, 2),
        nn.LayerNorm(8),
        Permute(0, 3, 1, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(1),
        nn.Linear(8, 5),
    )


class SplitAttention(nn.Module):
    """Attention by one matrix and ``scaled_dot_product_attention``."""

    def __init__(self, channels: int, heads: int, is_fused: bool = True) -> None:
        super().__init__()
        self.heads, self.is_fused = heads, is_fused
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels // heads)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, channels = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, channels // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.norm(q), self.norm(k)
        if self.is_fused:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            x = (q * 0.7 @ k.transpose(-2, -1)).softmax(dim=-1) @ v
        out: Tensor = self.proj(x.transpose(1, 2).reshape(batch, tokens, channels))
        return out


class JoinedAttention(nn.Module):
    """Attention by torch's layer."""

    def __init__(self, channels: int, heads: int, dropped: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(channels, heads, dropout=dropped, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class TransformerBlock(nn.Module):
    """Attention of tokens and two matrices, with residuals."""

    def __init__(self, channels: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = attention
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * channels, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTransformer(nn.Module):
    """Tokens of patches behind a class token, with embeddings of positions."""

    def __init__(self, plane: tuple[int, int], blocks: nn.Module, pooled: str = "token") -> None:
        super().__init__()
        count = (plane[0] // 2) * (plane[1] // 2)
        self.patches = nn.Conv2d(3, 4, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, count + 1, 4))
        self.blocks, self.norm, self.head = blocks, nn.LayerNorm(4), nn.Linear(4, 5)
        self.pooled = pooled

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        batch, channels, height, width = x.shape
        x = x.reshape(batch, channels, height * width).permute(0, 2, 1)
        x = torch.cat([self.token.expand(batch, -1, -1), x], dim=1)
        x = self.norm(self.blocks(F.dropout(x + self.positions, 0.1, self.training)))
        if self.pooled == "map":
            return x[:, 1:].transpose(1, 2).reshape(batch, channels, height, width)
        out: Tensor = self.head(x[:, 0] if self.pooled == "token" else x[:, 1:].mean(dim=1))
        return out


def vision_transformer(attention: Callable[[], nn.Module], pooled: str = "token") -> nn.Module:
    """Return a vision transformer of two blocks, for maps of 11 x 13."""
    blocks = nn.Sequential(*(TransformerBlock(4, attention()) for _ in range(2)))
    return VisionTransformer((11, 13), blocks, pooled)


def encoded() -> nn.Module:
    """Return a vision transformer of torch's own layers, behind which a convolution follows."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True)
    blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(VisionTransformer((11, 13), blocks, "map"), nn.Conv2d(4, 3, 3, padding=1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ConvNeXt": convnext,
    "ConvNeXt with responses": lambda: convnext(responds=True),
    "Swin": swin,
    "Swin with views and dropout": lambda: swin(ReshapedMerging, 0.2),
    "ViT of torch's attention": lambda: vision_transformer(lambda: JoinedAttention(4, 2)),
    "ViT with dropout of attention": lambda: vision_transformer(lambda: JoinedAttention(4, 2, 0.2)),
    "ViT of fused attention": lambda: vision_transformer(lambda: SplitAttention(4, 2), "mean"),
    "ViT of written attention": lambda: vision_transformer(lambda: SplitAttention(4, 2, False)),
    "tokens become a map": lambda: vision_transformer(lambda: SplitAttention(4, 2), "map"),
    "torch's encoder": encoded,
}
