"""Arguments that are lists of numbers, such as 1,4 or 1..5.

Knows: their spelling. Does not know: the meaning of the numbers.
"""

from __future__ import annotations


def numbers_of(text: str | None, requirement: str) -> list[int]:
    """Parse positive numbers; return an empty list for None.

    Args:
        text: Numbers separated by commas, or the first and the last of a range.
        requirement: Start of the error for other texts, such as "--threads must be numbers, as in 1,2".

    Raises:
        UserError: The text is neither.

    >>> numbers_of("1..3", ""), numbers_of("1, 4", ""), numbers_of(None, "")
    ([1, 2, 3], [1, 4], [])
    """
    from cotswold.errors import UserError

    if text is None:
        return []
    first, dots, last = (word.strip() for word in text.partition(".."))
    words = [first, last] if dots else [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(numbers) != len(words) or min(numbers) < 1 or (dots and numbers[0] > numbers[1]):
        raise UserError(f"{requirement}; got {text}")
    return list(range(numbers[0], numbers[1] + 1)) if dots else numbers
