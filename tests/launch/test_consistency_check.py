"""Differences between ranks, as a sentence."""

from __future__ import annotations

from cotswold.launch.consistency_check import first_difference, format_ranks


def test_ranks_that_agree_have_nothing_to_say() -> None:
    assert first_difference([{"recipe": "a"}, {"recipe": "a"}], ["x", "y"], range(2)) is None


def test_the_fact_the_ranks_the_hosts_and_both_values_are_named() -> None:
    facts = [{"store": "s", "recipe": "a"}, {"store": "s", "recipe": "b"}, {"store": "s", "recipe": "b"}]
    sentence = "the ranks do not agree on recipe: rank 0 on x has a, ranks 1, 2 on y, z have b; start all "
    assert first_difference(facts, ["x", "y", "z"], range(3)) == sentence + "ranks with the same value"


def test_a_fact_that_one_rank_lacks_is_a_difference() -> None:
    sentence = first_difference([{}, {"recipe": "b"}], ["x", "y"], range(2))
    assert sentence is not None and "rank 0 on x has nothing, rank 1 on y has b" in sentence


def test_long_values_are_shortened() -> None:
    sentence = first_difference([{"recipe": "a" * 500}, {"recipe": "b" * 500}], ["x", "y"], range(2))
    assert sentence is not None and len(sentence) < 300


def test_of_many_ranks_some_are_named() -> None:
    assert format_ranks(range(20)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"
