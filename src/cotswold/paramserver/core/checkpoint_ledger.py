"""The ledger of samples at a checkpoint, which the servers keep one after the other while training continues.

Knows: the ledger at the start of the checkpoint, later events, the state that each server reports. Does not
know: weights, messages, time.

    since the checkpoint began              effect on the checkpoint
    a range is handed out                   open, then as below
    a session ends                          samples in the states count, the rest is lost
    an epoch ends, and the next begins      the same, if a state has a sample of the next
    all servers have kept their state       every session ends: a resumed run begins new ones

When a session ends meanwhile, some states may have samples that others lack. These samples are divided, and a
resumed run cannot tell which shards lack them. Such a checkpoint is discarded, or the samples are torn.

Only the states decide. A sample that was applied behind a marker is lost in this ledger, and a resumed run
hands it out again. If no state has a sample of the current epoch, this ledger is still in the previous epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from cotswold.shards.core.sample_ledger import SampleLedger, SampleReport
from cotswold.wire import Ranges

EMPTY_REPORT: SampleReport = ((), ())


@dataclass(frozen=True)
class _SamplesAssigned:
    session: int
    samples: tuple[int, int]


@dataclass(frozen=True)
class _SessionEnded:
    session: int
    freed: Ranges
    """Positions that became free at the end, of any epoch."""


class CheckpointLedger:
    """The ledger of one checkpoint. Report every later event of ``ledger`` to it."""

    def __init__(self, ledger: SampleLedger) -> None:
        self._ledger = deepcopy(ledger)
        self._happened: list[_SamplesAssigned | _SessionEnded | None] = []
        """Events in order; None for the end of an epoch."""

    def record_assignment(self, session: int, samples: tuple[int, int]) -> None:
        """Record that a range was handed out."""
        self._happened.append(_SamplesAssigned(session, samples))

    def end_session(self, session: int, freed: Ranges) -> None:
        """Record that a session ended on all servers and that these positions became free, of any epoch."""
        self._happened.append(_SessionEnded(session, freed))

    def next_epoch(self) -> None:
        """Record the end of an epoch that is not the last."""
        self._happened.append(None)

    def finish(self, servers: Sequence[Mapping[int, SampleReport]]) -> SampleLedger:
        """Return the ledger of the checkpoint from the state of each session on each server; all servers have
        kept one."""
        ledger = self._ledger
        ends = [ranges[-1][1] for server in servers for said in server.values() for ranges in said if ranges]
        epoch = max(ledger.epoch, (max(ends, default=1) - 1) // ledger.samples)

        def end(session: int, back: Ranges = ()) -> None:
            ledger.end_session(session, [server.get(session, EMPTY_REPORT) for server in servers], back)

        for happened in self._happened:
            match happened:
                case None if ledger.epoch < epoch:
                    ledger.next_epoch()
                case _SessionEnded(session, back):
                    end(session, back)
                case _SamplesAssigned(session, (start, stop)) if start // ledger.samples <= epoch:
                    ledger.assign_range(session, (start, stop))
                case _:
                    pass
        for session in ledger.sessions:
            end(session)
        assert not ledger.open and ledger.epoch == epoch, (
            f"samples {ledger.open} are open in epoch {ledger.epoch}"
        )
        return ledger
