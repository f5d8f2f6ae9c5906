"""Layers of torch.nn with the library's kernels, as torch.jit.script compiles them: by torch's operations.

Knows: that such a layer has the attributes of torch's. Does not know: any layer.
"""

from __future__ import annotations

import copy

from torch import nn


def as_torch(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """Return torch's module with the same parameters, which torch.jit.script compiles instead."""
    plain = copy.copy(module)
    plain.__class__ = kind
    return plain
