"""The page of file formats, from the docstrings of the modules that own them.

Knows: which module owns which file. Does not know: the formats.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping

from docs.generator.reference.text import prose

GROUPS: Mapping[str, Mapping[str, str]] = {
    "A run's directory": {
        "`run.json` and the directory": "run.directory",
        "`recipe.toml`": "recipe.migration",
        "`events.jsonl`": "run.events",
        "`status.json`": "run.loggers.status_file",
        "`metrics.csv`": "run.loggers.csv_file",
        "`extended.json`": "training.jobs.extend",
        "`checkpoints/`": "checkpoint.manifest",
    },
    "Data": {"A store": "data.store.manifest"},
    "Servers": {
        "Buckets on a server's disk": "replication.disk.block_store",
        "`state.sqlite` of a cluster": "replication.metadata.sqlite",
        "A backup of a cluster": "api.servers.backups",
        "A log of messages to a server": "paramserver.runtime.traffic_log",
    },
    "Other": {"The cache of compiled code": "kernels.compile.code_cache"},
}
"""Modules that own a format, by the name of the file."""

_FORMAT_NAMES = ("FORMAT", "_FORMAT", "VERSION")


def format_page() -> str:
    """Return the page."""
    parts = [
        "# File formats\n\n"
        "A file with a format number of a newer version raises a `FormatError`; Cotswold reads older "
        "ones. The\n"
        "names of the modules lead to the source, which defines each format completely.\n"
    ]
    for group, files in GROUPS.items():
        parts.append(f"\n## {group}\n")
        for name, place in files.items():
            module = importlib.import_module(f"cotswold.{place}")
            number = next((str(getattr(module, each)) for each in _FORMAT_NAMES if hasattr(module, each)), "")
            stated = f" Format: `{number}`." if number else ""
            parts.append(
                f"\n### {name}\n\n{_text(inspect.getdoc(module) or '')}\n\nModule: "
                f"`cotswold.{place}`.{stated}\n"
            )
    return "".join(parts)


def _text(doc: str) -> str:
    """Return a docstring as Markdown, without the paragraph that says what the module knows."""
    kept = []
    for paragraph in re.split(r"\n\n+", doc):
        if paragraph.startswith("Knows:"):
            _, _, after = re.sub(r"\s+", " ", paragraph).partition("Does not know: ")
            paragraph = after.partition(". ")[2]
        if paragraph:
            is_code = paragraph.startswith("    ")
            kept.append(f"```text\n{inspect.cleandoc(paragraph)}\n```" if is_code else prose(paragraph))
    return "\n\n".join(kept)
