"""Replicas and asynchronous parameter servers, as whoever trains by them sees them.

Knows: how they are opened, what is asked of servers, when nothing goes on. Does not know: which samples count
(`server.dispatching`), networks, recipes.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from cotswold.cluster.evaluator import Evaluator, EvaluatorStatus, EvaluatorTask
from cotswold.cluster.listening import OnEvent
from cotswold.cluster.messages import Count, Counts, Learnt, Made
from cotswold.cluster.opening import POINT, Begun, Opening, Task, write
from cotswold.cluster.pieces import Ask, Pieces
from cotswold.cluster.post import AnyMessage
from cotswold.cluster.replica_conversation import ReplicaConversation
from cotswold.cluster.roles.accumulation import OwnSteps, Stepping
from cotswold.cluster.roles.own_host import Reach
from cotswold.cluster.roles.updates import said
from cotswold.cluster.settings import ClusterSettings
from cotswold.cluster.snapshot import Snapshot
from cotswold.cluster.transport import Endpoint
from cotswold.cluster.transport.folder import remove_left_folders
from cotswold.cluster.watching import Place, ReplicaStatus, ServerStatus
from cotswold.errors import UserError
from cotswold.host import Call, ForkServer, Processes, Token
from cotswold.optim.schedule import Schedule
from cotswold.optim.updates import Deltas, Rule, Sgd
from cotswold.server import messages as m
from cotswold.server.asynchronous import Asynchronous, Room
from cotswold.server.dispatching import Dispatch, Dispatcher, State
from cotswold.server.ranges import size as size_of
from cotswold.server.replica import Pace
from cotswold.server.samples import Account, Samples
from cotswold.server.staleness import Staleness

PRELOADED = (
    *("torch", "cotswold.cluster.roles.replica", "cotswold.cluster.roles.server"),
    "cotswold.cluster.roles.evaluator",
)
"""What whoever starts processes imports once."""
QUEUE_VECTORS = 4
"""So many times the parameters may wait on a server as updates, for each replica."""
_LAST_SECONDS = 2.0
_BEAT_SECONDS = 0.1
"""How often a replica says that it lives; who has no samples, when an epoch begins, asks so for some."""
_HANDS = 8
"""A replica gets so many batches at once, at most; and so many hands an epoch, at least."""


@dataclass(frozen=True)
class ReplicaSettings:
    """How replicas are to learn; raises UserError for what cannot be."""

    processes: ClusterSettings
    """Of which `workers` are replicas, `seed` deals samples, and nothing is used of evaluations."""
    pace: Pace
    rate: float
    epochs: int = 1
    rule: Rule = Sgd()  # noqa: RUF009  # it is frozen
    fraction: float = 0.75
    """Of ``of`` that must be done before an epoch ends."""
    of: str = "replicas"
    """Or ``samples``."""
    warm_samples: int = 0
    """So many are computed by one replica first."""
    staleness: Staleness = field(default_factory=Staleness)
    own: OwnSteps = "none"
    """Steps that a replica takes by itself between two pulls; with rule `Deltas` they are ``pushed``."""
    schedule: Schedule = "constant"
    """How the rate falls over the samples of the run."""
    warmup: float = 0.0
    """The part of the run over which the rate rises."""
    unit_norm: frozenset[str] = frozenset()
    """Tensors whose filters, rows of matrices, have norm 1 after each update."""
    order_seconds: float = 0.1
    """How often servers are asked what they have applied."""
    device: str = "cpu"
    """Where replicas and the evaluator compute, as for `own_device`."""
    traffic: Path | None = None
    """The folder in which each server writes down what replicas send, and when; None for nowhere."""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise UserError(f"a learning rate of {self.rate}; it is more than 0")
        if (self.own == "pushed") is not isinstance(self.rule, Deltas):
            raise UserError(
                f"replicas whose own steps are {self.own!r}, and rule {self.rule.name} on the servers: steps "
                "are pushed to servers that add them up (deltas), and to no others; Adagrad's sum of squares "
                "is that of gradients"
            )

    @property
    def stepping(self) -> Stepping:
        """What replicas are told of steps."""
        return Stepping(self.own, self.schedule, self.warmup, self.epochs)

    def dispatch(self, made: Made, run: str) -> Dispatch:
        """For a work; ``run``: what updates of this run, and of none before it, are meant for. Raises
        UserError for what cannot be."""
        batch, push = self.pace.batch, self.pace.n_push
        batches = made.patterns // (batch * _HANDS * self.processes.workers)
        pushes = max(1, min(_HANDS, batches) // push)  # accumulations end with what is in hand
        try:
            return Dispatch(
                run,
                made.patterns,
                made.size,
                self.epochs,
                self.rate,
                hand=batch * push * pushes,
                ahead=2 * batch,
                fraction=self.fraction,
                of=self.of,
                warm_samples=self.warm_samples,
                order_seconds=self.order_seconds,
                beat_seconds=_BEAT_SECONDS,
                silent_seconds=self.processes.silent_seconds,
                settings=json.dumps({"seed": self.processes.seed}),
            )
        except ValueError as error:
            raise UserError(str(error)) from error


@dataclass(frozen=True)
class ReplicasStatus:
    """Where things are, for whoever watches."""

    state: str
    """The coordinator's: warming, running, ending or over."""
    epoch: int
    account: Account
    """Of all epochs."""
    open: int
    """Samples that are handed out, and not settled."""
    replicas: int
    """In sessions."""
    each: tuple[ReplicaStatus, ...]
    """Of all replicas whose processes run."""
    servers: tuple[ServerStatus, ...]
    sent_bytes: int
    """By the coordinator, so far; shared memory included."""
    received_bytes: int
    evaluator: EvaluatorStatus | None = None
    """Where there is one."""


