"""Interface of a metadata store, and limits of its transactions.

Knows: keys, values, comparisons. Does not know: where they are stored.

Leadership needs keys alone: every transaction of a leader compares a key that the next leader changes. No
locks, leases or watches are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cotswold.errors import MachineError

OPERATIONS_MAX = 64
"""Maximum comparisons of a transaction, and maximum puts. etcd allows 128 operations."""
KEY_BYTES_MAX = 512
PREFIX_BYTES_MAX = 128
"""Maximum length of the prefix of all keys of a cluster."""
VALUE_BYTES_MAX = 64 << 10
TRANSACTION_BYTES_MAX = 1 << 20
"""Maximum total length of keys and values. etcd allows 1.5 MiB."""

Item = tuple[str, str | None]
"""A key, and its value; None means absent, or to be deleted."""


class OutcomeUnknownError(MachineError):
    """Error: a transaction was or was not done; read again before building on either."""


class MetadataStore(Protocol):
    """Keys with values, shared by processes. Only the thread that created an instance may use it."""

    def read(self, prefix: str, start: str = "", limit: int | None = None) -> dict[str, str]:
        """Return all keys with a prefix and their values, as of one moment, in order of keys; only those
        greater than ``start``, and at most ``limit``.

        That moment lies between call and return. Raises MachineError, or StoreError for damage.
        """

    def transact(self, compare: Sequence[Item], put: Sequence[Item]) -> bool:
        """If every compared key has the given value, put all items durably and return True; otherwise do
        nothing and return False.

        A value of None means an absent key, and in ``put`` a deletion. Raises ValueError for more than 64
        comparisons or 64 puts, two puts of a key, keys and values that are too long; OutcomeUnknownError if
        it is unknown whether it was done; MachineError, DiskFullError or StoreError if nothing was done.
        """

    def close(self) -> None:
        """Close the store; everything put is durable."""


Raw = tuple[bytes, bytes | None]
"""An item in UTF-8."""


@dataclass(frozen=True)
class Transaction:
    """A transaction within the limits, in bytes."""

    compare: tuple[Raw, ...]
    put: tuple[Raw, ...]


def checked_transaction(compare: Sequence[Item], put: Sequence[Item], prefix: str = "") -> Transaction:
    """Return the transaction with ``prefix`` added to its keys; raises as `MetadataStore.transact`."""
    for kind, items in (("comparisons", compare), ("puts", put)):
        if len(items) > OPERATIONS_MAX:
            raise ValueError(f"a transaction has at most {OPERATIONS_MAX} {kind}, got {len(items)}")
    if len({key for key, _ in put}) < len(put):
        raise ValueError("a transaction can put a key only once")
    found = Transaction(tuple(_raw(compare, prefix)), tuple(_raw(put, prefix)))
    count = sum(len(key) + len(value or b"") for key, value in (*found.compare, *found.put))
    if count > TRANSACTION_BYTES_MAX:
        raise ValueError(f"a transaction has at most {TRANSACTION_BYTES_MAX} bytes, got {count}")
    return found


def _raw(items: Iterable[Item], prefix: str) -> Iterable[Raw]:
    for key, value in items:
        name, contents = (prefix + key).encode(), None if value is None else value.encode()
        if not key or len(name) > KEY_BYTES_MAX:
            raise ValueError(f"a key has 1 to {KEY_BYTES_MAX} bytes; {key!r:.60} has {len(name)}")
        if contents is not None and len(contents) > VALUE_BYTES_MAX:
            raise ValueError(f"a value has at most {VALUE_BYTES_MAX} bytes; {key!r:.60} has {len(contents)}")
        yield name, contents


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first key after all keys with a prefix; None if there is none."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None  # text in UTF-8 has no byte 255
