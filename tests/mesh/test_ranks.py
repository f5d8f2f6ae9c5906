"""Ranks of tests follow requests, and fail correctly."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks


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
