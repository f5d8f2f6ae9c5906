"""A cluster as an optimiser sees it: vectors and an objective, by processes that may die.

Knows: what is asked of the servers and of the workers, in which order. Does not know: how an evaluation goes
(`batch.core.coordinator`), methods, recipes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from cotswold import wire as m
from cotswold.batch.core.permutation import words
from cotswold.batch.core.requests import Counted, Request
from cotswold.batch.runtime.pattern_sets import Sets
from cotswold.batch.runtime.startup import POINT, Opened, Opening, Task, write
from cotswold.batch.runtime.validation import Validating
from cotswold.batch.runtime.vector_cache import Contents
from cotswold.errors import MachineError, UserError
from cotswold.host import ForkServer, Processes, Token
from cotswold.host.open_files import require_descriptors
from cotswold.optim import Command, Evaluation
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.coordinator_loop import OnEvent, TroubleError
from cotswold.processes.endpoint_settings import Reach
from cotswold.shards.runtime.chunked_read import Pieces
from cotswold.transport import Endpoint
from cotswold.transport.socket_folder import remove_left_folders

PRELOADED = ("torch", "cotswold.batch.runtime.worker_process", "cotswold.paramserver.runtime.server_process")
"""What whoever starts processes imports once."""


@dataclass(frozen=True)
class ClusterStatus:
    """Where things are, for whoever watches."""

    evaluation: int
    portions: int
    """Of the present evaluation, or the newest."""
    done: int
    """Of these, how many are computed or counted."""
    samples: int
    """Patterns of those: about, for the last portion may be smaller."""
    workers: int
    """That are alive."""
    backups: int
    """Backup copies given so far."""
    sent_bytes: int
    """By the coordinator, so far; shared memory included."""
    received_bytes: int


def open_cluster(
    settings: ClusterSettings,
    work: str,
    arguments: Mapping[str, object],
    *,
    processes: Processes | None = None,
    token: Token | None = None,
    host: str | None = None,
    logs: Path | None = None,
    on_event: OnEvent = lambda kind, more: None,
) -> Cluster:
    """Start workers and parameter servers; returns when the first parameters are on the servers.

    Each worker calls ``work`` (``"module:function"``) with ``arguments`` (what JSON can say), which returns a
    `Work`. ``processes`` starts them (by default a fork server of this host); the cluster ends what it
    started, and the fork server that it made. ``host``: the address at which other machines reach this one,
    None where there are none. ``logs``: the folder to which processes print. ``on_event`` hears of workers
    that come and go, of backup copies and of evaluations, by kind and plain values.

    Raises UserError where the work cannot be made, MachineError where processes cannot be started.
    """
    require_descriptors(settings.members)
    token = token or Token.new()
    own = None
    if processes is None:
        processes = own = ForkServer((*PRELOADED, work.partition(":")[0]))
    endpoint = None
    try:
        endpoint = Endpoint(
            token,
            m.COORDINATOR,
            host=host,
            ports=Reach.of(settings, host).one_of_ports,
            encrypt=settings.encrypt,
            lost_seconds=settings.lost_seconds,
        )
        task = Task(work, arguments, logs, host)
        opening = Opening(settings, task, processes, token, endpoint, on_event)
        try:
            opened = opening.open()
        except BaseException:
            opening.staff.close()
            raise
    except BaseException:
        if endpoint is not None:
            endpoint.close()
        if own is not None:
            own.close()
        raise
    return Cluster(settings, opened, on_event, own)


class Cluster:
    """Vectors (`optim.Vectors`) and an objective (`optim.Objective`) on the processes of a cluster."""

    def __init__(
        self, settings: ClusterSettings, opened: Opened, on_event: OnEvent, own: ForkServer | None
    ) -> None:
        self._settings, self._opened, self._on_event, self._own = settings, opened, on_event, own
        self._conversation, self._machine = opened.conversation, opened.conversation.machine
        self._contents = Contents()
        self._contents.written(POINT)
        self._sets = Sets(opened.dealing)
        self._backups = 0
        self._halted: tuple[object, ...] | None = None
        """What was asked for in an evaluation that met trouble, which is on still."""
        self.last: Counted | None = None
        """The newest evaluation: which portions count, by whom, what was given again."""

    # --- what there is ---

    @property
    def size(self) -> int:
        """The length of a vector."""
        return self._opened.made.size

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors."""
        found: torch.dtype = getattr(torch, self._opened.made.dtype)
        return found

    @property
    def epsilon(self) -> float:
        """From 1 to the next number of a vector."""
        return float(torch.finfo(self.dtype).eps)

    @property
    def patterns(self) -> int:
        """How many patterns there are."""
        return self._opened.made.patterns

    @property
    def draws(self) -> int:
        """How many sets of patterns were drawn."""
        return self._sets.draws

    @property
    def flops(self) -> tuple[int, int]:
        """Of one pattern: of the value, and of the gradient with the value."""
        return self._opened.made.flops

    @property
    def vectors(self) -> Cluster:
        """The vectors on the servers, as `optim` commands them."""
        return self

    @property
    def objective(self) -> Cluster:
        """The sum over the patterns, as `optim` asks for it."""
        return self

    @property
    def workers(self) -> Mapping[str, int]:
        """Workers whose processes run, and the numbers of their processes."""
        staff = self._conversation.staff
        return {name: staff.pid_of(name) for name in staff.workers}

    @property
    def servers(self) -> Mapping[str, int]:
        """Parameter servers that run, and the numbers of their processes."""
        staff = self._conversation.staff
        return {name: staff.pid_of(name) for name in self._opened.servers if staff.is_watched(name)}

    def status(self) -> ClusterStatus:
        """Where things are."""
        traffic = self._conversation.post.endpoint.traffic
        number, portions, done = self._machine.progress
        return ClusterStatus(
            number,
            portions,
            done,
            min(done * self._settings.portion, self.patterns),
            len(self._machine.members),
            self._backups,
            traffic.sent_bytes + traffic.sent_shared_bytes,
            traffic.received_bytes + traffic.received_shared_bytes,
        )

    def watch(self, on_progress: Callable[[ClusterStatus], None] | None) -> None:
        """Call a function some times a second in each evaluation, which ends with what it raises."""
        if on_progress is None:
            self._conversation.on_progress = None
        else:
            self._conversation.on_progress = lambda: on_progress(self.status())

    def hire(self, count: int) -> None:
        """Start so many workers more; they join while evaluations go on."""
        self._conversation.staff.hire(count)

    # --- vectors ---

    def run(self, commands: Sequence[Command]) -> list[float]:
        """Do as commanded on all shards, in one round; the dots. Raises KeyError for an unknown vector."""
        self._contents.check(commands)
        self._require_servers()
        self._give_up_halted()
        self._conversation.deliver(self._machine.run(commands, time.monotonic()))
        done = self._conversation.outcome()
        assert not isinstance(done, Counted), "a round was asked for"
        if done.error is not None:
            raise MachineError(f"{done.error}; resume the run")
        self._contents.ran(commands)
        return list(done.dots)

    def read(self, name: str) -> Tensor:
        """A vector, whole. Raises KeyError for one that there is not."""
        self._contents.check_name(name)
        made = self._opened.made
        pieces = Pieces(
            self._opened.shards, name, made.dtype, self.size, lambda shards: m.Pull(0, 0, name, shards)
        )
        self._conversation.read(pieces, self._settings.silent_seconds)
        return torch.from_numpy(pieces.whole)

    def write(self, name: str, vector: Tensor) -> None:
        """Set a vector, which is new or not. Raises UserError for one of another length or type."""
        if tuple(vector.shape) != (self.size,) or vector.dtype != self.dtype:
            raise UserError(
                f"the vector {name} has {tuple(vector.shape)} of {vector.dtype}; the cluster's have "
                f"{self.size} of {self.dtype}"
            )
        self._give_up_halted()
        values = vector.detach().contiguous().numpy()
        shards, servers = self._opened.shards, self._opened.servers
        write(self._conversation, shards, servers, name, values, self._settings.silent_seconds)
        self._contents.written(name)

    # --- evaluations ---

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        patterns: str | None = None,
    ) -> Evaluation:
        """See `optim.Objective.evaluate`. Raises TroubleError where it cannot come to an end.

        The same asked again, before any other command, goes on where it was, with what is computed already,
        and what failed is tried again: after `hire`, say.
        """
        made = () if gradient is None else (gradient,)
        self._contents.check([*before], at=at)
        self._contents.check([*before, *after], made=made)
        self._require_servers()
        kept = self._sets.state()
        recorded = self._sets.next_recorded() if patterns is None else self._sets.portions(patterns)
        request = Request(
            at, gradient, tuple(before), tuple(after), recorded, self._sets.draws, self._settings.fraction
        )
        self._begin(request, (request, kept))
        try:
            done = self._conversation.outcome()
        except TroubleError:
            self._sets.load(kept)  # what was to be drawn is drawn again
            self._halted = (request, kept)
            raise
        except BaseException:
            self._sets.load(kept)
            self._abandon()
            raise
        if not isinstance(done, Counted):
            raise TroubleError(f"{done.error}; resume the run")
        if gradient is not None:
            self._contents.written(gradient)
        self._contents.ran(after)
        return self._counted(done, patterns)

    def part(self, patterns: str, fraction: float) -> str:
        """See `optim.Objective.part`."""
        return self._sets.part(patterns, fraction)

    def counted(self, patterns: str) -> tuple[int, ...]:
        """The portions that a set has; `portion_patterns` says which patterns."""
        return self._sets.portions(patterns)

    def portion_patterns(self, portion: int) -> Sequence[int]:
        """The patterns of a portion, in the order of their sum."""
        return self._opened.dealing.patterns_of(portion)

    def replay(self, recorded: Sequence[str]) -> None:
        """Draw these sets again, in the words of the events of kind ``counted``."""
        self._sets.replay(recorded)

    def validate(self, at: str = POINT) -> Mapping[str, float] | None:
        """Means over held-out patterns at a vector, by all workers; None without any.

        Raises MachineError where a worker fails at it, TroubleError where there is none any more.
        """
        self._contents.check_name(at)
        held, staff, alone_since = self._opened.made.held, self._conversation.staff, time.monotonic()
        if not held:
            return None
        workers = len(self._machine.members)
        validating = Validating(time.monotonic_ns(), at, held, self._settings.portion, workers)

        def is_done() -> bool:
            nonlocal alone_since
            self._require_servers()
            now = time.monotonic()
            if len(self._machine.members):
                alone_since = now
            elif staff.is_hopeless or now - alone_since > self._settings.alone_seconds:
                raise TroubleError("no worker is left that could validate; resume the run")
            for name, ask in validating.grant(self._machine.members, now):
                self._conversation.post.send(name, ask)
            return validating.is_done

        self._conversation.hearing(validating.hear, is_done)
        return validating.means()

    # --- resume, and the end ---

    def state(self) -> Mapping[str, object]:
        """Where the draws stand, as plain values; the vectors are kept by `read`."""
        return self._sets.state()

    def load(self, state: Mapping[str, object]) -> None:
        """Go on from a state, on any number of workers and servers; vectors come back by `write`."""
        self._sets.load(state)

    def close(self) -> None:
        """End all processes."""
        self._conversation.close(self._opened.servers)
        if self._own is not None:
            self._own.close()
        remove_left_folders()  # of workers that were killed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _counted(self, done: Counted, patterns: str | None) -> Evaluation:
        self.last = done
        self._backups += done.account.backups
        name = self._sets.drawn(done.portions) if patterns is None else patterns
        account = done.account
        self._on_event(
            "counted",
            {
                "evaluation": done.evaluation,
                "patterns": name,
                "portions": words(done.portions),
                "drawn": patterns is None,
                "samples": done.samples,
                "seconds": account.seconds,
                "workers": dict(account.by_name),
                "backups": account.backups,
                "backups_used": account.backups_used,
                "refused": account.refused,
                "lost": account.lost,
                "left_out": words(account.left_out),
            },
        )
        return Evaluation(done.total / done.samples, done.dots, name, done.samples)

    def _begin(self, request: Request, asked: tuple[object, ...]) -> None:
        """Ask for an evaluation, or for what is left of it."""
        if self._halted == asked:
            self._halted = None
            self._conversation.deliver(self._machine.retry(time.monotonic()))
            return
        self._give_up_halted()
        self._contents.ran(request.before)
        if self._settings.travel == "bunyip":
            request = self._contents.fetching(request.at).asked_in(request)
        self._conversation.deliver(self._machine.evaluate(request, time.monotonic()))

    def _give_up_halted(self) -> None:
        if self._halted is not None:
            self._halted = None
            self._abandon()

    def _abandon(self) -> None:
        self._contents.forget_held()
        self._conversation.abandon()

    def _lost_servers(self) -> str:
        return self._conversation.lost_servers(self._opened.servers)

    def _require_servers(self) -> None:
        if self._lost_servers():
            raise TroubleError(f"{self._lost_servers()} is gone with its vectors; resume the run")
