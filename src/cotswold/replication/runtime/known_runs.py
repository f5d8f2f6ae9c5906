"""Runs whose buckets a replica server may have.

Knows: their descriptions. Does not know: controllers, the disk, which buckets the server has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cotswold.replication.run_description import Description
from cotswold.wire.names import run_of

_REPORT_SECONDS = 10.0
"""Minimum interval between two reports of a malformed description."""


class KnownRuns:
    """Descriptions of runs; ``report`` receives a run, and why its description is malformed."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._of: dict[str, Description] = {}
        self._malformed: tuple[str, float] | None = None
        """A run with a malformed description, and the time of the last report of it."""

    def __contains__(self, run: str) -> bool:
        return run in self._of

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def learn(self, run: str, description: str) -> bool:
        """Learn the description of a run; False if one of its buckets cannot be created and updated."""
        try:
            found = Description.of(description)
            if found.run != run:
                raise ValueError(f"it is one of {found.run!r:.80}")
            found.check()
            found.contents(found.buckets[0])
        except Exception as error:  # a client's malformed description must not harm other runs
            self._report_malformed(run, f"{type(error).__name__}: {error}")
            return False
        self._of[run] = found
        return True

    def keep_only(self, runs: Iterable[str]) -> list[str]:
        """Forget and return all other runs: they are described again if they return."""
        forgotten = [*(self._of.keys() - {*runs})]
        for run in forgotten:
            del self._of[run]
        return forgotten

    def has_bucket(self, bucket: str) -> bool:
        """True if the bucket belongs to a described run."""
        return run_of(bucket) in self._of and bucket in self._of[run_of(bucket)].has

    def contents(self, bucket: str) -> Any:
        """Return the initial contents of a bucket."""
        return self._of[run_of(bucket)].contents(bucket)

    def _report_malformed(self, run: str, why: str) -> None:
        """Report a run that gets no replicas here; it is described again and again."""
        now = time.monotonic()
        if self._malformed is None or self._malformed[0] != run or now - self._malformed[1] > _REPORT_SECONDS:
            self._malformed = run, now
            self._report(run, why)
