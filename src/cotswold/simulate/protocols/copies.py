"""Simulated servers with replicated buckets, their controllers, and clients that locate buckets.

Knows: the state machines of `replication.replica` and `replication.controller`, crashes, pauses,
clock drift. Does not know: the checks, real time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import cast

from cotswold.replication.client.router import Router, ToRouter
from cotswold.replication.controller.controller import Controller
from cotswold.replication.controller.leader_election import Read, StateRequest
from cotswold.replication.controller.messages import FromServers
from cotswold.replication.replica.saved_bucket import SavedBucket
from cotswold.replication.replica.server import ReplicaServer, ToReplicaServer
from cotswold.simulate.protocols.disks import SimulatedDisk
from cotswold.simulate.protocols.loop import VirtualTimeLoop
from cotswold.simulate.protocols.network import SimulatedNetwork, SimulatedNode
from cotswold.simulate.protocols.process import SimulatedProcess
from cotswold.wire import CONTROLLERS, Message, Send, ServerExited

TICK_SECONDS = 0.05
Watch = Callable[[str, Sequence[Send]], None]
"""Called with all messages that a server or a client sends, at the time of sending."""


class Clock:
    """A clock with another rate and offset than others."""

    def __init__(self, loop: VirtualTimeLoop, rate: float, offset: float) -> None:
        self._loop, self._rate, self._offset = loop, rate, offset

    @property
    def now(self) -> float:
        """Time that the clock shows."""
        return self._loop.now * self._rate + self._offset


class SharedState:
    """Keys and values that controllers share.

    Each request takes time, is executed atomically, and its answer may be lost.
    """

    def __init__(
        self,
        loop: VirtualTimeLoop,
        random: Random,
        *,
        lost: float = 0.0,
        late: float = 0.0,
        late_seconds: float = 3.0,
        watch: Callable[[str, str | None, str | None], None] = lambda key, old, new: None,
    ) -> None:
        """Create an empty state.

        A fraction ``late`` of the requests is delayed by up to ``late_seconds``. ``watch`` is called with
        each key that is written, its old value and its new value.
        """
        self.items: dict[str, str] = {}
        self.watch = watch
        self.is_cut: set[str] = set()
        """Controllers whose requests do not arrive."""
        self._loop, self._random, self._lost = loop, random, lost
        self._latency, self._late_seconds = late, late_seconds

    def execute(
        self,
        caller: str,
        request: StateRequest,
        on_result: Callable[[StateRequest, dict[str, str] | bool | None], None],
    ) -> None:
        """Execute a request after some time, then report the result."""
        is_lost = self._random.random() < self._lost

        def arrive() -> None:
            if caller in self.is_cut:
                self._loop.schedule(0.5, lambda: on_result(request, None))
                return
            outcome = self._do(request)
            self._loop.schedule(self._seconds(), lambda: on_result(request, None if is_lost else outcome))

        is_late = self._latency > 0 and self._random.random() < self._latency
        self._loop.schedule(
            self._seconds() + (self._random.random() * self._late_seconds if is_late else 0.0), arrive
        )

    def _seconds(self) -> float:
        return 0.001 + self._random.random() * 0.01

    def _do(self, wish: StateRequest) -> dict[str, str] | bool:
        if isinstance(wish, Read):
            return wish.of(self.items)
        if any(self.items.get(key) != value for key, value in wish.compare):
            return False
        for key, value in wish.put:
            self.watch(key, self.items.get(key), value)
            if value is None:
                self.items.pop(key, None)
            else:
                self.items[key] = value
        return True


class SimulatedController(SimulatedProcess):
    """A simulated controller process."""

    def __init__(
        self, network: SimulatedNetwork, controller: Controller, state: SharedState, clock: Clock
    ) -> None:
        super().__init__(network, controller.name)
        self.controller, self._state, self.clock = controller, state, clock
        network.endpoints[self.name] = self
        self._tick()

    @property
    def is_leader(self) -> bool:
        """True if this controller is the leader and has read the state."""
        return self.controller.leads(self.clock.now)

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        heard = cast(FromServers, message)
        self._do(lambda: self._send(self.controller.receive(sender, heard, self.clock.now)))

    def _advance(self) -> None:
        wish = self.controller.next_request(self.clock.now)
        if wish is not None:
            self._state.execute(
                self.name, wish, lambda asked, found: self._do(lambda: self._handle_result(asked, found))
            )

    def _handle_result(self, wish: StateRequest, found: dict[str, str] | bool | None) -> None:
        now = self.clock.now
        if isinstance(wish, Read):
            self._send(
                self.controller.on_read(found, now)
                if isinstance(found, dict)
                else self.controller.on_read_failed()
            )
        else:
            assert not isinstance(found, dict), "a transaction is done or not"
            self._send(self.controller.on_transaction(found, now))

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if self._paused is None:
            self._do(lambda: self._send(self.controller.tick(self.clock.now)))
        self._network.loop.schedule(TICK_SECONDS, self._tick)


@dataclass(frozen=True)
class SaveSettings:
    """The disk of a server, and the interval in seconds at which changes are written to it."""

    disk: SimulatedDisk
    seconds: float


class SimulatedKeeper(SimulatedProcess):
    """A simulated server process with replicated buckets."""

    def __init__(
        self,
        network: SimulatedNetwork,
        keeper: ReplicaServer[list[float]],
        controllers: Sequence[str],
        clock: Clock,
        watch: Watch,
        saving: SaveSettings | None = None,
    ) -> None:
        super().__init__(network, keeper.name)
        self.keeper, self.clock, self._watch, self._saving = keeper, clock, watch, saving
        self._saved = 0.0
        if saving is not None:
            saving.disk.attach()
        self._controllers = tuple(controllers)
        network.endpoints[self.name] = self
        self._tick()

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        heard = cast(ToReplicaServer, message)
        self._do(lambda: self._send_all(self.keeper.receive(sender, heard, self.clock.now)))

    def report_damage(self, bucket: str) -> None:
        """Detect that the disk's copy of a bucket is damaged."""
        self._do(lambda: self._damaged(bucket))

    def _damaged(self, bucket: str) -> None:
        assert self._saving is not None, "it has a disk"
        disk = self._saving.disk
        if bucket in disk.damaged and not self.keeper.damaged(bucket):
            disk.forget(bucket)

    def _send_all(self, sends: list[Send]) -> None:
        """Send messages; those for the controllers go to all, so that the next leader knows all servers."""
        self._watch(self.name, sends)
        self._send(
            [
                Send(name, each.message)
                for each in sends
                for name in (self._controllers if each.to == CONTROLLERS else (each.to,))
            ]
        )

    def _advance(self) -> None:
        """Do nothing further."""

    def _save(self, saving: SaveSettings) -> None:
        for bucket in self.keeper.take_reads():
            saving.disk.read(bucket, partial(self._load_saved, bucket))
        if self.clock.now - self._saved >= saving.seconds:
            self._saved = self.clock.now
            for number, saved in self.keeper.saves():
                saving.disk.write(saved, partial(self._finish_write, number))

    def _load_saved(self, bucket: str, saved: SavedBucket | None) -> None:
        self._do(lambda: self.keeper.on_read(bucket, saved))

    def _finish_write(self, number: int, is_there: bool) -> None:
        self._do(lambda: self.keeper.saved(number) if is_there else self.keeper.unsaved(number))

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if self._paused is None:
            self._do(lambda: self._send_all(self.keeper.tick(self.clock.now)))
            self._do(lambda: self._send_all(self.keeper.drain(self.clock.now)))
            if self._saving is not None:
                self._save(self._saving)
        self._network.loop.schedule(TICK_SECONDS, self._tick)


