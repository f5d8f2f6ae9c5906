"""Pages of the Python interface: one per package, each name from its docstring.

Knows: the packages of the reference, their public names. Does not know: how a docstring is rendered.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

from docs.generator.reference.text import prose, table

PACKAGES = (
    *("nn", "ops", "optim", "callbacks", "mesh", "geometry", "launch", "data", "sklearn", "training"),
    *("batch", "recipe", "run", "checkpoint", "simulate", "analysis", "bench", "errors", "testing"),
)
"""Packages with a page, in the order of the menu."""


def api_pages() -> dict[str, str]:
    """Return the page of `cotswold` itself, and one for each package."""
    folder = "reference/api"
    pages = {f"{folder}/{name}.md": _page(f"cotswold.{name}") for name in PACKAGES}
    return {
        f"{folder}/index.md": _index(),
        f"{folder}/cotswold.md": _page("cotswold"),
        **dict(sorted(pages.items())),
    }


def public_names(package: ModuleType) -> list[str]:
    """Return the names that a package exports; without packages for `cotswold`, which has pages for those."""
    names = getattr(package, "__all__", None) or [
        name
        for name, found in vars(package).items()
        if inspect.isclass(found) and found.__module__ == package.__name__
    ]
    whole = package.__name__ == "cotswold"
    return [
        name
        for name in names
        if not name.startswith("__") and not (whole and isinstance(getattr(package, name), ModuleType))
    ]


def _index() -> str:
    rows = [
        [
            f"[`{name}`]({name.rpartition('.')[2]}.md)",
            prose(_first_line(importlib.import_module(name)), "../../"),
        ]
        for name in ("cotswold", *(f"cotswold.{each}" for each in PACKAGES))
    ]
    return (
        "# Python interface\n\n"
        "These pages are generated from docstrings. [Cotswold from Python](../../python.md) introduces the\n"
        "functions with examples, and [lists the names that are "
        "public](../../python.md#what-is-public): they\n"
        "change only with a note in the change log. Other names may change.\n\n"
        + table(["package", "content"], rows)
    )


def _first_line(package: ModuleType) -> str:
    return (inspect.getdoc(package) or "").partition("\n")[0]


def _page(name: str) -> str:
    package = importlib.import_module(name)
    summary = prose(_first_line(package), "../../")
    parts = [f"# {name}\n\n{summary}\n"]
    parts += [f"\n::: {name}.{each}\n" for each in public_names(package)]
    return "".join(parts)
