"""A paper's tables and figures as one page, next to Cotswold's results.

Knows: the order of the page, its texts. Does not know: any paper, how results were measured, HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cotswold
from cotswold.analysis.report.blocks import (
    Block,
    FigureGrid,
    Items,
    Missing,
    Page,
    PageSection,
    Paragraph,
    Table,
    row,
)
from cotswold.analysis.report.build import page_html
from lib.papers.part import Claim, Found, Paper, Part, Result

NOTHING = "not run yet"


@dataclass(frozen=True)
class Given:
    """A result and its origin."""

    result: Result
    earlier: bool
    """True if the result existed before, measured by a separate command."""


def entries(paper: Paper, given: Mapping[str, Given]) -> list[tuple[Part, Found | None]]:
    """Return each part with its findings, or None if a result is missing or has no findings yet."""
    found: list[tuple[Part, Found | None]] = []
    for part in paper.parts:
        has_all = part.found is not None and all(name in given for name in part.needs)
        told = part.found(*(given[name].result for name in part.needs)) if part.found and has_all else None
        found.append((part, told if told is not None and (told.claims or told.tables) else None))
    return found


def page(
    paper: Paper, given: Mapping[str, Given], problems: Sequence[str], command: str, words: Mapping[str, str]
) -> str:
    """Return the whole page as HTML; ``words`` has the command of each result."""
    parts = entries(paper, given)
    done = [part.kind for part, told in parts if told is not None]
    waiting = sum(told is None and part.kind != "left out" for part, told in parts)
    numbers = [
        (str(done.count("measured")), "measured"),
        (str(done.count("simulated")), "simulated"),
        (str(sum(part.kind == "left out" for part, _ in parts)), "left out, with reasons"),
        (str(waiting), "not run yet"),
    ]
    sections = [_summary(paper, parts)]
    sections += [_section(number, part, told, words) for number, (part, told) in enumerate(parts)]
    sections.append(_how(given))
    return page_html(
        Page(
            title=paper.title,
            summary=paper.lead,
            numbers=numbers,
            problems=problems,
            sections=sections,
            footer=f"Cotswold {cotswold.__version__}. {command}",
        )
    )


def told(paper: Paper, given: Mapping[str, Given]) -> list[dict[str, object]]:
    """Return the same as JSON, without plots."""
    return [
        {
            "part": part.name,
            "title": part.title,
            "is": part.kind if found is not None or part.kind == "left out" else NOTHING,
            "stated": part.stated,
            "about": part.about,
            "claims": [vars(claim) for claim in found.claims] if found is not None else [],
            "results": list(part.needs),
        }
        for part, found in entries(paper, given)
    ]


def _summary(paper: Paper, parts: Sequence[tuple[Part, Found | None]]) -> PageSection:
    rows = []
    for part, found in parts:
        kind = part.kind if found is not None or part.kind == "left out" else NOTHING
        claims = found.claims if found is not None else ()
        first = claims[0] if claims else Claim(part.stated, "")
        rows.append(row(f"{part.name}, {kind}", first.said, first.ours))
    blocks: list[Block] = [Table(["", "The paper", "Cotswold"], rows, "words")]
    if paper.diagrams:
        blocks.append(Paragraph("Without results: " + "; ".join(paper.diagrams) + ".", "note"))
    return PageSection("At a glance", "glance", blocks)


def _section(number: int, part: Part, found: Found | None, words: Mapping[str, str]) -> PageSection:
    blocks: list[Block] = [Paragraph(f"The paper: {part.stated}"), Paragraph(part.about, "note")]
    if part.kind != "left out" and found is None:
        blocks += [Missing(f"{name}: not run yet;", words[name]) for name in part.needs]
    if found is not None:
        if found.claims:
            rows = [row(claim.said, claim.ours) for claim in found.claims]
            blocks.append(Table(["The paper", "Cotswold"], rows, "words"))
        blocks += list(found.tables)
        if found.figures:
            blocks.append(FigureGrid(found.figures))
        if found.note:
            blocks.append(Paragraph(found.note, "note"))
    title = f"{part.name}: {part.title}" + (" (left out)" if part.kind == "left out" else "")
    return PageSection(title, f"part-{number}", blocks)


def _how(given: Mapping[str, Given]) -> PageSection:
    """Return the section with each result's command and machine."""
    rows = []
    for name, each in sorted(given.items()):
        machine: Any = each.result.get("machine", {})
        processor = machine.get("processor") or each.result.get("processor") or "any (nothing measured)"
        cores = f", {machine['cores']} cores" if "cores" in machine else ""
        when = "an earlier measurement" if each.earlier else "this experiment"
        rows.append(
            row(name, str(each.result.get("command", "")), f"{processor}{cores}", when),
        )
    if not rows:
        return PageSection("How", "how", [Items(["There are no results."])])
    head = ["Result", "Command", "Processor", "From"]
    return PageSection("How", "how", [Table(head, rows, "words")])
