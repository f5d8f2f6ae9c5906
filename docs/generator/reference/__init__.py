"""Pages of the reference, generated from definitions in Cotswold's source."""

from __future__ import annotations

from docs.generator.reference.api import api_pages
from docs.generator.reference.commands import command_pages
from docs.generator.reference.environment import environment_page
from docs.generator.reference.errors import error_page
from docs.generator.reference.events import event_page
from docs.generator.reference.formats import format_page
from docs.generator.reference.metrics import metric_page
from docs.generator.reference.recipes import recipe_pages

__all__ = ["reference_pages"]


def reference_pages() -> dict[str, str]:
    """Return the text of every generated page and file by its place on the site."""
    return {
        **api_pages(),
        **command_pages(),
        **recipe_pages(),
        "reference/environment-variables.md": environment_page(),
        "reference/events.md": event_page(),
        "reference/metric-names.md": metric_page(),
        "reference/errors-and-exit-codes.md": error_page(),
        "reference/file-formats.md": format_page(),
    }
