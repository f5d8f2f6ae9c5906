"""Ranks succeed together, or raise together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.support.checkpoint.many_ranks import threads

from cotswold.errors import CheckpointError, DiskFullError, RunError
from cotswold.host import ALONE, Ranks, raise_on_all


def failing(errors: Mapping[int, BaseException], size: int = 3) -> list[str]:
    """Return the class and words of each rank's exception if some of them fail."""

    def work(ranks: Ranks) -> None:
        with raise_on_all(ranks, CheckpointError):
            if ranks.rank in errors:
                raise errors[ranks.rank]

    return [f"{type(each).__name__}: {each}" for each in threads(size, work)]


def test_nothing_is_raised_where_no_rank_fails() -> None:
    assert failing({}) == ["NoneType: None"] * 3


def test_every_rank_raises_what_one_raised_and_names_it() -> None:
    assert failing({1: DiskFullError("no room left")}) == ["DiskFullError: rank 1: no room left"] * 3


def test_an_error_of_another_kind_becomes_one_of_ours() -> None:
    assert failing({2: ValueError("odd")}) == ["CheckpointError: rank 2: ValueError: odd"] * 3
    assert failing({0: KeyError()}) == ["CheckpointError: rank 0: KeyError"] * 3


def test_ranks_that_fail_alike_are_named_in_one_breath() -> None:
    full = {rank: DiskFullError("no room left") for rank in range(6)}
    assert failing({0: RunError("odd"), 4: RunError("odd"), 2: RunError("even")}, 5)[3] == (
        "RunError: ranks 0 and 4: odd; rank 2: even"
    )
    assert failing(full, 7)[6] == "DiskFullError: ranks 0, 1, 2 and 3 more: no room left"


def test_what_fails_on_all_ranks_alike_is_said_once() -> None:
    assert (
        failing({rank: RunError("of another recipe") for rank in range(3)})
        == ["RunError: of another recipe"] * 3
    )


def test_an_interrupted_rank_tells_the_others_before_it_goes() -> None:
    found = failing({1: KeyboardInterrupt()}, 2)
    assert found == ["CheckpointError: rank 1: KeyboardInterrupt", "KeyboardInterrupt: "]


def test_the_cause_is_kept_where_it_was_raised() -> None:
    odd = ValueError("odd")

    def work(ranks: Ranks) -> None:
        with raise_on_all(ranks, CheckpointError):
            if ranks.rank == 1:
                raise odd

    found = [each for each in threads(2, work) if isinstance(each, BaseException)]
    assert [each.__cause__ for each in found] == [None, odd]


def test_a_process_alone_raises_what_was_raised() -> None:
    odd = ValueError("odd")
    with pytest.raises(ValueError, match="odd") as found, raise_on_all(ALONE, CheckpointError):
        raise odd
    assert found.value is odd
    assert (ALONE.rank, ALONE.size, ALONE.gather({"a": 1})) == (0, 1, [{"a": 1}])


def test_a_remedy_that_all_failed_ranks_share_is_said_once_and_kept_as_a_field() -> None:
    full = {rank: DiskFullError(f"no room on {rank}", remedy="free some space") for rank in (0, 1)}

    def work(ranks: Ranks) -> None:
        with raise_on_all(ranks, CheckpointError):
            if ranks.rank in full:
                raise full[ranks.rank]

    found = threads(3, work)
    assert [str(each) for each in found] == [
        "rank 0: no room on 0; rank 1: no room on 1; free some space"
    ] * 3
    assert all(isinstance(each, DiskFullError) and each.remedy == "free some space" for each in found)
