"""The check that a checkpoint matches a module.

Knows: the names of a module's tensors in checkpoints. Does not know: files, training.
"""

from __future__ import annotations

from torch import nn

from cotswold.checkpoint import Checkpoint
from cotswold.errors import MismatchError
from cotswold.training.models import network_tensors


def check_state_matches(module: nn.Module, checkpoint: Checkpoint) -> None:
    """Raise MismatchError for the first tensor that differs, before any tensor is filled."""
    own = network_tensors(module)
    for name, tensor in own.items():
        if name not in checkpoint.names:
            ours = _dtype_and_shape(tensor.dtype, tensor.shape)
            raise _mismatch(checkpoint, name, f"{ours} here, but missing there")
        there, here = (checkpoint.dtype(name), checkpoint.shape(name)), (tensor.dtype, tuple(tensor.shape))
        if there != here:
            raise _mismatch(
                checkpoint, name, f"{_dtype_and_shape(*there)} there, but {_dtype_and_shape(*here)} here"
            )
    for name in checkpoint.names:
        if name.startswith("network.") and name not in own:
            there = checkpoint.dtype(name), checkpoint.shape(name)
            raise _mismatch(checkpoint, name, f"{_dtype_and_shape(*there)} there, but missing here")


def _mismatch(checkpoint: Checkpoint, name: str, differs: str) -> MismatchError:
    return MismatchError(
        f"the module differs from that of {checkpoint.path}: {name.removeprefix('network.')} is {differs}"
    )


def _dtype_and_shape(dtype: object, shape: tuple[int, ...]) -> str:
    return f"{dtype} {tuple(shape)}"
