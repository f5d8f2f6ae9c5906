"""Updates sent as factors, of matrices and of other tensors; decay, and rates by samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import pytest

from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.shards.core.shard_server import ShardServer
from cotswold.simulate.protocols.lists import ListArithmetic, ListUpdates
from cotswold.wire import COORDINATOR, Applied, CoordinatorState, Shard, Update, UpdateRefused, Write

SHARDS = [Shard(0, "a", 0, 2, "bias", 0), Shard(1, "a", 2, 6, "w", 0), Shard(2, "a", 6, 10, "w", 1)]
FACTORS = Update(
    *("run", 1, 1, "factors", (0, 1, 2), (0, 0, 0), 1, 1.0, ((0, 4),), 0, (0, 1, 1)),
    buffers=((5.0, 5.0), (1.0, 2.0), (3.0, 4.0), (10.0, 1.0)),
)


@dataclass(frozen=True)
class Band:
    """A band: row r, column c is its error times activation r + c; activations start with the first row's."""

    start: int = 2

    def errors(self, first: int, stop: int) -> int:
        return stop - first

    def activations(self, first: int, stop: int) -> int:
        return stop - first + 1

    def gradient(
        self, errors: list[float], activations: list[float], rows: tuple[int, int], seen_by: tuple[int, int]
    ) -> list[float]:
        from_row = rows[0] - seen_by[0]
        return [
            error * activations[from_row + row + column]
            for row, error in enumerate(errors)
            for column in range(2)
        ]

    def scale_to_norm_1(self, weights: list[float]) -> None:
        weights[:] = [7.0] * len(weights)


class Talk:
    """A server with weights of 1, a rate of 0.5, and one replica."""

    def __init__(
        self,
        products: dict[str, Band] | None = None,
        schedule: SampleSchedule | None = None,
        unit_norm: frozenset[str] = frozenset(),
    ) -> None:
        self.server = ShardServer("a", SHARDS, ListArithmetic())
        settings = AsyncSettings(
            *("run", "x", Sgd(), {"w": 2, "bias": 1}, 8, QueueLimits(1000, 1000)),
            schedule=schedule or SampleSchedule(),
            unit_norm=unit_norm,
        )
        self.updates = UpdateServer(self.server, settings, ListArithmetic(), ListUpdates(), products=products)
        self.server.receive(COORDINATOR, Write(1, "x", (0, 1, 2), ((1.0,) * 2, (1.0,) * 4, (1.0,) * 4)))
        self.updates.receive(COORDINATOR, CoordinatorState(1, ((1, "one"),), ((1, 0.5),), 0, 0))

    def moved(self, update: Update) -> list[float]:
        """Return the decrease of the weights."""
        before = self.weights
        assert self.updates.receive("one", update) == []
        (sent,) = self.updates.drain()
        assert isinstance(sent.message, Applied)
        return [one - other for one, other in zip(before, self.weights, strict=True)]

    def refusal(self, update: Update) -> str:
        (sent,) = self.updates.receive("one", update)
        assert isinstance(sent.message, UpdateRefused)
        return sent.message.reason

    @property
    def weights(self) -> list[float]:
        return [each for part in self.server.vectors["x"] for each in part]


def test_shards_of_a_matrix_have_errors_of_their_own_and_share_activations() -> None:
    rows = [10.0, 1.0, 20.0, 2.0, 30.0, 3.0, 40.0, 4.0]
    assert Talk().moved(FACTORS) == [2.5, 2.5, *(0.5 * each for each in rows)]


def test_weights_decay_where_their_gradient_comes_as_factors_and_there_alone() -> None:
    rows = [10.0, 1.0, 20.0, 2.0, 30.0, 3.0, 40.0, 4.0]
    assert Talk().moved(replace(FACTORS, decay=0.25)) == [2.5, 2.5, *(0.5 * (each + 0.25) for each in rows)]


def test_a_tensor_that_is_no_matrix_has_a_product_of_its_own() -> None:
    seen = (1.0, 10.0, 100.0, 1000.0, 10000.0)
    update = replace(FACTORS, buffers=(*FACTORS.buffers[:3], seen))
    rows = [1.0, 10.0, 20.0, 200.0, 300.0, 3000.0, 4000.0, 40000.0]
    assert Talk({"w": Band()}).moved(update) == [2.5, 2.5, *(0.5 * each for each in rows)]
    alone = replace(
        FACTORS, shards=(2,), versions=(0,), examples=(1,), buffers=((3.0, 4.0), (100.0, 1000.0, 10000.0))
    )
    assert Talk({"w": Band()}).moved(alone) == [0.0] * 6 + [0.5 * each for each in rows[4:]]


def test_filters_of_such_a_tensor_are_scaled_by_it() -> None:
    talk = Talk({"w": Band()}, unit_norm=frozenset({"w"}))
    alone = replace(FACTORS, kind="gradient", shards=(2,), versions=(0,), examples=())
    talk.moved(replace(alone, buffers=((1.0,) * 4,)))
    assert talk.weights == [1.0] * 6 + [7.0] * 4


@pytest.mark.parametrize(
    ("products", "update", "kind"),
    [
        ({}, replace(FACTORS, examples=(0, 1, 2)), "length: factors of 'w' have different numbers"),
        ({}, replace(FACTORS, decay=inf), "finite: its decay must be finite, got inf"),
        ({"w": Band()}, FACTORS, "length:"),
        ({}, replace(FACTORS, buffers=(*FACTORS.buffers[:3], (10.0,))), "length:"),
    ],
)
def test_factors_that_are_none_are_refused_with_a_reason(
    products: dict[str, Band], update: Update, kind: str
) -> None:
    talk = Talk(products)
    assert talk.refusal(update).startswith(kind)
    assert talk.weights == [1.0] * 10


@pytest.mark.parametrize(("samples", "part"), [(((0, 2),), 1.0), (((10, 12), (14, 16)), 0.5), ((), 1.0)])
def test_the_rate_of_an_update_is_that_of_the_place_of_its_first_sample(
    samples: tuple[tuple[int, int], ...], part: float
) -> None:
    talk = Talk(schedule=SampleSchedule("linear", 0.0, samples=10, batch=2, epochs=2))
    gradient = Update(*("run", 1, 1, "gradient", (0,), (0,), 1, 1.0, samples, 0, ()), buffers=((1.0, 1.0),))
    assert talk.moved(gradient)[:2] == [0.5 * part] * 2
