"""Rules for losses between maps, or of a map and classes: a number, replicated on every rank.

Knows: torch's reductions of losses, with or without weights. Does not know: other sums, windows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cotswold.errors import UserError
from cotswold.kernels.operands import accumulation_dtype
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.ranks.collectives import all_reduce_forward
from cotswold.mesh.rules.arrays.operands import notice_whole
from cotswold.mesh.rules.operands import local_operand, refuse_other_maps
from cotswold.mesh.rules.registry import rule


def _reduced(values: Tensor, like: DistributedMap, reduction: str, count: int) -> Any:
    if reduction == "none":
        return like.like(values)
    total = all_reduce_forward(values.sum(), like.mesh)
    return total if reduction == "sum" else total / count


def _loss(name: str) -> None:
    function: Callable[..., Tensor] = getattr(F, name)
    signature = inspect.signature(function)

    @rule(name)
    def loss(*args: Any, **kwargs: Any) -> Any:
        try:
            told = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise UserError(f"{name} does not accept these arguments: {error}") from None
        input, target = told.pop("input"), told.pop("target")
        reduction = told.pop("reduction", "mean")
        average, reduced = told.pop("size_average", None), told.pop("reduce", None)
        if average is not None or reduced is not None:
            raise UserError(f"{name} of distributed maps takes reduction=, not size_average or reduce")
        if reduction not in ("none", "mean", "sum"):
            raise UserError(f"{name} of distributed maps needs reduction none, mean or sum")
        if not any(isinstance(one, DistributedMap) for one in (input, target)):
            raise UserError(f"{name} of replicated tensors needs replicated weights")
        like = input if isinstance(input, DistributedMap) else target
        if tuple(input.shape) != tuple(target.shape):
            raise UserError(f"{name} needs maps of one shape, got {input.shape} and {target.shape}")
        weight = told.pop("weight", None)
        operands = {key: _wide(local_operand(value, like)) for key, value in told.items()}
        own, wanted = local_operand(input, like), local_operand(target, like)
        values = function(_wide(own), _wide(wanted), reduction="none", **operands)
        dtype = torch.promote_types(own.dtype, wanted.dtype)
        if weight is None:
            return _reduced(values, like, reduction, like.numel()).to(dtype)
        share = _wide(local_operand(weight, like))
        if name not in _DIVIDED_BY_WEIGHTS or reduction != "mean":
            return _reduced(values * share, like, reduction, like.numel()).to(dtype)
        if tuple(weight.shape) != tuple(like.shape):
            raise UserError(f"{name} needs weights of the shape of its maps, {tuple(like.shape)}")
        total = (
            all_reduce_forward(share.sum(), like.mesh)
            if isinstance(weight, DistributedMap)
            else _wide(weight).sum()
        )
        return (all_reduce_forward((values * share).sum(), like.mesh) / total).to(dtype)


def _wide(value: Any) -> Any:
    return value.to(accumulation_dtype(value.dtype)) if isinstance(value, Tensor) else value


_DIVIDED_BY_WEIGHTS = frozenset(("mse_loss", "l1_loss"))
"""Losses whose mean divides by the sum of weights, as in torch; others divide by the number of values.

torch 2.13 does not dispatch the weights of l1_loss if an argument is a map: see docs/mesh.md.
"""


for _name in (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "soft_margin_loss",
    "poisson_nll_loss",
):
    _loss(_name)


def _classes(name: str) -> None:
    function: Callable[..., Tensor] = getattr(F, name)

    @rule(name)
    def loss(
        input: DistributedMap,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: None = None,
        ignore_index: int = -100,
        reduce: None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        refuse_other_maps(name, target, weight)
        if size_average is not None or reduce is not None:
            raise UserError(f"{name} of a distributed map takes reduction=, not size_average or reduce")
        if reduction not in ("none", "mean", "sum"):
            raise UserError(f"{name} of a distributed map needs reduction none, mean or sum")
        shares = target.dim() == 4  # of classes, instead of numbers
        if (target.dim() != 3 and not shares) or (weight is not None and weight.requires_grad):
            raise UserError(
                f"{name} of a distributed map takes classes (image, y, x) or shares (image, class, y, x) "
                "and weights without gradients; call full_tensor() on the map first"
            )
        own = local_operand(target, input) if shares else target[(slice(None), *input.box.slices)]
        how: dict[str, Any] = {"weight": _wide(weight)}
        if not shares:
            how["ignore_index"] = ignore_index
        if name == "cross_entropy":
            how["label_smoothing"] = label_smoothing
        each = "none" if reduction == "none" else "sum"
        values = function(_wide(input.local), _wide(own) if shares else own, reduction=each, **how)
        if reduction == "none":  # without channels it is no map
            notice_whole(f"{name} without a reduction", input)
            return input.like(values[:, None].to(input.dtype)).full_tensor()[:, 0]
        count: Any = target.numel() // target.shape[1]
        if not shares:
            kept = target[target != ignore_index]
            count = kept.numel() if weight is None else _wide(weight)[kept].sum()
        total = all_reduce_forward(values, input.mesh)
        return (total if reduction == "sum" else total / count).to(input.dtype)


for _name in ("cross_entropy", "nll_loss"):
    _classes(_name)
