"""Blocks as HTML, by the templates beside.

Knows: Jinja, that everything is escaped but what a template marks safe (the plots, in ``blocks.html.j2``).
Does not know: runs, what is shown.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from cotswold.analysis.report.blocks import Page, PageSection


def page_html(page: Page) -> str:
    """The whole page."""
    return _templates().get_template("page.html.j2").render(page=page)


def section_html(section: PageSection) -> str:
    """A section alone."""
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
