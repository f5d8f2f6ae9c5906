"""Sums along the tree: neither arrival order nor the adder changes a bit."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cotswold.shards.core.sum_tree import SumTree, leaves_of, parent
from cotswold.wire import Node


def added(nodes: dict[Node, str]) -> str | None:
    """Return sums as words, so that every bracket shows."""
    tree = SumTree[str](lambda left, right: f"({left}+{right})")
    for node, words in nodes.items():
        tree.insert(node, words)
    return tree.total()


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(0, 10**6))
def test_the_sum_depends_on_the_set_of_portions_alone(portions: set[int], seed: int) -> None:
    random = Random(seed)
    leaves = {Node(0, portion): str(portion) for portion in sorted(portions)}
    shuffled = list(leaves.items())
    random.shuffle(shuffled)
    runs = SumTree[str](lambda left, right: f"({left}+{right})")  # somebody else added some of them before
    half = shuffled[: len(shuffled) // 2]
    for node, words in half:
        runs.insert(node, words)
    mixed = [*runs.nodes.items(), *shuffled[len(half) :]]
    random.shuffle(mixed)
    assert added(dict(mixed)) == added(leaves)


def test_missing_portions_are_left_out_and_move_no_other() -> None:
    assert added({Node(0, portion): str(portion) for portion in (0, 1, 2, 5)}) == "(((0+1)+2)+5)"


def test_nothing_adds_up_to_nothing() -> None:
    assert added({}) is None


@given(st.integers(0, 6), st.integers(0, 50))
def test_a_parent_covers_its_halves(level: int, index: int) -> None:
    halves = [Node(level, 2 * index), Node(level, 2 * index + 1)]
    assert [*leaves_of(halves[0]), *leaves_of(halves[1])] == list(leaves_of(parent(halves[0])))
