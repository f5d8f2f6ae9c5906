"""In which type sums are taken: float32 at least.

Knows: types of numbers. Does not know: what is summed.
"""

from __future__ import annotations

import torch


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which numbers of a type are summed: float32 for shorter floats, otherwise their own."""
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
