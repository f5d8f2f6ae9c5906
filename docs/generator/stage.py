"""Copies pages into the staging folder; links that work on the repository's pages then work on the site.

Knows: Markdown's links, headings and fences; which files of the repository become pages. Does not know: what
a page says, the reference.

A link to a file that is not a page, such as ``../benchmarks/results/kernels.json``, leads to a copy of it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from docs.generator.errors import SiteError

PROJECT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "examples/README.md": "examples/index.md",
}
"""Pages outside docs, and their places on the site; those that do not exist are left out."""
REQUIRED = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FILES = "files"
"""Folder of the site with copies of linked files that are no pages."""
NOT_PAGES = {"generator", "assets"}
"""Folders of docs that are not pages; assets are copied unchanged."""

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_LINK = re.compile(r"(?P<before>\]\(|^\[[^\]]+\]:\s+|\b(?:src|href)=\")(?P<target>[^)\s\"]+)")
_SPAN = re.compile(r"(`+)(?:(?!\1).)+?\1(?!`)")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*$")
_ITEM = re.compile(r"^ {0,3}(?:[-*+]|\d+[.)])\s+\S")
_ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//|#)", re.IGNORECASE)


def stage(root: Path, pages: Path, generated: Mapping[str, str]) -> None:
    """Write every page, every linked file, and the assets; a generated page replaces one of the repository.

    Raises SiteError if a link leads nowhere. Pages of the repository cannot link to generated pages, because
    those exist only on the site.
    """
    sources = dict(page_sources(root))
    places = {source: place for place, source in sources.items()}
    for place, source in sources.items():
        text = (root / source).read_text(encoding="utf-8")
        write(pages / place, convert(text, _linker(root, pages, source, place, places)))
    for place, text in generated.items():
        write(pages / place, text)
    shutil.copytree(root / "docs" / "assets", pages / "assets")


def page_sources(root: Path) -> Iterator[tuple[str, str]]:
    """Yield every page's place on the site, and its file in the repository."""
    for page in sorted((root / "docs").rglob("*.md")):
        inside = page.relative_to(root / "docs")
        if inside.parts[0] not in NOT_PAGES:
            yield inside.as_posix(), f"docs/{inside.as_posix()}"
    for source, place in PROJECT.items():
        if (root / source).is_file():
            yield place, source
        elif source in REQUIRED:
            raise SiteError(f"{source} is missing; restore it")


def write(file: Path, text: str) -> None:
    """Write a file, and create its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def convert(text: str, link: Callable[[str], str]) -> str:
    """Return a page for the site: links by ``link``, GitHub's anchors, lists as GitHub reads them."""
    lines: list[str] = []
    slugs: dict[str, int] = {}
    fence, in_list = "", False
    for line in text.split("\n"):
        opening = _FENCE.match(line)
        if fence:
            fence = "" if opening and line.strip().startswith(fence) else fence
        elif opening:
            fence = opening[1]
        elif heading := _HEADING.match(line):
            slug = slug_of(heading[2])
            count = slugs[slug] = slugs.get(slug, -1) + 1
            anchor = f"{slug}-{count}" if count else slug
            line = f"{heading[1]} {_outside_code(heading[2], link)} {{ #{anchor} }}"
        else:
            is_item = bool(_ITEM.match(line))
            if is_item and not in_list and lines and lines[-1].strip():
                lines.append("")  # GitHub starts a list without an empty line
            nested = re.match(r"^( {2,3})((?:[-*+]|\d+[.)])\s.*)$", line) if in_list else None
            if nested:
                line = f"    {nested[2]}"
            elif in_list and re.match(r"^ {2,3}\S", line) and lines and not lines[-1].strip():
                line = f"    {line.strip()}"  # a paragraph of the item
            in_list = is_item or (in_list and (not line.strip() or line.startswith(" ")))
            line = line if line.startswith("    ") and not in_list else _outside_code(line, link)
        lines.append(line)
    return "\n".join(lines)


def slug_of(heading: str) -> str:
    """Return GitHub's anchor of a heading.

    >>> slug_of("Memory that a step frees")
    'memory-that-a-step-frees'
    >>> slug_of("`cotswold serve`, [alone](serve.md)")
    'cotswold-serve-alone'
    """
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


def _outside_code(line: str, link: Callable[[str], str]) -> str:
    """Return a line with its links converted; spans of code stay as they are."""
    spans: list[str] = []

    def keep(found: re.Match[str]) -> str:
        spans.append(found[0])
        return f"\0{len(spans) - 1}\0"

    def linked(found: re.Match[str]) -> str:
        return found["before"] + link(found["target"])

    converted = _LINK.sub(linked, _SPAN.sub(keep, line))
    return re.sub(r"\0(\d+)\0", lambda found: spans[int(found[1])], converted)


def _linker(
    root: Path, pages: Path, source: str, place: str, places: Mapping[str, str]
) -> Callable[[str], str]:
    """Return the function that converts the links of one page."""

    def link(target: str) -> str:
        if _ELSEWHERE.match(target):
            return target
        path, hash_, anchor = target.partition("#")
        wanted = os.path.normpath(PurePosixPath(source).parent / path)
        folder_page = f"{wanted}/README.md"
        if wanted in places or folder_page in places:
            found = places.get(wanted) or places[folder_page]
        elif (root / wanted).is_file() and not wanted.startswith(".."):
            found = wanted.removeprefix("docs/") if wanted.startswith("docs/") else f"{FILES}/{wanted}"
            (pages / found).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / wanted, pages / found)
        else:
            raise SiteError(f"{source} links to {target}, which is no page or file of the repository")
        return os.path.relpath(found, PurePosixPath(place).parent) + hash_ + anchor

    return link
