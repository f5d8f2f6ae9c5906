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

from dataclasses import replace

from cotswold.replication.replica.follower_progress import (
    NO_INDEX,
    PrimaryState,
    is_index,
    is_silent,
)
from cotswold.replication.replica.group_member import GroupMember, ReplicaRole
from cotswold.shards.core.shard_server import Values
from cotswold.wire import (
    CONTROLLERS,
    CoordinatorStateAck,
    Group,
    LearnerCaughtUp,
    NotPrimary,
    PeerUnreachable,
    Prepare,
    Prepared,
    PrimaryUnreachable,
    Pull,
    PullNewer,
    Send,
    ToUpdates,
    Write,
)

_SETTLE_SECONDS = 0.5
"""Seconds after which numbers are copied out of the memory of the message that brought them; at most twice
as long."""


class BucketReplica(GroupMember[Values]):
    """A bucket's replica on a server."""

    # --- groups ---

    def assign(self, group: Group, now: float) -> list[Send]:
        """Process a group sent by a controller."""
        return self._replicate(now) if self._adopt(group, now) and self.role is ReplicaRole.PRIMARY else []

    # --- primary ---

    def on_client_message(self, sender: str, message: ToUpdates | Pull | Write, now: float) -> list[Send]:
        """Process a client's message."""
        if not self.is_acting(now):
            return []
        is_pull, copies = isinstance(message, Pull | PullNewer), 1 + self.settings.window
        if is_pull and not self.state.has_room(self._pending_replies, copies):
            return []  # the client asks again
        return self._hold_replies(self.state.receive(sender, message), now)

    def not_primary(self) -> NotPrimary:
        """Return a reply for a client that takes this replica for the primary."""
        known = self.group.primary if self.group.primary != self.server else ""
        return NotPrimary(self.bucket, self.group.term, known)

    def drain(self, now: float) -> list[Send]:
        """Apply the updates that wait, if possible."""
        if not self.is_acting(now) or self.is_waiting:
            return []
        return self._hold_replies(self.state.updates.drain(), now)

    def _hold_replies(self, sends: list[Send], now: float) -> list[Send]:
        """Hold replies until the state that they were made from is committed."""
        is_different, index = self.state.bump_index(), self.state.index
        if not (sends or is_different or self._pending_replies):  # the common case of an update that arrives
            return []
        new = [self._answering(each) for each in sends if each not in self._pending_replies]
        keys = self._pending_replies.add(new, index)
        told = [*(self._replicate(now) if is_different else []), *self._commit(now)]
        self._pending_replies.hold(keys, self.state.snapshot_reply)
        return told

    def _answering(self, send: Send) -> Send:
        """Return the reply; an acknowledgement to the coordinator gets the incarnation and what is durable
        everywhere."""
        if not isinstance(send.message, CoordinatorStateAck):
            return send
        least = None
        if self.settings.saves:
            has = [each.durable_index for each in self._followers.values() if each.is_voter]
            least = min([self.durability.index_this_term, *has])
        answer = self._answers.answer(send.message, self.group.incarnation, self.state.index, least)
        return Send(send.to, answer)

    def _replicate(self, now: float) -> list[Send]:
        """Send every follower the changes since it was last sent something."""
        return self._followers.send_changes(self._offer, now)

    @property
    def _offer(self) -> PrimaryState:
        contents = self.state
        return PrimaryState(
            self.bucket, self.group.term, contents.index, self.committed, contents.changes_since
        )

    def prepared(self, sender: str, prepared: Prepared, now: float) -> list[Send]:
        """Process a follower's report of its index."""
        peer = self._followers.get(sender)
        if self.role is not ReplicaRole.PRIMARY or prepared.term != self.group.term or peer is None:
            return []
        if not (is_index(prepared.index) and is_index(prepared.durable_index)):
            return []
        sends = self._followers.on_prepared(sender, prepared, self._offer, now)
        if not peer.is_voter and peer.match_index is not None and peer.match_index >= self.state.index:
            peer.is_voter = True  # before it becomes a secondary, so that it lacks nothing then
            self._proposed = now
            sends += [Send(CONTROLLERS, LearnerCaughtUp(self.bucket, self.group.term, self.server, sender))]
        return [*sends, *self._commit(now)]

    def _commit(self, now: float) -> list[Send]:
        """Commit, and send the replies whose index all members have."""
        if not self.is_acting(now):
            return []
        if len(self.group.members) >= self.settings.min_members:
            self.committed = max(self.committed, self._followers.min_match(self.state.index))
        sends = self._pending_replies.committed(self.committed)
        if sends:
            self._note_reply(now)
        if not self._pending_replies:
            self.state.drop_shared()
        return sends

    def _note_reply(self, now: float) -> None:
        term, since, _ = self.last_replies
        self.last_replies = self.group.term, since if term == self.group.term else now, now

    def tick(self, now: float) -> list[Send]:
        """Process the passing of time."""
        if self.role is ReplicaRole.PRIMARY:
            if not self._followers and not self._pending_replies:
                return []
            return [*self._watch_peers(now), *self._commit(now)] if self.is_acting(now) else []
        if now - self._settled_at >= _SETTLE_SECONDS:
            self._settled_at = now
            self.state.release_borrowed()
        return self._watch_primary(now) if self.role is ReplicaRole.SECONDARY else []

    def _watch_peers(self, now: float) -> list[Send]:
        sends = self._followers.watch(self._offer, now)
        if now - self._proposed >= self.settings.retry_seconds:
            proposals = self._proposals(now)
            if proposals:
                self._proposed = now
            sends += proposals
        return sends

    def _proposals(self, now: float) -> list[Send]:
        """Return the changes of the group to propose to the controllers."""
        term, silent = self.group.term, self._followers.silent_members(now)
        found = [Send(CONTROLLERS, PeerUnreachable(self.bucket, term, self.server, name)) for name in silent]
        for name, peer in self._followers.items():
            if peer.is_voter and name in self.group.learners and name not in silent:
                found.append(Send(CONTROLLERS, LearnerCaughtUp(self.bucket, term, self.server, name)))
        return found

    # --- secondary or learner ---

    def prepare(self, sender: str, prepare: Prepare, now: float) -> list[Send]:
        """Prepare a change and, in a chain, forward it."""
        is_peer = self.role in (ReplicaRole.SECONDARY, ReplicaRole.LEARNER) and self._has_priority(sender)
        if not is_peer or prepare.term != self.group.term or prepare.term < self.fence:
            return []
        if not (is_index(prepare.index) and is_index(prepare.committed)):
            return []
        self._primary_seen_at = now
        is_lacking = prepare.base_index > self._prepared
        if prepare.change is not None and not is_lacking and prepare.index > self._prepared:
            before = self._pending[-1].change if self._pending and prepare.base_index != NO_INDEX else None
            if not self.state.can_apply(prepare, before):
                refused = self.state.updates.rejections
                refused["prepare"] = refused.get("prepare", 0) + 1
                return []
            if prepare.base_index == NO_INDEX:
                self._pending.clear()
            self._pending.append(prepare)
            self._prepared = prepare.index
        if not is_lacking and self._prepared >= prepare.committed and self._complete < self.group.term:
            self._complete = self.group.term
            self.durability.mark_dirty()
        self._install_to(min(prepare.committed, self._prepared))
        saved = self.durability.index_this_term
        prepared = Prepared(self.bucket, self.group.term, self.server, self._prepared, is_lacking, saved)
        return [Send(self.group.primary, prepared), *self._forward(prepare)]

    def _has_priority(self, sender: str) -> bool:
        """True if the sender is the primary or precedes this replica in the chain."""
        secondaries = self.group.secondaries
        if sender == self.group.primary:
            return True
        if sender not in secondaries or self.server not in secondaries:
            return False
        return secondaries.index(sender) < secondaries.index(self.server)

    def _forward(self, prepare: Prepare) -> list[Send]:
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

    def _watch_primary(self, now: float) -> list[Send]:
        is_due = now - self._proposed >= self.settings.retry_seconds
        primary = self.group.primary
        if not is_due or not is_silent(primary, self._primary_seen_at, self._activity, now, self.settings):
            return []
        self._proposed = now
        proposal = PrimaryUnreachable(self.bucket, self.group.term, self.server, self.group.primary)
        return [Send(CONTROLLERS, proposal)]
