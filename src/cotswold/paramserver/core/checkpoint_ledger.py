"""The ledger as it is at a checkpoint, which servers keep one after the other while samples go on.

Knows: the ledger when the checkpoint began, what happened to it since, what each server says it has kept.
Does not know: weights, messages, time.

    since the checkpoint began              at the checkpoint
    a range is handed out                   open, then as below
    a session ends                          what the states have of it counts, the rest is lost
    an epoch ends, and the next begins      the same, if any state has a sample of the next
    all servers have kept their state       every session ends: whoever goes on from here begins new ones

Of a session that ends meanwhile some states may have samples that others lack: these are divided, and whoever
goes on from here cannot tell which shards lack them. So such a checkpoint is not kept, or it is torn.

Only what the states have decides: a sample that was applied behind a marker is lost here, and is handed out
again by whoever goes on. If no state has a sample of the epoch that is on, the epoch before is on here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from cotswold.shards.core.sample_ledger import Said, Samples
from cotswold.wire import Ranges

NOTHING: Said = ((), ())


@dataclass(frozen=True)
class _HandedOut:
    session: int
    given: tuple[int, int]


@dataclass(frozen=True)
class _Ended:
    session: int
    back: Ranges
    """What was free again then, whatever epoch was on."""


class Cut:
    """One checkpoint's ledger; what happens to ``ledger`` from here on must be told."""

    def __init__(self, ledger: Samples) -> None:
        self._ledger = deepcopy(ledger)
        self._happened: list[_HandedOut | _Ended | None] = []
        """None where an epoch ended."""

    def handed_out(self, session: int, given: tuple[int, int]) -> None:
        """A range was handed out."""
        self._happened.append(_HandedOut(session, given))

    def ended(self, session: int, back: Ranges) -> None:
        """A session is over on all servers, and these places were free again, whatever epoch was on."""
        self._happened.append(_Ended(session, back))

    def next_epoch(self) -> None:
        """An epoch has ended, which was not the last."""
        self._happened.append(None)

    def closed(self, servers: Sequence[Mapping[int, Said]]) -> Samples:
        """The ledger, once all servers have kept a state: what each has of each session."""
        ledger = self._ledger
        ends = [ranges[-1][1] for server in servers for said in server.values() for ranges in said if ranges]
        epoch = max(ledger.epoch, (max(ends, default=1) - 1) // ledger.samples)

        def end(session: int, back: Ranges = ()) -> None:
            ledger.ended(session, [server.get(session, NOTHING) for server in servers], back)

        for happened in self._happened:
            match happened:
                case None if ledger.epoch < epoch:
                    ledger.next_epoch()
                case _Ended(session, back):
                    end(session, back)
                case _HandedOut(session, (start, stop)) if start // ledger.samples <= epoch:
                    ledger.give(session, (start, stop))
                case _:
                    pass
        for session in ledger.sessions:
            end(session)
        assert not ledger.open and ledger.epoch == epoch, f"{ledger.open} are open in epoch {ledger.epoch}"
        return ledger