class RoutedNetwork(SimulatedNetwork):
    """A network for clients that address buckets, not servers; ``inner`` carries the messages."""

    def __init__(
        self,
        inner: SimulatedNetwork,
        buckets: Sequence[str],
        controllers: Sequence[str],
        watch: Watch = lambda client, sends: None,
    ) -> None:
        """Create the network; ``watch`` is called with all messages that a client sends."""
        super().__init__(inner.loop, inner.random)
        self._watch = watch
        self._inner, self._buckets, self._controllers = inner, tuple(buckets), tuple(controllers)
        self._gates: dict[str, _Gate] = {}

    def send(self, sender: str, sends: list[Send]) -> None:
        """Send messages."""
        self._watch(sender, sends)
        self._gate(sender).send(sends)

    def _gate(self, name: str) -> _Gate:
        if name not in self._gates:
            self._gates[name] = _Gate(
                name, self._inner, Router(self._controllers, self._buckets), self.endpoints
            )
        return self._gates[name]


class _Gate:
    """The router between a client and the network."""

    def __init__(
        self,
        name: str,
        network: SimulatedNetwork,
        router: Router,
        clients: dict[str, SimulatedNode],
    ) -> None:
        self.name, self._network, self._router, self._clients = name, network, router, clients
        network.endpoints[name] = self
        self._tick()

    def send(self, sends: Sequence[Send]) -> None:
        now = self._network.loop.now
        self._network.send(self.name, self._router.send(sends, now))

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        client, now = self._clients.get(self.name), self._network.loop.now
        if isinstance(message, ToRouter):
            said = self._router.receive(sender, message, now)
            if said is not None and client is not None:
                client.receive(said[0], cast(Message, said[1]))
        elif client is not None:
            client.receive(sender, message)

    def _tick(self) -> None:
        if self.name in self._clients or self._network.loop.now == 0:
            self._network.send(self.name, self._router.tick(self._network.loop.now))
        self._network.loop.schedule(TICK_SECONDS, self._tick)


def report_end(network: SimulatedNetwork, name: str, controllers: Sequence[str], why: str) -> None:
    """Report the end of a process to all controllers, as its supervisor does."""
    network.send(f"supervisor of {name}", [Send(each, ServerExited(name, why)) for each in controllers])
