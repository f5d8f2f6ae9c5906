"""How replicas and their servers come up: what they are asked to be, what each process is told.

Knows: the settings and their limits, the order of it, servers with and without copies. Does not know: what
is asked of them afterwards (`replicas.replicas`).
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from cotswold import wire as m
from cotswold.batch.runtime.startup import POINT, Begun, Opening, Task, write
from cotswold.errors import MachineError, UserError
from cotswold.host import Call, Processes, Token
from cotswold.optim.schedule import Schedule
from cotswold.optim.server_rules import AddUpdate, Rule, Sgd
from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.paramserver.core.dispatcher_settings import Dispatch
from cotswold.paramserver.core.replica import Pace
from cotswold.paramserver.core.settings import Asynchronous, Room
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.update_loop import said
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.coordinator_loop import OnEvent
from cotswold.processes.credentials import handed_on
from cotswold.processes.endpoint_settings import Reach
from cotswold.replicas.accumulation import GROWS, GROWS_MOVING, OwnSteps, Stepping
from cotswold.replicas.coordinator_loop import ReplicaConversation
from cotswold.replicas.evaluator import Evaluator, EvaluatorTask
from cotswold.replicas.replicated_coordinator import USUAL_SECONDS, BucketConversation
from cotswold.replicas.snapshot import Snapshot
from cotswold.replication.client.endpoints import Outward
from cotswold.replication.client.routed_messenger import RoutedPost
from cotswold.replication.client.standalone_cluster import StandingServers, controllers_at, places_by_name
from cotswold.replication.client.unreachable import why_none_leads, why_unreached
from cotswold.replication.limits import check_description, check_messages
from cotswold.replication.run_description import NAME_LETTERS, Description
from cotswold.replication.runtime.run_cluster import CONTROLLER, Keepers
from cotswold.transport import Endpoint, Ready
from cotswold.wire.lifecycle import Made, Serving
from cotswold.wire.messenger import Letter, Post

QUEUE_VECTORS = 4
"""So many times the parameters may wait on a server as updates, for each replica."""
_BEAT_SECONDS = 0.1
"""How often a replica says that it lives; who has no samples, when an epoch begins, asks so for some."""
_BUCKETS = 8
"""A server: so that what a dead one had goes to all others, and each bucket costs little."""
_CONTROLLERS_SECONDS = 10.0
_ASK_SECONDS = 0.3
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
    """Steps that a replica takes by itself between two pulls; with rule `AddUpdate` they are ``pushed``."""
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
    may_move: bool = True
    """Whether replicas may take steps of their own while a bucket moves to another server."""
    name: str = ""
    """As people call the run."""
    traffic: Path | None = None
    """The folder in which each server writes down what replicas send, and when; None for nowhere."""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise UserError(f"a learning rate of {self.rate}; it is more than 0")
        if (self.own == "pushed") is not isinstance(self.rule, AddUpdate):
            raise UserError(
                f"replicas whose own steps are {self.own!r}, and rule {self.rule.name} on the servers: steps "
                "are pushed to servers that add them up (deltas), and to no others; Adagrad's sum of squares "
                "is that of gradients"
            )

    @property
    def stepping(self) -> Stepping:
        """What replicas are told of steps."""
        beyond = self.processes.workers if self.may_move and isinstance(self.rule, Sgd) else 0
        return Stepping(self.own, self.schedule, self.warmup, self.epochs, beyond)

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
class OpenedReplicas:
    """Replicas that are up, and their servers."""

    conversation: ReplicaConversation
    begun: Begun
    vectors: tuple[str, ...]
    """Their names: the parameters first, then what the rule keeps."""
    evaluator: Evaluator | None


class ReplicaOpening(Opening):
    """One beginning: `open_replicas` does it."""

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
        held: ExitStack,
    ) -> None:
        """``held``: what ends with the run."""
        self._run = secrets.token_hex(8)
        self._controllers = controllers_at(settings.processes.standing)
        super().__init__(settings.processes, task, processes, token, endpoint, on_event)
        self._learning, self._snapshot, self._vectors = settings, snapshot, vectors
        self._evaluator = evaluator
        self._keepers: Keepers | StandingServers | None = None
        if isinstance(self._post, RoutedPost):
            if settings.processes.ranks > 1:
                raise UserError(
                    "replicas of several processes push to servers without copies; leave server_copies out"
                )
            if self._controllers:
                note = None if settings.processes.note is None else Path(settings.processes.note)
                self._keepers = StandingServers(self._post, self._controllers, self._run, note)
            else:
                self._keepers = Keepers(settings.processes, self.staff, self._post, self._call_with, held)

    def open_replicas(self) -> OpenedReplicas:
        """Start everything."""
        begun, snapshot = self._begun(), self._snapshot
        rules = self._learning.dispatch(begun.made, self._run)
        ledger = None if snapshot is None else snapshot.ledger
        counters = None if snapshot is None else snapshot.counters
        if ledger is not None and ledger.samples != rules.samples:
            raise UserError(f"the run had {ledger.samples} samples, and there are {rules.samples} now")
        servers = [(name, self._serving.get(name, "")) for name in begun.servers]
        machine = Dispatcher(rules, begun.shards, servers, time.monotonic(), ledger, counters)
        conversation = self._conversation(machine, begun.made)
        evaluator = None
        if self._evaluator is not None:
            evaluator = Evaluator(conversation, self._evaluator_of, begun.shards, begun.made.dtype)
        names = self._write(conversation, begun)
        for letter in self._joins:
            conversation.hear_again(letter.sender, letter.message)
        return OpenedReplicas(conversation, begun, names, evaluator)

    def _write(self, conversation: ReplicaConversation, begun: Begun) -> tuple[str, ...]:
        """Set all vectors, which are named, on the servers."""
        vectors = self._vectors if self._snapshot is None else self._snapshot.vectors
        zeros = np.zeros(begun.made.size, begun.made.dtype)
        firsts = {POINT: begun.given, **dict.fromkeys(self._learning.rule.keeps, zeros)}
        for name, first in reversed(firsts.items()):  # nobody begins before the parameters are there
            value = vectors[name].numpy() if name in vectors else first
            if value.shape != first.shape or value.dtype != first.dtype:
                raise UserError(
                    f"the vector {name} is {value.shape} of {value.dtype}, not as the work has it"
                )
            write(conversation, begun.shards, begun.servers, name, value, self._settings.silent_seconds)
        return tuple(firsts)

    # --- servers that keep copies ---

    def _served(self, made: Made) -> tuple[tuple[m.Shard, ...], tuple[str, ...]]:
        if self._keepers is None:
            return super()._served(made)
        keepers, description = self._keepers, self._described(made)
        check_description(description)
        vectors = 1 + len(self._learning.rule.keeps)
        check_messages(description, vectors, self._post.endpoint.message_bytes)
        if isinstance(keepers, StandingServers):
            self._await_controllers(keepers)
        else:
            keepers.start_controller(time.monotonic())
            self._await("the controller", lambda: keepers.has_controller)
            for _ in range(self._settings.servers):
                keepers.start_server(time.monotonic())
            self._await("the parameter servers", lambda: len(keepers.servers) == self._settings.servers)
        self._post.meet((bucket, "") for bucket in description.buckets)
        return description.shards, description.buckets

    def _await_controllers(self, servers: StandingServers) -> None:
        """A controller of the cluster is there, and knows this run for one of its own."""
        began, asked, is_told = time.monotonic(), float("-inf"), False
        deadline, where = began + _CONTROLLERS_SECONDS, ", ".join(self._settings.standing)
        while (now := time.monotonic()) < deadline:
            if not is_told and now - began > USUAL_SECONDS:
                is_told = True
                self._on_event("waiting", {"name": where, "sentence": f"waiting for a controller at {where}"})
            if now - asked > _ASK_SECONDS:
                asked = now
                servers.ask()
            match self._post.receive(_ASK_SECONDS):
                case Letter(_, m.Looked() as looked):
                    servers.happened(looked)  # of which nothing is the run's
                    return
                case Letter() as letter:
                    self._hear(letter)
                case Ready(descriptor):
                    self._ended(descriptor)
                case _:
                    pass
        said = f"no controller that leads has answered for {_CONTROLLERS_SECONDS:g} s"
        places, lost = places_by_name(self._settings.standing), servers.post.calls.lost
        if following := servers.post.calls.following:
            raise MachineError(f"{said}: {why_none_leads(places, lost, following)}")
        raise MachineError(f"{said}: {why_unreached(places, lost)}")

    def _conversation(self, machine: Dispatcher, made: Made) -> ReplicaConversation:
        if self._keepers is None:
            return ReplicaConversation(self._post, self.staff, machine, self._on_event)
        patience = self._settings.alone_seconds
        conversation = BucketConversation(self.staff, machine, self._on_event, self._keepers, patience)
        description = self._described(made)
        servers = self._settings.servers if isinstance(self._keepers, Keepers) else 1
        wanted = m.Create(self._run, description.text, description.buckets, servers)
        conversation.create(wanted, self._settings.start_seconds)
        return conversation

    def _described(self, made: Made) -> Description:
        told = self._told_servers(made)
        return Description(
            self._run,
            made.layout,
            made.dtype,
            self._settings.shard_bytes,
            self._settings.buckets or _BUCKETS * self._settings.servers,
            cast(Mapping[str, Any], told["updates"]),
            cast(Sequence[int], told["versions"]),
            self._learning.name[:NAME_LETTERS],
        )

    def _hear(self, letter: Letter) -> None:
        message = letter.message
        if self._keepers is not None and isinstance(message, Serving):
            self._keepers.heard(message, ())
        else:
            super()._hear(letter)

    def _make_post(self) -> Post:
        if not self._settings.keeps_copies:
            return super()._make_post()
        if not self._controllers:
            return RoutedPost(self._endpoint, {CONTROLLER: ""})
        reach = Reach.of(self._settings, self._task.host)
        outward = Outward(m.COORDINATOR, self._run, reach)
        return RoutedPost(self._endpoint, self._controllers, outward)

    def _at_work(self, name: str, work: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
        made = super()._at_work(name, work, arguments)
        if self._keepers is None:
            return made
        standing = {"standing_run": self._run} if self._controllers else {}
        return {**made, "controllers": self._keepers.controllers, **standing}

    def _call(self, name: str, role: str, arguments: Mapping[str, object]) -> Call:
        call = super()._call(name, role, arguments)
        own = handed_on(os.environ) if self._controllers else {}
        return replace(call, environ={**call.environ, **own})

    # --- what processes are told ---

    def _evaluator_of(self, name: str) -> Call:
        assert self._evaluator is not None, "there is one"
        made = self._at_work(name, self._evaluator.work, self._evaluator.arguments)
        return self._call(name, "evaluator", {**made, "device": self._learning.device})

    def _call_with(self, name: str, role: str, arguments: Mapping[str, object]) -> Call:
        told = {"name": name, "coordinator": self._endpoint.address, "reach": self._reach}
        return self._call(name, role, {**told, **arguments})

    def _told_worker(self, name: str) -> Mapping[str, object]:
        stepping, stretch = self._learning.stepping, 1
        if self._keepers is None:
            stepping = replace(stepping, beyond=0)  # nothing moves
        else:
            stretch = GROWS_MOVING if stepping.beyond else GROWS
        pace = replace(self._learning.pace, moves=self._learning.own == "pushed", stretch=stretch)
        device = {"device": self._learning.device, "place": self.staff.place_of(name)}
        return {"pace": asdict(pace), "stepping": asdict(stepping), **device}

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
            deals=True,
        )
        versions = () if self._snapshot is None else self._snapshot.versions
        traffic = self._learning.traffic
        return {
            "updates": said(settings),
            "versions": versions,
            "traffic": None if traffic is None else str(traffic),
        }
