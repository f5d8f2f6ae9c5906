"""Versions of shards restored from disks, compared with the versions known before.

Knows: the servers' counts, buckets, versions and incarnations. Does not know: disks, receivers of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from cotswold.phrases import counted
from cotswold.shards.core.versions import incarnation_of, update_count
from cotswold.wire import Group, Shard
from cotswold.wire.lifecycle import ServerCounters

MAX_ROWS = 1000


@dataclass(frozen=True)
class RestoredShard:
    """One restored shard: a row of the table."""

    bucket: str
    server: str
    """Server that started the bucket's new incarnation."""
    life: int
    term: int
    """Term of the bucket when this was reported."""
    shard: int
    before: int
    """Updates that the shard was known to have. It may have had more: the report may be a second old."""
    now: int
    """Updates that the disk had."""


class VersionCheck:
    """Follows the servers' counts while a run trains."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._bucket = {each.number: each.server for each in shards}
        self._versions: dict[int, int] = {}
        """Newest known version of each shard."""

    def on_counters(self, counts: ServerCounters, groups: Mapping[str, Group]) -> list[RestoredShard]:
        """Shards that have started a new incarnation since the last counts."""
        versions = dict(counts.versions)
        found = []
        for shard, began in counts.restored:
            known = self._versions.get(shard)
            if known is not None and incarnation_of(began) > incarnation_of(known):
                bucket = self._bucket[shard]
                life = incarnation_of(
                    began
                )  # the term in which the incarnation began: the group may be older
                term = max(life, groups[bucket].term if bucket in groups else 0)
                row = (bucket, counts.server, life, term, shard)
                found.append(RestoredShard(*row, update_count(known), update_count(began)))
        for shard, version in (*counts.restored, *versions.items()):
            self._versions[shard] = max(self._versions.get(shard, 0), version)
        return found


def restored_event(rows: Sequence[RestoredShard]) -> dict[str, object]:
    """An event about restored shards of one server: a sentence, and the table."""
    server, buckets = rows[0].server, sorted({each.bucket for each in rows})
    now, before = sum(each.now for each in rows), sum(each.before for each in rows)
    lost = sum(max(0, each.before - each.now) for each in rows)
    whose = f"{counted(len(buckets), 'bucket')} ({', '.join(_first_names(buckets))})"
    shards = counted(len(rows), "shard")
    had = f"the {shards} had at least {counted(before, 'update')}, and the disk has {now:,}"
    # The reports are up to a second old: a disk that has all of them may still lack later updates.
    gone = f"at least {counted(lost, 'update')} {'was' if lost == 1 else 'were'} lost"
    again = f"{gone}, and replicas compute their samples again"
    sentence = f"{whose}: {had}: {again if lost else 'no update that a server had reported is lost'}"
    return {"name": server, "sentence": sentence, "rows": [asdict(each) for each in rows[:MAX_ROWS]]}


def _first_names(buckets: Iterable[str]) -> list[str]:
    names = [name.rpartition("/")[2].lstrip("0") or "0" for name in buckets]
    return names if len(names) <= 8 else [*names[:8], f"and {len(names) - 8} more"]
