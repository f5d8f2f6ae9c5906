"""The page of JSON output: the commands that have ``--json``, and the names and versions of their schemas.

Knows: the content of each schema in words. Does not know: who prints one; the build fails if the source
prints another, or if a command with the option has none.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields

from cyclopts import App
from docs.generator.errors import SiteError
from docs.generator.reference.text import SOURCE, table

from cotswold import Why
from cotswold.api.servers.cluster_admin import Explained, Overview
from cotswold.cli.main import COMMANDS, build
from cotswold.cli.support.failures import failure_of
from cotswold.cli.support.json_output import schema_of
from cotswold.data import Summary
from cotswold.errors import RecipeError
from cotswold.recipe import load

CONTENTS = {
    "prepare": {"prepare": "The prepared store."},
    "recipe list": {"recipe.list": "The shipped recipes."},
    "train": {
        "train.plan": "With `--dry-run`: the plan of the run. Its fields depend on the strategy. Without "
        "`--dry-run`, `--json` is an error; `events.jsonl` has the [events](events.md) of a run."
    },
    "why": {"why": "The state of a run, and the stacks of its processes with `--stacks`."},
    "evaluate": {
        "evaluate": "A selectivity, a classification or a regression, with the fields of the Python result."
    },
    "predict": {
        "predict": "One line for each sample and class, or for each sample and output of a regression. The "
        "first field is named after the data: `image`, `vector`, `frame` or `row`. The others are `class` "
        "and `probability`, or `number` and `value`."
    },
    "verify": {"verify": "The faults of a run, of a store or of a backup."},
    "cluster status": {"cluster.status": "The state of a cluster, and the reports of its servers."},
    "cluster explain": {
        "cluster.buckets": "Without a bucket: the names of all buckets.",
        "cluster.explain": "With a bucket: its copies, their servers and its events.",
    },
    "doctor": {"doctor": "The facts about this machine, each with its status and remedy."},
    "info": {
        "info": "Sizes and times of a recipe's layers, and their totals. The name of a field ends with its "
        "unit, such as `_bytes`.",
        "info.store": "For a store: its contents and its preparation.",
    },
    "simulate": {
        "simulate": "The predicted steps on each grid.",
        "simulate.evaluations": "For strategy `batch`: the predicted evaluations by each number of workers.",
        "simulate.list": "With `--list`: the shipped clusters.",
    },
    "bench kernels": {
        "bench.kernels": "The measurements, with the command, the commit and the machine.",
        "bench.explain": "With `--explain`: the kernel of each product, and the reason for it.",
    },
    "bench server": {
        "bench.server": "The measurements, with the command, the commit and the machine.",
        "bench.server-trace": "With `--trace`: the same for the requests of a run.",
        "bench.server-copies": "With `--copies`: the same for each number of copies.",
    },
}
"""Content of each schema, by command."""

ERROR = "error"
"""Name of the schema of errors, which every command prints."""

_RESULTS: Mapping[str, type[Summary | Why | Overview | Explained]] = {
    "prepare": Summary,
    "why": Why,
    "cluster.status": Overview,
    "cluster.explain": Explained,
}
"""Classes whose fields are those of a schema."""
_WRITERS = {"print_json": (0, ""), "write_result": (1, "bench.")}
"""Functions that print JSON: index of the argument with the name of the schema, and prefix of the name."""
_PLACE = "docs/generator/reference/json_output.py"


def json_page() -> str:
    """Return the page; raises SiteError if the source and `CONTENTS` differ."""
    printed = schemas()
    check(printed)
    rows = [
        [
            f"[`cotswold {command}`](commands/{command.partition(' ')[0]}.md)",
            f"`{schema_of(name)}`",
            meaning,
            ", ".join(f"`{each}`" for each in _fields(name, printed[name])),
        ]
        for command, contents in CONTENTS.items()
        for name, meaning in contents.items()
    ]
    words, example = _example()
    return (
        "# JSON output\n\n"
        "With `--json` a command prints one JSON object in one line to the standard output. `cotswold\n"
        "predict` prints several such lines. Progress, notes and warnings are on the standard error.\n"
        "A number that JSON lacks, such as infinity, is `null`.\n\n"
        "The first field, `schema`, has the name and the version of the object's schema. The version\n"
        "increases if a field changes its meaning or disappears. A new field does not change it, so ignore\n"
        "fields that you do not know.\n\n"
        "## Commands\n\n"
        "The last column lists the fields that the source names. An object may have others.\n\n"
        + table(["command", "schema", "content", "fields"], rows)
        + "\n## Errors\n\n"
        f"If an error ends a command, the object has the schema `{schema_of(ERROR)}`. For example,\n"
        f"`cotswold {words}` prints:\n\n```json\n{example}\n```\n\n"
        "`kind` is the class of the [exception](errors-and-exit-codes.md), or `UsageError` if the command\n"
        "line is not valid. `message` is the sentence that the command also prints on the standard error.\n"
        "`exit_code` is the exit code of the command.\n\n"
        "`cotswold verify` and `cotswold doctor` exit with 1 if they find a fault. This is a result, not an\n"
        "error: the object has their own schema.\n"
    )


def check(printed: dict[str, list[str]]) -> None:
    """Raise SiteError if commands or schemas of the source and those of `CONTENTS` differ."""
    _compare("commands with --json", set(commands()), set(CONTENTS))
    known = {name for contents in CONTENTS.values() for name in contents}
    _compare("schemas", set(printed), known | {ERROR})


def _compare(what: str, found: set[str], known: set[str]) -> None:
    if missing := sorted(found - known):
        raise SiteError(f"state the content of {what} {', '.join(missing)} in {_PLACE}")
    if unused := sorted(known - found):
        raise SiteError(f"remove {what} {', '.join(unused)}, which the source does not have, from {_PLACE}")


def commands() -> Iterator[str]:
    """Yield the commands that have ``--json``."""
    for name in COMMANDS:
        yield from _commands(build(name)[name], name)


def _commands(app: App, words: str) -> Iterator[str]:
    command = app.default_command
    if command is not None and "json_" in inspect.signature(command).parameters:
        yield words
    for name in app:
        if name not in (*app.help_flags, *app.version_flags):
            yield from _commands(app[name], f"{words} {name}")


def schemas() -> dict[str, list[str]]:
    """Return the names of the schemas that the commands print, with the fields that the source names."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for file in sorted((SOURCE / "cli").rglob("*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and function.name not in _WRITERS:
                for name, names in _printed(function, file.name):
                    found[name].update(dict.fromkeys(names))
    return {name: list(names) for name, names in found.items()}


