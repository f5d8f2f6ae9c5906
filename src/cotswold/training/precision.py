"""Precision of training: autocast, the scale of the loss, and the update with its gradient norm.

Knows: torch.autocast, torch.amp.GradScaler, clipping. Does not know: networks, batches, schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement
from torch.optim import Optimizer

from cotswold.errors import CheckpointError, UserError
from cotswold.mesh.modules.parameters import local_part

_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
LEAST_SCALE = 2.0**-24
"""The smallest scale of the loss: below it no gradient of a sensible size overflows float16."""

_CLIP_EPSILON = 1e-6
"""Added to the norm, as in torch.nn.utils.clip_grad_norm_."""
OVERFLOWS = "gradients overflow float16 at every scale of the loss; set training.precision to bf16-mixed"
"""The remedy for gradients that overflow at each scale."""


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which torch computes in a precision: "32", "bf16-mixed" or "16-mixed"."""
    return nullcontext() if precision == "32" else torch.autocast(device.type, _DTYPES[precision])


def in_float32(outputs: Any) -> Any:
    """Return outputs in float32 if they are a tensor in float16 or bfloat16, else unchanged."""
    if isinstance(outputs, Tensor) and outputs.dtype in _DTYPES.values():
        return outputs.float()
    return outputs


@dataclass(frozen=True)
class UpdateResult:
    """The outcome of an update.

    Args:
        details: Figures for the step's event: `gradient_norm`, `skipped_steps`.
        skipped: True if the gradient overflowed and no parameter changed.
        hopeless: True if the gradient overflows at every scale of the loss.
    """

    details: Mapping[str, float]
    skipped: bool = False
    hopeless: bool = False


class Precision:
    """The precision of a run, and its updates.

    Args:
        name: "32", "bf16-mixed" or "16-mixed".
        device: Device of the network.
        clip_norm: Largest norm of the gradient, or None.
    """

    def __init__(self, name: str, device: torch.device, clip_norm: float | None = None) -> None:
        self.name, self._device, self._clip_norm = name, device, clip_norm
        self.scaler = torch.amp.GradScaler(device.type) if name == "16-mixed" else None

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of forward pass and loss."""
        return autocast(self.name, self._device)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss, scaled if the precision needs it."""
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def update(self, optimizer: Optimizer, divisor: float | None = None) -> UpdateResult:
        """Take a step of an optimiser with the gradients, divided by ``divisor`` if given."""
        parameters = [
            each for group in optimizer.param_groups for each in group["params"] if each.grad is not None
        ]
        if divisor is not None:
            for each in parameters:
                each.grad.div_(divisor)
        details: dict[str, float] = {}
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
            for found in self.scaler._found_inf_per_device(optimizer).values():
                _reduce(found, dist.ReduceOp.MAX, mesh_of(parameters))  # every rank skips, or none
        if self._clip_norm is not None:
            length = clip_gradients(parameters, self._clip_norm)
            if isfinite(length):
                details["gradient_norm"] = length
        if self.scaler is None:
            optimizer.step()
            return UpdateResult(details)
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        skipped = self.scaler.get_scale() < before
        details["skipped_steps"] = float(skipped)
        return UpdateResult(details, skipped, skipped and self.scaler.get_scale() < LEAST_SCALE)

    def state(self) -> dict[str, float]:
        """Return the scale of the loss for a checkpoint; empty without one."""
        if self.scaler is None:
            return {}
        kept = self.scaler.state_dict()
        return {"scaler.scale": float(kept["scale"]), "scaler.growth": float(kept["_growth_tracker"])}

    def load(self, state: Mapping[str, object]) -> None:
        """Restore a state that `state` returned."""
        if self.scaler is None:
            return
        scale, growth = state["scaler.scale"], state["scaler.growth"]
        if not isinstance(scale, float) or not isinstance(growth, float):
            raise CheckpointError("the checkpoint lacks the scale of the loss")
        kept = {**self.scaler.state_dict(), "scale": scale, "_growth_tracker": int(growth)}
        self.scaler.load_state_dict(kept)


def clip_gradients(parameters: Sequence[Tensor], most: float) -> float:
    """Scale the gradients of parameters down to a norm of at most ``most``; return the norm before.

    The norm is that of all parameters together, and on a mesh that of all ranks' parts.
    """
    gradients = [each.grad for each in parameters if each.grad is not None]
    mesh = mesh_of(gradients)
    if mesh is None:
        return float(nn.utils.clip_grad_norm_(parameters, most))
    # torch reduces the norm of every DTensor by itself, and its order of sums may differ between ranks
    squares = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    is_first = not any(mesh.get_coordinate() or ())
    parts = [local_part(each) for each in gradients]
    for each, part in zip(gradients, parts, strict=True):
        if is_first or (isinstance(each, DTensor) and any(map(Placement.is_shard, each.placements))):
            squares += part.double().square().sum()
    _reduce(squares, dist.ReduceOp.SUM, mesh)
    norm = float(squares.sqrt())
    factor = min(1.0, most / (norm + _CLIP_EPSILON))
    for part in parts:
        part.mul_(factor)
    return norm


def mesh_of(values: Sequence[Tensor]) -> DeviceMesh | None:
    """Return the mesh of the first DTensor; None if there is none."""
    return next((each.device_mesh for each in values if isinstance(each, DTensor)), None)


def _reduce(value: Tensor, operation: dist.ReduceOp.RedOpType, mesh: DeviceMesh | None) -> None:
    """Reduce a value over all ranks of a mesh, in place."""
    for dimension in range(0 if mesh is None else mesh.ndim):
        assert mesh is not None, "the range is empty without one"
        dist.all_reduce(value, operation, group=mesh.get_group(dimension))


def check_precision(name: str, network: nn.Module) -> None:
    """Raise UserError if a mixed precision is not possible, because parameters are not in float32."""
    other = [
        f"{each} ({str(values.dtype).removeprefix('torch.')})"
        for each, values in network.named_parameters()
        if values.requires_grad and values.is_floating_point() and values.dtype != torch.float32
    ]
    if name != "32" and other:
        raise UserError(
            f'precision "{name}" keeps parameters in float32, but {", ".join(other[:3])} of '
            f'{type(network).__name__} are not; use module.float(), or precision "32"'
        )
