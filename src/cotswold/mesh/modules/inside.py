"""Checks before a partitioned module or one of its parts is called.

Knows: parameters are local tensors only inside the outermost module's forward; hooks and compilers that
cannot handle distributed maps. Does not know: how layers compute.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cotswold.errors import UserError
from cotswold.mesh.maps.distributed_tensor import DistributedTensor
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.ranks.notices import notice
from cotswold.nn import SparseAutoencoderStack

CONVOLUTIONS = nn.Conv2d, nn.ConvTranspose2d
VOLUMES = nn.Conv3d, nn.ConvTranspose3d
"""Layers of volumes, which every rank computes whole."""


def watch_parts(partitioned: nn.Module, mesh: Mesh) -> None:
    """Make every part of a partitioned module check its calls; the outermost module checks its own."""
    for name, part in partitioned.named_modules():
        # every method of a stack makes its parameters local itself
        has_own = part._parameters or isinstance(part, CONVOLUTIONS)
        if part is not partitioned and has_own and not isinstance(part, SparseAutoencoderStack):
            part.register_forward_pre_hook(partial(_check_call, name, mesh), prepend=True)
        if isinstance(part, VOLUMES):
            part.register_forward_pre_hook(partial(_tell_whole, mesh))
    if isinstance(partitioned, CONVOLUTIONS):
        partitioned.register_forward_pre_hook(partial(_move_inputs, mesh))


def _check_call(name: str, mesh: Mesh, part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Raise UserError outside of the outermost forward; distribute images inside of it."""
    if any(isinstance(values, DTensor) for values in part._parameters.values()):
        raise UserError(
            f"{type(part).__name__} {name!r} is a part of a partitioned module and was called outside of "
            "the module's forward, where its parameters are not local; call the partitioned module, and "
            "return from its forward what you need"
        )
    return _move_inputs(mesh, part, args) if isinstance(part, CONVOLUTIONS) else None


def _tell_whole(mesh: Mesh, part: nn.Module, args: tuple[Any, ...]) -> None:
    notice(
        mesh,
        "whole",
        "{layer} takes volumes, which are not distributed: every rank holds and computes all of them",
    )


def _move_inputs(mesh: Mesh, part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Distribute a map that a view has gathered before a convolution; warn of a missing batch dimension."""
    x = args[0] if args else None
    if not isinstance(x, Tensor) or isinstance(x, DistributedTensor):
        return None
    if x.dim() == 3:
        notice(
            mesh,
            "unbatched",
            f"{{layer}} got an image {tuple(x.shape)} without a batch dimension, which every rank computes "
            "whole; give the partitioned module a batch of one, x[None]",
        )
    elif x.dim() == 4 and mesh.gathered and _every_rank_has_some(x, mesh):
        again = DistributedMap.of(x, mesh)
        again.passing = True
        return (again, *args[1:])
    return None


def _every_rank_has_some(x: Tensor, mesh: Mesh) -> bool:
    return x.shape[2] >= mesh.grid.rows and x.shape[3] >= mesh.grid.columns and x[0, 0].numel() > 1


def check_root(partitioned: nn.Module) -> None:
    """Raise UserError for hooks and compilers that cannot handle distributed maps."""
    if _compiles():
        raise UserError(
            f"{type(partitioned).__name__} cannot be compiled: torch.compile does not support messages "
            "between ranks; call the partitioned module itself"
        )
    for part in partitioned.modules():
        if part is partitioned:
            continue
        if part._compiled_call_impl is not None or "_orig_mod" in part._modules:
            raise UserError(
                f"{_module_name(part, partitioned)} is compiled inside of a partitioned module: "
                "torch.compile does not support messages between ranks; remove torch.compile"
            )
        if part._backward_hooks or part._backward_pre_hooks:
            raise UserError(
                f"{_module_name(part, partitioned)} has a backward hook inside of a partitioned module, "
                "where no rank has a whole gradient; register it on the partitioned module or on a parameter"
            )


def _module_name(part: nn.Module, partitioned: nn.Module) -> str:
    name = next(name for name, one in partitioned.named_modules() if one is part)
    return f"{type(part).__name__} {name!r}"


def _compiles() -> bool:
    """True if torch.compile traces this call, or runs what it could not trace."""
    if torch.compiler.is_compiling():
        return True
    if "torch._dynamo" not in sys.modules:
        return False
    callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)
    return callback() not in (None, False)
