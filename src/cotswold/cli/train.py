"""`cotswold train`.

Knows: the words of the command, signals, the display. Does not know: how anything is trained.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cotswold.errors import UserError

if TYPE_CHECKING:
    from cotswold.geometry import Grid
    from cotswold.training import Stop
    from cotswold.training.team import Team

ECHO_SECONDS = 0.3
GRID = "mesh.grid="


def train(
    recipe: str | None = None,
    *,
    run: Path | None = None,
    set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    grid: str | None = None,
    restarts: int = 0,
    threads: int | None = None,
    stores: Path | None = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    resume_if_started: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Train a recipe.

    Ctrl-C finishes the step, saves and leaves, as does a terminal that closes;
    a second Ctrl-C leaves at once, and nothing since the last checkpoint is kept.

    Examples:

      cotswold train demo
      cotswold train my.toml --run runs/mine --set data.size=64
      cotswold train --run runs/mine --resume
      cotswold train --run runs/mine --resume --set training.epochs=20
      cotswold train my.toml --run runs/mine --grid 2x2 --restarts 3
      torchrun --nproc-per-node 4 --no-python -- cotswold train my.toml --grid 2x2

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped recipe (`cotswold recipe list`). Not needed with --resume.
    run
        The run's directory; runs/NAME by default. It must not exist, unless the run is resumed.
    set
        Overrides a field, as in training.rate=0.1; may be given again. With --resume: training.device,
        threads, offload, checkpoint_minutes or checkpoints_kept, mesh, price, evaluate; and more
        training.epochs, which prolong the run: what is missing is trained in phases with a schedule of their
        own, every stack again from the lowest. The run remembers offload.
    grid
        Rows and columns of processes over which every map is cut, as in 2x2: ranks of this machine, each with
        its part of the threads and a log in the run's directory; auto for the simulator's choice; none for
        one process. Short for --set mesh.grid=2x2. A run that is resumed goes on over its own grid if none is
        given. Under torchrun, mpirun and srun the ranks that they start.
    restarts
        How often to begin again from the last checkpoint when a rank has died; for ranks of this machine.
    threads
        Threads of computation, of each rank where there are several; short for --set training.threads=2. By
        default the recipe's, or all cores that this process is granted, divided among the ranks of a host.
    stores
        Where prepared pictures are kept for this and other runs; `stores` by default. A run remembers it.
    resume
        Go on from the newest good checkpoint in the run's directory, on any grid.
    resume_if_started
        Go on if the run's directory exists, begin otherwise.
    """
    from cotswold.cli import ranks
    from cotswold.api.threads import threads_override, use_threads
    from cotswold.launch import world_of

    if restarts < 0:
        raise UserError(f"--restarts is how often to begin again, 0 or more, not {restarts}")
    overrides = [
        *(set or []),
        *([] if grid is None else [ranks.override(grid)]),
        *threads_override(threads),
    ]
    words = Words(recipe, run, overrides, stores, resume, resume_if_started)
    world = world_of(os.environ)
    if world is not None and world.size > 1:
        if restarts and world.launcher != "cotswold":
            raise UserError(
                f"--restarts is for ranks that this command starts; these were started by {world.launcher}, "
                "which has a way of its own (torchrun: --max-restarts, with --resume-if-started)"
            )
        ranks.prepare(world)
        with ranks.team(world, recipe, run, overrides) as team:
            return _train(words, team)
    wanted = None
    if grid is not None or recipe is not None or run is not None:
        wanted = ranks.wanted_recipe(recipe, run, overrides)
        shape = ranks.local_grid(wanted)
        if shape.size > 1:
            return _start(words, wanted.name, shape, restarts)
    if restarts:
        raise UserError("--restarts watches over several ranks; give --grid, such as --grid 1x2")
    use_threads(None, wanted)
    from cotswold.training.team import SOLO

    return _train(words, SOLO)


