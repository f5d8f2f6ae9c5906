"""`cotswold recipe`: shipped recipes and the meaning of their fields.

Knows: the words of the command. Does not know: the schema.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

EPILOGUE = """\
Examples:

  cotswold recipe list                     the names of the shipped recipes

  cotswold recipe show demo > mine.toml    to begin one's own

  cotswold recipe explain                  what every field means
"""

app = App(
    name="recipe",
    help="Show shipped recipes, explain their fields.",
    help_epilogue=EPILOGUE,
    help_format="plaintext",
)


@app.command(name="list", help_epilogue="")
def list_() -> None:
    """List the shipped recipes.

    Example: cotswold recipe list
    """
    from cotswold.recipe import load, shipped

    for name in shipped():
        recipe = load(name)
        print(f"{name:18} {recipe.training.strategy:11} {recipe.data.source or recipe.data.store}")


@app.command(help_epilogue="")
def show(
    recipe: str, *, set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None
) -> None:
    """Print a recipe with every field and its meaning; a good beginning for one's own.

    Examples:

      cotswold recipe show demo > mine.toml
      cotswold recipe show mine.toml --set training.relative_rate=1

    Parameters
    ----------
    recipe
        A recipe file or the name of a shipped recipe.
    set
        Overrides a field, as in training.relative_rate=1; may be given again.
    """
    from cotswold.api.progress import say
    from cotswold.recipe import commented, load

    print(commented(load(recipe, set or [], say)), end="")


@app.command(help_epilogue="")
def explain() -> None:
    """Explain every field of a recipe: its meaning, type, unit and default.

    Example: cotswold recipe explain
    """
    from cotswold.recipe import explain as explained

    print(explained())
