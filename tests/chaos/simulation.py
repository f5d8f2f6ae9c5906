"""One seeded life: replicas that push whole numbers to buckets, with faults of all processes.

Knows: the processes, the judges, the end of the life. Does not know: how processes decide, the schedule of
faults (`troubles`, `aims`), the requirements on messages (`judge`) and on sums (`sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import cast

from tests.chaos.cluster_setup import SHARD, Roles, SimulatedCluster
from tests.chaos.fault_schedule import FaultSchedule
from tests.chaos.fault_targets import FaultEffects, FaultTargets
from tests.chaos.installed_shards import InstalledShards
from tests.chaos.invariants import BrokenError, InvariantChecker
from tests.chaos.loss_window import LossWindow
from tests.chaos.recorded_ledger import RecordedLedger
from tests.chaos.sample_sums import SampleSums
from tests.chaos.training import Training
from tests.chaos.wait_limits import WaitLimits
from tests.chaos.world import World

from cotswold.paramserver.core.dispatcher_state import DispatcherState
from cotswold.replication.controller.bucket_map import read_group
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.bucket_replica import BucketReplica
from cotswold.replication.replica.group_member import ReplicaRole
from cotswold.replication.replica.saved_bucket import disk_of
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.simulate.protocols.copies import SharedState
from cotswold.simulate.protocols.loop import VirtualTimeLoop
from cotswold.simulate.protocols.network import Faults, SimulatedNetwork
from cotswold.wire import Applied, BucketEnvelope, PeerUnreachable, PrimaryUnreachable, Send, Shard


class Simulation:
    """One simulation from a seed."""

    def __init__(self, seed: int, world: World) -> None:
        self.seed, self.world, self.random = seed, world, Random(seed)
        self.loop, self.judge = VirtualTimeLoop(), InvariantChecker(world.least, is_calm=world.is_calm)
        self.waits = WaitLimits(world.waits_seconds, lambda: self.loop.now)
        self.window = LossWindow(world.saved_within, lambda: self.loop.now)
        self.network = SimulatedNetwork(self.loop, self.random, world.faults, latency_seconds=0.001)
        lost, late = world.state_lost, world.state_late
        state = SharedState(self.loop, self.random, lost=lost, late=late, watch=self._put)
        roles = _roles(world)
        self.cast = SimulatedCluster(self.network, state, roles, self.random, self._hear)
        self.training = Training(
            *(self.network, roles.shards, roles.controllers, world, seed),
            self._hear_client,
            InstalledShards(self.judge, is_prompt=world.is_prompt).begins,
        )
        self.training.dispatcher.watch_revived = self.window.revived
        self.troubles = FaultSchedule(world, self.cast, self.training, self.window, self.random)
        self.sums = SampleSums(self.training, self.judge)
        self.is_lost = False
        """True if all members of a bucket died without disks, which ends the life early.

        This is a mistake unless the world has reckless or aimed kills.
        """
        self._is_quiet, self._untaken = False, 0
        self._links: dict[tuple[str, str], float] = {}
        """Largest extra seconds of a message, by link."""
        fates = FaultEffects(self.cast, self.training, self.troubles)
        self._aiming = FaultTargets(world.aims, world.most_aims, fates, self.troubles)
        if world.between_seconds or world.control_seconds:
            self.network.extra_seconds = self._takes
        self.loop.schedule(0.1, self._chance)

    @property
    def transcript(self) -> list[str]:
        """Readable lines about faults and actions of controllers."""
        return self.cast.transcript

    def live(self) -> None:
        """Run until the training is over and all copies are complete. Raises BrokenError."""
        if not self.loop.run(self._is_over, seconds=600, events=3_000_000):
            dispatcher, groups = self.training.dispatcher, self.cast.groups
            so_far = f"{dispatcher.state.value} after {self.loop.now:.0f} s"
            raise BrokenError(f"{so_far}: {self.training.ledger.total}; {groups}")
        self._calm()
        if not self.loop.run(self._is_whole, seconds=60, events=1_000_000):
            raise BrokenError(f"copies are not whole again: {self.cast.groups}")
        if not self.is_lost:
            self._check()
        elif not (self.world.reckless or self.world.aims):
            raise BrokenError(f"a bucket has lost its last member: {self.cast.groups}")

    def _check(self) -> None:
        """Check that the final contents equal the pushes."""
        for bucket in self.cast.buckets:
            copies = [_vectors(copy) for copy in self._copies(bucket)]
            if any(each != copies[0] for each in copies):
                raise BrokenError(f"{bucket}: copies differ: {copies}")
            self.sums.check_bucket(bucket, copies[0], self.training.ledger)
        self.sums.check_acknowledged()
        self.sums.check_named()
        self.sums.check_account()

    # --- during the life ---

    def _hear_client(self, client: str, sends: Sequence[Send]) -> None:
        self.judge.hear_client(sends)
        self.waits.hear_client(sends)

    def _hear(self, server: str, sends: Sequence[Send]) -> None:
        self.judge.hear(server, sends)
        self.waits.hear(sends)
        for each in sends:
            match each.message:
                case PeerUnreachable(bucket) | PrimaryUnreachable(bucket):
                    self.troubles.complained[bucket] = self.loop.now
                case BucketEnvelope(bucket, _, Applied(session, _, number)):
                    samples = self.judge.acknowledged[bucket].get((session, number))
                    if samples is not None:
                        self.window.acknowledged(bucket, session, number, samples)
                case _:
                    pass

    def _put(self, key: str, old: str | None, new: str | None) -> None:
        self.judge.put(key, old, new, {each.name for each in self.cast.living})
        if new is not None and key.removeprefix("bucket/") in self.cast.buckets:
            self.window.put(read_group(new))

    def _takes(self, sender: str, receiver: str) -> float:
        """Return the extra seconds of a message."""
        seconds = self._links.get((sender, receiver))
        if seconds is None:
            names, ends = self.cast.roles.controllers, {disk_of(sender), disk_of(receiver)}
            servers = set(self.cast.roles.servers)
            seconds = 0.0
            if ends <= servers and self.random.random() < self.world.slow_links:
                seconds = self.world.between_seconds
            if ends & servers and ends & set(names):
                seconds = self.world.control_seconds
            self._links[sender, receiver] = seconds
        return seconds and self.random.random() * seconds

    def _chance(self) -> None:
        self.cast.take_events()
        self.waits.check()
        self.is_lost = not self.cast.keeps({each.name for each in self.cast.living})
        if self.training.coordinator.has_begun and not self._is_quiet:
            if self.network.on_send is None and self.world.aims:
                self.network.on_send = self._aiming.sent
            self.troubles.chance()
            if (
                self.training.dispatcher.frozen_ledger is not None
                and self.random.random() < self.world.taking / 10
            ):
                self._take()
        elif self._is_quiet and (self.world.drains or self.world.runs):
            self.troubles.undo()
        self.loop.schedule(0.1, self._chance)

    def _calm(self) -> None:
        """Stop all faults."""
        self._is_quiet, self.network.faults = True, Faults()
        self.network.extra_seconds = self.network.on_send = None

    def _take(self) -> None:
        """Check a checkpoint: all primaries have its state, and each contains every sample once."""
        dispatcher = self.training.dispatcher
        for bucket, group in self.cast.groups.items():
            copy = self.cast.copy_of(bucket, group.primary)
            frozen = None if copy is None else copy.state.updates.frozen
            if copy is None or copy.role is not ReplicaRole.PRIMARY or copy.group != group:
                return
            if frozen is None or frozen.checkpoint != dispatcher.checkpoint:
                self._untaken += 1
                if self._untaken > 1000:
                    raise BrokenError(f"{bucket} has not kept checkpoint {dispatcher.checkpoint}")
                return
        self._untaken = 0
        kept = cast(RecordedLedger, dispatcher.take_checkpoint())
        for bucket in self.cast.buckets:
            for copy in self._copies(bucket):
                frozen = copy.state.updates.frozen
                if frozen is not None and frozen.checkpoint == dispatcher.checkpoint:
                    self.sums.check_bucket(bucket, frozen.vectors, kept)

    # --- at the end ---

    def _copies(self, bucket: str) -> list[BucketReplica[list[float]]]:
        """Return the copies of a bucket's members, as far as they know about their membership."""
        group = self.cast.groups[bucket]
        copies = [self.cast.copy_of(bucket, name) for name in group.members]
        return [each for each in copies if each is not None and each.group == group]

    def _is_over(self) -> bool:
        if self.training.dispatcher.failure:
            raise BrokenError(self.training.dispatcher.failure)
        return self.training.dispatcher.state is DispatcherState.FINISHED or self.is_lost

    def _is_whole(self) -> bool:
        """True if every bucket has all copies with all changes, or if the life has lost one."""
        if self.is_lost:
            return True
        if self.training.dispatcher.frozen_ledger is not None:
            self._take()
            return False
        if self.cast.runs:  # these were deleted
            return False
        wanted = min(self.world.copies, len(self.cast.living))
        for bucket, group in self.cast.groups.items():
            copies = self._copies(bucket)
            if not wanted <= len(copies) == len(group.members):
                return False
            if copies[0].role is not ReplicaRole.PRIMARY or len({each.index for each in copies}) > 1:
                return False
            if any(each.committed < copies[0].index for each in copies):
                return False
        return True


_HOSTS = "abcdefgh"


def _roles(world: World) -> Roles:
    buckets = [f"bucket {number}" for number in range(world.buckets)]
    return Roles(
        tuple(_HOSTS[: world.servers]),
        tuple(f"controller {number}" for number in range(world.controllers)),
        tuple(
            Shard(number, buckets[number % world.buckets], SHARD * number, SHARD * (number + 1), "", 0)
            for number in range(world.buckets * world.shards)
        ),
        _control(world),
        ReplicationSettings(
            min_members=world.least, window=world.window, topology=world.way, saves=world.disks
        ),
        has_momentum=world.has_momentum,
        drift=world.drift,
        saving_seconds=world.saving_seconds,
    )


def _control(world: World) -> ControllerSettings:
    control = ControllerSettings(
        replication_factor=world.copies, replication_factor_min=world.least, lease_seconds=world.lease_seconds
    )
    if not world.evens_soon:
        return control
    return replace(control, settle_seconds=0.1, rebalance_quiet_seconds=0.3, handover_seconds=0.1)


def _vectors(copy: BucketReplica[list[float]]) -> dict[str, list[list[float]]]:
    return {name: [list(each) for each in rows] for name, rows in copy.state.vectors.items()}
