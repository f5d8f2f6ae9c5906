"""The 3203 character classes.

Knows: the characters of JIS X 0208 that are classes, their groups and numbers. Does not know: typefaces,
frequencies.

Aberdeen, Baxter and Edwards (2000) give the number of classes, but not the classes. The following rows of
JIS X 0208 add up to 3203: both kana (rows 4 and 5), the kanji of level 1 (rows 16 to 47), digits and Latin
letters (row 3), and seven signs of row 1.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

Group = Literal["hiragana", "katakana", "latin", "digits", "signs", "kanji"]

SIGNS = "、。・ー「」々"
"""The seven signs: comma, full stop, middle dot, long vowel, both brackets, repeated kanji."""
_KANJI_IN_LAST_ROW = 51
_ROW = 94


def _character(row: int, cell: int) -> str:
    return bytes([0xA0 + row, 0xA0 + cell]).decode("euc_jp")


@cache
def groups() -> dict[Group, str]:
    """Return the characters of each group, in the order of JIS X 0208."""
    latin = [*range(33, 59), *range(65, 91)]
    last = 47
    kanji = [
        _character(row, cell)
        for row in range(16, last + 1)
        for cell in range(1, (_KANJI_IN_LAST_ROW if row == last else _ROW) + 1)
    ]
    return {
        "hiragana": "".join(_character(4, cell) for cell in range(1, 84)),
        "katakana": "".join(_character(5, cell) for cell in range(1, 87)),
        "digits": "".join(_character(3, cell) for cell in range(16, 26)),
        "latin": "".join(_character(3, cell) for cell in latin),
        "signs": SIGNS,
        "kanji": "".join(kanji),
    }


@cache
def classes() -> tuple[str, ...]:
    """Return all characters, indexed by class number. Digits and Latin are full-width code points."""
    return tuple("".join(groups().values()))


@cache
def group_of() -> tuple[Group, ...]:
    """Return the group of each class."""
    return tuple(group for group, characters in groups().items() for _ in characters)


def narrow(character: str) -> str | None:
    """Return the half-width form of a digit or Latin letter, for typefaces without the full-width form."""
    number = ord(character) - 0xFEE0
    return chr(number) if 0x21 <= number <= 0x7E else None
