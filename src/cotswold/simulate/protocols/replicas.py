"""Simulated replicas, their coordinator, and asynchronous servers.

Knows: the state machines of `paramserver.core`, speeds, crashes and pauses. Does not know: the checks, real
time.

Vectors are lists of floats. The simulation defines a replica's gradient as a function of (samples, weights).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.paramserver.core.rank import ReplicaRank
from cotswold.paramserver.core.rank_fanout import RankFanout, RemoteBuffers, rank_name
from cotswold.paramserver.core.replica import Replica, ReplicaState
from cotswold.paramserver.core.replica_session import Pace, StepTask
from cotswold.paramserver.core.update_sequence import ServerUpdate
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.simulate.protocols.network import SimulatedNetwork
from cotswold.simulate.protocols.process import SimulatedProcess
from cotswold.wire import (
    COORDINATOR,
    CoordinatorStateAck,
    Join,
    Leave,
    Message,
    PulledNewer,
    PulledPart,
    ReplicaHeartbeat,
    Send,
    Shard,
    ToRank,
    ToReplica,
    ToUpdates,
)

Gradient = Callable[[tuple[int, int], Sequence[float]], list[float]]
"""Returns the gradient of the samples in a range, at given weights."""
TICK_SECONDS = 0.1


class SimulatedUpdateServer:
    """The asynchronous half of a server, which processes its queue at a fixed interval."""

    def __init__(
        self, network: SimulatedNetwork, updates: UpdateServer[list[float]], name: str, seconds: float
    ) -> None:
        self.name, self.updates = name, updates
        self.max_queued_bytes = 0
        self._network, self._seconds = network, seconds
        network.endpoints[name] = self
        self._drain()

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        self._network.send(self.name, self.updates.receive(sender, cast(ToUpdates, message)))
        self.max_queued_bytes = max(self.max_queued_bytes, self.updates.queued_bytes)

    def _drain(self) -> None:
        self._network.send(self.name, self.updates.drain())
        self._network.loop.schedule(self._seconds, self._drain)


class SimulatedDispatcher:
    """The coordinator of replicas."""

    name = COORDINATOR

    def __init__(self, network: SimulatedNetwork, dispatcher: Dispatcher) -> None:
        self.dispatcher, self._network = dispatcher, network
        network.endpoints[COORDINATOR] = self
        self._tick()

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        heard = cast(Join | ReplicaHeartbeat | Leave | CoordinatorStateAck, message)
        self._network.send(self.name, self.dispatcher.receive(sender, heard, self._network.loop.now))

    def _tick(self) -> None:
        loop = self._network.loop
        self._network.send(self.name, self.dispatcher.tick(loop.now))
        loop.schedule(TICK_SECONDS, self._tick)


class SimulatedRank:
    """Another rank of a replica, which is killed together with it."""

    def __init__(self, network: SimulatedNetwork, replica: str, number: int) -> None:
        self.name, self.rank, self._network = rank_name(replica, number), ReplicaRank(replica), network
        network.endpoints[self.name] = self

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        self._network.send(self.name, self.rank.receive(sender, cast(ToRank, message)))

    def closed(self, closing: int, numbers: Mapping[int, object]) -> None:
        """Store the values of a closed accumulation."""
        self._network.send(self.name, self.rank.close_accumulation(closing, numbers))


class SimulatedReplica(SimulatedProcess):
    """A replica process with a speed, which can be paused and killed.

    With several ranks only the first can be paused, and all are killed together.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        join: Join,
        pace: Pace,
        shards: Sequence[Shard],
        gradient: Gradient,
        seconds: Callable[[], float],
        kind: str = "gradient",
        ranks: int = 1,
        begins: Callable[[StepTask], None] = lambda task: None,
    ) -> None:
        """Create the replica.

        Rank r has every ``ranks``-th shard. ``begins`` is called with each step that begins.
        """
        self._begins = begins
        super().__init__(network, join.name)
        self.replica = Replica(join, pace)
        self._ranks = RankFanout(join.name)
        self._others = {number: SimulatedRank(network, join.name, number) for number in range(1, ranks)}
        self._closings = 0
        self._shards, self._gradient = tuple(shards), gradient
        self._seconds, self._kind = seconds, kind
        self._weights = [0.0] * max(shard.stop for shard in shards)
        self._sum = list(self._weights)
        network.endpoints[self.name] = self
        self._tick()

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        self._do(lambda: self._handle(sender, message))

    def kill(self) -> None:
        """Kill all ranks, regardless of what they do."""
        super().kill()
        for each in self._others.values():
            del self._network.endpoints[each.name]

    def leave(self) -> None:
        """Ask the replica to leave, as a spot notice does."""
        self._do(lambda: self._send(self.replica.leave("a spot notice")))

    def _handle(self, sender: str, message: Message) -> None:
        heard: Message | None = message
        if self._others and isinstance(message, PulledNewer | PulledPart):
            heard = self._ranks.receive(sender, message)
            sender = sender if heard is None else heard.server
        if heard is None:
            return
        before = self.replica.session
        sends = self.replica.receive(sender, cast(ToReplica, heard), self._network.loop.now)
        if self.replica.session not in (0, before):
            self._ranks.enter({each.number: self._rank_of(each.number) for each in self._shards})
        self._send(sends)

    def _rank_of(self, shard: int) -> int:
        return shard % (1 + len(self._others))

    def _send(self, sends: list[Send]) -> None:
        super()._send([each for send in sends for each in self._ranks.send(send)] if self._others else sends)

    def _advance(self) -> None:
        if self.replica.state is ReplicaState.GONE:
            self.kill()
            return
        task = self.replica.task()
        if task is not None:
            self._begins(task)
            weights = self._install(task)
            self._network.loop.schedule(self._seconds(), lambda: self._do(lambda: self._step(task, weights)))

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if self._paused is None:
            self._do(lambda: self._send(self.replica.tick(self._network.loop.now)))
        self._network.loop.schedule(TICK_SECONDS, self._tick)

    def _install(self, task: StepTask) -> list[float]:
        of = {shard.number: shard for shard in self._shards}
        newest: dict[int, object] = {}
        versions: dict[int, dict[int, int]] = {number: {} for number in self._others}
        for pulled in task.installs:
            for number, version, buffer in zip(pulled.shards, pulled.versions, pulled.buffers, strict=True):
                if isinstance(buffer, RemoteBuffers):
                    versions[buffer.rank][number] = version
                else:
                    newest[number] = buffer
        for rank, own in versions.items():
            newest.update(self._others[rank].rank.take_newer(task.pull[0], own))
        for number, buffer in newest.items():
            self._weights[of[number].start : of[number].stop] = cast(Sequence[float], buffer)
        return list(self._weights)

    def _step(self, task: StepTask, weights: list[float]) -> None:
        if task.opens:
            self._sum = [0.0] * len(self._weights)
        for place, each in enumerate(self._gradient(task.samples, weights)):
            self._sum[place] += each
        self._send(
            self.replica.finish_step(
                self._parts() if task.closes and not self.replica.can_extend else None, self._network.loop.now
            )
        )

    def _parts(self) -> Mapping[str, ServerUpdate]:
        self._closings += 1
        numbers = {each.number: tuple(self._sum[each.start : each.stop]) for each in self._shards}
        for rank, other in self._others.items():
            other.closed(
                self._closings, {each: own for each, own in numbers.items() if self._rank_of(each) == rank}
            )
        parts = {}
        for server in {shard.server for shard in self._shards}:
            own = [shard for shard in self._shards if shard.server == server]
            buffers: tuple[object, ...] = tuple(
                RemoteBuffers(rank, self._closings)
                if (rank := self._rank_of(each.number))
                else numbers[each.number]
                for each in own
            )
            parts[server] = ServerUpdate(self._kind, tuple(shard.number for shard in own), (), buffers)
        return parts
