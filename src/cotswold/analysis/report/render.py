"""Render blocks as HTML with templates.

Knows: Jinja, that everything is escaped except text that a template marks safe (plots, in
``blocks.html.j2``). Does not know: runs, the content of a report.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from cotswold.analysis.report.blocks import Page, PageSection


def page_html(page: Page) -> str:
    """Return the whole page."""
    return _templates().get_template("page.html.j2").render(page=page)


def section_html(section: PageSection) -> str:
    """Return a section alone."""
    return _templates().get_template("section.html.j2").render(section=section)


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("cotswold.analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
