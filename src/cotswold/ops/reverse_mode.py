"""Operations that differentiate in reverse mode only.

Knows: how to apply an `autograd.Function`, how to detect a forward-mode tangent. Does not know: which
operation asks. At a custom operation torch would drop the tangent silently, and the derivative would read 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cotswold.errors import ForwardModeError, UserError


def _error(operation: str) -> ForwardModeError:
    return ForwardModeError(
        f"{operation} has no forward mode (torch.func.jvp, jacfwd, forward_ad); "
        "use reverse mode instead: torch.autograd.grad, torch.func.vjp or jacrev"
    )


def refuse_forward_mode(operation: str, *tensors: Tensor) -> None:
    """Raise ForwardModeError if any tensor carries a tangent; for use inside a custom operation."""
    if getattr(forward_ad, "_current_level", 0) < 0:  # not in forward mode: the common case, and cheap
        return
    # torch does not type unpack_dual
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):  # type: ignore[no-untyped-call]  # untyped
        raise _error(operation)


def is_traced() -> bool:
    """True while torch.jit traces."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined,no-untyped-call]  # torch hides its type


def computes_now(x: Tensor) -> bool:
    """True if torch does nothing with operations on ``x`` but compute them, and record their gradient.

    False while torch compiles, exports, traces, maps or differentiates forward, in a dispatch mode, and for
    subclasses of Tensor: there an operation must be one that torch knows.
    """
    if torch.compiler.is_compiling():  # first: it cannot trace the other questions
        return False
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and not is_traced()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.maybe_current_level() is None
        and not torch._C._functorch.is_legacy_batchedtensor(x)
        and getattr(forward_ad, "_current_level", 0) < 0
    )


def differentiate(operation: Any, function: type[torch.autograd.Function]) -> None:
    """Register the function's derivatives for calls of the bare custom operation."""
    operation.register_autograd(function.backward, setup_context=function.setup_context)


def apply(operation: str, function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Call a function; raise ForwardModeError if torch requests its forward mode, at any depth.

    The function defines no ``jvp`` that could raise itself, because `torch.compile` rejects such functions. A
    torch.jit trace records the custom operation, which can be saved; the function cannot. Raises UserError
    for DTensors, which torch cannot shard over this operation.
    """
    if is_traced():
        traced: Tensor = function.forward(*inputs)
        return traced
    try:
        out: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    except NotImplementedError as error:
        if "sharding strategy" in str(error):
            raise UserError(
                f"{operation} cannot be computed on DTensors; call the layer on local tensors (to_local()), "
                "or split the module with cotswold.mesh.partition"
            ) from error
        if "jvp" not in str(error):
            raise
        raise _error(operation) from error
    return out
