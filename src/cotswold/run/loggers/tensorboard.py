"""TensorBoard curves of a run, in its directory.

Knows: the format of TensorBoard's event files, which events return
a run to an earlier step. Does not know: other events; every number of an event with a ``step`` becomes a
point of a curve.

A run's start adds the recipe and the environment as text. Its end adds the hyperparameters with the results
of the last validation, and the figures of the network.

Each point is written immediately, in the training thread: a killed run keeps all its points, and a full disk
raises where the log can report it.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotswold.checkpoint import Checkpoint
from cotswold.files import open_file, real_folder, write_all
from cotswold.run.loggers.context import LoggerContext, numbers_of, results_of
from cotswold.run.loggers.hyperparameters import hyperparameters

FOLDER = "tensorboard"


class TensorBoard:
    """An observer of an EventLog.

    Curves have names such as `phase 0 step/loss` or `phase layers validation/accuracy`.
    """

    name = "TensorBoard"

    def __init__(
        self, folder: Path, context: LoggerContext | None = None, *, has_histograms: bool = False
    ) -> None:
        """``context`` is the run, for text and figures. With ``has_histograms`` each checkpoint adds its
        weights.
        """
        self._folder, self._context, self._has_histograms = folder, context, has_histograms
        self._results: dict[str, float] = {}
        self._step = 0
        self._file: int | None = None
        self._repeated_from: int | None = None
        """First step that the run repeats; None for a run that was never interrupted."""

    def write(self, event: Mapping[str, object]) -> None:
        """Add the numbers of an event that has a step."""
        kind, step = event["kind"], event.get("step")
        if kind == "restarted":
            self._repeated_from = 0
        if self._context is not None:
            if kind == "start":
                self._add_texts(event["time"], self._context)
            if kind == "end" and event.get("status") == "finished":
                self._add_results(event["time"], self._context)
            if kind == "checkpoint" and self._has_histograms:
                self._add_histograms(event, self._context)
        if not isinstance(step, int):
            return
        self._step = step
        if kind == "resumed":  # the checkpoint of a step includes that step
            self._repeated_from = step + 1
            return
        self._results |= results_of(event)
        points = [{"tag": name, "simple_value": value} for name, value in numbers_of(event).items()]
        if points:
            self._append(event["time"], step=step, summary={"value": points})

    def _add_texts(self, when: object, context: LoggerContext) -> None:
        texts = {"recipe": context.recipe_text, "environment": json.dumps(context.environment, indent=1)}
        for name, content in texts.items():
            indented = "\n".join(f"    {line}" for line in content.splitlines())  # Markdown's block of code
            value = {
                "tag": f"{name}/text_summary",
                "metadata": {"plugin_data": {"plugin_name": "text"}},
                "tensor": {
                    "dtype": "DT_STRING",
                    "tensor_shape": {"dim": [{"size": 1}]},
                    "string_val": [indented.encode("utf-8", "backslashreplace")],
                },
            }
            self._append(when, step=0, summary={"value": [value]})

    def _add_results(self, when: object, context: LoggerContext) -> None:
        if results := {f"final/{name}": value for name, value in self._results.items()}:
            values = hyperparameters(context.settings, results)
            self._append(when, step=self._step, summary={"value": values})
        for name, content in context.figures().items():
            width, height = struct.unpack(">II", content[16:24])  # of a PNG file
            shown = {"height": height, "width": width, "colorspace": 3, "encoded_image_string": content}
            self._append(when, step=self._step, summary={"value": [{"tag": name, "image": shown}]})

    def _add_histograms(self, event: Mapping[str, object], context: LoggerContext) -> None:
        from torch.utils.tensorboard.summary import histogram

        folders = [context.run / each / str(event["path"]) for each in ("checkpoints", "best")]
        if not (found := [each for each in folders if each.is_dir()]):
            return  # a newer one has replaced it
        checkpoint = Checkpoint(found[0])
        for name in checkpoint.names:
            values = checkpoint.read(name)
            if values.is_floating_point() and values.numel() and bool(values.isfinite().all()):
                array = values.float().numpy()
                summary = histogram(f"weights/{name}", array, "auto", 64)  # type: ignore[no-untyped-call]  # TensorBoard leaves it untyped
                self._append(event["time"], step=event["step"], summary=summary)

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


def tensorboard_logger(context: LoggerContext) -> TensorBoard:
    """Return the logger of a run.

    Args:
        context: The run.
    """
    return TensorBoard(context.run / FOLDER, context)


def tensorboard_with_histograms(context: LoggerContext) -> TensorBoard:
    """Return the logger of a run, with histograms of the tensors of each checkpoint.

    Args:
        context: The run.
    """
    return TensorBoard(context.run / FOLDER, context, has_histograms=True)
