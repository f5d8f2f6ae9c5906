"""The ledger of samples for replicas: handed out, counted, torn and lost samples.

Knows: positions of samples as ranges, sessions, the samples that each server has applied. Does not know: the
samples, messages, time.

Position p of epoch e of N samples is the number e · N + p. A position goes through these states and no
others:

    state      event                                            next
    free       `assign`                                         open
    open       every server has applied it                      counted
    open       some servers have, all others refused it         torn
    open       every server refused it                          refused
    open       its session ended, and no server has it          lost: free again, in the current epoch
    open       it is recalled: no server will have it           lost: free again, in the current epoch
    open       its session ended, and some servers have it      divided: lost, and free again, in any epoch
                                                                and after the last one
    open       its session ended with a server's memory         lost: the same
    counted    a server lost its memory with it                 divided: the same
    divided    `assign`                                         open, in an assignment to push alone
    divided    `tear`                                           torn
    free       the current epoch ends                           left out, unless it is divided
    open       the epoch ends                                   open (it counts, or is torn or lost, later)

At every time: handed out = counted + torn + refused + lost + open; a lost sample that is handed out again is
handed out twice. A counted sample counts permanently once the disks of all servers have it (`forget`).

A position is *divided* while some servers have it and others lack it. It is handed out until all have it; a
server that has it does not apply it again (`paramserver.core.update_server`). An update can only be applied
or left out as a whole. A *seam* is a position at which a server's samples begin or end. No assignment crosses
a seam, so each server has all of a divided assignment or nothing of it.

This ledger differs from that of portions (`batch.core.portion_ledger`). That one decides which whole sums
count before any weight depends on them; so it can refuse a sum, and give a portion to two workers. Here a
server has applied an update before any other process knows of it, and another server may receive it much
later. Nothing can be undone. So there are no backup copies, and the ledger only records the servers' reports.
There may also be a billion samples, of which any range may be lost: so this ledger stores ranges, while
portions are counted one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from cotswold.wire import Ranges
from cotswold.wire.ranges import add, clip, difference, intersection, size, union

SampleReport = tuple[Ranges, Ranges]
"""(applied, permanently refused) positions of a server."""


@dataclass
class SampleCounts:
    """Numbers of samples, of an epoch or of all."""

    handed_out: int = 0
    counted: int = 0
    torn: int = 0
    refused: int = 0
    """Not finite, too stale, or invalid in another way that a retry cannot fix."""
    lost: int = 0
    left_out: int = 0
    """Never handed out, or lost and not handed out again, when the epoch ended."""

    def __add__(self, other: SampleCounts) -> SampleCounts:
        return SampleCounts(**{name: value + vars(other)[name] for name, value in vars(self).items()})


class SampleLedger:
    """The samples of a run, epoch after epoch."""

    def __init__(self, samples: int, epoch: int = 0) -> None:
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        self.samples = samples
        """Samples per epoch."""
        self.epoch = epoch
        """Current epoch."""
        self.accounts: dict[int, SampleCounts] = {epoch: SampleCounts()}
        """Counts by epoch."""
        self._free: Ranges = (self._line,)
        self.is_stopped = False
        """True if the last epoch has ended: nothing more is handed out."""
        self._open: dict[int, Ranges] = {}
        """Open positions by session."""
        self._counted: dict[int, Ranges] = {}
        """Counted positions by session, as long as a server may lose them."""
        self._divided: Ranges = ()
        """Free or open positions that some servers have."""
        self._boundaries: set[int] = set()
        """Positions at which a server's part of the divided positions may begin or end."""

    @property
    def _line(self) -> tuple[int, int]:
        return self.epoch * self.samples, (self.epoch + 1) * self.samples

    @classmethod
    def restored(cls, samples: int, state: Mapping[str, object]) -> SampleLedger:
        """Restore a ledger from a `state`; raise LookupError, TypeError or ValueError for an invalid one."""
        epoch, free, accounts = state["epoch"], state["free"], state["accounts"]
        if type(epoch) is not int or not isinstance(free, Sequence) or not isinstance(accounts, Mapping):
            raise TypeError(f"not the state of a ledger: {state}")
        found = cls(samples, epoch)
        found._free = union([(start, stop) for start, stop in free])
        if difference(found._free, ((0, found._line[1]),)):
            raise ValueError(f"positions {free} are not in epochs 0 to {epoch}")
        found.accounts = {int(each): SampleCounts(**account) for each, account in accounts.items()}
        found.is_stopped = state["is_stopped"] is True
        return found

    # --- queries ---

    def state(self) -> dict[str, object]:
        """Return the state as plain values; no sample may be open."""
        assert not self._open, "samples are still assigned to replicas"
        return {
            "epoch": self.epoch,
            "free": [list(each) for each in self._free],
            "accounts": {str(epoch): dict(vars(account)) for epoch, account in self.accounts.items()},
            "is_stopped": self.is_stopped,
        }

    @property
    def free(self) -> int:
        """Number of free samples: not handed out, or lost."""
        return size(self._free)

    @property
    def open(self) -> int:
        """Number of open samples of any epoch: handed out, without a result."""
        return sum(map(size, self._open.values()))

    @property
    def sessions(self) -> tuple[int, ...]:
        """Sessions with open samples."""
        return tuple(sorted(self._open))

    @property
    def divided(self) -> Ranges:
        """Positions that some servers have and others lack; they are handed out until all have them."""
        return self._divided

    def open_of(self, session: int) -> Ranges:
        """Return the open positions of a session."""
        return self._open.get(session, ())

    @property
    def total(self) -> SampleCounts:
        """Counts of all epochs."""
        return sum(self.accounts.values(), SampleCounts())

    @property
    def settled(self) -> Ranges:
        """Positions that are neither free nor open: one range more than these positions form."""
        return difference(((0, self._line[1]),), union(self._free, *self._open.values()))

    def can_end_epoch(self, fraction: float, of: str, sessions: Sequence[int]) -> bool:
        """True if the current epoch may end.

        With ``of`` ``samples``, it may end once ``fraction`` of them are counted, torn or refused. With
        ``of`` ``replicas``, it may end once nothing is free and that fraction of ``sessions`` has nothing
        open. In any case it may end once nothing is free and nothing of this epoch is open, and not while
        divided positions are free.
        """
        if intersection(self._free, self._divided):
            return False
        line = (self._line,)
        busy = {session for session, ranges in self._open.items() if intersection(ranges, line)}
        if not self._free and not busy:
            return True
        account = self.accounts[self.epoch]
        if of == "samples":
            return account.counted + account.torn + account.refused >= fraction * self.samples
        done = sum(session not in busy for session in sessions)
        return not self._free and bool(sessions) and done >= fraction * len(sessions)

    # --- events ---

    def assign(self, session: int, max_samples: int, *, only_divided: bool = False) -> tuple[int, int] | None:
        """Hand out the next free range: at most ``max_samples`` samples of one epoch, all or none of them
        divided. Return None if nothing is free."""
        assert max_samples > 0, f"max_samples must be above 0, got {max_samples}"
        free = intersection(self._free, self._divided) if only_divided else self._free
        if not free:
            return None
        start, stop = free[0]
        stop = min(stop, start + max_samples, (start // self.samples + 1) * self.samples)
        given = (start, self._end_of_assignment(start, stop))
        self.assign_range(session, given)
        return given

    def _end_of_assignment(self, start: int, stop: int) -> int:
        """Return the first position before ``stop`` at which some server's knowledge differs from
        ``start``."""
        divided = clip(self._divided, start, stop)
        if not divided:
            return stop
        first, last = divided[0]
        if start < first:
            return first
        return min([last, *(each for each in self._boundaries if start < each < last)])

    def is_divided(self, position: int) -> bool:
        """True if some servers have the position and others lack it."""
        return bool(clip(self._divided, position, position + 1))

    def assign_range(self, session: int, assigned: tuple[int, int]) -> None:
        """Hand out this range, which must be free."""
        assert not difference((assigned,), self._free), f"range {assigned} is not free; free are {self._free}"
        self._free = difference(self._free, (assigned,))
        self._open[session] = add(self.open_of(session), (assigned,))
        self.accounts[assigned[0] // self.samples].handed_out += assigned[1] - assigned[0]

    def record_report(self, session: int, servers: Sequence[SampleReport]) -> None:
        """Record the report of each server on a session's samples."""
        servers = [*dict.fromkeys(servers)]  # most servers report the same
        known = reduce(intersection, (union(*each) for each in servers))
        counted = reduce(intersection, (applied for applied, _ in servers))
        somewhere = union(*(applied for applied, _ in servers))
        self._settle(session, counted, "counted")
        self._settle(session, intersection(known, somewhere), "torn")
        self._settle(session, known, "refused")

    def end_session(self, session: int, servers: Sequence[SampleReport], freed: Ranges = ()) -> Ranges:
        """Record the last reports of all servers on a session that ended. ``freed``: positions that are free
        again in any epoch. Return the lost positions: open, and not on all servers."""
        self.record_report(session, servers)
        lost = self._settle(session, self.open_of(session), "lost")
        parts = [intersection(applied, lost) for applied, _ in servers]
        self._divide(union(*parts), parts)
        freed = intersection(lost, union(self._divided, freed))
        self._free_in_any_epoch(freed)
        self._free_in_current_epoch(difference(lost, freed))
        return lost

    def revoke(self, has: Mapping[int, Ranges]) -> Ranges:
        """Record that a server lost its memory and has only these positions of each session; return the
        positions that count no more, although other servers have them."""
        found: list[Ranges] = []
        for session, counted in list(self._counted.items()):
            lost = difference(counted, has.get(session, ()))
            self._counted[session] = difference(counted, lost)
            for epoch, part in self._by_epoch(lost).items():
                self.accounts[epoch].counted -= size(part)
                self.accounts[epoch].lost += size(part)
            found.append(lost)
        lost = union(*found)
        self._divide(lost, [lost, union(*has.values())])
        self._free_in_any_epoch(lost)
        return lost

    def _divide(self, places: Ranges, parts: Sequence[Ranges]) -> None:
        """Divide these positions; ``parts`` are those of each server."""
        self._divided = union(self._divided, places)
        self._boundaries.update(place for ranges in parts for each in ranges for place in each)
        if not self._divided:
            self._boundaries.clear()

    def tear(self) -> Ranges:
        """Tear the free divided positions instead of handing them out again; return them."""
        torn = intersection(self._free, self._divided)
        for epoch, part in self._by_epoch(torn).items():
            self.accounts[epoch].lost -= size(part)
            self.accounts[epoch].torn += size(part)
        self._free, self._divided = difference(self._free, torn), difference(self._divided, torn)
        return torn

    def forget(self, places: Ranges) -> None:
        """Stop tracking counted positions that no server can lose."""
        left = {session: difference(ranges, places) for session, ranges in self._counted.items()}
        self._counted = {session: ranges for session, ranges in left.items() if ranges}

    def recall(self, session: int, ranges: Ranges) -> None:
        """Free positions that a session has given up and that no server has or will have."""
        self._free_in_current_epoch(self._settle(session, ranges, "lost"))

    def _free_in_any_epoch(self, lost: Ranges) -> None:
        """Free lost positions of any epoch."""
        self._free = union(self._free, lost)
        self.is_stopped = self.is_stopped and not lost

    def _free_in_current_epoch(self, lost: Ranges) -> None:
        again = () if self.is_stopped else (self._line,)
        self._free = union(self._free, intersection(lost, again))
        self._leave_out(difference(lost, again))

    def next_epoch(self) -> None:
        """End the epoch: free samples are left out, open ones stay open."""
        divided = self._end_epoch()
        self.epoch += 1
        self.accounts[self.epoch] = SampleCounts()
        self._free = union(divided, (self._line,))

    def stop(self) -> None:
        """End the last epoch: free samples are left out, and nothing more is handed out."""
        self._free, self.is_stopped = self._end_epoch(), True

    def _end_epoch(self) -> Ranges:
        """Leave out the free positions that are not divided; return the divided ones."""
        divided = intersection(self._free, self._divided)
        self._leave_out(difference(self._free, divided))
        return divided

    def _leave_out(self, ranges: Ranges) -> None:
        for epoch, part in self._by_epoch(ranges).items():
            self.accounts[epoch].left_out += size(part)

    def _settle(self, session: int, ranges: Ranges, how: str) -> Ranges:
        """Settle those of these positions that the session has open; return them."""
        ranges = intersection(self.open_of(session), ranges)
        for epoch, part in self._by_epoch(ranges).items():
            account = self.accounts[epoch]
            setattr(account, how, getattr(account, how) + size(part))
        if how != "lost" and self._divided:
            self._divided = difference(self._divided, ranges)
        if how == "counted" and ranges:
            self._counted[session] = add(self._counted.get(session, ()), ranges)
        left = difference(self.open_of(session), ranges)
        self._open.pop(session, None)
        if left:
            self._open[session] = left
        return ranges

    def _by_epoch(self, ranges: Ranges) -> Mapping[int, Ranges]:
        found: dict[int, Ranges] = {}
        for start, stop in ranges:  # no range crosses the end of an epoch, but two may have been joined
            for epoch in range(start // self.samples, (stop - 1) // self.samples + 1):
                part = (max(start, epoch * self.samples), min(stop, (epoch + 1) * self.samples))
                found[epoch] = (*found.get(epoch, ()), part)
        return found
