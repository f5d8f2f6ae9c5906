"""The table of messages in docs/privacy.md agrees with the code: the messages, and those with numbers."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from cotswold.wire import MESSAGES
from cotswold.wire import lifecycle as beginning

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
SECTION = PAGE.read_text().partition("## Every message\n")[2].partition("\n## ")[0]
NAME = re.compile(r"`([A-Za-z]+)`")
ALL = {each.__name__: each for each in (*MESSAGES, *beginning.MESSAGES)}


def rows() -> Iterator[tuple[list[str], str]]:
    """Return the names of messages of each row, with the row's statement about numbers."""
    for line in SECTION.splitlines():
        if line.startswith("| `"):
            messages, numbers, _ = (each.strip() for each in line.strip("|").split("|"))
            yield NAME.findall(messages), numbers


def has_numbers(hint: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """True if a value of a type may have a buffer, which is an `object` among plain types."""
    if hint is object:
        return True
    if hint in seen or isinstance(hint, str):
        return False
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        return any(has_numbers(hints[each.name], seen | {hint}) for each in fields(hint))
    return isinstance(hint, types.GenericAlias | types.UnionType) and any(
        has_numbers(each, seen) for each in get_args(hint)
    )


def test_every_message_is_in_one_row_and_no_row_has_another() -> None:
    named = [name for names, _ in rows() for name in names]
    assert sorted(named) == sorted(ALL)


def test_the_messages_that_may_carry_numbers_are_those_of_which_the_page_says_so() -> None:
    said = {name for names, numbers in rows() if numbers != "none" for name in names}
    assert said == {name for name, message in ALL.items() if has_numbers(message)}


def test_what_a_part_is_sent_is_all_that_the_page_names() -> None:
    (line,) = (line for line in SECTION.splitlines() if line.startswith("| `BucketEnvelope`"))
    enclosed = get_type_hints(ALL["BucketEnvelope"])["message"]
    assert set(NAME.findall(line)) - {"BucketEnvelope"} == {each.__name__ for each in get_args(enclosed)}
