"""Loggers by name: built-in ones, those of other packages, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from cotswold.errors import MissingExtraError, UserError
from cotswold.run.loggers import registry
from cotswold.run.loggers.context import LoggerContext


class Kept:
    """A logger of another package."""

    name = "kept"

    def __init__(self, context: LoggerContext) -> None:
        self.context = context

    def write(self, event: Mapping[str, object]) -> None:
        """Drop it."""

    def close(self) -> None:
        """Do nothing."""


def broken(context: LoggerContext) -> object:
    raise ValueError("no")


def nothing(context: LoggerContext) -> None:
    return None


NOT_A_FUNCTION = 3
RECIPE = {"name": "x", "training": {"epochs": 2, "schedule": "linear"}}


def context(run: Path) -> LoggerContext:
    return LoggerContext(run, "0" * 16, RECIPE, "", {})


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str, value: str) -> EntryPoint:
        return EntryPoint(name, f"{__name__}:{value}", registry.GROUP)

    known = EntryPoints(
        [
            *(found(each, each) for each in ("broken", "nothing", "missing")),
            found("kept", "Kept"),
            found("number", "NOT_A_FUNCTION"),
            found("twice", "Kept"),
            found("twice", "broken"),
        ]
    )
    monkeypatch.setattr(registry, "entry_points", lambda **words: known.select(**words))


def test_a_logger_of_another_package_is_an_entry_point(points: None, tmp_path: Path) -> None:
    registry.check_loggers(["kept", "csv"])
    kept, table = registry.open_loggers(["kept", "csv", "kept"], context(tmp_path))
    assert isinstance(kept, Kept) and kept.context.settings["training.epochs"] == 2
    assert (table.name, kept.context.name) == ("csv", tmp_path.name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wandbb", "unknown logger 'wandbb'; did you mean 'wandb'"),
        ("broken", r"the logger 'broken' cannot be opened \(ValueError: no"),
        ("nothing", r"None is not a logger; give an object with name, write\(event\) and close\(\)"),
        ("missing", "the entry point 'missing' of cotswold.loggers, .* cannot be loaded"),
        ("number", "'number' of cotswold.loggers, .* is 3, not a function of a LoggerContext"),
        ("twice", "several packages register logger 'twice'"),
    ],
)
def test_a_logger_that_cannot_be_made_is_refused(
    points: None, name: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        registry.open_loggers([name], context(tmp_path))


@pytest.mark.parametrize("given", [Kept, print, "csv", type("Nameless", (Kept,), {"name": 3})(None)])
def test_an_object_that_is_no_logger_is_refused(given: object) -> None:
    with pytest.raises(UserError, match="is not a logger; give an object with name"):
        registry.check_observers([given])


def test_a_missing_package_matters_only_if_its_logger_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def absent(name: str) -> Any:
        return None

    monkeypatch.setattr(registry, "find_spec", absent)
    assert registry.open_loggers(None, context(tmp_path)) == []
    for name, extra in (("tensorboard", "tensorboard"), ("wandb", "loggers"), ("mlflow", "loggers")):
        with pytest.raises(MissingExtraError, match=rf"'{name}' needs {name}, .*install '\.\[{extra}\]'"):
            registry.check_loggers([name])
    registry.check_loggers(["csv"])
