"""What a run leaves behind: its directory, events, checkpoints and accounts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.run.account import Account as Account
    from cotswold.run.checkpoint import Checkpoint as Checkpoint
    from cotswold.run.checkpoints import Checkpoints as Checkpoints
    from cotswold.run.checkpoints import Latest as Latest
    from cotswold.run.curves import tensorboard as tensorboard
    from cotswold.run.directory import RunDirectory as RunDirectory
    from cotswold.run.events import Event as Event
    from cotswold.run.events import EventLog as EventLog
    from cotswold.run.events import read_events as read_events
    from cotswold.run.memory import available_bytes as available_bytes
    from cotswold.run.memory import keep_freed_bytes as keep_freed_bytes
    from cotswold.run.memory import require as require
    from cotswold.run.piece import Piece as Piece
    from cotswold.run.ranks import ALONE as ALONE
    from cotswold.run.ranks import Ranks as Ranks
    from cotswold.run.ranks import together as together
    from cotswold.run.sealed import SealedPiece as SealedPiece
    from cotswold.run.surroundings import environment as environment

_HOME = {
    "ALONE": "ranks",
    "Account": "account",
    "Checkpoint": "checkpoint",
    "Checkpoints": "checkpoints",
    "Event": "events",
    "EventLog": "events",
    "Latest": "checkpoints",
    "Piece": "piece",
    "Ranks": "ranks",
    "RunDirectory": "directory",
    "SealedPiece": "sealed",
    "available_bytes": "memory",
    "environment": "surroundings",
    "keep_freed_bytes": "memory",
    "read_events": "events",
    "require": "memory",
    "tensorboard": "curves",
    "together": "ranks",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.run.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.run' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
