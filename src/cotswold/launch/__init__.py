"""The processes of a run on several ranks: how they find each other, what happens when one dies."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.launch.local import run_local as run_local
    from cotswold.launch.membership import Membership as Membership
    from cotswold.launch.membership import join as join
    from cotswold.launch.world import World as World
    from cotswold.launch.world import settings_of as settings_of
    from cotswold.launch.world import threads_of as threads_of
    from cotswold.launch.world import world_of as world_of

_HOME = {
    "Membership": "membership",
    "World": "world",
    "join": "membership",
    "run_local": "local",
    "settings_of": "world",
    "threads_of": "world",
    "world_of": "world",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.launch.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.launch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
