"""docs/explanation: figures are those of results and code; named tests, modules and commands exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from docs.figures import draw
from tests.support.explanation import comparison, limits, papers, servers
from tests.support.explanation.quote import Quote
from tests.support.explanation.reading import RESULTS, processor

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "explanation").glob("*.md"))
LINE_LENGTH = 128
QUOTES = [
    *comparison.COMPARISON,
    *limits.LIMITS,
    *servers.STALENESS,
    *servers.SERVERS,
    *papers.PAPERS,
]
MEASURED = re.compile(r"(?<![\w.,/-])(?:\d+(?:,\d{3})+|\d+\.\d+)(?![\w/]|[.,]\d)|(?<![\w.,])\d+ %")
"""A figure with a point, with thousands, or in percent."""
NOT_MEASURED = {
    "comparison": (),
    "limits": ("Python 3.11 and 3.13, torch 2.13", "of 1.8 and 11.2 billion weights", "| 5 % |"),
    "staleness": ("from 99.39 to 99.63 %", "simulates 1 to 1,000 replicas"),
    "exactly-once": (),
    "replication": ("section 3.3",),
}
"""Texts of pages on which every other measured figure has a quote: versions, sizes, statements of papers."""
TEST = re.compile(r"`(tests/[\w/]+\.py)`((?:: `test_\w+`(?:, `test_\w+`)*)?)")

parametrised = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def joined(text: str) -> str:
    """Return a page with each paragraph, row and heading on one line."""
    return re.sub(r"\n(?!\n|\||#|[-*] |\d+\. )[ \t]*(?=\S)", " ", text)


def read(page: str) -> str:
    return joined((ROOT / "docs" / "explanation" / f"{page}.md").read_text(encoding="utf-8"))


def section(text: str, place: int) -> str:
    """Return the text between the headings around a place."""
    begin = text.rfind("\n#", 0, place) + 1
    end = text.find("\n#", place)
    return text[begin : end if end >= 0 else len(text)]


def faults(quote: Quote, text: str) -> list[str]:
    """Return what is wrong with a quote on a page: its figures, its file, its processor."""
    wanted = quote.rendered()
    place = text.find(wanted)
    if place < 0:
        return [f"{quote.file} gives {wanted!r}, which the page does not say"]
    if not quote.file:
        return []
    line = text[text.rfind("\n", 0, place) + 1 : text.find("\n", place)]
    around = section(text, place)
    found = []
    if f"`{quote.file}.json`" not in around:
        found.append(f"{wanted!r} does not name {quote.file}.json")
    where = line if re.search(r"\b(AMD|Intel)\b", line) else around
    if (name := processor(quote.file)) and name not in where:
        found.append(f"{wanted!r} does not name the processor, {name}")
    return found


def unquoted(text: str, quotes: Iterable[str]) -> list[str]:
    """Return the measured figures of a page that no quote contains."""
    for each in quotes:
        text = text.replace(each, "")
    text = re.sub(r"\]\([^)]*\)|`[^`]*`|^#.*$", "", text, flags=re.MULTILINE)
    return MEASURED.findall(text)


@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: f"{quote.page}-{quote.file or 'code'}")
def test_figures_are_those_of_the_result_or_of_the_code(quote: Quote) -> None:
    assert faults(quote, read(quote.page)) == []


@pytest.mark.parametrize("page", NOT_MEASURED)
def test_every_measured_figure_has_a_quote(page: str) -> None:
    quoted = [each.rendered() for each in QUOTES if each.page == page]
    assert unquoted(read(page), [*quoted, *NOT_MEASURED[page]]) == []


@cache
def defined(file: str) -> set[str]:
    """Return the names of functions in a file of tests."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def absent_tests(text: str) -> list[str]:
    """Return named tests that do not exist: in the file before them, or in any file of the page."""
    files = {file for file, _ in TEST.findall(text) if (ROOT / file).is_file()}
    found = [file for file, _ in TEST.findall(text) if file not in files]
    found += [
        f"{file}: {name}"
        for file, tail in TEST.findall(text)
        for name in re.findall(r"test_\w+", tail)
        if file in files and name not in defined(file)
    ]
    anywhere = set().union(*(defined(file) for file in files))
    return found + [name for name in re.findall(r"`(test_\w+)`", text) if name not in anywhere]


