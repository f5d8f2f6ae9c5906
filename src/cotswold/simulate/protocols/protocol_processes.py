"""Simulated coordinator, servers and workers: the state machines of `batch.core`, and durations.

Knows: the state machines, speeds, crashes and pauses. Does not know: what is checked, real time.

Vectors are lists of floats. The simulation defines a worker's portion as a function of (portion, point).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from cotswold.batch.core.coordinator import Coordinator
from cotswold.batch.core.requests import EvaluationRequest, EvaluationResult
from cotswold.batch.core.rounds import RoundOutcome
from cotswold.batch.core.worker import BatchWorker, FetchTask, PortionTask, ReduceTask, WorkerState
from cotswold.optim.vectors.base import Combine, Command, Drop
from cotswold.shards.core.shard_server import ShardServer
from cotswold.simulate.protocols.lists import ListSums, digest_of
from cotswold.simulate.protocols.network import SimulatedNetwork
from cotswold.simulate.protocols.process import SimulatedProcess
from cotswold.wire import (
    COORDINATOR,
    FromServer,
    FromWorker,
    Message,
    PortionResult,
    Pull,
    Pulled,
    ReductionSchedule,
    Send,
    Shard,
    ToServer,
    ToWorker,
)

Portion = Callable[[int, Sequence[float]], tuple[PortionResult, list[float]]]
"""Returns a portion's result and gradient at a point. Raises ValueError if it cannot be computed."""
TICK_SECONDS = 0.1


class SimulatedServer:
    """A parameter server that answers immediately."""

    def __init__(self, network: SimulatedNetwork, server: ShardServer[list[float]]) -> None:
        self.name, self.server, self._network = server.name, server, network

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        self._network.send(self.name, self.server.receive(sender, cast(ToServer, message)))


class SimulatedCoordinator:
    """A coordinator that executes one request after another."""

    name = COORDINATOR

    def __init__(self, network: SimulatedNetwork, coordinator: Coordinator) -> None:
        self.coordinator, self._network = coordinator, network
        self._tick()

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        now = self._network.loop.now
        self._network.send(
            self.name, self.coordinator.receive(sender, cast(FromWorker | FromServer, message), now)
        )

    def handle_end(self, name: str, why: str) -> None:
        """Handle the end of a process."""
        self._network.send(self.name, self.coordinator.on_exit(name, why, self._network.loop.now))

    def run(self, commands: Sequence[Command], digest: str | None = None) -> None:
        """Begin a round."""
        self._network.send(self.name, self.coordinator.run(commands, self._network.loop.now, digest))

    def evaluate(self, request: EvaluationRequest) -> None:
        """Begin an evaluation."""
        self._network.send(self.name, self.coordinator.evaluate(request, self._network.loop.now))

    @property
    def outcome(self) -> RoundOutcome | EvaluationResult | None:
        """Outcome of the last request; None while it is in progress."""
        return None if self.coordinator.is_busy else self.coordinator.outcome

    def _tick(self) -> None:
        loop = self._network.loop
        self._network.send(self.name, self.coordinator.tick(loop.now))
        loop.schedule(TICK_SECONDS, self._tick)


@dataclass
class Collectives:
    """Simulated collectives (broadcasts and reductions).

    They complete when every member has entered, and abort after a timeout.
    """

    network: SimulatedNetwork
    seconds: float = 0.01
    patience_seconds: float = 3.0
    """Timeout in seconds after which members give up."""
    _joined: dict[object, dict[str, list[float] | None]] = field(default_factory=dict)
    _leave_callbacks: dict[object, Callable[[str], None]] = field(default_factory=dict)

    def enter(
        self,
        key: object,
        plan: ReductionSchedule,
        name: str,
        values: list[float] | None,
        done: Callable[[object], None],
    ) -> None:
        """Enter a collective with this member's values.

        ``done`` receives the values of all members by name, or None.
        """
        here = self._joined.setdefault((key, plan), {})
        waiting = self._leave_callbacks.setdefault((key, plan), lambda _: None)
        over = [False]

        def leave(_: str) -> None:
            waiting(_)
            if not over[0]:
                over[0] = True
                complete = set(here) == set(plan.members) and _ == "all"
                done(dict(here) if complete else None)

        here[name] = values
        self._leave_callbacks[key, plan] = leave
        if set(here) == set(plan.members):
            self.network.loop.schedule(self.seconds, lambda: leave("all"))
        self.network.loop.schedule(self.patience_seconds, lambda: leave("late"))


