"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "broken picture"), counted(2000, "class"), counted(0, "number to predict")
    ('1 broken picture', '2,000 classes', '0 numbers to predict')
    """
    if number == 1:
        return f"1 {what}"
    first, space, rest = what.partition(" to ")
    return f"{number:,} {first}{'es' if first.endswith('s') else 's'}{space}{rest}"
