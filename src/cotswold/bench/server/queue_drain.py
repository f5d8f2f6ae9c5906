"""Updates per second through a server's queue: admit, read, check for finite values, queue, apply, answer.

Knows: messages of one session, whole servers without processes. Does not know: bars, sockets.

An update covers all shards; the queue is drained at a fixed length. The counted bytes are the minimum: each
update is copied, and applied as in `applying`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import Action
from cotswold.bench.kernels.ceilings import ADDED, addition
from cotswold.bench.measure import interleaved, rounded
from cotswold.bench.row import COTSWOLD, Ceiling, Row, RowKey, timed
from cotswold.optim.server_rules import Rule
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.shards.core.shard_server import ShardServer
from cotswold.shards.runtime.arithmetic import NumpyArithmetic
from cotswold.wire import COORDINATOR, Applied, CoordinatorState, Shard, Update, Write

FLOAT_BYTES = 4
COLUMNS = 64
QUEUES = (1, 4, 16)
"""Queue lengths at which the queue is drained."""
UPDATES_PER_ACTION = 16
"""Updates per action."""
UNBOUNDED_QUEUE = QueueLimits(1 << 40, 1 << 40)


@dataclass(frozen=True)
class Draining:
    """A rule, and a server with ``count`` shards of ``shard`` float32 numbers."""

    rule: Rule
    shard: int
    count: int

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.rule.name}, {self.count} shards of {self.shard * FLOAT_BYTES >> 10} KB"

    def action(self, queue: int) -> Action:
        """Push 16 updates of all shards, and drain at this queue length."""
        arithmetic = NumpyArithmetic("float32")
        numbers = tuple(range(self.count))
        spans = [Shard(n, "a", n * self.shard, (n + 1) * self.shard, "w", n) for n in numbers]
        server = ShardServer("a", spans, arithmetic)
        settings = AsyncSettings("bench", "weights", self.rule, {"w": COLUMNS}, FLOAT_BYTES, UNBOUNDED_QUEUE)
        updates = UpdateServer(server, settings, arithmetic, arithmetic)
        first = tuple(np.ones(self.shard, np.float32).data.cast("B") for _ in numbers)
        server.receive(COORDINATOR, Write(1, settings.name, numbers, first))
        updates.receive(COORDINATOR, CoordinatorState(1, ((1, "one"),), ((1, 1e-6),), 0, 0))
        pushed = tuple(np.full(self.shard, 0.5, np.float32).data.cast("B") for _ in numbers)
        one = Update(
            *("bench", 1, 0, "gradient", numbers, (0,) * self.count, 1, 1.0, (), 0, (), pushed),
        )
        sent = [0]

        def act() -> None:
            answers = 0
            for _ in range(UPDATES_PER_ACTION):
                sent[0] += 1
                updates.receive("one", replace(one, number=sent[0]))
                if updates.queued == queue:
                    answers += sum(isinstance(each.message, Applied) for each in updates.drain())
            assert answers == UPDATES_PER_ACTION, "an update was not applied"

        return act


def measured(what: Draining, effort: Effort) -> list[Row]:
    """Measure every queue length."""
    elements = max(what.shard * what.count, 1 << 20)
    actions: dict[object, Action] = {queue: what.action(queue) for queue in QUEUES}
    samples = interleaved(actions | {ADDED: addition(elements)}, effort.rounds)
    limit = Ceiling(ADDED, 3 * FLOAT_BYTES * elements, samples[ADDED])
    rows = []
    for queue in QUEUES:
        taken = samples[queue]
        passes, keeps = UPDATES_PER_ACTION // queue, 2 * (1 + len(what.rule.state_names))
        work = FLOAT_BYTES * what.shard * what.count * (3 * UPDATES_PER_ACTION + keeps * passes)
        updates = rounded(UPDATES_PER_ACTION * what.count / sorted(taken)[len(taken) // 2])
        operation = f"{queue} at a time, {updates:.3g} shards/s"
        by = {COTSWOLD: taken, ADDED: [one * work / limit.work for one in limit.seconds]}
        place = RowKey("drain", what.name, operation)
        rows.append(timed(place, work, by, [limit.compare(work, taken, None)], "GB/s"))
    return rows
