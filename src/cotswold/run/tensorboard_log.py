"""Events shown in TensorBoard beside the run's own log.

Knows: that TensorBoard is an extra which may not be there. Does not know: which events there are; every
number of an event that has a ``step`` becomes a point of a curve.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.files import real_folder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_NO_CURVES = ("time", "seconds", "step", "stack")


class TensorBoard:
    """An observer of an EventLog; curves are called `stack 0/loss` or `validation/accuracy`."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def write(self, event: Mapping[str, object]) -> None:
        """Add the numbers of an event that has a step."""
        step = event.get("step")
        if not isinstance(step, int):
            return
        if self._writer is None:
            real_folder(self._folder)
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            # after a resumption steps come again; TensorBoard forgets the first ones
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        kind, stack = event["kind"], event.get("stack")
        for name, value in event.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in _NO_CURVES:
                where = f"stack {stack} {kind}" if stack is not None else kind
                self._writer.add_scalar(f"{where}/{name}", value, step, walltime=event["time"])

    def close(self) -> None:
        """Write what is still in memory."""
        if self._writer is not None:
            self._writer.close()


def tensorboard(folder: Path) -> TensorBoard | None:
    """An observer that writes to ``folder``; None where the extra `tensorboard` is not installed."""
    return TensorBoard(folder) if find_spec("tensorboard") else None
