"""Log files of the ranks of a run on one host.

Knows: one file per rank, the run's directory, which rank 0 creates only after the ranks have started. Does
not know: processes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType

from cotswold.errors import CotswoldError, RunError
from cotswold.files import disk_errors, open_file, open_reading, real_folder
from cotswold.run.directory import RunDirectory

_TAIL_BYTES = 4096
_HEAD, _FOOT = ">>>", "<<<"


class Logs:
    """The folder ``logs`` of a run, for a `with` block.

    It is a temporary folder until the run's directory holds a run.
    """

    def __init__(self, folder: Path) -> None:
        self._final = folder.absolute()
        self._folder = self._final

    def __enter__(self) -> Logs:
        run = self._final.parent
        with disk_errors(run, RunError):
            if self._run_exists():
                real_folder(self._final)
            else:
                run.parent.mkdir(parents=True, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(prefix=f".{run.name}-logs-", dir=run.parent))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.move_into_run()
        if self._folder != self._final:
            shutil.rmtree(self._folder, ignore_errors=True)

    def move_into_run(self) -> None:
        """Move the folder into the run's directory once that holds a run; open files stay open."""
        if self._folder != self._final and self._run_exists() and not self._final.exists():
            self._folder.rename(self._final)
            self._final.chmod(self._final.parent.stat().st_mode & 0o777)
            self._folder = self._final

    def path(self, rank: int) -> Path:
        """Return the path of a rank's file."""
        return self._folder / f"rank-{rank}.log"

    def open(self, rank: int) -> int:
        """Open a rank's file for appending, and return the descriptor."""
        with disk_errors(self._folder, RunError):
            return open_file(self.path(rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def log_start(self, rank: int, line: str) -> None:
        """Append a line with the time that marks the start of a rank."""
        self._append(rank, _HEAD, line)

    def log_end(self, rank: int, line: str) -> None:
        """Append a line with the time that marks the end of a rank; write errors are ignored."""
        with suppress(OSError, CotswoldError):
            self._append(rank, _FOOT, line)

    def describe_file(self, rank: int) -> str:
        """Name a rank's file in a sentence; without a run's directory the file will not be kept."""
        return str(self.path(rank)) if self._folder == self._final else "its output"

    def tail(self, rank: int, lines: int = 5) -> list[str]:
        """Return the last lines that the rank printed since its last start; none if its file is missing."""
        try:
            with open_reading(self.path(rank)) as file:
                file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return []
        own: list[str] = []
        for line in text.splitlines():
            if line.startswith(_HEAD):
                own = []
            elif line.strip() and not line.startswith(_FOOT):
                own.append(line)
        return own[-lines:]

    def _append(self, rank: int, mark: str, line: str) -> None:
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        file = self.open(rank)
        try:
            os.write(file, f"{mark} {now} {' '.join(line.split())}\n".encode("utf-8", "backslashreplace"))
        finally:
            os.close(file)

    def _run_exists(self) -> bool:
        return RunDirectory(self._final.parent).recipe.is_file()
