"""Intervals in which each server acted as primary of a bucket, as the servers report them.

Knows: reports of servers, by the clock that all hosts of this machine share. Does not know: the controllers'
metadata, verdicts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cotswold.errors import CotswoldError
from cotswold.host import Token
from cotswold.replication.client.admin import AdminClient
from cotswold.testing.namespaces import entered
from cotswold.wire.lifecycle import ServerReport

_LOOK_SECONDS = 0.5
_WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class ActingInterval:
    """The first and last reply of a server to clients for a bucket in a term."""

    bucket: str
    term: int
    server: str
    first: float
    """Seconds of `time.monotonic`, as in `last`."""
    last: float


class Acting:
    """Asks all servers repeatedly, in a thread; use in a ``with`` statement."""

    def __init__(self, namespace: Path, controllers: str, token: str) -> None:
        """Prepare to ask from the host with this ``namespace``."""
        self._namespace, self._controllers, self._token = namespace, controllers.split(","), token
        self._spells: dict[tuple[str, int, str], ActingInterval] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="acting")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def spells(self) -> list[ActingInterval]:
        """Return the intervals known so far."""
        return list(self._spells.values())

    def _ask(self) -> None:
        with (
            entered(self._namespace),
            AdminClient(self._controllers, Token(self._token), wait_seconds=_WAIT_SECONDS) as operator,
        ):
            addresses: dict[str, str] = {}
            while not self._is_over.is_set():
                began = time.monotonic()
                with suppress(CotswoldError):  # possibly no leader, or none reachable, now
                    addresses = {
                        each.name: each.address for each in operator.status().servers if each.address
                    }
                with suppress(CotswoldError):
                    self._hear(operator.reports(addresses).values())
                self._is_over.wait(max(0.0, began + _LOOK_SECONDS - time.monotonic()))

    def _hear(self, reports: Iterable[ServerReport]) -> None:
        for report in reports:
            for copy in report.copies:
                if copy.replied_until > 0:
                    spell = ActingInterval(
                        copy.bucket, copy.replied_term, report.server, copy.replied_from, copy.replied_until
                    )
                    self._spells[spell.bucket, spell.term, spell.server] = spell


def at_once(spells: Iterable[ActingInterval]) -> list[str]:
    """Describe each time at which two servers acted as primary of one bucket."""
    of: dict[str, list[ActingInterval]] = {}
    for each in spells:
        of.setdefault(each.bucket, []).append(each)
    found = []
    for bucket, own in of.items():
        own.sort(key=lambda each: each.first)
        latest = own[0]
        for spell in own[1:]:
            if spell.server != latest.server and (spell.first <= latest.last or spell.term == latest.term):
                one, other = (f"{each.server} in term {each.term}" for each in (latest, spell))
                found.append(f"{bucket}: {one} and {other}, {1000 * (latest.last - spell.first):.0f} ms")
            latest = max(latest, spell, key=lambda each: each.last)
    return found
