"""The whole training set on the processes of a cluster.

Knows: what `[cluster]` asks for, how a cluster is opened and becomes a place for the runner. Does not know:
methods, when a run ends, how processes are started.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from cotswold.cluster import ClusterSettings
from cotswold.cluster.cluster import PRELOADED, Cluster, ClusterStatus, open_cluster
from cotswold.cluster.ray_processes import RayProcesses
from cotswold.cluster.ray_settings import reachable, require_ray
from cotswold.errors import RunError, UserError
from cotswold.geometry import Grid
from cotswold.host import ForkServer, Token, token, token_in, token_of
from cotswold.optim import Command, Evaluation
from cotswold.recipe import Recipe, expand
from cotswold.recipe.schema import BatchTraining
from cotswold.recipe.schema.cluster import port_range
from cotswold.run import Recorder, RunDirectory, read_events
from cotswold.server.dealing import words
from cotswold.training.whole_set import Look, Share

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
        self._recorder = recorder
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
        if patterns is None and found.patterns != "all":
            draw = self.cluster.state().get("draws")
            portions = words(self.cluster.counted(found.patterns))
            self._recorder.event("draw", draw=draw, samples=found.samples, portions=portions)
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
            )
        )
        return found

    def part(self, patterns: str, fraction: float) -> str:
        """As `Objective.part`."""
        return self.cluster.part(patterns, fraction)

    def _tell(self, now: ClusterStatus) -> None:
        samples = self.cluster.patterns * now.done // max(1, now.portions)
        self._look(
            Share(
                now.evaluation,
                now.done,
                now.portions,
                None,
                samples,
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
) -> There:
    """A cluster for a recipe, which ends with ``open_things``. ``processes``: what starts them, by default a
    fork server of this machine, or Ray where the recipe has an address."""
    secret, host = token_of(os.environ) or Token.new(), None
    given: RayProcesses | ForkServer | None = None
    if recipe.cluster.address is not None:
        check_joining(recipe, run)
        secret = token_of(os.environ) or token_in(token_file(run))
        ray = RayProcesses(recipe.cluster.address, secret, (*PRELOADED, work.partition(":")[0]))
        open_things.callback(ray.close)
        given, host = ray, ray.own_address
    else:
        given = processes() if processes is not None else _fork_server(work)
        open_things.callback(given.close)
    cluster = open_cluster(
        settings_of(recipe),
        work,
        arguments,
        processes=given,
        token=secret,
        host=host,
        logs=_made(run / "logs"),
        on_event=lambda kind, more: tell(recorder, kind, more),
    )
    return There(open_things.enter_context(cluster), recorder, recorded_in(recipe))


def _fork_server(work: str) -> ForkServer:
    """Starts processes of this host; torch is to say nothing of sockets where ranks of a gang end."""
    environ = {"TORCH_CPP_LOG_LEVEL": "FATAL", **os.environ}
    return ForkServer((*PRELOADED, work.partition(":")[0]), environ)


def check_joining(recipe: Recipe, run: Path) -> None:
    """Raise UserError where a recipe has the address of machines and there is no secret of theirs, or nobody
    answers there: before anything is prepared."""
    address = recipe.cluster.address
    if address is None or not isinstance(recipe.training, BatchTraining):
        return
    require_ray()
    if token_of(os.environ) is None and not token_file(run).exists():
        raise UserError(
            f"the machines at {address} let in only who has their token, and this program has none; set "
            f"{token.VARIABLE} to it, as in: COTSWOLD_TOKEN=$(cat token) cotswold train ..."
        )
    reachable(address)


def recorded_in(recipe: Recipe) -> Sequence[str]:
    """The sets of patterns that the run counted which `cluster.replay` names, portions in words.

    Raises RunError where there is no such run, or it recorded none.
    """
    if recipe.cluster.replay is None:
        return ()
    run = RunDirectory.open(Path(expand(recipe.cluster.replay)))
    # after a resumption draws come again; the later one of a number is the one that counted
    found: dict[int, str] = {}
    for event in read_events(run.events):
        draw, portions = event.get("draw"), event.get("portions")
        if event.get("kind") == "draw" and isinstance(draw, int) and isinstance(portions, str):
            found[draw] = portions
    if not found:
        raise RunError(f"{run.path} drew no patterns that could be counted again; it counted all of them")
    return [found[draw] for draw in sorted(found)]


def tell(recorder: Recorder, kind: str, more: Mapping[str, object]) -> None:
    """Write what a cluster says among the run's events."""
    recorder.event(f"cluster_{kind}", **more)


def token_file(run: Path) -> Path:
    """Where the machines of a cluster find the secret by which they know each other, beside the run."""
    return run.parent / f".cotswold-token-{os.geteuid()}"


def rows_folder(run: Path, open_things: ExitStack) -> Path:
    """The folder for the workers' samples, which is removed with ``open_things``."""
    folder = run / ROWS
    open_things.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
