"""A convolution over ranks whose messages travel while outputs are computed that need no pixel of others.

Knows: which outputs are near, what to compute while gradients travel. Does not know: how a convolution is
computed, parameters as DTensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cotswold.geometry import Box
from cotswold.mesh.map import DistributedMap
from cotswold.mesh.windows import Strided, Windows, margins, padded, unpadded


@dataclass(frozen=True)
class Convolution:
    """A convolution of windows, padding included; ``reader`` says which pixels an output needs."""

    reader: Strided
    step: tuple[int, int]
    spread: tuple[int, int]
    groups: int

    def __call__(self, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The outputs of a window."""
        return F.conv2d(window, weight, bias, self.step, 0, self.spread, self.groups)

    def gradients(
        self, grad: Tensor, window: Tensor, weight: Tensor, wanted: list[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Those by the window, the weight and the bias."""
        sizes, none = [weight.shape[0]], [0, 0]
        out: tuple[Tensor | None, Tensor | None, Tensor | None] = torch.ops.aten.convolution_backward(
            grad, window, weight, sizes, self.step, none, self.spread, False, none, self.groups, wanted
        )
        return out


def pays(box: Box, near: Box) -> bool:
    """Whether most outputs of a rank are near, but not all."""
    return box.size > near.size >= box.size / 2


def hidden(
    x: DistributedMap, weight: Tensor, bias: Tensor | None, windows: Windows, near: Box, compute: Convolution
) -> Tensor:
    """The outputs of this rank, those that are ``near`` first; differentiable any number of times.

    The second time messages are not hidden.
    """
    out: Tensor = _Hidden.apply(x.local, weight, bias, windows, (x.mesh.rank, near), compute)  # type: ignore[no-untyped-call]  # torch's
    return out


class _Hidden(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        part: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        windows: Windows,
        place: tuple[int, Box],
        compute: Convolution,
    ) -> Tensor:
        arriving = windows.exchange.start(part.detach())
        rank, near = place
        box, wanted = windows.partition.box(rank), windows.wanted[rank]
        images = part.shape[0]
        # the window is not complete yet; outputs that are near read what is
        own = compute(_early(arriving.window, compute, near, windows.inside[rank]), weight, bias)
        out = own.new_empty((images, weight.shape[0], *box.shape))
        _at(out, near, box).copy_(own)
        window = padded(arriving.finish(), windows, rank)
        for strip in around(box, near):
            _at(out, strip, box).copy_(compute(_seen(window, compute, strip, wanted), weight, bias))
        ctx.save_for_backward(part, window, weight, bias)
        ctx.windows, ctx.rank, ctx.compute = windows, rank, compute
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        part, window, weight, bias = ctx.saved_tensors
        windows, rank, compute = ctx.windows, ctx.rank, ctx.compute
        to_part, to_weight, to_bias, *_ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # the gradient will be differentiated in turn
            return *_plainly(grad, part, weight, bias, ctx), None, None, None
        leaving = None
        if to_part:
            to_window = compute.gradients(grad, window, weight, [True, False, False])[0]
            leaving = windows.exchange.adjoint.start(unpadded(to_window, windows, rank))
        learnt = compute.gradients(grad, window, weight, [False, to_weight, to_bias])[1:]
        return None if leaving is None else leaving.finish(), *learnt, None, None, None


def _plainly(
    grad: Tensor, part: Tensor, weight: Tensor, bias: Tensor | None, ctx: Any
) -> Iterator[Tensor | None]:
    """The gradients by way of functions that autograd knows."""
    window = padded(ctx.windows.exchange(part), ctx.windows, ctx.rank)
    out = ctx.compute(window, weight, bias)
    needed = ctx.needs_input_grad[:3]
    learnt: tuple[Any, ...] = (part, weight, bias)
    sources = [one for one, wanted in zip(learnt, needed, strict=True) if wanted]
    found = iter(torch.autograd.grad(out, sources, grad, create_graph=True))
    return (next(found) if wanted else None for wanted in needed)


def around(box: Box, inner: Box) -> list[Box]:
    """What a box has around an inner one: above, below, left and right of it; only what is not empty."""
    (top, left), (bottom, right) = box.start, box.stop
    (y0, x0), (y1, x1) = inner.start, inner.stop
    strips = (
        Box((top, left), (y0, right)),
        Box((y1, left), (bottom, right)),
        Box((y0, left), (y1, x0)),
        Box((y0, x1), (y1, right)),
    )
    return [strip for strip in strips if strip.size]


def _at(out: Tensor, box: Box, outer: Box) -> Tensor:
    rows, columns = box.shift(tuple(-at for at in outer.start)).slices
    return out[:, :, rows, columns]


def _seen(window: Tensor, compute: Convolution, box: Box, wanted: Box) -> Tensor:
    return _at(window, compute.reader.input_box(box), wanted)


def _early(window: Tensor, compute: Convolution, box: Box, inside: Box) -> Tensor:
    wanted = compute.reader.input_box(box)
    return F.pad(_at(window, wanted.intersect(inside), inside), margins(wanted, inside))
