"""The bucket map: the committed group of every bucket, and the changes that are pending.

Knows: groups by bucket and run, run descriptions, which servers are drained, the transaction in flight. Does
not know: who leads, why a group changes, the kind of metadata store.

    group           event                                          next
    pending         the previous transaction is answered           in flight
    pending         its run is deleted                             discarded
    in flight       the transaction is committed                   committed
    in flight       it failed, or its result is unknown            discarded: the leader reads all keys again
    committed       a group of the next term is pending            committed, until the next one is
    committed       its run is deleted                             its key is in flight to be deleted: deleted

    key                   value
    ``bucket/NAME``       a group
    ``run/NAME/NUMBER``   a part of a run's description, since a value has at most 64 KiB
    ``drain/NAME``        a drained server
    ``server/NAME``       digest of the server's key, committed before any group that names the server

The description of a run is committed before its groups and deleted before them. So any later leader deletes
groups of a run without a description.
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
"""Prefixes of keys."""
DRAIN_DONE = 0.0
"""Value of a drain (in place of seconds) once the server has no replicas left."""
_KEYS_PER_TRANSACTION = 60
"""Keys per transaction; etcd allows 128 operations."""
_DESCRIPTION_PART_CHARS = 10_000
"""Characters per value; each may take up to four bytes."""
MAX_DESCRIPTION_CHARS = _KEYS_PER_TRANSACTION * _DESCRIPTION_PART_CHARS
"""Maximum length of a run's description."""

Key = tuple[str, str | None]


@dataclass
class CommittedChanges:
    """Changes that a transaction has committed."""

    groups: list[tuple[Group | None, Group]] = field(default_factory=list)
    """Pairs of the previous and the new group."""
    deleted: list[Group] = field(default_factory=list)
    removed: str = ""
    """A run that is completely deleted."""


@dataclass
class _Transaction:
    """The transaction in flight."""

    groups: dict[str, Group] = field(default_factory=dict)
    run: tuple[str, str] | None = None
    """A run and its description."""
    drain: tuple[str, float | None] | None = None
    deleted: tuple[str, ...] = ()
    """Buckets whose groups are deleted."""
    removed: str = ""
    """A run whose description or, if any, ``deleted`` groups are deleted."""


