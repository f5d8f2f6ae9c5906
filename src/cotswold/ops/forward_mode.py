"""Forward mode is refused.

Knows: how to tell that a tensor carries a forward-mode tangent. Does not know: which operation asks.
torch would otherwise drop the tangent at a custom operation without a word, and the derivative would read 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cotswold.errors import ForwardModeError


def refuse_forward_mode(operation: str, *tensors: Tensor) -> None:
    """Raise ForwardModeError if any tensor carries a tangent."""
    if torch.compiler.is_compiling():
        return
    if getattr(forward_ad, "_current_level", 0) < 0:  # outside of forward mode: the usual case, and cheap
        return
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise ForwardModeError(
            f"{operation} has no forward mode (torch.func.jvp, jacfwd, forward_ad); "
            "use reverse mode instead: torch.autograd.grad, torch.func.vjp or jacrev"
        )
