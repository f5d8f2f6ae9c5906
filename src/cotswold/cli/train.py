"""`cotswold train`.

Knows: the words of the command, signals, the display. Does not know: how anything is trained.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from cotswold.training import Stop


def train(
    recipe: str | None = None,
    *,
    run: Path | None = None,
    set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    stores: Path | None = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    resume_if_started: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Train a recipe.

    Ctrl-C finishes the step, saves and leaves; a second Ctrl-C leaves at once,
    and nothing since the last checkpoint is kept.

    Examples:

      cotswold train demo
      cotswold train my.toml --run runs/mine --set data.size=64
      cotswold train --run runs/mine --resume

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped recipe (`cotswold recipe list`). Not needed with --resume.
    run
        The run's directory; runs/NAME by default. It must not exist, unless the run is resumed.
    set
        Overrides a field, as in training.rate=0.1; may be given again. With --resume: training.device,
        threads, checkpoint_minutes or checkpoints_kept, price, evaluate.
    stores
        Where prepared pictures are kept for this and other runs; `stores` by default. A run remembers it.
    resume
        Go on from the newest good checkpoint in the run's directory.
    resume_if_started
        Go on if the run's directory exists, begin otherwise.
    """
    from cotswold import training
    from cotswold.cli.progress import TrainingDisplay, counting, say

    how = training.Resume.ALWAYS if resume else training.Resume.NEVER
    with counting("preparing", "pictures") as tally:
        job = training.open_job(
            recipe,
            run,
            overrides=set or [],
            stores=stores,
            resume=training.Resume.IF_STARTED if resume_if_started else how,
            tally=tally,
        )
    stop = training.Stop()
    with stopping(stop), TrainingDisplay() as display:
        finished = job.train(watch=display, stop=stop)
    where = shlex.quote(str(run or job.run.path))
    if finished:
        say(f"finished; look at it with: cotswold report {where}")
        return 0
    say(f"stopped and saved; go on with: cotswold train --run {where} --resume")
    return 128 + (stop.signal or signal.SIGINT)


@contextmanager
def stopping(stop: Stop) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks for a stop after the step; a second one leaves at once."""

    def handle(number: int, _: object) -> None:
        if stop.signal is not None:
            os.write(2, b"left at once; nothing since the last checkpoint is kept\n")
            os._exit(128 + number)
        stop.signal = number
        os.write(2, b"\nstopping after this step; once more to leave at once, unsaved\n")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
