"""Check everything in a run's directory that can be checked without training.

Knows: checkpoints, their identity, events, the environment; that another process may train here meanwhile.
Does not know: results of analyses, the terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cotswold.checkpoint.chunk_file import verify_chunk
from cotswold.checkpoint.manager import CheckpointManager
from cotswold.checkpoint.manifest import Manifest
from cotswold.errors import CotswoldError
from cotswold.files import MalformedError, read_object
from cotswold.run.directory import RunDirectory
from cotswold.run.events import read_events

Progress = Callable[[int, int], None]
"""Callback with the number of checked files and of all files."""


def verify_run(run: RunDirectory, progress: Progress | None = None) -> list[str]:
    """Return the damages of a run, one sentence each with the file; empty if all is intact.

    Reads every byte of every checkpoint.
    """
    findings = _environment(run)
    paths: list[Path] = []
    for folder in (run.checkpoints, run.best):
        try:
            paths += CheckpointManager(folder).paths()
        except CotswoldError as error:
            findings.append(str(error))
    findings += _events(run, bool(paths))
    files = {path: len(list(path.glob("*.safetensors"))) for path in paths}
    done = 0
    identity = None
    try:
        identity = run.identity
    except CotswoldError as error:
        findings.append(str(error))
    for path in paths:

        def on_checked(checked: int, before: int = done) -> None:
            if progress is not None:
                progress(min(before + checked, sum(files.values())), sum(files.values()))

        findings += verify_checkpoint(path, identity, on_checked)
        done += files[path]
    return findings


def _environment(run: RunDirectory) -> list[str]:
    path = run.path / "environment.json"
    try:
        read_object(path)
    except FileNotFoundError:
        return [f"{path} is missing; a report cannot show the environment of the run"]
    except (OSError, MalformedError) as error:
        return [_damaged(path, error)]
    return []


def _events(run: RunDirectory, wanted: bool) -> list[str]:
    """Read every line, and check that the newest checkpoint of the events exists."""
    if not run.events.exists():
        return [f"{run.events} is missing"] if wanted else []
    saved: object = None
    try:
        for event in read_events(run.events):
            saved = event.get("path") if event.get("kind") == "checkpoint" else saved
    except (CotswoldError, OSError) as error:
        return [_damaged(run.events, error)]
    places = [folder / str(saved) for folder in (run.checkpoints, run.best)]
    if saved is None or any(place.is_dir() for place in places):
        return []
    return [f"{places[0]}, which {run.events.name} names as the newest checkpoint, is missing"]


def verify_checkpoint(
    path: Path, identity: str | None, on_checked: Callable[[int], None] = lambda checked: None
) -> list[str]:
    """Return the damages of a checkpoint; empty if a newer one replaced it meanwhile."""
    findings = []
    try:
        manifest = Manifest.read(path)
    except CotswoldError as error:
        return [str(error)] if path.exists() else []
    if identity is not None and manifest.identity != identity:
        findings.append(f"{path} is a checkpoint of another run or recipe; move it out of this directory")
    for checked, record in enumerate(manifest.chunks, 1):
        try:
            verify_chunk(path, record)
        except CotswoldError as error:
            findings.append(str(error))
        on_checked(checked)
    return findings if path.exists() else []


def _damaged(path: Path, error: Exception) -> str:
    """Return a sentence about damage that names the file."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return said if str(path) in said else f"{path} is damaged: it {said}"
