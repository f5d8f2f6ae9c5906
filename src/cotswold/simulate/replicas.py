"""Replicas, their coordinator and asynchronous servers on a simulated network.

Knows: the machines of `server`, speeds, deaths and pauses. Does not know: what is checked, real time.

Vectors are lists of floats. A replica's gradient is a function of (samples, weights): whoever plays decides
what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from cotswold.server.dispatching import Dispatcher
from cotswold.server.messages import (
    COORDINATOR,
    Alive,
    Join,
    Leave,
    Message,
    Ordered,
    Shard,
    ToReplica,
    ToUpdates,
)
from cotswold.server.numbering import Part
from cotswold.server.replica import Pace, Replica, State, StepTask
from cotswold.server.updating import Updates
from cotswold.simulate.network import Network
from cotswold.simulate.process import PlayedProcess

Gradient = Callable[[tuple[int, int], Sequence[float]], list[float]]
"""Of the samples at these places, at these weights."""
TICK_SECONDS = 0.1


class UpdatesPlayer:
    """The asynchronous half of a server, which finds time for its queue every so many seconds."""

    def __init__(self, network: Network, updates: Updates[list[float]], name: str, seconds: float) -> None:
        self.name, self.updates = name, updates
        self.most_waiting_bytes = 0
        self._network, self._seconds = network, seconds
        network.players[name] = self
        self._drain()

    def receive(self, sender: str, message: Message) -> None:
        """A message has come."""
        self._network.send(self.name, self.updates.receive(sender, cast(ToUpdates, message)))
        self.most_waiting_bytes = max(self.most_waiting_bytes, self.updates.waiting)

    def _drain(self) -> None:
        self._network.send(self.name, self.updates.drain())
        self._network.loop.after(self._seconds, self._drain)


class DispatcherPlayer:
    """The coordinator of replicas."""

    name = COORDINATOR

    def __init__(self, network: Network, dispatcher: Dispatcher) -> None:
        self.dispatcher, self._network = dispatcher, network
        network.players[COORDINATOR] = self
        self._tick()

    def receive(self, sender: str, message: Message) -> None:
        """A message has come."""
        heard = cast(Join | Alive | Leave | Ordered, message)
        self._network.send(self.name, self.dispatcher.receive(sender, heard, self._network.loop.now))

    def _tick(self) -> None:
        loop = self._network.loop
        self._network.send(self.name, self.dispatcher.tick(loop.now))
        loop.after(TICK_SECONDS, self._tick)


class ReplicaPlayer(PlayedProcess):
    """A replica process with a speed, which can be paused and killed."""

    def __init__(
        self,
        network: Network,
        join: Join,
        pace: Pace,
        shards: Sequence[Shard],
        gradient: Gradient,
        seconds: Callable[[], float],
        kind: str = "gradient",
    ) -> None:
        super().__init__(network, join.name)
        self.replica = Replica(join, pace)
        self._shards, self._gradient = tuple(shards), gradient
        self._seconds, self._kind = seconds, kind
        self._weights = [0.0] * max(shard.stop for shard in shards)
        self._sum = list(self._weights)
        network.players[self.name] = self
        self._tick()

    def receive(self, sender: str, message: Message) -> None:
        """A message has come."""
        self._do(
            lambda: self._send(self.replica.receive(sender, cast(ToReplica, message), self._network.loop.now))
        )

    def leave(self) -> None:
        """It is told to go, as by a spot notice."""
        self._do(lambda: self._send(self.replica.leave("a spot notice")))

    def _look(self) -> None:
        if self.replica.state is State.GONE:
            self.kill()
            return
        task = self.replica.task()
        if task is not None:
            weights = self._installed(task)
            self._network.loop.after(self._seconds(), lambda: self._do(lambda: self._step(task, weights)))

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if self._paused is None:
            self._do(lambda: self._send(self.replica.tick(self._network.loop.now)))
        self._network.loop.after(TICK_SECONDS, self._tick)

    def _installed(self, task: StepTask) -> list[float]:
        of = {shard.number: shard for shard in self._shards}
        for pulled in task.installs:
            for number, buffer in zip(pulled.shards, pulled.buffers, strict=True):
                self._weights[of[number].start : of[number].stop] = cast(Sequence[float], buffer)
        return list(self._weights)

    def _step(self, task: StepTask, weights: list[float]) -> None:
        if task.opens:
            self._sum = [0.0] * len(self._weights)
        for place, each in enumerate(self._gradient(task.samples, weights)):
            self._sum[place] += each
        self._send(self.replica.stepped(self._parts() if task.closes else None, self._network.loop.now))

    def _parts(self) -> Mapping[str, Part]:
        parts = {}
        for server in {shard.server for shard in self._shards}:
            own = [shard for shard in self._shards if shard.server == server]
            buffers = tuple(tuple(self._sum[shard.start : shard.stop]) for shard in own)
            parts[server] = Part(self._kind, tuple(shard.number for shard in own), (), buffers)
        return parts
