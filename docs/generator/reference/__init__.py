"""Pages of the reference, generated from definitions in Cotswold's source."""

from __future__ import annotations

from docs.generator.reference.api import api_pages
from docs.generator.reference.commands import command_pages
from docs.generator.reference.environment import environment_page
from docs.generator.reference.errors import error_page
from docs.generator.reference.events import event_page
from docs.generator.reference.formats import format_page
from docs.generator.reference.json_output import json_page
from docs.generator.reference.metrics import metric_page
from docs.generator.reference.recipes import SCHEMA, recipe_pages
from docs.generator.reference.text import table

from cotswold import __version__

__all__ = ["reference_pages"]


CONTENTS = (
    ("Python interface", "api/index.md", "docstrings of the public names"),
    ("Command line", "commands/index.md", "the definitions that `--help` prints"),
    ("JSON output", "json-output.md", "the objects that commands print with `--json`"),
    ("Recipe fields", "recipe-fields.md", "the schema that `cotswold recipe explain` prints"),
    ("JSON schema of recipes", SCHEMA, "the same schema, for editors"),
    ("Shipped recipes", "shipped-recipes.md", "the recipes in the package"),
    ("Environment variables", "environment-variables.md", "the variables that the source reads"),
    ("Events", "events.md", "the kinds that the source writes to `events.jsonl`"),
    ("Prometheus metrics", "metric-names.md", "the metrics that a run and data servers serve"),
    ("Errors and exit codes", "errors-and-exit-codes.md", "the classes of `cotswold.errors`"),
    ("File formats", "file-formats.md", "the modules that read and write each file"),
)
"""Title, place and source of the generated parts."""


def reference_pages() -> dict[str, str]:
    """Return the text of every generated page and file by its place on the site."""
    return {
        "reference/index.md": _index(),
        **api_pages(),
        **command_pages(),
        **recipe_pages(),
        "reference/json-output.md": json_page(),
        "reference/environment-variables.md": environment_page(),
        "reference/events.md": event_page(),
        "reference/metric-names.md": metric_page(),
        "reference/errors-and-exit-codes.md": error_page(),
        "reference/file-formats.md": format_page(),
    }


def _index() -> str:
    rows = [[f"[{title}]({place})", source] for title, place, source in CONTENTS]
    return (
        "# Reference\n\n"
        f"These pages describe Cotswold {__version__}. They are generated from its source.\n\n"
        f"{table(['page', 'generated from'], rows)}\n"
        "These pages are written by hand: [Cotswold from Python](../python.md), [Layers](../layers.md) and\n"
        "the [Glossary](../glossary.md).\n"
    )