@parametrised
def test_named_tests_exist(page: Path) -> None:
    assert absent_tests(read(page.stem)) == []


@parametrised
def test_named_results_exist(page: Path) -> None:
    named = re.findall(r"`((?:hosts/)?[\w-]+\.json)`", page.read_text(encoding="utf-8"))
    assert [each for each in named if not (RESULTS / each).is_file()] == []


@parametrised
def test_lines_are_short(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [each for each in lines if len(each) > LINE_LENGTH and not each.startswith("|")] == []


def test_what_others_lack_has_an_address_and_a_test() -> None:
    text = read("comparison")
    lines = section(text, text.index("## What others lack") + 1).splitlines()
    rows = [line for line in lines if re.match(r"\| \d\. \*\*", line)]
    evidence = [line for line in lines if re.match(r"\d\. `tests/", line)]
    assert len(rows) == len(evidence) == 6
    assert all("](https://" in row.split(" | ")[1] for row in rows)


@pytest.mark.parametrize("name", ["processes.svg", "failover.svg"])
def test_drawings_are_those_of_the_code_and_the_transcript(name: str) -> None:
    found = (ROOT / "docs" / "figures" / name).read_text(encoding="utf-8")
    assert found == draw.drawings()[name], "python -m docs.figures.draw"


def test_the_drawn_failover_applies_the_update_once() -> None:
    steps = list(draw.steps(draw.TRANSCRIPT.read_text(encoding="utf-8")))
    pushes = [each for each in steps if each.words == "push: update 1"]
    applied = [each for each in steps if each.words.startswith("update 1 is applied")]
    assert [each.receiver for each in pushes] == ["a", "b"]
    assert [each.words for each in applied] == ["update 1 is applied: version 1"]
    assert {each.sender for each in steps} | {each.receiver for each in steps} == set(draw.ACTORS)


def test_a_line_of_a_transcript_without_words_is_refused() -> None:
    transcript = draw.TRANSCRIPT.read_text(encoding="utf-8").replace("take part in no term", "wait")
    with pytest.raises(ValueError, match="no words for"):
        list(draw.steps(transcript))


class TestFaultsAreFound:
    QUOTE = Quote("page", "{} of it", "kernels", lambda d: [f"{d['dense_size']}"])
    RIGHT = "# Page\n\n2048 of it on an AMD EPYC (`kernels.json`).\n"

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            (RIGHT.replace("2048", "2049"), "does not say"),
            (RIGHT.replace("kernels", "other"), "does not name kernels.json"),
            (RIGHT.replace("AMD EPYC", "Intel Xeon"), "does not name the processor"),
        ],
    )
    def test_a_wrong_quote(self, text: str, fault: str) -> None:
        assert faults(self.QUOTE, self.RIGHT) == []
        (found,) = faults(self.QUOTE, text)
        assert fault in found

    @pytest.mark.parametrize("figure", ["0.93", "1,024", "7 %"])
    def test_a_figure_without_a_quote(self, figure: str) -> None:
        assert unquoted(f"It is {figure} of that.", []) == [figure]
        assert unquoted(f"It is {figure} of that.", [f"is {figure} of"]) == []

    def test_a_test_that_does_not_exist(self) -> None:
        here = "`tests/docs/test_explanation.py`: `test_named_tests_exist`"
        assert absent_tests(here) == []
        assert absent_tests(here.replace("exist", "vanish"))
        assert absent_tests("`tests/docs/test_nothing.py`") == ["tests/docs/test_nothing.py"]
