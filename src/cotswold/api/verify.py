"""Whether a run, a store or a backup of parameter servers is sound.

Knows: what each of these consists of, who checks each part. Does not know: how anything is checked.
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
"""What is wrong with one part of a directory, a sentence each."""


@dataclass(frozen=True)
class Verification:
    """What was found of a directory."""

    path: Path
    kind: Kind
    checked: tuple[str, ...]
    """The parts that were looked at."""
    findings: tuple[str, ...]
    """What is damaged, a sentence each; none where it is sound."""

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings


def verify(path: str | Path | Run, *, progress: bool | None = None) -> Verification:
    """Check every byte of a run, a store or a backup against its checksums, without training.

    Of a run: its recipe, environment, events, checkpoints and results. Of a store: its manifest, every file,
    every label. Of a backup that `cotswold cluster backup` wrote: every bucket, every checkpoint. Nothing is
    changed, and a run may be trained meanwhile. Raises UserError for a directory that is none of these.
    """
    place = path.path if isinstance(path, Run) else Path(path)
    kind, display = _kind_of(place), display_for(progress)
    told: dict[str, None] = {}  # two checks may meet the same damage
    for name, check in CHECKS[kind].items():
        with display.counting(f"verifying {name}", "files") as advance:
            told |= dict.fromkeys(check(place, advance))
    return Verification(place, kind, tuple(CHECKS[kind]), tuple(told))


def _kind_of(path: Path) -> Kind:
    """What a directory holds, by the names in it; raises UserError where it is none of these."""
    from cotswold.api.servers.backups import FILE
    from cotswold.errors import UserError

    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if FILE in names:
        return "backup"
    if {"names.json", "events.jsonl"} <= names:
        raise UserError(
            f"{path} is the folder of a host of parameter servers, which check what they read themselves; "
            "what cotswold cluster backup writes can be verified"
        )
    if names & {"recipe.toml", "events.jsonl"}:
        return "run"
    if names & {"manifest.json", ".preparing"} and not any(name.endswith(".safetensors") for name in names):
        return "store"
    what = "does not exist" if not path.exists() else "is the directory of neither a run nor a store"
    raise UserError(
        f"{path} {what}; name a directory that cotswold train or cotswold prepare wrote, or cotswold cluster "
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


def _prolonged(path: Path, _: Progress) -> list[str]:
    from cotswold.errors import MachineError
    from cotswold.run import RunDirectory
    from cotswold.training.jobs import extend as prolonging

    try:
        prolonging.read(RunDirectory(path.absolute()))
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
        "epochs": _prolonged,
        "environment, events and checkpoints": _run,
        "results": _results,
    },
    "store": {"manifest, files and labels": _store},
    "backup": {"buckets and checkpoints": _backup},
}
