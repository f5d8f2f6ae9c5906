"""Application of queued updates to a server's shards, each shard in one pass, and the replies.

Knows: versions of shards, the queue, bounds of staleness, the update rule. Does not know: the admission of
updates, pulls, coordinator states (`paramserver.core.update_server`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic

from cotswold.paramserver.core.settings import AsyncSettings
from cotswold.paramserver.core.shard_metadata import CheckpointState, ShardMetadata
from cotswold.paramserver.core.staleness import StalenessHistogram
from cotswold.paramserver.core.update_queue import QueuedUpdate, UpdateQueue
from cotswold.shards.core.admission import (
    Product,
    ReceivedFactors,
    ShardUpdates,
    UpdateArithmetic,
)
from cotswold.shards.core.shard_server import Arithmetic, ShardServer, Values
from cotswold.shards.core.versions import updates_between
from cotswold.wire import (
    Applied,
    Send,
    Update,
    UpdateRefused,
)

_Pushed = tuple[float, Values | ReceivedFactors[Values]]


class UpdateApplier(Generic[Values]):
    """The queue of a server's updates, and its application."""

    def __init__(
        self,
        server: ShardServer[Values],
        settings: AsyncSettings,
        arithmetic: Arithmetic[Values],
        updates: UpdateArithmetic[Values],
        versions: Mapping[int, int] | None = None,
        products: Mapping[str, Product[Values]] | None = None,
    ) -> None:
        self._server, self.settings = server, settings
        self._arithmetic, self._updates, self._products = arithmetic, updates, dict(products or {})
        self._unit_filters = settings.unit_norm & self._products.keys()
        """Tensors whose filters their products scale to norm 1; for other tensors the filters are rows."""
        self._unit_rows = settings.unit_norm - self._unit_filters
        self.metadata: ShardMetadata[Values] = ShardMetadata(
            settings.run, versions or dict.fromkeys(server.numbers, 0)
        )
        self._sessions = self.metadata.sessions
        self._sessions.reports_earlier = settings.may_repeat_samples
        self.staleness = {number: StalenessHistogram() for number in server.numbers}
        self.rejections: dict[str, int] = {}
        """Number of rejected updates, by the code of the reason."""
        self._queue: UpdateQueue[Values] = UpdateQueue(server.numbers, settings.room, settings.item_bytes)

    @property
    def versions(self) -> Mapping[int, int]:
        """Number of updates applied to each shard."""
        return self.metadata.versions

    @property
    def frozen(self) -> CheckpointState[Values] | None:
        """State at the newest checkpoint, until the coordinator has taken it."""
        return self.metadata.frozen

    @property
    def queued_bytes(self) -> int:
        """Bytes of queued updates."""
        return self._queue.bytes

    @property
    def queued(self) -> int:
        """Number of queued updates."""
        return len(self._queue)

    @property
    def replicas(self) -> dict[str, StalenessHistogram]:
        """Staleness of the updates of each live session, by its name."""
        return {session.name: session.staleness for _, session in self._sessions}

    def _refusal(
        self, update: Update, code: str, reason: str, *, is_retryable: bool = False
    ) -> UpdateRefused:
        self.rejections[code] = self.rejections.get(code, 0) + 1
        return UpdateRefused(update.session, self._server.name, update.number, reason, is_retryable, code)

    @property
    def _before_checkpoint(self) -> list[QueuedUpdate[Values]]:
        """Queued updates that are not behind the marker of a checkpoint that is not frozen."""
        return self._queue.before_checkpoint(self.metadata.checkpoint)

    def _applied(self, update: Update) -> Applied:
        versions = tuple(self.versions[number] for number in update.shards)
        return Applied(
            update.session, self._server.name, update.number, update.shards, versions, self.queued_bytes
        )

    def drain(self) -> list[Send]:
        """Apply the queue, each shard in one pass, and reply. Call it when no messages are waiting."""
        is_crowded, self._queue.is_crowded = self._queue.is_crowded, False
        queue = self._before_checkpoint
        if self.settings.staleness.policy == "wait":
            queue = sorted(queue, key=lambda each: -max(self._staleness(each.update)))
            queue = queue if is_crowded else self._within_staleness_bound(queue)
        return self._apply(queue)

    def _within_staleness_bound(self, queue: Sequence[QueuedUpdate[Values]]) -> list[QueuedUpdate[Values]]:
        """Return the updates that can be applied in order without making another session's computation too
        stale."""
        found: list[QueuedUpdate[Values]] = []
        versions = dict(self.versions)
        for each in queue:
            if next(self._sessions_made_stale(each, versions), None) is None:
                found.append(each)
                for number in each.update.shards:
                    versions[number] += 1
        return found

    def _sessions_made_stale(
        self, waiting: QueuedUpdate[Values], versions: Mapping[int, int]
    ) -> Iterator[int]:
        """Iterate over the sessions whose computation the update would make too stale."""
        policy = self.settings.staleness
        if policy.policy != "wait":
            return
        for key, session in self._sessions:
            if key != waiting.session:
                bases = session.base_versions
                shards = [number for number in waiting.update.shards if number in bases]
                if any(
                    updates_between(versions[number] + 1, bases[number]) > policy.bound for number in shards
                ):
                    yield key

    def _apply(self, ready: Sequence[QueuedUpdate[Values]]) -> list[Send]:
        """Apply these updates in order, and remove them from the queue."""
        if not ready:
            return []
        self._queue.remove(ready)
        pushes: dict[int, list[_Pushed[Values]]] = defaultdict(list)
        for each in ready:
            self._add_to_passes(each, pushes)
        weights = self._vector(self.settings.name)
        kept = [self._vector(name) for name in self.settings.rule.state_names]
        passes: list[ShardUpdates[Values]] = []
        for place, shard in enumerate(self._server.shards):
            some = pushes.get(shard.number)
            if some is not None:
                columns = self.settings.columns[shard.tensor]
                is_unit = shard.tensor in self._unit_rows
                passes.append(
                    ShardUpdates(weights[place], [one[place] for one in kept], some, columns, is_unit)
                )
        self._updates.apply(self.settings.rule, passes)
        for place, shard in enumerate(self._server.shards if self._unit_filters else ()):
            if shard.tensor in self._unit_filters and shard.number in pushes:
                self._products[shard.tensor].scale_to_norm_1(weights[place])
        return [send for each in ready for send in self._answered(each)]

    def _add_to_passes(
        self, waiting: QueuedUpdate[Values], pushes: Mapping[int, list[_Pushed[Values]]]
    ) -> None:
        """Add an update to the pass of each of its shards, or drop it."""
        update = waiting.update
        stale = self._staleness(update)
        scales = [self.settings.staleness.scale(each) for each in stale]
        waiting.is_dropped = 0.0 in scales
        if waiting.is_dropped:
            return
        session = self._sessions.of(waiting.session)
        whole = waiting.rate * update.scale
        for number, each, scale, values in zip(update.shards, stale, scales, waiting.values, strict=True):
            pushes[number].append((whole * scale, values))
            self.staleness[number].add(each)
            self.metadata.applied(number)
        for each, times in Counter(stale).items():
            session.staleness.add(each, times)

    def _staleness(self, update: Update) -> list[int]:
        """Return the staleness of an update for each of its shards."""
        pairs = zip(update.shards, update.versions, strict=True)
        return [updates_between(self.versions[number], version) for number, version in pairs]

    def _answered(self, waiting: QueuedUpdate[Values]) -> list[Send]:
        update = waiting.update
        session = self._sessions.of(waiting.session)
        answer: Applied | UpdateRefused
        if waiting.is_dropped:
            bound = self.settings.staleness.bound
            reason = f"stale: more than {bound} updates were applied before it"
            answer = self._refusal(update, "stale", reason)
            session.record_refusal(update.samples, answer)
        else:
            answer = self._applied(update)
            session.record_applied(update.samples, answer)
        return [Send(session.name, answer)] if waiting.session in self._sessions.live else []

    @property
    def _weights(self) -> Mapping[int, Values]:
        """Weights by shard."""
        return dict(zip(self._server.numbers, self._vector(self.settings.name), strict=True))

    def _vector(self, name: str) -> list[Values]:
        """Return a vector's shards; state vectors of the rule begin as zeros."""
        vectors = self._server.vectors
        if name not in vectors:
            assert name in self.settings.rule.state_names, (
                f"vector {name!r} is missing: write it before updates arrive"
            )
            vectors[name] = [
                self._arithmetic.zeros(shard.stop - shard.start) for shard in self._server.shards
            ]
        return vectors[name]
