"""Sets of samples: random, fractional, recorded and repeated; the division of shards and plans."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotswold.batch.runtime.reduction_planner import ReductionPlanner, reduction_of
from cotswold.batch.runtime.sample_sets import ALL, SampleSets
from cotswold.errors import UserError
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.shards.core.permutation import PortionPermutation
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.work import TensorSlot

DEALING = PortionPermutation(0, 1000, 10)


def test_all_patterns_are_a_set_without_being_drawn() -> None:
    sets = SampleSets(DEALING)
    assert sets.portions(ALL) == tuple(range(100))
    assert sets.add_drawn(range(100)) == ALL


def test_a_part_is_the_same_whenever_it_is_asked_for() -> None:
    sets = SampleSets(DEALING)
    name = sets.add_drawn(range(0, 100, 2))
    part = sets.subset(name, 0.1)
    assert len(sets.portions(part)) == 5
    assert sets.portions(sets.subset(name, 0.1)) == sets.portions(part)
    assert set(sets.portions(part)) <= set(sets.portions(name))
    assert sets.subset(name, 1.0) == name
    assert len(sets.portions(sets.subset(name, 0.03))) == 2, "1.5 of 50 are rounded"
    assert len(sets.portions(sets.subset(name, 1e-9))) == 1
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(UserError, match="above 0"):
            sets.subset(name, wrong)


def test_a_state_goes_through_json_and_on() -> None:
    sets = SampleSets(DEALING)
    name = sets.add_drawn(range(30))
    sets.subset(name, 0.5)
    sets.replay(["0-4,9"])
    again = SampleSets(DEALING)
    again.load(json.loads(json.dumps(sets.state())))
    assert again == sets
    assert again.next_replayed() == (0, 1, 2, 3, 4, 9)
    assert again.next_replayed() is None
    with pytest.raises(UserError, match="resume with the same data"):
        SampleSets(PortionPermutation(1, 1000, 10)).load(sets.state())


@pytest.mark.parametrize("text", ["", "3-1", "x", "5,5", "0-100"])
def test_recorded_sets_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="recorded set"):
        SampleSets(DEALING).replay([text])


SLOTS = st.lists(
    st.builds(TensorSlot, st.text(max_size=3), st.integers(0, 300), st.integers(1, 300)),
    min_size=1,
    max_size=6,
)


@given(SLOTS, st.sampled_from([256, 1 << 14, 1 << 20]), st.integers(1, 5))
def test_shards_are_whole_rows_of_a_tensor_and_their_cut_knows_no_servers(
    layout: list[TensorSlot], each: int, servers: int
) -> None:
    names = [f"s{number}" for number in range(servers)]
    shards = split_into_shards(layout, 4, each, names)
    assert [one.start for one in shards] == [0, *(one.stop for one in shards)][: len(shards)]
    assert [one.number for one in shards] == list(range(len(shards)))
    left = list(shards)
    for slot in layout:
        block = 0
        numbers = slot.rows * slot.columns
        while numbers:
            one = left.pop(0)
            assert (one.tensor, one.block) == (slot.name, block)
            assert (one.stop - one.start) % slot.columns == 0
            assert one.stop - one.start <= max(slot.columns, each // 4 + slot.columns)
            numbers, block = numbers - (one.stop - one.start), block + 1
    assert not left
    alone = split_into_shards(layout, 4, each, ["alone"])
    assert [(one.start, one.stop) for one in shards] == [(one.start, one.stop) for one in alone]
    order = [names.index(one.server) for one in shards]
    assert order == sorted(order)


def test_servers_have_equal_parts_of_large_tensors() -> None:
    shards = split_into_shards(
        [TensorSlot("w", 4096, 1024), TensorSlot("b", 4096, 1)], 4, 1 << 20, ["s0", "s1", "s2"]
    )
    sizes = [sum(one.stop - one.start for one in shards if one.server == f"s{n}") for n in range(3)]
    assert max(sizes) - min(sizes) <= 2 << 18


@pytest.mark.parametrize("hosts", ["aaaa", "aabb", "abab", "abcd", "a"])
def test_a_plan_adds_all_vectors_at_the_first_member(hosts: str) -> None:
    members = [f"w{number}" for number in range(len(hosts))]
    planner = ReductionPlanner(1000, 4, lambda name: hosts[members.index(name)], 10**8)
    plan = planner(members)
    assert plan.members == tuple(members)
    vectors = np.random.default_rng(0).integers(0, 100, (len(hosts), 1000))
    total = vectors.sum(axis=0)
    for step in sorted(reduction_of(plan, 1000).steps):
        part = slice(step.begin, step.end)
        came = vectors[step.sender, part]
        vectors[step.receiver, part] = vectors[step.receiver, part] + came if step.is_sum else came
    assert (vectors[0] == total).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("workers", 0), ("servers", 0), ("portion_size", 0), ("backup_tasks", -1), ("threads", 0)),
        *(("sample_fraction", 0.0), ("sample_fraction", 1.1), ("deadline_factor", 0.0), ("shard_bytes", 8)),
        *(("silent_seconds", 0.0), ("alone_seconds", float("nan"))),
    ],
)
def test_settings_that_cannot_be_are_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=name):
        ClusterSettings(**{name: value})  # type: ignore[arg-type]  # the wrong ones
