"""Directory of a run.

Knows: the names of its files, the run's identity. Does not know: the contents of other files. It creates
files and never replaces them, except for overrides that a run saves and for a run that never took a step. It
follows no links and never changes the working directory. A copy made during training is equivalent to a run
that was killed at that moment.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cotswold.errors import BusyError, CotswoldError, MachineError, RunError
from cotswold.files import (
    PARTIAL,
    DirectoryLock,
    DiskRemedy,
    MalformedError,
    create_file,
    disk_errors,
    open_reading,
    read_object,
    replace_file,
    take,
)
from cotswold.recipe import FORMAT, format_of
from cotswold.run.events import read_events

RUNS = Path("runs")
"""Folder of runs without a directory of their own."""
_ENVIRONMENT = "environment.json"
_ENVIRONMENT_BYTES_MAX = 1 << 20
_LOGS = ("wandb", "mlflow", "metrics.csv")
"""Files of loggers that a replaced run leaves."""
RUN_FILE = "run.json"
_RUN_FILE_BYTES_MAX = 1 << 16
_IDENTITY = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class RunRecord:
    """Identity of a run, as in its checkpoints, and overrides of its recipe."""

    identity: str
    overrides: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def new(cls) -> RunRecord:
        """Return the record of a new run, with a random identity."""
        return cls(secrets.token_hex(8))

    @classmethod
    def read(cls, folder: Path) -> RunRecord | None:
        """Return the record in a run's directory; None if there is none.

        Raises MachineError if it cannot be read, FormatError if a newer version wrote it.
        """
        path = folder / RUN_FILE
        try:
            found = read_object(path, bytes_max=_RUN_FILE_BYTES_MAX)
            format_of(found, str(path))
            identity, overrides = take(found, "id", str), take(found, "overrides", dict)
            texts = all(isinstance(each, str) for each in overrides.values())
            if not (_IDENTITY.fullmatch(identity) and texts):
                raise MalformedError("is not a record of a run")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MachineError(f"{path} cannot be read: {error.strerror}") from error
        except MalformedError as error:
            raise MachineError(
                f"{path}, which identifies the run of the checkpoints, {error}; "
                "copy it again from where the run was trained"
            ) from error
        return cls(identity, overrides)

    def create(self, folder: Path) -> None:
        """Write the record, unless one exists."""
        try:
            create_file(folder / RUN_FILE, self._text())
        except FileExistsError:
            return

    def replace(self, folder: Path) -> None:
        """Write the record, in place of an existing one."""
        replace_file(folder / RUN_FILE, self._text())

    def _text(self) -> bytes:
        content = {"format": FORMAT, "id": self.identity, "overrides": dict(self.overrides)}
        return (json.dumps(content, indent=1) + "\n").encode()


@dataclass(frozen=True)
class RunDirectory:
    """A run on disk. Readers need no lock; writers work inside `with run.lock():`.

    Args:
        path: the directory.
        expected_identity: identity of the run when the caller created or opened it; None if unchecked.
    """

    path: Path
    expected_identity: str | None = None
    """Identity of the run when the caller created or opened it; None if unchecked."""

    @classmethod
    def create_or_replace(
        cls, path: str | Path, recipe_text: str, environment: Mapping[str, object]
    ) -> RunDirectory:
        """Create a run, also in place of a run that never took a step.

        Args:
            path: the directory: new, empty, or with a run that never took a step.
            recipe_text: the resolved recipe as TOML.
            environment: the result of `describe_environment`.

        Raises:
            RunError: if the directory contains another run or other files.
            BusyError: if another process trains the run in the directory.
        """
        run = cls(Path(path).absolute())
        if not run.has_no_step:
            return cls.create(path, recipe_text, environment).recognised()
        with run.lock(), disk_errors(run.path, RunError, DiskRemedy.REPEAT):
            if not run.has_no_step:  # another command was faster
                raise RunError(_path_taken_message(run.path))
            for left in (run.tensorboard, run.checkpoints, run.best, *(run.path / name for name in _LOGS)):
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)
                else:
                    left.unlink(missing_ok=True)
            run.events.unlink(missing_ok=True)
            # the recipe exists at all times: without it the directory is not a run
            RunRecord.new().replace(run.path)
            replace_file(run.recipe, recipe_text.encode())
            replace_file(run.path / _ENVIRONMENT, _to_json_bytes(environment))
            return run.recognised()

    @classmethod
    def create(cls, path: str | Path, recipe_text: str, environment: Mapping[str, object]) -> RunDirectory:
        """Create a run in a new or empty directory.

        Args:
            path: the directory.
            recipe_text: the resolved recipe as TOML.
            environment: the result of `describe_environment`.

        Raises:
            RunError: if the directory contains a run or other files.
        """
        run = cls(Path(path).absolute())
        with disk_errors(run.path, RunError, DiskRemedy.REPEAT):
            if run.path.exists() and not run.path.is_dir():
                raise RunError(f"{run.path} is a file; choose another directory for the run")
            run.path.mkdir(parents=True, exist_ok=True)
            if run.recipe.exists():
                raise RunError(_path_taken_message(run.path))
            # a record without a recipe is left by a command that was killed at this point
            names = {entry.name for entry in run.path.iterdir()} - {RUN_FILE}
            if any(not name.endswith(PARTIAL) for name in names):
                raise RunError(
                    f"{run.path} contains other files; choose a new or empty directory for the run"
                )
            RunRecord.new().create(run.path)  # first: once the recipe exists, the directory is a run
            try:
                create_file(run.recipe, recipe_text.encode())
            except FileExistsError as error:
                raise RunError(_path_taken_message(run.path)) from error
            create_file(run.path / _ENVIRONMENT, _to_json_bytes(environment))
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Return the run in an existing directory.

        Args:
            path: the directory.

        Raises:
            RunError: if it is not the directory of a run, or cannot be read.
        """
        run = cls(Path(path).absolute())
        try:
            open_reading(run.recipe).close()
        except (FileNotFoundError, NotADirectoryError) as error:
            if not run.path.exists():
                raise RunError(f"{run.path} is not the directory of a run: it does not exist") from error
            raise RunError(f"{run.path} is not the directory of a run: it has no recipe.toml") from error
        except OSError as error:
            raise RunError(f"{run.recipe} cannot be read: {error.strerror}") from error
        return run

    def recognised(self) -> RunDirectory:
        """Return the same run with its current identity, for `check_known`; raises as `identity`."""
        return replace(self, expected_identity=self.identity)

    def check_known(self) -> None:
        """Raise BusyError if another command created a new run in this directory; call it inside the lock."""
        if self.expected_identity not in (None, self.identity):
            raise BusyError(f"another command has created a new run in {self.path}; choose another directory")

    @property
    def has_no_step(self) -> bool:
        """True if the run took no step and has no checkpoint, so that replacing it loses nothing.

        To rely on the answer, hold the lock. An unreadable run gives False.
        """
        from cotswold.checkpoint import CheckpointManager  # imports torch, which readers of a run do not need

        try:
            return (
                self.recipe.is_file()
                and RunRecord.read(self.path) is not None
                and not any(CheckpointManager(each).paths() for each in (self.checkpoints, self.best))
                and not (
                    self.events.exists() and any(each["kind"] == "step" for each in read_events(self.events))
                )
            )
        except (CotswoldError, OSError):
            return False

    def lock(self) -> DirectoryLock:
        """Return the write lock of the run, for `with`; raises BusyError if another process has it."""
        return DirectoryLock(self.path)

    @property
    def identity(self) -> str:
        """The run's id, which its checkpoints bear.

        Raises as `RunRecord.read`, and MachineError if the record is missing.
        """
        return self._record().identity

    @property
    def overrides(self) -> list[str]:
        """Overrides of the recipe from the last resume, in force until the next; raises as `identity`."""
        return [f"{name}={value}" for name, value in self._record().overrides.items()]

    def set_overrides(self, fields: Mapping[str, str]) -> None:
        """Save overrides of the recipe for later resumes, in place of earlier ones.

        Args:
            fields: TOML values by dotted field name.
        """
        kept = self._record()
        if dict(fields) != dict(kept.overrides):
            with disk_errors(self.path / RUN_FILE, MachineError):
                replace(kept, overrides=fields).replace(self.path)

    def _record(self) -> RunRecord:
        found = RunRecord.read(self.path)
        if found is None:
            raise MachineError(
                f"{self.path / RUN_FILE}, which identifies the run of the checkpoints, is missing; copy "
                "it again from where the run was trained"
            )
        return found

    @property
    def recipe(self) -> Path:
        """File of the resolved recipe."""
        return self.path / "recipe.toml"

    @property
    def events(self) -> Path:
        """File of the events, one per line."""
        return self.path / "events.jsonl"

    @property
    def status(self) -> Path:
        """File of the current status during training; see `status_file`."""
        return self.path / "status.json"

    @property
    def logs(self) -> Path:
        """Folder of the logs and stacks of processes."""
        return self.path / "logs"

    @property
    def main_log(self) -> Path:
        """Log of the main process and its stacks."""
        return self.logs / "main.log"

    def rank_log(self, rank: int) -> Path:
        """Log of a rank and its stacks."""
        return self.logs / f"rank-{rank}.log"

    @property
    def checkpoints(self) -> Path:
        """Folder of the newest checkpoints."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """Folder of the checkpoint with the best validation, for supervised runs."""
        return self.path / "best"

    @property
    def tensorboard(self) -> Path:
        """Folder for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def evaluation(self) -> Path:
        """File of the neurons' selectivity."""
        return self.path / "evaluation.json"

    @property
    def classification(self) -> Path:
        """File of the classification of test samples by a supervised network."""
        return self.path / "classification.json"

    @property
    def regression(self) -> Path:
        """File of the regression errors of a supervised network on test samples."""
        return self.path / "regression.json"

    @property
    def report(self) -> Path:
        """HTML report."""
        return self.path / "report.html"

    def environment(self) -> dict[str, object]:
        """Return versions and machine at the start of the run; empty if the file is missing.

        Raises:
            MachineError: if the file is damaged or cannot be read.
        """
        path = self.path / _ENVIRONMENT
        try:
            return read_object(path, bytes_max=_ENVIRONMENT_BYTES_MAX)
        except FileNotFoundError:
            return {}
        except (OSError, MalformedError) as error:
            raise MachineError(
                f"{path} {_describe_error(error)}; remove it to continue without it (the run's store is "
                "then searched again)"
            ) from error


def _to_json_bytes(values: Mapping[str, object]) -> bytes:
    return (json.dumps(values, indent=1) + "\n").encode()


def _describe_error(error: Exception) -> str:
    return f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)


def _path_taken_message(path: Path) -> str:
    return (
        f"{path} already holds a run; resume it with --resume (Python: resume=True), or choose another "
        "directory"
    )
