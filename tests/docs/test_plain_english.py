"""The text of the package and its pages stays plain English."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.plain_words import PATHS, ROOT, count

MOST = {"opening": 0.03, "word": 0.15, "passive": 0.02}
"""Current rates, rounded up; lower them when the text improves."""


def test_hard_words_do_not_come_back() -> None:
    found = count([ROOT / each for each in PATHS])
    assert found.docstrings > 10_000 and found.words > 200_000
    for kind, rate in found.rates.items():
        assert rate <= MOST[kind], [each for each in found.places if f": {kind}: " in each][:20]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("What a primary has to say.", "opening"),
        ("Of those that are there.", "opening"),
        ("The copy goes on by itself.", "word"),
        ("Until an answer comes it is waited.", "passive"),
    ],
)
def test_a_hard_sentence_is_found(text: str, kind: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(f'"""{text}"""\n')
    assert count([module]).found[kind] >= 1


def test_plain_sentences_and_code_pass(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Return the index.\n\n```python\nwhatever = 1\n```\n")
    assert not count([page]).found.total()
