"""The asynchronous half of a server at work: pulls are answered at once, updates when there is time.

Knows: when the queue is drained, how settings are said as plain values. Does not know: what is refused, what
waits (`paramserver.core.update_server`).

Messages that have come are heard first, so no pull waits behind updates; they are applied when nothing more
has come, or when many wait. What is pulled is sent before anything is applied, for it is the live memory. Who
does not read what it pulled gets no more, so that a slow reader takes a bounded part of this memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd
from cotswold.paramserver.core.settings import Asynchronous, Room
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.core.update_server import Updates
from cotswold.paramserver.runtime.server_metrics import Work
from cotswold.paramserver.runtime.traffic_log import Traffic
from cotswold.shards.core.shard_server import Server
from cotswold.shards.runtime.arithmetic import Array, NumpyArithmetic
from cotswold.shards.runtime.local_product import LocalProduct
from cotswold.transport.frames import places
from cotswold.wire import PullNewer, Send, ToUpdates, Update
from cotswold.wire.lifecycle import Count
from cotswold.wire.messenger import Post

_QUEUED = 64
"""With so many updates waiting they are applied, whatever else has come."""
_AHEAD, _AHEAD_LEAST_BYTES = 4, 1 << 20
"""A replica that has not read so many times all shards here, or so many bytes, gets no further answer."""
_RULES: Mapping[str, type[Rule]] = {each.name: each for each in (AddUpdate, Sgd, Momentum, Adagrad)}


class Draining:
    """The updates of a server's shards, between its messages."""

    def __init__(
        self,
        server: Server[Array],
        settings: Asynchronous,
        dtype: str,
        post: Post,
        versions: Sequence[int] = (),
        traffic: Traffic | None = None,
    ) -> None:
        """``versions``: of all shards of the run, by number, where it goes on; a number anew where it is cut
        otherwise. ``traffic`` has all that comes written down."""
        arithmetic = NumpyArithmetic(dtype)
        products = {tensor: LocalProduct.of(code) for tensor, code in settings.products.items()}
        begun = {each: versions[each] if each < len(versions) else 0 for each in server.numbers}
        self._updates = Updates(server, settings, arithmetic, arithmetic, begun, products=products)
        self._name, self._post, self._traffic = server.name, post, traffic
        self._work = Work()
        self._is_due = False
        """Whether something has come since the queue was drained: what is kept back waits for that."""
        _, whole = places([(one.stop - one.start) * settings.item_bytes for one in server.shards])
        # with one answer more the endpoint must not drop whoever has not read the others
        room = max(0, post.endpoint.most_waiting_bytes - whole)
        self._ahead_bytes = min(room, max(_AHEAD * whole, _AHEAD_LEAST_BYTES))

    @property
    def patience(self) -> float | None:
        """Seconds for which the next message may be awaited, before `drain`; None for ever."""
        return 0.0 if self._is_due else None

    def hear(self, sender: str, message: ToUpdates | Count) -> None:
        """Answer a message."""
        if isinstance(message, Count):
            name, refused = self._name, self._post.endpoint.refused
            self._post.send(sender, self._work.counts(name, [self._updates], refused))
            return
        if isinstance(message, PullNewer) and self._post.endpoint.waiting_bytes(sender) > self._ahead_bytes:
            return  # it has not read what it pulled before, and asks again
        if self._traffic is not None:
            self._traffic.note(self._updates.replica(sender, message), message)
        before = self._updates.taken
        with self._work:
            sends = self._updates.receive(sender, message)
        self._deliver(sends)
        if isinstance(message, Update) and self._updates.taken > before:
            self._work.took(sender, message, tuple(self._updates.replicas))
        self._is_due = self._updates.queued > 0
        if self._updates.queued >= _QUEUED:
            self.drain()

    def drain(self) -> None:
        """Apply what waits."""
        self._is_due = False
        with self._work:
            sends = self._updates.drain()
        self._deliver(sends)

    def _deliver(self, sends: Sequence[Send]) -> None:
        for each in sends:
            self._post.send(each.to, each.message)


def said(settings: Asynchronous) -> dict[str, object]:
    """Settings as plain values."""
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
        "deals": settings.deals,
    }


def asynchronous_of(values: Mapping[str, Any]) -> Asynchronous:
    """What `said` made plain values of."""
    rule = dict(values["rule"])
    return Asynchronous(
        values["run"],
        values["name"],
        _RULES[rule.pop("name")](**rule),
        values["columns"],
        values["item_bytes"],
        Room(**values["room"]),
        Staleness(**values["staleness"]),
        frozenset(values["unit_norm"]),
        SampleSchedule(**values["schedule"]),
        {tensor: tuple(code) for tensor, code in values["products"].items()},
        values.get("deals", False),
    )