@dataclass(frozen=True)
class Words:
    """What the command was told."""

    recipe: str | None
    run: Path | None
    overrides: list[str]
    stores: Path | None
    resume: bool
    resume_if_started: bool

    def again(self, grid: Grid, run: Path, *, resumed: bool) -> list[str]:
        """The words for a rank of a grid, which go on where the run has begun if it is ``resumed``."""
        words = ["train", *([] if self.recipe is None else [self.recipe]), "--run", str(run)]
        others = [one for one in self.overrides if not one.startswith(GRID)]
        for override in [*others, f'{GRID}"{grid}"']:
            words += ["--set", override]
        if self.stores is not None:
            words += ["--stores", str(self.stores)]
        if resumed or self.resume_if_started:
            return [*words, "--resume-if-started"]
        return [*words, "--resume"] if self.resume else words


def _start(words: Words, name: str, grid: Grid, restarts: int) -> int:
    """Train on ranks of this machine, and watch over them."""
    from cotswold.cli import ranks
    from cotswold.cli.figures import cores
    from cotswold.api.progress import say
    from cotswold.launch import run_local
    from cotswold.run import RunDirectory

    run = words.run
    if run is None:
        run = Path("runs") / name
    most = ranks.RANKS_A_CORE * cores()
    if grid.size > most:
        raise UserError(
            f"a {grid} grid would start {grid.size} processes on {cores()} cores; start at most {most} here, "
            "or more on several machines (torchrun, mpirun, srun)"
        )
    if (run / "recipe.toml").is_file():
        with RunDirectory.open(run).lock():
            pass  # if another process trains it, that is said once and at once
    code = run_local(
        words.again(grid, run, resumed=False),
        grid.size,
        run / "logs",
        cores=cores(),
        restarts=restarts,
        restart_words=words.again(grid, run, resumed=True),
    )
    if code == 1 and (run / "checkpoints").is_dir():
        say(f"go on from the last checkpoint with: cotswold train --run {shlex.quote(str(run))} --resume")
    return code


def _train(words: Words, team: Team) -> int:
    from cotswold import training
    from cotswold.api.progress import TrainingDisplay, counting, say

    how = training.Resume.ALWAYS if words.resume else training.Resume.NEVER
    with counting("preparing", "pictures") if team.leads else nullcontext() as tally:
        job = training.open_job(
            words.recipe,
            words.run,
            overrides=words.overrides,
            stores=words.stores,
            resume=training.Resume.IF_STARTED if words.resume_if_started else how,
            tally=tally,
            team=team,
        )
    if team.leads and not job.resumed:
        for note in job.store.notes:
            say(note)
    stop = training.Stop()
    with stopping(stop), TrainingDisplay() if team.leads else nullcontext(_unseen) as display:
        finished = job.train(watch=display, stop=stop)
    where = shlex.quote(str(words.run or job.run.path))
    if finished:
        if team.leads:
            say(f"finished; look at it with: cotswold report {where}")
        return 0
    if team.leads:
        say(f"stopped and saved; go on with: cotswold train --run {where} --resume")
    return 128 + (stop.signal or signal.SIGINT)


def _unseen(event: Mapping[str, object]) -> None:
    """What ranks show of an event that do not lead."""


@contextmanager
def stopping(stop: Stop) -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP asks for a stop after the step; a second one leaves at once.

    The same signal again within a moment is an echo: batch systems signal a launcher and its ranks, and the
    launcher passes on what it got. SIGHUP never hurries, for it comes by itself when a terminal closes and,
    from systemd, after SIGTERM; where it was ignored (nohup) it stays so.
    """
    first = 0.0

    def handle(number: int, _: object) -> None:
        nonlocal first
        if stop.signal is None:
            first = time.monotonic()
        elif number == signal.SIGHUP or (number == stop.signal and time.monotonic() - first < ECHO_SECONDS):
            return
        if stop.signal is not None:
            _tell(b"left at once; nothing since the last checkpoint is kept\n")
            os._exit(128 + number)
        stop.signal = number
        _tell(b"\nstopping after this step; once more to leave at once, unsaved\n")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(sentence: bytes) -> None:
    """Write to the terminal out of a signal handler, even where there is no terminal any more."""
    with suppress(OSError):
        os.write(2, sentence)
