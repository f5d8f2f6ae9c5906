"""A replica server: its lease, its buckets, and the dispatch of messages to them.

Knows: its replicas, its lease, the newest epoch of the controllers. Does not know: the contents of buckets,
the other replicas, sockets, clocks.

    message                                         action
    from a controller of an earlier epoch           none
    Assign                                          apply the group; `Assigned`
    Fence                                           deactivate lower terms; `FenceReply`
    LeaseGrant, for a heartbeat of this server      it may act as the primary from the time of the heartbeat;
                                                    of 0 s: the next heartbeat has all claims
    Prepare, Prepared, of a server of the group     as in `bucket_replica`; of any other none
    BucketEnvelope, for a primary here              process it; otherwise `NotPrimary`
    BucketEnvelope, the lease has expired           none: the client retries, or asks another server
    BucketEnvelope, of an earlier incarnation       `NotPrimary`: the client sends unanswered requests again
    DiskStateRequest                                read the disk; `DiskStateReply` with the more recent of
                                                    disk and memory
    DeleteRun                                       drop all replicas of the run, in memory and on the disk
    LeaseGrant or DeleteRun, of another cluster     none: that cluster has no right to the data

The network authenticates senders; names inside messages are not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, cast

from cotswold.replication.replica.bucket_replica import BucketReplica
from cotswold.replication.replica.bucket_state import BucketState
from cotswold.replication.replica.claims import ClaimsSender
from cotswold.replication.replica.follower_progress import PeerActivity
from cotswold.replication.replica.group_member import ReplicaRole
from cotswold.replication.replica.lease import Lease
from cotswold.replication.replica.saved_bucket import SavedBucket
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.shards.core.shard_server import Values
from cotswold.wire import (
    CONTROLLERS,
    Assign,
    Assigned,
    BucketEnvelope,
    BucketMessage,
    DeleteRun,
    DiskStateReply,
    DiskStateRequest,
    Fence,
    Heartbeat,
    LeaseGrant,
    NotPrimary,
    Prepare,
    Prepared,
    Pull,
    Send,
    ToUpdates,
    Write,
)
from cotswold.wire.names import run_of

ToReplicaServer = (
    Assign | Fence | DiskStateRequest | DeleteRun | LeaseGrant | Prepare | Prepared | BucketEnvelope
)


class ReplicaServer(Generic[Values]):
    """A replica server for the lifetime of its process: a restarted process has another name."""

    def __init__(
        self,
        name: str,
        host: str,
        address: str,
        make: Callable[[str], BucketState[Values]],
        copying: ReplicationSettings,
        now: float,
        peer_address: str = "",
    ) -> None:
        """``make`` creates the initial contents of a bucket; ``peer_address``: address for other servers,
        if different from ``address``."""
        self.name, self.host, self.address, self.settings = name, host, address, copying
        self.peer_address = peer_address
        self.lease = Lease()
        self._claims = ClaimsSender()
        self.copies: dict[str, BucketReplica[Values]] = {}
        self._make = make
        self._activity = PeerActivity()
        self._epoch = 0
        self._busy: dict[str, None] = {}
        """Buckets that may have updates that wait."""
        self._heartbeat_at = now - copying.beat_seconds
        self._answered = 0
        """The newest heartbeat with a reply."""
        self._to_read: dict[str, None] = {}
        """Buckets to be read from the disk."""
        self._saves: dict[int, tuple[BucketReplica[Values], int, int, int]] = {}
        """Writes in flight, by number: the replica, its history, the index and the term."""
        self._save, self._first = 0, ""
        """Number of the newest write, and the bucket to begin with next time."""
        self.cluster = ""
        """Name of the cluster that granted its lease, or to which its disk belongs."""
        self._disk_buckets: dict[str, None] = {}
        """Buckets that may be on the disk."""
        self._forgotten: dict[str, None] = {}
        """Buckets to be deleted from the disk."""

    @property
    def leads(self) -> tuple[tuple[str, int], ...]:
        """(bucket, term) of all buckets of which it is the primary while its lease is valid."""
        return tuple(
            (name, copy.group.term)
            for name, copy in self.copies.items()
            if copy.role is ReplicaRole.PRIMARY and copy.fence <= copy.group.term
        )

    @property
    def fenced(self) -> tuple[tuple[str, int], ...]:
        """(bucket, term) of elections without a known result: the leader that held one may have stepped
        down."""
        return tuple(
            (name, copy.fence)
            for name, copy in self.copies.items()
            if copy.fence > copy.group.term
            and (copy.role in (ReplicaRole.PRIMARY, ReplicaRole.SECONDARY) or copy.group.primary == self.name)
        )

    def under_replicated(self, belongs: Callable[[str], bool] = lambda bucket: True) -> tuple[int, int]:
        """Return the number of buckets led here (and selected by ``belongs``) that wait for members, and
        the smallest number of members among them."""
        if self.settings.min_members == 1:
            return 0, 0
        found = [
            len(copy.group.members)
            for name, copy in self.copies.items()
            if copy.is_under_replicated and belongs(name)
        ]
        return len(found), min(found, default=0)

    @property
    def runs(self) -> tuple[str, ...]:
        """Runs with data in memory or on the disk."""
        return tuple(sorted({run_of(name) for name in (*self.copies, *self._disk_buckets)} - {""}))

    @property
    def cluster_name(self) -> str:
        """Cluster that owns its data; empty if it has none and may join any."""
        return self.cluster if self.copies or self._disk_buckets else ""

    def receive(self, sender: str, message: ToReplicaServer, now: float) -> list[Send]:
        """Process a message; the caller passes controllers' messages only if one of them sent it."""
        match message:
            case BucketEnvelope():
                return self._client(sender, message, now)
            case Prepare():
                copy = self._copy_with(sender, message.bucket, now)
                return [] if copy is None else copy.prepare(sender, message, now)
            case Prepared():
                copy = self._copy_with(sender, message.bucket, now)
                return [] if copy is None else self._enclosed(copy, copy.prepared(sender, message, now))
            case LeaseGrant():
                is_for_this = message.server == self.name and self._is_current(message.epoch)
                if is_for_this and message.cluster == (self.cluster_name or message.cluster):
                    self._answered = max(self._answered, message.number)
                    self.cluster = message.cluster
                    self.lease.grant(message.number, message.seconds)
                    self._claims.leased(message.number, message.seconds)
                return []
            case Fence():
                if not self._is_current(message.epoch):
                    return []
                return [Send(sender, self._copy(message.bucket).fenced(message))]
            case DeleteRun():
                if self._is_current(message.epoch) and message.cluster == self.cluster_name:
                    self._forget(message.run)
                return []
            case DiskStateRequest():
                return self._find_saved(sender, message) if self._is_current(message.epoch) else []
            case Assign():
                if not self._is_current(message.epoch):
                    return []
                copy = self._copy(message.group.bucket)
                sends = copy.assign(message.group, now)
                answer = Assigned(message.group.bucket, copy.group.term, self.name, message.number)
                return [*self._enclosed(copy, sends), Send(sender, answer)]

    @property
    def is_busy(self) -> bool:
        """True if updates may wait."""
        return bool(self._busy)

    def tick(self, now: float) -> list[Send]:
        """Process the passing of time; call it a few times per heartbeat interval."""
        sends: list[Send] = []
        if now - self._heartbeat_at >= self.settings.beat_seconds:
            self._heartbeat_at = now
            number = self.lease.request(now)
            leads = self._claims.claims_to_send(self.leads, number)
            own = self.name, self.host, self.address, number, leads, self.fenced, self.peer_address
            more = self.runs, self._claims.number, self.cluster_name, self._answered
            sends.append(Send(CONTROLLERS, Heartbeat(*own, *more)))
            self._activity.forget(now - max(self.settings.silent_seconds, self.settings.beat_seconds))
        for copy in self.copies.values():
            sends += self._enclosed(copy, copy.tick(now))
        return sends

    def drain(self, now: float) -> list[Send]:
        """Apply the updates that wait; call it when idle."""
        sends: list[Send] = []
        for name in list(self._busy):
            copy = self.copies[name]
            sends += self._enclosed(copy, copy.drain(now))
            if not copy.state.updates.queued:
                del self._busy[name]
        return sends

    # --- disk ---

    @property
    def dirty(self) -> list[str]:
        """Dirty buckets."""
        return [name for name, copy in self.copies.items() if self.settings.saves and copy.is_unsaved]

    def save(self, bucket: str) -> tuple[int, SavedBucket]:
        """Return the data of a dirty bucket to write, with a number for `saved` and `unsaved`."""
        copy = self.copies[bucket]
        each = copy.save()
        assert each is not None, "it is dirty"
        self._save += 1
        self._saves[self._save] = copy, copy.history, each.index, each.term
        self._disk_buckets[bucket] = None
        return self._save, each

    def saves(self) -> Iterator[tuple[int, SavedBucket]]:
        """Yield all data to write now, one bucket after the other. A caller that takes only some gets the
        others first next time."""
        names = list(self.copies)
        start = names.index(self._first) if self._first in names else 0
        for name in (*names[start:], *names[:start]):
            self._first = name
            if self.settings.saves and self.copies[name].is_unsaved:
                yield self.save(name)

    def damaged(self, bucket: str) -> bool:
        """Write a bucket again whose data on the disk are damaged; False if there is nothing to write."""
        copy = self.copies.get(bucket)
        return copy is not None and copy.mark_dirty()

    def found_on_disk(self, buckets: Iterable[str], cluster: str = "") -> None:
        """Record the buckets and the cluster of the disk, found when the process started."""
        self.cluster = cluster
        self._disk_buckets.update(dict.fromkeys(buckets))

    def take_forgotten(self) -> list[str]:
        """Return the buckets to delete from the disk."""
        found, self._forgotten = list(self._forgotten), {}
        return found

    def _forget(self, run: str) -> None:
        """Drop everything of a run."""
        for bucket in [name for name in self._disk_buckets if run_of(name) == run]:
            del self._disk_buckets[bucket]
            self._forgotten[bucket] = None
        for bucket in [name for name in self.copies if run_of(name) == run]:
            copy = self.copies.pop(bucket)
            self._busy.pop(bucket, None)
            self._to_read.pop(bucket, None)
            for number in [number for number, (of, *_) in self._saves.items() if of is copy]:
                del self._saves[number]

    def saved(self, number: int) -> None:
        """Record that a write, and all earlier ones of the bucket, are durable."""
        if number not in self._saves:
            return  # the bucket was deleted meanwhile
        copy, history, index, term = self._saves.pop(number)
        if copy.history == history:
            copy.saved(index, term)
        for older in [key for key, (of, *_) in self._saves.items() if of is copy and key < number]:
            del self._saves[older]

    def unsaved(self, number: int) -> None:
        """Record that the disk rejected a write; the bucket is dirty again."""
        if number not in self._saves:
            return
        copy, history, *_ = self._saves.pop(number)
        if copy.history == history:
            copy.unsaved()

    def take_reads(self) -> list[str]:
        """Return the buckets to read from the disk; call `on_read` for each."""
        found, self._to_read = list(self._to_read), {}
        return found

    def on_read(self, bucket: str, saved: SavedBucket | None) -> None:
        """Record the sound data that the disk has of a bucket; None if it has none."""
        copy = self.copies.get(bucket)
        if copy is not None:
            copy.recalled(saved)

    def _find_saved(self, sender: str, message: DiskStateRequest) -> list[Send]:
        copy = self._copy(message.bucket)
        if self.settings.saves and not copy.durability.is_read:
            self._to_read[message.bucket] = None  # the controller asks again
            return []
        rank, members = copy.best_recency
        return [Send(sender, DiskStateReply(message.bucket, self.name, *rank, members))]

    def _is_current(self, epoch: int) -> bool:
        self._epoch = max(self._epoch, epoch)
        return epoch == self._epoch

    def _copy_with(self, sender: str, bucket: str, now: float) -> BucketReplica[Values] | None:
        """Return the replica of a bucket that the sender also has, and record that the sender is active."""
        copy = self.copies.get(bucket)
        if copy is None or sender not in copy.group.all_servers:
            return None
        self._activity.last_received[sender] = now
        return copy

    def _copy(self, bucket: str) -> BucketReplica[Values]:
        if bucket not in self.copies:
            self.copies[bucket] = BucketReplica(
                bucket, self.name, lambda: self._make(bucket), self.settings, self.lease, self._activity
            )
        return self.copies[bucket]

    def _client(self, sender: str, message: BucketEnvelope, now: float) -> list[Send]:
        copy = self.copies.get(message.bucket)
        if copy is None:
            return [Send(sender, NotPrimary(message.bucket, 0, ""))]
        if copy.role is not ReplicaRole.PRIMARY:
            return [Send(sender, copy.not_primary())]
        if message.term < copy.group.incarnation:
            return [Send(sender, NotPrimary(message.bucket, copy.group.term, self.name))]
        sends = copy.on_client_message(sender, cast(ToUpdates | Pull | Write, message.message), now)
        if copy.state.updates.queued:
            self._busy[message.bucket] = None
        return self._enclosed(copy, sends)

    def _enclosed(self, copy: BucketReplica[Values], sends: list[Send]) -> list[Send]:
        """Wrap messages to clients in an envelope with the bucket's name."""
        return [
            each
            if each.to == CONTROLLERS or isinstance(each.message, Prepare)
            else Send(
                each.to, BucketEnvelope(copy.bucket, copy.group.term, cast(BucketMessage, each.message))
            )
            for each in sends
        ]
