"""What is seen of a run and of its cluster while they go on: samples that count, and who leads which bucket.

Knows: the status of a run, the state of controllers as etcd has it. Does not know: faults, verdicts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotswold.errors import CotswoldError, MachineError
from cotswold.replication.controller.bucket_map import read_group
from cotswold.replication.metadata import Etcd, EtcdStore
from cotswold.run.loggers.status_file import read_status
from cotswold.wire import Group
from lib.fault_training.cluster import Site

LOOK_SECONDS = 0.5
_ASK_SECONDS = 1.0
_PREFIX = "cotswold/"
_BUCKETS = "bucket/"


@dataclass
class Seen:
    """What was seen so far; times are seconds of `time.time`."""

    samples: list[tuple[float, int]] = field(default_factory=list)
    """How many counted, and when that was written."""
    replicas: list[tuple[float, int]] = field(default_factory=list)
    """How many computed."""
    leads: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """Who was primary of a bucket in a term."""
    fewest: list[tuple[float, int]] = field(default_factory=list)
    """The least number of members that any bucket had."""
    looks: int = 0
    """How often the state of the controllers was read."""


class Watcher:
    """Looks on; to be asked to `look` again and again."""

    def __init__(self, site: Site, run: Path) -> None:
        self._site, self._status, self.seen = site, run / "status.json", Seen()
        told = Etcd(site.etcd.endpoints, site.tls(site.places.trainer), _PREFIX, _ASK_SECONDS)
        self._state = EtcdStore(told)
        self._looked = 0.0

    def close(self) -> None:
        """Look no more."""
        self._state.close()

    def look(self) -> None:
        """See what is new, if it is time."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        with suppress(MachineError):
            self._see_run(read_status(self._status))
        with suppress(CotswoldError):  # no member may be reached from here now
            self._see_groups(self._groups())

    @property
    def samples(self) -> int:
        """That count, as far as is known."""
        return self.seen.samples[-1][1] if self.seen.samples else 0

    def _groups(self) -> list[Group]:
        with self._site.hosts.entered(self._site.places.trainer):
            return [read_group(text) for text in self._state.read(_BUCKETS).values()]

    def _see_groups(self, groups: list[Group]) -> None:
        self.seen.looks += 1
        for group in groups:
            self.seen.leads.setdefault((group.bucket, group.term), set()).add(group.primary)
        if groups:
            self.seen.fewest.append((time.time(), min(len(each.members) for each in groups)))

    def _see_run(self, status: Mapping[str, Any] | None) -> None:
        now = None if status is None else status.get("newest", {}).get("replicas")
        if now is None or (self.seen.samples and now["time"] <= self.seen.samples[-1][0]):
            return
        self.seen.samples.append((now["time"], int(now["samples"]["counted"])))
        computing = sum(each["doing"] == "computing" for each in now["each"])
        self.seen.replicas.append((now["time"], computing))
