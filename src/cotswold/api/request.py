"""A request for training, as the caller expressed it.

Knows: the arguments of a run, and the command line that repeats them. Does not know: the training.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cotswold.api.run import Run
from cotswold.errors import UserError
from cotswold.recipe import Recipe
from cotswold.recipe.toml import value_text

if TYPE_CHECKING:
    from cotswold.geometry import Grid
    from cotswold.training.components import Components

Resumed = bool | Literal["if_started"]
GRID = "mesh.grid="
_FACTORY = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True)
class Request:
    """A recipe (a file or a shipped name), a run's directory, and further options."""

    recipe: str | None
    directory: Path | None
    overrides: list[str]
    stores: Path | None
    resume: Resumed
    start_time: float = field(default_factory=time.monotonic)
    """Time of the request, from which the run's duration is counted, seconds."""
    components: Components | None = None
    """Objects of the program in addition to the recipe."""


@dataclass(frozen=True)
class RecipeLaunch:
    """The command line for the ranks of a grid."""

    request: Request
    run: Path
    grid: Grid
    """The grid of each replica."""
    module = "cotswold.cli.main"
    environment: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, *, is_restart: bool, quiet: bool) -> list[str]:
        """Return the arguments of a rank; with ``is_restart`` it resumes the started run."""
        request = self.request
        words = ["train", *([] if request.recipe is None else [request.recipe]), "--run", str(self.run)]
        others = [one for one in request.overrides if not one.startswith(GRID)]
        for override in [*others, f'{GRID}"{self.grid}"']:
            words += ["--set", override]
        if request.stores is not None:
            words += ["--stores", str(request.stores)]
        if quiet:
            words += ["--quiet"]
        if is_restart or request.resume == "if_started":
            return [*words, "--resume-if-started"]
        return [*words, "--resume"] if request.resume else words


def is_factory(given: object) -> bool:
    """True if ``given`` is the name of a function, `package.module:function`, instead of a recipe."""
    return isinstance(given, str) and _FACTORY.fullmatch(given) is not None


def override_list(overrides: Mapping[str, object] | Sequence[str]) -> list[str]:
    """Return overrides as `section.key=value`.

    None as a value of a mapping removes a field; a nested mapping contains the fields of a section.
    """
    if isinstance(overrides, str):
        raise UserError(f'overrides={overrides!r} is a str; give a list, ["{overrides}"], or a mapping')
    if not isinstance(overrides, Mapping):
        return list(overrides)
    return [f"{name}={'' if value is None else _text(value)}" for name, value in _flat(overrides)]


def _flat(overrides: Mapping[str, object], section: str = "") -> Iterator[tuple[str, object]]:
    for name, value in overrides.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


def _text(value: object) -> str:
    return value_text(str(value) if isinstance(value, Path) else value)


@contextmanager
def recipe_name(recipe: str | Path | Recipe | None) -> Iterator[str | None]:
    """Yield a recipe as a file or a shipped name; an object is written to a temporary file."""
    if not isinstance(recipe, Recipe):
        yield None if recipe is None else str(recipe)
        return
    from cotswold.recipe import dump

    with tempfile.TemporaryDirectory(prefix="cotswold-") as folder:
        file = Path(folder) / f"{recipe.name}.toml"
        file.write_text(dump(recipe), encoding="utf-8")
        yield str(file)


def directory_as_written(directory: str | Path | Run | None) -> Path | None:
    """Return a run's directory as the caller wrote it."""
    if directory is None:
        return None
    return directory.path if isinstance(directory, Run) else Path(directory)
