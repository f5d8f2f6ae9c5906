"""Verification of a run, a store or a backup of parameter servers.

Knows: the parts of each, the function that checks each part. Does not know: the checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cotswold.api.run import Run
from cotswold.ui.display import display_for

Kind = Literal["run", "store", "backup"]
Progress = Callable[[int, int], None]
Check = Callable[[Path, Progress], list[str]]
"""Returns a sentence for each fault in a part of a directory."""


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Args:
        path: The directory.
        kind: "run", "store" or "backup".
        checked: Names of the checked parts.
        findings: One sentence per fault; empty for an intact directory.
    """

    path: Path
    kind: Kind
    checked: tuple[str, ...]
    """Names of the checked parts."""
    findings: tuple[str, ...]
    """One sentence per fault; empty for an intact directory."""

    @property
    def is_valid(self) -> bool:
        """True if no fault was found."""
        return not self.findings


def verify(path: str | Path | Run, *, progress: bool | None = None) -> Verification:
    """Check every byte of a run, a store or a backup against its checksums.

    For a run, these are its recipe, environment, events, checkpoints and results; for a store its manifest,
    files and labels; for a backup written by `cotswold cluster backup` its buckets and checkpoints. Nothing
    is changed, and a run may be in progress.

    Args:
        path: The directory, or a `Run`.
        progress: Show progress. [if on a terminal or in a notebook]

    Raises:
        UserError: if the directory is none of these.
    """
    place = path.path if isinstance(path, Run) else Path(path)
    kind, display = _kind_of(place), display_for(progress)
    told: dict[str, None] = {}  # two checks may find the same fault
    for name, check in CHECKS[kind].items():
        with display.count(f"verifying {name}", "files") as advance:
            told |= dict.fromkeys(check(place, advance))
    return Verification(place, kind, tuple(CHECKS[kind]), tuple(told))


def _kind_of(path: Path) -> Kind:
    """Return the kind of a directory, from the names in it. Raises UserError for other directories."""
    from cotswold.api.servers.backups import FILE
    from cotswold.errors import UserError

    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if FILE in names:
        return "backup"
    if {"names.json", "events.jsonl"} <= names:
        raise UserError(
            f"{path} is the folder of a host of parameter servers, which verify their own files; "
            "use cotswold cluster backup and verify the backup"
        )
    if names & {"recipe.toml", "events.jsonl"}:
        return "run"
    if names & {"manifest.json", ".preparing"} and not any(name.endswith(".safetensors") for name in names):
        return "store"
    what = "does not exist" if not path.exists() else "is neither a run nor a store"
    raise UserError(
        f"{path} {what}; give a directory written by cotswold train, cotswold prepare or cotswold cluster "
        "backup"
    )


def _recipe(path: Path, _: Progress) -> list[str]:
    from cotswold import recipe
    from cotswold.errors import CotswoldError, UnknownStrategyError
    from cotswold.run import RunDirectory

    try:
        recipe.load(RunDirectory.open(path).recipe)
    except UnknownStrategyError:  # a package that is not installed here; nothing is damaged
        return []
    except CotswoldError as error:
        return [str(error)]
    return []


def _run(path: Path, tell: Progress) -> list[str]:
    from cotswold.run import RunDirectory
    from cotswold.run.verify import verify_run

    return verify_run(RunDirectory(path.absolute()), tell)


def _results(path: Path, _: Progress) -> list[str]:
    from cotswold.analysis import verify_results

    return verify_results(path)


def _extended(path: Path, _: Progress) -> list[str]:
    from cotswold.errors import MachineError
    from cotswold.run import RunDirectory
    from cotswold.training.jobs import extend

    try:
        extend.read(RunDirectory(path.absolute()))
    except MachineError as error:
        return [str(error)]
    return []


def _store(path: Path, tell: Progress) -> list[str]:
    from cotswold.data import verify_store

    return verify_store(path, tell)


def _backup(path: Path, tell: Progress) -> list[str]:
    from cotswold.api.servers.backups import verify_backup

    return verify_backup(path, tell)


CHECKS: dict[Kind, dict[str, Check]] = {
    "run": {
        "recipe": _recipe,
        "epochs": _extended,
        "environment, events and checkpoints": _run,
        "results": _results,
    },
    "store": {"manifest, files and labels": _store},
    "backup": {"buckets and checkpoints": _backup},
}
