"""The contents of a bucket replica, and its changes since an index.

Knows: shards, metadata, the index of the last change of each. Does not know: other replicas, terms.

There is no log. Every shard, session and coordinator state that changes at index i is marked with i. A
follower that is complete up to a lower index receives the whole of everything with a later mark: of a shard
its numbers, not what was added to them. So a change may be late, lost or repeated; several changes fold into
one; every replica has the primary's bits on any processor; and a secondary does no arithmetic.

A secondary first uses numbers in the memory of the message that brought them, since most are soon replaced.
What stays longer is copied (`release_borrowed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from cotswold.paramserver.core.shard_metadata import CheckpointState
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.replication.replica.saved_bucket import SavedBucket
from cotswold.shards.core.shard_server import Arithmetic, ShardServer, Values
from cotswold.shards.core.versions import is_version
from cotswold.wire import (
    COORDINATOR,
    BucketChange,
    FrozenState,
    Prepare,
    Pull,
    Pulled,
    PulledNewer,
    Send,
    ToUpdates,
    Write,
    WriteAck,
)

_MAX_BORROWED_BYTES = 1 << 19
"""Maximum numbers of a bucket, over all vectors, to use in message memory; larger buckets copy at once, as
message memory is bounded."""


@dataclass(frozen=True)
class Delta:
    """A change with the numbers of its shards: fields of `Prepare`."""

    change: BucketChange
    names: tuple[str, ...]
    buffers: tuple[object, ...]


def known_sessions(change: BucketChange) -> set[int]:
    """Return the sessions that a replica knows after a change."""
    return {*change.live, *change.ended, *change.ended_since_checkpoint, *change.ended_earlier}


class BucketState(Generic[Values]):
    """Contents of one replica."""

    def __init__(
        self, server: ShardServer[Values], updates: UpdateServer[Values], arithmetic: Arithmetic[Values]
    ) -> None:
        self._server, self._updates, self._arithmetic = server, updates, arithmetic
        self.index = 0
        """Index of the last change."""
        self._shards = dict.fromkeys(server.numbers, 0)
        """Index of the last change of each shard; the same for each session below."""
        self._sessions: dict[int, int] = {}
        self._state_number = self._frozen = 0
        self._froze_with_change = False
        """True if the state was frozen exactly at that index, not at one that was folded into it."""
        self._is_borrowed = False
        """True if the frozen state shares numbers that updates would change."""
        self._position = {number: place for place, number in enumerate(server.numbers)}
        """Position of each shard among those of a vector."""
        self._sizes = [shard.stop - shard.start for shard in server.shards]
        self._size = sum(self._sizes)
        self._borrowed, self._borrowed_long = set[int](), set[int]()
        """Positions of shards with numbers in message memory: those that arrived since the last
        `release_borrowed`, and those from before."""
        self._shared_buffers: dict[tuple[str, int], tuple[int, object]] = {}
        """Copies of numbers for pending replies, by vector and shard, each with its index."""
        updates.metadata.sessions.reports_earlier = True

    @property
    def updates(self) -> UpdateServer[Values]:
        """The update server whose contents these are."""
        return self._updates

    @property
    def vectors(self) -> dict[str, list[Values]]:
        """Arrays of each vector, by name, one per shard."""
        return self._server.vectors

    @property
    def versions(self) -> tuple[tuple[int, int], ...]:
        """(number, version) of each shard."""
        return tuple(self._updates.metadata.versions.items())

    # --- primary ---

    def receive(self, sender: str, message: ToUpdates | Pull | Write) -> list[Send]:
        """Process a message; the replies may be sent once all replicas have the state they were made from."""
        if isinstance(message, Pull):
            return self._server.receive(sender, message)
        if not isinstance(message, Write):
            return self._updates.receive(sender, message)
        if sender != COORDINATOR:
            return []
        if (
            self._updates.metadata.coordinator_state.number and message.name in self._server.vectors
        ):  # a late repetition
            return [Send(sender, WriteAck(message.number, self._server.name))]
        sends, vectors = self._server.receive(sender, message), self._server.vectors
        if message.name in vectors:
            vectors[message.name] = self._arithmetic.contiguous(vectors[message.name])
        self._updates.metadata.mark_written(self._server.numbers)
        return sends

    def snapshot_reply(self, send: Send) -> Send:
        """Return the reply with a copy of the shards' current numbers; replies at one index share it."""
        message = send.message
        if not isinstance(message, PulledNewer | Pulled):
            return send
        name = message.name if isinstance(message, Pulled) else self._updates.settings.name
        shared = [
            self._share_buffer((name, number), buffer)
            for number, buffer in zip(message.shards, message.buffers, strict=True)
        ]
        return Send(send.to, replace(message, buffers=tuple(shared)))

    def _share_buffer(self, key: tuple[str, int], buffer: object) -> object:
        now, known = self._shards[key[1]], self._shared_buffers.get(key)
        if known is None or known[0] != now:
            values = self._arithmetic.read(buffer, self._sizes[self._position[key[1]]])
            known = self._shared_buffers[key] = now, self._arithmetic.write(values)
        return known[1]

    def drop_shared(self) -> None:
        """Drop the copies for replies: none waits."""
        self._shared_buffers.clear()

    def has_room(self, answers: Iterable[Send], copies: int) -> bool:
        """True if the copies in these replies are smaller than ``copies`` times the weights."""
        sizes = {
            id(buffer): self._sizes[self._position[number]]
            for message in (each.message for each in answers)
            if isinstance(message, PulledNewer | Pulled)
            for number, buffer in zip(message.shards, message.buffers, strict=True)
        }
        return sum(sizes.values()) < copies * self._size

    def bump_index(self) -> bool:
        """Start a new index if anything changed; False otherwise."""
        books = self._updates.metadata
        if not books.changed:
            return False
        self.index += 1
        changed = books.take_changed()
        self._shards.update(dict.fromkeys(changed.shards, self.index))
        self._sessions.update(dict.fromkeys(changed.sessions, self.index))
        if changed.coordinator_state:
            self._state_number = self.index
        if changed.frozen:
            self._frozen, self._froze_with_change = self.index, True
        return True

    def changes_since(self, index: int) -> Delta:
        """Return the changes since an index; everything since -1."""
        books = self._updates.metadata
        shards = tuple(number for number, newest in self._shards.items() if newest > index)
        sessions = [number for number, newest in self._sessions.items() if newest > index]
        vectors = self._server.vectors
        names, write = tuple(vectors), self._arithmetic.write_all
        places = [self._position[number] for number in shards]
        buffers = [each for name in names for each in write([vectors[name][place] for place in places])]
        frozen = None
        if books.frozen is not None and self._frozen > index:
            is_now = self._froze_with_change and self._frozen == self.index
            frozen = FrozenState(books.checkpoint, books.frozen.versions, books.frozen.samples, is_now)
            if not is_now:
                held = books.frozen.vectors
                buffers += [each for name in names for each in write(held.get(name) or self._zeros)]
        return Delta(self._change(index, shards, sessions, frozen), names, tuple(buffers))

    @property
    def _zeros(self) -> list[Values]:
        """Values of a vector that was created after the state was frozen."""
        return list(map(self._arithmetic.zeros, self._sizes))

    def _change(
        self,
        after: int,
        shards: Sequence[int],
        sessions: Sequence[int],
        frozen: FrozenState | None = None,
    ) -> BucketChange:
        """Return the metadata changes since an index, with these shards and sessions."""
        books = self._updates.metadata
        of = books.sessions
        return BucketChange(
            tuple(shards),
            tuple(books.versions[number] for number in shards),
            of.states(sessions),
            tuple(of.live),
            tuple(of.ended),
            of.ended_since_checkpoint,
            of.ended_earlier,
            books.void_sessions,
            books.restored,
            books.coordinator_state if self._state_number > after else None,
            frozen,
            books.checkpoint,
        )

    # --- disk ---

    def save(self, after: int) -> tuple[BucketChange, dict[tuple[str, int], object]]:
        """Return all metadata, and copies of the numbers of shards that changed since an index. A frozen
        state is omitted: the coordinator requests a lost one again."""
        write, combine = self._arithmetic.write, self._arithmetic.combine
        numbers = {
            key: write(combine([(1.0, values)], None)) for key, values in self._different(after).items()
        }
        everything = tuple(self._shards), tuple(self._sessions)
        return self._change(-1, *everything), numbers

    def unsaved(self, after: int) -> list[object]:
        """Return the buffers, in memory, of the shards that changed since an index."""
        return [self._arithmetic.write(values) for values in self._different(after).values()]

    def _different(self, after: int) -> dict[tuple[str, int], Values]:
        shards = [number for number, index in self._shards.items() if index > after]
        return {
            (name, number): rows[self._position[number]]
            for name, rows in self._server.vectors.items()
            for number in shards
        }

    def can_load(self, saved: SavedBucket) -> bool:
        """True if the saved data have the shards of this bucket."""
        return set(saved.change.shards) == set(self._server.numbers)

    def revive(self, saved: SavedBucket, incarnation: int) -> None:
        """Begin another incarnation with the data of a disk."""
        zeros, numbers = self._arithmetic.zeros, saved.numbers
        places = [(name, number) for name in saved.vectors for number in saved.change.shards]
        buffers = [  # missing buffers have always been zero
            numbers[each]
            if each in numbers
            else self._arithmetic.write(zeros(self._sizes[self._position[each[1]]]))
            for each in places
        ]
        self.install(
            Prepare(
                *(saved.bucket, saved.term, -1, saved.index, saved.index),
                *(saved.change, saved.vectors, tuple(buffers)),
            )
        )
        self._copy_all()
        self._updates.metadata.mark_restored(incarnation - saved.incarnation)

    # --- secondary ---

    def can_apply(self, prepare: Prepare, base: BucketChange | None) -> bool:
        """True if a change can be applied after ``base``: its shards and sessions are known and its
        numbers have their lengths. A correct primary sends no other."""
        change = prepare.change
        assert change is not None, "an installed change is not empty"
        sizes = {shard.number: shard.stop - shard.start for shard in self._server.shards}
        shards = change.shards
        if not sizes.keys() >= set(shards) or len(set(shards)) < len(shards):
            return False
        expected = [[sizes[number] for number in shards]] * len(prepare.names)
        frozen = change.frozen
        if frozen is not None and not frozen.is_current:
            expected += [[*sizes.values()]] * len(prepare.names)
        buffers, fit_all = iter(prepare.buffers), self._arithmetic.fit_all
        are_fit = all(fit_all(buffers, each) for each in expected) and not [*buffers]
        if frozen is not None and len(frozen.versions) != len(sizes):
            return False
        sessions = self._updates.metadata.sessions.numbers if base is None else known_sessions(base)
        are_known = known_sessions(change) <= sessions | {each.number for each in change.sessions}
        are_versions = len(change.versions) == len(shards) and all(map(is_version, change.versions))
        return are_versions and are_fit and are_known

    def install(self, prepare: Prepare) -> None:
        """Apply a prepared change."""
        change, books = prepare.change, self._updates.metadata
        assert change is not None, "an installed change is not empty"
        places, sizes = [self._position[number] for number in change.shards], self._sizes
        own = [sizes[place] for place in places]
        read = self._arithmetic.read_all
        if len(prepare.names) * self._size <= _MAX_BORROWED_BYTES:
            read = self._arithmetic.borrow_all
            self._borrowed.update(places)
            self._borrowed_long.difference_update(places)
        vectors, buffers = self._server.vectors, iter(prepare.buffers)
        for name in prepare.names:
            # a new list: the frozen state may share the old one
            rows = (
                list(vectors[name]) if name in vectors else [self._arithmetic.zeros(each) for each in sizes]
            )
            for place, values in zip(places, read(buffers, own), strict=True):
                rows[place] = values
            vectors[name] = rows
        books.versions.update(zip(change.shards, change.versions, strict=True))
        books.sessions.install(change)
        if change.coordinator_state is not None:
            books.apply_state(change.coordinator_state)
        if change.frozen is not None:
            self._copy_all()
            held = dict(vectors)
            if not change.frozen.is_current:
                held = {name: self._arithmetic.read_all(buffers, sizes) for name in prepare.names}
            frozen = change.frozen
            books.freeze(CheckpointState(frozen.checkpoint, held, frozen.versions, frozen.samples))
            self._is_borrowed = frozen.is_current
        books.checkpoint, books.void_sessions, books.restored = (
            change.checkpoint,
            change.void_sessions,
            change.restored,
        )
        books.take_changed()
        self.index = prepare.index
        self._stamp_all(change)

    def _stamp_all(self, change: BucketChange) -> None:
        """Mark the change with its index, so that this replica can send it on if it becomes the primary."""
        self._shards.update(dict.fromkeys(change.shards, self.index))
        self._sessions.update({each.number: self.index for each in change.sessions})
        if change.coordinator_state is not None:
            self._state_number = self.index
        if change.frozen is not None:
            self._frozen, self._froze_with_change = self.index, change.frozen.is_current

    def release_borrowed(self) -> None:
        """Copy the numbers in message memory that nothing has replaced since the last call, and release
        that memory."""
        lent, self._borrowed_long, self._borrowed = self._borrowed_long, self._borrowed, set()
        self._copy(lent)

    def _copy_all(self) -> None:
        """Copy all numbers out of message memory."""
        self.release_borrowed()
        self.release_borrowed()

    def _copy(self, numbers: Iterable[int]) -> None:
        places, arithmetic = sorted(numbers), self._arithmetic
        sizes = [self._sizes[place] for place in places]
        for rows in self._server.vectors.values() if places else ():
            written = iter(arithmetic.write_all([rows[place] for place in places]))
            for place, values in zip(places, arithmetic.read_all(written, sizes), strict=True):
                rows[place] = values

    def make_writable(self) -> None:
        """Prepare for the role of the primary: updates change numbers in place."""
        self._copy_all()
        vectors = self._server.vectors
        vectors.update({name: self._arithmetic.contiguous(rows) for name, rows in vectors.items()})
        frozen = self._updates.metadata.frozen
        if frozen is None or not self._is_borrowed:
            return
        self._is_borrowed = False
        copy = self._arithmetic.combine
        held = {name: [copy([(1.0, each)], None) for each in rows] for name, rows in frozen.vectors.items()}
        self._updates.metadata.frozen = CheckpointState(
            frozen.checkpoint, held, frozen.versions, frozen.samples
        )
