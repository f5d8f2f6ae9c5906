"""What this host grants, and how processes know and reach each other.

Cores, the run's token, network interfaces, memory that processes share, messages between two of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.host.channel import Channel as Channel
    from cotswold.host.cores import granted_cores as granted_cores
    from cotswold.host.cores import waiting_settings as waiting_settings
    from cotswold.host.interface import address_for_peers as address_for_peers
    from cotswold.host.interface import address_of_keeper as address_of_keeper
    from cotswold.host.interface import interface_to as interface_to
    from cotswold.host.interface import listener_at as listener_at
    from cotswold.host.listener import Listener as Listener
    from cotswold.host.listener import TcpListener as TcpListener
    from cotswold.host.memory import available_bytes as available_bytes
    from cotswold.host.memory import keep_freed_bytes as keep_freed_bytes
    from cotswold.host.memory import require_memory as require_memory
    from cotswold.host.ranks import ALONE as ALONE
    from cotswold.host.ranks import Ranks as Ranks
    from cotswold.host.ranks import raise_on_all as raise_on_all
    from cotswold.host.shared_memory import Block as Block
    from cotswold.host.stream import Stream as Stream
    from cotswold.host.token import Token as Token
    from cotswold.host.token import is_signed as is_signed
    from cotswold.host.token import sign as sign
    from cotswold.host.token import token_in as token_in
    from cotswold.host.token import token_of as token_of

_HOME = {
    "Block": "shared_memory",
    "Channel": "channel",
    "Listener": "listener",
    "Stream": "stream",
    "TcpListener": "listener",
    "ALONE": "ranks",
    "Ranks": "ranks",
    "Token": "token",
    "address_for_peers": "interface",
    "address_of_keeper": "interface",
    "available_bytes": "memory",
    "granted_cores": "cores",
    "interface_to": "interface",
    "is_signed": "token",
    "keep_freed_bytes": "memory",
    "listener_at": "interface",
    "raise_on_all": "ranks",
    "require_memory": "memory",
    "sign": "token",
    "token_in": "token",
    "token_of": "token",
    "waiting_settings": "cores",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.host.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.host' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
