"""The ledger of samples for replicas: which are handed out, which count, which were torn or lost.

Knows: places of samples as ranges, sessions, what each server says is applied. Does not know: what a sample
is, messages, time.

Place p of epoch e of N samples is the number e · N + p. A place goes through these states, and no others:

    state      what happens                                     next
    free       hand_out                                         open
    open       every server has applied it                      counted
    open       some servers have, all others refused it         torn
    open       every server refused it                          refused
    open       its session ended, and no server has it          lost: free again, in the epoch that is on
    open       it is recalled: no server will have it           lost: free again, in the epoch that is on
    open       its session ended, and some servers have it      divided: lost, and free again, whatever epoch
                                                                is on, and after the last epoch
    open       its session ended with a server's memory         lost: the same
    counted    a server that lost its memory has it no more     divided: the same
    divided    hand_out                                         open, as a hand that is pushed alone
    divided    `tear`                                           torn
    free       the epoch that is on ends                        left out, unless it is divided
    open       the epoch ends                                   open (it counts, or is torn or lost, later)

So at every time: handed out = counted + torn + refused + lost + open; what was lost and is handed out again
is handed out twice. What counts, counts for ever once the disks of all servers have it (`forget`).

A place is *divided* while some servers have it and others lack it. It is handed out until all have it: a
server that has it does not apply it again (`updating`). An update can only be applied or left out as a whole.
So no hand crosses a *seam*, a place at which a server's knowledge begins or ends, and each server has all of
a divided hand or nothing of it.

This is not the ledger of portions (`portions.Ledger`). That one decides which sums count, whole, before any
weight depends on them; so it can refuse one, and give a portion to two workers. Here a server has applied an
update before anybody hears of it, another server may get it much later, and nothing can be taken back: there
are no backup copies, and the ledger only records what servers say. And there may be a
billion samples, of which any run may be lost: so these are ranges, where portions are counted one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from cotswold.wire import Ranges
from cotswold.wire.ranges import added, common, joined, part_of, size, without

Said = tuple[Ranges, Ranges]
"""What a server has applied, and what it refused for ever."""


@dataclass
class Account:
    """How many samples of an epoch, or of all."""

    handed_out: int = 0
    counted: int = 0
    torn: int = 0
    refused: int = 0
    """Not finite, or too stale, or wrong in another way that no second try mends."""
    lost: int = 0
    left_out: int = 0
    """Never handed out, or lost and not handed out again, when the epoch ended."""

    def __add__(self, other: Account) -> Account:
        return Account(**{name: value + vars(other)[name] for name, value in vars(self).items()})


class Samples:
    """The samples of a run, epoch after epoch."""

    def __init__(self, samples: int, epoch: int = 0) -> None:
        if samples < 1:
            raise ValueError(f"a training set of {samples} samples")
        self.samples = samples
        """How many an epoch has."""
        self.epoch = epoch
        """Which is on."""
        self.accounts: dict[int, Account] = {epoch: Account()}
        """Of each epoch."""
        self._free: Ranges = (self._line,)
        self.is_stopped = False
        """Whether the last epoch has ended: nothing more is handed out."""
        self._open: dict[int, Ranges] = {}
        """By session."""
        self._counted: dict[int, Ranges] = {}
        """By session, as far as a server may still lose it."""
        self._divided: Ranges = ()
        """Free or open, and some servers have it."""
        self._seams: set[int] = set()
        """Where what a server has of such places may begin or end."""

    @property
    def _line(self) -> tuple[int, int]:
        return self.epoch * self.samples, (self.epoch + 1) * self.samples

    @classmethod
    def restored(cls, samples: int, state: Mapping[str, object]) -> Samples:
        """A ledger that goes on from a `state`; raises LookupError, TypeError or ValueError for no such."""
        epoch, free, accounts = state["epoch"], state["free"], state["accounts"]
        if type(epoch) is not int or not isinstance(free, Sequence) or not isinstance(accounts, Mapping):
            raise TypeError(f"no state of a ledger: {state}")
        found = cls(samples, epoch)
        found._free = joined([(start, stop) for start, stop in free])
        if without(found._free, ((0, found._line[1]),)):
            raise ValueError(f"places {free} are not of epochs to {epoch}")
        found.accounts = {int(each): Account(**account) for each, account in accounts.items()}
        found.is_stopped = state["is_stopped"] is True
        return found

    # --- what is asked ---

    def state(self) -> dict[str, object]:
        """Everything, as plain values, while nothing is open."""
        assert not self._open, "what is open is with replicas"
        return {
            "epoch": self.epoch,
            "free": [list(each) for each in self._free],
            "accounts": {str(epoch): dict(vars(account)) for epoch, account in self.accounts.items()},
            "is_stopped": self.is_stopped,
        }

    @property
    def free(self) -> int:
        """How many samples of the epoch nobody has had, or those who had lost."""
        return size(self._free)

    @property
    def open(self) -> int:
        """How many are handed out, of any epoch, and no more is known of them."""
        return sum(map(size, self._open.values()))

    @property
    def sessions(self) -> tuple[int, ...]:
        """Those that have something."""
        return tuple(sorted(self._open))

    @property
    def divided(self) -> Ranges:
        """Places that some servers have and others lack; they are handed out until all have them."""
        return self._divided

    def open_of(self, session: int) -> Ranges:
        """What a session has."""
        return self._open.get(session, ())

    @property
    def total(self) -> Account:
        """Of all epochs."""
        return sum(self.accounts.values(), Account())

    @property
    def settled(self) -> Ranges:
        """The places whose samples are neither free nor open: as many ranges as these leave, and one more."""
        return without(((0, self._line[1]),), joined(self._free, *self._open.values()))

    def is_over(self, fraction: float, of: str, sessions: Sequence[int]) -> bool:
        """Whether the epoch has gone on for long enough.

        That is, ``of`` ``samples``, once ``fraction`` of them are counted, torn or refused; ``of``
        ``replicas``, once nothing is free and that fraction of ``sessions`` has nothing open; in any case
        once nothing is free and nothing of this epoch is open. Not while divided places are free.
        """
        if common(self._free, self._divided):
            return False
        line = (self._line,)
        busy = {session for session, ranges in self._open.items() if common(ranges, line)}
        if not self._free and not busy:
            return True
        account = self.accounts[self.epoch]
        if of == "samples":
            return account.counted + account.torn + account.refused >= fraction * self.samples
        done = sum(session not in busy for session in sessions)
        return not self._free and bool(sessions) and done >= fraction * len(sessions)

    # --- what happens ---

    def hand_out(self, session: int, most: int, *, only_divided: bool = False) -> tuple[int, int] | None:
        """The next free range, of ``most`` samples of one epoch at most, all of them divided or none; None
        where nothing is free."""
        assert most > 0, f"{most} samples are handed out"
        free = common(self._free, self._divided) if only_divided else self._free
        if not free:
            return None
        start, stop = free[0]
        stop = min(stop, start + most, (start // self.samples + 1) * self.samples)
        given = (start, self._end_of_hand(start, stop))
        self.give(session, given)
        return given

    def _end_of_hand(self, start: int, stop: int) -> int:
        """The first place before ``stop`` that some server knows otherwise than ``start``."""
        divided = part_of(self._divided, start, stop)
        if not divided:
            return stop
        first, last = divided[0]
        if start < first:
            return first
        return min([last, *(each for each in self._seams if start < each < last)])

    def is_divided(self, place: int) -> bool:
        """Whether some servers have it, and others lack it."""
        return bool(part_of(self._divided, place, place + 1))

    def give(self, session: int, given: tuple[int, int]) -> None:
        """Hand out this range, all of which is free."""
        assert not without((given,), self._free), f"{given} is handed out, and {self._free} is free"
        self._free = without(self._free, (given,))
        self._open[session] = added(self.open_of(session), (given,))
        self.accounts[given[0] // self.samples].handed_out += given[1] - given[0]

    def said(self, session: int, servers: Sequence[Said]) -> None:
        """What each of all servers says of a session's samples."""
        servers = [*dict.fromkeys(servers)]  # most servers say the same
        known = reduce(common, (joined(*each) for each in servers))
        counted = reduce(common, (applied for applied, _ in servers))
        somewhere = joined(*(applied for applied, _ in servers))
        self._settle(session, counted, "counted")
        self._settle(session, common(known, somewhere), "torn")
        self._settle(session, known, "refused")

    def ended(self, session: int, servers: Sequence[Said], back: Ranges = ()) -> Ranges:
        """The session is over on all servers, which say this of it for the last time; ``back``: places that
        are free again whatever epoch is on. What was open, and is not on all servers: it is lost."""
        self.said(session, servers)
        lost = self._settle(session, self.open_of(session), "lost")
        parts = [common(applied, lost) for applied, _ in servers]
        self._divide(joined(*parts), parts)
        back = common(lost, joined(self._divided, back))
        self._go_back(back)
        self._free_again(without(lost, back))
        return lost

    def revoked(self, has: Mapping[int, Ranges]) -> Ranges:
        """A server has lost its memory, and has only this of each session; places that count no more, though
        the other servers have them."""
        found: list[Ranges] = []
        for session, counted in list(self._counted.items()):
            lost = without(counted, has.get(session, ()))
            self._counted[session] = without(counted, lost)
            for epoch, part in self._by_epoch(lost).items():
                self.accounts[epoch].counted -= size(part)
                self.accounts[epoch].lost += size(part)
            found.append(lost)
        lost = joined(*found)
        self._divide(lost, [lost, joined(*has.values())])
        self._go_back(lost)
        return lost

    def _divide(self, places: Ranges, parts: Sequence[Ranges]) -> None:
        """These places are divided; ``parts``: what servers have, each by itself."""
        self._divided = joined(self._divided, places)
        self._seams.update(place for ranges in parts for each in ranges for place in each)
        if not self._divided:
            self._seams.clear()

    def tear(self) -> Ranges:
        """Hand out no divided place again: those that are free are torn."""
        torn = common(self._free, self._divided)
        for epoch, part in self._by_epoch(torn).items():
            self.accounts[epoch].lost -= size(part)
            self.accounts[epoch].torn += size(part)
        self._free, self._divided = without(self._free, torn), without(self._divided, torn)
        return torn

    def forget(self, places: Ranges) -> None:
        """No server can lose what counts at these places."""
        left = {session: without(ranges, places) for session, ranges in self._counted.items()}
        self._counted = {session: ranges for session, ranges in left.items() if ranges}

    def recalled(self, session: int, ranges: Ranges) -> None:
        """The session has these no more, and no server has or will have them."""
        self._free_again(self._settle(session, ranges, "lost"))

    def _go_back(self, lost: Ranges) -> None:
        """Whatever epoch they are of, they are free."""
        self._free = joined(self._free, lost)
        self.is_stopped = self.is_stopped and not lost

    def _free_again(self, lost: Ranges) -> None:
        again = () if self.is_stopped else (self._line,)
        self._free = joined(self._free, common(lost, again))
        self._leave_out(without(lost, again))

    def next_epoch(self) -> None:
        """The epoch ends: what is free is left out, what is open stays so."""
        divided = self._end_epoch()
        self.epoch += 1
        self.accounts[self.epoch] = Account()
        self._free = joined(divided, (self._line,))

    def stop(self) -> None:
        """The last epoch ends: what is free is left out, and nothing more is handed out."""
        self._free, self.is_stopped = self._end_epoch(), True

    def _end_epoch(self) -> Ranges:
        """Leave out what is free, but for what is divided."""
        divided = common(self._free, self._divided)
        self._leave_out(without(self._free, divided))
        return divided

    def _leave_out(self, ranges: Ranges) -> None:
        for epoch, part in self._by_epoch(ranges).items():
            self.accounts[epoch].left_out += size(part)

    def _settle(self, session: int, ranges: Ranges, how: str) -> Ranges:
        """Of these, what the session has is open no more."""
        ranges = common(self.open_of(session), ranges)
        for epoch, part in self._by_epoch(ranges).items():
            account = self.accounts[epoch]
            setattr(account, how, getattr(account, how) + size(part))
        if how != "lost" and self._divided:
            self._divided = without(self._divided, ranges)
        if how == "counted" and ranges:
            self._counted[session] = added(self._counted.get(session, ()), ranges)
        left = without(self.open_of(session), ranges)
        self._open.pop(session, None)
        if left:
            self._open[session] = left
        return ranges

    def _by_epoch(self, ranges: Ranges) -> Mapping[int, Ranges]:
        found: dict[int, Ranges] = {}
        for start, stop in ranges:  # no range reaches over the end of an epoch, but two may have been joined
            for epoch in range(start // self.samples, (stop - 1) // self.samples + 1):
                part = (max(start, epoch * self.samples), min(stop, (epoch + 1) * self.samples))
                found[epoch] = (*found.get(epoch, ()), part)
        return found
