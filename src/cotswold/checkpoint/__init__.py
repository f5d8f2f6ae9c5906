"""Checkpoints: named tensors as pieces in files, written by any number of ranks and read by any other."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.checkpoint.checkpoint import Checkpoint as Checkpoint
    from cotswold.checkpoint.checkpoints import Checkpoints as Checkpoints
    from cotswold.checkpoint.checkpoints import Latest as Latest
    from cotswold.checkpoint.piece import Piece as Piece
    from cotswold.checkpoint.sealed import SealedPiece as SealedPiece
    from cotswold.checkpoint.state_dict import IfThere as IfThere
    from cotswold.checkpoint.state_dict import InFiles as InFiles
    from cotswold.checkpoint.state_dict import Part as Part
    from cotswold.checkpoint.state_dict import StateDict as StateDict
    from cotswold.checkpoint.state_dict import StateValue as StateValue

_HOME = {
    "Checkpoint": "checkpoint",
    "Checkpoints": "checkpoints",
    "IfThere": "state_dict",
    "InFiles": "state_dict",
    "Latest": "checkpoints",
    "Part": "state_dict",
    "Piece": "piece",
    "SealedPiece": "sealed",
    "StateDict": "state_dict",
    "StateValue": "state_dict",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.checkpoint.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.checkpoint' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
