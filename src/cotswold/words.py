"""Phrases with numbers."""

from __future__ import annotations

import re


def counted(number: int, what: str) -> str:
    """Format a number of things.

    >>> counted(1, "broken image"), counted(2000, "class"), counted(0, "number to predict")
    ('1 broken image', '2,000 classes', '0 numbers to predict')
    >>> counted(2, "copy"), counted(2, "key")
    ('2 copies', '2 keys')
    """
    if number == 1:
        return f"1 {what}"
    first, space, rest = what.partition(" to ")
    many = re.sub(r"(?<=[^aeiou])y$", "ie", re.sub("s$", "se", first)) + "s"
    return f"{number:,} {many}{space}{rest}"


def short_in_words(buckets: int, members: int, least: int) -> str:
    """Return why updates of some buckets wait, with the members of one of them; empty if none waits.

    >>> short_in_words(3, 1, 2)
    '3 buckets wait: one has 1 copy of at least 2 (server_copies_min, or --copies-min of its host)'
    >>> short_in_words(0, 0, 2)
    ''
    """
    if not buckets:
        return ""
    waits, whose = ("1 bucket waits", "it") if buckets == 1 else (f"{buckets} buckets wait", "one")
    copies = "1 copy" if members == 1 else f"{members} copies"
    wanted = f"{least} (server_copies_min, or --copies-min of its host)"
    return f"{waits}: {whose} has {copies} of at least {wanted}"
