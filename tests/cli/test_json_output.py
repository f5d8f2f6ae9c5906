"""The JSON of every command: one object in one line, with its schema; errors, too."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import FunctionType

import pytest
from rich.table import Table
from tests.cli.test_options_of_every_command import ALL
from tests.support.cli.command import cotswold

from cotswold.cli.main import build
from cotswold.cli.support.json_output import VERSION, print_json

RESULTS = [
    "bench kernels",
    "bench server",
    "cluster explain",
    "cluster status",
    "doctor",
    "evaluate",
    "info",
    "predict",
    "prepare",
    "recipe list",
    "simulate",
    "train",
    "verify",
    "why",
]
"""Commands that print a table, or a result by fields."""


def function_of(words: Sequence[str]) -> FunctionType:
    """Return the function of a command."""
    app = build(words[0])
    for word in words:
        app = app[word]
    assert isinstance(app.default_command, FunctionType)
    return app.default_command


def draws_a_table(function: FunctionType, seen: set[FunctionType]) -> bool:
    """True if a function, or one of the package `cli` that it names, constructs a table of rich."""
    seen.add(function)
    known, names = dict(function.__globals__), set()
    for node in ast.walk(ast.parse(dedent(inspect.getsource(function)))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for each in node.names:
                known[each.asname or each.name] = getattr(import_module(node.module), each.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
    named = [known[name] for name in sorted(names & known.keys())]
    return Table in [each for each in named if isinstance(each, type)] or any(
        isinstance(each, FunctionType)
        and each.__module__.startswith("cotswold.cli")
        and each not in seen
        and draws_a_table(each, seen)
        for each in named
    )


COMMANDS_WITH_JSON = [
    " ".join(words) for words in ALL if "json_" in inspect.signature(function_of(words)).parameters
]


def test_these_commands_have_json() -> None:
    assert COMMANDS_WITH_JSON == RESULTS


def test_every_command_that_draws_a_table_has_json() -> None:
    drawn = {" ".join(words) for words in ALL if draws_a_table(function_of(words), set())}
    assert {"bench server", "evaluate", "info", "simulate"} <= drawn <= {*COMMANDS_WITH_JSON}


def test_numbers_that_json_lacks_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"loss": float("nan"), "rows": [{"rate": float("inf")}, (1.5, -float("inf"))], "at": Path("a")}
    print_json("why", found)
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {
        "schema": "cotswold.why/1",
        "loss": None,
        "rows": [{"rate": None}, [1.5, None]],
        "at": "a",
    }


@pytest.mark.parametrize(
    ("words", "schema"),
    [
        ("recipe list --json", "recipe.list"),
        ("simulate --list --json", "simulate.list"),
        ("simulate coates2013 coates2013-1.8b --grid 2x2 --json", "simulate"),
        (
            "simulate bunyip2000 bunyip-japanese-ocr --ranks 24 --samples 9264000 --outputs 3203 --json",
            "simulate.evaluations",
        ),
        ("info coates2013-1.8b --no-time --json", "info"),
        ("doctor --json", "doctor"),
        ("bench kernels --explain --layer 2,8,8,3,1,1,1,4 --images 2 --threads 1 --json", "bench.explain"),
    ],
)
def test_json_is_one_line_with_a_schema(words: str, schema: str) -> None:
    said = cotswold(*words.split())
    assert said.status == 0 and said.out.count("\n") == 1
    told = json.loads(said.out)
    assert next(iter(told)) == "schema" and told["schema"] == f"cotswold.{schema}/{VERSION}"
    assert len(told) > 1


@pytest.mark.parametrize(
    ("words", "kind", "status"),
    [
        ("info nothing --json", "RecipeError", 2),
        ("why nowhere --json", "RunError", 2),
        ("predict --json", "UsageError", 2),
        ("info demo --json --nonsense", "UsageError", 2),
        ("train demo --json", "UserError", 2),
        ("cluster status --controllers 127.0.0.1:1 --json", "UserError", 2),
    ],
)
def test_an_error_is_json_with_the_same_exit_code(words: str, kind: str, status: int, tmp_path: Path) -> None:
    told = cotswold(*words.split())
    usual = cotswold(*(word for word in words.split() if word != "--json"))
    found = json.loads(told.out)
    assert set(found) == {"schema", "error"} and found["schema"] == f"cotswold.error/{VERSION}"
    assert found["error"]["kind"] == kind and found["error"]["exit_code"] == told.status == status
    assert found["error"]["message"] == told.error
    assert '"schema"' not in usual.out


def test_an_interrupt_and_an_unexpected_error_are_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(error: BaseException) -> None:
        def fails() -> Sequence[str]:
            raise error

        monkeypatch.setattr("cotswold.recipe.shipped_names", fails)

    raises(KeyboardInterrupt())
    said = cotswold("recipe", "list", "--json")
    assert json.loads(said.out)["error"] == {
        "kind": "KeyboardInterrupt",
        "message": "stopped",
        "exit_code": 130,
    }
    raises(ValueError("odd"))
    said = cotswold("recipe", "list", "--json")
    assert said.status == 1 and json.loads(said.out)["error"]["message"].startswith("ValueError: odd")
