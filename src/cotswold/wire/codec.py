"""Messages of servers as headers of plain values, and buffers that stay where they are.

Knows: the classes of messages, how they are written. Does not know: what a message means, sockets.

A message is a list: the name of its class, then its fields in order. Several that go together are a list of
such. A buffer is a number, its place among the buffers; a row of buffers the places of the first and behind
the last. A text that is no UTF-8, such as the name of a file in a sentence, travels with its surrogates
written out (``\\udce9``). Whatever arrives is checked against the types of the
fields, and nothing of it is run. A list that is too long for a header travels as the first buffer.

Within a version of the protocol messages only grow: a release appends fields with defaults, and adds
messages. A process skips fields that it does not know. It passes over messages that it does not know, counts
them by their names, and hears what came together with them.
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
from cotswold.wire.validation import Buffer, Buffers, Encoded, MalformedError, class_reader, required

Header = Mapping[str, object]
AnyMessage = Message | beginning.Message

_HEADER_BYTES = 1 << 17
_LONG_BYTES = 1 << 25
"""Of a list that travels as a buffer, at most: in memory it may be many times as long."""
_LONG: bytes = msgpack.packb({"long": True})
_SHORT: bytes = msgpack.packb({"message": None})[:-1]
_CLASSES: tuple[type, ...] = (*MESSAGES, *beginning.MESSAGES)
_READERS = {each.__name__: class_reader(each) for each in _CLASSES}
_LEAST = {each.__name__: 1 + required(each) for each in _CLASSES}
"""Of what a message that is written has at least: its name and the fields without defaults."""
_NAME = re.compile(r"[A-Z][A-Za-z]{0,39}")
_PLAIN = {int, float, str, bool, NoneType}
"""Types of values that are written as they are, which is most: no function is called for them."""
_BUFFERS = {bytes, bytearray, memoryview}


class UnknownError(MalformedError):
    """A message of another release, whose name is not known here, or which lacks a field."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no message {name} that is known; upgrade the older of the two processes")
        self.name = name


class Packing:
    """Messages that go together, as they are added."""

    def __init__(self, *messages: AnyMessage) -> None:
        self._written: list[Encoded] = []
        self._buffers: list[Buffer] = []
        self.buffer_bytes = 0
        """Of all buffers."""
        for each in messages:
            self.add(each)

    def add(self, message: AnyMessage) -> None:
        """One more."""
        known = len(self._buffers)
        self._written.append(_written(message, self._buffers))
        if len(self._buffers) > known:
            self.buffer_bytes += sum(memoryview(each).nbytes for each in self._buffers[known:])

    def packed(self) -> tuple[bytes, list[Buffer]]:
        """The header in msgpack, and the buffers beside it, which are not copied; raises ValueError where the
        list of what is said is too long."""
        said = self._written if len(self._written) > 1 else self._written[0]
        packed: bytes = msgpack.packb(said, unicode_errors="backslashreplace")
        if len(packed) > _LONG_BYTES:
            raise ValueError(f"a list of {len(packed)} bytes is too long; put what is long into buffers")
        if len(packed) > _HEADER_BYTES:
            return _LONG, [packed, *self._buffers]
        return _SHORT + packed, self._buffers


def encode(message: AnyMessage) -> tuple[bytes, list[Buffer]]:
    """A message alone, as `Packing.packed`."""
    return Packing(message).packed()


def decode(
    header: Header, buffers: Sequence[Buffer], unknown: Callable[[UnknownError], None] | None = None
) -> list[AnyMessage]:
    """The messages; raises MalformedError for anything that is not packed so.

    ``unknown`` hears of each message of another release; without it UnknownError is raised for the first.
    """
    try:
        found = header.get("message")
        if header.get("long") is True and buffers:
            if memoryview(buffers[0]).nbytes > _LONG_BYTES:
                raise MalformedError("a list is too long")
            found, buffers = msgpack.unpackb(buffers[0], strict_map_key=False), buffers[1:]
        if not isinstance(found, list) or not found:
            raise MalformedError("no message")
        written = found if isinstance(found[0], list) else [found]
        known = Buffers(buffers)
        return [*_read_all(written, known, unknown)]
    except MalformedError:
        raise
    except Exception as error:  # whatever a stranger's bytes make msgpack or a constructor say
        raise MalformedError(f"{type(error).__name__}: {error}") from error


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
        raise MalformedError("no message")
    name = fields[0]
    if name not in _READERS or len(fields) < _LEAST[name]:
        raise UnknownError(name) if _NAME.fullmatch(name) else MalformedError("no message")
    message: AnyMessage = _READERS[name](fields, buffers)
    return message


def _written(value: object, buffers: list[Buffer]) -> Encoded:
    """What msgpack knows in the place of a value; buffers are put behind those that are known."""
    write = _WRITERS.get(type(value))
    if write is None:
        write = _WRITERS[type(value)] = _writer(value)
    return write(value, buffers)


_Writer = Callable[[Any, list[Buffer]], Encoded]
_WRITERS: dict[type, _Writer] = {}
"""By type of value: looked for once, for it takes longer than to write."""


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
    """Of a dataclass: its name and its fields in order."""
    names = [each.name for each in dataclasses.fields(kind)]
    name = kind.__name__
    if len(names) < 2:  # `attrgetter` gives the value itself of one
        return lambda value, buffers: [name, *[_written(getattr(value, each), buffers) for each in names]]
    fields = attrgetter(*names)

    def write(value: object, buffers: list[Buffer]) -> Encoded:
        return [name, *[each if type(each) in _PLAIN else _written(each, buffers) for each in fields(value)]]

    return write


def _write_buffer(value: Buffer, buffers: list[Buffer]) -> Encoded:
    buffers.append(value)
    return {"": len(buffers) - 1}


def _write_items(items: Sequence[object], buffers: list[Buffer]) -> Encoded:
    """A list of plain values is msgpack's own, a tuple too; a row of buffers is told by its ends."""
    kinds = set(map(type, items))
    if kinds <= _PLAIN:
        return items
    if kinds <= _BUFFERS:
        start = len(buffers)
        buffers.extend(cast(Sequence[Buffer], items))
        return {"": [start, len(buffers)]}
    return [_written(each, buffers) for each in items]
