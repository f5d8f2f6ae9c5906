"""What a run leaves behind: its directory, events and accounts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.run.account import Account as Account
    from cotswold.run.curves import tensorboard as tensorboard
    from cotswold.run.directory import RunDirectory as RunDirectory
    from cotswold.run.environment import describe_environment as describe_environment
    from cotswold.run.events import Event as Event
    from cotswold.run.events import EventLog as EventLog
    from cotswold.run.events import read_events as read_events
    from cotswold.run.metrics import Metrics as Metrics
    from cotswold.run.recorder import NoLog as NoLog
    from cotswold.run.recorder import Recorder as Recorder
    from cotswold.run.stop import Stop as Stop

_HOME = {
    "Account": "account",
    "Event": "events",
    "EventLog": "events",
    "Metrics": "metrics",
    "NoLog": "recorder",
    "Recorder": "recorder",
    "RunDirectory": "directory",
    "Stop": "stop",
    "describe_environment": "environment",
    "read_events": "events",
    "tensorboard": "curves",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.run.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.run' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
