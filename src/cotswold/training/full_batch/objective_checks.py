"""Checks that the objective of strategy `batch` is a fixed function of the parameters.

Knows: layers that draw or that depend on the batch, repeated evaluations. Does not know: methods, processes.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cotswold.errors import UserError
from cotswold.training.data.batches import is_same
from cotswold.training.losses import IS_SUM
from cotswold.training.strategies.module_buffers import Buffers, refusal
from cotswold.training.strategies.module_modes import is_training_mode
from cotswold.training.strategies.supervised import explain_dtype_errors

if TYPE_CHECKING:
    from cotswold.training.full_batch.objective import ModuleObjective


def check_steady(module: nn.Module) -> None:
    """Raise UserError for layers that make the objective random, or dependent on the portion."""
    for name, each in module.named_modules():
        place = f"{name or type(module).__name__} ({type(each).__name__})"
        if not is_training_mode(module, each):
            continue
        if _drops(each):
            raise UserError(
                f"{place} drops random outputs at each evaluation, but strategy batch compares "
                "evaluations; set its dropout to 0 or remove it, or use strategy supervised"
            )
        if isinstance(each, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"{place} normalises over a batch, but the objective of strategy batch is a sum over "
                "samples; use another normalisation, such as GroupNorm, or strategy supervised"
            )


def _drops(module: nn.Module) -> bool:
    """Return True for a torch layer that drops outputs in training; modules inside others are checked
    separately.
    """
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0


_ROUNDING = 1e3
"""The tolerance in units of the precision: sums of threads differ by less, random draws by far more."""


def check_repeatable(work: ModuleObjective, portion: int) -> None:
    """Raise UserError if the first portion gives other values when it is computed again.

    This finds random draws in the code of a module or data set, which `check_steady` cannot see.
    """
    samples = range(min(portion, work.samples))
    first, again = work.read(samples), work.read(samples)
    buffers = Buffers(work.network)
    with explain_dtype_errors(work.network, first):
        if not isfinite(work.add(samples, torch.zeros_like(work.parameters)).value):
            return  # the first evaluation reports it
    if changed := buffers.changed():
        raise UserError(refusal(work.network, changed, "batch"))
    if work.is_sum:
        raise UserError(IS_SUM)
    name = type(work.network).__name__
    remedy = "strategy batch compares evaluations; remove random draws"
    if not is_same(first.inputs, again.inputs):
        raise UserError(
            f"the data set gave other samples when the same {len(samples)} were read again, but {remedy}, "
            "such as a random transform, or use strategy supervised"
        )
    with torch.no_grad():
        one, other = (work.network(first.inputs) for _ in range(2))
    if not isinstance(one, Tensor):
        one, other = (torch.tensor(work.loss_sum(first, work.network, False).value) for _ in range(2))
    if (one - other).abs().max() > _ROUNDING * torch.finfo(work.parameters.dtype).eps * one.abs().max():
        raise UserError(
            f"{name} gave other outputs when the same {len(samples)} samples were computed again, but "
            f"{remedy}, such as torch.nn.functional.dropout, or use strategy supervised"
        )