class SimulatedWorker(SimulatedProcess):
    """A worker process with a speed, which can be paused and killed."""

    def __init__(
        self,
        network: SimulatedNetwork,
        collectives: Collectives,
        name: str,
        shards: Sequence[Shard],
        samples: int,
        portion: Portion,
        seconds: Callable[[int], float],
    ) -> None:
        super().__init__(network, name)
        self.seconds, self.computed_portions = seconds, 0
        self._collectives, self._shards, self._portion = collectives, shards, portion
        self.size = max(shard.stop for shard in shards)
        self.worker = BatchWorker(name, f"address of {name}", samples, self.size, ListSums(shards))
        self._point: list[float] = []
        self._current_portion: int | None = None
        self._vectors: dict[str, list[float]] = {}
        self._fetch: _Fetch | None = None
        self._reduction: ReduceTask[list[float]] | None = None
        network.endpoints[name] = self
        self._tick()

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        self._do(lambda: self._handle(sender, message))

    def leave(self) -> None:
        """Ask the worker to leave, as a spot notice does."""
        self._do(lambda: self._send(self.worker.leave("a spot notice")))

    def _advance(self) -> None:
        if self.worker.state is WorkerState.GONE:
            self.kill()
        else:
            self._start()

    def _schedule(self, seconds: float, action: Callable[[], None]) -> None:
        self._network.loop.schedule(seconds, lambda: self._do(action))

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if self._paused is None:
            self._do(lambda: self._send(self.worker.tick(self._network.loop.now)))
        self._network.loop.schedule(TICK_SECONDS, self._tick)

    def _handle(self, sender: str, message: Message) -> None:
        if isinstance(message, Pulled):
            if self._fetch is not None:
                self._fetch.pulled(message)
            return
        self._send(self.worker.receive(sender, cast(ToWorker, message), self._network.loop.now))
        if self._fetch is not None and self.worker.is_outdated:
            self._fetch = None
            self._send(self.worker.on_disconnect("", self._network.loop.now))
        if self._reduction is not None and self.worker.is_reduction_outdated:
            self._reduction = None
            self._send(self.worker.on_disconnect("", self._network.loop.now))

    # --- tasks ---

    @property
    def current_portion(self) -> int | None:
        """The portion that is being computed."""
        return self._current_portion

    def _start(self) -> None:
        task = self.worker.task() or self.worker.reduction()
        match task:
            case FetchTask():
                self._fetch = _Fetch(self, task)
                self._fetch.next()
            case PortionTask():
                self._current_portion = task.grant.portion
                self._schedule(self.seconds(task.grant.portion), lambda: self._compute(task))
            case ReduceTask():
                reduce, self._reduction = task.reduce, task
                key = ("reduce", reduce.evaluation, reduce.attempt)
                self._collectives.enter(
                    key,
                    reduce.plan,
                    self.name,
                    list(task.values),
                    lambda brought: self._do(lambda: self._end_reduction(task, brought)),
                )
            case None:
                pass

    def _compute(self, task: PortionTask[list[float]]) -> None:
        now = self._network.loop.now
        self._current_portion = None
        self.computed_portions += 1
        try:
            result, gradient = self._portion(task.grant.portion, self._point)
        except ValueError as error:
            self._send(self.worker.computed_not(str(error), now))
            return
        if task.total is not None:
            for place, each in enumerate(gradient):
                task.total[place] += each
        self._send(self.worker.computed(result, now))

    def _end_reduction(self, task: ReduceTask[list[float]], brought: object) -> None:
        if self._reduction is not task:
            return
        self._reduction = None
        now = self._network.loop.now
        if brought is None:
            self._send(self.worker.on_disconnect("", now))
            return
        total: list[float] | None = None
        if task.reduce.plan.members[0] == self.name:
            everything = cast(dict[str, list[float]], brought)
            total = [sum(column) for column in zip(*everything.values(), strict=True)]
        self._send(self.worker.reduced(total, now))


