"""Messages of servers as headers of plain values, and buffers that stay where they are.

Knows: dataclasses and the types of their fields. Does not know: what a message means, sockets.

A message is a list: the name of its class, then its fields in order. A buffer is a number, its place among
the buffers. Whatever arrives is checked against the types of the fields, and nothing of it is run. A list
that is too long for a header travels as the first buffer.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgpack

from cotswold.cluster import messages as beginning
from cotswold.server.messages import MESSAGES, Message

Buffer = bytes | bytearray | memoryview
Header = Mapping[str, object]
_Encoded = Any  # what msgpack knows: numbers, text, lists, maps


_HEADER_BYTES = 1 << 17
_MESSAGES = {each.__name__: each for each in (*MESSAGES, *beginning.MESSAGES)}


class MalformedError(ValueError):
    """Bytes that are no message of these classes."""


def encode(message: Message | beginning.Message) -> tuple[Header, list[Buffer]]:
    """The header, and the buffers beside it, which are not copied."""
    buffers: list[Buffer] = []
    fields = _packed(message, buffers)
    packed = msgpack.packb(fields)
    if len(packed) > _HEADER_BYTES:
        return {"long": True}, [packed, *buffers]
    return {"message": fields}, buffers


def decode(header: Header, buffers: Sequence[Buffer]) -> Message | beginning.Message:
    """The message; raises MalformedError for anything that `encode` does not write."""
    try:
        fields = header.get("message")
        if header.get("long") is True and buffers:
            fields, buffers = msgpack.unpackb(buffers[0], strict_map_key=False), buffers[1:]
        if not isinstance(fields, list) or not fields or fields[0] not in _MESSAGES:
            raise MalformedError("no message that is known")
        message: Message | beginning.Message = _read_class(_MESSAGES[fields[0]], fields, buffers)
    except MalformedError:
        raise
    except Exception as error:  # whatever a stranger's bytes make msgpack or a constructor say
        raise MalformedError(f"{type(error).__name__}: {error}") from error
    return message


def _packed(value: object, buffers: list[Buffer]) -> _Encoded:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = _names(type(value))
        return [type(value).__name__, *(_packed(getattr(value, name), buffers) for name in names)]
    if isinstance(value, Buffer):
        buffers.append(value)
        return {"": len(buffers) - 1}
    if isinstance(value, tuple | list | frozenset | range):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [_packed(each, buffers) for each in items]
    if isinstance(value, Mapping):
        return {key: _packed(each, buffers) for key, each in value.items()}
    return value


def _read_class(kind: type, fields: _Encoded, buffers: Sequence[Buffer]) -> Any:
    names = _names(kind)
    if not isinstance(fields, list) or fields[:1] != [kind.__name__] or len(fields) != len(names) + 1:
        raise MalformedError(f"no {kind.__name__}")
    hints = _hints(kind)
    values = [_read(hints[name], value, buffers) for name, value in zip(names, fields[1:], strict=True)]
    return kind(*values)


def _read(hint: Any, value: _Encoded, buffers: Sequence[Buffer]) -> Any:
    if hint is object:
        return _buffer(value, buffers)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _read_one_of(inner, value, buffers)
    if origin is Literal:
        return _is(value in inner and isinstance(value, str | int), value, hint)
    if origin is tuple and inner[1:] == (Ellipsis,):
        _is(isinstance(value, list), value, hint)
        return tuple(_read(inner[0], each, buffers) for each in value)
    if origin is tuple:
        _is(isinstance(value, list) and len(value) == len(inner), value, hint)
        return tuple(_read(kind, each, buffers) for kind, each in zip(inner, value, strict=True))
    if origin is frozenset:
        _is(isinstance(value, list), value, hint)
        return frozenset(_read(inner[0], each, buffers) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        _is(isinstance(value, dict), value, hint)
        return {_read(inner[0], key, buffers): _read(inner[1], each, buffers) for key, each in value.items()}
    if dataclasses.is_dataclass(hint):
        return _read_class(hint, value, buffers)  # type: ignore[arg-type]  # hints of fields are classes
    return _plain(hint, value)


def _read_one_of(kinds: Sequence[Any], value: _Encoded, buffers: Sequence[Buffer]) -> Any:
    for kind in kinds:
        try:
            return _read(kind, value, buffers)
        except MalformedError:
            continue
    raise MalformedError(f"{value!r:.60} is none of {len(kinds)} kinds")


def _plain(hint: Any, value: _Encoded) -> Any:
    if hint is None or hint is type(None):
        return _is(value is None, value, hint)
    if hint is float:
        return float(_is(isinstance(value, float | int) and not isinstance(value, bool), value, hint))
    if hint is int:
        return _is(isinstance(value, int) and not isinstance(value, bool), value, hint)
    if isinstance(hint, type) and hint in (str, bool, bytes):
        return _is(isinstance(value, hint), value, hint)
    raise MalformedError(f"fields of {hint} do not travel")


def _is(holds: bool, value: _Encoded, hint: Any) -> Any:
    if not holds:
        raise MalformedError(f"{value!r:.60} where {hint} is due")
    return value


def _buffer(value: _Encoded, buffers: Sequence[Buffer]) -> Buffer:
    if not isinstance(value, dict) or set(value) != {""}:
        raise MalformedError(f"{value!r:.60} where a buffer is due")
    number: int = _plain(int, value[""])
    if not 0 <= number < len(buffers):
        raise MalformedError(f"buffer {number} of {len(buffers)}")
    return buffers[number]


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
