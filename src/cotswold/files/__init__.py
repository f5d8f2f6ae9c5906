"""Files that survive kills, are whole or not there, and are opened without following links."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.files.durable import PARTIAL as PARTIAL
    from cotswold.files.durable import create_file as create_file
    from cotswold.files.durable import disk_errors as disk_errors
    from cotswold.files.durable import durable_file as durable_file
    from cotswold.files.durable import is_full as is_full
    from cotswold.files.durable import replace_file as replace_file
    from cotswold.files.durable import replacing as replacing
    from cotswold.files.durable import sync_folder as sync_folder
    from cotswold.files.durable import write_all as write_all
    from cotswold.files.durable import writing_whole as writing_whole
    from cotswold.files.lock import DirectoryLock as DirectoryLock
    from cotswold.files.opening import open_file as open_file
    from cotswold.files.opening import open_reading as open_reading
    from cotswold.files.opening import read_bytes as read_bytes
    from cotswold.files.opening import real_folder as real_folder
    from cotswold.files.untrusted import MalformedError as MalformedError
    from cotswold.files.untrusted import parse_object as parse_object
    from cotswold.files.untrusted import read_object as read_object
    from cotswold.files.untrusted import take as take

_HOME = {
    "DirectoryLock": "lock",
    "MalformedError": "untrusted",
    "PARTIAL": "durable",
    "create_file": "durable",
    "disk_errors": "durable",
    "durable_file": "durable",
    "is_full": "durable",
    "open_file": "opening",
    "open_reading": "opening",
    "parse_object": "untrusted",
    "read_bytes": "opening",
    "read_object": "untrusted",
    "real_folder": "opening",
    "replace_file": "durable",
    "replacing": "durable",
    "sync_folder": "durable",
    "take": "untrusted",
    "write_all": "durable",
    "writing_whole": "durable",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.files.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.files' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
