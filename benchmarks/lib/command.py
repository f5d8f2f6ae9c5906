"""Run a script of benchmarks/ as a command: options, errors in one sentence, exit codes, tables of spreads.

Knows: the parser, rich, the environment that `cotswold` sets for its own commands. Does not know: what is
measured.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from cotswold.bench.measure import Document
from cotswold.cli.support.tables import table
from cotswold.errors import CotswoldError, UserError
from cotswold.host import wait_settings
from cotswold.recipe import Recipe
from cotswold.ui.terminal import write_message

Flag = Annotated[bool, Parameter(negative=())]
Json = Annotated[bool, Parameter(name="--json", negative=())]
Overrides = Annotated[list[str] | None, Parameter(name="--set", negative=())]
Only = Annotated[list[str] | None, Parameter(negative=())]


def main(script: Callable[..., None], words: Sequence[str] | None = None) -> None:
    """Run a script's only command; exit with 0, or 2 for a user error, 1 for a machine error, 130 for Ctrl-C.

    While it runs, threads wait as they do under `cotswold`, also in the processes that it starts.
    """
    app = App(name=Path(sys.argv[0]).name, help_format="plaintext")
    app.default(script)
    before = dict(os.environ)
    os.environ.update(wait_settings(os.environ))
    try:
        sys.exit(_run(app, words))
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(app: App, words: Sequence[str] | None) -> int:
    try:
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        write_message(str(error))
        return 2
    except CotswoldError as error:
        write_message(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        write_message("stopped")
        return 130
    return 0


def command() -> str:
    """Return the command as it was typed."""
    return shlex.join(["python", *sys.argv])


def spreads(title: str, each: object) -> None:
    """Print a table with one spread per row."""
    assert isinstance(each, Mapping)
    table(title, [{"": name, **spread} for name, spread in each.items()])


def listed(figures: Mapping[str, object]) -> None:
    """Print figures, one per line; nested figures are prefixed with the name of their group."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            listed({f"{name.replace('_', ' ')}, {part}": one for part, one in value.items()})
        else:
            print(f"{name.replace('_', ' ')}: {value}")


def rows(value: object) -> list[Document]:
    """Return the rows of a result."""
    assert isinstance(value, list)
    return value


def check_unvaried(recipe: Recipe, what: str) -> None:
    """Raise UserError for a recipe with augmentation, which ``what`` does not support."""
    if getattr(recipe.data, "augment", None):
        raise UserError(
            f"{recipe.name} has data.augment, but {what} learns from unchanged samples; remove it "
            "(--set data.augment=[])"
        )


def check_stacks(recipe: Recipe) -> None:
    """Raise UserError for a recipe without stacks."""
    if not recipe.network.stacks:
        raise UserError(f"{recipe.name} trains no stacks; use a recipe with strategy greedy or joint")
