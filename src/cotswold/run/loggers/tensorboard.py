"""TensorBoard curves of a run, in its directory.

Knows: the format of TensorBoard's event files, that the extra TensorBoard may be missing, which events return
a run to an earlier step. Does not know: other events; every number of an event with a ``step`` becomes a
point of a curve.

Each point is written immediately, in the training thread: a killed run keeps all its points, and a full disk
raises where the log can report it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cotswold.files import open_file, real_folder, write_all

_NO_CURVES = ("time", "seconds", "step", "phase")


class TensorBoard:
    """An observer of an EventLog.

    Curves have names such as `phase 0 step/loss` or `phase layers validation/accuracy`.
    """

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._repeated_from: int | None = None
        """First step that the run repeats; None for a run that was never interrupted."""

    def write(self, event: Mapping[str, object]) -> None:
        """Add the numbers of an event that has a step."""
        kind, step = event["kind"], event.get("step")
        if kind == "restarted":
            self._repeated_from = 0
        if not isinstance(step, int):
            return
        if kind == "resumed":  # the checkpoint of a step includes that step
            self._repeated_from = step + 1
            return
        phase = event.get("phase")
        where = f"phase {phase} {kind}" if phase is not None else kind
        points = [
            {"tag": f"{where}/{name}", "simple_value": value}
            for name, value in event.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in _NO_CURVES
        ]
        if points:
            self._append(event["time"], step=step, summary={"value": points})

    def _append(self, when: object, **fields: object) -> None:
        if self._file is None:
            real_folder(self._folder)
            # TensorBoard reads files in the order of their names; times of events never decrease
            name = f"events.out.tfevents.{when:017.6f}.{os.getpid()}"
            self._file = open_file(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            start = _record(wall_time=when, file_version="brain.Event:2")
            if self._repeated_from is not None:  # TensorBoard drops the points from this step on
                restart = {"status": "START"}
                start += _record(wall_time=when, step=self._repeated_from, session_log=restart)
            write_all(self._file, start)
        write_all(self._file, _record(wall_time=when, **fields))

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _record(**fields: Any) -> bytes:
    """Return a TensorBoard event as bytes of its file format."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    RecordWriter(content).write(Event(**fields).SerializeToString())
    return content.getvalue()


def tensorboard(folder: Path) -> TensorBoard | None:
    """Return an observer that writes TensorBoard files; None if the extra `tensorboard` is not installed.

    Args:
        folder: the folder for TensorBoard.
    """
    return TensorBoard(folder) if find_spec("tensorboard") else None
