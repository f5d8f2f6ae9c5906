"""What a place for state must do, and how much of it a transaction may hold.

Knows: keys, values, comparisons. Does not know: where they are kept.

Who leads is decided with keys alone: a leader compares, in every transaction, a key that the next leader
changes. Locks, leases and watches are not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cotswold.errors import MachineError

OPERATIONS_MAX = 64
"""Comparisons of a transaction, and puts. etcd takes 128 operations."""
KEY_BYTES_MAX = 512
PREFIX_BYTES_MAX = 128
"""Of a key, of what stands before all keys of a cluster."""
VALUE_BYTES_MAX = 64 << 10
TRANSACTION_BYTES_MAX = 1 << 20
"""All keys and values together. etcd takes 1.5 MiB."""

Item = tuple[str, str | None]
"""A key, and a value or None: it is absent, or to be deleted."""


class OutcomeUnknownError(MachineError):
    """A transaction that was done or was not: read again before anything is built on either."""


class State(Protocol):
    """Keys with values, for several processes at once. Only the thread that made one may use it."""

    def read(self, prefix: str, after: str = "", most: int | None = None) -> dict[str, str]:
        """All keys that begin with ``prefix`` and their values, as they were at one moment, in order of keys;
        only those that come after ``after``, and no more than ``most``.

        That moment lies between call and return. Raises MachineError, StoreError where something is damaged.
        """

    def transact(self, compare: Sequence[Item], put: Sequence[Item]) -> bool:
        """If each key has the value beside it, put all, durably, and return True; else nothing and False.

        A value of None says that the key is absent, in ``put`` that it is deleted. Raises ValueError for more
        than 64 comparisons or 64 puts, two puts of a key, keys and values that are too long;
        OutcomeUnknownError where nobody can say whether it was done; MachineError, DiskFullError or
        StoreError where nothing was.
        """

    def close(self) -> None:
        """Let go of it; all that was put stays."""


Raw = tuple[bytes, bytes | None]
"""The same in UTF-8."""


@dataclass(frozen=True)
class Transaction:
    """A transaction within the bounds, in bytes."""

    compare: tuple[Raw, ...]
    put: tuple[Raw, ...]


def checked(compare: Sequence[Item], put: Sequence[Item], prefix: str = "") -> Transaction:
    """The transaction, its keys with ``prefix`` before them; raises ValueError as `State.transact`."""
    for kind, items in (("comparisons", compare), ("puts", put)):
        if len(items) > OPERATIONS_MAX:
            raise ValueError(f"a transaction has at most {OPERATIONS_MAX} {kind}, and this one {len(items)}")
    if len({key for key, _ in put}) < len(put):
        raise ValueError("a transaction puts a key once")
    found = Transaction(tuple(_raw(compare, prefix)), tuple(_raw(put, prefix)))
    count = sum(len(key) + len(value or b"") for key, value in (*found.compare, *found.put))
    if count > TRANSACTION_BYTES_MAX:
        raise ValueError(f"a transaction has at most {TRANSACTION_BYTES_MAX} bytes, and this one {count}")
    return found


def _raw(items: Iterable[Item], prefix: str) -> Iterable[Raw]:
    for key, value in items:
        name, contents = (prefix + key).encode(), None if value is None else value.encode()
        if not key or len(name) > KEY_BYTES_MAX:
            raise ValueError(f"a key has 1 to {KEY_BYTES_MAX} bytes, and {key!r:.60} has {len(name)}")
        if contents is not None and len(contents) > VALUE_BYTES_MAX:
            raise ValueError(f"a value has at most {VALUE_BYTES_MAX} bytes; {key!r:.60} has {len(contents)}")
        yield name, contents


def after(prefix: bytes) -> bytes | None:
    """The first key after all that begin with some text; None where all do."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None  # text in UTF-8 has no byte 255
