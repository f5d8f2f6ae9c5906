"""Batch normalisation with statistics over the samples of all replicas.

Knows: the sums of a batch normalisation, the ranks that share them. Does not know: modules, how a batch is
divided.

torch's SyncBatchNorm needs a GPU and replaced modules. Here a mode of torch's functions replaces
`torch.nn.functional.batch_norm` during a forward pass, so modules and their names stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from cotswold.kernels.operands import accumulation_dtype
from cotswold.mesh.maps.array import DistributedArray, arranged, array_of
from cotswold.mesh.maps.distributed_tensor import DistributedTensor
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.ranks.replicas import ReplicaAxis
from cotswold.mesh.rules.norms import Gather, moments, pooled


@dataclass(frozen=True)
class StatisticsRanks:
    """The ranks whose samples one batch normalisation sees.

    Args:
        replicas: The replicas.
        mesh: The grid of ranks of each replica; None if each is one process.
    """

    replicas: ReplicaAxis
    mesh: Mesh | None = None


@contextmanager
def synchronised_batchnorm(ranks: StatisticsRanks, *, counts: bool = True) -> Iterator[None]:
    """Replace batch normalisation in training mode by that of all replicas, for a `with` block.

    Every replica computes the same layers in the block. If not ``counts``, the samples of this replica are
    left out of the statistics.
    """
    with _Synchronised(ranks, counts):
        yield


class _Synchronised(TorchFunctionMode):
    def __init__(self, ranks: StatisticsRanks, counts: bool) -> None:
        self._ranks, self._counts = ranks, counts

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.batch_norm:
            given = _Arguments(*args, **(kwargs or {}))
            if given.training:
                return _batch_norm(given, self._ranks, self._counts)
        return func(*args, **(kwargs or {}))


@dataclass
class _Arguments:
    """The arguments of `torch.nn.functional.batch_norm`."""

    input: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


def _batch_norm(given: _Arguments, ranks: StatisticsRanks, counts: bool) -> Tensor:
    whole, like = _values(given.input)
    values, mesh = (whole, None) if like is None else (like.local, ranks.mesh)
    wide = values.to(accumulation_dtype(values.dtype))
    how = ranks.replicas, mesh, given.eps, counts
    out, mean, var, count = _SynchronisedBatchNorm.apply(wide, given.weight, given.bias, how)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with torch.no_grad():
        if given.running_mean is not None:
            given.running_mean.lerp_(mean.to(given.running_mean.dtype), given.momentum)
        if given.running_var is not None:
            unbiased = var * (count / (count - 1))
            given.running_var.lerp_(unbiased.to(given.running_var.dtype), given.momentum)
    narrow: Tensor = out.to(values.dtype)
    return narrow if like is None else arranged(narrow, like.axes, like.mesh)


def _values(given: Tensor) -> tuple[Tensor, DistributedArray | None]:
    """Return replicated values; or any tensor, and the array of which a rank has a part of each channel."""
    if isinstance(given, DistributedMap | DistributedArray):
        given.check_gradient()
        given.copies.check("batch_norm", given.called)
        array = array_of(given)
        if 1 not in array.axes.cut_dims:
            return given, array
    return (given.full_tensor() if isinstance(given, DistributedTensor) else given), None


class _SynchronisedBatchNorm(torch.autograd.Function):
    """Values ``(sample, channel, ...)`` normalised over all samples, and their mean, variance and count."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        how: tuple[ReplicaAxis, Mesh | None, float, bool],
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        replicas, mesh, eps, counts = how
        dims = [0, *range(2, values.dim())]
        shape = [1, -1, *[1] * (values.dim() - 2)]
        gathers: list[Gather] = [replicas.gather] if mesh is None else [mesh.gather, replicas.gather]
        count, mean, squares = pooled(moments(values if counts else values[:0], dims), gathers)
        number = float(count[0])
        if number < 2:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {tuple(values.shape)}"
            )
        var = squares / number
        scale = torch.rsqrt(var + eps)
        unit = (values - mean.view(shape)).mul_(scale.view(shape))
        ctx.save_for_backward(unit, weight, scale)
        ctx.how, ctx.dims, ctx.shape, ctx.number = how, dims, shape, number
        ctx.mark_non_differentiable(mean, var)
        out = unit if weight is None else unit * weight.view(shape)
        return (
            (out.clone() if out is unit else out) if bias is None else out + bias.view(shape),
            mean,
            var,
            number,
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *__: Any) -> tuple[Tensor | None, ...]:
        unit, weight, scale = ctx.saved_tensors
        replicas, mesh, _, counts = ctx.how
        shape, needed = ctx.shape, ctx.needs_input_grad
        own = torch.stack([grad.sum(ctx.dims), (grad * unit).sum(ctx.dims)])
        if mesh is not None:
            own = mesh.sum_in_place(own)
        whole = replicas.sum_in_place(own.clone()) / ctx.number
        to_values = None
        if needed[0]:
            slope = scale if weight is None else scale * weight
            shared = whole[0].view(shape) + unit * whole[1].view(shape)
            # samples that are left out do not change the statistics
            to_values = (grad - shared if counts else grad) * slope.view(shape)
        return to_values, own[1] if needed[1] else None, own[0] if needed[2] else None, None
