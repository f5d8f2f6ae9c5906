"""What must be true of buckets, judged by what servers say and by nothing that they know.

Knows: every message that a server sent to a client, who sent it and when. Does not know: how anybody decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from cotswold.server.messages import Applied, OfBucket, Ordered, PulledNewer, Send


class BrokenError(AssertionError):
    """Something that must be true is not."""


class Judge:
    """One that has heard all since the beginning."""

    def __init__(self) -> None:
        self.said = 0
        """How many messages it has judged."""
        self.most_seconds = 0.0
        """The longest for which a bucket said nothing, to somebody who asked."""
        self._terms: dict[str, int] = {}
        self._speakers: dict[tuple[str, int], str] = {}
        self._versions: dict[tuple[str, int], int] = defaultdict(int)
        self._applied: dict[tuple[str, int, int], Applied] = {}
        self._orders: dict[str, int] = defaultdict(int)

    def hear(self, server: str, sends: Sequence[Send]) -> None:
        """A server says these now; whoever hears it later hears it as said now. Raises BrokenError."""
        for each in sends:
            if isinstance(each.message, OfBucket):
                self._judge(server, each.message)

    def _judge(self, server: str, said: OfBucket) -> None:
        self.said += 1
        bucket, term = said.bucket, said.term
        speaker = self._speakers.setdefault((bucket, term), server)
        if speaker != server:
            raise BrokenError(f"{bucket}: {speaker} and {server} both act in term {term}")
        if term < self._terms.get(bucket, 0):
            raise BrokenError(
                f"{bucket}: {server} acts in term {term}, after somebody acted in term {self._terms[bucket]}"
            )
        self._terms[bucket] = term
        match said.message:
            case Applied(session, _, number) as message if (bucket, session, number) in self._applied:
                before = self._applied[bucket, session, number]
                if replace(message, waiting=before.waiting) != before:
                    raise BrokenError(f"{bucket}: update {number} is answered by {message} after {before}")
            case Applied() as message:  # of long ago, perhaps, if nobody heard it then
                self._applied[bucket, message.session, message.number] = message
                for shard, version in zip(message.shards, message.versions, strict=True):
                    self._versions[bucket, shard] = max(version, self._versions[bucket, shard])
            case PulledNewer() as message:
                for shard, version in zip(message.shards, message.versions, strict=True):
                    if version < self._versions[bucket, shard]:
                        raise BrokenError(
                            f"{bucket}: {server} says version {version} of shard {shard}, after "
                            f"{self._versions[bucket, shard]} was said"
                        )
                    self._versions[bucket, shard] = version
            case Ordered() as message:
                if message.number < self._orders[bucket]:
                    raise BrokenError(f"{bucket}: order {message.number} after {self._orders[bucket]}")
                self._orders[bucket] = message.number
            case _:
                pass
