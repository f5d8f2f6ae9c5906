"""Operations that differentiate in reverse mode only.

Knows: how to apply an `autograd.Function`, how to detect a forward-mode tangent, when torch's wrappers of a
call can be skipped. Does not know: which operation asks. At a custom operation torch would drop the tangent
silently, and the derivative would read 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


_PLAIN = (Tensor, torch.nn.Parameter)


def is_eager(*inputs: Any) -> bool:
    """True if these tensors are ordinary and nothing traces, transforms or watches operations.

    Then an operation may call its kernel without torch's dispatcher, with the same result. For a small layer
    the custom operation would cost 27 µs, and the Python code of `Function.apply` 25.
    """
    if torch.compiler.is_compiling():  # first: compilers follow no branch after it
        return False
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return False
    if torch._C._get_tracing_state() is not None or getattr(forward_ad, "_current_level", 0) >= 0:
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    for each in inputs:
        if isinstance(each, Tensor) and (type(each) not in _PLAIN or wrapped(each)):
            return False
    return True


def compute(operation: Any, kernel: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Return the result of a kernel: by a direct call if `is_eager`, else through the custom operation."""
    found: Tensor = kernel(*inputs) if is_eager(*inputs) else operation(*inputs)
    return found


def differentiate(operation: Any, function: type[torch.autograd.Function]) -> None:
    """Register the function's derivatives for calls of the bare custom operation."""
    operation.register_autograd(function.backward, setup_context=function.setup_context)


def apply(operation: str, function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Call a function; raise ForwardModeError if torch requests its forward mode, at any depth.

    The function defines no ``jvp`` that could raise itself, because `torch.compile` rejects such functions. A
    torch.jit trace records the custom operation, which can be saved; the function cannot. Raises UserError
    for DTensors, which torch cannot shard over this operation.
    """
    if is_eager(*inputs):
        return _apply_eagerly(operation, function, inputs)
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


def _apply_eagerly(operation: str, function: type[torch.autograd.Function], inputs: Sequence[Any]) -> Tensor:
    """Call a function without the Python code of `Function.apply`, which handles transforms and defaults."""
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # torch hides its type
        with torch.profiler.record_function(f"cotswold::{operation}"):
            return _call_eagerly(function, inputs)
    return _call_eagerly(function, inputs)


def _call_eagerly(function: type[torch.autograd.Function], inputs: Sequence[Any]) -> Tensor:
    found: Tensor
    takes_context = function.setup_context is torch.autograd.Function.setup_context
    if takes_context or (
        torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in inputs)
    ):
        found = super(torch.autograd.Function, function).apply(*inputs)  # type: ignore[misc]  # untyped in torch
    else:
        found = function.forward(*inputs)
    return found