class BucketMap:
    """The bucket map of a leader."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        """Committed groups, by bucket."""
        self.runs: dict[str, str] = {}
        """Committed descriptions that servers need, by run."""
        self.drains: dict[str, float] = {}
        """Drained servers, each with its time limit in seconds, or `DRAIN_DONE`."""
        self.keys: dict[str, str] = {}
        """Digests of the servers' keys, committed or pending."""
        self._bound: dict[str, str | None] = {}
        """Key digests that are pending; None deletes one."""
        self._of_run: dict[str, OrderedDict[str, None]] = {}
        """Committed buckets of each run."""
        self._pending: OrderedDict[str, Group] = OrderedDict()
        """Pending groups of existing buckets."""
        self._new: OrderedDict[str, Group] = OrderedDict()
        """Pending groups of new buckets: existing buckets go first."""
        self._pending_descriptions: dict[str, str] = {}
        """Pending descriptions; they precede any group of the run."""
        self._drained: dict[str, float | None] = {}
        """Pending drains; None ends one."""
        self._removed: dict[str, None] = {}
        """Runs that are being deleted."""
        self._transaction: _Transaction | None = None
        self._description_parts: dict[str, list[tuple[int, str]]] = {}
        """Numbered parts of descriptions while keys are loaded."""

    def load(self, items: Mapping[str, str]) -> list[Group]:
        """Load a page of committed keys and return its groups."""
        found = []
        for key, text in items.items():
            if key.startswith(BUCKETS):
                found.append(read_group(text))
                self._store(found[-1])
            elif key.startswith(RUNS):
                run, _, number = key.removeprefix(RUNS).rpartition("/")
                self._description_parts.setdefault(run, []).append((int(number), text))
            elif key.startswith(_DRAIN):
                self.drains[key.removeprefix(_DRAIN)] = float(text)
            elif key.startswith(_SERVER):
                self.keys[key.removeprefix(_SERVER)] = text
        return found

    def finish_loading(self) -> None:
        """Finish loading: assemble descriptions and find runs whose deletion is unfinished."""
        parts, self._description_parts = self._description_parts, {}
        self.runs = {run: "".join(text for _, text in sorted(some)) for run, some in parts.items()}
        self._removed = {run: None for run in self._of_run if run and run not in self.runs}

    def _store(self, group: Group) -> None:
        self.groups[group.bucket] = group
        self._of_run.setdefault(run_of(group.bucket), OrderedDict())[group.bucket] = None

    @property
    def in_transition(self) -> set[str]:
        """Buckets with a pending group or a group in flight."""
        return {*self._pending, *self._new, *(() if self._transaction is None else self._transaction.groups)}

    @property
    def is_settled(self) -> bool:
        """True if no bucket has a group pending or in flight."""
        return not (
            self._pending or self._new or (self._transaction is not None and self._transaction.groups)
        )

    @property
    def has_transaction(self) -> bool:
        """True if a transaction is in flight."""
        return self._transaction is not None

    def is_run_known(self, bucket: str) -> bool:
        """True if the bucket has a group, committed or not."""
        return bucket in self.groups or self.has_pending_change(bucket)

    def has_pending_change(self, bucket: str) -> bool:
        """True if the bucket has a group pending or in flight."""
        return (
            bucket in self._pending
            or bucket in self._new
            or (self._transaction is not None and bucket in self._transaction.groups)
        )

    def is_removed(self, bucket: str) -> bool:
        """True if the bucket's run is being deleted."""
        return bool(self._removed) and run_of(bucket) in self._removed

    def has_run(self, run: str) -> bool:
        """True if anything of the run is committed or pending."""
        is_told = (
            self._transaction is not None
            and self._transaction.run is not None
            and self._transaction.run[0] == run
        )
        return (
            run in self.runs
            or run in self._pending_descriptions
            or is_told
            or run in self._removed
            or run in self._of_run
        )

    def buckets(self, run: str) -> Iterable[str]:
        """Return the committed buckets of a run."""
        return self._of_run.get(run, {})

    def count(self, run: str) -> int:
        """Return the number of committed buckets of a run."""
        return len(self._of_run.get(run, ()))

    @property
    def named(self) -> list[str]:
        """Runs that have buckets or a description."""
        return sorted({*self.runs, *self._of_run})

    def intended(self, bucket: str) -> Group | None:
        """Return the newest group, committed or not."""
        return next(reversed(self.all_of(bucket)), None)

    def all_of(self, bucket: str) -> list[Group]:
        """Return the groups that are committed, in flight, and pending, in this order."""
        on_its_way = None if self._transaction is None else self._transaction.groups.get(bucket)
        found = self.groups.get(bucket), on_its_way, self._pending.get(bucket), self._new.get(bucket)
        return [each for each in found if each is not None]

    # --- pending changes ---

    def describe(self, run: str, text: str) -> None:
        """Add the description of a new run."""
        if not self.has_run(run):
            self._pending_descriptions[run] = text

    def propose(self, group: Group) -> None:
        """Add the successor of a group; it is committed after its predecessor."""
        known = self.groups.get(group.bucket)
        next_term = 1 if known is None else known.term + 1
        may_be_later = known is not None and is_restored(known.primary)
        is_next = group.term >= next_term if may_be_later else group.term == next_term
        assert is_next, f"{group} follows {known}"
        (self._new if known is None else self._pending)[group.bucket] = group

    def cancel_pending(self, bucket: str) -> Group | None:
        """Discard a pending group that is not in flight, and return it."""
        return self._pending.pop(bucket, None) or self._new.pop(bucket, None)

    def drain(self, server: str, seconds: float | None) -> None:
        """Drain a server within a time limit, or, with None, end its drain."""
        on_its_way = None if self._transaction is None else self._transaction.drain
        known = on_its_way[1] if on_its_way and on_its_way[0] == server else self.drains.get(server)
        if known != seconds:
            self._drained[server] = seconds
        else:
            self._drained.pop(server, None)

    def bind(self, server: str, digest: str | None) -> None:
        """Bind a server name to the digest of a key, or, with None, release the name."""
        if digest == self.keys.get(server):
            return
        self._bound[server] = digest
        if digest is None:
            del self.keys[server]
        else:
            self.keys[server] = digest

    def remove(self, run: str) -> None:
        """Delete a run; the caller cancels its pending groups."""
        self._pending_descriptions.pop(run, None)
        if self.has_run(run):
            self._removed[run] = None

    # --- metadata store ---

    def transaction(self, leads: Key) -> Transact | None:
        """Return the next transaction, conditional on ``leads``; None if nothing is pending."""
        assert self._transaction is None, "one transaction at a time"
        found = self._binds() or self._drains() or self._groups(self._pending) or self._tells()
        found = found or self._removal() or self._groups(self._new)
        if found is None:
            return None
        self._transaction, compare, put = found
        return Transact((leads, *compare), tuple(put))

    def _binds(self) -> tuple[_Transaction, list[Key], list[Key]] | None:
        if not self._bound:
            return None
        bound = dict(self._bound.popitem() for _ in range(min(len(self._bound), _KEYS_PER_TRANSACTION)))
        return _Transaction(), [], [(_SERVER + name, digest) for name, digest in bound.items()]

    def _drains(self) -> tuple[_Transaction, list[Key], list[Key]] | None:
        if not self._drained:
            return None
        server, seconds = self._drained.popitem()
        put: Key = _DRAIN + server, None if seconds is None else repr(float(seconds))
        return _Transaction(drain=(server, seconds)), [], [put]

    def _groups(self, some: OrderedDict[str, Group]) -> tuple[_Transaction, list[Key], list[Key]] | None:
        if not some:
            return None
        writing = dict(some.popitem(last=False) for _ in range(min(len(some), _KEYS_PER_TRANSACTION)))
        before = [(name, self.groups.get(name)) for name in writing]
        compare: list[Key] = [(BUCKETS + name, None if old is None else _text(old)) for name, old in before]
        put: list[Key] = [(BUCKETS + name, _text(group)) for name, group in writing.items()]
        return _Transaction(groups=writing), compare, put

    def _tells(self) -> tuple[_Transaction, list[Key], list[Key]] | None:
        if not self._pending_descriptions:
            return None
        run, text = next(iter(self._pending_descriptions.items()))
        del self._pending_descriptions[run]
        put = _description_parts(run, text)
        return _Transaction(run=(run, text)), [(key, None) for key, _ in put], put

    def _removal(self) -> tuple[_Transaction, list[Key], list[Key]] | None:
        """Delete a run's description first, then its groups."""
        if not self._removed:
            return None
        run = next(iter(self._removed))
        if run in self.runs:
            return (
                _Transaction(removed=run),
                [],
                [(key, None) for key, _ in _description_parts(run, self.runs[run])],
            )
        names = tuple(islice(self.buckets(run), _KEYS_PER_TRANSACTION))
        return _Transaction(removed=run, deleted=names), [], [(BUCKETS + name, None) for name in names]

    def commit(self) -> CommittedChanges:
        """Apply the committed transaction and return its changes."""
        writing, self._transaction = self._transaction, None
        assert writing is not None, "a transaction is in flight"
        found = CommittedChanges([(self.groups.get(name), group) for name, group in writing.groups.items()])
        for group in writing.groups.values():
            self._store(group)
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

    def _deleted(self, writing: _Transaction, found: CommittedChanges) -> None:
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

    def discard_in_flight(self) -> None:
        """Discard a transaction with an unknown result; the leader reads the keys again before it builds
        on them."""
        self._transaction = None

    def newer(self, terms: Mapping[str, int]) -> list[Group]:
        """Return the groups with newer terms than these, of the same runs; of all runs if ``terms`` is
        empty."""
        runs = dict.fromkeys(map(run_of, terms)) or self._of_run
        groups = (self.groups[bucket] for run in runs for bucket in self.buckets(run))
        return [each for each in groups if each.term > terms.get(each.bucket, 0)]


