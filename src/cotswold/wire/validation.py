"""Check a received value against the type of a field, and convert it.

Knows: types of fields: plain values, tuples, sets, mappings, unions, dataclasses. Does not know: messages.

`reader` inspects a type once and returns a function; only that function runs for each value.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Buffer = bytes | bytearray | memoryview
Encoded = Any  # what msgpack encodes: numbers, text, lists, maps
Reader = Callable[[Encoded, Sequence[Buffer]], Any]
"""Return the value of a field; raise MalformedMessageError for a value of another type."""


class MalformedMessageError(ValueError):
    """Bytes that are not a message of the known classes."""


class BufferReader(list[Buffer]):
    """The buffers of one frame."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        super().__init__(buffers)
        self._remaining = len(self)

    def row(self, start: int, stop: int) -> tuple[Buffer, ...]:
        """Return consecutive buffers. All rows together have at most as many buffers as the frame, so that a
        short message cannot expand into a long one."""
        self._remaining -= stop - start
        if not 0 <= start <= stop <= len(self) or self._remaining < 0:
            raise MalformedMessageError(f"buffers {start} to {stop} are out of range: {len(self)} buffers")
        return tuple(self[start:stop])


def reader(hint: Any) -> Reader:
    """Return the reader of a type; for a type that cannot be sent, the reader rejects every value."""
    if hint is object:
        return _read_buffer
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(inner)
    if origin is Literal:
        return _plain(lambda value: value in inner and isinstance(value, str | int), hint)
    if origin is tuple and inner == (object, Ellipsis):
        return _read_row
    if origin is tuple and inner[1:] == (Ellipsis,):
        return _tuple(reader(inner[0]), inner[0], hint)
    if origin is tuple:
        return _row(tuple(map(reader, inner)), hint)
    if origin is frozenset:
        each = _tuple(reader(inner[0]), inner[0], hint)
        return lambda value, buffers: frozenset(each(value, buffers))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(reader(inner[0]), reader(inner[1]), hint)
    if dataclasses.is_dataclass(hint):
        return class_reader(hint)  # type: ignore[arg-type]  # hints of fields are classes
    if hint is float:
        return _read_float
    return _plain(_HOLDS.get(hint, _rejects_all), hint)


@cache
def class_reader(kind: type) -> Reader:
    """Return the reader of a dataclass: a list of its name and its fields in order.

    Releases append fields with defaults: fields beyond those of this release are skipped, and fields that an
    older release lacks get their defaults.
    """
    hints = get_type_hints(kind)
    own = [hints[each.name] for each in dataclasses.fields(kind)]
    readers, enough = [reader(each) for each in own], [_required(each) for each in own]
    name, least, most = kind.__name__, 1 + required(kind), 1 + len(readers)
    known: dict[tuple[type, ...], list[int]] = {}
    """Positions of fields that need more than a type check, by the types of an accepted message."""

    def read(value: Encoded, buffers: Sequence[Buffer]) -> Any:
        if not isinstance(value, list) or len(value) < least or value[0] != name:
            raise MalformedMessageError(f"not a valid {name}: wrong name or too few fields")
        fields = value[1:most]
        kinds = tuple(map(type, fields))
        places = known.get(kinds)
        for place in range(len(fields)) if places is None else places:
            fields[place] = readers[place](fields[place], buffers)
        if places is None:
            known[kinds] = [place for place, each in enumerate(kinds) if each not in enough[place]]
        return kind(*fields)

    return read


def required(kind: type) -> int:
    """Return the number of fields of a dataclass without a default."""
    return sum(
        each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        for each in dataclasses.fields(kind)
    )


def _required(hint: Any) -> frozenset[type]:
    """Types whose values are valid for a field without conversion."""
    if get_origin(hint) in (Union, types.UnionType):
        return frozenset[type]().union(*map(_required, get_args(hint)))
    if hint is None:
        return frozenset({types.NoneType})
    return frozenset({hint}) if hint in (float, *_HOLDS) else frozenset()


def _plain(holds: Callable[[Encoded], bool], hint: Any) -> Reader:
    def read(value: Encoded, buffers: Sequence[Buffer]) -> Any:
        if not holds(value):
            raise _type_error(value, hint)
        return value

    return read


def _rejects_all(value: Encoded) -> bool:
    return False


_HOLDS: dict[Any, Callable[[Encoded], bool]] = {
    None: lambda value: value is None,
    types.NoneType: lambda value: value is None,
    int: lambda value: type(value) is int,
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    bytes: lambda value: isinstance(value, bytes),
}


def _read_float(value: Encoded, buffers: Sequence[Buffer]) -> float:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise _type_error(value, float)
    return float(value)


def _read_buffer(value: Encoded, buffers: Sequence[Buffer]) -> Buffer:
    if not isinstance(value, dict) or set(value) != {""}:
        raise MalformedMessageError(f"expected a buffer, got {value!r:.60}")
    number = value[""]
    if type(number) is not int:
        raise _type_error(number, int)
    if not 0 <= number < len(buffers):
        raise MalformedMessageError(f"buffer {number} is out of range: {len(buffers)} buffers")
    return buffers[number]


def _read_row(value: Encoded, buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Read buffers listed one by one, or as a range (first, past the last)."""
    if isinstance(value, list):
        return tuple([_read_buffer(one, buffers) for one in value])
    ends = value.get("") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(ends, list) or [*map(type, ends)] != [int, int]:
        raise MalformedMessageError(f"expected buffers, got {value!r:.60}")
    return (buffers if isinstance(buffers, BufferReader) else BufferReader(buffers)).row(*ends)


def _tuple(each: Reader, inner: Any, hint: Any) -> Reader:
    only = {inner} if inner in (int, str) else set()

    def read(value: Encoded, buffers: Sequence[Buffer]) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _type_error(value, hint)
        if only and only.issuperset(map(type, value)):  # C speed for long lists of numbers
            return tuple(value)
        return tuple([each(one, buffers) for one in value])

    return read


def _row(readers: tuple[Reader, ...], hint: Any) -> Reader:
    def read(value: Encoded, buffers: Sequence[Buffer]) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _type_error(value, hint)
        return tuple([each(one, buffers) for each, one in zip(readers, value, strict=True)])

    return read


def _mapping(key_of: Reader, value_of: Reader, hint: Any) -> Reader:
    def read(value: Encoded, buffers: Sequence[Buffer]) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _type_error(value, hint)
        return {key_of(key, buffers): value_of(one, buffers) for key, one in value.items()}

    return read


def _union(kinds: tuple[Any, ...]) -> Reader:
    """Return a reader that uses the first kind that accepts a value; if all are dataclasses, the one that it
    names."""
    takes_none = types.NoneType in kinds
    others = [one for one in kinds if one is not types.NoneType]
    classes = [one for one in others if isinstance(one, type) and dataclasses.is_dataclass(one)]
    by_name = {one.__name__: class_reader(one) for one in classes}
    tried = [reader(one) for one in others] if len(by_name) < len(others) else []

    def read(value: Encoded, buffers: Sequence[Buffer]) -> Any:
        if value is None and takes_none:
            return None
        if not tried and isinstance(value, list) and value and isinstance(value[0], str):
            named = by_name.get(value[0])
            if named is not None:
                return named(value, buffers)
        for each in tried:
            try:
                return each(value, buffers)
            except MalformedMessageError:
                continue
        raise MalformedMessageError(f"{value!r:.60} matches none of {len(kinds)} types")

    return read


def _type_error(value: Encoded, hint: Any) -> MalformedMessageError:
    return MalformedMessageError(f"expected {hint}, got {value!r:.60}")
