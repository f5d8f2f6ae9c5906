"""Startup of replicas and their servers: the settings, and the arguments of each process.

Knows: the settings and their limits, the order of startup, servers with and without replication. Does not
know: later requests (`replicas.replicas`).
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
from cotswold.batch.runtime.startup import POINT, StartedProcesses, Startup, WorkDescription, write_vector
from cotswold.errors import MachineError, UserError
from cotswold.host import Call, Processes, Token
from cotswold.optim.schedule import Schedule
from cotswold.optim.server_rules import AddUpdate, Rule, Sgd
from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.paramserver.core.replica_session import Pace
from cotswold.paramserver.core.settings import AsyncSettings, DispatcherSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.update_loop import settings_as_dict
from cotswold.processes.coordinator_loop import OnEvent
from cotswold.processes.credentials import inherited_credentials
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.replicas.accumulation import GROWS, GROWS_MOVING, OwnSteps, StepSettings
from cotswold.replicas.coordinator_loop import ReplicaCoordinator
from cotswold.replicas.evaluator import EvaluatorHandle, EvaluatorTask
from cotswold.replicas.replicated_coordinator import USUAL_SECONDS, ReplicatedCoordinator
from cotswold.replicas.snapshot import ParameterSnapshot
from cotswold.replication.client.endpoints import ClusterEndpoints
from cotswold.replication.client.routed_messenger import RoutedMessenger
from cotswold.replication.client.standalone_cluster import (
    StandaloneCluster,
    addresses_by_name,
    controllers_at,
)
from cotswold.replication.client.unreachable import no_leader_text, unreachable_text
from cotswold.replication.limits import check_description, check_messages
from cotswold.replication.run_description import MAX_NAME_CHARS, Description
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.replication.runtime.run_cluster import CONTROLLER, RunCluster
from cotswold.transport import Endpoint, Ready
from cotswold.wire.lifecycle import ServerReady, WorkerReady
from cotswold.wire.messenger import Messenger, Received

QUEUE_VECTORS = 4
"""Size of a server's update queue for each replica, as a multiple of the parameters."""
_BEAT_SECONDS = 0.1
"""Seconds between a replica's heartbeats; with them an idle replica asks for samples when an epoch begins."""
_BUCKETS = 8
"""Buckets per server: enough to spread a lost server's buckets over all others, few enough to be cheap."""
_CONTROLLERS_SECONDS = 10.0
_REQUEST_SECONDS = 0.3
_ASSIGNMENT_BATCHES = 8
"""Batches per assignment of a replica, at most; and assignments per epoch, at least."""


