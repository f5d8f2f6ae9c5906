"""A server that keeps copies of buckets: its lease, what it leads, who hears what.

Knows: its copies, its lease, the newest epoch of the controllers. Does not know: what buckets hold, who has
the others, sockets, clocks.

    what comes                                      what it does
    from a controller of an epoch that is over      nothing
    Assign                                          the copy acts by it; `Assigned`
    Fence                                           the copy takes part in no lower term; `Fenced`
    Leased, for a beat that it sent                 it may act as primary, from that beat on; of 0 s, not
                                                    longer than before: it says all that it leads next
    Prepare, Prepared, of whoever has a copy too    as the copy does (`copy`); of anybody else nothing
    OfBucket, of which it is the primary            done; else `Elsewhere`
    OfBucket, its lease is over                     nothing: the client asks again, or elsewhere
    OfBucket, said before the bucket was revived    `Elsewhere`: the client says what is unanswered again
    FindSaved                                       what its disk has is read; the most of that and of what
                                                    its memory has is told: `FoundSaved`
    Forget                                          no copy of the run is left, and its disk is to have none
    Leased or Forget, of another cluster            nothing: what it has is not that cluster's to give or take

The network tells who says something; what is claimed in a message counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, cast

from cotswold.replication.replica.bucket_replica import Copy, Role
from cotswold.replication.replica.bucket_state import Contents
from cotswold.replication.replica.claims import Claims
from cotswold.replication.replica.follower_progress import Neighbours
from cotswold.replication.replica.lease import Lease
from cotswold.replication.replica.saved_bucket import Saved
from cotswold.replication.replica.settings import Copying
from cotswold.shards.core.shard_server import Values
from cotswold.wire import (
    CONTROLLERS,
    Assign,
    Assigned,
    Elsewhere,
    Enclosed,
    Fence,
    FindSaved,
    Forget,
    FoundSaved,
    Here,
    Leased,
    OfBucket,
    Prepare,
    Prepared,
    Pull,
    Send,
    ToUpdates,
    Write,
)
from cotswold.wire.names import run_of

ToKeeper = Assign | Fence | FindSaved | Forget | Leased | Prepare | Prepared | OfBucket


class Keeper(Generic[Values]):
    """One of them, from the start of its process to its end: a process that starts again has another name."""

    def __init__(
        self,
        name: str,
        host: str,
        address: str,
        make: Callable[[str], Contents[Values]],
        copying: Copying,
        now: float,
        peer_address: str = "",
    ) -> None:
        """``make`` makes the contents of a bucket in which nothing has happened; ``peer_address``: where
        other servers reach it, if that is not ``address``."""
        self.name, self.host, self.address, self.copying = name, host, address, copying
        self.peer_address = peer_address
        self.lease = Lease()
        self._claims = Claims()
        self.copies: dict[str, Copy[Values]] = {}
        self._make = make
        self._neighbours = Neighbours()
        self._epoch = 0
        self._busy: dict[str, None] = {}
        """Buckets that may have updates that wait."""
        self._said = now - copying.beat_seconds
        self._answered = 0
        """The newest of its beats that a controller has answered."""
        self._recalls: dict[str, None] = {}
        """Buckets that are to be read from the disk."""
        self._saves: dict[int, tuple[Copy[Values], int, int, int]] = {}
        """Copies with histories, indexes and terms, which are on their way to the disk, by number."""
        self._save, self._first = 0, ""
        """The number of the newest, and where to begin the next time."""
        self.cluster = ""
        """The name of the one whose lease it has, or had, or that its disk is of."""
        self._on_disk: dict[str, None] = {}
        """Buckets of which the disk may have something."""
        self._forgotten: dict[str, None] = {}
        """Buckets that the disk is to forget."""

    @property
    def leads(self) -> tuple[tuple[str, int], ...]:
        """(bucket, term) of those of which it is the primary, while its lease holds."""
        return tuple(
            (name, copy.group.term)
            for name, copy in self.copies.items()
            if copy.role is Role.PRIMARY and copy.fence <= copy.group.term
        )

    @property
    def fenced(self) -> tuple[tuple[str, int], ...]:
        """(bucket, term) of elections of which it has heard no end: whoever held one may lead no more."""
        return tuple(
            (name, copy.fence)
            for name, copy in self.copies.items()
            if copy.fence > copy.group.term
            and (copy.role in (Role.PRIMARY, Role.SECONDARY) or copy.group.primary == self.name)
        )

    def short(self, belongs: Callable[[str], bool] = lambda bucket: True) -> tuple[int, int]:
        """How many buckets (of which this holds) wait, led here, for they have too few members; and how many
        members one of them has, at least."""
        if self.copying.least == 1:
            return 0, 0
        found = [
            len(copy.group.members) for name, copy in self.copies.items() if copy.is_short and belongs(name)
        ]
        return len(found), min(found, default=0)

    @property
    def runs(self) -> tuple[str, ...]:
        """Those of which it has anything, in memory or on its disk."""
        return tuple(sorted({run_of(name) for name in (*self.copies, *self._on_disk)} - {""}))

    @property
    def belongs_to(self) -> str:
        """The cluster whose runs it has; empty while it has nothing, and may be of any."""
        return self.cluster if self.copies or self._on_disk else ""

    def receive(self, sender: str, message: ToKeeper, now: float) -> list[Send]:
        """What a message leads to; what controllers say must come from one of them."""
        match message:
            case OfBucket():
                return self._client(sender, message, now)
            case Prepare():
                copy = self._copy_with(sender, message.bucket, now)
                return [] if copy is None else copy.prepare(sender, message, now)
            case Prepared():
                copy = self._copy_with(sender, message.bucket, now)
                return [] if copy is None else self._said_by(copy, copy.prepared(sender, message, now))
            case Leased():
                is_for_this = message.server == self.name and self._is_current(message.epoch)
                if is_for_this and message.cluster == (self.belongs_to or message.cluster):
                    self._answered = max(self._answered, message.number)
                    self.cluster = message.cluster
                    self.lease.given(message.number, message.seconds)
                    self._claims.leased(message.number, message.seconds)
                return []
            case Fence():
                if not self._is_current(message.epoch):
                    return []
                return [Send(sender, self._copy(message.bucket).fenced(message))]
            case Forget():
                if self._is_current(message.epoch) and message.cluster == self.belongs_to:
                    self._forget(message.run)
                return []
            case FindSaved():
                return self._find_saved(sender, message) if self._is_current(message.epoch) else []
            case Assign():
                if not self._is_current(message.epoch):
                    return []
                copy = self._copy(message.group.bucket)
                sends = copy.assign(message.group, now)
                answer = Assigned(message.group.bucket, copy.group.term, self.name, message.number)
                return [*self._said_by(copy, sends), Send(sender, answer)]

    @property
    def is_busy(self) -> bool:
        """Whether updates may wait."""
        return bool(self._busy)

    def tick(self, now: float) -> list[Send]:
        """Time has passed; to be called a few times in each beat."""
        sends: list[Send] = []
        if now - self._said >= self.copying.beat_seconds:
            self._said = now
            number = self.lease.ask(now)
            leads = self._claims.say(self.leads, number)
            own = self.name, self.host, self.address, number, leads, self.fenced, self.peer_address
            more = self.runs, self._claims.number, self.belongs_to, self._answered
            sends.append(Send(CONTROLLERS, Here(*own, *more)))
            self._neighbours.forget(now - max(self.copying.silent_seconds, self.copying.beat_seconds))
        for copy in self.copies.values():
            sends += self._said_by(copy, copy.tick(now))
        return sends

    def drain(self, now: float) -> list[Send]:
        """Apply what waits. To be called whenever there is time."""
        sends: list[Send] = []
        for name in list(self._busy):
            copy = self.copies[name]
            sends += self._said_by(copy, copy.drain(now))
            if not copy.contents.updates.queued:
                del self._busy[name]
        return sends

    # --- the disk ---

    @property
    def different(self) -> list[str]:
        """Buckets of which the disk was not given what is here."""
        return [name for name, copy in self.copies.items() if self.copying.saves and copy.is_unsaved]

    def save(self, bucket: str) -> tuple[int, Saved]:
        """What is to be put on the disk of a bucket that is `different`, by a number that `saved` and
        `unsaved` name."""
        copy = self.copies[bucket]
        each = copy.save()
        assert each is not None, "it is different"
        self._save += 1
        self._saves[self._save] = copy, copy.history, each.index, each.term
        self._on_disk[bucket] = None
        return self._save, each

    def saves(self) -> Iterator[tuple[int, Saved]]:
        """All that is to be put on the disk now, one after the other; whoever takes only some gets the others
        first the next time."""
        names = list(self.copies)
        start = names.index(self._first) if self._first in names else 0
        for name in (*names[start:], *names[:start]):
            self._first = name
            if self.copying.saves and self.copies[name].is_unsaved:
                yield self.save(name)

    def damaged(self, bucket: str) -> bool:
        """What the disk has of a bucket is not what was put there: all of it is put there again; False where
        there is nothing to put."""
        copy = self.copies.get(bucket)
        return copy is not None and copy.save_again()

    def found_on_disk(self, buckets: Iterable[str], cluster: str = "") -> None:
        """Its disk has these, of processes that had it before, and is of that cluster."""
        self.cluster = cluster
        self._on_disk.update(dict.fromkeys(buckets))

    def take_forgotten(self) -> list[str]:
        """Buckets that the disk is to forget."""
        found, self._forgotten = list(self._forgotten), {}
        return found

    def _forget(self, run: str) -> None:
        """Nothing is left of a run."""
        for bucket in [name for name in self._on_disk if run_of(name) == run]:
            del self._on_disk[bucket]
            self._forgotten[bucket] = None
        for bucket in [name for name in self.copies if run_of(name) == run]:
            copy = self.copies.pop(bucket)
            self._busy.pop(bucket, None)
            self._recalls.pop(bucket, None)
            for number in [number for number, (of, *_) in self._saves.items() if of is copy]:
                del self._saves[number]

    def saved(self, number: int) -> None:
        """It is on the disk, and so is all that was given for the bucket before."""
        if number not in self._saves:
            return  # of a bucket that was forgotten meanwhile
        copy, history, index, term = self._saves.pop(number)
        if copy.history == history:
            copy.saved(index, term)
        for older in [key for key, (of, *_) in self._saves.items() if of is copy and key < number]:
            del self._saves[older]

    def unsaved(self, number: int) -> None:
        """The disk does not take it; it is given again, with whatever is different then."""
        if number not in self._saves:
            return
        copy, history, *_ = self._saves.pop(number)
        if copy.history == history:
            copy.unsaved()

    def take_recalls(self) -> list[str]:
        """Buckets that are to be read from the disk; then `recalled`."""
        found, self._recalls = list(self._recalls), {}
        return found

    def recalled(self, bucket: str, saved: Saved | None) -> None:
        """The disk has this of it, and all is sound; None where it has nothing."""
        copy = self.copies.get(bucket)
        if copy is not None:
            copy.recalled(saved)

    def _find_saved(self, sender: str, message: FindSaved) -> list[Send]:
        copy = self._copy(message.bucket)
        if self.copying.saves and not copy.on_disk.is_read:
            self._recalls[message.bucket] = None  # the controller asks again
            return []
        rank, members = copy.best
        return [Send(sender, FoundSaved(message.bucket, self.name, *rank, members))]

    def _is_current(self, epoch: int) -> bool:
        self._epoch = max(self._epoch, epoch)
        return epoch == self._epoch

    def _copy_with(self, sender: str, bucket: str, now: float) -> Copy[Values] | None:
        """The copy of a bucket of which a sender has one, too; that it speaks is noted."""
        copy = self.copies.get(bucket)
        if copy is None or sender not in copy.group.everybody:
            return None
        self._neighbours.spoke[sender] = now
        return copy

    def _copy(self, bucket: str) -> Copy[Values]:
        if bucket not in self.copies:
            self.copies[bucket] = Copy(
                bucket, self.name, lambda: self._make(bucket), self.copying, self.lease, self._neighbours
            )
        return self.copies[bucket]

    def _client(self, sender: str, message: OfBucket, now: float) -> list[Send]:
        copy = self.copies.get(message.bucket)
        if copy is None:
            return [Send(sender, Elsewhere(message.bucket, 0, ""))]
        if copy.role is not Role.PRIMARY:
            return [Send(sender, copy.elsewhere())]
        if message.term < copy.group.life:
            return [Send(sender, Elsewhere(message.bucket, copy.group.term, self.name))]
        sends = copy.hear(sender, cast(ToUpdates | Pull | Write, message.message), now)
        if copy.contents.updates.queued:
            self._busy[message.bucket] = None
        return self._said_by(copy, sends)

    def _said_by(self, copy: Copy[Values], sends: list[Send]) -> list[Send]:
        """What goes to clients bears the bucket's name."""
        return [
            each
            if each.to == CONTROLLERS or isinstance(each.message, Prepare)
            else Send(each.to, OfBucket(copy.bucket, copy.group.term, cast(Enclosed, each.message)))
            for each in sends
        ]
