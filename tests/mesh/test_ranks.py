"""Ranks of tests follow requests, and fail correctly."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh import ranks
from tests.support.mesh.ranks import CONNECT_ATTEMPTS, UnconnectedError, on_ranks


def _sum_of_ranks() -> tuple[int, float]:
    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    return dist.get_world_size(), total.item()


def _fail_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("here it is")
    dist.barrier()


def _end_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(3)
    dist.barrier()


def test_ranks_form_a_job_of_the_size_that_was_asked_for() -> None:
    assert on_ranks(3, _sum_of_ranks) == [(3, 3.0)] * 3
    assert on_ranks(2, _sum_of_ranks) == [(2, 1.0)] * 2


def test_the_error_of_a_rank_names_it() -> None:
    with pytest.raises(AssertionError, match=r"rank 1 of 2:\n(?s:.*)here it is"):
        on_ranks(2, _fail_on, 1)


@pytest.mark.soak
def test_a_rank_that_dies_is_no_hang() -> None:
    with pytest.raises(AssertionError, match="exit code 3"):
        on_ranks(2, _end_on, 0)
    assert on_ranks(2, _sum_of_ranks) == [(2, 1.0)] * 2


@pytest.mark.parametrize("lost", [1, CONNECT_ATTEMPTS])
def test_ranks_that_gloo_cannot_connect_are_started_anew_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    real, calls = ranks._POOL.call, list[int]()

    def call(count: int, job: bytes, timeout_s: float) -> list[tuple[bool, Any]]:
        calls.append(count)
        if len(calls) <= lost:
            return [
                (False, "it waited for the others"),
                (False, f"{UnconnectedError.__name__}: closed by peer"),
            ]
        return real(count, job, timeout_s)

    monkeypatch.setattr(ranks._POOL, "call", call)
    if lost < CONNECT_ATTEMPTS:
        assert on_ranks(2, _sum_of_ranks) == [(2, 1.0)] * 2
    else:
        with pytest.raises(AssertionError, match="closed by peer"):
            on_ranks(2, _sum_of_ranks)
    assert calls == [2] * min(lost + 1, CONNECT_ATTEMPTS)


def test_work_that_fails_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = ranks._POOL.call, list[int]()

    def call(count: int, job: bytes, timeout_s: float) -> list[tuple[bool, Any]]:
        calls.append(count)
        return real(count, job, timeout_s)

    monkeypatch.setattr(ranks._POOL, "call", call)
    with pytest.raises(AssertionError, match="here it is"):
        on_ranks(2, _fail_on, 1)
    assert calls == [2]
