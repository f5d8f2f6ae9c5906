"""The cluster backend: the full batch, evaluated by the workers of a cluster.

Knows: the `[cluster]` section, how a cluster is opened and used as a backend. Does not know: methods, when a
run ends, how processes are started.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from cotswold.batch.runtime.cluster import BatchCluster
from cotswold.batch.runtime.entry import PRELOADED, open_cluster
from cotswold.batch.runtime.sample_sets import ALL
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
from cotswold.training.full_batch.local import EvaluationProgress, ProgressCallback, Subset

ROWS = "rows"
"""The folder of a run with the workers' samples, during training."""


class ClusterBackend:
    """The full batch on a cluster: its vectors, its objective, the backend of the trainer."""

    def __init__(self, cluster: BatchCluster, recorder: Recorder, recorded: Sequence[str] = ()) -> None:
        """``recorded`` lists the sets of samples to draw first in the run."""
        self.cluster = cluster
        cluster.replay(recorded)
        self._on_progress: ProgressCallback = lambda share: None
        self._gradient = True
        self._sent = 0
        recorder.sent_bytes = self._take_sent

    # ---- for the trainer

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample of value alone, and of value and gradient, as reported by a worker."""
        return self.cluster.flops

    @property
    def workers(self) -> int:
        """The number of live workers."""
        return len(self.cluster.workers)

    def listen(self, on_progress: ProgressCallback) -> None:
        """Call ``on_progress`` several times a second during an evaluation."""
        self._on_progress = on_progress

    def state(self) -> Mapping[str, object]:
        """Return the number of sets of samples drawn."""
        return dict(self.cluster.state())

    def load(self, state: Mapping[str, object]) -> None:
        """Restore a state that `state` returned, on any number of workers and servers."""
        self.cluster.load(state)

    def read(self, name: str) -> Tensor:
        """Return a vector pulled from the servers."""
        return self.cluster.read(name)

    def write(self, name: str, value: Tensor) -> None:
        """Set a vector on the servers."""
        self.cluster.write(name, value)

    def validate(self) -> Mapping[str, float] | None:
        """Return the validation metrics at the point, computed by all workers."""
        return self.cluster.validate()

    # ---- for the method

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number of a vector's dtype."""
        return self.cluster.epsilon

    def run(self, commands: Sequence[Command]) -> list[float]:
        """Run one round of commands on the servers."""
        return self.cluster.vectors.run(commands)

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        sample_set: str | None = None,
    ) -> Evaluation:
        """Evaluate the objective on the workers, as `Objective.evaluate`."""
        self._gradient = gradient is not None
        kept = self.cluster.state()
        self.cluster.watch(self._tell)  # not while vectors are saved: a stop would interrupt that too
        try:
            found = self.cluster.evaluate(at, gradient, before=before, after=after, sample_set=sample_set)
        except BaseException:
            self.cluster.load(kept)  # the samples of an aborted evaluation are drawn again
            raise
        finally:
            self.cluster.watch(None)
        now = self.cluster.status()
        self._on_progress(
            EvaluationProgress(
                now.evaluation,
                now.done,
                now.portions,
                found.value,
                found.samples,
                self._gradient,
                finished=True,
                workers=now.workers,
                backup_tasks=now.backups,
                drawn=None if sample_set is not None else self._drawn(found.sample_set),
            )
        )
        return found

    def part(self, sample_set: str, fraction: float) -> str:
        """Return the name of a fraction of a set, as `Objective.part`."""
        return self.cluster.part(sample_set, fraction)

    def _drawn(self, name: str) -> Subset:
        return Subset(self.cluster.draw_count, name, format_ranges(self.cluster.counted(name)))

    def _tell(self, now: ClusterStatus) -> None:
        self._on_progress(
            EvaluationProgress(
                now.evaluation,
                now.done,
                now.portions,
                None,
                now.samples,
                self._gradient,
                workers=now.workers,
                backup_tasks=now.backups,
            )
        )

    def _take_sent(self) -> int:
        before, self._sent = self._sent, self.cluster.status().sent_bytes
        return self._sent - before


