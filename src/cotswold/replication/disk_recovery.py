"""The controllers' state, made again from what the disks of servers have.

Knows: block stores, files beside them, how groups are written down. Does not know: processes, who leads.

    what is so                                            what follows
    each bucket of each run is on some disk, and all      the state names, for each bucket, the disk that lost
      disks are of one cluster                              the least, and disks of others that had it then;
                                                            controllers wait for these, and ask all servers
    disks of two clusters                                 an error
    a run lacks a bucket, or its description              an error, unless that run is left out
    a run is left out                                     servers forget what they have of it
    there is a state that has runs                        an error: nothing is written

A primary that is named so is no process (`restored_on`): so controllers look for the best copy in all
memories and on all disks before anybody leads.
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
from cotswold.replication.controller.bucket_map import BUCKETS, RUNS, items_of
from cotswold.replication.controller.leader_election import CLUSTER, LEADER
from cotswold.replication.disk import BlockStore, Bucket, DamagedError, Head
from cotswold.replication.disk.bucket_format import apart, saved_of
from cotswold.replication.metadata import Place, State
from cotswold.replication.metadata.sqlite import NOTE
from cotswold.replication.replica.saved_bucket import ASIDE, disk_of, restored_on
from cotswold.replication.run_description import Description
from cotswold.wire import Group
from cotswold.wire.names import run_of
from cotswold.words import counted

CLUSTER_FILE, RUNS_FOLDER = "cluster", "runs"
"""Of a server's disk: the name of its cluster, and what is said of each run of which it has a bucket."""
_NAME_BYTES, _DESCRIPTION_BYTES = 200, 4 << 20
_NAMED_MOST = 3
"""Buckets that a sentence names."""
_MOVED = re.compile(rf"{re.escape(ASIDE)}[0-9]+$")
_Rank = tuple[int, int, int]


class ContradictionError(UserError):
    """Disks from which no state can be made: they say different things, or too little."""


