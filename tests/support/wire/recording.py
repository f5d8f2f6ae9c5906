"""Messages as written by this release, recorded for later releases.

python -m tests.support.wire.recording tests/wire/recorded/protocol-1.json
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cotswold import wire as m
from cotswold.wire import lifecycle as beginning
from cotswold.wire.codec import encode

CLASSES: tuple[type, ...] = (*m.MESSAGES, *beginning.MESSAGES)


def fields_of(kind: type) -> list[str]:
    return [each.name for each in dataclasses.fields(kind)]


def parts_of(hint: Any) -> set[type]:
    """Return the classes named in a type, and those in their fields."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return {hint}.union(*(parts_of(each) for each in get_type_hints(hint).values()))
    return set[type]().union(*(parts_of(each) for each in get_args(hint)))


def recorded() -> dict[str, Any]:
    """Return the fields of all sent classes, and an encoded message of each kind."""
    classes = set[type]().union(*map(parts_of, CLASSES))
    return {
        "fields": {
            each.__name__: fields_of(each) for each in sorted(classes, key=lambda each: each.__name__)
        },
        "messages": {each.__name__: _written(sample(each)) for each in CLASSES},
    }


def sample(kind: type) -> Any:
    """Return a message whose numbers and texts are all different."""
    return _value(kind, count(1))


def _written(message: Any) -> dict[str, Any]:
    header, buffers = encode(message)
    return {"header": header.hex(), "buffers": [bytes(each).hex() for each in buffers]}


def _value(hint: Any, numbers: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is object:
        return bytes([next(numbers) % 256])
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(*[_value(hints[name], numbers) for name in fields_of(hint)])  # type: ignore[arg-type, operator]  # any message
    if origin in (Union, types.UnionType):
        return _value(next(each for each in inner if each is not types.NoneType), numbers)
    if origin is Literal:
        return inner[0]
    if origin is tuple and inner[1:] == (Ellipsis,):
        return (_value(inner[0], numbers), _value(inner[0], numbers))
    if origin is tuple:
        return tuple(_value(each, numbers) for each in inner)
    if origin is frozenset:
        return frozenset({_value(inner[0], numbers)})
    if origin is not None and issubclass(origin, Mapping):
        return {f"key {next(numbers)}": _value(inner[1], numbers)}
    return _PLAIN[hint](next(numbers))


_PLAIN: dict[Any, Callable[[int], Any]] = {
    int: int,
    float: lambda number: number + 0.5,
    str: "text {}".format,
    bool: lambda number: True,
    bytes: lambda number: b"b",
}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(recorded(), indent=1) + "\n")
