"""The directory of a run.

Knows: the names of the files in it, what the run is called. Does not know: what else is in them. Creates,
never replaces, but for what the run remembers and for a run that never began; follows no links; never changes
the working directory. A copy made while training goes on is a run that was killed at that moment.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cotswold.errors import BusyError, CotswoldError, MachineError, RunError
from cotswold.files import (
    FREE_AND_REPEAT,
    PARTIAL,
    DirectoryLock,
    MalformedError,
    create_file,
    disk_errors,
    open_reading,
    read_object,
    replace_file,
)
from cotswold.run import run_file
from cotswold.run.events import read_events
from cotswold.run.run_file import Record

_ENVIRONMENT = "environment.json"
_ENVIRONMENT_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class RunDirectory:
    """A run on disk. Readers need no lock; whoever writes works inside `with run.lock():`."""

    path: Path
    known_as: str | None = None
    """Its id when it was begun, or opened to be resumed; None where nobody has looked."""

    @classmethod
    def begin(cls, path: str | Path, recipe_text: str, environment: Mapping[str, object]) -> RunDirectory:
        """As `create`, also in the place of a run that has not begun; BusyError where it is being trained."""
        run = cls(Path(path).absolute())
        if not run.is_unbegun:
            return cls.create(path, recipe_text, environment).recognised()
        with run.lock(), disk_errors(run.path, RunError, FREE_AND_REPEAT):
            if not run.is_unbegun:  # another command was quicker
                raise RunError(_taken(run.path))
            for left in (run.tensorboard, run.checkpoints, run.best):
                if left.exists():
                    shutil.rmtree(left)
            run.events.unlink(missing_ok=True)
            # the recipe is there all the time, for without it the directory holds no run
            Record.new().replace(run.path)
            replace_file(run.recipe, recipe_text.encode())
            replace_file(run.path / _ENVIRONMENT, _plain(environment))
            return run.recognised()

    @classmethod
    def create(cls, path: str | Path, recipe_text: str, environment: Mapping[str, object]) -> RunDirectory:
        """A new run in a directory that is new or empty; raises RunError where something is already there."""
        run = cls(Path(path).absolute())
        with disk_errors(run.path, RunError, FREE_AND_REPEAT):
            if run.path.exists() and not run.path.is_dir():
                raise RunError(f"{run.path} is a file; choose another directory for the run")
            run.path.mkdir(parents=True, exist_ok=True)
            if run.recipe.exists():
                raise RunError(_taken(run.path))
            # a record without a recipe is what was left of one that was killed here
            names = {entry.name for entry in run.path.iterdir()} - {run_file.NAME}
            if any(not name.endswith(PARTIAL) for name in names):
                raise RunError(f"{run.path} holds other files; choose a new or empty directory for the run")
            Record.new().create(run.path)  # first, for with its recipe the run is there
            try:
                create_file(run.recipe, recipe_text.encode())
            except FileExistsError as error:
                raise RunError(_taken(run.path)) from error
            create_file(run.path / _ENVIRONMENT, _plain(environment))
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """The run in this directory; raises RunError if there is none."""
        run = cls(Path(path).absolute())
        try:
            open_reading(run.recipe).close()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RunError(f"{run.path} is not the directory of a run: it has no recipe.toml") from error
        except OSError as error:
            raise RunError(f"{run.recipe} cannot be read: {error.strerror}") from error
        return run

    def recognised(self) -> RunDirectory:
        """The same, for `check_known`; raises as `identity`."""
        return replace(self, known_as=self.identity)

    def check_known(self) -> None:
        """Raise BusyError where another command has begun a run in the place of this one; call it inside the
        lock."""
        if self.known_as not in (None, self.identity):
            raise BusyError(
                f"another command has begun a run in {self.path} meanwhile; choose another directory"
            )

    @property
    def is_unbegun(self) -> bool:
        """Whether a run is here that took no step and has no checkpoint: there is nothing in it to lose.

        Whoever wants to rely on it holds the lock. What cannot be read is no such run.
        """
        from cotswold.checkpoint import Checkpoints  # readers of a run do not pay for torch

        try:
            return (
                self.recipe.is_file()
                and Record.read(self.path) is not None
                and not any(Checkpoints(each).paths() for each in (self.checkpoints, self.best))
                and not (
                    self.events.exists() and any(each["kind"] == "step" for each in read_events(self.events))
                )
            )
        except (CotswoldError, OSError):
            return False

    def lock(self) -> DirectoryLock:
        """The right to write here, for a `with` block; entering raises BusyError if another has it."""
        return DirectoryLock(self.path)

    @property
    def identity(self) -> str:
        """The run's id, which its checkpoints bear.

        Raises as :meth:`Record.read`, and MachineError if the record is missing.
        """
        return self._record().identity

    @property
    def remembered(self) -> list[str]:
        """Overrides of the recipe that were given when the run was last resumed, and hold until others are;
        raises as `identity`."""
        return [f"{name}={value}" for name, value in self._record().remembered.items()]

    def remember(self, fields: Mapping[str, str]) -> None:
        """Keep fields of the recipe, as TOML values by dotted name, in the place of those kept before."""
        kept = self._record()
        if dict(fields) != dict(kept.remembered):
            with disk_errors(self.path / run_file.NAME, MachineError):
                replace(kept, remembered=fields).replace(self.path)

    def _record(self) -> Record:
        found = Record.read(self.path)
        if found is None:
            raise MachineError(
                f"{self.path / run_file.NAME}, which says whose the checkpoints are, is missing; copy it "
                "again from where the run was trained"
            )
        return found

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.toml"

    @property
    def events(self) -> Path:
        """The events, one line each."""
        return self.path / "events.jsonl"

    @property
    def status(self) -> Path:
        """What the run does now, while it is trained; see `status_file`."""
        return self.path / "status.json"

    @property
    def main_log(self) -> Path:
        """To where the process that trains writes its stacks when it is asked; others' logs are beside."""
        return self.path / "logs" / "main.log"

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
        """How a supervised network classified the test samples."""
        return self.path / "classification.json"

    @property
    def regression(self) -> Path:
        """How well a supervised network predicted the numbers of the test samples."""
        return self.path / "regression.json"

    @property
    def report(self) -> Path:
        """The page that shows it all."""
        return self.path / "report.html"

    def environment(self) -> dict[str, object]:
        """Versions and machine when the run began; empty if the run was killed before it wrote them.

        Raises MachineError where the file cannot be read or is damaged.
        """
        path = self.path / _ENVIRONMENT
        try:
            return read_object(path, bytes_max=_ENVIRONMENT_BYTES_MAX)
        except FileNotFoundError:
            return {}
        except (OSError, MalformedError) as error:
            raise MachineError(
                f"{path} {_why(error)}; remove it to go on, the run's store is then looked for anew"
            ) from error


def _plain(values: Mapping[str, object]) -> bytes:
    return (json.dumps(values, indent=1) + "\n").encode()


def _why(error: Exception) -> str:
    return f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)


def _taken(path: Path) -> str:
    return (
        f"{path} already holds a run; resume it with --resume (Python: resume=True), or choose another "
        "directory"
    )
