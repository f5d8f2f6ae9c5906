"""Numbers of things in sentences."""

from __future__ import annotations

import re


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "broken picture"), counted(2000, "class"), counted(0, "number to predict")
    ('1 broken picture', '2,000 classes', '0 numbers to predict')
    >>> counted(2, "copy"), counted(2, "key")
    ('2 copies', '2 keys')
    """
    if number == 1:
        return f"1 {what}"
    first, space, rest = what.partition(" to ")
    many = re.sub(r"(?<=[^aeiou])y$", "ie", re.sub("s$", "se", first)) + "s"
    return f"{number:,} {many}{space}{rest}"
