"""A validation: runs of held-out samples, assigned to the connected workers.

Knows: assigned runs, received results, the coordinator that passes messages. Does not know: sockets, the
evaluation of samples.

Each portion is a separate sum, and sums are added in the order of the samples. So the means have the same
bits for any assignment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from cotswold import wire as m
from cotswold.batch.runtime.coordinator_loop import BatchCoordinator
from cotswold.errors import MachineError
from cotswold.processes.coordinator_loop import ClusterFailedError
from cotswold.shards.core.membership import Member
from cotswold.shards.runtime.work import PortionSum, held_out_portions, validation_means

_RUNS_A_WORKER = 4
"""Runs per worker: faster workers take more of them, but each run costs a fetch of the point."""
_COPIES = 2


class ValidationPass:
    """One validation at the vector ``vector``."""

    def __init__(
        self, number: int, vector: str, held_out: int, portion: int, workers: int, retry_seconds: float = 2.0
    ) -> None:
        portions = held_out_portions(held_out, portion)
        runs = min(len(portions), _RUNS_A_WORKER * max(1, workers))
        cuts = [len(portions) * each // runs for each in range(runs + 1)]
        self._number, self._vector, self._retry_seconds = number, vector, retry_seconds
        self._runs = [tuple(portions[a:b]) for a, b in pairwise(cuts)]
        self._sums: dict[int, tuple[m.HeldOutSum, ...]] = {}
        self._granted: dict[int, int] = {}
        """Assigned run by session."""
        self._requested_at: dict[int, float] = {}
        """Time of the last request by session."""

    @property
    def is_done(self) -> bool:
        """True if all results have arrived."""
        return len(self._sums) == len(self._runs)

    def grant(self, members: Iterable[Member], now: float) -> list[tuple[str, m.Validate]]:
        """Return the requests to send. Idle workers get a run, the last ones a copy of an assigned run.
        Unanswered requests are repeated, because messages may be lost."""
        here = [each for each in members if not each.is_leaving]
        sessions = {each.session for each in here}
        self._granted = {session: run for session, run in self._granted.items() if session in sessions}
        asks = []
        for member in sorted(here, key=lambda one: one.seconds or 0.0):
            run = self._granted.get(member.session)
            if run is None:
                run = self._next()
            elif now - self._requested_at[member.session] < self._retry_seconds:
                continue
            if run is not None:
                self._granted[member.session], self._requested_at[member.session] = run, now
                asks.append(
                    (
                        member.name,
                        m.Validate(member.session, self._number, self._vector, run, self._runs[run]),
                    )
                )
        return asks

    def on_message(self, message: object) -> None:
        """Record the first result of each run; raise MachineError if it is an error."""
        if not isinstance(message, m.Validated) or message.number != self._number:
            return
        if self._granted.pop(message.session, None) != message.run or message.run in self._sums:
            return
        if message.error is not None:
            first, last = self._runs[message.run][0][0], self._runs[message.run][-1][1] - 1
            raise MachineError(f"held-out samples {first} to {last} cannot be evaluated: {message.error}")
        self._sums[message.run] = message.sums

    def means(self) -> Mapping[str, float] | None:
        """Return means over all held-out samples, once all results have arrived."""
        return validation_means(
            [
                PortionSum(one.value, one.samples, one.details)
                for run in sorted(self._sums)
                for one in self._sums[run]
            ]
        )

    def _next(self) -> int | None:
        copies = Counter(self._granted.values())
        wanted = [run for run in range(len(self._runs)) if run not in self._sums and copies[run] < _COPIES]
        return min(wanted, key=lambda run: (copies[run], run), default=None)


def run_validation(
    validation: ValidationPass,
    coordinator: BatchCoordinator,
    alone_seconds: float,
    require_servers: Callable[[], None],
) -> Mapping[str, float] | None:
    """Return means over the held-out samples; raise ClusterFailedError if no worker is left so long."""
    members, alone_since = coordinator.machine.members, time.monotonic()

    def is_done() -> bool:
        nonlocal alone_since
        require_servers()
        now = time.monotonic()
        if len(members):
            alone_since = now
        elif coordinator.process_group.cannot_recover or now - alone_since > alone_seconds:
            raise ClusterFailedError("no worker is left for validation")
        for name, request in validation.grant(members, now):
            coordinator.messenger.send(name, request)
        return validation.is_done

    coordinator.handle_until(validation.on_message, is_done)
    return validation.means()
