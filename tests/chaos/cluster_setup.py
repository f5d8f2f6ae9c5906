"""Processes of a simulated life: controllers, their metadata store, servers and disks.

Knows: how each is started, killed, stopped, resumed and cut off, with lines in a transcript. Does not know:
the schedule of faults, clients, invariants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.chaos.world import DISK_SECONDS

from cotswold.optim.server_rules import Momentum, Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.replication.controller.bucket_map import read_group
from cotswold.replication.controller.controller import Controller
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.bucket_replica import BucketReplica
from cotswold.replication.replica.bucket_state import BucketState
from cotswold.replication.replica.saved_bucket import disk_of, next_server_name
from cotswold.replication.replica.server import ReplicaServer
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.shards.core.shard_server import ShardServer
from cotswold.simulate.protocols.copies import (
    Clock,
    SaveSettings,
    SharedState,
    SimulatedController,
    SimulatedKeeper,
    report_end,
)
from cotswold.simulate.protocols.disks import SimulatedDisk
from cotswold.simulate.protocols.lists import ListArithmetic, ListUpdates
from cotswold.simulate.protocols.network import SimulatedNetwork
from cotswold.simulate.protocols.process import SimulatedProcess
from cotswold.wire import Create, Group, Send, Shard
from cotswold.wire.names import run_of

SHARD = 2
"""Numbers per shard."""
Links = Collection[tuple[str, str]]
"""Pairs of (sender, receiver)."""


@dataclass(frozen=True)
class Roles:
    """The processes of a life and their settings."""

    servers: tuple[str, ...]
    """Names of the initial servers; each has a host and a disk of its name."""
    controllers: tuple[str, ...]
    shards: tuple[Shard, ...]
    control: ControllerSettings = field(default_factory=ControllerSettings)
    copying: ReplicationSettings = field(default_factory=ReplicationSettings)
    has_momentum: bool = False
    drift: float = 0.0
    """Largest relative drift of clocks."""
    saving_seconds: float = 0.3
    """Seconds between a server's saves."""


@dataclass(frozen=True)
class _Sum(Momentum):
    """A rule whose velocity is the sum of all pushes, in any order."""

    momentum: float = 1.0

    def __post_init__(self) -> None:
        """Skip the check: no learning happens, so nothing may decay."""


