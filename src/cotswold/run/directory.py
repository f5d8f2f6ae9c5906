"""The directory of a run.

Knows: the names of the files in it. Does not know: what is in them. Creates, never replaces; never changes
the working directory. A copy made while training goes on is a run that was killed at that moment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cotswold.errors import RunError
from cotswold.files.durable import PARTIAL, create_file, disk_errors
from cotswold.files.lock import DirectoryLock


@dataclass(frozen=True)
class RunDirectory:
    """A run on disk. Readers need no lock; whoever writes works inside `with run.lock():`."""

    path: Path

    @classmethod
    def create(cls, path: str | Path, recipe_text: str, environment: Mapping[str, object]) -> RunDirectory:
        """A new run in a directory that is new or empty; raises RunError where something is already there."""
        run = cls(Path(path).absolute())
        with disk_errors(run.path, RunError):
            if run.path.exists() and not run.path.is_dir():
                raise RunError(f"{run.path} is a file; choose another directory for the run")
            run.path.mkdir(parents=True, exist_ok=True)
            if run.recipe.exists():
                raise RunError(_taken(run.path))
            if any(not entry.name.endswith(PARTIAL) for entry in run.path.iterdir()):
                raise RunError(f"{run.path} holds other files; choose a new or empty directory for the run")
            try:
                create_file(run.recipe, recipe_text.encode())
            except FileExistsError as error:
                raise RunError(_taken(run.path)) from error
            create_file(run.path / "environment.json", (json.dumps(environment, indent=1) + "\n").encode())
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """The run in this directory; raises RunError if there is none."""
        run = cls(Path(path).absolute())
        if not run.recipe.is_file():
            raise RunError(f"{run.path} is not the directory of a run: it has no recipe.toml")
        return run

    def lock(self) -> DirectoryLock:
        """The right to write here, for a `with` block; entering raises BusyError if another has it."""
        return DirectoryLock(self.path)

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.toml"

    @property
    def events(self) -> Path:
        """The events, one line each."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of the newest checkpoints."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The folder of the checkpoint with the best validation, for supervised runs."""
        return self.path / "best"

    @property
    def tensorboard(self) -> Path:
        """The folder that TensorBoard reads."""
        return self.path / "tensorboard"

    @property
    def evaluation(self) -> Path:
        """The selectivity of the neurons."""
        return self.path / "evaluation.json"

    @property
    def classification(self) -> Path:
        """How a supervised network classified the test pictures."""
        return self.path / "classification.json"

    @property
    def report(self) -> Path:
        """The page that shows it all."""
        return self.path / "report.html"

    def environment(self) -> dict[str, object]:
        """Versions and machine when the run began; empty if the run was killed before it wrote them."""
        try:
            content: dict[str, object] = json.loads((self.path / "environment.json").read_text())
        except FileNotFoundError:
            return {}
        return content


def _taken(path: Path) -> str:
    return f"{path} already holds a run; resume it with --resume, or choose another directory"
