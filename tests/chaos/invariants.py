"""Judge of buckets: checks the messages of servers and clients, without their internal state.

Knows: every message between a server and a client, with sender and time; every stored group. Does not know:
how decisions were made, the contents of a server.

    message                            requirement
    any message of a bucket in a term  the sender is the stored primary; no server has sent a message in a
                                       later term
    Applied                            all replies to an update are equal, from any server
    first Applied of an update         if the sender has led since the push, its term does not have too few
                                       members: too few members had the update before
    UpdateRefused, finally             the session is over: every update is valid
    PulledNewer                        versions never go back; the numbers of a version are always the same
    Ordered                            orders never go back
    a stored group                     it has the next term; a bucket is revived only if no member lives;
                                       without cuts, stops and dead members it has the required number of
                                       members
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from cotswold.replication.controller.bucket_map import read_group
from cotswold.wire import (
    Applied,
    BucketEnvelope,
    CoordinatorStateAck,
    Group,
    PulledNewer,
    Ranges,
    Send,
    Update,
    UpdateRefused,
)


class BrokenError(AssertionError):
    """A violated requirement."""


class InvariantChecker:
    """A judge that receives all messages from the start."""

    def __init__(self, least: int = 1, *, is_calm: bool = False) -> None:
        """``least``: members that a bucket must have; ``is_calm``: True if all live processes are
        reachable.
        """
        self._least, self._is_calm = least, is_calm
        self.said = 0
        """Number of judged messages."""
        self.revivals = 0
        """Number of revived buckets."""
        self.acknowledged: dict[str, dict[tuple[int, int], Ranges]] = defaultdict(dict)
        """Samples of acknowledged updates in the current life of the bucket, by bucket, session and number.
        """
        self._pushed: dict[tuple[str, int, int], Ranges] = {}
        self._written: dict[str, Group] = {}
        self._primaries: dict[tuple[str, int], str] = {}
        """Primaries by bucket and term."""
        self._small: set[tuple[str, int]] = set()
        """Pairs of bucket and term with too few members."""
        self._pushed_in: dict[tuple[str, int, int], int] = {}
        """Stored term at the first push of an update."""
        self._terms: dict[str, int] = {}
        self.versions: dict[tuple[str, int], int] = defaultdict(int)
        """Newest sent versions, by bucket and shard."""
        self.numbers: dict[tuple[str, int, int], object] = {}
        """Numbers of each version."""
        self._applied: dict[tuple[str, int, int], Applied] = {}
        self._orders: dict[str, int] = defaultdict(int)

    # --- messages of clients and servers ---

    def hear_client(self, sends: Sequence[Send]) -> None:
        """Handle messages of a client to buckets."""
        for each in sends:
            if isinstance(each.message, Update) and each.message.samples:
                update = each.message
                key = each.to, update.session, update.number
                self._pushed[key] = update.samples
                if each.to in self._written:
                    self._pushed_in.setdefault(key, self._written[each.to].term)

    def hear(self, server: str, sends: Sequence[Send]) -> None:
        """Judge messages of a server at the time of sending; later receivers see them as sent now.

        Raises BrokenError.
        """
        for each in sends:
            if isinstance(each.message, BucketEnvelope):
                self._judge(server, each.message)

    def _judge(self, server: str, said: BucketEnvelope) -> None:
        self.said += 1
        bucket, term = said.bucket, said.term
        primary = self._primaries.get((bucket, term))
        if primary != server:
            raise BrokenError(
                f"{bucket}: {server} acts in term {term}, whose primary is {primary or 'nobody'}"
            )
        if term < self._terms.get(bucket, 0):
            raise BrokenError(
                f"{bucket}: {server} acts in term {term}, after somebody acted in term {self._terms[bucket]}"
            )
        self._terms[bucket] = term
        match said.message:
            case Applied() as message:
                self._acknowledged(bucket, term, message)
            case UpdateRefused() as message if not message.is_retryable:
                self._refused(bucket, server, message)
            case PulledNewer() as message:
                self._pulled(bucket, server, message)
            case CoordinatorStateAck() as message:
                if message.number < self._orders[bucket]:
                    raise BrokenError(f"{bucket}: order {message.number} after {self._orders[bucket]}")
                self._orders[bucket] = message.number
            case _:
                pass

    def _acknowledged(self, bucket: str, term: int, message: Applied) -> None:
        key = bucket, message.session, message.number
        before = self._applied.get(key)
        if before is not None:
            if replace(message, queued_bytes=before.queued_bytes) != before:
                raise BrokenError(
                    f"{bucket}: update {message.number} is answered by {message} after {before}"
                )
            return
        self._applied[key] = message
        since = self._pushed_in.get(key)
        if since is not None and (bucket, term) in self._small and self._has_led(bucket, since, term):
            raise BrokenError(
                f"{bucket}: update {message.number} of session {message.session} is acknowledged in term "
                f"{term}, which has fewer than {self._least} members"
            )
        if key in self._pushed:
            self.acknowledged[bucket][key[1:]] = self._pushed[key]
        for shard, version in zip(message.shards, message.versions, strict=True):  # perhaps old
            self.versions[bucket, shard] = max(version, self.versions[bucket, shard])

    def _has_led(self, bucket: str, since: int, term: int) -> bool:
        """True if a term and those before it, since a given one, have the same primary."""
        return len({self._primaries[bucket, each] for each in range(since, term + 1)}) == 1

    def _refused(self, bucket: str, server: str, message: UpdateRefused) -> None:
        """Check a refusal: a client that sends number n has the reply to n - 1, so other refusals are
        mistakes."""
        if not message.reason.startswith("session"):
            raise BrokenError(
                f"{bucket}: {server} says of update {message.number} of session {message.session} that it "
                f"{message.reason}"
            )

    def _pulled(self, bucket: str, server: str, message: PulledNewer) -> None:
        for shard, version, buffer in zip(message.shards, message.versions, message.buffers, strict=True):
            newest = self.versions[bucket, shard]
            if version < newest:
                raise BrokenError(
                    f"{bucket}: {server} says version {version} of shard {shard}, after {newest} was said"
                )
            self.versions[bucket, shard] = version
            before = self.numbers.setdefault((bucket, shard, version), buffer)
            if before != buffer:
                raise BrokenError(
                    f"{bucket}: {server} says that shard {shard} is {buffer} in version {version}, which was "
                    f"{before}"
                )

    # --- the metadata store ---

    def put(self, key: str, old: str | None, new: str | None, living: Collection[str]) -> None:
        """Judge a changed key of the controllers' metadata; ``living`` are the live servers.

        Raises BrokenError.
        """
        if not key.startswith("bucket/") or new is None:
            return
        after = read_group(new)
        before = None if old is None else read_group(old)
        term = 0 if before is None else before.term
        if after.term != term + 1:
            raise BrokenError(f"{after.bucket}: term {after.term} is written down after term {term}")
        self._written[after.bucket] = after
        self._primaries[after.bucket, after.term] = after.primary
        if len(after.members) < self._least:
            self._small.add((after.bucket, after.term))
            were = () if before is None else before.members
            if self._is_calm and len(were) >= self._least and set(were) <= set(living):
                raise BrokenError(f"{after.bucket} is left with {after.members} of {were}, who live")
        if before is None or after.incarnation == before.incarnation:
            return
        self.revivals += 1
        self.acknowledged.pop(after.bucket, None)
        for name in before.members:
            if name in living:
                raise BrokenError(f"{after.bucket} is revived by {after.primary}, and {name} lives")
