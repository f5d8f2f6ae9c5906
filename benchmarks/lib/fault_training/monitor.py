"""Observations of a run and its cluster while they work: counted samples, and the primary of each bucket.

Knows: the status of a run, the controllers' metadata in etcd. Does not know: faults, verdicts.
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
class Observations:
    """Observations so far; times are seconds of `time.time`."""

    samples: list[tuple[float, int]] = field(default_factory=list)
    """Counted samples, with the time of the report."""
    replicas: list[tuple[float, int]] = field(default_factory=list)
    """Number of replicas that computed, with the time."""
    leads: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """Servers that were primary of a bucket in a term."""
    fewest: list[tuple[float, int]] = field(default_factory=list)
    """Least number of members of any bucket, with the time."""
    looks: int = 0
    """Number of reads of the controllers' metadata."""


class Watcher:
    """Observes a run; call `look` repeatedly."""

    def __init__(self, site: Site, run: Path) -> None:
        self._site, self._status, self.seen = site, run / "status.json", Observations()
        told = Etcd(site.etcd.endpoints, site.tls(site.places.trainer), _PREFIX, _ASK_SECONDS)
        self._state = EtcdStore(told)
        self._looked = 0.0

    def close(self) -> None:
        """Stop observing."""
        self._state.close()

    def look(self) -> None:
        """Read the newest state, if it is time."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        with suppress(MachineError):
            self._see_run(read_status(self._status))
        with suppress(CotswoldError):  # possibly no member is reachable now
            self._see_groups(self._groups())

    @property
    def samples(self) -> int:
        """Number of counted samples, as far as known."""
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
        now = None if status is None else status.get("latest", {}).get("replicas")
        if now is None or (self.seen.samples and now["time"] <= self.seen.samples[-1][0]):
            return
        self.seen.samples.append((now["time"], int(now["samples"]["counted"])))
        computing = sum(each["activity"] == "computing" for each in now["replicas"])
        self.seen.replicas.append((now["time"], computing))