class _Opening(Opening):
    role, kind = "replica", "replica"

    def __init__(
        self,
        settings: ReplicaSettings,
        task: Task,
        processes: Processes,
        token: Token,
        endpoint: Endpoint,
        on_event: OnEvent,
        snapshot: Snapshot | None,
        vectors: Mapping[str, Tensor],
        evaluator: EvaluatorTask | None,
    ) -> None:
        super().__init__(settings.processes, task, processes, token, endpoint, on_event)
        self._learning, self._snapshot, self._vectors = settings, snapshot, vectors
        self._evaluator = evaluator
        self._run = secrets.token_hex(8)

    def open_replicas(self) -> Replicas:
        """Start everything."""
        begun, snapshot = self._begun(), self._snapshot
        servers = [(name, self._serving[name]) for name in begun.servers]
        rules = self._learning.dispatch(begun.made, self._run)
        ledger = None if snapshot is None else snapshot.ledger
        counters = None if snapshot is None else snapshot.counters
        vectors = self._vectors if snapshot is None else snapshot.vectors
        if ledger is not None and ledger.samples != rules.samples:
            raise UserError(f"the run had {ledger.samples} samples, and there are {rules.samples} now")
        machine = Dispatcher(rules, begun.shards, servers, time.monotonic(), ledger, counters)
        conversation = ReplicaConversation(self._post, self.staff, machine, self._on_event)
        evaluator = None
        if self._evaluator is not None:
            evaluator = Evaluator(conversation, self._evaluator_of, begun.shards, begun.made.dtype)
        zeros = np.zeros(begun.made.size, begun.made.dtype)
        firsts = {POINT: begun.given, **dict.fromkeys(self._learning.rule.keeps, zeros)}
        for name, first in reversed(firsts.items()):  # nobody begins before the parameters are there
            value = vectors[name].numpy() if name in vectors else first
            if value.shape != first.shape or value.dtype != first.dtype:
                raise UserError(
                    f"the vector {name} is {value.shape} of {value.dtype}, not as the work has it"
                )
            write(conversation, begun.shards, begun.servers, name, value, self._settings.silent_seconds)
        for letter in self._joins:
            conversation.hear_again(letter.sender, letter.message)
        return Replicas(conversation, begun, tuple(firsts), evaluator)

    def _evaluator_of(self, name: str) -> Call:
        assert self._evaluator is not None, "there is one"
        made = self._at_work(name, self._evaluator.work, self._evaluator.arguments)
        return self._call(name, "evaluator", {**made, "device": self._learning.device})

    def _told_worker(self, name: str) -> Mapping[str, object]:
        pace = replace(self._learning.pace, moves=self._learning.own == "pushed")
        device = {"device": self._learning.device, "place": self.staff.place_of(name)}
        return {"pace": asdict(pace), "stepping": asdict(self._learning.stepping), **device}

    def _told_servers(self, made: Made) -> Mapping[str, object]:
        item_bytes = np.dtype(made.dtype).itemsize
        room = QUEUE_VECTORS * made.size * item_bytes * self._settings.workers
        settings = Asynchronous(
            self._run,
            POINT,
            self._learning.rule,
            {name: columns for name, _, columns in made.layout},
            item_bytes,
            Room(room, room),
            self._learning.staleness,
            self._learning.unit_norm,
            self._learning.stepping.by_samples(made.patterns, self._learning.pace.batch),
            dict(made.products),
        )
        versions = () if self._snapshot is None else self._snapshot.versions
        traffic = self._learning.traffic
        return {
            "updates": said(settings),
            "versions": versions,
            "traffic": None if traffic is None else str(traffic),
        }


