"""One seeded life: replicas that push whole numbers to buckets, and whatever may befall everybody.

Knows: who is killed, stopped, cut off and started again, and that a bucket must keep one copy. Does not know:
how anybody decides; what is said is judged by `judge`, what is added up by the sums of what was pushed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import reduce
from random import Random
from typing import cast

from cotswold.bench.chaos.judge import BrokenError, Judge
from cotswold.bench.chaos.recording import PlayedCoordinator, Recorded, RecordedDispatcher
from cotswold.bench.chaos.world import SAMPLES, SHARD, World
from cotswold.optim.updates import Sgd
from cotswold.server.asynchronous import Asynchronous, Room
from cotswold.server.control.controller import Controller
from cotswold.server.control.map import read_group
from cotswold.server.control.settings import Control
from cotswold.server.copies.contents import Contents
from cotswold.server.copies.copy import Copy, Role
from cotswold.server.copies.copying import Copying
from cotswold.server.copies.keeper import Keeper
from cotswold.server.dispatch import Dispatch
from cotswold.server.dispatching import State
from cotswold.server.messages import (
    COORDINATOR,
    Create,
    Group,
    Join,
    Ranges,
    Send,
    Shard,
    Silent,
    TakeOver,
)
from cotswold.server.ranges import common, joined, size
from cotswold.server.replica import Pace
from cotswold.server.shard import Server
from cotswold.server.updating import Updates
from cotswold.simulate.copies import (
    Clock,
    ControllerPlayer,
    KeeperPlayer,
    RoutedNetwork,
    SharedState,
    ended,
)
from cotswold.simulate.disks import SimulatedDisk
from cotswold.simulate.lists import Lists, ListUpdates
from cotswold.simulate.loop import Loop
from cotswold.simulate.network import Faults, Network
from cotswold.simulate.process import PlayedProcess
from cotswold.simulate.replicas import ReplicaPlayer


class Life:
    """One of them."""

    def __init__(self, seed: int, world: World) -> None:
        self.seed, self.world, self.random = seed, world, Random(seed)
        self.loop, self.judge = Loop(), Judge()
        self.revivals = 0
        """How often a bucket has begun another life."""
        self.transcript: list[str] = []
        """What befell whom, and what controllers did, to be read."""
        self.network = Network(self.loop, self.random, world.faults, latency_seconds=0.001)
        self.state = SharedState(self.loop, self.random, lost=world.state_lost, watch=self._put)
        self.buckets = [f"bucket {number}" for number in range(world.buckets)]
        self.shards = [
            Shard(number, self.buckets[number % world.buckets], SHARD * number, SHARD * (number + 1), "", 0)
            for number in range(world.buckets * world.shards)
        ]
        self._settings = Asynchronous("run", "weights", Sgd(), {"": SHARD}, 8, room=Room(1000, 1000))
        self.controllers: list[ControllerPlayer] = []
        self._names = [f"controller {number}" for number in range(world.controllers)]
        for name in self._names:
            self._start_controller(name)
        self.disks = {
            f"host {number}": SimulatedDisk(self.loop, self.random, seconds=0.1)
            for number in range(world.servers if world.disks else 0)
        }
        self.servers: list[KeeperPlayer] = []
        for number in range(world.servers):
            self._start_server(f"host {number}", 0)
        self.clients = RoutedNetwork(self.network, self.buckets, self._names)
        self.ledger = Recorded(SAMPLES, world.buckets)
        rules = Dispatch(
            *("run", SAMPLES, SHARD * len(self.shards), world.epochs, 1.0, 4, 2),
            order_seconds=0.3,
            beat_seconds=0.25,
            silent_seconds=3.0,
            retry_seconds=0.5,
        )
        self.dispatcher = RecordedDispatcher(
            rules, self.shards, [(name, name) for name in self.buckets], 0.0, self.ledger
        )
        self.coordinator = PlayedCoordinator(self.clients, self.dispatcher, self.buckets, SHARD)
        self.replicas: list[ReplicaPlayer] = []
        for _ in range(world.replicas):
            self._start_replica()
        self._is_quiet, self._untaken = False, 0
        self._complained: dict[str, float] = {}
        """When a copy was last said to be silent: such a message may be on its way."""
        self.loop.after(0.1, self._create)
        self.loop.after(0.1, self._chance)

    # --- who is there ---

    def _clock(self) -> Clock:
        drift = self.world.drift
        return Clock(self.loop, 1 + self.random.uniform(-drift, drift), self.random.uniform(0, 1000))

    def _start_controller(self, name: str) -> None:
        clock = self._clock()
        control = Control(copies=self.world.copies)
        player = ControllerPlayer(self.network, Controller(name, control, clock.now), self.state, clock)
        self.controllers = [each for each in self.controllers if each.name != name] + [player]

    def _start_server(self, host: str, number: int) -> None:
        clock = self._clock()
        name, disk = f"{host}.{number}", self.disks.get(host)
        copying = Copying(least=self.world.least, way=self.world.way, saves=disk is not None)
        keeper = Keeper(name, host, f"address of {name}", self._contents, copying, clock.now)
        self.servers.append(KeeperPlayer(self.network, keeper, self._names, clock, self._hear, disk))

    def _contents(self, bucket: str) -> Contents[list[float]]:
        server = Server(bucket, self.shards, Lists())
        return Contents(server, Updates(server, self._settings, Lists(), ListUpdates()), Lists())

    def _start_replica(self) -> None:
        name = f"replica {len(self.replicas)}"
        speed = self.random.choice((0.05, 0.1, 0.4))
        join = Join(name, 0, f"address of {name}", SAMPLES, SHARD * len(self.shards))
        self.replicas.append(
            ReplicaPlayer(
                *(self.clients, join, Pace(2), self.shards, self.gradient),
                lambda: speed * self.random.uniform(0.5, 1.5),
            )
        )

    def gradient(self, samples: tuple[int, int], weights: Sequence[float]) -> list[float]:
        """Whole numbers that no two sets of samples share, but for rare chance."""
        total = [0.0] * (SHARD * len(self.shards))
        for place in range(*samples):
            random = Random(self.seed * 1_000_003 + place)
            total = [each + random.getrandbits(36) for each in total]
        return total

    def _hear(self, server: str, sends: Sequence[Send]) -> None:
        self.judge.hear(server, sends)
        for each in sends:
            if isinstance(each.message, Silent | TakeOver):
                self._complained[each.message.bucket] = self.loop.now

    def _create(self) -> None:
        if len(self.groups) < len(self.buckets):
            for each in self.controllers:
                if each.is_alive:
                    wanted = Create("run", "what they hold", tuple(self.buckets), self.world.servers)
                    each.controller.create(wanted, each.clock.now)
            self.loop.after(0.1, self._create)

    @property
    def groups(self) -> dict[str, Group]:
        """As they are written down."""
        found = {}
        for key, text in self.state.items.items():
            if key.startswith("bucket/"):
                found[key.removeprefix("bucket/")] = read_group(text)
        return found

    def copy_of(self, bucket: str, name: str) -> Copy[list[float]] | None:
        """That of a server, if it lives."""
        for each in self.servers:
            if each.is_alive and each.name == name:
                return each.keeper.copies.get(bucket)
        return None

    # --- what befalls them ---

    def _tell(self, sentence: str) -> None:
        self.transcript.append(f"{self.loop.now:8.3f} s  {sentence}")

    def _chance(self) -> None:
        """A tenth of a second in which anything may happen."""
        for each in self.controllers:
            for event in each.controller.take_events():
                self._tell(f"{each.name}: {event.sentence}")
        if self._is_quiet:
            self.loop.after(0.1, self._chance)
            return
        world, random = self.world, self.random
        if self.coordinator.has_begun:
            if random.random() < world.kills / 10:
                self._kill_server()
            if random.random() < world.outages / 10:
                self._kill_all()
            if self.disks and random.random() < (world.full + world.slow) / 10:
                self._trouble_disk()
            living = [each for each in self.servers if each.is_alive]
            if random.random() < world.pauses / 10 and living:
                self._pause(random.choice(living))
            if random.random() < world.cuts / 10 and living:
                self._cut()
            if random.random() < world.controller_faults / 10:
                self._trouble_controller()
            if random.random() < world.replica_faults / 10:
                self._kill_replica()
            if random.random() < world.checkpoints / 10 and self.dispatcher.may_begin_checkpoint:
                self.dispatcher.begin_checkpoint()
            if self.dispatcher.kept is not None and random.random() < 0.5:
                self._take()
        self.loop.after(0.1, self._chance)

    def _kill_server(self) -> None:
        able = [each for each in self.servers if each.is_alive and self._may_die(each)]
        if not able:
            return
        self._kill(self.random.choice(able))

    def _kill(self, victim: KeeperPlayer) -> None:
        victim.kill()
        self._tell(f"{victim.name} is killed")
        if self.random.random() < 0.5:
            self.loop.after(0.05, lambda: ended(self.network, victim.name, self._names, "killed by signal 9"))
        host, _, number = victim.name.rpartition(".")
        self.loop.after(self.random.uniform(0.2, 3), lambda: self._start_server(host, int(number) + 1))

    def _kill_all(self) -> None:
        """All servers at once, if the newest of each bucket is on two sound disks, or on one for sure."""
        groups, on = self.groups, Counter[str]()
        for disk in self.disks.values():
            for name, saved in disk.has.items():
                on[name] += name not in disk.damaged and saved.term == groups[name].term
        if min(on[bucket] for bucket in self.buckets) < (2 if self.world.damage else 1):
            return
        for each in [each for each in self.servers if each.is_alive]:
            self._kill(each)
        if self.random.random() < self.world.damage:
            host, disk = self.random.choice(list(self.disks.items()))
            disk.damaged |= {name for name in disk.has if self.random.random() < 0.5}
            self._tell(f"the disk of {host} is damaged: {', '.join(sorted(disk.damaged))}")

    def _trouble_disk(self) -> None:
        random, world = self.random, self.world
        host, disk = random.choice(list(self.disks.items()))
        what = random.choices(("is_full", "is_slow"), (world.full, world.slow))[0]
        seconds = random.uniform(0.5, 4)
        setattr(disk, what, True)
        self._tell(f"the disk of {host} {what.replace('_', ' ')} for {seconds:.2f} s")
        self.loop.after(seconds, lambda: setattr(disk, what, False))

    def _may_die(self, server: KeeperPlayer) -> bool:
        """Whether every bucket keeps a member that nobody is about to take for gone."""
        leader = next((each for each in self.controllers if each.is_alive and each.leads), None)
        if leader is None:
            return False
        busy = {name for each in self.controllers for name in each.controller.unsettled}
        for bucket, group in self.groups.items():
            if server.name not in group.everybody:
                continue
            others = [name for name in group.members if name != server.name]
            late = self.loop.now - self.world.faults.late_seconds - 1
            if self._complained.get(bucket, 0.0) > late:
                return False
            if bucket in busy or not any(self._is_well(leader, group, name) for name in others):
                return False
        return True

    def _is_well(self, leader: ControllerPlayer, group: Group, name: str) -> bool:
        copy, primary = self.copy_of(group.bucket, name), self.copy_of(group.bucket, group.primary)
        known = leader.controller.servers.of.get(name)
        is_known = known is not None and known.is_living and known.held_until > leader.clock.now + 0.5
        is_there = copy is not None and copy.group == group and copy.index >= 0
        is_heard = name == group.primary or (primary is not None and name in primary.hears)
        is_cut = any(name in each for each in self.network.cut)
        is_paused = any(each.name == name and each.is_paused for each in self.servers)
        return is_known and is_there and is_heard and not is_cut and not is_paused

    def _pause(self, victim: PlayedProcess) -> None:
        seconds = self.random.choice((0.3, 0.9, 1.5, 4.0)) * self.random.uniform(0.8, 1.2)
        victim.pause()
        self._tell(f"{victim.name} is stopped for {seconds:.2f} s")
        self.loop.after(seconds, lambda: self._wake(victim))

    def _wake(self, victim: PlayedProcess) -> None:
        if victim.is_alive and victim.is_paused:
            self._tell(f"{victim.name} goes on")
            victim.go_on()

    def _cut(self) -> None:
        random, living = self.random, [each.name for each in self.servers if each.is_alive]
        one, everybody = random.choice(living), [*living, *self._names, COORDINATOR]
        others = everybody if random.random() < 0.4 else random.sample(everybody, random.randint(1, 3))
        ways = random.choice(("in", "out", "both"))
        links = {(other, one) for other in others if ways != "out"} | {
            (one, other) for other in others if ways != "in"
        }
        links = {each for each in links if each[0] != each[1]} - self.network.cut
        seconds = random.uniform(0.3, 4)
        self.network.cut |= links
        told = "everybody" if others is everybody else ", ".join(others)
        self._tell(f"{one} is cut ({ways}) from {told} for {seconds:.2f} s")
        self.loop.after(seconds, lambda: self._heal(links))

    def _heal(self, links: set[tuple[str, str]]) -> None:
        self.network.cut -= links

    def _trouble_controller(self) -> None:
        random = self.random
        living = [each for each in self.controllers if each.is_alive]
        if len(living) < 2:
            return
        victim = random.choice(living)
        match random.choice(("kill", "pause", "state")):
            case "kill":
                victim.kill()
                self._tell(f"{victim.name} is killed")
                self.loop.after(random.uniform(0.5, 3), lambda: self._start_controller(victim.name))
            case "pause":
                self._pause(victim)
            case _:
                self.state.is_cut.add(victim.name)
                self._tell(f"{victim.name} is cut off from the state")
                self.loop.after(random.uniform(0.3, 4), lambda: self.state.is_cut.discard(victim.name))

    def _kill_replica(self) -> None:
        living = [each for each in self.replicas if each.is_alive]
        if living and self.random.random() < 0.7:
            victim = self.random.choice(living)
            victim.kill()
            self._tell(f"{victim.name} is killed")
            if self.random.random() < 0.5:
                self.dispatcher.ended(victim.name, "killed by signal 9")
        self._start_replica()

    def _take(self) -> None:
        """The state of a checkpoint is with every bucket's primary, and has each sample once."""
        for bucket, group in self.groups.items():
            copy = self.copy_of(bucket, group.primary)
            frozen = None if copy is None else copy.contents.updates.frozen
            if copy is None or copy.role is not Role.PRIMARY or copy.group != group:
                return
            if frozen is None or frozen.checkpoint != self.dispatcher.checkpoint:
                self._untaken += 1
                if self._untaken > 1000:
                    raise BrokenError(f"{bucket} has not kept checkpoint {self.dispatcher.checkpoint}")
                return
        self._untaken = 0
        kept = cast(Recorded, self.dispatcher.take_checkpoint())
        for number, bucket in enumerate(self.buckets):
            copy = self.copy_of(bucket, self.groups[bucket].primary)
            frozen = None if copy is None else copy.contents.updates.frozen
            assert frozen is not None, "it was there"
            self._check_sum(bucket, kept.has[number], frozen.vectors["weights"])

    # --- what must be true ---

    def _put(self, key: str, old: str | None, new: str | None) -> None:
        """A life of a bucket begins where no member of the one before lives."""
        if not key.startswith("bucket/") or old is None or new is None:
            return
        before, after = read_group(old), read_group(new)
        if after.life != before.life:
            self.revivals += 1
            for name in before.members:
                if any(each.name == name and each.is_alive for each in self.servers):
                    raise BrokenError(f"{after.bucket} is revived by {after.primary}, and {name} lives")

    def live(self) -> None:
        """Until the training is over and all is well again. Raises BrokenError."""
        if not self.loop.run(self._is_over, seconds=600, events=3_000_000):
            so_far = f"{self.dispatcher.state.value} after {self.loop.now:.0f} s"
            raise BrokenError(f"{so_far}: {self.ledger.total}; {self.groups}")
        self._is_quiet, self.network.faults = True, Faults()
        if not self.loop.run(self._is_whole, seconds=60, events=1_000_000):
            raise BrokenError(f"copies are not whole again: {self.groups}")
        for number, bucket in enumerate(self.buckets):
            group = self.groups[bucket]
            rows = [self._weights(bucket, name) for name in group.members]
            if any(each != rows[0] for each in rows):
                raise BrokenError(f"{bucket}: copies differ: {rows}")
            self._check_sum(bucket, self.ledger.has[number], rows[0])
        self._check_account()

    def _check_account(self) -> None:
        """What counts is in every bucket, and of every sample it is known what became of it."""
        total, everywhere = self.ledger.total, 0
        for session in {session for own in self.ledger.has for session, _ in own}:
            has = [joined(*(ranges for each, ranges in own if each == session)) for own in self.ledger.has]
            everywhere += size(reduce(common, has))
        if everywhere != total.counted:
            raise BrokenError(f"{total.counted} samples count, and {everywhere} are in every bucket")
        known = total.counted + total.torn + total.refused
        if (known + total.lost, known + total.left_out) != (total.handed_out, SAMPLES * self.world.epochs):
            raise BrokenError(f"of {SAMPLES * self.world.epochs} samples this is known: {total}")

    def _is_over(self) -> bool:
        if self.dispatcher.trouble:
            raise BrokenError(self.dispatcher.trouble)
        return self.dispatcher.state is State.OVER

    def _is_whole(self) -> bool:
        """Whether every bucket has all of its copies, and these have everything."""
        wanted = min(self.world.copies, sum(each.is_alive for each in self.servers))
        for bucket, group in self.groups.items():
            copies = [self.copy_of(bucket, name) for name in group.members]
            if len(copies) < wanted or any(each is None or each.group != group for each in copies):
                return False
            first = copies[0]
            assert first is not None, "none is None"
            if first.role is not Role.PRIMARY or len({each.index for each in copies if each}) > 1:
                return False
            if any(each.committed < first.index for each in copies if each):
                return False
        return True

    def _weights(self, bucket: str, name: str) -> list[list[float]]:
        copy = self.copy_of(bucket, name)
        assert copy is not None, f"{name} is a member of {bucket}"
        return [list(each) for each in copy.contents.vectors["weights"]]

    def _check_sum(
        self, bucket: str, has: Sequence[tuple[int, Ranges]], found: Sequence[Sequence[float]]
    ) -> None:
        """A bucket has what the ledger says, and nothing else: each sample once, but for those that were lost
        elsewhere and handed out again, to another session."""
        by: dict[int, list[Ranges]] = defaultdict(list)
        for session, ranges in has:
            by[session if self.revivals else 0].append(ranges)
        total = [0.0] * (SHARD * len(self.shards))
        for some in by.values():
            ranges = joined(*some)
            if size(ranges) != sum(map(size, some)):
                raise BrokenError(f"{bucket}: a sample is applied twice")
            for each in ranges:
                total = [one + other for one, other in zip(total, self.gradient(each, total), strict=True)]
        own = [each for each in self.shards if each.server == bucket]
        expected = [[-each for each in total[shard.start : shard.stop]] for shard in own]
        if [list(each) for each in found] != expected:
            raise BrokenError(f"{bucket} has {found}, and the sum of what was acknowledged is {expected}")
