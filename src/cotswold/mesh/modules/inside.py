"""Checks before a partitioned module or one of its parts is called.

Knows: that parameters are local tensors only inside of the outermost module's forward, which hooks and
compilers cannot follow maps. Does not know: how layers compute.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cotswold.errors import UserError
from cotswold.mesh.maps.in_parts import InParts
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.ranks.notices import notice
from cotswold.nn import SparseAutoencoderStack

CONVOLUTIONS = nn.Conv2d, nn.ConvTranspose2d


def watch_parts(partitioned: nn.Module, mesh: Mesh) -> None:
    """Let every part of a partitioned module check its calls; the outermost module checks its own."""
    for name, part in partitioned.named_modules():
        # a stack has its own parameters ready in every method
        if part is not partitioned and part._parameters and not isinstance(part, SparseAutoencoderStack):
            part.register_forward_pre_hook(partial(_check_call, name, mesh))
    if isinstance(partitioned, CONVOLUTIONS):
        partitioned.register_forward_pre_hook(partial(_bring, mesh))


def _check_call(name: str, mesh: Mesh, part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Raise UserError outside of the outermost forward; bring pictures to the ranks' cuts inside of it."""
    if any(isinstance(values, DTensor) for values in part._parameters.values()):
        raise UserError(
            f"{type(part).__name__} {name!r} is a part of a partitioned module and was called outside of its "
            "forward, where no rank has its parameters ready; call the partitioned module, and return from "
            "its forward what you need. torch.utils.checkpoint calls parts again during backward: leave it "
            "out"
        )
    return _bring(mesh, part, args) if isinstance(part, CONVOLUTIONS) else None


def _bring(mesh: Mesh, part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Cut what a view made whole for a convolution; tell of a picture that is no batch."""
    x = args[0] if args else None
    if not isinstance(x, Tensor) or isinstance(x, InParts):
        return None
    if x.dim() == 3:
        notice(
            mesh,
            "unbatched",
            f"{{layer}} got a picture {tuple(x.shape)} without a batch dimension, which every rank "
            "computes whole; give the partitioned module a batch of one, x[None]",
        )
    elif x.dim() == 4 and mesh.gathered and _every_rank_has_some(x, mesh):
        again = DistributedMap.of(x, mesh)
        again.passing = True
        return (again, *args[1:])
    return None


def _every_rank_has_some(x: Tensor, mesh: Mesh) -> bool:
    return x.shape[2] >= mesh.grid.rows and x.shape[3] >= mesh.grid.columns and x[0, 0].numel() > 1


def check_root(partitioned: nn.Module) -> None:
    """Raise UserError for hooks and compilers that cannot follow maps in parts."""
    if _compiles():
        raise UserError(
            f"{type(partitioned).__name__} cannot be compiled: torch.compile knows no messages between "
            "ranks; call the partitioned module itself"
        )
    for part in partitioned.modules():
        if part is partitioned:
            continue
        if part._compiled_call_impl is not None or "_orig_mod" in part._modules:
            raise UserError(
                f"{_called(part, partitioned)} is compiled inside of a partitioned module: torch.compile "
                "knows no messages between ranks; leave torch.compile out"
            )
        if part._backward_hooks or part._backward_pre_hooks:
            raise UserError(
                f"{_called(part, partitioned)} has a backward hook inside of a partitioned module, where no "
                "rank has a whole gradient; register it on the partitioned module or on a parameter"
            )


def _called(part: nn.Module, partitioned: nn.Module) -> str:
    name = next(name for name, one in partitioned.named_modules() if one is part)
    return f"{type(part).__name__} {name!r}"


def _compiles() -> bool:
    """Whether torch.compile traces this call, or runs what it could not trace."""
    if torch.compiler.is_compiling():
        return True
    if "torch._dynamo" not in sys.modules:
        return False
    callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)
    return callback() not in (None, False)
