"""`cotswold recipe`: shipped recipes and the meaning of their fields.

Knows: the arguments of the command. Does not know: the schema.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from cotswold.cli.support.json_output import Json, print_json

EPILOGUE = """\
Examples:

  cotswold recipe list                     list the shipped recipes

  cotswold recipe show demo > mine.toml    start your own recipe

  cotswold recipe explain                  explain every field

  cotswold recipe explain supervised       explain one strategy
"""
EXPLAIN_EPILOGUE = """\
Examples:

  cotswold recipe explain                  every field

  cotswold recipe explain training         one table, for every strategy

  cotswold recipe explain supervised       one strategy, or one type

  cotswold recipe explain stride           one field, in every table that has it
"""

app = App(
    name="recipe",
    help="Show shipped recipes, explain their fields.",
    help_epilogue=EPILOGUE,
    help_format="plaintext",
)


@app.command(name="list", help_epilogue="")
def list_(*, json_: Json = False) -> None:
    """List the shipped recipes.

    Example: cotswold recipe list

    Parameters
    ----------
    json_
        Print JSON.
    """
    import shutil
    import sys

    from cotswold.phrases import counted
    from cotswold.recipe import load, shipped_names
    from cotswold.ui.terminal import write_note

    rows = [("recipe", "strategy", "data", "where")]
    for name in shipped_names():
        recipe = load(name)
        found = recipe.data.source or recipe.data.store
        rows.append((name, recipe.training.strategy, recipe.data.type, str(found)))
    if json_:
        print_json("recipe.list", {"recipes": [dict(zip(rows[0], each, strict=True)) for each in rows[1:]]})
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    cut = 0
    for *cells, where in rows:
        line = "  ".join([*(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)), where])
        if room is not None and len(line) > room:
            line, cut = f"{line[: room - 1]}…", cut + 1
        print(line)
    if cut:
        write_note(f"{counted(cut, 'line')} cut to {room} columns; --json prints everything")


@app.command(help_epilogue="")
def show(
    recipe: str, *, set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None
) -> None:
    """Print a recipe with every field and its meaning: a starting point for your own.

    Examples:

      cotswold recipe show demo > mine.toml
      cotswold recipe show mine.toml --set training.relative_rate=1

    Parameters
    ----------
    recipe
        A recipe file or the name of a shipped recipe.
    set
        Override a field, as in training.relative_rate=1; may be given again.
    """
    from cotswold.recipe import commented, load
    from cotswold.ui.terminal import write_message

    print(commented(load(recipe, set or [], write_message)), end="")


@app.command(help_epilogue=EXPLAIN_EPILOGUE)
def explain(word: str | None = None) -> None:
    """Explain the fields of a recipe: meaning, type, unit and default.

    Parameters
    ----------
    word
        A table (training, network.stacks), a strategy or type (greedy, vectors), or a field. Default: all.
    """
    from cotswold.recipe import explain as explained

    print(explained(word), end="")
