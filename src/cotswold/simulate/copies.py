"""Servers that keep copies, controllers, their state, and clients that find buckets: simulated.

Knows: the machines of `replication.replica` and `replication.controller`, deaths, pauses, clocks that
drift. Does not know: what is checked, real time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import cast

from cotswold.replication.client.router import Router, ToRouter
from cotswold.replication.controller.controller import Controller
from cotswold.replication.controller.leader import FromServers
from cotswold.replication.controller.leader_election import Read, Wish
from cotswold.replication.replica.saved_bucket import Saved
from cotswold.replication.replica.server import Keeper, ToKeeper
from cotswold.simulate.disks import SimulatedDisk
from cotswold.simulate.loop import Loop
from cotswold.simulate.network import Network, Player
from cotswold.simulate.process import PlayedProcess
from cotswold.wire import CONTROLLERS, Ended, Message, Send

TICK_SECONDS = 0.05
Watch = Callable[[str, Sequence[Send]], None]
"""Called with whatever a server or a client says, when it says it."""


class Clock:
    """One that runs faster or slower than others, and began at another time."""

    def __init__(self, loop: Loop, rate: float, offset: float) -> None:
        self._loop, self._rate, self._offset = loop, rate, offset

    @property
    def now(self) -> float:
        """What it shows."""
        return self._loop.now * self._rate + self._offset


class SharedState:
    """Keys and values that controllers share: each request takes its time, is carried out at one moment, and
    its answer may be lost."""

    def __init__(
        self,
        loop: Loop,
        random: Random,
        *,
        lost: float = 0.0,
        late: float = 0.0,
        late_seconds: float = 3.0,
        watch: Callable[[str, str | None, str | None], None] = lambda key, old, new: None,
    ) -> None:
        """Of requests a share is ``late``, by so many seconds at most; ``watch`` is called with each key that
        is put, and what stood there, and stands there now."""
        self.items: dict[str, str] = {}
        self.watch = watch
        self.is_cut: set[str] = set()
        """Controllers whose requests do not come through."""
        self._loop, self._random, self._lost = loop, random, lost
        self._late, self._late_seconds = late, late_seconds

    def ask(
        self, who: str, wish: Wish, answered: Callable[[Wish, dict[str, str] | bool | None], None]
    ) -> None:
        """Carry out a wish, some time; then tell."""
        is_lost = self._random.random() < self._lost

        def arrive() -> None:
            if who in self.is_cut:
                self._loop.after(0.5, lambda: answered(wish, None))
                return
            outcome = self._do(wish)
            self._loop.after(self._seconds(), lambda: answered(wish, None if is_lost else outcome))

        is_late = self._late > 0 and self._random.random() < self._late
        self._loop.after(
            self._seconds() + (self._random.random() * self._late_seconds if is_late else 0.0), arrive
        )

    def _seconds(self) -> float:
        return 0.001 + self._random.random() * 0.01

    def _do(self, wish: Wish) -> dict[str, str] | bool:
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


class ControllerPlayer(PlayedProcess):
    """A controller process."""

    def __init__(self, network: Network, controller: Controller, state: SharedState, clock: Clock) -> None:
        super().__init__(network, controller.name)
        self.controller, self._state, self.clock = controller, state, clock
        network.players[self.name] = self
        self._tick()

    @property
    def leads(self) -> bool:
        """Whether it leads, and knows what there is."""
        return self.controller.leads(self.clock.now)

    def receive(self, sender: str, message: Message) -> None:
        """A message has come."""
        heard = cast(FromServers, message)
        self._do(lambda: self._send(self.controller.receive(sender, heard, self.clock.now)))

    def _look(self) -> None:
        wish = self.controller.wish(self.clock.now)
        if wish is not None:
            self._state.ask(
                self.name, wish, lambda asked, found: self._do(lambda: self._answered(asked, found))
            )

    def _answered(self, wish: Wish, found: dict[str, str] | bool | None) -> None:
        now = self.clock.now
        if isinstance(wish, Read):
            self._send(
                self.controller.read(found, now) if isinstance(found, dict) else self.controller.unread()
            )
        else:
            assert not isinstance(found, dict), "a transaction is done or not"
            self._send(self.controller.transacted(found, now))

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if self._paused is None:
            self._do(lambda: self._send(self.controller.tick(self.clock.now)))
        self._network.loop.after(TICK_SECONDS, self._tick)


@dataclass(frozen=True)
class Saving:
    """The disk of a server, and how often what is different is put there."""

    disk: SimulatedDisk
    seconds: float


class KeeperPlayer(PlayedProcess):
    """A server process that keeps copies."""

    def __init__(
        self,
        network: Network,
        keeper: Keeper[list[float]],
        controllers: Sequence[str],
        clock: Clock,
        watch: Watch,
        saving: Saving | None = None,
    ) -> None:
        super().__init__(network, keeper.name)
        self.keeper, self.clock, self._watch, self._saving = keeper, clock, watch, saving
        self._saved = 0.0
        if saving is not None:
            saving.disk.begin()
        self._controllers = tuple(controllers)
        network.players[self.name] = self
        self._tick()

    def receive(self, sender: str, message: Message) -> None:
        """A message has come."""
        heard = cast(ToKeeper, message)
        self._do(lambda: self._say(self.keeper.receive(sender, heard, self.clock.now)))

    def damaged(self, bucket: str) -> None:
        """It finds that what its disk has of a bucket is not what was put there."""
        self._do(lambda: self._damaged(bucket))

    def _damaged(self, bucket: str) -> None:
        assert self._saving is not None, "it has a disk"
        disk = self._saving.disk
        if bucket in disk.damaged and not self.keeper.damaged(bucket):
            disk.forget(bucket)

    def _say(self, sends: list[Send]) -> None:
        """What is for the controllers goes to all of them: so whoever leads next knows who is there."""
        self._watch(self.name, sends)
        self._send(
            [
                Send(name, each.message)
                for each in sends
                for name in (self._controllers if each.to == CONTROLLERS else (each.to,))
            ]
        )

    def _look(self) -> None:
        """Nothing more is done by itself."""

    def _save(self, saving: Saving) -> None:
        for bucket in self.keeper.take_recalls():
            saving.disk.read(bucket, partial(self._recalled, bucket))
        if self.clock.now - self._saved >= saving.seconds:
            self._saved = self.clock.now
            for number, saved in self.keeper.saves():
                saving.disk.write(saved, partial(self._written, number))

    def _recalled(self, bucket: str, saved: Saved | None) -> None:
        self._do(lambda: self.keeper.recalled(bucket, saved))

    def _written(self, number: int, is_there: bool) -> None:
        self._do(lambda: self.keeper.saved(number) if is_there else self.keeper.unsaved(number))

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if self._paused is None:
            self._do(lambda: self._say(self.keeper.tick(self.clock.now)))
            self._do(lambda: self._say(self.keeper.drain(self.clock.now)))
            if self._saving is not None:
                self._save(self._saving)
        self._network.loop.after(TICK_SECONDS, self._tick)


class RoutedNetwork(Network):
    """A network for clients that know buckets by name, and servers not at all; ``inner`` carries messages."""

    def __init__(
        self,
        inner: Network,
        buckets: Sequence[str],
        controllers: Sequence[str],
        watch: Watch = lambda client, sends: None,
    ) -> None:
        """``watch`` is called with whatever a client says."""
        super().__init__(inner.loop, inner.random)
        self._watch = watch
        self._inner, self._buckets, self._controllers = inner, tuple(buckets), tuple(controllers)
        self._gates: dict[str, _Gate] = {}

    def send(self, sender: str, sends: list[Send]) -> None:
        """Hand over messages."""
        self._watch(sender, sends)
        self._gate(sender).send(sends)

    def _gate(self, name: str) -> _Gate:
        if name not in self._gates:
            self._gates[name] = _Gate(
                name, self._inner, Router(self._controllers, self._buckets), self.players
            )
        return self._gates[name]


class _Gate:
    """Between a client and the network."""

    def __init__(
        self,
        name: str,
        network: Network,
        router: Router,
        clients: dict[str, Player],
    ) -> None:
        self.name, self._network, self._router, self._clients = name, network, router, clients
        network.players[name] = self
        self._tick()

    def send(self, sends: Sequence[Send]) -> None:
        now = self._network.loop.now
        self._network.send(self.name, self._router.send(sends, now))

    def receive(self, sender: str, message: Message) -> None:
        """A message has come."""
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
        self._network.loop.after(TICK_SECONDS, self._tick)


def ended(network: Network, name: str, controllers: Sequence[str], why: str) -> None:
    """A supervisor has seen a process end, and tells all controllers."""
    network.send(f"supervisor of {name}", [Send(each, Ended(name, why)) for each in controllers])
