"""The loggers with a name, of this package and of others.

Knows: names, the packages that loggers need, entry points. Does not know: what a logger writes.

Another package registers a logger as an entry point of the group `cotswold.loggers`: a name, and a function
of a `LoggerContext` that returns an `Observer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import cast

from cotswold.errors import MissingExtraError, RecipeError, UserError, describe_exception, install
from cotswold.host.processes import import_function
from cotswold.run.events import Observer
from cotswold.run.loggers.context import LoggerContext

GROUP = "cotswold.loggers"
MakeLogger = Callable[[LoggerContext], Observer]


@dataclass(frozen=True)
class LoggerEntry:
    """A built-in logger: the function that makes it, and the package that it needs."""

    function: str
    """``"module:function"``."""
    package: str = ""
    extra: str = ""


_HERE = "cotswold.run.loggers"
LOGGERS: Mapping[str, LoggerEntry] = {
    "csv": LoggerEntry(f"{_HERE}.csv_file:csv_logger"),
    "mlflow": LoggerEntry(f"{_HERE}.mlflow:mlflow_logger", "mlflow", "loggers"),
    "tensorboard": LoggerEntry(f"{_HERE}.tensorboard:tensorboard_logger", "tensorboard", "tensorboard"),
    "tensorboard+histograms": LoggerEntry(
        f"{_HERE}.tensorboard:tensorboard_with_histograms", "tensorboard", "tensorboard"
    ),
    "wandb": LoggerEntry(f"{_HERE}.wandb:wandb_logger", "wandb", "loggers"),
}
"""The built-in loggers."""
DEFAULT = ("tensorboard",)
"""The loggers of a recipe that names none, as far as their packages are installed."""


def check_loggers(names: Iterable[str]) -> None:
    """Raise an error for loggers that cannot be made.

    Args:
        names: Names of loggers.

    Raises:
        RecipeError: If a name is unknown, or an entry point is broken.
        MissingExtraError: If the package of a logger is not installed.
    """
    for name in names:
        _entry(name)


def open_loggers(names: Iterable[str] | None, context: LoggerContext) -> list[Observer]:
    """Return the loggers of a run.

    Args:
        names: Names of loggers; None for the default ones that are installed.
        context: The run.

    Raises:
        RecipeError: If a logger of another package cannot be made.
        MissingExtraError: If the package of a logger is not installed.
    """
    if names is None:
        names = [name for name in DEFAULT if find_spec(LOGGERS[name].package)]
    return [_made(name, _entry(name), context) for name in dict.fromkeys(names)]


def _made(name: str, make: MakeLogger, context: LoggerContext) -> Observer:
    try:
        found = make(context)
    except UserError:
        raise
    except Exception as error:  # any exception is the package's
        raise RecipeError(
            f"the logger {name!r} cannot be opened ({describe_exception(error)}); fix its package, or omit "
            "it from training.loggers"
        ) from error
    check_observers([found])
    return found


def check_observers(given: Iterable[object]) -> None:
    """Raise UserError for objects that are no loggers.

    Args:
        given: The objects.
    """
    for each in given:
        if isinstance(each, type) or not isinstance(each, Observer) or not isinstance(each.name, str):
            raise UserError(
                f"{each!r:.80} is not a logger; give an object with name, write(event) and close(), as "
                "cotswold.run.events.Observer"
            )


def _entry(name: str) -> MakeLogger:
    known = LOGGERS.get(name)
    if known is not None:
        if known.package and find_spec(known.package) is None:
            raise MissingExtraError(
                f"the logger {name!r} needs {known.package}, which is not installed; run "
                f"{install(known.extra)}, or omit it from training.loggers"
            )
        return cast(MakeLogger, import_function(known.function))
    points = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not points:
        names = sorted({*LOGGERS, *entry_points(group=GROUP).names})
        close = get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ";"
        raise RecipeError(f"unknown logger {name!r:.80}{hint} use one of {', '.join(names)}")
    if len(points) > 1:
        raise RecipeError(
            f"several packages register logger {name!r}: {', '.join(sorted(points))}; keep only one of them"
        )
    return _loaded(next(iter(points.values())))


def _loaded(point: EntryPoint) -> MakeLogger:
    where = f"the entry point {point.name!r} of {GROUP}, {point.value},"
    try:
        found = point.load()
    except Exception as error:  # any exception is the package's
        raise RecipeError(
            f"{where} cannot be loaded ({type(error).__name__}: {error}); fix or remove that package"
        ) from error
    if not callable(found):
        raise RecipeError(f"{where} is {found!r:.80}, not a function of a LoggerContext")
    return cast(MakeLogger, found)