class _Fetch:
    """Fetches the vectors that a `StartEvaluation` needs, one after another."""

    def __init__(self, player: SimulatedWorker, task: FetchTask) -> None:
        self._worker, self._begin = player, task.begin
        self._remaining = list(task.begin.fetches)
        self._parts: dict[int, list[float]] = {}

    def next(self) -> None:
        player = self._worker
        if player._fetch is not self:
            return
        if not self._remaining:
            self._finish()
            return
        fetch = self._remaining[0]
        if fetch.plan is not None and fetch.plan.members[0] != player.name:
            self._join_reduction(None)
            return
        self._parts = {}
        self._pull()

    def _pull(self) -> None:
        player, begin = self._worker, self._begin
        if player._fetch is not self or not self._remaining:
            return
        name = self._remaining[0].name
        for server in sorted({shard.server for shard in player._shards}):
            wanted = tuple(
                each.number
                for each in player._shards
                if each.server == server and each.number not in self._parts
            )
            if wanted:
                player._send([Send(server, Pull(begin.session, begin.evaluation, name, wanted))])
        player._schedule(1.0, lambda: self._pull_again(name))

    def _pull_again(self, name: str) -> None:
        if (
            self._remaining
            and self._remaining[0].name == name
            and len(self._parts) < len(self._worker._shards)
        ):
            self._pull()

    def pulled(self, pulled: Pulled) -> None:
        begin = self._begin
        if (pulled.session, pulled.evaluation) != (begin.session, begin.evaluation) or not self._remaining:
            return
        if pulled.name != self._remaining[0].name or len(self._parts) == len(self._worker._shards):
            return
        if pulled.error is not None:
            self._stop(self._worker.worker.on_disconnect("", self._worker._network.loop.now))
            return
        for number, buffer in zip(pulled.shards, pulled.buffers, strict=True):
            self._parts[number] = list(cast(Sequence[float], buffer))
        if len(self._parts) < len(self._worker._shards):
            return
        values = [each for number in sorted(self._parts) for each in self._parts[number]]
        if self._remaining[0].plan is None:
            self._finish_vector(values)
        else:
            self._join_reduction(values)

    def _join_reduction(self, values: list[float] | None) -> None:
        player, fetch = self._worker, self._remaining[0]
        assert fetch.plan is not None, "a broadcast has a plan"
        key = ("broadcast", self._begin.evaluation, fetch.name)
        player._collectives.enter(
            key,
            fetch.plan,
            player.name,
            values,
            lambda brought: player._do(lambda: self._finish_reduction(brought)),
        )

    def _finish_reduction(self, brought: object) -> None:
        if self._worker._fetch is not self:
            return
        if brought is None:
            self._stop(self._worker.worker.on_disconnect("", self._worker._network.loop.now))
            return
        plan = self._remaining[0].plan
        assert plan is not None, "a broadcast has a plan"
        self._finish_vector(list(cast(dict[str, list[float]], brought)[plan.members[0]]))

    def _finish_vector(self, values: list[float]) -> None:
        self._worker._vectors[self._remaining.pop(0).name] = values
        self.next()

    def _finish(self) -> None:
        player, begin = self._worker, self._begin
        for command in begin.commands:
            match command:
                case Combine(out, terms):
                    rows = [[factor * each for each in player._vectors[name]] for factor, name in terms]
                    player._vectors[out] = [sum(column) for column in zip(*rows, strict=True)]
                case Drop(name):
                    player._vectors.pop(name, None)
                case _:
                    raise ValueError(f"workers have no {command}")
        player._point = player._vectors[begin.at]
        digests = (
            tuple(digest_of(player._point[each.start : each.stop]) for each in player._shards)
            if begin.digests
            else ()
        )
        self._stop(player.worker.fetched(digests, player._network.loop.now))

    def _stop(self, sends: list[Send]) -> None:
        self._worker._fetch = None
        self._worker._send(sends)
