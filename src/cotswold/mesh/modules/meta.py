"""Initial values of modules that were built on the meta device; no rank ever has more than one layer whole.

Knows: how modules draw their initial values (``reset_parameters``), local layers one block row at a time.
Does not know: how modules are split.
"""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn

from cotswold.errors import UserError
from cotswold.mesh.modules.parameters import distributed, own_part, parameter_of_part
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.nn import LocallyConnected2d


def is_meta(module: nn.Module) -> bool:
    """True if a module itself has parameters or buffers without values."""
    own = (*module._parameters.values(), *module._buffers.values())
    return any(values is not None and values.is_meta for values in own)


def materialised(module: nn.Module, name: str, device: str) -> nn.Module:
    """Copy a module, without its children, with initial values that its constructor would draw.

    Existing values stay. Raises UserError that names the module if it has no ``reset_parameters``.
    """
    whole = copy.copy(module)
    whole._modules = {}
    whole._parameters = {
        key: None if values is None else nn.Parameter(_empty(values, device), values.requires_grad)
        for key, values in module._parameters.items()
    }
    whole._buffers = {
        key: None if values is None else _empty(values, device) for key, values in module._buffers.items()
    }
    reset = getattr(whole, "reset_parameters", None)
    if not callable(reset):
        raise UserError(
            f"{type(module).__name__} {name!r} is on the meta device and has no reset_parameters, which "
            "would draw its initial values; build it on the CPU"
        )
    reset()
    for homes in ((whole._parameters, module._parameters), (whole._buffers, module._buffers)):
        drawn, given = cast(tuple[dict[str, Tensor | None], ...], homes)
        drawn |= {key: values for key, values in given.items() if values is not None and not values.is_meta}
    return whole


def _empty(values: Tensor, device: str) -> Tensor:
    return torch.empty(values.shape, dtype=values.dtype, device=device)


def local_parts(
    layer: LocallyConnected2d, mesh: Mesh, dims: dict[str, tuple[int, int]], device: str
) -> dict[str, nn.Parameter | None]:
    """Return a rank's parts of a local layer's parameters, with the values of a fresh layer."""
    bound = 1 / math.sqrt(layer._fan_in())
    parts: dict[str, nn.Parameter | None] = {"weight": None, "bias": None}
    for name in parts:
        like = getattr(layer, name)
        if like is None:
            continue
        if not like.is_meta:
            parts[name] = distributed(like, mesh, dims[name])
            continue
        rows, *others = own_part(like.shape, mesh, dims[name])
        shape = [one.stop - one.start for one in (rows, *others)]
        part = torch.empty(shape, dtype=like.dtype, device=device)
        for row in range(like.shape[0]):
            drawn = torch.empty(like.shape[1:], dtype=torch.float32, device="cpu").uniform_(-bound, bound)
            if rows.start <= row < rows.stop:
                part[row - rows.start] = drawn[tuple(others)]
        parts[name] = parameter_of_part(part, like.shape, mesh, dims[name], like.requires_grad)
    return parts
