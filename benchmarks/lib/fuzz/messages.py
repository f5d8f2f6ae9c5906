"""Messages made from the types of their fields and a seed, nearly valid or invalid.

Knows: types of fields, words that mean something to the receiver. Does not know: the receiver, its state.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgpack

from cotswold.wire.codec import AnyMessage, encode

Encoded = Any  # values of msgpack
_ABSURD = (-(1 << 63), -1, 0, 1, 2, 3, 255, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
_FLOATS = (0.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 0.5)
_LENGTHS = (0, 1, 3, 4, 31, 32, 33, 64, 1000, 70_000)
_WRONG = 0.02
"""Probability of a value of another type."""


@dataclasses.dataclass(frozen=True)
class EncodedMessage:
    """A received message: its fields, and buffers."""

    sender: str
    fields: Encoded
    buffers: tuple[bytes, ...]


def exactly(sender: str, message: AnyMessage) -> EncodedMessage:
    """Return a message unchanged."""
    packed, given = encode(message)
    header, buffers = msgpack.unpackb(packed, strict_map_key=False), [bytes(each) for each in given]
    if "message" in header:
        return EncodedMessage(sender, header["message"], tuple(buffers))
    return EncodedMessage(sender, msgpack.unpackb(buffers[0], strict_map_key=False), tuple(buffers[1:]))


class MessageGenerator:
    """Generator of messages to a target to which ``words`` mean something."""

    def __init__(self, random: Random, words: Sequence[str], numbers: Sequence[int]) -> None:
        self._random, self._words, self._numbers = random, tuple(words), tuple(numbers)

    def plain(self) -> Encoded:
        """Return a random value, of a message or not."""
        return self._anything() if self._random.random() < 0.7 else self._leaf(str)

    def of_kind(self, sender: str, kind: type) -> EncodedMessage:
        """Return a message of a class with random fields."""
        buffers: list[bytes] = []
        return EncodedMessage(sender, self._class(kind, buffers), tuple(buffers))

    def nearly(self, sender: str, message: AnyMessage) -> EncodedMessage:
        """Return a valid message with up to two fields changed."""
        exact = exactly(sender, message)
        said, buffers = exact.fields, list(exact.buffers)
        hints = get_type_hints(type(message))
        names = [each.name for each in dataclasses.fields(message)]
        for _ in range(self._random.randrange(3)):
            if names:
                place = self._random.randrange(len(names))
                said[1 + place] = self._changed(said[1 + place], hints[names[place]], buffers)
        if buffers and self._random.random() < 0.1:
            place = self._random.randrange(len(buffers))
            buffers[place] = self._bytes()
        return EncodedMessage(sender, said, tuple(buffers))

    def _changed(self, said: Encoded, hint: Any, buffers: list[bytes]) -> Encoded:
        """Return another value, or a list with an item changed, added or removed."""
        if isinstance(said, list) and said and self._random.random() < 0.7:
            found = list(said)
            place = self._random.randrange(len(found))
            how = self._random.randrange(4)
            if how == 0:
                del found[place]
            elif how == 1:
                found.insert(place, found[self._random.randrange(len(found))])
            elif how == 2 and isinstance(found[place], list):
                found[place] = self._changed(found[place], None, buffers)
            else:
                found[place] = self._leaf(type(found[place]))
            return found
        return self._value(hint, buffers) if hint is not None else self._anything()

    def _class(self, kind: type, buffers: list[bytes]) -> Encoded:
        hints = get_type_hints(kind)
        values = [self._value(hints[each.name], buffers) for each in dataclasses.fields(kind)]
        if self._random.random() < _WRONG:
            values = values[:-1] if self._random.random() < 0.5 else [*values, 1]
        return [kind.__name__, *values]

    def _value(self, hint: Any, buffers: list[bytes]) -> Encoded:
        if self._random.random() < _WRONG:
            return self._anything()
        origin, inner = get_origin(hint), get_args(hint)
        if hint is object:
            return self._buffer(buffers)
        if origin in (Union, types.UnionType):
            return self._value(self._random.choice(inner), buffers)
        if origin is Literal:
            return self._random.choice(inner)
        if origin is tuple and inner[1:] == (Ellipsis,):
            return [self._value(inner[0], buffers) for _ in range(self._few())]
        if origin is tuple:
            return [self._value(each, buffers) for each in inner]
        if origin is not None and issubclass(origin, Mapping):
            return {self._word(): self._value(inner[1], buffers) for _ in range(self._few())}
        if dataclasses.is_dataclass(hint):
            return self._class(hint, buffers)  # type: ignore[arg-type]  # hints of fields are classes
        return self._leaf(hint)

    def _leaf(self, kind: Any) -> Encoded:
        if kind is int:
            return self._random.choice(self._numbers if self._random.random() < 0.7 else _ABSURD)
        if kind is float:
            return self._random.choice(_FLOATS)
        if kind is str:
            return self._word()
        if kind is bool:
            return self._random.random() < 0.5
        return None if kind in (None, types.NoneType) else self._anything()

    def _word(self) -> str:
        chance = self._random.random()
        if chance < 0.9:
            return self._random.choice(self._words)
        if chance < 0.98:
            return f"{self._random.choice(self._words)}{self._random.randrange(1 << 20)}"
        return self._random.choice(("", "\0", "x" * 100_000, "/", "\u20ac" * 300, "a b", "[" * 5000))

    def _few(self) -> int:
        return self._random.choice((0, 0, 1, 1, 2, 3, 8)) if self._random.random() < 0.99 else 2000

    def _buffer(self, buffers: list[bytes]) -> Encoded:
        if buffers and self._random.random() < 0.1:
            return {"": self._random.randrange(-1, len(buffers) + 2)}
        buffers.append(self._bytes())
        return {"": len(buffers) - 1}

    def _bytes(self) -> bytes:
        return self._random.randbytes(self._random.choice(_LENGTHS))

    def _anything(self) -> Encoded:
        return self._random.choice(
            (None, True, -1, 1 << 63, 0.5, "x", [], [[]], {}, {"": 0}, b"bytes", [None, {"a": [1]}])
        )