@dataclass(frozen=True)
class ReplicaSettings:
    """Settings of replicas; raises UserError for invalid values."""

    processes: ReplicatedClusterSettings
    """Cluster settings: `workers` are replicas, `seed` distributes samples; those about evaluations are
    not used."""
    pace: Pace
    rate: float
    epochs: int = 1
    rule: Rule = Sgd()  # noqa: RUF009  # it is frozen
    fraction: float = 0.75
    """Fraction of ``of`` that must be done before an epoch ends."""
    of: str = "replicas"
    """``replicas`` or ``samples``."""
    warm_samples: int = 0
    """Samples that one replica computes first, alone."""
    staleness: Staleness = field(default_factory=Staleness)
    own: OwnSteps = "none"
    """Local steps that a replica takes between two pulls; with rule `AddUpdate` they are ``pushed``."""
    schedule: Schedule = "constant"
    """Schedule of the rate over the samples of the run."""
    warmup: float = 0.0
    """Fraction of the run over which the rate rises."""
    unit_norm: frozenset[str] = frozenset()
    """Tensors whose filters, the rows of matrices, are normalised to norm 1 after each update."""
    order_seconds: float = 0.1
    """Seconds between two requests to servers for what they have applied."""
    device: str = "cpu"
    """Device of replicas and the evaluator, as for `select_device`."""
    may_move: bool = True
    """Allow replicas to take local steps while a bucket moves to another server."""
    name: str = ""
    """Name of the run for people."""
    traffic: Path | None = None
    """Folder in which each server records the traffic of replicas; None for no record."""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise UserError(f"the learning rate must be more than 0, got {self.rate}")
        if (self.own == "pushed") is not isinstance(self.rule, AddUpdate):
            raise UserError(
                f"replicas with local steps {self.own!r}, and rule {self.rule.name} on the servers: steps "
                "are pushed only to servers that add them up (deltas); Adagrad's sum of squares "
                "needs gradients"
            )

    @property
    def stepping(self) -> StepSettings:
        """The replicas' settings of local steps."""
        beyond = self.processes.workers if self.may_move and isinstance(self.rule, Sgd) else 0
        return StepSettings(self.own, self.schedule, self.warmup, self.epochs, beyond)

    def dispatch(self, made: WorkerReady, run: str) -> DispatcherSettings:
        """Dispatcher settings for a work. ``run`` identifies the updates of this run, but not of earlier
        ones. Raises UserError for invalid values."""
        batch, push = self.pace.batch, self.pace.n_push
        batches = made.samples // (batch * _ASSIGNMENT_BATCHES * self.processes.workers)
        pushes = max(1, min(_ASSIGNMENT_BATCHES, batches) // push)  # accumulations end with the assignment
        try:
            return DispatcherSettings(
                run,
                made.samples,
                made.size,
                self.epochs,
                self.rate,
                assignment_samples=batch * push * pushes,
                assignments_ahead=2 * batch,
                fraction=self.fraction,
                of=self.of,
                warm_samples=self.warm_samples,
                state_seconds=self.order_seconds,
                beat_seconds=_BEAT_SECONDS,
                silent_seconds=self.processes.silent_seconds,
                settings=json.dumps({"seed": self.processes.seed}),
            )
        except ValueError as error:
            raise UserError(str(error)) from error


@dataclass(frozen=True)
class StartedReplicas:
    """Running replicas, and their servers."""

    coordinator: ReplicaCoordinator
    processes: StartedProcesses
    vectors: tuple[str, ...]
    """Names of the vectors: the parameters first, then the state of the update rule."""
    evaluator: EvaluatorHandle | None


class ReplicaStartup(Startup):
    """Startup of one run; call `open_replicas`."""

    role, kind = "replica", "replica"
    _settings: ReplicatedClusterSettings

    def __init__(
        self,
        settings: ReplicaSettings,
        task: WorkDescription,
        processes: Processes,
        token: Token,
        endpoint: Endpoint,
        on_event: OnEvent,
        snapshot: ParameterSnapshot | None,
        vectors: Mapping[str, Tensor],
        evaluator: EvaluatorTask | None,
        held: ExitStack,
    ) -> None:
        """``held`` owns resources that end with the run."""
        self._run = secrets.token_hex(8)
        self._controllers = controllers_at(settings.processes.standing)
        super().__init__(settings.processes, task, processes, token, endpoint, on_event)
        self._learning, self._snapshot, self._vectors = settings, snapshot, vectors
        self._evaluator = evaluator
        self._cluster: RunCluster | StandaloneCluster | None = None
        if isinstance(self._messenger, RoutedMessenger):
            if settings.processes.ranks > 1:
                raise UserError(
                    "replicas of several processes need servers without copies; leave replication_factor out"
                )
            if self._controllers:
                note = None if settings.processes.note is None else Path(settings.processes.note)
                self._cluster = StandaloneCluster(self._messenger, self._controllers, self._run, note)
            else:
                self._cluster = RunCluster(
                    settings.processes, self.process_group, self._messenger, self._call_with, held
                )

    def open_replicas(self) -> StartedReplicas:
        """Start all processes."""
        begun, snapshot = self._start_processes(), self._snapshot
        rules = self._learning.dispatch(begun.work, self._run)
        ledger = None if snapshot is None else snapshot.ledger
        counters = None if snapshot is None else snapshot.counters
        if ledger is not None and ledger.samples != rules.samples:
            raise UserError(f"the run had {ledger.samples} samples, but the data set now has {rules.samples}")
        servers = [(name, self._server_addresses.get(name, "")) for name in begun.servers]
        machine = Dispatcher(rules, begun.shards, servers, time.monotonic(), ledger, counters)
        coordinator = self._coordinator(machine, begun.work)
        evaluator = None
        if self._evaluator is not None:
            evaluator = EvaluatorHandle(coordinator, self._evaluator_of, begun.shards, begun.work.dtype)
        names = self._write(coordinator, begun)
        for received in self._joins:
            coordinator.handle_again(received.sender, received.message)
        return StartedReplicas(coordinator, begun, names, evaluator)

    def _write(self, coordinator: ReplicaCoordinator, begun: StartedProcesses) -> tuple[str, ...]:
        """Write all vectors to the servers, and return their names."""
        vectors = self._vectors if self._snapshot is None else self._snapshot.vectors
        zeros = np.zeros(begun.work.size, begun.work.dtype)
        firsts = {POINT: begun.parameters, **dict.fromkeys(self._learning.rule.state_names, zeros)}
        # the parameters come last: replicas start when they arrive
        for name, first in reversed(firsts.items()):
            value = vectors[name].numpy() if name in vectors else first
            if value.shape != first.shape or value.dtype != first.dtype:
                raise UserError(f"the vector {name} is {value.shape} of {value.dtype}, unlike the work's")
            write_vector(coordinator, begun.shards, begun.servers, name, value, self._settings.silent_seconds)
        return tuple(firsts)

    # --- replicated servers ---

    def _start_servers(self, made: WorkerReady) -> tuple[tuple[m.Shard, ...], tuple[str, ...]]:
        if self._cluster is None:
            return super()._start_servers(made)
        cluster, description = self._cluster, self._description(made)
        check_description(description)
        vectors = 1 + len(self._learning.rule.state_names)
        check_messages(description, vectors, self._messenger.endpoint.message_bytes)
        if isinstance(cluster, StandaloneCluster):
            self._await_controllers(cluster)
        else:
            cluster.start_controller(time.monotonic())
            self._await("the controller", lambda: cluster.has_controller)
            for _ in range(self._settings.servers):
                cluster.start_server(time.monotonic())
            self._await("the parameter servers", lambda: len(cluster.servers) == self._settings.servers)
        self._messenger.connect((bucket, "") for bucket in description.buckets)
        return description.shards, description.buckets

    def _await_controllers(self, servers: StandaloneCluster) -> None:
        """Wait until a controller of the cluster answers, and has registered this run."""
        began, asked, is_told = time.monotonic(), float("-inf"), False
        deadline, where = began + _CONTROLLERS_SECONDS, ", ".join(self._settings.standing)
        while (now := time.monotonic()) < deadline:
            if not is_told and now - began > USUAL_SECONDS:
                is_told = True
                self._on_event("waiting", {"name": where, "sentence": f"waiting for a controller at {where}"})
            if now - asked > _REQUEST_SECONDS:
                asked = now
                servers.send_status_request()
            match self._messenger.receive(_REQUEST_SECONDS):
                case Received(_, m.StatusReply() as looked):
                    servers.events_of(looked)  # no event of them belongs to the run
                    return
                case Received() as received:
                    self._on_message(received)
                case Ready(descriptor):
                    self._on_descriptor_ready(descriptor)
                case _:
                    pass
        said = f"no controller that leads has answered for {_CONTROLLERS_SECONDS:g} s"
        places, lost = addresses_by_name(self._settings.standing), servers.messenger.calls.lost
        if following := servers.messenger.calls.followers:
            raise MachineError(f"{said}: {no_leader_text(places, lost, following)}")
        raise MachineError(f"{said}: {unreachable_text(places, lost)}")

    def _coordinator(self, machine: Dispatcher, made: WorkerReady) -> ReplicaCoordinator:
        if self._cluster is None:
            return ReplicaCoordinator(self._messenger, self.process_group, machine, self._on_event)
        patience = self._settings.alone_seconds
        coordinator = ReplicatedCoordinator(
            self.process_group, machine, self._on_event, self._cluster, patience
        )
        description = self._description(made)
        servers = self._settings.servers if isinstance(self._cluster, RunCluster) else 1
        wanted = m.Create(self._run, description.text, description.buckets, servers)
        coordinator.create(wanted, self._settings.start_seconds)
        return coordinator

    def _description(self, made: WorkerReady) -> Description:
        told = self._server_arguments(made)
        return Description(
            self._run,
            made.layout,
            made.dtype,
            self._settings.shard_bytes,
            self._settings.max_buckets or _BUCKETS * self._settings.servers,
            cast(Mapping[str, Any], told["updates"]),
            cast(Sequence[int], told["versions"]),
            self._learning.name[:MAX_NAME_CHARS],
        )

    def _on_message(self, received: Received) -> None:
        message = received.message
        if self._cluster is not None and isinstance(message, ServerReady):
            self._cluster.on_ready(message, ())
        else:
            super()._on_message(received)

    def _make_messenger(self) -> Messenger:
        if not self._settings.keeps_copies:
            return super()._make_messenger()
        if not self._controllers:
            return RoutedMessenger(self._endpoint, {CONTROLLER: ""})
        endpoint_settings = EndpointSettings.of(self._settings, self._task.host)
        outward = ClusterEndpoints(m.COORDINATOR, self._run, endpoint_settings)
        return RoutedMessenger(self._endpoint, self._controllers, outward)

    def _work_arguments(self, name: str, work: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
        made = super()._work_arguments(name, work, arguments)
        if self._cluster is None:
            return made
        standing = {"cluster_run": self._run} if self._controllers else {}
        return {**made, "controllers": self._cluster.controllers, **standing}

    def _call(self, name: str, role: str, arguments: Mapping[str, object]) -> Call:
        call = super()._call(name, role, arguments)
        own = inherited_credentials(os.environ) if self._controllers else {}
        return replace(call, environ={**call.environ, **own})

    # --- arguments of processes ---

    def _evaluator_of(self, name: str) -> Call:
        assert self._evaluator is not None, "an evaluator exists"
        made = self._work_arguments(name, self._evaluator.work, self._evaluator.arguments)
        return self._call(name, "evaluator", {**made, "device": self._learning.device})

    def _call_with(self, name: str, role: str, arguments: Mapping[str, object]) -> Call:
        told = {
            "name": name,
            "coordinator": self._endpoint.address,
            "endpoint_settings": self._endpoint_settings,
        }
        return self._call(name, role, {**told, **arguments})

    def _worker_arguments(self, name: str) -> Mapping[str, object]:
        stepping, stretch = self._learning.stepping, 1
        if self._cluster is None:
            stepping = replace(stepping, beyond=0)  # no bucket moves
        else:
            stretch = GROWS_MOVING if stepping.beyond else GROWS
        pace = replace(self._learning.pace, applies_locally=self._learning.own == "pushed", stretch=stretch)
        device = {"device": self._learning.device, "place": self.process_group.slot_of(name)}
        return {"pace": asdict(pace), "stepping": asdict(stepping), **device}

    def _server_arguments(self, made: WorkerReady) -> Mapping[str, object]:
        item_bytes = np.dtype(made.dtype).itemsize
        room = QUEUE_VECTORS * made.size * item_bytes * self._settings.workers
        settings = AsyncSettings(
            self._run,
            POINT,
            self._learning.rule,
            {name: columns for name, _, columns in made.layout},
            item_bytes,
            QueueLimits(room, room),
            self._learning.staleness,
            self._learning.unit_norm,
            self._learning.stepping.by_samples(made.samples, self._learning.pace.batch),
            dict(made.products),
            may_repeat_samples=True,
        )
        versions = () if self._snapshot is None else self._snapshot.versions
        traffic = self._learning.traffic
        return {
            "updates": settings_as_dict(settings),
            "versions": versions,
            "traffic": None if traffic is None else str(traffic),
        }
