"""Copies of torch's modules that need more than ``copy.copy`` to run on distributed maps.

Knows: modules that refuse to be copied, or to run on the CPU. Does not know: maps, ranks.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def shallow_copy(module: nn.Module) -> nn.Module:
    """Copy a module that shares its attributes; torch refuses ``copy.copy`` of one with parametrizations."""
    if not hasattr(module, "parametrizations"):
        out = copy.copy(module)
    else:
        kind = type(module)
        out = kind.__new__(kind)
        vars(out).update(vars(module))
    if type(module) is nn.SyncBatchNorm:
        out.__class__ = PartitionedSyncBatchNorm
    return out


def has_sync_batchnorm(module: nn.Module) -> bool:
    """True if a module asks for batch normalisation over the batches of all replicas."""
    return any(isinstance(each, nn.SyncBatchNorm) for each in module.modules())


class PartitionedSyncBatchNorm(nn.SyncBatchNorm):
    """Batch normalisation over the whole map, as that of `BatchNorm2d`, and over all replicas if any."""

    def forward(self, input: Tensor) -> Tensor:
        """Return normalised values."""
        return _BatchNorm.forward(self, input)