def items_of(runs: Mapping[str, str], groups: Iterable[Group]) -> Iterator[list[Key]]:
    """Yield keys and values of descriptions and groups in portions that fit one transaction."""
    for run, text in runs.items():
        yield _description_parts(run, text)
    written = [(BUCKETS + each.bucket, _text(each)) for each in groups]
    for start in range(0, len(written), _KEYS_PER_TRANSACTION):
        yield [*written[start : start + _KEYS_PER_TRANSACTION]]


def _description_parts(run: str, text: str) -> list[Key]:
    """Return the keys and values of a run's description."""
    parts = [
        text[start : start + _DESCRIPTION_PART_CHARS]
        for start in range(0, max(1, len(text)), _DESCRIPTION_PART_CHARS)
    ]
    assert len(parts) <= _KEYS_PER_TRANSACTION, f"{len(text)} characters describe a run"
    return [(f"{RUNS}{run}/{number}", part) for number, part in enumerate(parts)]


def _text(group: Group) -> str:
    """Return a group in its stored form."""
    return json.dumps(
        [*(group.bucket, group.term, group.primary, group.secondaries), group.learners, group.incarnation]
    )


def read_group(text: str) -> Group:
    """Return the group of a stored form."""
    bucket, term, primary, secondaries, learners, life = json.loads(text)
    return Group(bucket, term, primary, tuple(secondaries), tuple(learners), life)
