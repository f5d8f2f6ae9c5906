"""Accumulation types: float32 at least.

Knows: types of numbers. Does not know: what is summed.
"""

from __future__ import annotations

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which to sum: float32 for shorter floats, otherwise the same type."""
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
