"""The coordinator's and two replicas' side of a server that applies updates."""

from __future__ import annotations

from dataclasses import replace

from cotswold.optim.server_rules import Rule, Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.staleness import Policy, Staleness
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.shards.core.shard_server import ShardServer
from cotswold.simulate.protocols.lists import ListArithmetic, ListUpdates
from cotswold.wire import (
    COORDINATOR,
    Applied,
    CoordinatorState,
    Message,
    PulledNewer,
    PullNewer,
    Shard,
    ToUpdates,
    Update,
    UpdateRefused,
    Write,
)

SHARDS = [Shard(0, "a", 0, 4, "w", 0), Shard(1, "b", 4, 8, "w", 1), Shard(2, "a", 8, 10, "bias", 0)]
GRADIENT = Update("run", 1, 1, "gradient", (0, 2), (0, 0), 1, 1.0, ((0, 5),), 0, (), ((1.0,) * 4, (2.0,) * 2))
DELTA = replace(GRADIENT, kind="delta")


class Talk:
    """The coordinator's and two replicas' side."""

    def __init__(
        self,
        rule: Rule | None = None,
        *,
        room: QueueLimits | None = None,
        policy: Policy = "none",
        bound: int = 0,
        unit_norm: frozenset[str] = frozenset(),
        deals: bool = False,
    ) -> None:
        self.server = ShardServer("a", SHARDS, ListArithmetic())
        settings = AsyncSettings(
            *("run", "weights", rule or Sgd(), {"w": 2, "bias": 1}, 8),
            room=room or QueueLimits(1000, 1000),
            staleness=Staleness(policy, bound),
            unit_norm=unit_norm,
            may_repeat_samples=deals,
        )
        self.updates = UpdateServer(self.server, settings, ListArithmetic(), ListUpdates())
        self.server.receive(COORDINATOR, Write(1, "weights", (0, 2), ((0.0,) * 4, (0.0,) * 2)))
        self.order = CoordinatorState(1, ((1, "one"), (2, "two")), ((1, 0.5), (2, 0.25)), 0, 0)
        self.say(self.order)

    def say(self, message: ToUpdates, sender: str = COORDINATOR) -> list[Message]:
        return [send.message for send in self.updates.receive(sender, message)]

    def push(self, update: Update) -> list[Message]:
        return self.say(update, ("", "one", "two")[update.session])

    def drain(self) -> list[Message]:
        return [send.message for send in self.updates.drain()]

    def applied(self, update: Update) -> Applied:
        assert self.push(update) == []
        (answer,) = self.drain()
        assert isinstance(answer, Applied)
        return answer

    def refused(self, update: Update) -> UpdateRefused:
        (answer,) = self.push(update)
        assert isinstance(answer, UpdateRefused)
        return answer

    def give(self, **changed: object) -> list[Message]:
        self.order = replace(self.order, number=self.order.number + 1, **changed)  # type: ignore[arg-type]  # fields of Order
        return self.say(self.order)

    def pull(self, session: int, number: int = 1, versions: tuple[int, int] = (-1, -1)) -> PulledNewer:
        (answer,) = self.say(
            PullNewer("run", session, number, (0, 2), versions), ("anybody", "one", "two")[session]
        )
        assert isinstance(answer, PulledNewer)
        return answer

    @property
    def is_frozen(self) -> bool:
        return self.updates.frozen is not None

    @property
    def weights(self) -> list[float]:
        return [each for part in self.server.vectors["weights"] for each in part]


def marker(session: int, number: int) -> Update:
    return Update("run", session, number, "gradient", (), (), 1, 1.0, (), 1, (), ())
