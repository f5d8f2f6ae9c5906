"""A cluster as an optimiser sees it: vectors and an objective, computed by processes that may die.

Knows: the requests to servers and workers, and their order. Does not know: the course of an evaluation
(`batch.core.coordinator`), methods, recipes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from cotswold import wire as m
from cotswold.batch.core.requests import EvaluationRequest, EvaluationResult
from cotswold.batch.runtime.sample_sets import SampleSets
from cotswold.batch.runtime.startup import POINT, StartedCluster, write_vector
from cotswold.batch.runtime.status import ClusterStatus, counted_values
from cotswold.batch.runtime.validation import ValidationPass, run_validation
from cotswold.batch.runtime.vector_cache import VectorCache
from cotswold.errors import ResumableError, UserError
from cotswold.host import ForkServer
from cotswold.optim import Command, Evaluation
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.coordinator_loop import ClusterFailedError, OnEvent
from cotswold.shards.runtime.chunked_read import ChunkedRead
from cotswold.transport.socket_folder import remove_stale_folders


class BatchCluster:
    """Vectors (`optim.Vectors`) and an objective (`optim.Objective`) on the processes of a cluster.

    Made by `open_cluster`.
    """

    def __init__(
        self, settings: ClusterSettings, opened: StartedCluster, on_event: OnEvent, own: ForkServer | None
    ) -> None:
        self._settings, self._started, self._on_event, self._fork_server = settings, opened, on_event, own
        self._coordinator, self._machine = opened.coordinator, opened.coordinator.machine
        self._contents = VectorCache()
        self._contents.written(POINT)
        self._sets = SampleSets(opened.permutation)
        self._backups = 0
        self._interrupted: tuple[object, ...] | None = None
        """Request and draws of a stalled evaluation that can be continued."""
        self.last: EvaluationResult | None = None
        """Result of the newest evaluation: counted portions, workers, repeated work."""

    # --- properties ---

    @property
    def size(self) -> int:
        """Length of a vector."""
        return self._started.work.size

    @property
    def dtype(self) -> torch.dtype:
        """Type of the vectors' elements: float32 or float64."""
        found: torch.dtype = getattr(torch, self._started.work.dtype)
        return found

    @property
    def epsilon(self) -> float:
        """Machine epsilon of the vectors' type."""
        return float(torch.finfo(self.dtype).eps)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self._started.work.samples

    @property
    def draw_count(self) -> int:
        """Number of sample sets drawn so far."""
        return self._sets.draws

    @property
    def flops(self) -> tuple[int, int]:
        """Floating-point operations per sample: for the value, and for value and gradient."""
        return self._started.work.flops

    @property
    def vectors(self) -> BatchCluster:
        """The vectors on the servers, as `optim.Vectors`."""
        return self

    @property
    def objective(self) -> BatchCluster:
        """The sum over the samples, as `optim.Objective`."""
        return self

    @property
    def workers(self) -> Mapping[str, int]:
        """Process ids of the running workers, by name."""
        process_group = self._coordinator.process_group
        return {name: process_group.pid_of(name) for name in process_group.workers}

    @property
    def servers(self) -> Mapping[str, int]:
        """Process ids of the running parameter servers, by name."""
        process_group = self._coordinator.process_group
        return {
            name: process_group.pid_of(name)
            for name in self._started.servers
            if process_group.is_watched(name)
        }

    def status(self) -> ClusterStatus:
        """Return the current progress."""
        traffic = self._coordinator.messenger.endpoint.traffic
        number, portions, done = self._machine.progress
        return ClusterStatus(
            number,
            portions,
            done,
            min(done * self._settings.portion_size, self.samples),
            len(self._machine.members),
            self._backups,
            traffic.sent_bytes + traffic.sent_shared_bytes,
            traffic.received_bytes + traffic.received_shared_bytes,
        )

    def watch(self, on_progress: Callable[[ClusterStatus], None] | None) -> None:
        """Call a function several times per second during each evaluation; its exception ends the evaluation.

        Args:
            on_progress: Receives the current status; None stops the calls.
        """
        if on_progress is None:
            self._coordinator.on_progress = None
        else:
            self._coordinator.on_progress = lambda: on_progress(self.status())

    def hire(self, count: int) -> None:
        """Start more workers, which join during evaluations.

        Args:
            count: Number of workers to start.
        """
        self._coordinator.process_group.spawn(count)

    # --- vectors ---

    def run(self, commands: Sequence[Command]) -> list[float]:
        """Run commands on all shards, in one round.

        Args:
            commands: Commands on vectors by name, run in order.

        Returns:
            The result of each `Dot`, in order.

        Raises:
            KeyError: A command names an unknown vector.
            MachineError: A server cannot run the commands.
            ClusterFailedError: A server is lost.
        """
        self._contents.check(commands)
        self._require_servers()
        self._abandon_interrupted()
        self._coordinator.deliver(self._machine.run(commands, time.monotonic()))
        done = self._coordinator.outcome()
        assert not isinstance(done, EvaluationResult), "no round was requested"
        if done.error is not None:
            raise ResumableError(f"{done.error}")
        self._contents.ran(commands)
        return list(done.dots)

    def read(self, name: str) -> Tensor:
        """Return a whole vector.

        Args:
            name: Name of the vector.

        Returns:
            A new tensor ``(size,)`` on the CPU.

        Raises:
            KeyError: The vector does not exist.
            MachineError: A server cannot send it.
        """
        self._contents.check_name(name)
        made = self._started.work
        pieces = ChunkedRead(
            self._started.shards, name, made.dtype, self.size, lambda shards: m.Pull(0, 0, name, shards)
        )
        self._coordinator.read(pieces, self._settings.silent_seconds)
        return torch.from_numpy(pieces.vector)

    def write(self, name: str, vector: Tensor) -> None:
        """Set a vector, creating it if necessary.

        Args:
            name: Name of the vector.
            vector: Values ``(size,)`` of type `dtype`.

        Raises:
            UserError: The vector has another length or type.
            MachineError: A server cannot store it.
        """
        if tuple(vector.shape) != (self.size,) or vector.dtype != self.dtype:
            raise UserError(
                f"vector {name!r} must have shape ({self.size},) and type {self.dtype}, got "
                f"{tuple(vector.shape)} and {vector.dtype}"
            )
        self._abandon_interrupted()
        values = vector.detach().contiguous().numpy()
        shards, servers = self._started.shards, self._started.servers
        write_vector(self._coordinator, shards, servers, name, values, self._settings.silent_seconds)
        self._contents.written(name)

    # --- evaluations ---

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        sample_set: str | None = None,
    ) -> Evaluation:
        """Evaluate the objective at a vector; see `optim.Objective.evaluate`.

        After a ClusterFailedError the same request, before any other command, continues the evaluation:
        computed portions are kept, failed ones are tried again, for example after `hire`.

        Args:
            at: Name of the vector with the parameters.
            gradient: Name of the vector that receives the gradient; None for the value only.
            before: Commands to run before the evaluation.
            after: Commands to run after it.
            sample_set: Name of the set of samples; None draws a new set.

        Returns:
            The mean value over the counted samples, the results of dot products, and the set's name and
            size.

        Raises:
            KeyError: A vector does not exist.
            UserError: The set of samples does not exist in this cycle.
            ClusterFailedError: The evaluation cannot finish.
        """
        made = () if gradient is None else (gradient,)
        self._contents.check([*before], at=at)
        self._contents.check([*before, *after], created=made)
        self._require_servers()
        kept = self._sets.state()
        recorded = self._sets.next_replayed() if sample_set is None else self._sets.portions(sample_set)
        draws, fraction = self._sets.draws, self._settings.sample_fraction
        request = EvaluationRequest(at, gradient, tuple(before), tuple(after), recorded, draws, fraction)
        self._begin(request, (request, kept))
        try:
            done = self._coordinator.outcome()
        except ClusterFailedError:
            self._sets.load(kept)  # the same set will be drawn again
            self._interrupted = (request, kept)
            raise
        except BaseException:
            self._sets.load(kept)
            self._abandon()
            raise
        if not isinstance(done, EvaluationResult):
            raise ClusterFailedError(f"{done.error}")
        if gradient is not None:
            self._contents.written(gradient)
        self._contents.ran(after)
        return self._counted(done, sample_set)

    def part(self, sample_set: str, fraction: float) -> str:
        """Return the name of a fraction of a set; see `optim.Objective.part`.

        Args:
            sample_set: Name of the set.
            fraction: Fraction of its portions, above 0 and at most 1.
        """
        return self._sets.subset(sample_set, fraction)

    def counted(self, sample_set: str) -> tuple[int, ...]:
        """Return the portions of a set; `portion_samples` returns their samples.

        Args:
            sample_set: Name of the set.
        """
        return self._sets.portions(sample_set)

    def portion_samples(self, portion: int) -> Sequence[int]:
        """Return the samples of a portion, in the order of summation.

        Args:
            portion: Number of the portion.
        """
        return self._started.permutation.samples_of(portion)

    def replay(self, recorded: Sequence[str]) -> None:
        """Draw these sets again in the following evaluations.

        Args:
            recorded: Portions of each set, as recorded in events of kind ``subset``.

        Raises:
            UserError: A set does not fit this run.
        """
        self._sets.replay(recorded)

    def validate(self, at: str = POINT) -> Mapping[str, float] | None:
        """Return means over the held-out samples, computed by all workers.

        Args:
            at: Name of the vector with the parameters.

        Returns:
            ``loss`` and further means by name; None without held-out samples.

        Raises:
            KeyError: The vector does not exist.
            MachineError: A worker fails to evaluate samples.
            ClusterFailedError: No worker is left, or a server is lost.
        """
        self._contents.check_name(at)
        held = self._started.work.held_out
        if not held:
            return None
        workers = len(self._machine.members)
        validating = ValidationPass(time.monotonic_ns(), at, held, self._settings.portion_size, workers)
        return run_validation(
            validating, self._coordinator, self._settings.alone_seconds, self._require_servers
        )

    # --- resume and close ---

    def state(self) -> Mapping[str, object]:
        """Return the state of the draws as plain values; save the vectors with `read`."""
        return self._sets.state()

    def load(self, state: Mapping[str, object]) -> None:
        """Restore a state, with any number of workers and servers; restore the vectors with `write`.

        Args:
            state: Result of `state`.

        Raises:
            UserError: The state belongs to other data or settings.
        """
        self._sets.load(state)

    def close(self) -> None:
        """Stop all processes."""
        self._coordinator.close(self._started.servers)
        if self._fork_server is not None:
            self._fork_server.close()
        remove_stale_folders()  # of killed workers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _counted(self, done: EvaluationResult, sample_set: str | None) -> Evaluation:
        self.last = done
        self._backups += done.account.backups
        name = self._sets.add_drawn(done.portions) if sample_set is None else sample_set
        self._on_event("evaluation", counted_values(done, name, is_drawn=sample_set is None))
        return Evaluation(done.total / done.samples, done.dots, name, done.samples)

    def _begin(self, request: EvaluationRequest, asked: tuple[object, ...]) -> None:
        """Start an evaluation, or continue a stalled one."""
        if self._interrupted == asked:
            self._interrupted = None
            self._coordinator.deliver(self._machine.retry(time.monotonic()))
            return
        self._abandon_interrupted()
        self._contents.ran(request.before)
        if self._settings.point_transfer == "bunyip":
            request = self._contents.instructions(request.at).apply_to(request)
        self._coordinator.deliver(self._machine.evaluate(request, time.monotonic()))

    def _abandon_interrupted(self) -> None:
        if self._interrupted is not None:
            self._interrupted = None
            self._abandon()

    def _abandon(self) -> None:
        self._contents.forget_workers()
        self._coordinator.abandon()

    def _lost_servers(self) -> str:
        return self._coordinator.lost_servers(self._started.servers)

    def _require_servers(self) -> None:
        if self._lost_servers():
            raise ClusterFailedError(f"{self._lost_servers()} is lost with its vectors")
