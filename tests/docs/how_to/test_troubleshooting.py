"""Messages that the how-to pages quote are those of the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.messages import occurs

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
MESSAGES = sorted(
    {
        message
        for name in ("troubleshooting", "rotate-tokens", "get-the-data")
        for table in (HOW_TO / f"{name}.md").read_text(encoding="utf-8").split("\n| message |")[1:]
        for message in re.findall(r"^\| `(.+?)` \|", table.partition("\n\n")[0], re.MULTILINE)
    }
)


def test_the_pages_quote_messages() -> None:
    assert len(MESSAGES) > 60


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_is_in_the_source(message: str) -> None:
    assert occurs(message)


@pytest.mark.parametrize(
    "message", ["… already holds a run; delete it", "the ranks agree on everything: rank … on … has …"]
)
def test_a_message_that_the_source_lacks_is_found(message: str) -> None:
    assert not occurs(message)


def test_a_message_without_a_constant_part_is_refused() -> None:
    with pytest.raises(ValueError, match="quote more of it"):
        occurs("… is …")