def settings_of(recipe: Recipe) -> ClusterSettings:
    """Return the cluster settings of `[cluster]` and `[training]`."""
    training, cluster = recipe.training, recipe.cluster
    assert isinstance(training, BatchTraining), "only strategy batch comes here"
    return ClusterSettings(
        workers=cluster.workers,
        servers=cluster.servers,
        device=training.device,
        point_transfer=cluster.point_transfer,
        portion_size=training.portion_size,
        sample_fraction=training.sample_fraction,
        deterministic=training.deterministic,
        seed=training.seed,
        deadline_factor=training.deadline_factor,
        backup_tasks=cluster.backup_tasks,
        ranks=1 if recipe.worker_grid is None else Grid.parse(recipe.worker_grid).size,
        encrypt=cluster.encrypt,
        ports=port_range(cluster.ports),
        spread_servers=cluster.spread_servers,
        link_bits_per_second=round(1e6 * cluster.link_megabits),
        silent_seconds=cluster.heartbeat_timeout,
        alone_seconds=cluster.unavailable_timeout,
    )


def open_training_cluster(
    recipe: Recipe,
    run: Path,
    work: str,
    arguments: Mapping[str, object],
    recorder: Recorder,
    exit_stack: ExitStack,
    processes: Callable[[], ForkServer] | None = None,
    extra_arguments: Callable[[ClusterStarter], Mapping[str, object]] = lambda start: {},
) -> ClusterBackend:
    """Open a cluster for a recipe; it ends with ``exit_stack``.

    ``processes`` starts the processes: by default a fork server of this machine, or Ray if the recipe has an
    address. ``extra_arguments`` gives further arguments of the work.
    """
    start = cluster_starter(recipe, (*PRELOADED, work.partition(":")[0]), exit_stack, processes)
    cluster = open_cluster(
        settings_of(recipe),
        work,
        {**arguments, **extra_arguments(start)},
        processes=start.processes,
        token=start.token,
        host=start.host,
        logs=_made(run / "logs"),
        on_event=lambda kind, more: record_cluster_event(recorder, kind, more),
    )
    return ClusterBackend(exit_stack.enter_context(cluster), recorder, recorded_in(recipe))


@dataclass(frozen=True)
class ClusterStarter:
    """The starter of a cluster's processes, with the token that authenticates them."""

    processes: RayProcesses | ForkServer
    token: Token
    host: str | None
    """The address at which other machines reach this one; None without other machines."""


def cluster_starter(
    recipe: Recipe,
    preloaded: Sequence[str],
    exit_stack: ExitStack,
    processes: Callable[[], ForkServer] | None = None,
) -> ClusterStarter:
    """Return Ray if the recipe has an address, otherwise a fork server; it ends with ``exit_stack``.

    ``preloaded`` lists modules to import once; ``processes`` gives another fork server.
    """
    if recipe.cluster.ray_address is not None:
        secret = secret_of_machines()
        ray = RayProcesses(recipe.cluster.ray_address, secret, preloaded)
        exit_stack.callback(ray.close)
        return ClusterStarter(ray, secret, ray.own_address)
    given = processes() if processes is not None else _fork_server(preloaded)
    exit_stack.callback(given.close)
    return ClusterStarter(given, token_of(os.environ) or Token.new(), None)


def _fork_server(preloaded: Sequence[str]) -> ForkServer:
    """Return a fork server of this host; torch's socket messages are silenced, because ranks end abruptly."""
    return ForkServer(preloaded, {"TORCH_CPP_LOG_LEVEL": "FATAL", **os.environ})


def recorded_in(recipe: Recipe) -> Sequence[str]:
    """Return the sets of samples counted by the run that `cluster.replay_run` names, as portion ranges.

    Raises RunError if the run does not exist or recorded no sets.
    """
    if recipe.cluster.replay_run is None:
        return ()
    run = RunDirectory.open(Path(expand(recipe.cluster.replay_run)))
    # After a resume draws are repeated; the later one with a number is the one that counted.
    found: dict[int, str] = {}
    names = set()
    for event in read_events(run.events):
        subset, portions = event.get("subset"), event.get("portions")
        if event.get("kind") == "subset" and isinstance(subset, int) and isinstance(portions, str):
            found[subset] = portions
            names.add(event.get("subset_name"))
    if names <= {ALL}:
        raise RunError(f"{run.path} drew no sets of samples to replay: every evaluation counted all samples")
    return [found[number] for number in sorted(found)]


def record_cluster_event(recorder: Recorder, kind: str, fields: Mapping[str, object]) -> None:
    """Write an event of the cluster to the run's events."""
    recorder.event(f"cluster_{kind}", **fields)


def rows_folder(run: Path, exit_stack: ExitStack) -> Path:
    """Return the folder of the workers' samples; it is removed with ``exit_stack``."""
    folder = run / ROWS
    exit_stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
