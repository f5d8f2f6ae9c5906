"""Random faults of a life.

Knows: the rates of a world, which processes may die without loss of a bucket's last member. Does not know:
invariants, critical moments (`aims`).
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from tests.chaos.cluster_setup import SimulatedCluster
from tests.chaos.loss_window import LossWindow
from tests.chaos.training import Training
from tests.chaos.world import World

from cotswold.replication.replica.saved_bucket import SavedBucket, disk_of
from cotswold.simulate.protocols.copies import SimulatedController, SimulatedKeeper
from cotswold.wire import COORDINATOR, Create, DeleteRunRequest, Drain, Group, Message, Send, Undrain
from cotswold.wire.names import bucket_of

STOPS = (0.3, 0.9, 1.5, 4.0)
"""Approximate seconds for which a process is stopped: less and more than a lease."""


_WELL_SECONDS = 1.0
"""Seconds without trouble before the next one, if the world has one trouble at a time."""
_UNDONE_SECONDS = 0.2
"""Seconds after which no message of a former leader is in flight, if the metadata store is never late."""


class FaultSchedule:
    """Random faults of one life."""

    def __init__(
        self, world: World, cast: SimulatedCluster, training: Training, window: LossWindow, random: Random
    ) -> None:
        self.world, self.cast, self.training, self.random = world, cast, training, random
        self._window = window
        self.complained: dict[str, float] = {}
        """Time of the last message that reported a bucket's copy as silent; it may be in flight."""
        self._led = 0.0
        """Last time at which a controller led."""
        self._trouble_until = 0.0
        """End of the current trouble of one server, or last time at which not all was well."""
        self._runs = 0
        """Number of changes of other runs; while odd, the last run exists."""
        self._older: dict[str, dict[str, SavedBucket]] = {}
        """Contents of each disk at the previous outage."""

    def chance(self) -> None:
        """Draw the faults of a tenth of a second."""
        world, random = self.world, self.random
        if self.cast.leader is not None:
            self._led = self.cast.loop.now
        happens = (
            (world.kills, self._kill_carefully),
            (world.massacres, self._kill_others),
            (world.reckless, self._kill_anybody),
            (world.outages, self.kill_all),
            (world.full + world.slow, self._trouble_disk),
            (world.single, self._befall_one),
            (world.pauses, self._stop),
            (world.cuts, self._cut),
            (world.camps, self._part),
            (world.controller_faults, self._trouble_controller),
            (world.controller_outages, self._kill_controllers),
            (world.client_cuts, self._cut_client),
            (world.rots, self._damage),
            (world.replica_faults, self._kill_replica),
            (world.replica_pauses, self._stop_replica),
            (world.checkpoints, self._begin_checkpoint),
            (world.drains, self._drain),
            (world.drains / 2, self._undrain),
            (world.runs, self._begin_or_end),
        )
        for rate, happen in happens:
            if rate and random.random() < rate / 10:
                happen()
        if world.runs:
            self._ask_of_runs()

    # --- deaths ---

    def kill(self, victim: SimulatedKeeper, *, returns: bool = True) -> None:
        """Kill a server; its supervisor may notice, and a new server starts if its host ``returns``."""
        random = self.random
        seen = 0.05 if random.random() < self.world.seen else None
        again = random.uniform(0.2, self.world.again_seconds)
        self.cast.kill(victim, seen_after=seen, again_after=again if returns else None)
        host = disk_of(victim.name)
        writes = self.cast.disks[host].writes if host in self.cast.disks else ""
        is_torn = bool(writes and self.world.torn) and random.random() < self.world.torn
        if is_torn and self._spares({(host, writes)}):
            self.cast.tell(f"what was being written of {writes} is there in part")
            self.cast.disks[host].crash()

    def _kill_carefully(self) -> None:
        able = [each for each in self.cast.living if self._may_die({each.name})]
        if able:
            self.kill(self.random.choice(able))

    def _kill_others(self) -> None:
        living = self.cast.living
        names = {each.name for each in living}
        able = [each for each in living if self._may_die(names - {each.name})]
        if able:
            left = self.random.choice(able)
            for each in living:
                if each is not left:
                    self.kill(each)

    def _kill_anybody(self) -> None:
        if self.cast.living:
            self.kill(self.random.choice(self.cast.living))

    def kill_all(self) -> None:
        """Kill all servers if each bucket was saved, or must have been.

        Disks may be damaged, or a host lost for good, if that loses nothing that all members have on disk.
        """
        random, disks = self.random, self.cast.disks
        on = {name for disk in disks.values() for name in disk.contents if name not in disk.damaged}
        living = {each.name for each in self.cast.living}
        if not all(name in on or self._window.is_expected(name, living) for name in self.cast.buckets):
            return
        if any(disk.damaged for disk in disks.values()) and not self._spares(set()):
            return
        gone = ""
        if random.random() < self.world.gone:
            host = disk_of(random.choice([group.primary for group in self.cast.groups.values()]))
            gone = (
                host if host in disks and self._spares({(host, name) for name in self.cast.buckets}) else ""
            )
        if gone:
            self.cast.lose_host(gone)
        for each in self.cast.living:
            self.kill(each, returns=disk_of(each.name) != gone)
        if random.random() < self.world.damage:
            host, disk = random.choice(list(disks.items()))
            some = {name for name in disk.contents if random.random() < 0.5}
            if self._spares({(host, name) for name in some}):
                disk.damaged |= some
                self.cast.tell(f"the disk of {host} is damaged: {', '.join(sorted(disk.damaged))}")
        if self.world.exchanged and random.random() < self.world.exchanged:
            gone = self._exchange() or gone
        self._older = {host: dict(disk.contents) for host, disk in disks.items()}
        damaged = {name for each in disks.values() for name in each.damaged}
        self._window.outage(set() if gone else {*self.cast.buckets} - damaged, living)

    def _exchange(self) -> str:
        """Exchange the contents of a disk; return the host, or nothing if that would lose members' data."""
        disks = self.cast.disks
        host, other = self.random.sample(sorted(disks), 2)
        if not self._spares({(each, name) for each in (host, other) for name in self.cast.buckets}):
            return ""
        own, others = dict(disks[host].contents), dict(disks[other].contents)
        how = self.random.choice(
            ("is an older copy", "is a copy of that of", "has changed places with that of")
        )
        disks[host].exchange(self._older.get(host, {}) if "older" in how else others)
        if "places" in how:
            disks[other].exchange(own)
        self.cast.tell(f"the disk of {host} {how}" + ("" if "older" in how else f" {other}"))
        return host

    def _spares(self, lost: Collection[tuple[str, str]]) -> bool:
        """True if the members' disks have everything without these (host, bucket) entries.

        A copy saved in the newest term has everything.
        """
        return all(
            any(
                (host := disk_of(member)) in self.cast.disks
                and (host, bucket) not in lost
                and (saved := self.cast.disks[host].intact_bucket(bucket)) is not None
                and saved.term == group.term
                for member in group.members
            )
            for bucket, group in self.cast.groups.items()
        )

    def _may_die(self, names: Collection[str]) -> bool:
        """True if every bucket keeps a member that no process is about to declare dead."""
        leader, now = self.cast.leader, self.cast.loop.now
        if leader is None and not (self.world.kills_unled and self._led < now - _UNDONE_SECONDS):
            return False
        busy = {name for each in self.cast.controllers for name in each.controller.unsettled_buckets}
        late = self.cast.loop.now - self.world.faults.late_seconds - 1
        for bucket, group in self.cast.groups.items():
            if not set(names).intersection(group.all_servers):
                continue
            others = [name for name in group.members if name not in names]
            if bucket in busy or self.complained.get(bucket, 0.0) > late:
                return False
            if not any(self._has_all(group, name) and self._is_known(leader, name) for name in others):
                return False
        return True

    def _is_known(self, leader: SimulatedController | None, name: str) -> bool:
        """True if the leader, if there is one, counts the server as alive, and will for a while."""
        if leader is None:
            return True
        known = leader.controller.servers.of.get(name)
        return known is not None and known.is_alive and known.lease_until > leader.clock.now + 0.5

    def _has_all(self, group: Group, name: str) -> bool:
        """True if the member lives and has everything that its primary has."""
        cast = self.cast
        copy, primary = cast.copy_of(group.bucket, name), cast.copy_of(group.bucket, group.primary)
        server = cast.server(name)
        is_there = copy is not None and copy.group == group and copy.index >= 0
        is_heard = name == group.primary or (primary is not None and name in primary.complete_followers)
        is_cut = any(name in each for each in cast.network.cut_links)
        return is_there and is_heard and not is_cut and not (server and server.is_paused)

    # --- pauses, cuts, disks ---

    def _befall_one(self) -> None:
        """Cause one server's trouble, if all is well and has been for a while."""
        cast, random = self.cast, self.random
        if not self._are_well():
            self._trouble_until = max(self._trouble_until, cast.loop.now + _WELL_SECONDS)
        if self._trouble_until > cast.loop.now:
            return
        victim, seconds = random.choice(cast.living), random.uniform(0.3, 6)
        self._trouble_until = cast.loop.now + seconds
        others = [each.name for each in cast.living if each is not victim]
        near, far = random.choice(((others, "other servers"), (others[:1], others[0])))
        ways, names = random.choice(("in", "out", "out", "both")), cast.roles.controllers
        match random.choice(("kill", "stop", "cut", "cut", "apart", "deaf")):
            case "kill":
                self.kill(victim)
            case "stop":
                cast.stop(victim, seconds)
            case "cut":
                cast.cut(links(victim.name, near, ways), seconds, f"{victim.name} is cut ({ways}) from {far}")
            case "deaf":
                cast.cut(links(victim.name, names, "in"), seconds, f"{victim.name} hears no controller")
            case _:
                told = f"{victim.name} is cut ({ways}) from all"
                cast.cut(links(victim.name, [*others, *names], ways), seconds, told)

    def _are_well(self) -> bool:
        """True if every bucket has all its members and they are well."""
        cast, leader = self.cast, self.cast.leader
        most = min(self.world.copies, len(cast.living))
        return leader is not None and all(
            len(group.members) == most
            and not group.learners
            and all(self._has_all(group, name) and self._is_known(leader, name) for name in group.members)
            for group in cast.groups.values()
        )

    def _stop(self) -> None:
        if self.cast.living:
            self.cast.stop(self.random.choice(self.cast.living), self.stop_seconds())

    def stop_seconds(self) -> float:
        """Return the seconds of a stop."""
        return self.random.choice(STOPS) * self.random.uniform(0.8, 1.2)

    def _cut(self) -> None:
        random, living = self.random, [each.name for each in self.cast.living]
        if not living:
            return
        one, everybody = random.choice(living), [*living, *self.cast.roles.controllers, COORDINATOR]
        others = everybody if random.random() < 0.4 else random.sample(everybody, random.randint(1, 3))
        ways = random.choice(("in", "out", "both"))
        told = "everybody" if others is everybody else ", ".join(others)
        self.cast.cut(links(one, others, ways), random.uniform(0.3, 4), f"{one} is cut ({ways}) from {told}")

    def _part(self) -> None:
        if self.cast.living:
            self.part(self.random.choice(self.cast.living).name)

    def part(self, one: str) -> None:
        """Partition the network: a server and some clients on one side, the other servers and clients on the
        other."""
        random, controllers = self.random, self.cast.roles.controllers
        clients = self.training.names
        some = [one, *(each for each in clients if random.random() < 0.5)]
        others = [each.name for each in self.cast.living if each.name != one]
        others += [each for each in clients if each not in some]
        if random.random() < 0.5:
            for each in controllers:
                (some if random.random() < 0.3 else others).append(each)
        ways = random.choice(("both", "both", "out", "in"))
        between = {link for each in some for link in links(each, others, ways)}
        told = f"{', '.join(some)} are apart ({ways}) from {', '.join(others)}"
        self.cast.cut(between, random.uniform(0.5, 3), told)

    def _trouble_disk(self) -> None:
        random, world = self.random, self.world
        host, disk = random.choice(list(self.cast.disks.items()))
        what = random.choices(("is_full", "is_slow"), (world.full, world.slow))[0]
        seconds = random.uniform(0.5, 4)
        setattr(disk, what, True)
        self.cast.tell(f"the disk of {host} {what.replace('_', ' ')} for {seconds:.2f} s")
        self.cast.loop.schedule(seconds, lambda: setattr(disk, what, False))

    def _damage(self) -> None:
        """Damage a bucket on a disk; the server on that host detects it."""
        random, disks, buckets = self.random, self.cast.disks, set(self.cast.buckets)
        able = [
            (server, name)
            for server in self.cast.living
            for name in disks[disk_of(server.name)].contents
            if name in buckets
        ]
        if not able:
            return
        server, name = random.choice(able)
        if self._spares({(disk_of(server.name), name)}):
            self.cast.tell(f"the disk of {server.name} is damaged: {name}")
            disks[disk_of(server.name)].damaged.add(name)
            self.cast.loop.schedule(random.uniform(0, 1), lambda: server.report_damage(name))

    # --- other processes ---

    def _trouble_controller(self) -> None:
        random, state = self.random, self.cast.state
        living = [each for each in self.cast.controllers if each.is_alive]
        if len(living) < 2:
            return
        victim = random.choice(living)
        match random.choice(("kill", "pause", "state")):
            case "kill":
                self.cast.kill_controller(victim, again_after=random.uniform(0.5, 3))
            case "pause":
                self.cast.stop(victim, self.stop_seconds())
            case _:
                state.is_cut.add(victim.name)
                self.cast.tell(f"{victim.name} is cut off from the state")
                self.cast.loop.schedule(random.uniform(0.3, 4), lambda: state.is_cut.discard(victim.name))

    def _kill_controllers(self) -> None:
        for each in self.cast.controllers:
            if each.is_alive:
                self.cast.kill_controller(each, again_after=self.random.uniform(0.5, 3))

    def _cut_client(self) -> None:
        random, living = self.random, [each.name for each in self.cast.living]
        if living:
            one, ways = random.choice(self.training.names), random.choice(("in", "out", "both"))
            some = random.sample(living, random.randint(1, len(living)))
            others = living if random.random() < 0.4 else some
            told = f"{one} is cut ({ways}) from {', '.join(others)}"
            self.cast.cut(links(one, others, ways), random.uniform(0.3, 4), told)

    def _kill_replica(self) -> None:
        living = self.training.living
        if living and self.random.random() < 0.7:
            victim = self.random.choice(living)
            victim.kill()
            self.cast.tell(f"{victim.name} is killed")
            if self.random.random() < 0.5:
                self.training.dispatcher.on_exit(victim.name, "killed by signal 9")
        self.training.start_replica()

    def _stop_replica(self) -> None:
        if self.training.living:
            self.cast.stop(self.random.choice(self.training.living), self.stop_seconds() / 2)

    def _begin_checkpoint(self) -> None:
        if self.training.dispatcher.may_begin_checkpoint:
            self.cast.tell(f"checkpoint {self.training.dispatcher.begin_checkpoint()} begins")

    # --- drains, other runs ---

    def undo(self) -> None:
        """Undrain all servers and delete the other runs."""
        for name in self._drained:
            self._ask(Undrain(name))
        self._runs += self._runs % 2
        self._ask_of_runs()

    def _begin_or_end(self) -> None:
        self._runs += 1
        number = (self._runs + 1) // 2
        self.cast.tell(f"run other {number} " + ("begins" if self._runs % 2 else "is to be forgotten"))

    def _ask_of_runs(self) -> None:
        """Repeat the request until it is satisfied."""
        number = (self._runs + 1) // 2
        goes_on = f"other {number}" if self._runs % 2 else ""
        if goes_on:
            buckets = tuple(bucket_of(goes_on, each) for each in range(3))
            self._ask(Create(goes_on, "what they hold", buckets, 1))
        for run in sorted(self.cast.runs - {goes_on}):
            self._ask(DeleteRunRequest(run))

    def _drain(self) -> None:
        drained = self._drained
        able = [each.name for each in self.cast.living if each.name not in drained]
        if len(drained) < 2 and able:
            name = self.random.choice(able)
            self.cast.tell(f"{name} is to be drained")
            self._ask(Drain(name, self.random.choice((1.0, 30.0))))

    def _undrain(self) -> None:
        if self._drained:
            self._ask(Undrain(self.random.choice(self._drained)))

    @property
    def _drained(self) -> list[str]:
        return sorted(key.removeprefix("drain/") for key in self.cast.state.items if key.startswith("drain/"))

    def _ask(self, message: Message) -> None:
        self.cast.network.send("operator", [Send(each, message) for each in self.cast.roles.controllers])


def links(one: str, others: Collection[str], ways: str) -> set[tuple[str, str]]:
    """Return links between one process and others: ``in`` to it, ``out`` of it, or ``both``."""
    into = {(other, one) for other in others if ways != "out"}
    out = {(one, other) for other in others if ways != "in"}
    return {each for each in into | out if each[0] != each[1]}
