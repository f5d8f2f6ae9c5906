"""Counts of what makes text hard to read; ``python -m tests.support.plain_words [PATH ...]`` lists it.

Knows: docstrings, pages in Markdown, words and phrases. Does not know: what a text is about.

    opening   a docstring that opens with a relative clause or a bare preposition in the place of a subject
    word      a word that stands for a term of the field, or hides the subject
    passive   "it is waited", "is told": a verb without an actor
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATHS = ("src", "docs", "examples", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_CLAUSES = "What|Which|Who|Whoever|Whom|Whose|Whatever|That|Those|Where|How|Until|As|Such|Nobody|Nothing"
_PREPOSITIONS = "Of|By|Besides?|In which|In whose|To which|To whom|With which|From which|From whom"
_PATTERNS = {
    "opening": re.compile(rf"({_CLAUSES}|{_PREPOSITIONS}|For so (long|many)|One that|The one)\b"),
    "word": re.compile(
        r"\b(who(so)?ever|whatever|whichever|whom|nobody|somebody|for so long|for ever|besides?|anew|oneself"
        r"|hence|as many as|so many|so much|once more|one's own|of its own|the like|there(by|in|of)|yonder"
        r"|told (of|apart)|(is|are) there|goes on|go on from|takes part|st(ands|ood) still|befalls?"
        r"|gone wrong)\b",
        re.IGNORECASE,
    ),
    "passive": re.compile(
        r"\b(it|there|this|that|what)\s+(is|was|are|were)\s+"
        r"(waited|told|said|heard|asked|known|looked|begun|spoken|counted on)\b",
        re.IGNORECASE,
    ),
}


@dataclass
class Count:
    """Totals over files, and every place with its kind."""

    docstrings: int = 0
    words: int = 0
    found: Counter[str] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)

    @property
    def rates(self) -> dict[str, float]:
        """Openings per 100 docstrings; words and passives per 1,000 words of text."""
        per = {
            "opening": 100 / max(1, self.docstrings),
            "word": 1000 / max(1, self.words),
            "passive": 1000 / max(1, self.words),
        }
        return {kind: self.found[kind] * rate for kind, rate in per.items()}

    def add(self, place: str, text: str, is_docstring: bool) -> None:
        """Count one docstring, or one line of a page."""
        self.docstrings += is_docstring
        self.words += len(text.split())
        for kind, sample in _PATTERNS.items():
            if kind == "opening":
                match = sample.match(text.strip()) if is_docstring else None
                matches = [match] if match else []
            else:
                matches = list(sample.finditer(text))
            self.found[kind] += len(matches)
            self.places += [f"{place}: {kind}: {each[0]}" for each in matches]


def count(paths: Sequence[Path]) -> Count:
    """Count the text of Python files and Markdown pages."""
    total = Count()
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix in (".py", ".md"):
                for line, text, is_docstring in _texts(file):
                    total.add(f"{file}:{line}", text, is_docstring)
    return total


def _texts(file: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the text, and whether it is a docstring; blocks of code do not count."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            body = getattr(node, "body", None)
            for child in body if isinstance(body, list) else ():
                found = child.value if isinstance(child, ast.Expr) else None
                if isinstance(found, ast.Constant) and isinstance(found.value, str):
                    yield child.lineno, found.value, True
        return
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("    "):
            yield number, line, False


if __name__ == "__main__":
    done = count([Path(each) for each in sys.argv[1:]] or [ROOT / each for each in PATHS])
    print("\n".join(done.places))
    print({kind: round(rate, 3) for kind, rate in done.rates.items()})
