"""Training, from a recipe to a run: in this process, over ranks that it starts, or as one rank of several.

Knows: which processes train, who hears of it, how it is interrupted. Does not know: how anything is trained.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.display import Display, Notebook, Quiet, display_for
from cotswold.api.events import Callback, Follower, OnEvent, all_of
from cotswold.api.interrupting import interruptible
from cotswold.api.order import Order, Resumed, override_list, place_of, recipe_name
from cotswold.api.run import Run
from cotswold.api.threads import computing, own_environment, own_threads, threads_override
from cotswold.errors import MachineError, UserError

if TYPE_CHECKING:
    from cotswold.api.display import Watch
    from cotswold.geometry import Grid
    from cotswold.recipe import Recipe
    from cotswold.run import Stop
    from cotswold.training.team import Team

Listening = Callable[["Stop"], AbstractContextManager[None]]
"""What hears, for a `with` block, that a run is to stop."""


def train(
    recipe: str | Path | Recipe | None = None,
    directory: str | Path | Run | None = None,
    *,
    overrides: Mapping[str, object] | Sequence[str] = (),
    grid: str | None = None,
    restarts: int = 0,
    threads: int | None = None,
    stores: str | Path | None = None,
    resume: Resumed = False,
    on_event: OnEvent | None = None,
    progress: bool | None = None,
    stop: Stop | None = None,
) -> Run:
    """Train a recipe (a shipped name, a file, or a `Recipe`) and return the run.

    ``directory``: the run's, runs/NAME by default; it must not exist, unless the run is resumed.
    ``overrides``: fields of the recipe, as ``{"training.epochs": 3}`` or ``["training.epochs=3"]``.
    ``resume=True`` goes on from the newest good checkpoint, without a recipe if one likes; ``"if_started"``
    goes on if there is a run, and begins one otherwise. ``grid="2x2"`` cuts every map over four processes of
    this machine, which it starts; they keep logs in the run's directory, and begin again from the last
    checkpoint at most ``restarts`` times when one has died. ``threads``: of each process. ``stores``: where
    prepared pictures are kept.

    ``on_event`` hears every event, a mapping; it cannot stop the run by an error, only by KeyboardInterrupt.
    ``progress``: show it, by default on a terminal and in a notebook. Ctrl-C (a notebook's interrupt)
    finishes the step, saves, and raises KeyboardInterrupt; a second one leaves at once. With a ``stop``,
    whose ``signal`` another thread sets, the run stops as well, and is returned.

    Raises RecipeError, RunError (a directory that is taken, another recipe), SourceError, StoreError,
    MachineError, DivergedError.
    """
    from cotswold.run import Stop

    display, asked = display_for(progress), Stop() if stop is None else stop
    words = [*override_list(overrides), *threads_override(threads)]
    place, kept = place_of(directory), None if stores is None else Path(stores)
    with recipe_name(recipe) as name:
        outcome = carry_out(
            Order(name, place, words, kept, resume),
            grid=grid,
            restarts=restarts,
            display=display,
            on_event=on_event,
            stop=asked,
            listening=interruptible if stop is None else lambda _: nullcontext(),
        )
    if outcome.code == 0 or (stop is not None and stop.signal is not None):
        return Run(outcome.run, stores=kept)
    if outcome.code > 128:
        if outcome.code != 128 + signal.SIGINT:
            signal.raise_signal(outcome.code - 128)  # the ranks have heard it; now whoever started them
        raise KeyboardInterrupt(f"stopped and saved; {outcome.run} goes on with resume=True")
    raise (UserError if outcome.code == 2 else MachineError)(_last_words(outcome.run))


@dataclass(frozen=True)
class Outcome:
    """How training ended."""

    run: Path
    code: int
    """0: finished; 128 and a signal's number: stopped and saved; of ranks also 1 and 2, as the command
    ends."""
    speaks: bool
    """Whether this process is the one to say so: no rank has."""


def carry_out(
    order: Order,
    *,
    grid: str | None,
    restarts: int,
    display: Display,
    on_event: OnEvent | None,
    stop: Stop,
    listening: Listening,
) -> Outcome:
    """Train as ordered, in the processes that are there or that are wanted; ``listening`` sets ``stop``."""
    from cotswold.api import ranks
    from cotswold.launch import world_of

    if restarts < 0:
        raise UserError(f"--restarts is how often to begin again, 0 or more, not {restarts}")
    if grid is not None:
        order = replace(order, overrides=[*order.overrides, ranks.override(grid)])
    hearing = _Hearing(display, on_event, stop, listening)
    named = order.recipe, order.directory, order.overrides
    world = world_of(os.environ)
    if world is not None and world.size > 1:
        if restarts and world.launcher != "cotswold":
            raise UserError(
                f"--restarts is for ranks that this command starts; these were started by {world.launcher}, "
                "which has a way of its own (torchrun: --max-restarts, with --resume-if-started)"
            )
        with own_environment(), own_threads():
            ranks.prepare(world)
            with ranks.team(world, *named, display.say) as team:
                return _trained(order, team, hearing)
    wanted = None
    if any(word is not None for word in (grid, order.recipe, order.directory)):
        wanted = ranks.wanted_recipe(*named, display.say)
        shape = ranks.local_grid(wanted, display.say)
        if shape.size > 1:
            place = order.directory or Path("runs") / wanted.name
            return _started(order, place, shape, restarts, hearing)
    if restarts:
        raise UserError("--restarts watches over several ranks; give --grid, such as --grid 1x2")
    with computing(None, wanted):
        from cotswold.training.team import SOLO

        return _trained(order, SOLO, hearing)


@dataclass(frozen=True)
class _Hearing:
    """Who hears of a run, and what it listens to."""

    display: Display
    on_event: OnEvent | None
    stop: Stop
    listening: Listening

    def watch(self, shown: Watch | None) -> Watch:
        """Hands events to the user's function, and to the display where it shows them."""
        watches: list[Watch] = [] if self.on_event is None else [Callback(self.on_event, self.stop)]
        return all_of([*watches, *([] if shown is None else [shown])])


def _trained(order: Order, team: Team, hearing: _Hearing) -> Outcome:
    """Train in this process, alone or as one of a team."""
    from cotswold import training

    display = hearing.display if team.is_main else Quiet()
    resume = training.Resume.ALWAYS if order.resume else training.Resume.NEVER
    with display.counting("preparing", "pictures") as tally:
        job = training.open_job(
            order.recipe,
            order.directory,
            overrides=order.overrides,
            stores=order.stores,
            resume=training.Resume.IF_STARTED if order.resume == "if_started" else resume,
            tally=tally,
            team=team,
        )
    if team.is_main and not job.resumed:
        for note in job.store.notes:
            display.say(note)
    with hearing.listening(hearing.stop), display.training() as shown:
        finished = job.train(watch=hearing.watch(shown), stop=hearing.stop)
    code = 0 if finished else 128 + (hearing.stop.signal or signal.SIGINT)
    return Outcome(order.directory or job.run.path, code, team.is_main)


def _started(order: Order, run: Path, grid: Grid, restarts: int, hearing: _Hearing) -> Outcome:
    """Train on ranks of this machine, and watch over them."""
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
    with ExitStack() as open_things:
        notebook = isinstance(hearing.display, Notebook)
        if notebook or hearing.on_event is not None:
            shown = open_things.enter_context(hearing.display.training()) if notebook else None
            open_things.enter_context(Follower(run / "events.jsonl", hearing.watch(shown), hearing.stop))
        quiet = notebook or isinstance(hearing.display, Quiet)
        code = run_local(
            order.words(grid, run, again=False, quiet=quiet),
            grid.size,
            run / "logs",
            cores=cores(),
            restarts=restarts,
            restart_words=order.words(grid, run, again=True, quiet=quiet),
        )
    return Outcome(run, code, False)


def _last_words(run: Path) -> str:
    """What rank 0 said last, from its log."""
    log = run / "logs" / "rank-0.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    said = [line.partition("cotswold: ")[2] for line in lines if line.startswith("cotswold: ")]
    last = f"{said[-1]} (" if said else "the ranks could not train together ("
    return f"{last}what each rank said is on standard error and in {log.parent})"
