"""Upper bounds for recipes, so that no recipe can stall or overwhelm its reader.

Knows: sizes of texts, numbers and lists, depth, how an error message shows a value. Does not know: fields,
files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

BYTES_MAX = 1 << 18
"""Largest size of a recipe file in bytes."""
DOTS_MAX = 10_000
"""Largest number of dots in a text: `tomllib` needs a time that grows as n² for a dotted key of n names."""
DEPTH_MAX = 16
"""Largest depth of nested tables and lists; a recipe has six."""
VALUES_MAX = 1 << 48
"""Largest number of weights of a layer, and of values of one image's map."""
OUT_OF_BOUNDS = "beyond"
"""Type of pydantic errors of these bounds."""
_SHOWN_CHARACTERS = 60

Number = TypeVar("Number", int, float)


def hidden_maximum(most: float) -> AfterValidator:
    """A bound that descriptions of a field omit: only mistakes reach it."""

    def check(value: Number) -> Number:
        if value > most:
            raise PydanticCustomError(OUT_OF_BOUNDS, "{most}", {"most": f"at most {most:,}"})
        return value

    return AfterValidator(check)


def characters(most: int) -> AfterValidator:
    """Bound of a text's length; also refuses NUL, which no file name may contain."""

    def check(text: str) -> str:
        if len(text) > most:
            raise PydanticCustomError(OUT_OF_BOUNDS, "{most}", {"most": f"at most {most:,} characters"})
        if "\0" in text:
            raise PydanticCustomError(OUT_OF_BOUNDS, "{most}", {"most": "no NUL"})
        return text

    return AfterValidator(check)


def items(most: int) -> AfterValidator:
    """Bound of a list's length."""

    def check(found: list[object]) -> list[object]:
        if len(found) > most:
            raise PydanticCustomError(OUT_OF_BOUNDS, "{most}", {"most": f"at most {most:,} items"})
        return found

    return AfterValidator(check)


def toml(text: str) -> dict[str, object]:
    """Return the values of a TOML text; raises ValueError with the reason if the text is invalid."""
    if len(text) > BYTES_MAX or text.count(".") > DOTS_MAX:
        raise ValueError(f"it is too long; at most {BYTES_MAX >> 10} kB and {DOTS_MAX:,} dots are allowed")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a number with thousands of digits, an invalid date
        raise ValueError(f"it contains an invalid value ({error})") from error
    if _exceeds_depth(values, DEPTH_MAX):
        raise ValueError("it nests too deeply")
    return values


def read(path: Path) -> str:
    """Return the text of a file, cut just beyond the size that `toml` accepts.

    Raises OSError, UnicodeDecodeError.
    """
    with path.open(encoding="utf-8") as file:
        return file.read(BYTES_MAX + 1)


def shorten_value(value: object, most: int = _SHOWN_CHARACTERS) -> str:
    """Return a user's value for an error message, shortened to at most ``most`` characters."""
    try:
        written = repr(value)
    except ValueError:  # Python refuses to print numbers with thousands of digits
        return "a number with thousands of digits"
    return written if len(written) <= most else f"{written[: most - 3]}..."


def shortened(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """Shorten a text without quotation marks, such as a key, to at most ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _exceeds_depth(values: object, most: int) -> bool:
    level: Sequence[object] = [values]
    for _ in range(most + 1):
        level = [inner for each in level for inner in _children(each)]
    return bool(level)


def _children(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()
