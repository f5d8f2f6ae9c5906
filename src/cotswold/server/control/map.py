"""The map: who has copies of which bucket, as it is written down and as it is to be.

Knows: groups by their buckets, what servers must know of each run, what is on its way to the state. Does not
know: who leads, why a group is another one, where the state is kept.

    a group         what happens                                   next
    to be put       the transaction before it is answered          on its way
    on its way      done                                           it counts
    on its way      not done, or nobody knows                      forgotten: who leads reads all again
    it counts       another of the next term is to be put          it counts, until that one does

Keys: ``bucket/NAME`` for a group, ``run/NAME/NUMBER`` for a part of what is said of a run, for a value may
have 64 KiB and no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cotswold.server.control.leading import Transact
from cotswold.server.messages import Group

_BUCKET, _RUN = "bucket/", "run/"
_TOGETHER = 60
"""Keys in one transaction, of which etcd takes 128 operations."""
_PART = 10_000
"""Letters in one value, which may have up to four bytes each."""

Key = tuple[str, str | None]


class Map:
    """That of a leader."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        """As they are written down."""
        self.runs: dict[str, str] = {}
        """What servers must know of each run; as it is written down."""
        self._next: dict[str, Group] = {}
        """Groups that are to be written down, and are not on their way."""
        self._writing: dict[str, Group] = {}
        self._told: dict[str, str] = {}
        """Runs of which something is to be written down, before any group is."""
        self._telling: dict[str, str] = {}

    def load(self, items: Mapping[str, str]) -> None:
        """What is written down is this."""
        parts: dict[str, list[tuple[int, str]]] = {}
        for key, text in items.items():
            if key.startswith(_BUCKET):
                group = read_group(text)
                self.groups[group.bucket] = group
            elif key.startswith(_RUN):
                run, _, number = key.removeprefix(_RUN).rpartition("/")
                parts.setdefault(run, []).append((int(number), text))
        self.runs = {run: "".join(text for _, text in sorted(some)) for run, some in parts.items()}

    @property
    def moving(self) -> set[str]:
        """Buckets of which a group is to be written down, or on its way."""
        return {*self._next, *self._writing}

    @property
    def is_asking(self) -> bool:
        """Whether something is on its way."""
        return bool(self._writing or self._telling)

    def is_known(self, bucket: str) -> bool:
        """Whether there is a group, or is to be one."""
        return bucket in self.groups or bucket in self._next or bucket in self._writing

    def is_moving(self, bucket: str) -> bool:
        """Whether another group is to be written down, or on its way."""
        return bucket in self._next or bucket in self._writing

    def describe(self, run: str, text: str) -> None:
        """Servers must know this of a run."""
        if run not in self.runs and run not in self._telling:
            self._told[run] = text

    def put(self, group: Group) -> None:
        """A group is to be written down, once the one before is."""
        known = self.groups.get(group.bucket)
        assert group.term == (1 if known is None else known.term + 1), f"{group} follows {known}"
        self._next[group.bucket] = group

    def call_back(self, bucket: str) -> None:
        """A group that is not on its way is not to be written down any more."""
        self._next.pop(bucket, None)

    # --- the state ---

    def transaction(self, leads: Key) -> Transact | None:
        """What is to be put next, if ``leads`` is so; None for nothing."""
        assert not self.is_asking, "one transaction at a time"
        if self._told:
            run, text = next(iter(self._told.items()))
            self._telling = {run: self._told.pop(run)}
            parts = [text[start : start + _PART] for start in range(0, max(1, len(text)), _PART)]
            assert len(parts) <= _TOGETHER, f"{len(text)} letters say what a run is"
            put = tuple((f"{_RUN}{run}/{number}", part) for number, part in enumerate(parts))
            return Transact((leads, *((key, None) for key, _ in put)), put)
        if self._next:
            names = list(self._next)[:_TOGETHER]
            self._writing = {name: self._next.pop(name) for name in names}
            before = [(name, self.groups.get(name)) for name in names]
            compare = tuple((_BUCKET + name, None if old is None else _text(old)) for name, old in before)
            put = tuple((_BUCKET + name, _text(group)) for name, group in self._writing.items())
            return Transact((leads, *compare), put)
        return None

    def done(self) -> list[tuple[Group | None, Group]]:
        """What was on its way is written down: groups that were, and that are."""
        self.runs |= self._telling
        found = [(self.groups.get(name), group) for name, group in self._writing.items()]
        self.groups |= self._writing
        self._writing, self._telling = {}, {}
        return found

    def in_doubt(self) -> None:
        """What was on its way is written down or not; it is read again before anything is built on either."""
        self._writing, self._telling = {}, {}

    def newer(self, terms: Mapping[str, int]) -> list[Group]:
        """Groups of newer terms than these."""
        return [each for each in self.groups.values() if each.term > terms.get(each.bucket, 0)]


def _text(group: Group) -> str:
    """A group as it is written down."""
    return json.dumps(
        [*(group.bucket, group.term, group.primary, group.secondaries), group.learners, group.life]
    )


def read_group(text: str) -> Group:
    """A group as it was written down."""
    bucket, term, primary, secondaries, learners, life = json.loads(text)
    return Group(bucket, term, primary, tuple(secondaries), tuple(learners), life)
