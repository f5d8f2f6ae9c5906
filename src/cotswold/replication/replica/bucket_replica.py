"""One copy of a bucket: as its primary, as a secondary, as a learner.

Knows: the group of the newest term, what is prepared and committed here, what waits to be said. Does not
know: leases (it is told whether one holds), who elects, what is in the bucket (`contents`).

    role         what happens                                next
    OUTSIDE      a group of term 1 names it                  LEARNER, SECONDARY or PRIMARY, with everything
    OUTSIDE      a later group has it as a follower          LEARNER or SECONDARY, with nothing
    OUTSIDE      a group has it as primary                   OUTSIDE: it cannot lead, and says so (`fence`)
    LEARNER      a group has it among the secondaries        SECONDARY
    LEARNER      the next group of the same primary has it   LEARNER, with what it has
                 as a learner
    LEARNER or   any other group has it as a learner         LEARNER, with nothing: it may have been left out
      SECONDARY                                              meanwhile
    LEARNER or   a group has it as primary                   PRIMARY: what it has prepared becomes so
      SECONDARY
    any          a group has it as primary, of a life that   PRIMARY: the most of what its memory and its disk
                 begins                                      have is so (`revive`)
    PRIMARY      a group has it as a learner                 LEARNER: it has what nobody may ever have had
    PRIMARY      a group has it as a secondary               SECONDARY: it has what the next primary has
    any          a group does not name it                    OUTSIDE
    any          a group of a term that is not newer         the same
    any          `Fence`                                     the same: it acts, and follows, in no lower term

    the primary                                  what it does
    a client's pull, and what is held has more   nothing; it is asked again
      copies than indexes may be under way
    a client's message, its lease holds          does it; what is said of it is held, unless the same is
    something is different                       `Prepare` to all, with the next index (`peers`)
    all members have prepared an index           it is committed: what was held for it is said
    too many indexes are not committed           updates wait, and are applied together later
    fewer members than ``least``                 updates wait; nothing is committed
    a learner has as much as it has              from now on it waits for that one too; `Caught`
    a member says nothing for long               `Silent`: a controller may take it out
    its lease is over, or it is fenced           it says nothing to clients, and commits nothing

    a secondary or a learner                     what it does
    Prepare, of a term that is over              nothing; so with one of whoever does not come before it
    Prepare, that is to be handed on             besides what follows, the next on the way is sent it
    Prepare, that begins where it has got to     kept apart; `Prepared`, to the primary
    Prepare, that begins above                   `Prepared`, lacking
    Prepare, of everything                       whatever it had is forgotten
    a greater index is committed                 what was kept apart to there becomes so
    a secondary hears nothing of its primary     `TakeOver`: the controllers elect, if that is so

What a client was told is therefore with every member of the term, and any of them may be elected.

Behind all this each copy is saved (`save`): memory is the truth, and the disk has what was so a while ago. If
every member is gone, what one of their disks has begins another *life* of the bucket, without its last
window; the coordinator learns of that by `Ordered`, as of what every member has on its disk.
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
from cotswold.shards.core.versions import LIVES
from cotswold.wire import (
    CONTROLLERS,
    Caught,
    Elsewhere,
    Fence,
    Fenced,
    Group,
    Ordered,
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
"""For so long, and at most twice as long, numbers are left in the memory of the message that brought them."""
FIRST = 1
"""The term in which all copies are new, and so alike."""


class Role(Enum):
    """What a copy is in its group."""

    OUTSIDE = "outside"
    LEARNER = "learner"
    SECONDARY = "secondary"
    PRIMARY = "primary"


class Copy(Generic[Values]):
    """That of a bucket on a server."""

    def __init__(
        self,
        bucket: str,
        server: str,
        make: Callable[[], Contents[Values]],
        copying: Copying,
        lease: Lease,
        neighbours: Neighbours,
    ) -> None:
        """``make`` makes contents in which nothing has happened."""
        self.bucket, self.server, self.copying, self._lease = bucket, server, copying, lease
        self.group = Group(bucket, 0, "")
        self.role = Role.OUTSIDE
        self.fence = 0
        """It takes part in no term below."""
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
        """What is said once an index is committed."""
        self._answers = Answers()
        self.on_disk = OnDisk()
        self.restored: tuple[tuple[int, int], ...] = ()
        """Shards and their versions, with which its life began, if that was here."""
        self.history = 0
        """Another number whenever it has forgotten what was here."""
        self.spoke = 0, 0.0, 0.0
        """In which term clients were answered last, when for the first time in it, and when last."""
        self._complete = 0
        """Of a learner: the newest term in which it had all that was acknowledged until then."""

    @property
    def index(self) -> int:
        """To which it has everything, prepared at least; -1 for nothing that counts."""
        return self.contents.index if self.role is Role.PRIMARY else self._prepared

    def is_acting(self, now: float) -> bool:
        """Whether it may say anything as the primary."""
        return self.role is Role.PRIMARY and self.fence <= self.group.term and self._lease.holds(now)

    @property
    def rank(self) -> tuple[int, int, int]:
        """What its memory has, as `Saved.rank`; the index is -1 where that is nothing."""
        index = NOTHING if self.role is Role.OUTSIDE else self.index
        return (self.group.life, self._term, index) if index > NOTHING else (0, 0, NOTHING)

    @property
    def best(self) -> tuple[tuple[int, int, int], tuple[str, ...]]:
        """The rank of its memory, or of the disk where that has more, and who had copies then."""
        found = self.on_disk.found
        if found is not None and found.rank > self.rank:
            return found.rank, found.members
        return self.rank, self._known if self.rank[2] > NOTHING else ()

    @property
    def _known(self) -> tuple[str, ...]:
        return tuple(each for each in self.group.everybody if each)

    @property
    def _term(self) -> int:
        """In which it had all that was acknowledged."""
        return self._complete if self.role is Role.LEARNER else self.group.term

    @property
    def is_short(self) -> bool:
        """Whether it is led here, and has fewer members than it must have."""
        return self.role is Role.PRIMARY and len(self.group.members) < self.copying.least

    @property
    def is_waiting(self) -> bool:
        """Whether updates wait: for others to prepare, or for members."""
        return self.is_short or self.contents.index - self.committed >= self.copying.window

    @property
    def lag(self) -> dict[str, int]:
        """How many indexes each peer of a primary is behind."""
        return {name: self.contents.index - (peer.has or 0) for name, peer in self._peers.items()}

    @property
    def hears(self) -> tuple[str, ...]:
        """Peers of a primary that have everything."""
        return tuple(name for name, peer in self._peers.items() if peer.has == self.contents.index)

    # --- groups ---

    def assign(self, group: Group, now: float) -> list[Send]:
        """A controller says who has copies."""
        assert group.bucket == self.bucket, f"{group} is of another bucket than {self.bucket}"
        if group.term <= self.group.term or not (is_index(group.term) and 0 <= group.life < LIVES):
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
            if found is not None and group.life > found.life:  # else it may be asked for yet
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
        """Whether what it has may be of a history that is not the bucket's."""
        if before is Role.OUTSIDE:
            return self.group.term > FIRST
        if follows is Role.LEARNER:  # it may have been left out, and not have heard of it
            is_next = self.group.term == old.term + 1 and self.group.primary == old.primary
            return before is not Role.LEARNER or not is_next
        return False

    def _forget(self, role: Role) -> None:
        """Whatever is here may never have been anywhere else."""
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
        """It was the primary, was fenced, and then had what the next one has: as a secondary it has that."""
        told, index = self.contents.since(NOTHING), self.contents.index
        whole = Prepare(
            *(self.bucket, self.group.term, NOTHING, index, index),
            *(told.change, told.names, told.buffers),
        )
        self._forget(Role.SECONDARY)
        self.contents.install(whole)
        self._prepared = index

    def _most(self) -> tuple[Saved | None, bool]:
        """What a life can begin with, and whether it is in memory: that, or what the disk has."""
        rank, found = self.rank, self.on_disk.found
        if rank[2] == NOTHING or (found is not None and found.rank >= rank):
            return found, False
        if self.role is not Role.PRIMARY:
            self._install_to(self._prepared)
        change, numbers = self.contents.save(NOTHING)
        return Saved(self.bucket, *rank, change, tuple(self.contents.vectors), numbers), True

    def _revive(self, saved: Saved, *, is_memory: bool) -> None:
        """This is so, in another life."""
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
                self._forget(Role.OUTSIDE)  # it cannot lead, which it said when it was asked what it has
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
        """A controller elects the primary of a term."""
        self.fence = max(self.fence, fence.term)
        return Fenced(self.bucket, fence.term, self.server, self.group.term, self.index)

    # --- the primary ---

    def hear(self, sender: str, message: ToUpdates | Pull | Write, now: float) -> list[Send]:
        """A client's message."""
        if not self.is_acting(now):
            return []
        is_pull, copies = isinstance(message, Pull | PullNewer), 1 + self.copying.window
        if is_pull and not self.contents.has_room(self._held, copies):
            return []  # the client asks again
        return self._hold(self.contents.receive(sender, message), now)

    def elsewhere(self) -> Elsewhere:
        """For a client that takes this for the primary."""
        known = self.group.primary if self.group.primary != self.server else ""
        return Elsewhere(self.bucket, self.group.term, known)

    def drain(self, now: float) -> list[Send]:
        """Apply what waits, where it may be."""
        if not self.is_acting(now) or self.is_waiting:
            return []
        return self._hold(self.contents.updates.drain(), now)

    def _hold(self, sends: list[Send], now: float) -> list[Send]:
        """What is said waits for what it was said from."""
        is_different, index = self.contents.stamp(), self.contents.index
        if not (sends or is_different or self._held):  # as of most updates when they come
            return []
        new = [self._answering(each) for each in sends if each not in self._held]
        keys = self._held.add(new, index)
        told = [*(self._tell(now) if is_different else []), *self._commit(now)]
        self._held.keep(keys, self.contents.kept)
        return told

    def _answering(self, send: Send) -> Send:
        """The same; an answer to an order says besides which life this is, and what all disks have."""
        if not isinstance(send.message, Ordered):
            return send
        least = None
        if self.copying.saves:
            has = [each.saved for each in self._peers.values() if each.is_needed]
            least = min([self.on_disk.this_term, *has])
        answer = self._answers.answer(send.message, self.group.life, self.contents.index, least)
        return Send(send.to, answer)

    def _tell(self, now: float) -> list[Send]:
        """Everybody is sent what is different since it was sent something last."""
        return self._peers.tell(self._offer, now)

    @property
    def _offer(self) -> Offer:
        contents = self.contents
        return Offer(self.bucket, self.group.term, contents.index, self.committed, contents.since)

    def prepared(self, sender: str, prepared: Prepared, now: float) -> list[Send]:
        """A peer says what it has."""
        peer = self._peers.get(sender)
        if self.role is not Role.PRIMARY or prepared.term != self.group.term or peer is None:
            return []
        if not (is_index(prepared.index) and is_index(prepared.saved)):
            return []
        sends = self._peers.heard(sender, prepared, self._offer, now)
        if not peer.is_needed and peer.has is not None and peer.has >= self.contents.index:
            peer.is_needed = True  # first it is waited for, then it is a secondary: so it lacks nothing then
            self._proposed = now
            sends += [Send(CONTROLLERS, Caught(self.bucket, self.group.term, self.server, sender))]
        return [*sends, *self._commit(now)]

    def _commit(self, now: float) -> list[Send]:
        """Say what was held for what all have now."""
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
        """Time has passed."""
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
        """What the controllers are to change in the group."""
        term, silent = self.group.term, self._peers.silent(now)
        found = [Send(CONTROLLERS, Silent(self.bucket, term, self.server, name)) for name in silent]
        for name, peer in self._peers.items():
            if peer.is_needed and name in self.group.learners and name not in silent:
                found.append(Send(CONTROLLERS, Caught(self.bucket, term, self.server, name)))
        return found

    # --- the disk ---

    @property
    def is_unsaved(self) -> bool:
        """Whether `save` has something."""
        return self.role is not Role.OUTSIDE and self.on_disk.is_behind(self.contents.index)

    @property
    def unsaved_buffers(self) -> list[object]:
        """The numbers that `save` would have, in memory."""
        return self.contents.unsaved(self.on_disk.given) if self.is_unsaved else []

    def save(self) -> Saved | None:
        """What is different since what is on the disk, if not all of that is on its way there; to be put
        there, then `saved` or `unsaved`. What is on its way is in it again: it may be refused, and this not.

        In each term it is saved anew, if only to say so: of any two disks that of the later term has more.
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
        """It is on the disk to this index, and was put there in this term."""
        self.on_disk.taken(index, is_of_this_term=term == self.group.term)

    def unsaved(self) -> None:
        """What was to be saved is not on its way any more: all that the disk has not is different again."""
        self.on_disk.refused()

    def recalled(self, disk: Saved | None) -> None:
        """What the disk has was read: it is kept if that is more than what is here."""
        is_more = disk is not None and disk.rank > self.rank and self.contents.fits(disk)
        self.on_disk.read(disk if is_more else None)

    def save_again(self) -> bool:
        """The disk has nothing that counts any more; False where there is nothing to put there."""
        self.on_disk.nothing()
        self.on_disk.again()
        self.history += 1
        return self.role is not Role.OUTSIDE

    # --- a secondary or a learner ---

    def prepare(self, sender: str, prepare: Prepare, now: float) -> list[Send]:
        """The primary wants something kept, and perhaps handed on."""
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
        """Whether a sender is the primary, or before this one on the way of a chain."""
        secondaries = self.group.secondaries
        if sender == self.group.primary:
            return True
        if sender not in secondaries or self.server not in secondaries:
            return False
        return secondaries.index(sender) < secondaries.index(self.server)

    def _hand_on(self, prepare: Prepare) -> list[Send]:
        """To the next on the way, which is one that comes after this one."""
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
        """What was kept apart is so, to this index."""
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
