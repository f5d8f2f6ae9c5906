"""Encode messages as headers of plain values, with buffers that are not copied.

Knows: the message classes, their encoding. Does not know: the meaning of messages, sockets.

A message is a list: the name of its class, then its fields in order. Several messages in one frame are a list
of such lists. A buffer is encoded as its position among the frame's buffers; a row of buffers as the
positions of its first and past its last. Text that is not valid UTF-8, such as a file name in a sentence, is
encoded with escaped surrogates (``\\udce9``). All received values are checked against the types of the
fields; nothing is executed. A list that is too long for a header is sent as the first buffer.

Within a protocol version, messages only grow: a release appends fields with defaults and adds messages. A
process skips unknown fields. It skips unknown messages, counts them by name, and reads the other messages of
the frame.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import NoneType
from typing import Any, cast

import msgpack

from cotswold.wire import MESSAGES, Message
from cotswold.wire import lifecycle as beginning
from cotswold.wire.validation import (
    Buffer,
    BufferReader,
    Encoded,
    MalformedMessageError,
    class_reader,
    required,
)

Header = Mapping[str, object]
AnyMessage = Message | beginning.LifecycleMessage

_HEADER_BYTES = 1 << 17
_LONG_BYTES = 1 << 25
"""Maximum bytes of a list that is sent as a buffer; in memory it may be many times as large."""
_LONG: bytes = msgpack.packb({"long": True})
_SHORT: bytes = msgpack.packb({"message": None})[:-1]
_CLASSES: tuple[type, ...] = (*MESSAGES, *beginning.MESSAGES)
_READERS = {each.__name__: class_reader(each) for each in _CLASSES}
_LEAST = {each.__name__: 1 + required(each) for each in _CLASSES}
"""Minimum length of an encoded message: its name and the fields without defaults."""
_NAME = re.compile(r"[A-Z][A-Za-z]{0,39}")
_PLAIN = {int, float, str, bool, NoneType}
"""Types that are encoded as they are, without a function call; most values have one of them."""
_BUFFERS = {bytes, bytearray, memoryview}


class UnknownError(MalformedMessageError):
    """A message of another release: its name is unknown, or it lacks a field."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown message {name}; upgrade the older of the two processes")
        self.name = name


class Packing:
    """Messages that are collected into one frame."""

    def __init__(self, *messages: AnyMessage) -> None:
        self._written: list[Encoded] = []
        self._buffers: list[Buffer] = []
        self.buffer_bytes = 0
        """Bytes of all buffers."""
        for each in messages:
            self.add(each)

    def add(self, message: AnyMessage) -> None:
        """Add a message."""
        known = len(self._buffers)
        self._written.append(_written(message, self._buffers))
        if len(self._buffers) > known:
            self.buffer_bytes += sum(memoryview(each).nbytes for each in self._buffers[known:])

    def packed(self) -> tuple[bytes, list[Buffer]]:
        """Return the header in msgpack, and the buffers, which are not copied; raise ValueError if the list
        is too long."""
        said = self._written if len(self._written) > 1 else self._written[0]
        packed: bytes = msgpack.packb(said, unicode_errors="backslashreplace")
        if len(packed) > _LONG_BYTES:
            raise ValueError(f"message list too long: {len(packed)} bytes; move long data to buffers")
        if len(packed) > _HEADER_BYTES:
            return _LONG, [packed, *self._buffers]
        return _SHORT + packed, self._buffers


def encode(message: AnyMessage) -> tuple[bytes, list[Buffer]]:
    """Encode a single message, as `Packing.packed` does."""
    return Packing(message).packed()


def decode(
    header: Header, buffers: Sequence[Buffer], unknown: Callable[[UnknownError], None] | None = None
) -> list[AnyMessage]:
    """Return the messages; raise MalformedMessageError for anything that `Packing.packed` did not produce.

    ``unknown`` is called with the error for each message of another release; without ``unknown``, the first
    raises UnknownError.
    """
    try:
        found = header.get("message")
        if header.get("long") is True and buffers:
            if memoryview(buffers[0]).nbytes > _LONG_BYTES:
                raise MalformedMessageError("a list is too long")
            found, buffers = msgpack.unpackb(buffers[0], strict_map_key=False), buffers[1:]
        if not isinstance(found, list) or not found:
            raise MalformedMessageError("no message")
        written = found if isinstance(found[0], list) else [found]
        known = BufferReader(buffers)
        return [*_read_all(written, known, unknown)]
    except MalformedMessageError:
        raise
    except Exception as error:  # any error that untrusted bytes cause in msgpack or a constructor
        raise MalformedMessageError(f"{type(error).__name__}: {error}") from error


def _read_all(
    written: Sequence[object], buffers: Sequence[Buffer], unknown: Callable[[UnknownError], None] | None
) -> Iterator[AnyMessage]:
    for each in written:
        try:
            yield _read(each, buffers)
        except UnknownError as error:
            if unknown is None:
                raise
            unknown(error)


def _read(fields: object, buffers: Sequence[Buffer]) -> AnyMessage:
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], str):
        raise MalformedMessageError("no message")
    name = fields[0]
    if name not in _READERS or len(fields) < _LEAST[name]:
        raise UnknownError(name) if _NAME.fullmatch(name) else MalformedMessageError("no message")
    message: AnyMessage = _READERS[name](fields, buffers)
    return message


def _written(value: object, buffers: list[Buffer]) -> Encoded:
    """Return the msgpack form of a value; append its buffers to ``buffers``."""
    write = _WRITERS.get(type(value))
    if write is None:
        write = _WRITERS[type(value)] = _writer(value)
    return write(value, buffers)


_Writer = Callable[[Any, list[Buffer]], Encoded]
_WRITERS: dict[type, _Writer] = {}
"""Encoders by type of value, cached because the search takes longer than encoding."""


def _writer(value: object) -> _Writer:
    if dataclasses.is_dataclass(value):
        return _class_writer(type(value))
    if isinstance(value, Buffer):
        return _write_buffer
    if isinstance(value, tuple | list):
        return _write_items
    if isinstance(value, frozenset):
        return lambda items, buffers: _write_items(sorted(items), buffers)
    if isinstance(value, range):
        return lambda items, buffers: list(items)
    if isinstance(value, Mapping):
        return lambda items, buffers: {key: _written(each, buffers) for key, each in items.items()}
    return lambda plain, buffers: plain


def _class_writer(kind: type) -> _Writer:
    """Return the encoder of a dataclass: its name, then its fields in order."""
    names = [each.name for each in dataclasses.fields(kind)]
    name = kind.__name__
    if len(names) < 2:  # for a single name, `attrgetter` returns the value itself
        return lambda value, buffers: [name, *[_written(getattr(value, each), buffers) for each in names]]
    fields = attrgetter(*names)

    def write(value: object, buffers: list[Buffer]) -> Encoded:
        return [name, *[each if type(each) in _PLAIN else _written(each, buffers) for each in fields(value)]]

    return write


def _write_buffer(value: Buffer, buffers: list[Buffer]) -> Encoded:
    buffers.append(value)
    return {"": len(buffers) - 1}


def _write_items(items: Sequence[object], buffers: list[Buffer]) -> Encoded:
    """Encode a sequence: plain values as they are, a row of buffers as its first and last position."""
    kinds = set(map(type, items))
    if kinds <= _PLAIN:
        return items
    if kinds <= _BUFFERS:
        start = len(buffers)
        buffers.extend(cast(Sequence[Buffer], items))
        return {"": [start, len(buffers)]}
    return [_written(each, buffers) for each in items]
