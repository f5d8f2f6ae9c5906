"""Execution of a job: receivers of events, ways to stop, processes.

Knows: callbacks, displays, signals, ranks of this machine. Does not know: the training.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cotswold.api.callbacks import Follower, OnEvent, combine_watches
from cotswold.api.run import Run
from cotswold.api.signals import stop_message
from cotswold.errors import MachineError, UserError
from cotswold.training.callbacks.functions import GuardedFunction
from cotswold.ui.display import Display, LoggingDisplay, Notebook

if TYPE_CHECKING:
    from cotswold.geometry import Grid
    from cotswold.run import Stop
    from cotswold.training import Job
    from cotswold.training.distributed import RankContext
    from cotswold.ui.display import Watch

StopListener = Callable[["Stop", str], AbstractContextManager[None]]
"""Listens for a request to stop in a `with` block, and then shows the given message."""


@dataclass(frozen=True)
class Outcome:
    """The end of a training call."""

    run: Path
    code: int
    """0 if finished; 128 + signal number if stopped and saved; for ranks also 1 and 2, like the command."""
    is_reporter: bool
    """True if this process reports the outcome; False after ranks have reported it."""
    last_message: str | None = None
    """The ranks' last message, if they are separate processes."""
    limit: str | None = None
    """Description of the limit of time or money at which the run was saved and stopped with code 0."""


@dataclass(frozen=True)
class RunObservers:
    """Receivers of a run's events, and the sources of requests to stop."""

    display: Display
    functions: tuple[OnEvent, ...]
    """The program's functions that receive every event."""
    stop: Stop
    stop_listener: StopListener

    def watch(self, shown: Watch | None) -> Watch:
        """Return a function that passes events to the user's function and the display, if given."""
        watches: list[Watch] = [GuardedFunction(each, self.stop) for each in self.functions]
        return combine_watches([*watches, *([] if shown is None else [shown])])


class _WarningObserver:
    """Passes events on and keeps the warning of the final event."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.warning = ""

    def __call__(self, event: Mapping[str, object]) -> None:
        if event["kind"] == "end":
            self.warning = str(event.get("warning") or "")
        self._watch(event)


class LaunchSpec(Protocol):
    """Command lines for the processes of a run."""

    @property
    def module(self) -> str:
        """The module that the processes run as a program."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Additional environment variables of the processes."""
        ...

    def arguments(self, *, is_restart: bool, quiet: bool) -> list[str]:
        """Return the arguments of a process; ``is_restart`` resumes the run, ``quiet`` hides progress."""
        ...


def run_job(
    job: Job, rank_context: RankContext, place: Path | None, display: Display, observers: RunObservers
) -> Outcome:
    """Train an open job; ``place`` is its directory as the caller wrote it."""
    from cotswold.api.run_figures import run_figures

    job = replace(job, figures=run_figures)
    words = stop_message(job.recipe.training.strategy)
    with observers.stop_listener(observers.stop, words), display.training() as shown:
        warned = _WarningObserver(observers.watch(shown))
        finished = job.train(watch=warned, stop=observers.stop)
    if warned.warning and rank_context.is_main:
        display.show(f"warning: {warned.warning}")
    limit = job.recipe.price.limit if not finished and observers.stop.is_limited else None
    code = 0 if finished or limit is not None else 128 + (observers.stop.signal or signal.SIGINT)
    return Outcome(place or job.run.path, code, rank_context.is_main, limit=limit)


def train_on_ranks(
    launch: LaunchSpec, run: Path, grid: Grid, restarts: int, observers: RunObservers, replicas: int = 1
) -> Outcome:
    """Start the ranks of ``launch`` on this machine, and supervise them."""
    from cotswold.api.ranks import RANKS_PER_CORE, cores
    from cotswold.launch import run_local
    from cotswold.run import RunDirectory

    most, ranks = RANKS_PER_CORE * cores(), replicas * grid.size
    if ranks > most:
        what = f"a {grid} grid" if replicas == 1 else f"{replicas} replicas of a {grid} grid"
        raise UserError(
            f"{what} would start {ranks} processes on {cores()} cores; start at most {most} here, "
            "or more on several machines (torchrun, mpirun, srun)"
        )
    if threading.current_thread() is not threading.main_thread():
        raise UserError(
            "ranks must be started from the main thread, which forwards signals to them; call train there"
        )
    if (run / "recipe.toml").is_file():
        with RunDirectory.open(run).lock():
            pass  # fails at once, and only once, if another process trains it
    said: list[str | None] = []
    with ExitStack() as exit_stack:
        notebook = isinstance(observers.display, Notebook)
        if notebook or observers.functions:
            shown = exit_stack.enter_context(observers.display.training()) if notebook else None
            exit_stack.enter_context(Follower(run / "events.jsonl", observers.watch(shown), observers.stop))
        quiet = notebook or isinstance(observers.display, LoggingDisplay)
        code = run_local(
            launch.arguments(is_restart=False, quiet=quiet),
            ranks,
            run / "logs",
            cores=cores(),
            restarts=restarts,
            restart_words=launch.arguments(is_restart=True, quiet=quiet),
            program=(sys.executable, "-m", launch.module),
            environ={**os.environ, **launch.environment},
            ended=lambda logs: said.append(last_message(logs)),
        )
    return Outcome(run, code, False, said[-1])


def run_of(outcome: Outcome, stop: Stop | None, **how: Any) -> Run:
    """Return the run of an outcome. Raises the exception that a Python program expects for an unfinished run.

    ``stop`` is the caller's own, if given; a run that the program stopped by it raises nothing.
    """
    stopped = stop is not None and stop.signal is not None and not stop.interrupted
    if outcome.code == 0 or stopped:
        return Run(outcome.run, **how)
    if outcome.code > 128:
        if outcome.code != 128 + signal.SIGINT:
            signal.raise_signal(outcome.code - 128)  # the ranks received it; now this process
        raise KeyboardInterrupt(f"stopped and saved; continue {outcome.run} with resume=True")
    logs = outcome.run / "logs"
    place = f" and in {logs}" if logs.is_dir() else ""
    raise (UserError if outcome.code == 2 else MachineError)(
        f"{outcome.last_message or 'the ranks could not train together'} "
        f"(the messages of each rank are on standard error{place})"
    )


def last_message(logs: Path) -> str | None:
    """Return the last message of rank 0, or of another rank if rank 0 wrote none."""
    for log in sorted(logs.glob("rank-*.log"), key=lambda each: (len(each.name), each.name)):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line.partition("cotswold: ")[2] for line in lines if line.startswith("cotswold: ")]
        if said:
            return said[-1]
    return None
