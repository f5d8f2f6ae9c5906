"""Samples of coming steps are assigned in advance if data servers make them, and only then."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from threading import Lock
from types import SimpleNamespace
from typing import cast

import pytest

from cotswold.paramserver.core.replica_session import StepTask
from cotswold.replicas.replica_process import ReplicaProcess
from cotswold.shards.runtime.work import PortionSum


class Learning:
    """A work of ten samples."""

    samples = 10
    is_starved = False

    def __init__(self, is_fed: bool) -> None:
        self.is_fed = is_fed
        self.expected: list[Sequence[int]] = []

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Record the requests."""
        self.expected.extend(batches)


@pytest.mark.parametrize("is_fed", [True, False])
def test_a_replica_deals_what_comes_next_only_where_data_servers_make_it(is_fed: bool) -> None:
    work, asked = Learning(is_fed), list[int]()

    def upcoming(count: int) -> list[tuple[int, int]]:
        asked.append(count)
        return [(2, 4), (4, 6)]

    role = SimpleNamespace(
        _work=work,
        _seed=0,
        _lock=Lock(),
        _machine=SimpleNamespace(upcoming=upcoming),
        _schedule=SimpleNamespace(rate=lambda rate, at: rate),
        _accumulation=SimpleNamespace(
            begin=lambda task: None,
            step=lambda samples, rate, opens: PortionSum(0.0, len(samples), {}),
        ),
    )
    task = StepTask([], (0, 2), 0.1, True, False, (0, 0), 0)
    found = ReplicaProcess._step(cast(ReplicaProcess, role), task)
    assert found.samples == 2
    assert len(work.expected) == (3 if is_fed else 0) and len(asked) == is_fed
    assert all(isinstance(each, array) for each in work.expected)
