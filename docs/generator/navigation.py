"""Navigation of the site: entries of mkdocs.yml, with folders expanded to their pages.

Knows: folders as entries. Does not know: titles of pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from docs.generator.errors import SiteError

Entry = str | dict[str, "str | list[Entry]"]


def expand(entries: Sequence[Entry], pages: Path) -> list[Entry]:
    """Return the navigation with folders replaced by their pages.

    An entry that ends with a slash stands for all pages below that folder that no other entry lists, by
    itself or by a folder further down, in alphabetical order.

    Raises:
        SiteError: if a listed page is missing, or if a page of the site is not listed.
    """
    listed = set(_listed(entries))
    found = list(_expand(entries, pages, listed))
    reached = set(_listed(found))
    if orphans := sorted(
        str(page.relative_to(pages))
        for page in pages.rglob("*.md")
        if page.relative_to(pages).as_posix() not in reached
    ):
        raise SiteError(f"no menu of the site leads to {', '.join(orphans)}; add it to nav in mkdocs.yml")
    return found


def _listed(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield all pages and folders that entries name."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
            continue
        for inside in entry.values():
            yield from [inside] if isinstance(inside, str) else _listed(inside)


def _expand(entries: Sequence[Entry], pages: Path, listed: set[str]) -> Iterator[Entry]:
    for entry in entries:
        if isinstance(entry, dict):
            ((title, inside),) = entry.items()
            if isinstance(inside, str):
                _check(inside, pages)
                yield entry
            elif found := list(_expand(inside, pages, listed)):
                yield {title: found}
        elif entry.endswith("/"):
            inner = tuple(
                each for each in listed if each.endswith("/") and each.startswith(entry) and each != entry
            )
            below = sorted(page.relative_to(pages).as_posix() for page in (pages / entry).rglob("*.md"))
            yield from (page for page in below if page not in listed and not page.startswith(inner))
        else:
            _check(entry, pages)
            yield entry


def _check(page: str, pages: Path) -> None:
    """Raise SiteError if a listed page is missing."""
    if not (pages / page).is_file():
        raise SiteError(f"nav in mkdocs.yml lists {page}, which does not exist; remove it or write the page")
