"""Reductions over endpoints, in threads of one process, one per rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from cotswold.batch.runtime import reduction as carried
from cotswold.batch.runtime.reduction import Reducer, Reduction, Vector, lane_name
from cotswold.errors import ClusterError, RankError
from cotswold.geometry import Host, Network, NetworkCard, ReductionPlan, best_all_reduce, best_plan
from cotswold.geometry.reduction_plans import ALGORITHMS, across_lanes, all_reduction, chain, reduction, star
from cotswold.host import Token
from cotswold.transport import Endpoint, Message

RANKS = 6
SECONDS = 20.0


class Ranks:
    """Endpoints connected to each other, over one or several networks."""

    def __init__(self, count: int, lanes: int, open_: ExitStack) -> None:
        token = Token.new()
        self.names = [f"rank-{rank}" for rank in range(count)]
        self.endpoints = [
            [open_.enter_context(Endpoint(token, lane_name(name, lane))) for lane in range(lanes)]
            for name in self.names
        ]
        for lane in range(lanes):
            for rank, endpoints in enumerate(self.endpoints):
                for other in set(range(count)) - {rank}:
                    endpoints[lane].connect(
                        lane_name(self.names[other], lane), self.endpoints[other][lane].address
                    )
        self.reducers = [Reducer(endpoints) for endpoints in self.endpoints]
        self.number = 0

    def run(
        self, plan: ReductionPlan, vectors: Sequence[Vector], leaves: int = -1, seconds: float = SECONDS
    ) -> list[Vector | Exception]:
        """Return the final vector of each rank; the rank ``leaves`` closes its endpoint instead."""
        self.number += 1

        def one(rank: int) -> Vector | Exception:
            if rank == leaves:
                for endpoint in self.endpoints[rank]:
                    endpoint.close()
                return vectors[rank]
            try:
                return self.reducers[rank].run(self.number, plan, self.names, rank, vectors[rank], seconds)
            except RankError as error:
                return error

        with ThreadPoolExecutor(len(self.names)) as pool:
            return list(pool.map(one, range(len(self.names))))


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with ExitStack() as open_:
        yield Ranks(RANKS, 1, open_)


def vectors(count: int, kind: type[np.floating] = np.float32, ranks: int = RANKS) -> list[Vector]:
    return [np.random.default_rng(rank).standard_normal(count).astype(kind) for rank in range(ranks)]


def exact(given: Sequence[Vector]) -> Vector:
    total: Vector = np.sum([each.astype(np.float64) for each in given], axis=0)
    return total


def assert_close(found: Vector | Exception, wanted: Vector, most: float = 1e-5) -> None:
    assert isinstance(found, np.ndarray), found
    assert float(np.abs(found - wanted).max(initial=0)) <= most


@pytest.mark.parametrize("count", [0, 1, 5, 100_003])
def test_every_way_gives_the_sum_to_its_root_and_to_all_and_leaves_the_own_vectors_alone(
    ranks: Ranks, count: int
) -> None:
    given = vectors(count)
    kept = [each.copy() for each in given]
    for way in ALGORITHMS.values():
        plan = reduction(count, way, [2, 0, 5, 1, 4, 3])
        found = ranks.run(plan, given)[2]
        assert isinstance(found, np.ndarray)
        assert_close(found, exact(given))
        for everywhere in ranks.run(all_reduction(plan), given):
            np.testing.assert_array_equal(everywhere, found)
    for each, before in zip(given, kept, strict=True):
        np.testing.assert_array_equal(each, before)


def test_the_same_plan_gives_the_same_bits_however_messages_come(ranks: Ranks) -> None:
    given = vectors(50_000)
    plan = reduction(50_000, star, range(RANKS))
    wanted = given[0]
    for each in given[1:]:
        wanted = wanted + each
    for _ in range(5):
        np.testing.assert_array_equal(ranks.run(plan, given)[0], wanted)


def test_float64_and_a_broadcast_of_the_roots_vector(ranks: Ranks) -> None:
    given = vectors(1000, np.float64)
    plan = reduction(1000, ALGORITHMS["binomial tree"], range(RANKS))
    assert_close(ranks.run(plan, given)[0], exact(given), 1e-14)
    for each in ranks.run(plan.mirrored(), given):
        np.testing.assert_array_equal(each, given[0])


def test_values_that_are_no_numbers_travel_like_others(ranks: Ranks) -> None:
    given = vectors(10)
    given[3][4], given[4][5] = np.nan, np.inf
    found = ranks.run(reduction(10, chain, range(RANKS)), given)[0]
    assert isinstance(found, np.ndarray)
    assert np.isnan(found[4]) and np.isinf(found[5]) and np.isfinite(found[:4]).all()


def test_several_networks_carry_their_parts_at_once() -> None:
    with ExitStack() as open_:
        two = Ranks(4, 2, open_)
        given = vectors(30_000, ranks=4)
        found = two.run(reduction(30_000, across_lanes(chain, [1, 2]), range(4)), given)[0]
        assert_close(found, exact(given))
        sent = [sum(two.endpoints[rank][lane].traffic.sent_messages for rank in range(4)) for lane in (0, 1)]
        assert min(sent) > 0


def test_chosen_plans_are_carried_out(ranks: Ranks) -> None:
    card = (NetworkCard(0, 10**8),)
    network = Network((Host((0, 3), card), Host((1, 4), card), Host((2, 5), card)))
    given = vectors(40_000)
    _, plan = best_plan(network, 40_000, 4, 0)
    assert_close(ranks.run(plan, given)[0], exact(given))
    for each in ranks.run(best_all_reduce(network, 40_000, 4)[1], given):
        assert_close(each, exact(given))


def test_what_a_peer_does_not_take_is_held_back(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "AHEAD_BYTES", 1 << 16)
    given = vectors(1_000_000)
    for way in ("chain", "recursive halving"):
        plan = all_reduction(reduction(1_000_000, ALGORITHMS[way], range(RANKS)))
        for each in ranks.run(plan, given):
            assert_close(each, exact(given))


def test_a_death_ends_the_reduction_and_the_others_reduce_again_without_it(ranks: Ranks) -> None:
    given = vectors(200_000)
    found = ranks.run(reduction(200_000, chain, range(RANKS)), given, leaves=3, seconds=1)
    assert isinstance(found[2], RankError) and "rank-3" in str(found[2])
    left = [rank for rank in range(RANKS) if rank != 3]
    plan = reduction(200_000, chain, range(len(left)))
    names = [ranks.names[rank] for rank in left]

    def again(rank: int) -> Vector:
        return ranks.reducers[left[rank]].run(9, plan, names, rank, given[left[rank]], SECONDS)

    with ThreadPoolExecutor(len(left)) as pool:
        total = next(iter(pool.map(again, range(len(left)))))
    assert_close(total, exact([given[rank] for rank in left]))


def test_a_rank_that_never_begins_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as open_:
        two = Ranks(2, 1, open_)
        plan = reduction(100, chain, range(2))
        with pytest.raises(RankError, match="rank-1"):
            two.reducers[0].run(1, plan, two.names, 0, vectors(100)[0], 0.2)


def test_messages_of_a_reduction_that_begins_later_here_are_kept_and_of_an_earlier_one_dropped() -> None:
    with ExitStack() as open_:
        two = Ranks(2, 1, open_)
        given = vectors(100)
        plan = reduction(100, chain, range(2))
        for number in (1, 2):
            two.reducers[1].begin(number, plan, two.names, 1, given[1])
        came = [two.endpoints[0][0], two.endpoints[1][0]]
        messages: list[Message] = []
        while len(messages) < 2:
            came[1].receive(0.01)
            event = came[0].receive(0.01)
            messages += [event] if isinstance(event, Message) else []
        first, second = messages
        assert two.reducers[0].receive(second)
        assert two.reducers[0].begin(2, plan, two.names, 0, given[0]).is_done
        assert two.reducers[0].receive(first)
        current = two.reducers[0].current
        assert current is not None
        assert_close(current.result, given[0] + given[1])
        with pytest.raises(ClusterError, match="must increase"):
            two.reducers[0].begin(2, plan, two.names, 0, given[0])
        assert not two.reducers[0].receive(Message("rank-1", {"else": 1}))


@pytest.mark.parametrize(
    ("header", "count"),
    [
        ({"piece": 1, "stage": 0}, 400),
        ({"piece": -1, "stage": 0}, 400),
        ({"piece": 0, "stage": 1}, 400),
        ({"piece": 0, "stage": 0}, 396),
        ({"piece": "0", "stage": 0}, 400),
        ({}, 400),
    ],
)
def test_a_message_that_is_not_in_the_plan_is_refused(header: dict[str, object], count: int) -> None:
    with Endpoint(Token.new(), "rank-0") as endpoint:
        plan = reduction(100, chain, range(2))
        one = Reduction(1, plan, ["rank-0", "rank-1"], 0, np.zeros(100, np.float32), [endpoint])
        one.start()
        with pytest.raises(ClusterError, match="not in the plan"):
            one.receive(Message("rank-1", {"reduction": 1, **header}, [memoryview(bytes(count))]))
        with pytest.raises(ClusterError, match="not in the plan"):
            one.receive(Message("rank-2", {"reduction": 1, "piece": 0, "stage": 0}, [memoryview(bytes(400))]))
        one.receive(Message("rank-1", {"reduction": 1, "piece": 0, "stage": 0}, [memoryview(bytes(400))]))
        assert one.is_done


def test_vectors_and_names_that_do_not_suit_the_plan_are_refused() -> None:
    with Endpoint(Token.new(), "rank-0") as endpoint:
        plan = reduction(100, chain, range(2))
        for vector in (
            np.zeros(99, np.float32),
            np.zeros((10, 10), np.float32),
            np.zeros(200, np.float32)[::2],
        ):
            with pytest.raises(ClusterError, match="the plan needs a flat vector of 100 elements"):
                Reduction(1, plan, ["rank-0", "rank-1"], 0, vector, [endpoint])
        with pytest.raises(ClusterError, match="the plan needs 2 names"):
            Reduction(1, plan, ["rank-0"], 0, np.zeros(100, np.float32), [endpoint])
        two = reduction(100, across_lanes(chain, [1, 1]), range(2))
        with pytest.raises(ClusterError, match="endpoints"):
            Reduction(1, two, ["rank-0", "rank-1"], 0, np.zeros(100, np.float32), [endpoint])
