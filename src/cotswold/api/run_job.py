"""How a job is carried out: who hears of it, what stops it, which processes it runs in.

Knows: callbacks, displays, signals, ranks of this machine. Does not know: what is trained.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cotswold.api.callbacks import Callback, Follower, OnEvent, all_of
from cotswold.api.run import Run
from cotswold.api.signals import words_for
from cotswold.errors import MachineError, UserError
from cotswold.ui.display import Display, Notebook, Quiet

if TYPE_CHECKING:
    from cotswold.geometry import Grid
    from cotswold.run import Stop
    from cotswold.training import Job
    from cotswold.training.distributed import Team
    from cotswold.ui.display import Watch

Listening = Callable[["Stop", str], AbstractContextManager[None]]
"""What hears, for a `with` block, that a run is to stop, and then says these words."""


@dataclass(frozen=True)
class Outcome:
    """How training ended."""

    run: Path
    code: int
    """0: finished; 128 and a signal's number: stopped and saved; of ranks also 1 and 2, as the command
    ends."""
    speaks: bool
    """Whether this process is the one to say so: no rank has."""
    said: str | None = None
    """What the ranks said last, where they are processes of their own."""
    limit: str | None = None
    """The limit of time or money at which it was saved and stopped, in words; its code is 0."""


@dataclass(frozen=True)
class Hearing:
    """Who hears of a run, and what it listens to."""

    display: Display
    on_event: OnEvent | None
    stop: Stop
    listening: Listening

    def watch(self, shown: Watch | None) -> Watch:
        """Hands events to the user's function, and to the display where it shows them."""
        watches: list[Watch] = [] if self.on_event is None else [Callback(self.on_event, self.stop)]
        return all_of([*watches, *([] if shown is None else [shown])])


class _Warned:
    """Hears what the end of a run warns of, and hands events on."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.said = ""

    def __call__(self, event: Mapping[str, object]) -> None:
        if event["kind"] == "end":
            self.said = str(event.get("warning") or "")
        self._watch(event)


class Words(Protocol):
    """What processes are started with."""

    @property
    def module(self) -> str:
        """The module that they run as a program."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that they get besides."""
        ...

    def of(self, *, again: bool, quiet: bool) -> list[str]:
        """The words of each, when it starts ``again``, and where it is to show no progress."""
        ...


def carried(job: Job, team: Team, place: Path | None, display: Display, hearing: Hearing) -> Outcome:
    """Train a job that is open; ``place``: its directory as the caller wrote it."""
    words = words_for(job.recipe.training.strategy)
    with hearing.listening(hearing.stop, words), display.training() as shown:
        warned = _Warned(hearing.watch(shown))
        finished = job.train(watch=warned, stop=hearing.stop)
    if warned.said and team.is_main:
        display.say(f"warning: {warned.said}")
    limit = job.recipe.price.limit if not finished and hearing.stop.limited else None
    code = 0 if finished or limit is not None else 128 + (hearing.stop.signal or signal.SIGINT)
    return Outcome(place or job.run.path, code, team.is_main, limit=limit)


def on_ranks(words: Words, run: Path, grid: Grid, restarts: int, hearing: Hearing) -> Outcome:
    """Train on ranks of this machine, which run the program of ``words``, and watch over them."""
    from cotswold.api.ranks import RANKS_A_CORE, cores
    from cotswold.launch import run_local
    from cotswold.run import RunDirectory

    most = RANKS_A_CORE * cores()
    if grid.size > most:
        raise UserError(
            f"a {grid} grid would start {grid.size} processes on {cores()} cores; start at most {most} here, "
            "or more on several machines (torchrun, mpirun, srun)"
        )
    if threading.current_thread() is not threading.main_thread():
        raise UserError(
            "processes are started by the main thread, which passes signals on to them; call train there"
        )
    if (run / "recipe.toml").is_file():
        with RunDirectory.open(run).lock():
            pass  # if another process trains it, that is said once and at once
    said: list[str | None] = []
    with ExitStack() as open_things:
        notebook = isinstance(hearing.display, Notebook)
        if notebook or hearing.on_event is not None:
            shown = open_things.enter_context(hearing.display.training()) if notebook else None
            open_things.enter_context(Follower(run / "events.jsonl", hearing.watch(shown), hearing.stop))
        quiet = notebook or isinstance(hearing.display, Quiet)
        code = run_local(
            words.of(again=False, quiet=quiet),
            grid.size,
            run / "logs",
            cores=cores(),
            restarts=restarts,
            restart_words=words.of(again=True, quiet=quiet),
            program=(sys.executable, "-m", words.module),
            environ={**os.environ, **words.environment},
            ended=lambda logs: said.append(last_words(logs)),
        )
    return Outcome(run, code, False, said[-1])


def run_of(outcome: Outcome, stop: Stop | None, **how: Any) -> Run:
    """The run of an outcome; raises what a Python program is to hear of one that is not finished.

    ``stop``: the caller's own, where there is one: a run that the program stopped by it is no surprise.
    """
    stopped = stop is not None and stop.signal is not None and not stop.interrupted
    if outcome.code == 0 or stopped:
        return Run(outcome.run, **how)
    if outcome.code > 128:
        if outcome.code != 128 + signal.SIGINT:
            signal.raise_signal(outcome.code - 128)  # the ranks have heard it; now whoever started them
        raise KeyboardInterrupt(f"stopped and saved; {outcome.run} goes on with resume=True")
    logs = outcome.run / "logs"
    place = f" and in {logs}" if logs.is_dir() else ""
    raise (UserError if outcome.code == 2 else MachineError)(
        f"{outcome.said or 'the ranks could not train together'} "
        f"(what each rank said is on standard error{place})"
    )


def last_words(logs: Path) -> str | None:
    """What rank 0 said last; what another rank did, where rank 0 said nothing."""
    for log in sorted(logs.glob("rank-*.log"), key=lambda each: (len(each.name), each.name)):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line.partition("cotswold: ")[2] for line in lines if line.startswith("cotswold: ")]
        if said:
            return said[-1]
    return None
