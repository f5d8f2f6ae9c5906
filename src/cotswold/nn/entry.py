"""What every layer does to its inputs before an operation sees them.

Knows: numbers, shapes and dtypes that a layer accepts, batches of one, autocast, export to ONNX. Does not
know: the operations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from cotswold.errors import ExportError, GeometryError


def _exporting_to_onnx() -> bool:
    """Whether either exporter is at work; dynamo, which the newer one may use, would take it for False."""
    return torch.onnx.is_in_onnx_export()


# what torch.compiler.assume_constant_result does, which imports dynamo for it: a second of every start
_exporting_to_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]  # dynamo reads it so


def refuse_onnx(layer: nn.Module) -> None:
    """Raise ExportError while an exporter of torch.onnx is at work."""
    if _exporting_to_onnx():
        raise ExportError(
            f"{type(layer).__name__} cannot be exported to ONNX, which has no operators to compute it with; "
            "use torch.export.export instead"
        )


def whole(value: object) -> int | None:
    """A whole number of any library as an int; None for what is none, a bool among them."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # that is what is found out
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
    """Raise GeometryError unless ``x`` and the weights are of one dtype, or become so under autocast."""
    got, wanted = _computed_in(x), _computed_in(weight)
    if got != wanted:
        raise GeometryError(
            f"{type(layer).__name__} has weights of {weight.dtype}, but got an input of {x.dtype}; "
            f"use x.to({wanted})" + (f", or layer.to({x.dtype})" if x.is_floating_point() else "")
        )


def check_shape(layer: nn.Module, x: Tensor, shape: Sequence[int]) -> None:
    """Raise GeometryError unless ``x`` is one input of this shape or a batch of them."""
    check_tensor(layer, x)
    if x.dim() not in (len(shape), len(shape) + 1) or tuple(x.shape[-len(shape) :]) != tuple(shape):
        wanted, got = (" x ".join(str(int(extent)) for extent in s) for s in (shape, x.shape))
        raise GeometryError(
            f"{type(layer).__name__} was built for inputs of {wanted}, alone or in a batch, "
            f"but got {got}; build it for the size of the map that reaches it"
        )


def batched(function: Callable[[Tensor], Tensor], x: Tensor, dims: int) -> Tensor:
    """``function(x)``, where an input of ``dims`` dimensions is a batch of one and comes back without it."""
    return function(x.unsqueeze(0)).squeeze(0) if x.dim() == dims else function(x)


def autocast(*tensors: Tensor) -> list[Tensor]:
    """Under autocast the tensors in its dtype, as for torch.nn.Conv2d (float64 stays); else untouched."""
    return [t.to(_computed_in(t)) for t in tensors]


def _computed_in(values: Tensor) -> torch.dtype:
    kind = values.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return values.dtype
    kept = values.dtype == torch.float64 or not values.is_floating_point()
    return values.dtype if kept else torch.get_autocast_dtype(kind)
