"""What must be true of buckets, judged by what servers and clients say and by nothing that they know.

Knows: every message between a server and a client, who sent it and when; every group as it is written down.
Does not know: how anybody decided, what a server has.

    what is said                       what must be so
    anything of a bucket in a term     who says it is the primary that is written down for it; nobody has said
                                       anything in a later one
    Applied                            an update has one answer, whoever gives it and however often
    the same, for the first time       not in a term of too few members by who has led since it was pushed: it
                                       was not with enough before
    UpdateRefused, for ever            it is of a session that is over: nothing is wrong with any update
    PulledNewer                        versions never go back; the numbers of a version are always the same
    Ordered                            orders never go back
    a group is written down            it is of the next term; a bucket is revived where no member lives;
                                       where nobody is cut off or stopped, and no member is dead, there are as
                                       many as there must be
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
    """Something that must be true is not."""


class InvariantChecker:
    """One that has heard all since the beginning."""

    def __init__(self, least: int = 1, *, is_calm: bool = False) -> None:
        """``least``: members that a bucket must have; ``is_calm``: whether whoever lives is heard."""
        self._least, self._is_calm = least, is_calm
        self.said = 0
        """How many messages it has judged."""
        self.revivals = 0
        """How often a bucket has begun another life."""
        self.acknowledged: dict[str, dict[tuple[int, int], Ranges]] = defaultdict(dict)
        """By bucket: samples of updates that were, by session and number; of this life of the bucket."""
        self._pushed: dict[tuple[str, int, int], Ranges] = {}
        self._written: dict[str, Group] = {}
        self._primaries: dict[tuple[str, int], str] = {}
        """By bucket and term."""
        self._small: set[tuple[str, int]] = set()
        """Buckets and terms in which they have too few members."""
        self._pushed_in: dict[tuple[str, int, int], int] = {}
        """The term that was written down when an update was first pushed."""
        self._terms: dict[str, int] = {}
        self.versions: dict[tuple[str, int], int] = defaultdict(int)
        """The newest that were said, by bucket and shard."""
        self.numbers: dict[tuple[str, int, int], object] = {}
        """Of each version."""
        self._applied: dict[tuple[str, int, int], Applied] = {}
        self._orders: dict[str, int] = defaultdict(int)

    # --- what clients and servers say ---

    def hear_client(self, sends: Sequence[Send]) -> None:
        """A client says these to buckets."""
        for each in sends:
            if isinstance(each.message, Update) and each.message.samples:
                update = each.message
                key = each.to, update.session, update.number
                self._pushed[key] = update.samples
                if each.to in self._written:
                    self._pushed_in.setdefault(key, self._written[each.to].term)

    def hear(self, server: str, sends: Sequence[Send]) -> None:
        """A server says these now; whoever hears it later hears it as said now. Raises BrokenError."""
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
        for shard, version in zip(message.shards, message.versions, strict=True):  # of long ago, perhaps
            self.versions[bucket, shard] = max(version, self.versions[bucket, shard])

    def _has_led(self, bucket: str, since: int, term: int) -> bool:
        """Whether a term and those before it, since one, are of the same primary."""
        return len({self._primaries[bucket, each] for each in range(since, term + 1)}) == 1

    def _refused(self, bucket: str, server: str, message: UpdateRefused) -> None:
        """Who sends number n was answered n - 1, which nobody has forgotten; likewise all else."""
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

    # --- what is written down ---

    def put(self, key: str, old: str | None, new: str | None, living: Collection[str]) -> None:
        """A key of the controllers' state is another now; ``living``: servers. Raises BrokenError."""
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
