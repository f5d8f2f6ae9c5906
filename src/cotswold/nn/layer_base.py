"""Input checks and conversions that every layer runs before its operation.

Knows: accepted integers, shapes and dtypes, missing batch dimensions, autocast, ONNX export, torch.fx traces,
sharded parameters. Does not know: the operations.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import torch
from torch import Tensor, fx, nn

from cotswold.errors import ExportError, GeometryError
from cotswold.ops.reverse_mode import is_traced

P = ParamSpec("P")
M = TypeVar("M", bound=nn.Module)


class Layer(nn.Module):
    """A module whose parameters keep their memory layout if the model converts to another memory format."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(lambda values: _call_contiguous(fn, values), recurse)  # type: ignore[no-untyped-call]  # untyped
        return self


def _call_contiguous(fn: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return ``fn(values)``, contiguous if ``values`` are.

    ``model.to(memory_format=torch.channels_last)`` converts every parameter of four or five dimensions.
    Filters have as many dimensions, but they are not images.
    """
    try:
        found: Tensor | None = fn(values)
    except RuntimeError as error:
        if "channels_last" not in str(error):
            raise
        found = None  # leave the except block, which keeps values referenced, so that torch may swap them
    if found is None:
        found = fn(values.flatten()).view(values.shape)
    return found.contiguous() if values.is_contiguous() and not found.is_contiguous() else found


def as_torch(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """Return torch's module with the same parameters, which torch.jit.script compiles instead."""
    plain = copy.copy(module)
    plain.__class__ = kind
    return plain


def traced_as_leaf(forward: Callable[Concatenate[M, Tensor, P], Tensor]) -> Callable[..., Tensor]:
    """Decorate a layer's ``forward`` so that torch.fx records it as one call, as for layers of torch.nn.

    If the layer itself is the root of the trace, torch's layer of the same name is traced; raises ExportError
    if there is none.
    """

    @wraps(forward)
    def entered(self: M, x: Any, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        return _recorded(self, x) if isinstance(x, fx.Proxy) else forward(self, x, *args, **kwargs)

    return entered


def _recorded(layer: nn.Module, x: fx.Proxy) -> Any:
    path = x.tracer.path_of_module(layer)  # type: ignore[attr-defined]  # of the tracer subclass that traces modules
    plain = getattr(layer, "__prepare_scriptable__", None)
    if not path and plain is not None:
        return type(plain()).forward(layer, x)
    if not path:
        name = type(layer).__name__
        raise ExportError(
            f"torch.fx cannot trace {name} by itself: it records the layer as one call of a parent; "
            f"trace torch.nn.Sequential({name}(...))"
        )
    return x.tracer.create_proxy("call_module", path, (x,), {})


def _exporting_to_onnx() -> bool:
    """True while either ONNX exporter runs. Dynamo, which the newer one may use, would see False."""
    return torch.onnx.is_in_onnx_export()


# same effect as torch.compiler.assume_constant_result, which imports dynamo: one second of every start
_exporting_to_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]  # dynamo reads this attribute


def refuse_onnx(layer: nn.Module) -> None:
    """Raise ExportError during an ONNX export."""
    if _exporting_to_onnx():
        raise ExportError(
            f"{type(layer).__name__} cannot be exported to ONNX: ONNX has no operator for it; "
            "use torch.export.export instead"
        )


def as_int(value: object) -> int | None:
    """Return an integer of any library as an int, or None for any other value, including a bool."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # the except clause below handles other types
    except TypeError:
        return None


def check_tensor(layer: nn.Module, x: object) -> None:
    """Raise GeometryError unless ``x`` is a tensor."""
    if not isinstance(x, Tensor):
        raise GeometryError(
            f"{type(layer).__name__} takes a torch.Tensor, not {type(x).__name__}; "
            "convert it with torch.as_tensor()"
        )


def check_floating(layer: nn.Module, x: Tensor) -> None:
    """Raise GeometryError unless ``x`` holds floating-point numbers."""
    if not x.is_floating_point():
        raise GeometryError(
            f"{type(layer).__name__} takes floating-point maps, but got an input of {x.dtype}; use x.float()"
        )


def check_dtype(layer: nn.Module, x: Tensor, weight: Tensor) -> None:
    """Raise GeometryError unless ``x`` and ``weight`` have one dtype, or autocast gives them one."""
    got, wanted = _compute_dtype(x), _compute_dtype(weight)
    if got != wanted:
        raise GeometryError(
            f"{type(layer).__name__} has weights of {weight.dtype}, but got an input of {x.dtype}; "
            f"use x.to({wanted})" + (f", or layer.to({x.dtype})" if x.is_floating_point() else "")
        )


def check_shape(layer: nn.Module, x: Tensor, shape: Sequence[int]) -> None:
    """Raise GeometryError unless ``x`` is one input of ``shape``, or a batch of such inputs."""
    check_tensor(layer, x)
    if x.dim() not in (len(shape), len(shape) + 1) or tuple(x.shape[-len(shape) :]) != tuple(shape):
        wanted, got = (" x ".join(str(int(extent)) for extent in s) for s in (shape, x.shape))
        raise GeometryError(
            f"{type(layer).__name__} expects inputs of {wanted}, with or without a batch dimension, "
            f"but got {got}; construct it with the size of the map that it receives"
        )


def batched(function: Callable[[Tensor], Tensor], x: Tensor, dims: int) -> Tensor:
    """Return ``function(x)``; add a batch dimension if ``x`` lacks one, and remove it from the result.

    ``function`` must return a new tensor without other references.
    """
    if x.dim() != dims:
        return function(x)
    y = function(x.unsqueeze(0))
    return shaped(y, y.shape[1:])


def shaped(fresh: Tensor, shape: Sequence[int]) -> Tensor:
    """Reshape a new tensor without other references, so that autograd does not see a view.

    ``shape`` adds or drops dimensions of 1. An in-place operation rewrites the history of a view, and hooks
    registered on the view are lost: FSDP would then free filters that the backward pass reads.
    """
    if is_traced():  # only this form keeps the batch size of a trace dynamic
        return fresh.reshape(*shape)
    if tuple(fresh.shape) == tuple(shape):
        return fresh
    found: Tensor = torch.ops.aten._unsafe_view(fresh, list(shape))
    return found


def fill(values: Tensor, drawn: Tensor) -> None:
    """Copy values, drawn alike on every rank, into a parameter; a sharded one takes its shard of rank 0's."""
    with torch.no_grad():
        if not is_sharded(values):
            values.copy_(drawn)
            return
        from torch.distributed.tensor import distribute_tensor

        drawn = drawn.to(values.dtype)
        sharded: Any = values
        values.copy_(distribute_tensor(drawn, sharded.device_mesh, sharded.placements))


def unsharded(values: Tensor) -> Tensor:
    """Return the values; of a sharded parameter the full tensor (a collective call on all ranks)."""
    if not is_sharded(values):
        return values
    sharded: Any = values
    found: Tensor = sharded.full_tensor()
    return found


def is_sharded(values: Tensor) -> Any:
    """True if a tensor is a DTensor; avoids the import of torch.distributed.tensor."""
    return hasattr(values, "full_tensor")


def autocast(*tensors: Tensor) -> list[Tensor]:
    """Cast tensors to autocast's dtype if enabled, as for torch.nn.Conv2d (float64 stays)."""
    wanted = [(each, _compute_dtype(each)) for each in tensors]
    return [each if each.dtype == dtype else each.to(dtype) for each, dtype in wanted]


def _compute_dtype(values: Tensor) -> torch.dtype:
    kind = values.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return values.dtype
    kept = values.dtype == torch.float64 or not values.is_floating_point()
    return values.dtype if kept else torch.get_autocast_dtype(kind)
