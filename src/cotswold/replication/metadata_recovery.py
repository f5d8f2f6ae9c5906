"""Recovery of the controllers' metadata from the disks of servers.

Knows: block stores, the files next to them, the stored form of groups. Does not know: processes, leaders.

    condition                                             result
    every bucket of every run is on some disk, and all    metadata that name, for each bucket, the most recent
      disks belong to one cluster                           disk, and the disks of its other members then;
                                                            controllers wait for these and query all servers
    disks of two clusters                                 an error
    a run lacks a bucket or its description               an error, unless that run is left out
    a run is left out                                     servers delete their data of it
    the metadata exist and have runs                      an error: nothing is written

The primary named in such metadata is not a process (`restored_on`). So controllers look for the most recent
replica in all memories and on all disks before any server leads.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cotswold.errors import CotswoldError, FormatError, StoreError, UserError
from cotswold.files.durable import PARTIAL, sync_folder
from cotswold.phrases import counted
from cotswold.replication.controller.bucket_map import BUCKETS, RUNS, items_of
from cotswold.replication.controller.leader_election import CLUSTER, LEADER
from cotswold.replication.disk import BlockStore, Bucket, DamagedError, Head
from cotswold.replication.disk.bucket_format import linked_copy, saved_of
from cotswold.replication.metadata import MetadataLocation, MetadataStore
from cotswold.replication.metadata.sqlite import NOTE
from cotswold.replication.replica.saved_bucket import DAMAGED_SUFFIX, disk_of, restored_on
from cotswold.replication.run_description import Description
from cotswold.wire import Group
from cotswold.wire.names import run_of

CLUSTER_FILE, RUNS_FOLDER = "cluster", "runs"
"""Names on a server's disk: file with the name of its cluster, and folder with the description of each run
on it."""
_NAME_BYTES, _DESCRIPTION_BYTES = 200, 4 << 20
_NAMED_MOST = 3
"""Maximum number of buckets that a sentence names."""
_MOVED = re.compile(rf"{re.escape(DAMAGED_SUFFIX)}[0-9]+$")
_Recency = tuple[int, int, int]


class ContradictionError(UserError):
    """Error: the disks contradict each other or are incomplete, so no metadata can be made from them."""


@dataclass
class DiskContents:
    """Contents of disks."""

    clusters: dict[str, str] = field(default_factory=dict)
    """Names of clusters, each with one of its disks."""
    descriptions: dict[str, str] = field(default_factory=dict)
    """Descriptions by run."""
    ranks: dict[str, tuple[_Recency, str]] = field(default_factory=dict)
    """Best recency of each bucket, and the disk that has it."""
    others: dict[str, set[str]] = field(default_factory=dict)
    """Other disks that had a bucket in the newest term of the best disk."""
    disks: set[str] = field(default_factory=set)
    """Disks that were read."""
    contradictions: dict[str, str] = field(default_factory=dict)
    """Files with contradicting descriptions, in words, by run."""

    def without(self, runs: Collection[str]) -> DiskContents:
        """Return the contents without these runs."""
        ranks = {name: each for name, each in self.ranks.items() if run_of(name) not in runs}
        return replace(self, ranks=ranks)

    @property
    def runs(self) -> tuple[str, ...]:
        """Runs with a bucket on a disk."""
        return tuple(sorted({run_of(each) for each in self.ranks}))

    def check(self) -> None:
        """Raise ContradictionError if no metadata can be made."""
        if len(self.clusters) > 1:
            (one, place), (other, elsewhere) = list(self.clusters.items())[:2]
            raise ContradictionError(
                f"{place} is of cluster {one}, and {elsewhere} of cluster {other}: name the folders of one "
                "cluster"
            )
        if not self.clusters or not self.ranks:
            raise ContradictionError("the disks have no bucket of a cluster: nothing can be recovered")
        for run in self.runs:
            if why := self._lacking(run):
                raise ContradictionError(
                    f"run {run}: {why}; name the folders of all hosts of the cluster, or leave out the run, "
                    f"which servers then delete: --without {run}"
                )

    def _lacking(self, run: str) -> str:
        if run in self.contradictions:
            return self.contradictions[run]
        text = self.descriptions.get(run)
        if text is None:
            return "no disk has its description"
        try:
            buckets = Description.of(text).buckets
        except (CotswoldError, ValueError, TypeError, KeyError) as error:
            return f"its description is malformed ({error})"
        lacking = [each for each in buckets if each not in self.ranks]
        if not lacking:
            return ""
        named = ", ".join(lacking[:_NAMED_MOST]) + (", …" if lacking[_NAMED_MOST:] else "")
        return f"no disk has {counted(len(lacking), 'bucket')} of {len(buckets)} ({named})"

    @property
    def groups(self) -> list[Group]:
        """One group per bucket, whose primary stands for the most recent disk."""
        return [
            Group(bucket, term, restored_on(disk), self._others(bucket, disk), incarnation=life)
            for bucket, ((life, term, _), disk) in sorted(self.ranks.items())
        ]

    def _others(self, bucket: str, disk: str) -> tuple[str, ...]:
        return tuple(map(restored_on, sorted(self.others.get(bucket, set()) - {disk})))

    @property
    def unread(self) -> tuple[str, ...]:
        """Disks that may have more recent data of a bucket and were not read."""
        return tuple(sorted({each for bucket in self.ranks for each in self.others[bucket]} - self.disks))

    def write(self, state: MetadataStore) -> str:
        """Write the metadata to an empty store, and describe them in words. Raises UserError if the store
        is not empty."""
        self.check()
        descriptions = {run: self.descriptions[run] for run in self.runs}
        (cluster,) = self.clusters
        if state.read(BUCKETS, limit=1) or state.read(RUNS, limit=1):
            raise UserError("the controllers' state is readable and has a cluster: nothing needs recovery")
        for items in items_of(descriptions, self.groups):
            if not state.transact([(key, None) for key, _ in items], items):
                raise UserError("another process writes to the controllers' state; stop the cluster first")
        before = state.read(LEADER)
        epoch = json.dumps(["recovered", int(time.time())])  # epochs never decrease
        compare = [(key, before.get(key)) for key in (CLUSTER, LEADER)]
        if not state.transact(compare, [(CLUSTER, cluster), (LEADER, epoch)]):
            raise UserError("another process writes to the controllers' state; stop the cluster first")
        whole = (
            f"{counted(len(self.ranks), 'bucket')} of {counted(len(self.runs), 'run')} of cluster {cluster}"
        )
        if not (unread := self.unread):
            return whole
        named = ", ".join(unread[:_NAMED_MOST]) + (", …" if unread[_NAMED_MOST:] else "")
        return f"{whole}; {named} may have newer data of some: controllers wait for them for up to a minute"


def read_disks(disks: Iterable[Path]) -> DiskContents:
    """Return the contents of these server disks, without damaged ones that a server has moved aside: no
    server opens those again. Raises ContradictionError if a disk cannot be read."""
    found = DiskContents()
    descriptions: dict[str, dict[str, Path]] = defaultdict(dict)
    for disk in disks:
        if _MOVED.search(disk.name) or not (disk / "format.json").is_file():
            continue
        heads = _heads(disk)
        found.disks.add(disk.name)
        if not heads:
            continue
        cluster = _text(disk / CLUSTER_FILE, _NAME_BYTES)
        if cluster:
            found.clusters.setdefault(cluster, str(disk))
        for path in sorted((disk / RUNS_FOLDER).glob("*")):
            descriptions[path.name].setdefault(_text(path, _DESCRIPTION_BYTES), path)
        for bucket, (rank, members) in heads.items():
            best = found.ranks[bucket][0] if bucket in found.ranks else (-1, -1, -1)
            if rank[:2] > best[:2]:  # disks of an older term have nothing that these lack
                found.others[bucket] = set()
            if rank[:2] >= best[:2]:
                found.others[bucket] |= {disk.name, *map(disk_of, members)}
            if rank > best:
                found.ranks[bucket] = rank, disk.name
    for run, texts in descriptions.items():
        if len(texts) > 1:
            found.contradictions[run] = f"{' and '.join(map(str, texts.values()))} describe it differently"
        found.descriptions[run] = next(iter(texts))
    return found


def _heads(disk: Path) -> dict[str, tuple[_Recency, tuple[str, ...]]]:
    """Return the recency and the members of each bucket on a disk, without changing it."""
    try:
        with linked_copy(disk) as copy, BlockStore(copy) as store:
            heads = store.heads()
    except DamagedError as error:
        heads = error.heads  # other disks may have the rest: that is checked for each run
    return {name: _read(name, head) for name, head in heads.items()}


def _read(name: str, head: Head) -> tuple[_Recency, tuple[str, ...]]:
    try:
        saved = saved_of(name, Bucket(head.index, head.head, {}))
        return saved.recency, saved.members
    except ValueError as error:
        raise ContradictionError(
            f"{name} cannot be read ({error}); name the disks without this one"
        ) from error


def _text(path: Path, most: int) -> str:
    try:
        return path.read_bytes()[:most].decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ContradictionError(
            f"{path} cannot be read ({error.strerror}); name the disks without this one"
        ) from error


def is_sound(state: Path) -> bool:
    """True if the file has readable metadata. Raises errors of `MetadataLocation.open` except damage."""
    if not state.exists():
        return False
    try:
        with closing(MetadataLocation(sqlite=str(state.absolute())).open()) as opened:
            opened.read("", limit=1)
    except FormatError:
        raise
    except (StoreError, UserError):
        return False
    return True


def _cluster_without_runs(state: Path) -> str | None:
    """Return the cluster's name in sound metadata without runs, as created after a loss; None if there are
    runs."""
    with closing(MetadataLocation(sqlite=str(state.absolute())).open()) as opened:
        if opened.read(BUCKETS, limit=1) or opened.read(RUNS, limit=1):
            return None
        return opened.read(CLUSTER).get(CLUSTER, "")


def set_aside(state: Path) -> tuple[Path, ...]:
    """Rename damaged metadata together with SQLite's other files; return the new paths."""
    word = f".damaged-{time.time_ns()}"
    moved = []
    for each in (state, *(state.with_name(state.name + more) for more in ("-wal", "-shm", "-journal", NOTE))):
        with suppress(FileNotFoundError):
            moved.append(each.rename(each.with_name(each.name + word)))
    return tuple(moved)