@dataclass
class Found:
    """What disks have."""

    clusters: dict[str, str] = field(default_factory=dict)
    """Names of clusters, with a disk of each."""
    descriptions: dict[str, str] = field(default_factory=dict)
    """By run."""
    ranks: dict[str, tuple[_Rank, str]] = field(default_factory=dict)
    """The best rank of each bucket, and the disk that has it."""
    others: dict[str, set[str]] = field(default_factory=dict)
    """Other disks that had a bucket in the newest term of the best disk."""
    disks: set[str] = field(default_factory=set)
    """Those that were read."""
    contradictions: dict[str, str] = field(default_factory=dict)
    """By run: which files describe it differently."""

    def without(self, runs: Collection[str]) -> Found:
        """The same but for these runs."""
        ranks = {name: each for name, each in self.ranks.items() if run_of(name) not in runs}
        return replace(self, ranks=ranks)

    @property
    def runs(self) -> tuple[str, ...]:
        """Those of which a disk has a bucket."""
        return tuple(sorted({run_of(each) for each in self.ranks}))

    def check(self) -> None:
        """Raise ContradictionError for what makes no state."""
        if len(self.clusters) > 1:
            (one, place), (other, elsewhere) = list(self.clusters.items())[:2]
            raise ContradictionError(
                f"{place} is of cluster {one}, and {elsewhere} of cluster {other}: name the folders of one "
                "cluster"
            )
        if not self.clusters or not self.ranks:
            raise ContradictionError(
                "the disks have no bucket of a cluster: there is nothing to make a state from"
            )
        for run in self.runs:
            if why := self._lacking(run):
                raise ContradictionError(
                    f"run {run}: {why}; name the folders of all hosts of the cluster, or leave the run out, "
                    f"which has servers forget it: --without {run}"
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
            return f"its description is wrong ({error})"
        lacking = [each for each in buckets if each not in self.ranks]
        if not lacking:
            return ""
        named = ", ".join(lacking[:_NAMED_MOST]) + (", …" if lacking[_NAMED_MOST:] else "")
        return f"no disk has {counted(len(lacking), 'bucket')} of {len(buckets)} ({named})"

    @property
    def groups(self) -> list[Group]:
        """One of each bucket, whose primary is the disk that has the most of it."""
        return [
            Group(bucket, term, restored_on(disk), self._others(bucket, disk), life=life)
            for bucket, ((life, term, _), disk) in sorted(self.ranks.items())
        ]

    def _others(self, bucket: str, disk: str) -> tuple[str, ...]:
        return tuple(map(restored_on, sorted(self.others.get(bucket, set()) - {disk})))

    @property
    def unread(self) -> tuple[str, ...]:
        """Disks that may have more of a bucket, and were not read."""
        return tuple(sorted({each for bucket in self.ranks for each in self.others[bucket]} - self.disks))

    def write(self, state: State) -> str:
        """Write the state, which is empty; what it has, in words. Raises UserError where it is not empty."""
        self.check()
        descriptions = {run: self.descriptions[run] for run in self.runs}
        (cluster,) = self.clusters
        if state.read(BUCKETS, most=1) or state.read(RUNS, most=1):
            raise UserError(
                "the controllers' state can be read, and has a cluster: nothing is to be recovered"
            )
        for items in items_of(descriptions, self.groups):
            if not state.transact([(key, None) for key, _ in items], items):
                raise UserError("somebody else writes into the controllers' state; end the cluster first")
        before = state.read(LEADER)
        epoch = json.dumps(["recovered", int(time.time())])  # epochs never go back
        compare = [(key, before.get(key)) for key in (CLUSTER, LEADER)]
        if not state.transact(compare, [(CLUSTER, cluster), (LEADER, epoch)]):
            raise UserError("somebody else writes into the controllers' state; end the cluster first")
        whole = (
            f"{counted(len(self.ranks), 'bucket')} of {counted(len(self.runs), 'run')} of cluster {cluster}"
        )
        if not (unread := self.unread):
            return whole
        named = ", ".join(unread[:_NAMED_MOST]) + (", …" if unread[_NAMED_MOST:] else "")
        return f"{whole}; {named} may have more of some: controllers wait for them for up to a minute"


def found_on(disks: Iterable[Path]) -> Found:
    """What these disks of servers have, but for damaged ones that a server has moved aside: no server opens
    those again. Raises ContradictionError if a disk cannot be read."""
    found = Found()
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
            if rank[:2] > best[:2]:  # who had it in an older term has nothing that these have not
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


def _heads(disk: Path) -> dict[str, tuple[_Rank, tuple[str, ...]]]:
    """The rank of each bucket of a disk, which stays as it is, and the servers that had the bucket then."""
    try:
        with apart(disk) as copy, BlockStore(copy) as store:
            heads = store.heads()
    except DamagedError as error:
        heads = error.heads  # other disks may have what this one has not: that is checked for each run
    return {name: _read(name, head) for name, head in heads.items()}


def _read(name: str, head: Head) -> tuple[_Rank, tuple[str, ...]]:
    try:
        saved = saved_of(name, Bucket(head.index, head.head, {}))
        return saved.rank, saved.members
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
    """Whether there is a state in a file that can be read. Raises what `Place.opened` does for other reasons
    than damage."""
    if not state.exists():
        return False
    try:
        with closing(Place(sqlite=str(state.absolute())).opened()) as opened:
            opened.read("", most=1)
    except FormatError:
        raise
    except (StoreError, UserError):
        return False
    return True


def _cluster_without_runs(state: Path) -> str | None:
    """The name of the cluster of a sound state that has no runs, as one that was made since another was lost;
    None of a state that has runs."""
    with closing(Place(sqlite=str(state.absolute())).opened()) as opened:
        if opened.read(BUCKETS, most=1) or opened.read(RUNS, most=1):
            return None
        return opened.read(CLUSTER).get(CLUSTER, "")


def set_aside(state: Path) -> tuple[Path, ...]:
    """Rename a damaged state, with the files that SQLite has beside it; what it is called now."""
    word = f".damaged-{time.time_ns()}"
    moved = []
    for each in (state, *(state.with_name(state.name + more) for more in ("-wal", "-shm", "-journal", NOTE))):
        with suppress(FileNotFoundError):
            moved.append(each.rename(each.with_name(each.name + word)))
    return tuple(moved)


def recover(state: Path | Place, found: Found, without: Collection[str] = ()) -> str:
    """Write the state that disks have, to a file or an etcd; what it has, and what became of the file before,
    in words.

    Raises ContradictionError where disks make no state, UserError where there is a sound state that has a
    cluster.
    """
    wanted = found.without(without)
    wanted.check()
    if isinstance(state, Place):
        with closing(state.opened()) as opened:
            return wanted.write(opened)
    if is_sound(state):
        return recover(Place(sqlite=str(state.absolute())), wanted)
    partial = state.with_name(state.name + PARTIAL)
    for each in partial.parent.glob(f"{partial.name}*"):
        each.unlink()
    has = recover(Place(sqlite=str(partial.absolute())), wanted)
    aside = set_aside(state)
    partial.with_name(partial.name + NOTE).unlink(missing_ok=True)
    partial.rename(state)
    sync_folder(state.parent)
    return has + (f"; the damaged one is {', '.join(map(str, aside))}" if aside else "")


def recover_alone(state: Path, disks: Path) -> str:
    """If a host's state is lost or damaged, make it again from the disks of that host alone.

    Returns what was done, or why nothing could be done, in words; nothing if there is nothing to do.

    Disks that contradict each other, or lack something, are left to an operator.
    """
    cluster = _cluster_without_runs(state) if is_sound(state) else ""
    if not disks.is_dir() or cluster is None:
        return ""
    try:
        found = found_on(sorted(each for each in disks.iterdir() if each.is_dir()))
        if not found.ranks or cluster in found.clusters:
            return ""
        has = recover(state, found)
    except ContradictionError as error:
        return (
            f"{state} is lost or damaged, and the disks of this host cannot make it again: {error}; see "
            "cotswold cluster recover --help"
        )
    return f"{state} was lost or damaged, and is made again from the disks of this host: {has}"