class SimulatedCluster:
    """All processes of a life."""

    def __init__(
        self,
        network: SimulatedNetwork,
        state: SharedState,
        roles: Roles,
        random: Random,
        hear: Callable[[str, Sequence[Send]], None],
    ) -> None:
        """``random`` sets clocks and the times of disks; ``hear`` receives all messages of servers."""
        self.network, self.state, self.roles, self._random, self._hear = network, state, roles, random, hear
        self.loop = network.loop
        self.transcript: list[str] = []
        """Readable lines about faults and actions of controllers."""
        self.kinds = Counter[str]()
        """Number of controllers' actions by kind."""
        self.buckets = tuple(dict.fromkeys(each.server for each in roles.shards))
        rule = _Sum() if roles.has_momentum else Sgd()
        self._settings = AsyncSettings(
            "run", "weights", rule, {"": SHARD}, 8, room=QueueLimits(1000, 1000), may_repeat_samples=True
        )
        self.controllers: list[SimulatedController] = []
        for name in roles.controllers:
            self.start_controller(name)
        self.disks = {
            name: SimulatedDisk(self.loop, random, seconds=DISK_SECONDS)
            for name in (roles.servers if roles.copying.saves else ())
        }
        self.servers: list[SimulatedKeeper] = []
        """All servers, including dead ones."""
        for name in roles.servers:
            self.start_server(name)
        self.loop.schedule(0.1, self._create)

    # --- lookups ---

    @property
    def groups(self) -> dict[str, Group]:
        """Groups in the metadata store."""
        items = {bucket: self.state.items.get(f"bucket/{bucket}") for bucket in self.buckets}
        return {bucket: read_group(text) for bucket, text in items.items() if text is not None}

    @property
    def runs(self) -> set[str]:
        """Runs other than the training that are in the metadata store or on a live server."""
        written = {
            run_of(key.removeprefix("bucket/")) for key in self.state.items if key.startswith("bucket/")
        }
        told = {run_of(key.removeprefix("run/")) for key in self.state.items if key.startswith("run/")}
        kept = {run for each in self.living for run in each.keeper.runs}
        return {*written, *told, *kept} - {"", "run"}

    @property
    def living(self) -> list[SimulatedKeeper]:
        """Live servers."""
        return [each for each in self.servers if each.is_alive]

    @property
    def leader(self) -> SimulatedController | None:
        """The leading controller."""
        return next((each for each in self.controllers if each.is_alive and each.is_leader), None)

    def server(self, name: str) -> SimulatedKeeper | None:
        """Return the live server of a name."""
        return next((each for each in self.servers if each.name == name and each.is_alive), None)

    def copy_of(self, bucket: str, name: str) -> BucketReplica[list[float]] | None:
        """Return a live server's copy of a bucket."""
        server = self.server(name)
        return None if server is None else server.keeper.copies.get(bucket)

    def keeps(self, names: Collection[str]) -> bool:
        """True if there are disks, or each bucket has a member among these servers."""
        return bool(self.disks) or all(set(names).intersection(each.members) for each in self.groups.values())

    # --- faults ---

    def tell(self, sentence: str) -> None:
        """Append a line to the transcript."""
        self.transcript.append(f"{self.loop.now:8.3f} s  {sentence}")

    def take_events(self) -> None:
        """Append the controllers' actions to the transcript."""
        for each in self.controllers:
            for event in each.controller.take_events():
                self.kinds[event.kind] += 1
                self.tell(f"{each.name}: {event.sentence}")

    def start_controller(self, name: str) -> None:
        """Start a new process of this controller."""
        clock = self._clock()
        controller = Controller(name, self.roles.control, clock.now, f"cluster-{self.loop.events}")
        player = SimulatedController(self.network, controller, self.state, clock)
        self.controllers = [each for each in self.controllers if each.name != name] + [player]

    def start_server(self, name: str) -> None:
        """Start a server with the contents of its disk, unless its host is lost."""
        clock, host, roles = self._clock(), disk_of(name), self.roles
        if self.disks and host not in self.disks:
            return
        keeper = ReplicaServer(
            *(name, f"host of {host}", f"address of {name}"), self._contents, roles.copying, clock.now
        )
        disk = SaveSettings(self.disks[host], roles.saving_seconds) if self.disks else None
        self.servers.append(SimulatedKeeper(self.network, keeper, roles.controllers, clock, self._hear, disk))

    def kill(self, victim: SimulatedKeeper, *, seen_after: float | None, again_after: float | None) -> None:
        """Kill a server (SIGKILL).

        Its supervisor notices after ``seen_after`` seconds and restarts it; None for never.
        """
        victim.kill()
        self.tell(f"{victim.name} is killed")
        names = self.roles.controllers
        if seen_after is not None:
            self.loop.schedule(
                seen_after, lambda: report_end(self.network, victim.name, names, "was killed by SIGKILL")
            )
        if again_after is not None:
            self.loop.schedule(again_after, lambda: self.start_server(next_server_name(victim.name)))

    def lose_host(self, host: str) -> None:
        """Lose a host and its disk for good."""
        del self.disks[host]
        self.tell(f"host {host} is gone for good")

    def kill_controller(self, victim: SimulatedController, *, again_after: float | None) -> None:
        """Kill a controller (SIGKILL), and restart it after ``again_after`` seconds; None for never."""
        victim.kill()
        self.tell(f"{victim.name} is killed")
        if again_after is not None:
            self.loop.schedule(again_after, lambda: self.start_controller(victim.name))

    def stop(self, victim: SimulatedProcess, seconds: float | None) -> None:
        """Stop a process (SIGSTOP), and resume it after some seconds; None for never."""
        victim.pause()
        self.tell(f"{victim.name} is stopped" + ("" if seconds is None else f" for {seconds:.2f} s"))
        if seconds is not None:
            self.loop.schedule(seconds, lambda: self.wake(victim))

    def wake(self, victim: SimulatedProcess) -> None:
        """Resume a process (SIGCONT)."""
        if victim.is_alive and victim.is_paused:
            self.tell(f"{victim.name} goes on")
            victim.resume()

    def cut(self, links: Links, seconds: float | None, sentence: str) -> None:
        """Drop messages on these links for some seconds; None for the rest of the life."""
        new = set(links) - self.network.cut_links
        self.network.cut_links |= new
        self.tell(sentence + ("" if seconds is None else f" for {seconds:.2f} s"))
        if seconds is not None:
            self.loop.schedule(seconds, lambda: self.heal(new))

    def heal(self, links: Links) -> None:
        """Restore these links."""
        self.network.cut_links -= set(links)

    def _clock(self) -> Clock:
        drift = self.roles.drift
        return Clock(self.loop, 1 + self._random.uniform(-drift, drift), self._random.uniform(0, 1000))

    def _contents(self, bucket: str) -> BucketState[list[float]]:
        server = ShardServer(bucket, self.roles.shards, ListArithmetic())
        return BucketState(
            server, UpdateServer(server, self._settings, ListArithmetic(), ListUpdates()), ListArithmetic()
        )

    def _create(self) -> None:
        if len(self.groups) < len(self.buckets):
            for each in self.controllers:
                if each.is_alive:
                    wanted = Create("run", "what they hold", self.buckets, len(self.roles.servers))
                    each.controller.create(wanted, each.clock.now)
            self.loop.schedule(0.1, self._create)
