"""The map: who has copies of which bucket, as it is written down and as it is to be.

Knows: groups by their buckets and runs, what servers must know of each run, which servers are drained, what
is on its way to the state. Does not know: who leads, why a group is another one, where the state is kept.

    a group         what happens                                   next
    to be put       the transaction before it is answered          on its way
    to be put       its run is to be removed                       forgotten
    on its way      done                                           it counts
    on its way      not done, or nobody knows                      forgotten: who leads reads all again
    it counts       another of the next term is to be put          it counts, until that one does
    it counts       its run is to be removed                       its key is on its way to be deleted: gone

Keys: ``bucket/NAME`` for a group, ``run/NAME/NUMBER`` for a part of what is said of a run, for a value may
have 64 KiB and no more, ``drain/NAME`` for a server that is to have no copies, ``server/NAME`` for the digest
of a server's key, which is written before any group that names the server. What is said of a run is
written before its groups and deleted before them: groups of a run of which nothing is said are to be deleted,
whoever leads next.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from cotswold.replication.controller.leader_election import Transact
from cotswold.replication.replica.saved_bucket import is_restored
from cotswold.wire import Group
from cotswold.wire.names import run_of

BUCKETS, RUNS, _DRAIN, _SERVER = "bucket/", "run/", "drain/", "server/"
"""With which keys begin."""
DONE = 0.0
"""The seconds of a drain after which the server has no copies any more."""
_TOGETHER = 60
"""Keys in one transaction, of which etcd takes 128 operations."""
_PART = 10_000
"""Letters in one value, which may have up to four bytes each."""
DESCRIPTION_LETTERS = _TOGETHER * _PART
"""Of what is said of a run, at most."""

Key = tuple[str, str | None]


@dataclass
class Written:
    """What a transaction has changed."""

    groups: list[tuple[Group | None, Group]] = field(default_factory=list)
    """That were, and that are."""
    deleted: list[Group] = field(default_factory=list)
    removed: str = ""
    """A run of which nothing is left."""


@dataclass
class _Writing:
    """What is on its way."""

    groups: dict[str, Group] = field(default_factory=dict)
    run: tuple[str, str] | None = None
    """With what is said of it."""
    drain: tuple[str, float | None] | None = None
    deleted: tuple[str, ...] = ()
    """Buckets."""
    removed: str = ""
    """A run, of which what is said is deleted, or ``deleted``."""


class Map:
    """That of a leader."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        """As they are written down."""
        self.runs: dict[str, str] = {}
        """What servers must know of each run; as it is written down."""
        self.drains: dict[str, float] = {}
        """Servers that are to have no copies, and within how many seconds, or `DONE`."""
        self.keys: dict[str, str] = {}
        """Digests of the keys of servers; as they are written down, or are to be."""
        self._bound: dict[str, str | None] = {}
        """Those that are to be written down, or deleted."""
        self._of_run: dict[str, OrderedDict[str, None]] = {}
        """Buckets that are written down."""
        self._next: OrderedDict[str, Group] = OrderedDict()
        """Groups that are to be written down, and are not on their way."""
        self._new: OrderedDict[str, Group] = OrderedDict()
        """The same, of buckets of which there is none yet: the others go first."""
        self._told: dict[str, str] = {}
        """Runs of which something is to be written down, before any group is."""
        self._drained: dict[str, float | None] = {}
        """Servers of which it is to be written down that they are drained, or are not."""
        self._removed: dict[str, None] = {}
        """Runs of which nothing is to be left."""
        self._writing: _Writing | None = None
        self._parts: dict[str, list[tuple[int, str]]] = {}
        """Of what is said of runs, with their numbers, until all is read."""

    def load(self, items: Mapping[str, str]) -> list[Group]:
        """This is written down, and more may be; groups of it."""
        found = []
        for key, text in items.items():
            if key.startswith(BUCKETS):
                found.append(read_group(text))
                self._keep(found[-1])
            elif key.startswith(RUNS):
                run, _, number = key.removeprefix(RUNS).rpartition("/")
                self._parts.setdefault(run, []).append((int(number), text))
            elif key.startswith(_DRAIN):
                self.drains[key.removeprefix(_DRAIN)] = float(text)
            elif key.startswith(_SERVER):
                self.keys[key.removeprefix(_SERVER)] = text
        return found

    def loaded(self) -> None:
        """That was all."""
        parts, self._parts = self._parts, {}
        self.runs = {run: "".join(text for _, text in sorted(some)) for run, some in parts.items()}
        self._removed = {run: None for run in self._of_run if run and run not in self.runs}

    def _keep(self, group: Group) -> None:
        self.groups[group.bucket] = group
        self._of_run.setdefault(run_of(group.bucket), OrderedDict())[group.bucket] = None

    @property
    def moving(self) -> set[str]:
        """Buckets of which a group is to be written down, or on its way."""
        return {*self._next, *self._new, *(() if self._writing is None else self._writing.groups)}

    @property
    def is_still(self) -> bool:
        """Whether there is no such bucket."""
        return not (self._next or self._new or (self._writing is not None and self._writing.groups))

    @property
    def is_asking(self) -> bool:
        """Whether something is on its way."""
        return self._writing is not None

    def is_known(self, bucket: str) -> bool:
        """Whether there is a group, or is to be one."""
        return bucket in self.groups or self.is_moving(bucket)

    def is_moving(self, bucket: str) -> bool:
        """Whether another group is to be written down, or on its way."""
        return (
            bucket in self._next
            or bucket in self._new
            or (self._writing is not None and bucket in self._writing.groups)
        )

    def is_removed(self, bucket: str) -> bool:
        """Whether its run is being removed."""
        return bool(self._removed) and run_of(bucket) in self._removed

    def has_run(self, run: str) -> bool:
        """Whether anything of a run is there, or is to be."""
        is_told = self._writing is not None and self._writing.run is not None and self._writing.run[0] == run
        return run in self.runs or run in self._told or is_told or run in self._removed or run in self._of_run

    def buckets(self, run: str) -> Iterable[str]:
        """Those of a run that are written down."""
        return self._of_run.get(run, {})

    def count(self, run: str) -> int:
        """How many these are."""
        return len(self._of_run.get(run, ()))

    @property
    def named(self) -> list[str]:
        """Runs that have buckets, or of which something is said."""
        return sorted({*self.runs, *self._of_run})

    def intended(self, bucket: str) -> Group | None:
        """The newest, written down or not."""
        return next(reversed(self.all_of(bucket)), None)

    def all_of(self, bucket: str) -> list[Group]:
        """Those that are written down, on their way, and to be put."""
        on_its_way = None if self._writing is None else self._writing.groups.get(bucket)
        found = self.groups.get(bucket), on_its_way, self._next.get(bucket), self._new.get(bucket)
        return [each for each in found if each is not None]

    # --- what is to be ---

    def describe(self, run: str, text: str) -> None:
        """Servers must know this of a run."""
        if not self.has_run(run):
            self._told[run] = text

    def put(self, group: Group) -> None:
        """A group is to be written down, once the one before is."""
        known = self.groups.get(group.bucket)
        next_term = 1 if known is None else known.term + 1
        may_be_later = known is not None and is_restored(known.primary)
        is_next = group.term >= next_term if may_be_later else group.term == next_term
        assert is_next, f"{group} follows {known}"
        (self._new if known is None else self._next)[group.bucket] = group

    def call_back(self, bucket: str) -> Group | None:
        """A group that is not on its way is not to be written down any more."""
        return self._next.pop(bucket, None) or self._new.pop(bucket, None)

    def drain(self, server: str, seconds: float | None) -> None:
        """A server is to have no copies, or, by None, may have some again."""
        on_its_way = None if self._writing is None else self._writing.drain
        known = on_its_way[1] if on_its_way and on_its_way[0] == server else self.drains.get(server)
        if known != seconds:
            self._drained[server] = seconds
        else:
            self._drained.pop(server, None)

    def bind(self, server: str, digest: str | None) -> None:
        """A server's name belongs to the key with this digest, or, by None, to no key."""
        if digest == self.keys.get(server):
            return
        self._bound[server] = digest
        if digest is None:
            del self.keys[server]
        else:
            self.keys[server] = digest

    def remove(self, run: str) -> None:
        """Nothing of a run is to be left; groups that are not on their way are to be called back."""
        self._told.pop(run, None)
        if self.has_run(run):
            self._removed[run] = None

    # --- the state ---

    def transaction(self, leads: Key) -> Transact | None:
        """What is to be put next, if ``leads`` is so; None for nothing."""
        assert self._writing is None, "one transaction at a time"
        found = self._binds() or self._drains() or self._groups(self._next) or self._tells()
        found = found or self._removal() or self._groups(self._new)
        if found is None:
            return None
        self._writing, compare, put = found
        return Transact((leads, *compare), tuple(put))

    def _binds(self) -> tuple[_Writing, list[Key], list[Key]] | None:
        if not self._bound:
            return None
        bound = dict(self._bound.popitem() for _ in range(min(len(self._bound), _TOGETHER)))
        return _Writing(), [], [(_SERVER + name, digest) for name, digest in bound.items()]

    def _drains(self) -> tuple[_Writing, list[Key], list[Key]] | None:
        if not self._drained:
            return None
        server, seconds = self._drained.popitem()
        put: Key = _DRAIN + server, None if seconds is None else repr(float(seconds))
        return _Writing(drain=(server, seconds)), [], [put]

    def _groups(self, some: OrderedDict[str, Group]) -> tuple[_Writing, list[Key], list[Key]] | None:
        if not some:
            return None
        writing = dict(some.popitem(last=False) for _ in range(min(len(some), _TOGETHER)))
        before = [(name, self.groups.get(name)) for name in writing]
        compare: list[Key] = [(BUCKETS + name, None if old is None else _text(old)) for name, old in before]
        put: list[Key] = [(BUCKETS + name, _text(group)) for name, group in writing.items()]
        return _Writing(groups=writing), compare, put

    def _tells(self) -> tuple[_Writing, list[Key], list[Key]] | None:
        if not self._told:
            return None
        run, text = next(iter(self._told.items()))
        del self._told[run]
        put = _parts(run, text)
        return _Writing(run=(run, text)), [(key, None) for key, _ in put], put

    def _removal(self) -> tuple[_Writing, list[Key], list[Key]] | None:
        """A run's description first, then its groups."""
        if not self._removed:
            return None
        run = next(iter(self._removed))
        if run in self.runs:
            return _Writing(removed=run), [], [(key, None) for key, _ in _parts(run, self.runs[run])]
        names = tuple(islice(self.buckets(run), _TOGETHER))
        return _Writing(removed=run, deleted=names), [], [(BUCKETS + name, None) for name in names]

    def done(self) -> Written:
        """What was on its way is written down."""
        writing, self._writing = self._writing, None
        assert writing is not None, "something was on its way"
        found = Written([(self.groups.get(name), group) for name, group in writing.groups.items()])
        for group in writing.groups.values():
            self._keep(group)
        if writing.run is not None:
            self.runs[writing.run[0]] = writing.run[1]
        if writing.drain is not None:
            server, seconds = writing.drain
            self.drains.pop(server, None)
            if seconds is not None:
                self.drains[server] = seconds
        if writing.removed:
            self._deleted(writing, found)
        return found

    def _deleted(self, writing: _Writing, found: Written) -> None:
        run = writing.removed
        if not writing.deleted:
            del self.runs[run]
        for name in writing.deleted:
            found.deleted.append(self.groups.pop(name))
            del self._of_run[run][name]
        if not self._of_run.get(run):
            self._of_run.pop(run, None)
            del self._removed[run]
            found.removed = run

    def in_doubt(self) -> None:
        """What was on its way is written down or not; it is read again before anything is built on either."""
        self._writing = None

    def newer(self, terms: Mapping[str, int]) -> list[Group]:
        """Groups of newer terms than these, of the runs of these; of all runs where there are none."""
        runs = dict.fromkeys(map(run_of, terms)) or self._of_run
        groups = (self.groups[bucket] for run in runs for bucket in self.buckets(run))
        return [each for each in groups if each.term > terms.get(each.bucket, 0)]


def items_of(runs: Mapping[str, str], groups: Iterable[Group]) -> Iterator[list[Key]]:
    """What is written down of these, as keys and values, as many at once as a transaction takes."""
    for run, text in runs.items():
        yield _parts(run, text)
    written = [(BUCKETS + each.bucket, _text(each)) for each in groups]
    for start in range(0, len(written), _TOGETHER):
        yield [*written[start : start + _TOGETHER]]


def _parts(run: str, text: str) -> list[Key]:
    """What is said of a run, as it is written down."""
    parts = [text[start : start + _PART] for start in range(0, max(1, len(text)), _PART)]
    assert len(parts) <= _TOGETHER, f"{len(text)} letters say what a run is"
    return [(f"{RUNS}{run}/{number}", part) for number, part in enumerate(parts)]


def _text(group: Group) -> str:
    """A group as it is written down."""
    return json.dumps(
        [*(group.bucket, group.term, group.primary, group.secondaries), group.learners, group.life]
    )


def read_group(text: str) -> Group:
    """A group as it was written down."""
    bucket, term, primary, secondaries, learners, life = json.loads(text)
    return Group(bucket, term, primary, tuple(secondaries), tuple(learners), life)
