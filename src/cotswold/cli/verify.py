"""`cotswold verify`.

Knows: what a run and a store consist of, who checks each part. Does not know: how anything is checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Kind = Literal["run", "store"]
Progress = Callable[[int, int], None]
Check = Callable[[Path, Progress], list[str]]
"""What is wrong with one part of a directory, a sentence each."""


def verify(
    path: Path,
    *,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Check everything that a run or a store holds, without training: every byte of every file.

    Of a run: its recipe, environment, events, checkpoints and results. Of a store:
    its manifest, every file, every label. Nothing is changed, and a run may be
    trained meanwhile. Exit code 0: sound; 1: damaged, each damage in a line; 2:
    neither a run nor a store.

    Examples:

      cotswold verify runs/demo
      cotswold verify stores/mine --json

    Parameters
    ----------
    path
        The directory of a run or of a store.
    json_
        Print JSON.
    """
    from cotswold.cli.progress import counting, printable

    kind = kind_of(path)
    told: dict[str, None] = {}  # two checks may meet the same damage
    for name, check in CHECKS[kind].items():
        with counting(f"verifying {name}", "files") as tally:
            told |= dict.fromkeys(check(path, tally))
    findings = list(told)
    if json_:
        print(json.dumps({"path": str(path), "kind": kind, "sound": not findings, "findings": findings}))
    else:
        for finding in findings or [f"{path}: a sound {kind} ({', '.join(CHECKS[kind])})"]:
            print(printable(finding))
    return 1 if findings else 0


def kind_of(path: Path) -> Kind:
    """What a directory holds, by the names in it; raises UserError where it is neither run nor store."""
    from cotswold.errors import UserError

    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if names & {"recipe.toml", "events.jsonl"}:
        return "run"
    if names & {"manifest.json", ".preparing"} and not any(name.endswith(".safetensors") for name in names):
        return "store"
    what = "does not exist" if not path.exists() else "is the directory of neither a run nor a store"
    raise UserError(f"{path} {what}; name a directory that cotswold train or cotswold prepare wrote")


def _recipe(path: Path, _: Progress) -> list[str]:
    from cotswold import recipe
    from cotswold.errors import CotswoldError
    from cotswold.run import RunDirectory

    try:
        recipe.load(RunDirectory.open(path).recipe)
    except CotswoldError as error:
        return [str(error)]
    return []


def _run(path: Path, tell: Progress) -> list[str]:
    from cotswold.run import RunDirectory
    from cotswold.run.verifying import verify_run

    return verify_run(RunDirectory(path.absolute()), tell)


def _results(path: Path, _: Progress) -> list[str]:
    from cotswold.analysis import verify_results

    return verify_results(path)


def _prolonged(path: Path, _: Progress) -> list[str]:
    from cotswold.errors import MachineError
    from cotswold.run import RunDirectory
    from cotswold.training import prolonging

    try:
        prolonging.read(RunDirectory(path.absolute()))
    except MachineError as error:
        return [str(error)]
    return []


def _store(path: Path, tell: Progress) -> list[str]:
    from cotswold.data import verify_store

    return verify_store(path, tell)


CHECKS: dict[Kind, dict[str, Check]] = {
    "run": {
        "recipe": _recipe,
        "epochs": _prolonged,
        "environment, events and checkpoints": _run,
        "results": _results,
    },
    "store": {"manifest, files and labels": _store},
}
