"""A local layer over ranks that overlaps its halo exchange with the computation of interior blocks.

Knows: which blocks see only this rank's pixels, what to compute while gradients travel. Does not know:
modules, parameters as DTensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cotswold import ops
from cotswold.geometry import BlockLocal, Box, Region
from cotswold.geometry.box import EMPTY_BOX
from cotswold.mesh.maps.exchange import Exchange, empty_window
from cotswold.mesh.maps.kept import window_boxes
from cotswold.ops.fused_activation import bias_gradient
from cotswold.ops.local import encode
from cotswold.ops.memory_format import empty_map, images_last_no_grad, neurons_to_map
from cotswold.ops.products import adjoint, outer, product_of, supports_biases


def local_layer(
    part: Tensor, filters: Tensor, biases: Tensor | None, exchange: Exchange, layer: BlockLocal
) -> Tensor:
    """Compute ``Wx + biases`` of own blocks; ``exchange`` brings the window that ``layer`` reads.

    ``part`` is this rank's part of the map; other shapes as in `ops.local_layer`. Differentiable any number
    of times in reverse mode; second derivatives do not overlap messages.
    """
    out: Tensor = _OverlappedLocal.apply(part, filters, biases, exchange, layer)  # type: ignore[no-untyped-call]  # torch's
    return out


class _OverlappedLocal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: Tensor, filters: Tensor, biases: Tensor | None, exchange: Exchange, layer: BlockLocal
    ) -> Tensor:
        arriving = exchange.start(images_last_no_grad(part.detach()))
        window, filters = arriving.window, filters.contiguous()
        near = Region(layer.blocks_within(_local_box(exchange)))
        out = empty_map(window, window.shape[0], layer.output)
        fused = biases.contiguous() if biases is not None and supports_biases(window, layer) else None
        product_of(window, filters, layer, near, out, fused)
        arriving.finish()
        product_of(window, filters, layer, near.complement, out, fused)
        boxes = window_boxes(exchange.part, exchange.window)
        ctx.save_for_backward(part, filters, *boxes.halo(window, exchange.window))
        ctx.exchange, ctx.layer, ctx.boxes = exchange, layer, boxes
        return out if biases is None or fused is not None else out.add_(neurons_to_map(biases, layer))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        part, filters, *halo = ctx.saved_tensors
        exchange, layer, boxes = ctx.exchange, ctx.layer, ctx.boxes
        to_part, to_filters, to_biases, *_ = ctx.needs_input_grad
        summed = bias_gradient(grad, encode(layer)) if to_biases else None
        if torch.is_grad_enabled():  # the gradient will be differentiated
            return (
                exchange.adjoint(ops.local_adjoint(grad, filters, layer)) if to_part else None,
                ops.local_outer(grad, exchange(part), layer) if to_filters else None,
                summed,
                None,
                None,
            )
        leaving = exchange.adjoint.start(adjoint(grad, filters, layer)) if to_part else None
        gradient = None
        if to_filters:
            own = images_last_no_grad(part)
            window = boxes.assemble(empty_window(own, exchange.window), exchange.window, own, halo)
            gradient = outer(grad, window, layer)
        return None if leaving is None else leaving.finish(), gradient, summed, None, None


def _local_box(exchange: Exchange) -> Box:
    """Box of the window that this rank itself writes, in the window's coordinates."""
    kept = exchange.part.intersect(exchange.window)
    return kept.relative_to(exchange.window) if kept.size else EMPTY_BOX
