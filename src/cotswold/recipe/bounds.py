"""What no recipe needs more of, so that none can stall or overwhelm whoever reads it.

Knows: sizes of texts, numbers and lists, depth, how a value is shown in a sentence. Does not know: fields,
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
"""Of a recipe's file."""
DOTS_MAX = 10_000
"""In a text: a key of n names, joined by dots, takes `tomllib` a time that grows as n²."""
DEPTH_MAX = 16
"""Of tables and lists inside each other; a recipe has six."""
VALUES_MAX = 1 << 48
"""Of a layer's weights, and of one picture's map."""
BEYOND = "beyond"
"""pydantic's name for an error of these bounds."""
_SHOWN = 60

Number = TypeVar("Number", int, float)


def at_most(most: float) -> AfterValidator:
    """A bound that words about a field leave out: nobody comes near it but by mistake."""

    def check(value: Number) -> Number:
        if value > most:
            raise PydanticCustomError(BEYOND, "{most}", {"most": f"at most {most:,}"})
        return value

    return AfterValidator(check)


def characters(most: int) -> AfterValidator:
    """Texts of at most so many characters, without NUL, which no file's name may have."""

    def check(text: str) -> str:
        if len(text) > most:
            raise PydanticCustomError(BEYOND, "{most}", {"most": f"at most {most:,} characters"})
        if "\0" in text:
            raise PydanticCustomError(BEYOND, "{most}", {"most": "no NUL"})
        return text

    return AfterValidator(check)


def items(most: int) -> AfterValidator:
    """Lists of at most so many items."""

    def check(found: list[object]) -> list[object]:
        if len(found) > most:
            raise PydanticCustomError(BEYOND, "{most}", {"most": f"at most {most:,} items"})
        return found

    return AfterValidator(check)


def toml(text: str) -> dict[str, object]:
    """The values of a TOML text; raises ValueError, with what is wrong, for anything that is none."""
    if len(text) > BYTES_MAX or text.count(".") > DOTS_MAX:
        raise ValueError(f"it is too long; at most {BYTES_MAX >> 10} kB and {DOTS_MAX:,} dots are read")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a number with thousands of digits, a day that is none
        raise ValueError(f"it holds a value that cannot be ({error})") from error
    if _depth_exceeds(values, DEPTH_MAX):
        raise ValueError("it nests too deeply")
    return values


def read(path: Path) -> str:
    """The text of a file, of which at most so much is read that `toml` refuses the rest.

    Raises OSError, UnicodeDecodeError.
    """
    with path.open(encoding="utf-8") as file:
        return file.read(BYTES_MAX + 1)


def shown(value: object, most: int = _SHOWN) -> str:
    """A user's value as a sentence shows it: at most so many characters."""
    try:
        written = repr(value)
    except ValueError:  # Python writes no number with thousands of digits
        return "a number with thousands of digits"
    return written if len(written) <= most else f"{written[: most - 3]}..."


def shortened(text: str, most: int = _SHOWN) -> str:
    """As `shown`, for a text without quotation marks, such as a key."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _depth_exceeds(values: object, most: int) -> bool:
    level: Sequence[object] = [values]
    for _ in range(most + 1):
        level = [inner for each in level for inner in _inside(each)]
    return bool(level)


def _inside(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()
