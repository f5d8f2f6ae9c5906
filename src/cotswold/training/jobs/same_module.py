"""Whether a checkpoint is of the module that somebody has made.

Knows: the names under which checkpoints keep a module's tensors. Does not know: files, training.
"""

from __future__ import annotations

from torch import nn

from cotswold.checkpoint import Checkpoint
from cotswold.errors import MismatchError
from cotswold.training.models import network_tensors


def check_module(module: nn.Module, checkpoint: Checkpoint) -> None:
    """Raise MismatchError for the first tensor that the two do not have alike; nothing is filled before."""
    own = network_tensors(module)
    for name, tensor in own.items():
        if name not in checkpoint.names:
            raise _mismatch(checkpoint, name, f"{_said(tensor.dtype, tensor.shape)} here and not there")
        there, here = (checkpoint.dtype(name), checkpoint.shape(name)), (tensor.dtype, tuple(tensor.shape))
        if there != here:
            raise _mismatch(checkpoint, name, f"{_said(*there)} there, not {_said(*here)} as here")
    for name in checkpoint.names:
        if name.startswith("network.") and name not in own:
            there = checkpoint.dtype(name), checkpoint.shape(name)
            raise _mismatch(checkpoint, name, f"{_said(*there)} there and not here")


def _mismatch(checkpoint: Checkpoint, name: str, differs: str) -> MismatchError:
    return MismatchError(
        f"the module is another one than that of {checkpoint.path}: "
        f"{name.removeprefix('network.')} is {differs}"
    )


def _said(dtype: object, shape: tuple[int, ...]) -> str:
    return f"{dtype} {tuple(shape)}"
