"""A replica's role in its group, its data, and how much of the data is durable.

Knows: the newest group, prepared and committed indexes. Does not know: messages of clients and of other
replicas (`bucket_replica`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Generic

from cotswold.replication.replica.bucket_state import BucketState
from cotswold.replication.replica.durability import Durability
from cotswold.replication.replica.follower_progress import (
    NO_INDEX,
    Followers,
    PeerActivity,
    is_index,
)
from cotswold.replication.replica.lease import Lease
from cotswold.replication.replica.pending_replies import CoordinatorReplies, PendingReplies
from cotswold.replication.replica.saved_bucket import SavedBucket
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.shards.core.shard_server import Values
from cotswold.shards.core.versions import MAX_INCARNATIONS
from cotswold.wire import (
    Fence,
    FenceReply,
    Group,
    Prepare,
)

FIRST_TERM = 1
"""The term in which all replicas are new and therefore equal."""


class ReplicaRole(Enum):
    """Role of a replica in its group."""

    OUTSIDE = "outside"
    LEARNER = "learner"
    SECONDARY = "secondary"
    PRIMARY = "primary"


class GroupMember(Generic[Values]):
    """A bucket's replica on a server, without its messages."""

    def __init__(
        self,
        bucket: str,
        server: str,
        make: Callable[[], BucketState[Values]],
        copying: ReplicationSettings,
        lease: Lease,
        activity: PeerActivity,
    ) -> None:
        """``make`` creates the initial contents of the bucket."""
        self.bucket, self.server, self.settings, self._lease = bucket, server, copying, lease
        self.group = Group(bucket, 0, "")
        self.role = ReplicaRole.OUTSIDE
        self.fence = 0
        """Term below which it is inactive."""
        self.committed = NO_INDEX
        self._make = make
        self.state = make()
        self._pending: deque[Prepare] = deque()
        self._prepared = NO_INDEX
        self._primary_seen_at = self._settled_at = 0.0
        self._proposed = float("-inf")
        self._activity = activity
        self._followers = Followers(copying, activity)
        self._pending_replies = PendingReplies()
        """Replies that wait for a commit."""
        self._answers = CoordinatorReplies()
        self.durability = Durability()
        self.restored: tuple[tuple[int, int], ...] = ()
        """(number, version) of the shards with which its incarnation began, if that was here."""
        self.history = 0
        """Number that changes whenever it discards its data."""
        self.last_replies = 0, 0.0, 0.0
        """The term, and the first and last time in it, in which clients got replies."""
        self._complete = 0
        """For a learner: the newest term in which it had everything acknowledged so far."""

    @property
    def index(self) -> int:
        """Index up to which it has everything, at least prepared; -1 if it has no valid data."""
        return self.state.index if self.role is ReplicaRole.PRIMARY else self._prepared

    def is_acting(self, now: float) -> bool:
        """True if it may act as the primary."""
        return self.role is ReplicaRole.PRIMARY and self.fence <= self.group.term and self._lease.holds(now)

    @property
    def recency(self) -> tuple[int, int, int]:
        """Recency of its memory, like `SavedBucket.recency`; the index is -1 if it has no valid data."""
        index = NO_INDEX if self.role is ReplicaRole.OUTSIDE else self.index
        return (self.group.incarnation, self._term, index) if index > NO_INDEX else (0, 0, NO_INDEX)

    @property
    def best_recency(self) -> tuple[tuple[int, int, int], tuple[str, ...]]:
        """Recency of its memory, or of its disk if that is more recent, and the members at that time."""
        found = self.durability.found_state
        if found is not None and found.recency > self.recency:
            return found.recency, found.members
        return self.recency, self._known if self.recency[2] > NO_INDEX else ()

    @property
    def _known(self) -> tuple[str, ...]:
        return tuple(each for each in self.group.all_servers if each)

    @property
    def _term(self) -> int:
        """Term in which it had everything acknowledged so far."""
        return self._complete if self.role is ReplicaRole.LEARNER else self.group.term

    @property
    def is_under_replicated(self) -> bool:
        """True if it is the primary and has too few members."""
        return self.role is ReplicaRole.PRIMARY and len(self.group.members) < self.settings.min_members

    @property
    def is_waiting(self) -> bool:
        """True if updates wait: for acknowledgements or for members."""
        return self.is_under_replicated or self.state.index - self.committed >= self.settings.window

    @property
    def lag(self) -> dict[str, int]:
        """Number of indexes by which each follower is behind."""
        return {name: self.state.index - (peer.match_index or 0) for name, peer in self._followers.items()}

    @property
    def complete_followers(self) -> tuple[str, ...]:
        """Followers that have everything."""
        return tuple(name for name, peer in self._followers.items() if peer.match_index == self.state.index)

    def _adopt(self, group: Group, now: float) -> bool:
        """Take the role that a newer group gives; False if the group is not newer."""
        assert group.bucket == self.bucket, f"{group} is of another bucket than {self.bucket}"
        if group.term <= self.group.term or not (
            is_index(group.term) and 0 <= group.incarnation < MAX_INCARNATIONS
        ):
            return False
        most, is_memory = None, False
        if self.server == group.primary and group.incarnation > self.group.incarnation:
            most, is_memory = self._best_data()
        before, old, self.group = self.role, self.group, group
        self.fence = max(self.fence, group.term)
        self._proposed, self._primary_seen_at = float("-inf"), now
        self.durability.begin_term()
        if self.server not in group.all_servers:
            self._forget(ReplicaRole.OUTSIDE)
            found = self.durability.found_state
            if (
                found is not None and group.incarnation > found.incarnation
            ):  # else a recovery may still ask for it
                self.durability.clear_found()
            return True
        self.durability.clear_found()
        if self.server == group.primary:
            if most is not None:
                self._revive(most, is_memory=is_memory)
                before = ReplicaRole.PRIMARY
            self._lead(before, now)
        else:
            follows = ReplicaRole.SECONDARY if self.server in group.secondaries else ReplicaRole.LEARNER
            if self._is_unrelated(before, old, follows):
                self._forget(follows)
            elif before is ReplicaRole.PRIMARY:
                self._follow()
            elif before is ReplicaRole.OUTSIDE:
                self._prepared = self.committed = 0
            self.role = follows
        return True

    def _is_unrelated(self, before: ReplicaRole, old: Group, follows: ReplicaRole) -> bool:
        """True if its data may belong to a history that is not the bucket's."""
        if before is ReplicaRole.OUTSIDE:
            return self.group.term > FIRST_TERM
        if follows is ReplicaRole.LEARNER:  # it may have been dropped without its knowledge
            is_next = self.group.term == old.term + 1 and self.group.primary == old.primary
            return before is not ReplicaRole.LEARNER or not is_next
        return False

    def _forget(self, role: ReplicaRole) -> None:
        """Discard its data: no other replica may ever have had them."""
        self.role, self.state, self.restored = role, self._make(), ()
        self._prepared = self.committed = NO_INDEX
        self._pending.clear()
        self._pending_replies.clear()
        self._followers.clear()
        self._answers.clear()
        self.durability.clear()
        self._complete = 0
        self.history += 1

    def _follow(self) -> None:
        """Turn a fenced primary into a secondary: the next primary has the same data."""
        told, index = self.state.changes_since(NO_INDEX), self.state.index
        whole = Prepare(
            *(self.bucket, self.group.term, NO_INDEX, index, index),
            *(told.change, told.names, told.buffers),
        )
        self._forget(ReplicaRole.SECONDARY)
        self.state.install(whole)
        self._prepared = index

    def _best_data(self) -> tuple[SavedBucket | None, bool]:
        """Return the data with which an incarnation can begin, and True if they are in memory rather than
        on the disk."""
        rank, found = self.recency, self.durability.found_state
        if rank[2] == NO_INDEX or (found is not None and found.recency >= rank):
            return found, False
        if self.role is not ReplicaRole.PRIMARY:
            self._install_to(self._prepared)
        change, numbers = self.state.save(NO_INDEX)
        return SavedBucket(self.bucket, *rank, change, tuple(self.state.vectors), numbers), True

    def _revive(self, saved: SavedBucket, *, is_memory: bool) -> None:
        """Begin another incarnation with saved data."""
        self._forget(ReplicaRole.PRIMARY)
        self.state.revive(saved, self.group.incarnation)
        self.state.bump_index()
        self.restored = self.state.versions
        if not is_memory:
            self.durability.restore(saved.index)

    def _lead(self, before: ReplicaRole, now: float) -> None:
        if before is not ReplicaRole.PRIMARY:
            if before is ReplicaRole.OUTSIDE and self.group.term == FIRST_TERM:
                self._prepared = self.committed = 0
            if self._prepared == NO_INDEX:
                self._forget(ReplicaRole.OUTSIDE)  # it cannot lead, as it reported when it was fenced
                self.fence = self.group.term + 1
                return
            for each in self._pending:
                self.state.install(each)
            self._pending.clear()
            self.state.make_writable()
            self.role, self._prepared = ReplicaRole.PRIMARY, NO_INDEX
            self._followers.clear()
            self._answers.clear()
        self.state.updates.metadata.incarnation = self.group.incarnation
        self._followers.set_group(self.group, now)

    def fenced(self, fence: Fence) -> FenceReply:
        """Fence itself below a term, on a controller's request, and report its index."""
        self.fence = max(self.fence, fence.term)
        return FenceReply(self.bucket, fence.term, self.server, self.group.term, self.index)

    # --- disk ---

    @property
    def is_unsaved(self) -> bool:
        """True if there is something to save."""
        return self.role is not ReplicaRole.OUTSIDE and self.durability.is_behind(self.state.index)

    @property
    def unsaved_buffers(self) -> list[object]:
        """Buffers, in memory, that `save` would return."""
        return self.state.unsaved(self.durability.submitted_index) if self.is_unsaved else []

    def save(self) -> SavedBucket | None:
        """Return the changes since the durable state, unless all of them are being written. The caller writes
        them and then calls `saved` or `unsaved`. Changes that are being written are included: that write may
        fail and this one may not.

        Every replica is saved in each term, if only to record the term: of two disks, the one of the later
        term is more recent.
        """
        if not self.is_unsaved:
            return None
        index = self.state.index
        change, numbers = self.state.save(self.durability.index)
        self.durability.submitted(index)
        vectors = tuple(self.state.vectors)
        rank = self.group.incarnation, self._term, index
        return SavedBucket(self.bucket, *rank, change, vectors, numbers, self._known)

    def saved(self, index: int, term: int) -> None:
        """Record that it is durable up to this index, written in this term."""
        self.durability.persisted(index, is_of_this_term=term == self.group.term)

    def unsaved(self) -> None:
        """Record that a write was rejected: everything that is not durable is dirty again."""
        self.durability.rejected()

    def recalled(self, disk: SavedBucket | None) -> None:
        """Record the data read from the disk, and keep them if they are more recent than memory."""
        is_more = disk is not None and disk.recency > self.recency and self.state.can_load(disk)
        self.durability.set_found(disk if is_more else None)

    def mark_dirty(self) -> bool:
        """Invalidate the disk's data; False if there is nothing to write."""
        self.durability.clear()
        self.durability.mark_dirty()
        self.history += 1
        return self.role is not ReplicaRole.OUTSIDE

    def _install_to(self, index: int) -> None:
        """Apply the prepared changes up to an index."""
        while self._pending and self._pending[0].index <= index:
            self.state.install(self._pending.popleft())
        self.committed = max(self.committed, index)
