"""Message loop of a server's asynchronous half: pulls are answered at once, updates when no message is
waiting.

Knows: when to drain the queue, the encoding of settings as plain values. Does not know: rejections and the
queue (`paramserver.core.update_server`).

All received messages are handled first, so no pull waits behind updates. Updates are applied when no message
is waiting, or when many are queued. Pulled shards are sent before any update is applied, because they share
the live memory. A client that does not read its pulls gets no more, so a slow reader holds a bounded part of
this memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.paramserver.runtime.server_metrics import ServerMetrics
from cotswold.paramserver.runtime.traffic_log import TrafficLog
from cotswold.shards.core.shard_server import ShardServer
from cotswold.shards.runtime.arithmetic import Array, NumpyArithmetic
from cotswold.shards.runtime.local_product import LocalProduct
from cotswold.transport.frames import block_offsets
from cotswold.wire import PullNewer, Send, ToUpdates, Update
from cotswold.wire.lifecycle import CountersRequest
from cotswold.wire.messenger import Messenger

_QUEUED = 64
"""Number of queued updates at which they are applied even if messages are waiting."""
_AHEAD, _AHEAD_LEAST_BYTES = 4, 1 << 20
"""Limit of unread replies: a replica gets no further one beyond this multiple of all shards here, or this
number of bytes."""
_RULES: Mapping[str, type[Rule]] = {each.name: each for each in (AddUpdate, Sgd, Momentum, Adagrad)}


class UpdateLoop:
    """The updates of a server's shards, between its messages."""

    def __init__(
        self,
        server: ShardServer[Array],
        settings: AsyncSettings,
        dtype: str,
        messenger: Messenger,
        versions: Sequence[int] = (),
        traffic: TrafficLog | None = None,
    ) -> None:
        """``versions``: of all shards of a resumed run, by number; 0 for a shard that is new because the
        shards are split differently. ``traffic``: log of all received messages."""
        arithmetic = NumpyArithmetic(dtype)
        products = {tensor: LocalProduct.of(code) for tensor, code in settings.products.items()}
        begun = {each: versions[each] if each < len(versions) else 0 for each in server.numbers}
        self._updates = UpdateServer(server, settings, arithmetic, arithmetic, begun, products=products)
        self._name, self._messenger, self._traffic = server.name, messenger, traffic
        self._work = ServerMetrics()
        self._is_due = False
        """True if messages have arrived since the last drain; held-back updates wait for the next message."""
        _, whole = block_offsets([(one.stop - one.start) * settings.item_bytes for one in server.shards])
        # one more reply must not make the endpoint drop a client that has not read the others
        room = max(0, messenger.endpoint.max_unread_bytes - whole)
        self._ahead_bytes = min(room, max(_AHEAD * whole, _AHEAD_LEAST_BYTES))

    @property
    def timeout(self) -> float | None:
        """Seconds to wait for the next message before `drain`; None for no limit."""
        return 0.0 if self._is_due else None

    def receive(self, sender: str, message: ToUpdates | CountersRequest) -> None:
        """Handle a message."""
        if isinstance(message, CountersRequest):
            name, refused = self._name, self._messenger.endpoint.rejections
            self._messenger.send(sender, self._work.counts(name, [self._updates], refused))
            return
        if (
            isinstance(message, PullNewer)
            and self._messenger.endpoint.unread_bytes(sender) > self._ahead_bytes
        ):
            return  # it has not read its earlier pulls, and asks again
        if self._traffic is not None:
            self._traffic.note(self._updates.replica(sender, message), message)
        before = self._updates.accepted
        with self._work:
            sends = self._updates.receive(sender, message)
        self._deliver(sends)
        if isinstance(message, Update) and self._updates.accepted > before:
            self._work.count_update(sender, message, tuple(self._updates.replicas))
        self._is_due = self._updates.queued > 0
        if self._updates.queued >= _QUEUED:
            self.drain()

    def drain(self) -> None:
        """Apply the queue."""
        self._is_due = False
        with self._work:
            sends = self._updates.drain()
        self._deliver(sends)

    def _deliver(self, sends: Sequence[Send]) -> None:
        for each in sends:
            self._messenger.send(each.to, each.message)


def settings_as_dict(settings: AsyncSettings) -> dict[str, object]:
    """Return the settings as plain values."""
    return {
        "run": settings.run,
        "name": settings.name,
        "rule": {"name": settings.rule.name, **asdict(settings.rule)},
        "columns": dict(settings.columns),
        "item_bytes": settings.item_bytes,
        "room": asdict(settings.room),
        "staleness": asdict(settings.staleness),
        "unit_norm": sorted(settings.unit_norm),
        "schedule": asdict(settings.schedule),
        "products": dict(settings.products),
        "may_repeat_samples": settings.may_repeat_samples,
    }


def settings_from_dict(values: Mapping[str, Any]) -> AsyncSettings:
    """Return the settings from plain values; inverse of `settings_as_dict`."""
    rule = dict(values["rule"])
    return AsyncSettings(
        values["run"],
        values["name"],
        _RULES[rule.pop("name")](**rule),
        values["columns"],
        values["item_bytes"],
        QueueLimits(**values["room"]),
        Staleness(**values["staleness"]),
        frozenset(values["unit_norm"]),
        SampleSchedule(**values["schedule"]),
        {tensor: tuple(code) for tensor, code in values["products"].items()},
        values.get("may_repeat_samples", False),
    )
