"""The whole training set on the processes of a cluster.

Knows: what `[cluster]` asks for, how a cluster is opened and becomes a place for the runner. Does not know:
methods, when a run ends, how processes are started.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from cotswold.batch.runtime.cluster import Cluster
from cotswold.batch.runtime.entry import PRELOADED, open_cluster
from cotswold.batch.runtime.pattern_sets import ALL
from cotswold.batch.runtime.status import ClusterStatus
from cotswold.errors import RunError
from cotswold.geometry import Grid
from cotswold.host import ForkServer, Token, token_of
from cotswold.optim import Command, Evaluation
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.ray.processes import RayProcesses
from cotswold.processes.ray.settings import secret_of_machines
from cotswold.recipe import Recipe, expand
from cotswold.recipe.schema import BatchTraining
from cotswold.recipe.schema.cluster import port_range
from cotswold.run import Recorder, RunDirectory, read_events
from cotswold.shards.core.permutation import format_ranges
from cotswold.training.full_batch.local import Drawn, Look, Share

ROWS = "rows"
"""The folder of a run in which the workers find the samples while it is trained."""


class There:
    """The whole set on a cluster: its vectors, its objective, a place for the runner."""

    def __init__(self, cluster: Cluster, recorder: Recorder, recorded: Sequence[str] = ()) -> None:
        """``recorded``: the sets of patterns to be drawn, the first ones of the run."""
        self.cluster = cluster
        cluster.replay(recorded)
        self._look: Look = lambda share: None
        self._gradient = True
        self._sent = 0
        recorder.sent_bytes = self._take_sent

    # ---- for the runner

    @property
    def flops(self) -> tuple[int, int]:
        """Of one pattern, as a worker says."""
        return self.cluster.flops

    @property
    def workers(self) -> int:
        """How many are alive."""
        return len(self.cluster.workers)

    def listen(self, look: Look) -> None:
        """Have this hear some times a second, while an evaluation goes on."""
        self._look = look

    def state(self) -> Mapping[str, object]:
        """How many sets of patterns were drawn."""
        return dict(self.cluster.state())

    def load(self, state: Mapping[str, object]) -> None:
        """Go on from there, on any number of workers and servers."""
        self.cluster.load(state)

    def read(self, name: str) -> Tensor:
        """A vector, pulled from the servers."""
        return self.cluster.read(name)

    def write(self, name: str, value: Tensor) -> None:
        """Set a vector on the servers."""
        self.cluster.write(name, value)

    def validate(self) -> Mapping[str, float] | None:
        """By all workers, at the point."""
        return self.cluster.validate()

    # ---- for the method

    @property
    def epsilon(self) -> float:
        """From 1 to the next number of a vector."""
        return self.cluster.epsilon

    def run(self, commands: Sequence[Command]) -> list[float]:
        """One round on the servers."""
        return self.cluster.vectors.run(commands)

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        patterns: str | None = None,
    ) -> Evaluation:
        """As `Objective.evaluate`, by the workers."""
        self._gradient = gradient is not None
        kept = self.cluster.state()
        self.cluster.watch(self._tell)  # not while vectors are saved: a stop would end that as well
        try:
            found = self.cluster.evaluate(at, gradient, before=before, after=after, patterns=patterns)
        except BaseException:
            self.cluster.load(kept)  # the patterns of what is given up are drawn again
            raise
        finally:
            self.cluster.watch(None)
        now = self.cluster.status()
        self._look(
            Share(
                now.evaluation,
                now.done,
                now.portions,
                found.value,
                found.samples,
                self._gradient,
                finished=True,
                workers=now.workers,
                backups=now.backups,
                drawn=None if patterns is not None else self._drawn(found.patterns),
            )
        )
        return found

    def part(self, patterns: str, fraction: float) -> str:
        """As `Objective.part`."""
        return self.cluster.part(patterns, fraction)

    def _drawn(self, name: str) -> Drawn:
        return Drawn(self.cluster.draws, name, format_ranges(self.cluster.counted(name)))

    def _tell(self, now: ClusterStatus) -> None:
        self._look(
            Share(
                now.evaluation,
                now.done,
                now.portions,
                None,
                now.samples,
                self._gradient,
                workers=now.workers,
                backups=now.backups,
            )
        )

    def _take_sent(self) -> int:
        before, self._sent = self._sent, self.cluster.status().sent_bytes
        return self._sent - before


def settings_of(recipe: Recipe) -> ClusterSettings:
    """What `[cluster]` and `[training]` ask of a cluster."""
    training, cluster = recipe.training, recipe.cluster
    assert isinstance(training, BatchTraining), "the strategy has a cluster"
    return ClusterSettings(
        workers=cluster.workers,
        servers=cluster.servers,
        travel=cluster.travel,
        portion=training.portion,
        fraction=training.fraction,
        deterministic=training.deterministic,
        seed=training.seed,
        deadline=training.deadline,
        copies=cluster.copies,
        ranks=1 if recipe.gang is None else Grid.parse(recipe.gang).size,
        encrypt=cluster.encrypt,
        ports=port_range(cluster.ports),
        spread_servers=cluster.spread_servers,
        link_bits_per_second=round(1e6 * cluster.link_megabits),
        silent_seconds=cluster.silence,
        alone_seconds=cluster.wait,
    )


def spread(
    recipe: Recipe,
    run: Path,
    work: str,
    arguments: Mapping[str, object],
    recorder: Recorder,
    open_things: ExitStack,
    processes: Callable[[], ForkServer] | None = None,
    more: Callable[[Starting], Mapping[str, object]] = lambda start: {},
) -> There:
    """A cluster for a recipe, which ends with ``open_things``. ``processes``: what starts them, by default a
    fork server of this machine, or Ray where the recipe has an address; ``more``: gives further arguments of
    the work."""
    start = starting(recipe, (*PRELOADED, work.partition(":")[0]), open_things, processes)
    cluster = open_cluster(
        settings_of(recipe),
        work,
        {**arguments, **more(start)},
        processes=start.processes,
        token=start.token,
        host=start.host,
        logs=_made(run / "logs"),
        on_event=lambda kind, more: tell(recorder, kind, more),
    )
    return There(open_things.enter_context(cluster), recorder, recorded_in(recipe))


@dataclass(frozen=True)
class Starting:
    """What starts the processes of a cluster, and by what they know each other."""

    processes: RayProcesses | ForkServer
    token: Token
    host: str | None
    """The address at which other machines reach this one; None where there are none."""


def starting(
    recipe: Recipe,
    preloaded: Sequence[str],
    open_things: ExitStack,
    processes: Callable[[], ForkServer] | None = None,
) -> Starting:
    """Ray where the recipe has an address, otherwise a fork server of this machine; it ends with
    ``open_things``. ``preloaded``: modules that are imported once; ``processes``: another fork server."""
    if recipe.cluster.address is not None:
        secret = secret_of_machines()
        ray = RayProcesses(recipe.cluster.address, secret, preloaded)
        open_things.callback(ray.close)
        return Starting(ray, secret, ray.own_address)
    given = processes() if processes is not None else _fork_server(preloaded)
    open_things.callback(given.close)
    return Starting(given, token_of(os.environ) or Token.new(), None)


def _fork_server(preloaded: Sequence[str]) -> ForkServer:
    """Starts processes of this host; torch is to say nothing of sockets where ranks of a gang end."""
    return ForkServer(preloaded, {"TORCH_CPP_LOG_LEVEL": "FATAL", **os.environ})


def recorded_in(recipe: Recipe) -> Sequence[str]:
    """The sets of patterns that the run counted which `cluster.replay` names, portions in words.

    Raises RunError where there is no such run, or it recorded none.
    """
    if recipe.cluster.replay is None:
        return ()
    run = RunDirectory.open(Path(expand(recipe.cluster.replay)))
    # after a resumption draws come again; the later one of a number is the one that counted
    found: dict[int, str] = {}
    names = set()
    for event in read_events(run.events):
        draw, portions = event.get("draw"), event.get("portions")
        if event.get("kind") == "draw" and isinstance(draw, int) and isinstance(portions, str):
            found[draw] = portions
            names.add(event.get("set"))
    if names <= {ALL}:
        raise RunError(f"{run.path} drew no patterns that could be counted again; it counted all of them")
    return [found[draw] for draw in sorted(found)]


def tell(recorder: Recorder, kind: str, more: Mapping[str, object]) -> None:
    """Write what a cluster says among the run's events."""
    recorder.event(f"cluster_{kind}", **more)


def rows_folder(run: Path, open_things: ExitStack) -> Path:
    """The folder for the workers' samples, which is removed with ``open_things``."""
    folder = run / ROWS
    open_things.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
