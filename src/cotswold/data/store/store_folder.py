"""The directory of a store to be written: locked, and never one with other contents.

Knows: locks, remains of interrupted runs, foreign files. Does not know: how a store is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cotswold.data.store.journal import Journal
from cotswold.data.store.manifest import disk_full_named
from cotswold.data.store.shard import StoreShard
from cotswold.data.store.splits import Request
from cotswold.errors import BusyError, UserError


@contextlib.contextmanager
def lock_store(path: Path) -> Iterator[None]:
    """Create and lock the directory for this process."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; give a directory for the store")
    with disk_full_named(path):
        path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                f"another process is preparing {path}; wait for it or give another directory"
            ) from error
        yield
    finally:
        os.close(descriptor)


def resume_or_verify(path: Path, journal: Journal, request: Request, shards: list[StoreShard]) -> None:
    """Resume an interrupted run, or verify that nothing is overwritten."""
    earlier = journal.request()
    if earlier is None:
        if not journal.is_empty():
            raise UserError(f"{path} is neither empty nor a store; give another directory")
        journal.begin(request.state())
    elif earlier != request.state():
        raise UserError(
            f"{path} has an unfinished store that differs in {differences(earlier, request.state())}; "
            "finish it with the original settings, give another directory, or delete it"
        )
    journal.read({shard.key: len(shard.samples) for shard in shards})


def differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return the keys in which two requests differ, with their values."""
    flat_old, flat_new = (_flat(request) for request in (old, new))
    different = [key for key in flat_new if flat_old.get(key) != flat_new[key]]
    said = [f"{key} ({flat_old.get(key)}, not {flat_new[key]})" for key in different if key != "source"]
    return ", ".join(["its samples"] * ("source" in different) + said)


def _flat(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request without nested tables; a value read from disk may have any type."""
    inner = request.get("preparation")
    return {**request, **(inner if isinstance(inner, dict) else {}), "preparation": None}
