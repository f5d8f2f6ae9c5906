"""Between tensors that are whole on every rank and parts that each rank has for itself.

Knows: sums and maxima over ranks, their gradients. Does not know: maps, modules.

A whole tensor has its full gradient on every rank, the same on each. So what makes a whole tensor of parts
hands its gradient on as it is, and where a whole tensor meets parts, its gradient is a sum over ranks.
Autograd runs nodes backwards in the order in which they were made; every rank makes those that talk in one
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.ranks.precision import wide_type


class _AllReduceForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, mesh: Mesh) -> Tensor:
        ctx.mesh = mesh
        wide = part.to(wide_type(part.dtype), memory_format=torch.contiguous_format, copy=True)
        return mesh.sum_in_place(wide).to(part.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce_backward(grad, ctx.mesh), None


class _AllReduceBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, mesh: Mesh) -> Tensor:
        ctx.mesh = mesh
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce_forward(grad, ctx.mesh), None


class _ConnectedZeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shape: Sequence[int], *sources: Tensor) -> Tensor:
        ctx.save_for_backward(*sources)
        return sources[0].new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sources = ctx.saved_tensors
        return None, *(
            connected_zeros(source.shape, grad, *sources[:at], *sources[at + 1 :])
            for at, source in enumerate(sources)
        )


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: Tensor, mesh: Mesh, shape: Sequence[int], places: Sequence[tuple[slice, ...]]
    ) -> Tensor:
        ctx.mesh, ctx.place = mesh, places[mesh.rank]
        whole = part.new_empty(shape)
        # equal pieces, for not every backend gathers unequal ones
        sizes = [whole[place].numel() for place in places]
        own = mesh.buffers.take(max(sizes), part)
        own[: sizes[mesh.rank]].copy_(part.reshape(-1))
        pieces = mesh.gather(own, [mesh.buffers.take(max(sizes), part) for _ in places])
        for place, piece, size in zip(places, pieces, sizes, strict=True):
            target = whole[place]
            target.copy_(piece[:size].view(target.shape))
        for buffer in (own, *pieces):
            mesh.buffers.give(buffer)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return all_reduce_backward(grad, ctx.mesh)[ctx.place], None, None, None


def all_reduce_forward(part: Tensor, mesh: Mesh) -> Tensor:
    """The sum over ranks, whole on each, the same bits."""
    if mesh.size == 1:
        return part
    out: Tensor = _AllReduceForward.apply(part, mesh)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return out


def all_reduce_backward(whole: Tensor, mesh: Mesh) -> Tensor:
    """A whole tensor where it meets parts: its gradient is summed over ranks."""
    if mesh.size == 1 or not whole.requires_grad:
        return whole
    out: Tensor = _AllReduceBackward.apply(whole, mesh)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return out


def connected_zeros(shape: Sequence[int], *sources: Tensor) -> Tensor:
    """Zeros, none mostly, of ``sources``, which get gradients of 0: ranks without work talk as others do.

    They depend on their sources as a product does, so that derivatives of any order have the same messages.
    """
    out: Tensor = _ConnectedZeros.apply(tuple(shape), *sources)  # type: ignore[no-untyped-call]  # torch's
    return out


def all_gather(part: Tensor, mesh: Mesh, shape: Sequence[int], places: Sequence[tuple[slice, ...]]) -> Tensor:
    """A tensor of ``shape``, whole on every rank; ``places[rank]`` is where a rank's part belongs."""
    if mesh.size == 1:
        return part
    out: Tensor = _AllGather.apply(part, mesh, shape, places)  # type: ignore[no-untyped-call]  # torch's
    return out


def all_reduce_max(values: Tensor, mesh: Mesh) -> Tensor:
    """The largest over ranks, without a gradient; NaN where any rank has it, as torch.amax has it."""
    if mesh.size == 1:
        return values.detach()
    if values.dtype.is_floating_point:
        # ranks compare floats as whole numbers in the same order: of floats, some backends lose a NaN
        wide = values.detach().to(wide_type(values.dtype), memory_format=torch.contiguous_format)
        return _from_order(mesh.largest_in_place(_to_order(wide)), wide.dtype).to(values.dtype)
    long = values.detach().to(torch.int64, memory_format=torch.contiguous_format, copy=True)
    return mesh.largest_in_place(long).to(values.dtype)


_AS_WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}


def _to_order(values: Tensor) -> Tensor:
    """Whole numbers that are ordered as floats are, NaN above all."""
    bits = torch.where(values.isnan(), torch.full_like(values, torch.nan), values).view(
        _AS_WHOLE[values.dtype]
    )
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def _from_order(bits: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits).view(dtype)
