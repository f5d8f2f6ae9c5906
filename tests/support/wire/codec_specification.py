"""The simplest description of reading a message, with which `cotswold.wire.validation` must agree."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cotswold.wire.validation import Buffer, Encoded, MalformedMessageError


def read_class(kind: type, fields: Encoded, buffers: Sequence[Buffer]) -> Any:
    names = [each.name for each in dataclasses.fields(kind)]
    if not isinstance(fields, list) or fields[:1] != [kind.__name__]:
        raise MalformedMessageError(f"no {kind.__name__}")
    hints = get_type_hints(kind)
    # what is behind the last name is skipped, and what is not there has its default or is refused
    return kind(*[_read(hints[name], value, buffers) for name, value in zip(names, fields[1:], strict=False)])


def _read(hint: Any, value: Encoded, buffers: Sequence[Buffer]) -> Any:
    if hint is object:
        return _buffer(value, buffers)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _read_one_of(inner, value, buffers)
    if origin is Literal:
        return _is(value in inner and isinstance(value, str | int), value, hint)
    if origin is tuple and inner == (object, Ellipsis) and isinstance(value, dict):
        return _row(value, buffers)
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
        return read_class(hint, value, buffers)  # type: ignore[arg-type]  # hints of fields are classes
    return _plain(hint, value)


def _read_one_of(kinds: Sequence[Any], value: Encoded, buffers: Sequence[Buffer]) -> Any:
    for kind in kinds:
        try:
            return _read(kind, value, buffers)
        except MalformedMessageError:
            continue
    raise MalformedMessageError(f"{value!r:.60} matches none of {len(kinds)} types")


def _plain(hint: Any, value: Encoded) -> Any:
    if hint is None or hint is type(None):
        return _is(value is None, value, hint)
    if hint is float:
        return float(_is(isinstance(value, float | int) and not isinstance(value, bool), value, hint))
    if hint is int:
        return _is(isinstance(value, int) and not isinstance(value, bool), value, hint)
    if isinstance(hint, type) and hint in (str, bool, bytes):
        return _is(isinstance(value, hint), value, hint)
    raise MalformedMessageError(f"fields of {hint} do not travel")


def _is(holds: bool, value: Encoded, hint: Any) -> Any:
    if not holds:
        raise MalformedMessageError(f"expected {hint}, got {value!r:.60}")
    return value


def _buffer(value: Encoded, buffers: Sequence[Buffer]) -> Buffer:
    if not isinstance(value, dict) or set(value) != {""}:
        raise MalformedMessageError(f"expected a buffer, got {value!r:.60}")
    number: int = _plain(int, value[""])
    if not 0 <= number < len(buffers):
        raise MalformedMessageError(f"buffer {number} of {len(buffers)}")
    return buffers[number]


def _row(value: Encoded, buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
    ends = value.get("")
    _is(len(value) == 1 and isinstance(ends, list) and len(ends) == 2, value, "row")
    start, stop = (_plain(int, each) for each in ends)
    _is(0 <= start <= stop <= len(buffers), value, "row")
    return tuple(buffers[start:stop])
