"""Metadata store in etcd 3.4 or newer, for controllers on several hosts.

Knows: etcd's requests for ranges and transactions, in JSON. Does not know: connections, the meaning of keys.

Reads are linearizable. Reads of many keys come in pages of one revision, which the first page determines. A
compared value cannot be absent, in etcd as here; the absence of a key is compared by its creation revision,
0.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from itertools import islice
from types import TracebackType

from cotswold.errors import StoreError
from cotswold.files.untrusted_json import JsonObject, MalformedError, take
from cotswold.replication.metadata.etcd_http import RANGE, Etcd, Gateway, RejectedRequestError, strings
from cotswold.replication.metadata.interface import Item, OutcomeUnknownError, checked_transaction, prefix_end

_TRANSACTION = "/v3/kv/txn"
_PAGE = 256
"""Keys per reply: 22 MiB in base64 if all values have the maximum length."""
_READS_MAX = 3
"""Attempts to read all pages of a revision before etcd compacts it."""


class EtcdStore:
    """Metadata in an etcd; only the thread that created this object may use it.

    A call waits at most ``etcd.timeout_seconds`` for each member (a read: for each page), in addition to the
    name lookup of the members. Raises MachineError for unreadable certificates.
    """

    def __init__(self, etcd: Etcd) -> None:
        self._prefix = etcd.prefix
        self._gateway = Gateway(etcd)

    def __enter__(self) -> EtcdStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, prefix: str, start: str = "", limit: int | None = None) -> dict[str, str]:
        """See `MetadataStore.read`."""
        for _ in range(_READS_MAX - 1):
            try:
                return dict(islice(self._pages(prefix, start), limit))
            except RejectedRequestError as error:
                if not error.is_compacted:
                    raise
        return dict(islice(self._pages(prefix, start), limit))

    def transact(self, compare: Sequence[Item], put: Sequence[Item]) -> bool:
        """See `MetadataStore.transact`."""
        wanted = checked_transaction(compare, put, self._prefix)
        question = {
            "compare": [_comparison(*each) for each in wanted.compare],
            "success": [_operation(*each) for each in wanted.put],
        }
        answer = self._gateway.request(_TRANSACTION, question, can_repeat=False)
        try:
            _revision(answer)
            return "succeeded" in answer and take(answer, "succeeded", bool)  # false is omitted
        except MalformedError as error:
            raise OutcomeUnknownError(
                f"etcd's answer to a transaction {error}; "
                "whether it is done shows when the state is read again"
            ) from error

    def close(self) -> None:
        """Disconnect."""
        self._gateway.close()

    def _pages(self, prefix: str, last: str) -> Iterator[tuple[str, str]]:
        first = (self._prefix + prefix).encode()
        begins = (self._prefix + last).encode() + b"\0" if last else b""
        beyond, start, revision = prefix_end(first) or b"\0", max(first, begins) or b"\0", 0
        is_more = True
        while is_more:
            question = {"key": _text(start), "range_end": _text(beyond), "limit": _PAGE, "revision": revision}
            answer = self._gateway.request(RANGE, question, can_repeat=True)
            try:
                revision = revision or _revision(answer)
                is_more = "more" in answer and take(answer, "more", bool)
                items = [_item(each) for each in strings(answer, "kvs")]
                if is_more and not items:
                    raise MalformedError("has no keys and announces more")
                for key, value in items:
                    if key < start or not key.startswith(first):
                        raise MalformedError(f"has the key {key!r:.80}, which was not requested")
                    start = key + b"\0"
                    yield key.decode()[len(self._prefix) :], value.decode()
            except (MalformedError, UnicodeDecodeError) as error:
                raise StoreError(
                    f"etcd's answer {_error_text(error)}; check whether another program writes below "
                    f"{(self._prefix + prefix)!r}"
                ) from error


def _comparison(key: bytes, value: bytes | None) -> JsonObject:
    if value is None:
        return {"key": _text(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
    return {"key": _text(key), "target": "VALUE", "result": "EQUAL", "value": _text(value)}


def _operation(key: bytes, value: bytes | None) -> JsonObject:
    if value is None:
        return {"request_delete_range": {"key": _text(key)}}
    return {"request_put": {"key": _text(key), "value": _text(value)}}


def _item(found: object) -> tuple[bytes, bytes]:
    if not isinstance(found, dict):
        raise MalformedError(f"has {type(found).__name__} where a key should be")
    try:
        value = take(found, "value", str) if "value" in found else ""
        return b64decode(take(found, "key", str), validate=True), b64decode(value, validate=True)
    except binascii.Error as error:
        raise MalformedError("has a key that is not base64") from error


def _revision(answer: JsonObject) -> int:
    text = take(take(answer, "header", dict), "revision", str)
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise MalformedError(f"has the revision {text!r:.40}")
    return int(text)


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()


def _error_text(error: ValueError) -> str:
    return str(error) if isinstance(error, MalformedError) else "has invalid text"
