"""What every layer does to its inputs before an operation sees them.

Knows: shapes that a layer accepts, batches of one, autocast, export to ONNX. Does not know: the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from cotswold.errors import ExportError, GeometryError


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has it untyped
def _exporting_to_onnx() -> bool:
    """Whether either exporter is at work; dynamo, which the newer one may use, would take it for False."""
    return torch.onnx.is_in_onnx_export()


def refuse_onnx(layer: nn.Module) -> None:
    """Raise ExportError while an exporter of torch.onnx is at work."""
    if _exporting_to_onnx():
        raise ExportError(
            f"{type(layer).__name__} cannot be exported to ONNX, which has no operators to compute it with; "
            "use torch.export.export instead"
        )


def check_shape(layer: nn.Module, x: Tensor, shape: Sequence[int]) -> None:
    """Raise GeometryError unless ``x`` is one input of this shape or a batch of them."""
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
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]