def _printed(function: ast.FunctionDef, file: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the schemas that a function prints, each with the keys of the object in the source."""
    assigned = {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def value(node: ast.expr) -> ast.expr:
        return assigned.get(node.id, node) if isinstance(node, ast.Name) else node

    def keys(node: ast.expr) -> Iterator[str]:
        if isinstance(node, ast.Dict):
            for key, inside in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value)
                elif key is None:
                    yield from keys(value(inside))

    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _WRITERS:
            place, before = _WRITERS[call.func.id]
            names = list(_texts(value(call.args[place])))
            if not names:
                raise SiteError(f"{file}: write the name of the schema in {function.name} as a literal")
            content = [] if before else list(keys(value(call.args[place + 1])))
            yield from ((before + name, content) for name in names)


def _texts(node: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression of literals and conditions can be."""
    if isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _fields(name: str, written: list[str]) -> list[str]:
    """Return the fields of a schema."""
    known = [each.name for each in fields(_RESULTS[name])] if name in _RESULTS else []
    return list(dict.fromkeys([*known, *written]))


def _example() -> tuple[str, str]:
    """Return a command line with a mistake, and its JSON."""
    field = "training.epoch=3"
    try:
        load("demo", [field])
    except RecipeError as error:
        found = {"schema": schema_of(ERROR), "error": failure_of(error).as_dict()}
        return f"info demo --set {field} --json", json.dumps(found)
    raise SiteError(f"{field} is a field of recipes now; take another one for the example in {_PLACE}")
