"""Pages of recipes: every field with its meaning, the shipped recipes, the JSON schema.

Knows: the text of `cotswold recipe explain`, the schema's own description. Does not know: single fields.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

from docs.generator.errors import SiteError
from docs.generator.reference.text import SOURCE, prose, table

from cotswold.recipe import Recipe, explain, load, shipped_names

SCHEMA = "recipe.schema.json"
_HEAD = re.compile(r"^(\[\[?[\w.]+\]?\])  # (.*)$")
_FIELD = re.compile(r"^(\w+) = (.*)$")
_SENTENCE = re.compile(r"[A-Z].*?\.(?=\s+[A-Z]|$)")
_LIKE = re.compile(r"^[\w, ]+: as for ")


def recipe_pages() -> dict[str, str]:
    """Return the pages of fields and of shipped recipes, and the schema."""
    return {
        "reference/recipe-fields.md": _fields_page(),
        "reference/shipped-recipes.md": _shipped_page(),
        f"reference/{SCHEMA}": json.dumps(Recipe.model_json_schema(), indent=1, ensure_ascii=False) + "\n",
    }


def _fields_page() -> str:
    return (
        "# Recipe fields\n\n"
        "A recipe is a TOML file. This page is the output of `cotswold recipe explain`. `cotswold "
        "recipe show\n"
        "demo > mine.toml` writes a recipe with these explanations as comments. An editor that reads "
        "JSON schemas\n"
        f"completes and checks recipes with [{SCHEMA}]({SCHEMA}).\n\n"
        "## Top level\n\n" + "\n".join(_fields(explain()))
    )


def _fields(text: str) -> Iterator[str]:
    """Yield the lines of the page for the lines of `explain`."""
    for paragraph in re.sub(r"\n {4,}(?=\S)", "\1", text).split("\n"):
        line, *meaning = paragraph.split("\1")
        if head := _HEAD.match(line):
            yield from (
                "",
                f"## `{head[1]}`{_choice(head[2])}",
                "",
                prose(head[2] + " ".join(["", *meaning])),
                "",
            )
        elif _LIKE.match(whole := " ".join([line, *meaning])):
            yield from (prose(whole), "")
        elif field := _FIELD.match(line):
            yield from (f"`{field[1]}` = {prose(field[2])}", f":   {prose(' '.join(meaning))}", "")
        elif line.strip():
            raise ValueError(f"unknown line of recipe explain: {line}")


def _choice(description: str) -> str:
    """Return the selector of a table that has alternatives, such as ``: "images"``."""
    selected = re.match(r"\w+ = ([^:]+):", description)
    return f": {selected[1]}" if selected else ""


def summary(text: str, name: str) -> str:
    """Return the first sentence of the comment at the head of a recipe.

    >>> summary("# The network of Le et al. 2012, at\\n# desktop scale. Without labels.\\n", "le2012")
    'The network of Le et al. 2012, at desktop scale.'
    """
    head = "".join(itertools.takewhile(lambda line: line.startswith("# "), text.splitlines(keepends=True)))
    found = _SENTENCE.match(" ".join(line.removeprefix("# ") for line in head.splitlines()))
    if found is None:
        raise SiteError(f"begin {name}.toml with a comment whose first sentence says what the recipe trains")
    return found[0]


def _shipped_page() -> str:
    rows, parts = [], []
    for name in shipped_names():
        recipe = load(name)
        anchor = name.replace(".", "")
        found = str(recipe.data.source or recipe.data.store)
        file = (SOURCE / "recipe" / "shipped" / f"{name}.toml").read_text(encoding="utf-8")
        rows.append(
            [
                f"[`{name}`](#{anchor})",
                prose(summary(file, name)),
                recipe.training.strategy,
                recipe.data.type,
                f"`{found}`",
            ]
        )
        parts.append(f"## `{name}` {{ #{anchor} }}\n\n```toml\n{file.strip()}\n```\n")
    return (
        "# Shipped recipes\n\n"
        "`cotswold train NAME` trains a shipped recipe, and `cotswold recipe show NAME` prints it with "
        "every\n"
        "field. [Get the data sets](../how-to/get-the-data.md) lists the files that the folders in\n"
        "`COTSWOLD_DATA` and `COTSWOLD_IMAGES` have ([environment variables](environment-variables.md)).\n\n"
        + table(["recipe", "what it trains", "strategy", "data", "source"], rows)
        + "\n"
        + "\n".join(parts)
    )