def recover(state: Path | MetadataLocation, found: DiskContents, without: Collection[str] = ()) -> str:
    """Write the metadata found on disks to a file or an etcd; return, in words, what was written and the fate
    of the old file.

    Raises ContradictionError if the disks make no metadata, UserError if sound metadata have a cluster.
    """
    wanted = found.without(without)
    wanted.check()
    if isinstance(state, MetadataLocation):
        with closing(state.open()) as opened:
            return wanted.write(opened)
    if is_sound(state):
        return recover(MetadataLocation(sqlite=str(state.absolute())), wanted)
    partial = state.with_name(state.name + PARTIAL)
    for each in partial.parent.glob(f"{partial.name}*"):
        each.unlink()
    has = recover(MetadataLocation(sqlite=str(partial.absolute())), wanted)
    aside = set_aside(state)
    partial.with_name(partial.name + NOTE).unlink(missing_ok=True)
    partial.rename(state)
    sync_folder(state.parent)
    return has + (f"; the damaged one was moved to {', '.join(map(str, aside))}" if aside else "")


def recover_alone(state: Path, disks: Path) -> str:
    """Rebuild a host's metadata, if lost or damaged, from the disks of that host alone.

    Returns what was done, or why nothing could be done, in words; nothing if there is nothing to do.

    Disks that contradict each other or are incomplete are left to an operator.
    """
    cluster = _cluster_without_runs(state) if is_sound(state) else ""
    if not disks.is_dir() or cluster is None:
        return ""
    try:
        found = read_disks(sorted(each for each in disks.iterdir() if each.is_dir()))
        if not found.ranks or cluster in found.clusters:
            return ""
        has = recover(state, found)
    except ContradictionError as error:
        return (
            f"{state} is lost or damaged, and the disks of this host cannot rebuild it: {error}; see "
            "cotswold cluster recover --help"
        )
    return f"{state} was lost or damaged and was rebuilt from the disks of this host: {has}"