class Replicas:
    """Replicas that learn; use in a ``with`` statement, or `close`."""

    def __init__(
        self,
        conversation: ReplicaConversation,
        begun: Begun,
        vectors: tuple[str, ...],
        evaluator: Evaluator | None = None,
    ) -> None:
        self._conversation, self._begun = conversation, begun
        self._machine = conversation.machine
        self.vectors = vectors
        """Their names: the parameters first, then what the rule keeps."""
        self.evaluator = evaluator
        """Judges parameters, where there is one."""
        self._resources = ExitStack()

    def close_with(self, resources: ExitStack) -> None:
        """Close these too, last."""
        self._resources = resources

    @property
    def size(self) -> int:
        """The length of a vector."""
        return self._begun.made.size

    @property
    def samples(self) -> int:
        """Of an epoch."""
        return self._begun.made.patterns

    @property
    def flops(self) -> tuple[int, int]:
        """Of one sample, as the work says."""
        return self._begun.made.flops

    @property
    def ledger(self) -> Samples:
        """What became of the samples; not to be changed."""
        return self._machine.ledger

    @property
    def replicas(self) -> Mapping[str, int]:
        """Replicas whose processes run, and the numbers of their processes."""
        staff = self._conversation.staff
        return {name: staff.pid_of(name) for name in staff.workers}

    @property
    def servers(self) -> Mapping[str, int]:
        """Parameter servers that run, and the numbers of their processes."""
        staff = self._conversation.staff
        return {name: staff.pid_of(name) for name in self._begun.servers if staff.is_watched(name)}

    @property
    def is_over(self) -> bool:
        """Whether the last epoch is over, and all that was handed out is settled."""
        return self._machine.state is State.OVER

    def status(self) -> ReplicasStatus:
        """Where things are."""
        traffic = self._conversation.post.endpoint.traffic
        ledger = self._machine.ledger
        return ReplicasStatus(
            self._machine.state.value,
            ledger.epoch,
            ledger.total,
            ledger.open,
            len(self._machine.members),
            self._replicas_now(),
            self._servers_now(),
            traffic.sent_bytes + traffic.sent_shared_bytes,
            traffic.received_bytes + traffic.received_shared_bytes,
            None if self.evaluator is None else self.evaluator.status(),
        )

    def watch(self, on_tick: Callable[[], None]) -> None:
        """Have a function called some times a second, whatever is waited for; it must not wait itself."""
        self._conversation.on_tick = on_tick

    def _replicas_now(self) -> tuple[ReplicaStatus, ...]:
        members, now = self._machine.members, time.monotonic()
        watching, staff = self._conversation.watching, self._conversation.staff
        found = []
        for name in sorted(staff.workers, key=lambda each: (len(each), each)):
            session = members.session(name)
            in_hand = 0 if session is None else size_of(self._machine.ledger.open_of(session))
            heard = 0.0 if session is None else members.of[session].heard
            place = Place(name, staff.machine_of(name), staff.pid_of(name))
            found.append(watching.replica(place, in_hand, heard, now))
        return tuple(found)

    def _servers_now(self) -> tuple[ServerStatus, ...]:
        watching, staff, now = self._conversation.watching, self._conversation.staff, time.monotonic()
        shards = Counter(one.server for one in self._begun.shards)
        return tuple(
            watching.server(Place(name, staff.machine_of(name), staff.pid_of(name)), shards[name], now)
            for name in self._begun.servers
            if staff.is_watched(name)
        )

    def proceed(self, seconds: float) -> list[Learnt]:
        """Let them learn for so long, or to the end; what was computed meanwhile, whatever becomes of it.

        Raises TroubleError where nothing goes on: a server is gone, or every replica.
        """
        deadline = time.monotonic() + seconds
        self._conversation.wait(lambda: bool(self.is_over or time.monotonic() >= deadline))
        learnt, self._conversation.learnt = self._conversation.learnt, []
        return learnt

    def finish(self) -> list[Learnt]:
        """Once it is over: let replicas go, and hear what they computed last."""
        assert self.is_over, "it ended"
        deadline = time.monotonic() + _LAST_SECONDS
        self._conversation.wait(lambda: not self.replicas or time.monotonic() >= deadline)
        return self.proceed(0.0)

    def pause(self) -> None:
        """Hand out no more, and wait until all that was handed out is settled: the vectors then have exactly
        the samples that count, and do not change. Raises as `proceed`."""
        self._machine.is_paused = True
        self._conversation.wait(lambda: not self._machine.ledger.open)

    def go_on(self) -> None:
        """Hand out samples again."""
        self._machine.is_paused = False

    def hire(self, count: int) -> None:
        """Start so many replicas more; they join while others learn."""
        self._conversation.staff.hire(count)

    def read(self, name: str = POINT) -> Tensor:
        """A vector as it is on the servers now; raises TroubleError where one is gone or does not answer."""
        return torch.from_numpy(self._read(name, lambda shards: m.Pull(0, 0, name, shards)).whole)

    def _read(self, name: str, ask: Ask) -> Pieces:
        pieces = Pieces(self._begun.shards, name, self._begun.made.dtype, self.size, ask)
        self._conversation.read(pieces, self._machine.rules.silent_seconds)
        return pieces

    # --- what a run goes on from ---

    def snapshot(self) -> Snapshot:
        """Everything as it is now, while nothing is open: paused, or over."""
        versions = dict(each for counts in self.count() for each in counts.versions)
        return self._snapshot(self.ledger, {name: self.read(name) for name in self.vectors}, versions)

    def begin_checkpoint(self) -> bool:
        """Have servers keep a state while replicas learn; `is_frozen` says when they have. False where one is
        under way, or the training comes to its end."""
        if not self._machine.may_begin_checkpoint:
            return False
        self._machine.begin_checkpoint()
        return True

    @property
    def is_frozen(self) -> bool:
        """Whether all servers have kept the state of a checkpoint, which is to be taken."""
        return self._machine.kept is not None

    def take_checkpoint(self) -> Snapshot:
        """What servers have kept, once it is frozen, while replicas learn. Raises as `proceed`."""
        assert self.is_frozen, "a checkpoint is taken once it is frozen"
        number, vectors, versions = self._machine.checkpoint, {}, dict[int, int]()
        for name in self.vectors:
            pieces = self._read(name, lambda shards, name=name: m.PullFrozen(number, name, shards))  # type: ignore[misc]  # mypy and defaults
            vectors[name] = torch.from_numpy(pieces.whole)
            versions = pieces.versions
        return self._snapshot(self._machine.take_checkpoint(), vectors, versions)

    def _snapshot(
        self, ledger: Samples, vectors: Mapping[str, Tensor], versions: Mapping[int, int]
    ) -> Snapshot:
        by_number = tuple(versions[shard.number] for shard in self._begun.shards)
        return Snapshot(ledger, vectors, by_number, self._machine.counters)

    def count(self) -> tuple[Counts, ...]:
        """What each server has done so far; raises TroubleError where one is gone."""
        counts: dict[str, Counts] = {}

        def hear(message: AnyMessage) -> None:
            if isinstance(message, Counts):
                counts[message.server] = message

        for server in self._begun.servers:
            self._conversation.post.send(server, Count())
        self._conversation.hearing(hear, lambda: len(counts) == len(self._begun.servers))
        return tuple(counts[name] for name in self._begun.servers)

    def close(self) -> None:
        """End all processes."""
        self._conversation.close()
        self._resources.close()
        remove_left_folders()  # of replicas that were killed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_replicas(
    settings: ReplicaSettings,
    work: str,
    arguments: Mapping[str, object],
    *,
    snapshot: Snapshot | None = None,
    vectors: Mapping[str, Tensor] | None = None,
    evaluator: EvaluatorTask | None = None,
    processes: Processes | None = None,
    token: Token | None = None,
    host: str | None = None,
    logs: Path | None = None,
    on_event: OnEvent = lambda kind, more: None,
) -> Replicas:
    """Start replicas and parameter servers; returns when the first parameters are on the servers.

    Each replica calls ``work`` (``"module:function"``) with ``arguments`` (what JSON can say), which returns
    a `ReplicaWork`. ``snapshot`` is that of a run that goes on, on any number of replicas and servers;
    ``vectors`` (by name) are those that a new one begins with. With ``evaluator`` another process judges
    parameters. The rest is as for `open_cluster`.
    """
    with ExitStack() as opened:
        token = token or Token.new()
        resources = ExitStack()
        opened.push(resources)
        if processes is None:
            own = ForkServer((*PRELOADED, work.partition(":")[0]))
            resources.callback(own.close)
            processes = own
        reach = Reach.of(settings.processes, host)
        endpoint = Endpoint(
            token,
            m.COORDINATOR,
            host=host,
            ports=reach.one_of_ports,
            encrypt=reach.encrypt,
            lost_seconds=reach.lost_seconds,
        )
        opened.callback(endpoint.close)
        task = Task(work, arguments, logs, host)
        opening = _Opening(
            settings, task, processes, token, endpoint, on_event, snapshot, vectors or {}, evaluator
        )
        opened.callback(opening.staff.close)
        replicas = opening.open_replicas()
        replicas.close_with(resources)
        opened.pop_all()
        return replicas
