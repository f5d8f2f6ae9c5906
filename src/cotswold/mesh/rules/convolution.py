"""A convolution over ranks that overlaps its halo exchange with the computation of interior outputs.

Knows: which outputs need no halo, what to compute while gradients travel. Does not know: how a convolution is
computed, parameters as DTensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cotswold.geometry import Box, Partition
from cotswold.mesh.maps.crop import crop
from cotswold.mesh.maps.exchange import empty_window
from cotswold.mesh.maps.kept import around, window_boxes
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.maps.windows import Strided, Windows, near_outputs, padded, unpadded
from cotswold.mesh.rules.operands import gradients


@dataclass(frozen=True)
class Convolution:
    """A convolution of padded windows; ``field`` says which pixels an output needs."""

    field: Strided
    step: tuple[int, int]
    spread: tuple[int, int]
    groups: int

    def __call__(
        self, window: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int] = (0, 0)
    ) -> Tensor:
        """Return the outputs of a window, with ``padding`` added on both sides (y, x)."""
        return F.conv2d(window, weight, bias, self.step, padding, self.spread, self.groups)

    def gradients(
        self, grad: Tensor, window: Tensor, weight: Tensor, wanted: list[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients with respect to the window, the weight and the bias."""
        sizes, none = [weight.shape[0]], [0, 0]
        out: tuple[Tensor | None, Tensor | None, Tensor | None] = torch.ops.aten.convolution_backward(
            grad, window, weight, sizes, self.step, none, self.spread, False, none, self.groups, wanted
        )
        return out


@lru_cache(maxsize=1024)
def is_worth_overlapping(outputs: Partition, below: Partition, field: Strided) -> bool:
    """True if all ranks have outputs, and on some rank most outputs, but not all, need no halo.

    All ranks decide alike, so that they send equally many messages for derivatives of any order.
    """
    pairs = zip(outputs.boxes, below.boxes, strict=True)
    near = [near_outputs(box, own, below.shape, field) for box, own in pairs]
    sizes = [(box.size, one.size) for box, one in zip(outputs.boxes, near, strict=True)]
    return all(size for size, _ in sizes) and any(size > few >= size / 2 for size, few in sizes)


def overlapped(
    x: DistributedMap, weight: Tensor, bias: Tensor | None, windows: Windows, compute: Convolution
) -> Tensor:
    """Compute this rank's outputs, first those that need no halo; differentiable any number of times.

    Second derivatives do not overlap messages.
    """
    near = near_outputs(windows.partition.box(x.mesh.rank), x.box, x.partition.shape, compute.field)
    out: Tensor = _OverlappedConvolution.apply(x.local, weight, bias, windows, (x.mesh.rank, near), compute)  # type: ignore[no-untyped-call]  # torch's
    return out


class _OverlappedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        part: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        windows: Windows,
        rank_and_near: tuple[int, Box],
        compute: Convolution,
    ) -> Tensor:
        rank, near = rank_and_near
        box, wanted, inside = windows.partition.box(rank), windows.wanted[rank], windows.inside[rank]
        boxes = window_boxes(windows.exchange.part, inside)
        out = part.new_empty((part.shape[0], weight.shape[0], *box.shape))
        window = boxes.assemble(empty_window(part, wanted), wanted, part)
        arriving = windows.exchange.start(part.detach(), crop(window, inside, wanted))
        if near.size:  # the window is incomplete; these outputs read only what has arrived
            crop(out, near, box).copy_(compute(_seen(window, compute, near, wanted), weight, bias))
        arriving.finish()
        for strip in around(box, near):
            crop(out, strip, box).copy_(compute(_seen(window, compute, strip, wanted), weight, bias))
        ctx.save_for_backward(part, weight, bias, *boxes.halo(window, wanted))
        ctx.windows, ctx.rank, ctx.compute, ctx.boxes = windows, rank, compute, boxes
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        part, weight, bias, *halo = ctx.saved_tensors
        windows, rank, compute = ctx.windows, ctx.rank, ctx.compute
        to_part, to_weight, to_bias, *_ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # the gradient will be differentiated
            return *_plainly(grad, part, weight, bias, ctx), None, None, None
        leaving, wanted = None, windows.wanted[rank]
        window = ctx.boxes.assemble(empty_window(part, wanted), wanted, part, halo)
        if to_part:
            to_window = compute.gradients(grad, window, weight, [True, False, False])[0]
            leaving = windows.exchange.adjoint.start(unpadded(to_window, windows, rank))
        learnt = compute.gradients(grad, window, weight, [False, to_weight, to_bias])[1:]
        return None if leaving is None else leaving.finish(), *learnt, None, None, None


def _plainly(
    grad: Tensor, part: Tensor, weight: Tensor, bias: Tensor | None, ctx: Any
) -> Iterator[Tensor | None]:
    """The gradients by functions that autograd can differentiate."""
    window = padded(ctx.windows.exchange(part), ctx.windows, ctx.rank)
    out = ctx.compute(window, weight, bias)
    return gradients(out, (part, weight, bias), ctx.needs_input_grad[:3], grad)


def _seen(window: Tensor, compute: Convolution, box: Box, wanted: Box) -> Tensor:
    return crop(window, compute.field.input_box(box), wanted)
