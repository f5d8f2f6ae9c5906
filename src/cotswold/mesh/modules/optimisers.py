"""Optimisers of torch that cannot update the parameters of partitioned modules.

Knows: operations that DTensor lacks or gets wrong, parameters that are divided unequally. Does not know:
modules.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cotswold.errors import UserError

UNKNOWN_TO_DTENSOR = (torch.optim.Adafactor, torch.optim.Rprop)
"""Optimisers whose steps need operations that DTensor lacks."""


@cache
def watch() -> None:
    """Make optimiser steps that DTensor cannot do raise UserError on every rank, from now on."""
    register_optimizer_step_pre_hook(_refuse)


def _refuse(optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not isinstance(optimiser, (torch.optim.LBFGS, *UNKNOWN_TO_DTENSOR)):
        return
    name = type(optimiser).__name__
    for group in optimiser.param_groups:
        for values in group["params"]:
            if isinstance(optimiser, UNKNOWN_TO_DTENSOR):
                if isinstance(values, DTensor):
                    raise UserError(
                        f"torch.optim.{name} cannot update the parameters of a partitioned module, which "
                        "are DTensors; use SGD, Adam, AdamW or RMSprop"
                    )
            elif not _equal_parts(values):
                raise UserError(
                    f"torch.optim.LBFGS cannot update a parameter {tuple(values.shape)} that is divided "
                    f"unequally over a {'x'.join(map(str, values.device_mesh.shape))} grid; use another "
                    "optimiser, or a grid that divides it"
                )


def _equal_parts(values: Tensor) -> bool:
    if not isinstance(values, DTensor):
        return True
    parts = [1] * values.dim()
    for count, placement in zip(values.device_mesh.shape, values.placements, strict=True):
        if isinstance(placement, Shard):
            parts[placement.dim] *= count
    return all(extent % count == 0 for extent, count in zip(values.shape, parts, strict=True))
