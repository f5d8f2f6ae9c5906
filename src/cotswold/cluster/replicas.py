"""Replicas and asynchronous parameter servers, as whoever trains by them sees them.

Knows: how they are opened, what is asked of servers, when nothing goes on. Does not know: which samples count
(`server.dispatching`), networks, recipes.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self, get_args

import numpy as np
import torch
from torch import Tensor

from cotswold.cluster.arithmetic import Array
from cotswold.cluster.listening import Listening, OnEvent, TroubleError
from cotswold.cluster.messages import Count, Counts, Doing, Learnt, Made
from cotswold.cluster.opening import POINT, Begun, Opening, Task, write
from cotswold.cluster.post import AnyMessage, Post
from cotswold.cluster.roles.accumulation import OwnSteps, Stepping
from cotswold.cluster.roles.own_host import Reach
from cotswold.cluster.roles.updates import said
from cotswold.cluster.settings import ClusterSettings
from cotswold.cluster.staff import Staff
from cotswold.cluster.transport import Endpoint
from cotswold.cluster.transport.folder import remove_left_folders
from cotswold.cluster.watching import Place, ReplicaStatus, ServerStatus, Watching
from cotswold.errors import MachineError, UserError
from cotswold.host import ForkServer, Processes, Token
from cotswold.optim.schedule import Schedule
from cotswold.optim.updates import Deltas, Rule, Sgd
from cotswold.server import messages as m
from cotswold.server.dispatching import Dispatch, Dispatcher, State
from cotswold.server.ranges import size as size_of
from cotswold.server.replica import Pace
from cotswold.server.samples import Account, Samples
from cotswold.server.staleness import Staleness
from cotswold.server.updating import Asynchronous, Room

PRELOADED = ("torch", "cotswold.cluster.roles.replica", "cotswold.cluster.roles.server")
"""What whoever starts processes imports once."""
_RUN = "run"
_TICK_SECONDS = 0.05
_LAST_SECONDS = 2.0
_BEAT_SECONDS = 0.1
"""How often a replica says that it lives; who has no samples, when an epoch begins, asks so for some."""
_HANDS = 8
"""A replica gets so many batches at once, at most; and so many hands an epoch, at least."""
_HEARD = (*get_args(m.FromReplica), m.Ordered)


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

    def dispatch(self, made: Made) -> Dispatch:
        """For a work; raises UserError for what cannot be."""
        batch, push = self.pace.batch, self.pace.n_push
        batches = made.patterns // (batch * _HANDS * self.processes.workers)
        pushes = max(1, min(_HANDS, batches) // push)  # accumulations end with what is in hand
        try:
            return Dispatch(
                _RUN,
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
    ) -> None:
        super().__init__(settings.processes, task, processes, token, endpoint, on_event)
        self._learning = settings

    def open_replicas(self, ledger: Samples | None, vectors: Mapping[str, Tensor]) -> Replicas:
        """Start everything; ``ledger`` and ``vectors`` are those to go on from."""
        begun = self._begun()
        servers = [(name, self._serving[name]) for name in begun.servers]
        rules = self._learning.dispatch(begun.made)
        if ledger is not None and ledger.samples != rules.samples:
            raise UserError(f"the run had {ledger.samples} samples, and there are {rules.samples} now")
        machine = Dispatcher(rules, begun.shards, servers, time.monotonic(), ledger)
        conversation = ReplicaConversation(self._post, self.staff, machine, self._on_event)
        zeros = np.zeros(begun.made.size, begun.made.dtype)
        firsts = {POINT: begun.given, **dict.fromkeys(self._learning.rule.keeps, zeros)}
        for name, first in reversed(firsts.items()):  # nobody begins before the parameters are there
            value = vectors[name].numpy() if name in vectors else first
            if value.shape != first.shape or value.dtype != first.dtype:
                raise UserError(
                    f"the vector {name} is {value.shape} of {value.dtype}, not as the work has it"
                )
            write(conversation, begun.shards, begun.servers, name, value)
        for letter in self._joins:
            conversation.hear_again(letter.sender, letter.message)
        return Replicas(conversation, begun, tuple(firsts))

    def _told_workers(self) -> Mapping[str, object]:
        pace = replace(self._learning.pace, moves=self._learning.own == "pushed")
        return {"pace": asdict(pace), "stepping": asdict(self._learning.stepping)}

    def _told_servers(self, made: Made) -> Mapping[str, object]:
        item_bytes = np.dtype(made.dtype).itemsize
        room = 4 * made.size * item_bytes * self._settings.workers
        settings = Asynchronous(
            _RUN,
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
        return {"updates": said(settings)}


class ReplicaConversation(Listening):
    """Whatever the coordinator of replicas hears."""

    tick_seconds = _TICK_SECONDS

    def __init__(self, post: Post, staff: Staff, machine: Dispatcher, on_event: OnEvent) -> None:
        super().__init__(post, staff, on_event)
        self.machine = machine
        self.learnt: list[Learnt] = []
        """Since it was taken."""
        self.watching = Watching()
        self.on_tick: Callable[[], None] = lambda: None
        """Called some times a second, whatever is waited for; it must not wait itself."""

    @property
    def servers(self) -> list[str]:
        """Their names."""
        return [name for name, _ in self.machine.servers]

    def hear_again(self, sender: str, message: AnyMessage) -> None:
        """A message that came while the cluster was opened."""
        self._let_hear(sender, message)

    def close(self) -> None:
        """Dismiss all, and end their processes."""
        self._end(self.machine.members, self.servers)

    def _let_hear(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, Learnt | Doing) and message.name == sender:
            self.watching.hear(message, time.monotonic())
        if isinstance(message, Counts) and message.server == sender:
            self.watching.hear(message, time.monotonic())
        elif isinstance(message, Learnt) and message.name == sender:
            self.learnt.append(message)
            self.staff.joined(sender)  # whoever ends before its first step ended in vain
        elif isinstance(message, _HEARD):
            self.deliver(self.machine.receive(sender, message, time.monotonic()))
            if self.machine.state is State.OVER:  # who asks now is dismissed
                self.staff.start_no_more()

    def _let_know(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        self.machine.ended(name, why)
        self.watching.forget(name)
        return []

    def _tick(self, now: float) -> None:
        self._give_up_lost(now)
        self.deliver(self.machine.tick(now))
        self.staff.tick(now)
        for event in self.machine.take_events():
            told = asdict(event)
            self._on_event(told.pop("kind"), told)
        for server in self.servers:
            if self.watching.to_ask(server, now):
                self.post.send(server, Count())
        self.on_tick()
        self._given_up.update(self.machine.silent_servers(now, self.machine.rules.silent_seconds))
        if lost := self.lost_servers(self.servers):
            raise TroubleError(f"{lost} is gone; resume the run")
        is_alone = self.staff.is_hopeless and not len(self.machine.members)
        if is_alone and self.machine.state is not State.OVER:
            last = f"; the last of them: {self.staff.last_words}" if self.staff.last_words else ""
            raise TroubleError(f"every replica is dead{last}; resume the run")


class Replicas:
    """Replicas that learn; use in a ``with`` statement, or `close`."""

    def __init__(self, conversation: ReplicaConversation, begun: Begun, vectors: tuple[str, ...]) -> None:
        self._conversation, self._begun = conversation, begun
        self._machine = conversation.machine
        self.vectors = vectors
        """Their names: the parameters first, then what the rule keeps."""
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
        """A vector as it is on the servers now; raises TroubleError where one is gone."""
        whole: Array = np.empty(self.size, self._begun.made.dtype)
        waiting = set(self._begun.servers)
        shards = {one.number: one for one in self._begun.shards}

        def hear(message: AnyMessage) -> None:
            if not isinstance(message, m.Pulled) or message.name != name or message.server not in waiting:
                return
            if message.error is not None:
                raise MachineError(f"{message.server} cannot give the vector {name}: {message.error}")
            for number, buffer in zip(message.shards, message.buffers, strict=True):
                assert isinstance(buffer, bytes | bytearray | memoryview)
                whole[shards[number].start : shards[number].stop] = np.frombuffer(buffer, whole.dtype)
            waiting.discard(message.server)

        for server in self._begun.servers:
            own = tuple(one.number for one in self._begun.shards if one.server == server)
            self._conversation.post.send(server, m.Pull(0, 0, name, own))
        self._conversation.hearing(hear, lambda: not waiting)
        return torch.from_numpy(whole)

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
    ledger: Samples | None = None,
    vectors: Mapping[str, Tensor] | None = None,
    processes: Processes | None = None,
    token: Token | None = None,
    host: str | None = None,
    logs: Path | None = None,
    on_event: OnEvent = lambda kind, more: None,
) -> Replicas:
    """Start replicas and parameter servers; returns when the first parameters are on the servers.

    Each replica calls ``work`` (``"module:function"``) with ``arguments`` (what JSON can say), which returns
    a `ReplicaWork`. ``ledger`` and ``vectors`` (by name) are those of a run that goes on. The rest is as for
    `open_cluster`.
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
        opening = _Opening(settings, Task(work, arguments, logs, host), processes, token, endpoint, on_event)
        opened.callback(opening.staff.close)
        replicas = opening.open_replicas(ledger, vectors or {})
        replicas.close_with(resources)
        opened.pop_all()
        return replicas
