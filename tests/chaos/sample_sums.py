"""Judge of the contents of buckets: every counted sample once, and nothing else.

Knows: the ledger of the buckets' reports, acknowledged samples, sums of pushes. Does not know: terms, copies,
how changes travelled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

from tests.chaos.invariants import BrokenError, InvariantChecker
from tests.chaos.recorded_ledger import RecordedLedger
from tests.chaos.training import SAMPLES, Training

from cotswold.wire import Ranges
from cotswold.wire.ranges import difference, intersection, size, union

Rows = Sequence[Sequence[float]]
"""Numbers of a bucket's shards."""


class SampleSums:
    """InvariantChecker of a training's sums."""

    def __init__(self, training: Training, judge: InvariantChecker) -> None:
        self._training, self._judge = training, judge
        self._buckets = tuple(dict.fromkeys(each.server for each in training.shards))

    def check_bucket(self, bucket: str, vectors: Mapping[str, Rows], ledger: RecordedLedger) -> None:
        """Check that a bucket has exactly the samples of the ledger, each once, including samples that
        another bucket lost and that were repeated in another session. Raises BrokenError."""
        total = [0.0] * self._training.size
        for each in union(*(ranges for _, ranges in ledger.has[self._buckets.index(bucket)])):
            more = self._training.gradient(each, total)
            total = [one + other for one, other in zip(total, more, strict=True)]
        own = [each for each in self._training.shards if each.server == bucket]
        name = "velocity" if self._training.world.has_momentum else "weights"
        found = vectors.get(name, [[0.0] * (shard.stop - shard.start) for shard in own])
        expected = [[-each for each in total[shard.start : shard.stop]] for shard in own]
        if [list(each) for each in found] != expected:
            raise BrokenError(f"{bucket} has {found}, and the sum of what was acknowledged is {expected}")

    def check_acknowledged(self) -> None:
        """Check that all acknowledged samples are in the ledger. Raises BrokenError."""
        for number, bucket in enumerate(self._buckets):
            has: dict[int, list[Ranges]] = defaultdict(list)
            for session, ranges in self._training.ledger.has[number]:
                has[session].append(ranges)
            known: Mapping[int, Ranges] = {session: union(*some) for session, some in has.items()}
            for (session, update), samples in self._judge.acknowledged[bucket].items():
                if difference(samples, known.get(session, ())):
                    raise BrokenError(
                        f"{bucket}: update {update} of session {session} was acknowledged, and is not there"
                    )

    def check_named(self) -> None:
        """Check that events name each sample lost by servers, as often as it was lost, and no other.

        Raises BrokenError.
        """
        events = self._training.dispatcher.events
        named = Counter(_places(each.places for each in events if each.kind == "samples_lost"))
        lost = Counter(_places(self._training.ledger.revoked_places))
        if named != lost:
            raise BrokenError(
                f"samples {sorted(lost - named)} are lost, and {sorted(named - lost)} are named"
            )

    def check_account(self) -> None:
        """Check that all counted samples are in every bucket, and that the ledger accounts for every sample.

        Raises BrokenError.
        """
        ledger, samples = self._training.ledger, SAMPLES * self._training.world.epochs
        total, everywhere = ledger.total, 0
        for session in {session for own in ledger.has for session, _ in own}:
            has = [union(*(ranges for each, ranges in own if each == session)) for own in ledger.has]
            everywhere += size(reduce(intersection, has))
        if everywhere != total.counted:
            raise BrokenError(f"{total.counted} samples count, and {everywhere} are in every bucket")
        known = total.counted + total.torn + total.refused
        # without writable disks all servers died at the end
        too_late = ledger.free if self._training.dispatcher.is_unsaved else 0
        if (known + total.lost, known + total.left_out + too_late) != (total.handed_out, samples):
            raise BrokenError(f"of {samples} samples this is known: {total}")


def _places(sets: Iterable[Ranges]) -> Iterator[int]:
    return (place for ranges in sets for start, stop in ranges for place in range(start, stop))
