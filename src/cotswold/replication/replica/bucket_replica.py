"""One replica of a bucket: primary, secondary or learner.

Knows: the newest group, prepared and committed indexes, pending replies. Does not know: leases (it asks
whether one is valid), elections, the contents of the bucket (`bucket_state`).

    role         event                                       next
    OUTSIDE      a group of term 1 names it                  LEARNER, SECONDARY or PRIMARY, complete
    OUTSIDE      a later group has it as a follower          LEARNER or SECONDARY, empty
    OUTSIDE      a group has it as the primary               OUTSIDE: it cannot lead, and says so (`fence`)
    LEARNER      a group has it as a secondary               SECONDARY
    LEARNER      the next group of the same primary has it   LEARNER, with its data
                 as a learner
    LEARNER or   any other group has it as a learner         LEARNER, empty: it may have been dropped
      SECONDARY                                              meanwhile
    LEARNER or   a group has it as the primary               PRIMARY: apply everything prepared
      SECONDARY
    any          a group has it as the primary of a new      PRIMARY: start from the more recent of its memory
                 incarnation                                 and disk (`revive`)
    PRIMARY      a group has it as a learner                 LEARNER, empty: it may have uncommitted changes
    PRIMARY      a group has it as a secondary               SECONDARY, with its data: the next primary's
    any          a group does not name it                    OUTSIDE
    any          a group of a term that is not newer         unchanged
    any          `Fence`                                     unchanged, but inactive in all lower terms

    the primary                                  action
    a client pulls, and pending replies hold     none; the client asks again
      more copies than the window allows
    a client's message, while the lease is       execute it; hold the reply, unless it is already held
      valid
    a change                                     `Prepare` to all, with the next index (`follower_progress`)
    all members have prepared an index           commit it and send the replies that wait for it
    too many indexes are uncommitted             updates wait, and are applied together later
    fewer members than `min_members`             updates wait; nothing is committed
    a learner has caught up                      require its acknowledgements; `LearnerCaughtUp`
    a member is silent for long                  `PeerUnreachable`: a controller may remove it
    its lease expired, or it is fenced           no replies to clients, no commits

    a secondary or a learner                     action
    Prepare, of an earlier term                  none; the same from a sender that does not precede it
    Prepare, to be forwarded                     forward it to the next of the chain, and continue below
    Prepare, that continues its index            keep it as prepared; `Prepared`, to the primary
    Prepare, that begins above its index         `Prepared`, lacking
    Prepare, of everything                       discard its own data
    a greater index is committed                 apply what is prepared up to there
    a secondary does not hear its primary        `PrimaryUnreachable`: the controllers elect if they agree

So every member of the term has what a client was told, and any of them may be elected.

Each replica is also saved in the background (`save`): memory is authoritative, and the disk lags behind. If
every member is lost, the data of one of their disks begin another *incarnation* of the bucket, without the
last window. The reply to the coordinator (`CoordinatorStateAck`) carries the incarnation and what is durable
on every member.
Source: Chilimbi et al. 2014, section 3.3.3; Lin et al. 2008, PacificA.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Generic

from cotswold.replication.replica.bucket_state import Contents
from cotswold.replication.replica.durability import OnDisk
from cotswold.replication.replica.follower_progress import (
    NOTHING,
    Neighbours,
    Offer,
    Peers,
    is_index,
    is_silent,
)
from cotswold.replication.replica.lease import Lease
from cotswold.replication.replica.pending_replies import Answers, Held
from cotswold.replication.replica.saved_bucket import Saved
from cotswold.replication.replica.settings import Copying
from cotswold.shards.core.shard_server import Values
from cotswold.shards.core.versions import MAX_INCARNATIONS
from cotswold.wire import (
    CONTROLLERS,
    Caught,
    CoordinatorStateAck,
    Elsewhere,
    Fence,
    Fenced,
    Group,
    Prepare,
    Prepared,
    Pull,
    PullNewer,
    Send,
    Silent,
    TakeOver,
    ToUpdates,
    Write,
)

_SETTLE_SECONDS = 0.5
"""Seconds after which numbers are copied out of the memory of the message that brought them; at most twice
as long."""
FIRST = 1
"""The term in which all replicas are new and therefore equal."""


class Role(Enum):
    """Role of a replica in its group."""

    OUTSIDE = "outside"
    LEARNER = "learner"
    SECONDARY = "secondary"
    PRIMARY = "primary"


class Copy(Generic[Values]):
    """A bucket's replica on a server."""

    def __init__(
        self,
        bucket: str,
        server: str,
        make: Callable[[], Contents[Values]],
        copying: Copying,
        lease: Lease,
        neighbours: Neighbours,
    ) -> None:
        """``make`` creates the initial contents of the bucket."""
        self.bucket, self.server, self.copying, self._lease = bucket, server, copying, lease
        self.group = Group(bucket, 0, "")
        self.role = Role.OUTSIDE
        self.fence = 0
        """Term below which it is inactive."""
        self.committed = NOTHING
        self._make = make
        self.contents = make()
        self._pending: deque[Prepare] = deque()
        self._prepared = NOTHING
        self._primary_heard = self._settled = 0.0
        self._proposed = float("-inf")
        self._neighbours = neighbours
        self._peers = Peers(copying, neighbours)
        self._held = Held()
        """Replies that wait for a commit."""
        self._answers = Answers()
        self.on_disk = OnDisk()
        self.restored: tuple[tuple[int, int], ...] = ()
        """(number, version) of the shards with which its incarnation began, if that was here."""
        self.history = 0
        """Number that changes whenever it discards its data."""
        self.spoke = 0, 0.0, 0.0
        """The term, and the first and last time in it, in which clients got replies."""
        self._complete = 0
        """For a learner: the newest term in which it had everything acknowledged so far."""

    @property
    def index(self) -> int:
        """Index up to which it has everything, at least prepared; -1 if it has no valid data."""
        return self.contents.index if self.role is Role.PRIMARY else self._prepared

    def is_acting(self, now: float) -> bool:
        """True if it may act as the primary."""
        return self.role is Role.PRIMARY and self.fence <= self.group.term and self._lease.holds(now)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Recency of its memory, like `Saved.recency`; the index is -1 if it has no valid data."""
        index = NOTHING if self.role is Role.OUTSIDE else self.index
        return (self.group.life, self._term, index) if index > NOTHING else (0, 0, NOTHING)

    @property
    def best(self) -> tuple[tuple[int, int, int], tuple[str, ...]]:
        """Recency of its memory, or of its disk if that is more recent, and the members at that time."""
        found = self.on_disk.found
        if found is not None and found.rank > self.rank:
            return found.rank, found.members
        return self.rank, self._known if self.rank[2] > NOTHING else ()

    @property
    def _known(self) -> tuple[str, ...]:
        return tuple(each for each in self.group.everybody if each)

    @property
    def _term(self) -> int:
        """Term in which it had everything acknowledged so far."""
        return self._complete if self.role is Role.LEARNER else self.group.term

    @property
    def is_short(self) -> bool:
        """True if it is the primary and has too few members."""
        return self.role is Role.PRIMARY and len(self.group.members) < self.copying.least

    @property
    def is_waiting(self) -> bool:
        """True if updates wait: for acknowledgements or for members."""
        return self.is_short or self.contents.index - self.committed >= self.copying.window

    @property
    def lag(self) -> dict[str, int]:
        """Number of indexes by which each follower is behind."""
        return {name: self.contents.index - (peer.has or 0) for name, peer in self._peers.items()}

    @property
    def hears(self) -> tuple[str, ...]:
        """Followers that have everything."""
        return tuple(name for name, peer in self._peers.items() if peer.has == self.contents.index)

    # --- groups ---

    def assign(self, group: Group, now: float) -> list[Send]:
        """Process a group sent by a controller."""
        assert group.bucket == self.bucket, f"{group} is of another bucket than {self.bucket}"
        if group.term <= self.group.term or not (is_index(group.term) and 0 <= group.life < MAX_INCARNATIONS):
            return []
        most, is_memory = None, False
        if self.server == group.primary and group.life > self.group.life:
            most, is_memory = self._most()
        before, old, self.group = self.role, self.group, group
        self.fence = max(self.fence, group.term)
        self._proposed, self._primary_heard = float("-inf"), now
        self.on_disk.another_term()
        if self.server not in group.everybody:
            self._forget(Role.OUTSIDE)
            found = self.on_disk.found
            if found is not None and group.life > found.life:  # else a recovery may still ask for it
                self.on_disk.unread()
            return []
        self.on_disk.unread()
        if self.server == group.primary:
            if most is not None:
                self._revive(most, is_memory=is_memory)
                before = Role.PRIMARY
            self._lead(before, now)
        else:
            follows = Role.SECONDARY if self.server in group.secondaries else Role.LEARNER
            if self._is_foreign(before, old, follows):
                self._forget(follows)
            elif before is Role.PRIMARY:
                self._follow()
            elif before is Role.OUTSIDE:
                self._prepared = self.committed = 0
            self.role = follows
        return self._tell(now) if self.role is Role.PRIMARY else []

    def _is_foreign(self, before: Role, old: Group, follows: Role) -> bool:
        """True if its data may belong to a history that is not the bucket's."""
        if before is Role.OUTSIDE:
            return self.group.term > FIRST
        if follows is Role.LEARNER:  # it may have been dropped without its knowledge
            is_next = self.group.term == old.term + 1 and self.group.primary == old.primary
            return before is not Role.LEARNER or not is_next
        return False

    def _forget(self, role: Role) -> None:
        """Discard its data: no other replica may ever have had them."""
        self.role, self.contents, self.restored = role, self._make(), ()
        self._prepared = self.committed = NOTHING
        self._pending.clear()
        self._held.clear()
        self._peers.clear()
        self._answers.clear()
        self.on_disk.nothing()
        self._complete = 0
        self.history += 1

    def _follow(self) -> None:
        """Turn a fenced primary into a secondary: the next primary has the same data."""
        told, index = self.contents.since(NOTHING), self.contents.index
        whole = Prepare(
            *(self.bucket, self.group.term, NOTHING, index, index),
            *(told.change, told.names, told.buffers),
        )
        self._forget(Role.SECONDARY)
        self.contents.install(whole)
        self._prepared = index

    def _most(self) -> tuple[Saved | None, bool]:
        """Return the data with which an incarnation can begin, and True if they are in memory rather than
        on the disk."""
        rank, found = self.rank, self.on_disk.found
        if rank[2] == NOTHING or (found is not None and found.rank >= rank):
            return found, False
        if self.role is not Role.PRIMARY:
            self._install_to(self._prepared)
        change, numbers = self.contents.save(NOTHING)
        return Saved(self.bucket, *rank, change, tuple(self.contents.vectors), numbers), True

    def _revive(self, saved: Saved, *, is_memory: bool) -> None:
        """Begin another incarnation with saved data."""
        self._forget(Role.PRIMARY)
        self.contents.revive(saved, self.group.life)
        self.contents.stamp()
        self.restored = self.contents.versions
        if not is_memory:
            self.on_disk.was(saved.index)

    def _lead(self, before: Role, now: float) -> None:
        if before is not Role.PRIMARY:
            if before is Role.OUTSIDE and self.group.term == FIRST:
                self._prepared = self.committed = 0
            if self._prepared == NOTHING:
                self._forget(Role.OUTSIDE)  # it cannot lead, as it reported when it was fenced
                self.fence = self.group.term + 1
                return
            for each in self._pending:
                self.contents.install(each)
            self._pending.clear()
            self.contents.promote()
            self.role, self._prepared = Role.PRIMARY, NOTHING
            self._peers.clear()
            self._answers.clear()
        self.contents.updates.books.life = self.group.life
        self._peers.regroup(self.group, now)

    def fenced(self, fence: Fence) -> Fenced:
        """Fence itself below a term, on a controller's request, and report its index."""
        self.fence = max(self.fence, fence.term)
        return Fenced(self.bucket, fence.term, self.server, self.group.term, self.index)

    # --- primary ---

    def hear(self, sender: str, message: ToUpdates | Pull | Write, now: float) -> list[Send]:
        """Process a client's message."""
        if not self.is_acting(now):
            return []
        is_pull, copies = isinstance(message, Pull | PullNewer), 1 + self.copying.window
        if is_pull and not self.contents.has_room(self._held, copies):
            return []  # the client asks again
        return self._hold(self.contents.receive(sender, message), now)

    def elsewhere(self) -> Elsewhere:
        """Return a reply for a client that takes this replica for the primary."""
        known = self.group.primary if self.group.primary != self.server else ""
        return Elsewhere(self.bucket, self.group.term, known)

    def drain(self, now: float) -> list[Send]:
        """Apply the updates that wait, if possible."""
        if not self.is_acting(now) or self.is_waiting:
            return []
        return self._hold(self.contents.updates.drain(), now)

    def _hold(self, sends: list[Send], now: float) -> list[Send]:
        """Hold replies until the state that they were made from is committed."""
        is_different, index = self.contents.stamp(), self.contents.index
        if not (sends or is_different or self._held):  # the common case of an update that arrives
            return []
        new = [self._answering(each) for each in sends if each not in self._held]
        keys = self._held.add(new, index)
        told = [*(self._tell(now) if is_different else []), *self._commit(now)]
        self._held.keep(keys, self.contents.kept)
        return told

    def _answering(self, send: Send) -> Send:
        """Return the reply; an acknowledgement to the coordinator gets the incarnation and what is durable
        everywhere."""
        if not isinstance(send.message, CoordinatorStateAck):
            return send
        least = None
        if self.copying.saves:
            has = [each.saved for each in self._peers.values() if each.is_needed]
            least = min([self.on_disk.this_term, *has])
        answer = self._answers.answer(send.message, self.group.life, self.contents.index, least)
        return Send(send.to, answer)

    def _tell(self, now: float) -> list[Send]:
        """Send every follower the changes since it was last sent something."""
        return self._peers.tell(self._offer, now)

    @property
    def _offer(self) -> Offer:
        contents = self.contents
        return Offer(self.bucket, self.group.term, contents.index, self.committed, contents.since)

    def prepared(self, sender: str, prepared: Prepared, now: float) -> list[Send]:
        """Process a follower's report of its index."""
        peer = self._peers.get(sender)
        if self.role is not Role.PRIMARY or prepared.term != self.group.term or peer is None:
            return []
        if not (is_index(prepared.index) and is_index(prepared.saved)):
            return []
        sends = self._peers.heard(sender, prepared, self._offer, now)
        if not peer.is_needed and peer.has is not None and peer.has >= self.contents.index:
            peer.is_needed = True  # before it becomes a secondary, so that it lacks nothing then
            self._proposed = now
            sends += [Send(CONTROLLERS, Caught(self.bucket, self.group.term, self.server, sender))]
        return [*sends, *self._commit(now)]

    def _commit(self, now: float) -> list[Send]:
        """Commit, and send the replies whose index all members have."""
        if not self.is_acting(now):
            return []
        if len(self.group.members) >= self.copying.least:
            self.committed = max(self.committed, self._peers.least(self.contents.index))
        sends = self._held.committed(self.committed)
        if sends:
            self._speak(now)
        if not self._held:
            self.contents.drop_shared()
        return sends

    def _speak(self, now: float) -> None:
        term, since, _ = self.spoke
        self.spoke = self.group.term, since if term == self.group.term else now, now

    def tick(self, now: float) -> list[Send]:
        """Process the passing of time."""
        if self.role is Role.PRIMARY:
            if not self._peers and not self._held:
                return []
            return [*self._watch_peers(now), *self._commit(now)] if self.is_acting(now) else []
        if now - self._settled >= _SETTLE_SECONDS:
            self._settled = now
            self.contents.settle()
        return self._watch_primary(now) if self.role is Role.SECONDARY else []

    def _watch_peers(self, now: float) -> list[Send]:
        sends = self._peers.watch(self._offer, now)
        if now - self._proposed >= self.copying.retry_seconds:
            proposals = self._proposals(now)
            if proposals:
                self._proposed = now
            sends += proposals
        return sends

    def _proposals(self, now: float) -> list[Send]:
        """Return the changes of the group to propose to the controllers."""
        term, silent = self.group.term, self._peers.silent(now)
        found = [Send(CONTROLLERS, Silent(self.bucket, term, self.server, name)) for name in silent]
        for name, peer in self._peers.items():
            if peer.is_needed and name in self.group.learners and name not in silent:
                found.append(Send(CONTROLLERS, Caught(self.bucket, term, self.server, name)))
        return found

    # --- disk ---

    @property
    def is_unsaved(self) -> bool:
        """True if there is something to save."""
        return self.role is not Role.OUTSIDE and self.on_disk.is_behind(self.contents.index)

    @property
    def unsaved_buffers(self) -> list[object]:
        """Buffers, in memory, that `save` would return."""
        return self.contents.unsaved(self.on_disk.given) if self.is_unsaved else []

    def save(self) -> Saved | None:
        """Return the changes since the durable state, unless all of them are being written. The caller writes
        them and then calls `saved` or `unsaved`. Changes that are being written are included: that write may
        fail and this one may not.

        Every replica is saved in each term, if only to record the term: of two disks, the one of the later
        term is more recent.
        """
        if not self.is_unsaved:
            return None
        index = self.contents.index
        change, numbers = self.contents.save(self.on_disk.index)
        self.on_disk.giving(index)
        vectors = tuple(self.contents.vectors)
        rank = self.group.life, self._term, index
        return Saved(self.bucket, *rank, change, vectors, numbers, self._known)

    def saved(self, index: int, term: int) -> None:
        """Record that it is durable up to this index, written in this term."""
        self.on_disk.taken(index, is_of_this_term=term == self.group.term)

    def unsaved(self) -> None:
        """Record that a write was rejected: everything that is not durable is dirty again."""
        self.on_disk.refused()

    def recalled(self, disk: Saved | None) -> None:
        """Record the data read from the disk, and keep them if they are more recent than memory."""
        is_more = disk is not None and disk.rank > self.rank and self.contents.fits(disk)
        self.on_disk.read(disk if is_more else None)

    def save_again(self) -> bool:
        """Invalidate the disk's data; False if there is nothing to write."""
        self.on_disk.nothing()
        self.on_disk.again()
        self.history += 1
        return self.role is not Role.OUTSIDE

    # --- secondary or learner ---

    def prepare(self, sender: str, prepare: Prepare, now: float) -> list[Send]:
        """Prepare a change and, in a chain, forward it."""
        is_peer = self.role in (Role.SECONDARY, Role.LEARNER) and self._comes_before(sender)
        if not is_peer or prepare.term != self.group.term or prepare.term < self.fence:
            return []
        if not (is_index(prepare.index) and is_index(prepare.committed)):
            return []
        self._primary_heard = now
        is_lacking = prepare.after > self._prepared
        if prepare.change is not None and not is_lacking and prepare.index > self._prepared:
            before = self._pending[-1].change if self._pending and prepare.after != NOTHING else None
            if not self.contents.takes(prepare, before):
                refused = self.contents.updates.refused
                refused["prepare"] = refused.get("prepare", 0) + 1
                return []
            if prepare.after == NOTHING:
                self._pending.clear()
            self._pending.append(prepare)
            self._prepared = prepare.index
        if not is_lacking and self._prepared >= prepare.committed and self._complete < self.group.term:
            self._complete = self.group.term
            self.on_disk.again()
        self._install_to(min(prepare.committed, self._prepared))
        saved = self.on_disk.this_term
        prepared = Prepared(self.bucket, self.group.term, self.server, self._prepared, is_lacking, saved)
        return [Send(self.group.primary, prepared), *self._hand_on(prepare)]

    def _comes_before(self, sender: str) -> bool:
        """True if the sender is the primary or precedes this replica in the chain."""
        secondaries = self.group.secondaries
        if sender == self.group.primary:
            return True
        if sender not in secondaries or self.server not in secondaries:
            return False
        return secondaries.index(sender) < secondaries.index(self.server)

    def _hand_on(self, prepare: Prepare) -> list[Send]:
        """Forward a message to the next replica of the chain, which must come after this one."""
        if not prepare.onward:
            return []
        following, *others = prepare.onward
        secondaries = self.group.secondaries
        if (
            self.server not in secondaries
            or following not in secondaries[secondaries.index(self.server) + 1 :]
        ):
            return []
        return [Send(following, replace(prepare, onward=tuple(others)))]

    def _install_to(self, index: int) -> None:
        """Apply the prepared changes up to an index."""
        while self._pending and self._pending[0].index <= index:
            self.contents.install(self._pending.popleft())
        self.committed = max(self.committed, index)

    def _watch_primary(self, now: float) -> list[Send]:
        is_due = now - self._proposed >= self.copying.retry_seconds
        primary = self.group.primary
        if not is_due or not is_silent(primary, self._primary_heard, self._neighbours, now, self.copying):
            return []
        self._proposed = now
        proposal = TakeOver(self.bucket, self.group.term, self.server, self.group.primary)
        return [Send(CONTROLLERS, proposal)]
