"""Read untrusted JSON.

Knows: JSON, limits of size and depth, types of fields. Does not know: the fields' meaning.

Data from a disk or a port may be damaged or malicious. These functions accept an object of bounded size and
depth; anything else raises :class:`MalformedError` and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from cotswold.files.safe_open import read_bytes

BYTES_MAX = 256 << 20
DEPTH_MAX = 64

JsonObject = dict[str, object]
T = TypeVar("T")


class MalformedError(ValueError):
    """A text that is not the expected JSON; the message completes the sentence "the file ..."."""


def read_object(path: str | Path, *, bytes_max: int = BYTES_MAX, depth_max: int = DEPTH_MAX) -> JsonObject:
    """Read the JSON object in a file.

    Raises MalformedError if the file holds anything else, OSError if it cannot be read, is a symbolic link or
    is larger than ``bytes_max``.
    """
    return parse_object(read_bytes(path, bytes_max), bytes_max=bytes_max, depth_max=depth_max)


def parse_object(
    content: bytes | str, *, bytes_max: int = BYTES_MAX, depth_max: int = DEPTH_MAX
) -> JsonObject:
    """Parse the JSON object in a text; MalformedError for anything else."""
    if len(content) > bytes_max:
        raise MalformedError(f"has more than {bytes_max} bytes")
    try:
        parsed = json.loads(content)
    except RecursionError as error:
        raise MalformedError("is nested too deeply") from error
    except ValueError as error:  # invalid JSON or UTF-8, or an integer with thousands of digits
        raise MalformedError("is not JSON") from error
    if not isinstance(parsed, dict):
        raise MalformedError(f"holds a JSON {type(parsed).__name__} instead of an object")
    _check_depth(parsed, depth_max)
    return parsed


def take(table: Mapping[str, object], name: str, kind: type[T]) -> T:
    """Return the field ``name``, which must have exactly the type ``kind`` (a float accepts an integer).

    Raises MalformedError if it is missing or has another type.
    """
    if name not in table:
        raise MalformedError(f"has no field {name!r}")
    value = table[name]
    if kind is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError as error:
            raise MalformedError(f"has a number in the field {name!r} that is too large") from error
    if type(value) is not kind:
        raise MalformedError(f"has {type(value).__name__} in the field {name!r}, not {kind.__name__}")
    return value


def _check_depth(value: object, depth_max: int) -> None:
    level: list[object] = [value]
    for _ in range(depth_max):
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return
    raise MalformedError("is nested too deeply")


def describe_format_error(found: object, known: int) -> str:
    """Explain why a file with another format number is not read, as the predicate of a sentence."""
    is_newer = type(found) is int and found > known
    why = "was written by a newer version of Cotswold" if is_newer else "has a format that no version writes"
    return f"{why} (format {str(found)[:20]}; this version reads {known})"
