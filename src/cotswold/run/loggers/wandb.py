"""The logger `wandb`: Weights & Biases, offline unless WANDB_MODE says otherwise.

Knows: the client of Weights & Biases, its settings, how a run continues there. Does not know: the meaning of
curves.

Files are in the folder `wandb` of the run's directory, or in WANDB_DIR. A resumed run has the same id.
Offline, each session writes a folder; `wandb sync --append` of all of them makes one run.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from cotswold.run.loggers.context import LoggerContext, numbers_of, results_of

_FIRST_KINDS = ("start", "resumed", "restarted")


class WandbLogger:
    """An observer of an EventLog that sends curves to Weights & Biases, or keeps them for `wandb sync`.

    It opens the run there with the first event of training. Steps that a resumed run repeats are left out.
    """

    name = "wandb"

    def __init__(self, context: LoggerContext) -> None:
        self._context = context
        self._run: Any = None
        self._step = -1
        """The newest step that was logged."""
        self._results: dict[str, float] = {}

    def write(self, event: Mapping[str, object]) -> None:
        """Log the numbers of an event that has a step."""
        kind, step = event["kind"], event.get("step")
        if self._run is None and (kind in _FIRST_KINDS or isinstance(step, int)):
            self._run = self._opened()
        if kind == "end":
            self._end(event)
        if kind == "resumed" or not isinstance(step, int) or step < self._step:
            return
        numbers = numbers_of(event)
        if numbers:
            self._step = step
            self._results |= results_of(event)
            self._run.log(numbers, step=step)

    def _opened(self) -> Any:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        folder = Path(os.environ.get("WANDB_DIR", self._context.run.absolute()))
        folder.mkdir(parents=True, exist_ok=True)
        online = mode in ("online", "shared")
        found = wandb.init(
            id=self._context.identity,
            name=self._context.name,
            project=os.environ.get("WANDB_PROJECT", "cotswold"),
            dir=str(folder),
            config=self._context.settings,
            resume="allow" if online else None,  # offline it has no effect but a warning
            mode=mode,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_code=True,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )
        if online and isinstance(found.step, int):
            self._step = found.step - 1
        return found

    def _end(self, event: Mapping[str, object]) -> None:
        if self._run is None:
            return
        self._run.summary.update({"status": event.get("status"), **self._results})
        if event.get("status") == "finished" and (figures := self._context.figures()):
            import wandb
            from PIL import Image

            images = {
                name: wandb.Image(Image.open(io.BytesIO(content)), file_type="png")
                for name, content in figures.items()
            }
            self._run.log(images, step=max(0, self._step))

    def close(self) -> None:
        """End the session; the run there can be continued."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()


def wandb_logger(context: LoggerContext) -> WandbLogger:
    """Return the logger of a run; the import takes seconds, in which no process of the run waits yet.

    Args:
        context: The run.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # wandb reads it when it is imported
    import_module("wandb")
    return WandbLogger(context)
