"""Cores of pinned processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cotswold.host.core_pinning import assign_cores, claimed_cores, pin_to, pinned_to

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no masks on this system")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make two nodes of four cores, in which cores 4 apart are threads of one; core 0 is not granted."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(1, 8)))
    for node, cores in enumerate(("0-1,4-5", "2-3,6-7")):
        path = tmp_path / f"sys/devices/system/node/node{node}/cpulist"
        path.parent.mkdir(parents=True)
        path.write_text(cores + "\n")
    for core in range(8):
        path = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(f"{core % 4},{core % 4 + 4}\n")
    return tmp_path


def test_one_node_is_filled_first_and_whole_cores_before_second_threads(machine: Path) -> None:
    assert assign_cores(2, machine) == [2, 3]  # the node of which all cores are granted
    assert assign_cores(4, machine) == [2, 3, 6, 7]
    assert assign_cores(7, machine) == [2, 3, 6, 7, 1, 4, 5]


def test_more_processes_than_cores_are_left_to_the_system(machine: Path) -> None:
    assert assign_cores(8, machine) == [None] * 8


def test_what_others_have_taken_is_left_to_them(machine: Path) -> None:
    assert assign_cores(2, machine, {2, 3, 6}) == [1, 4]  # the node of which more cores are free
    assert assign_cores(3, machine, {2, 3, 6, 7, 1}) == [None] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="cores are claimed on Linux alone")
def test_a_claimed_core_is_claimed_once_and_free_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {9001, 9002, 9003})
    with claimed_cores(2) as first:
        assert first == [9001, 9002]
        with claimed_cores(1) as second:
            assert second == [9003]
            with claimed_cores(1) as third:
                assert third == [None]
        with claimed_cores(2) as together:
            assert together == [None, None]
    with claimed_cores(3) as all_of_them:
        assert all_of_them == [9001, 9002, 9003]


def test_a_system_that_names_no_nodes_has_one(machine: Path) -> None:
    assert assign_cores(3, machine / "nowhere") == [1, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="masks are set on Linux alone")
def test_a_thread_stays_where_it_is_told_and_none_changes_nothing() -> None:
    before = os.sched_getaffinity(0)
    with pinned_to([max(before)]):
        assert os.sched_getaffinity(0) == {max(before)}
    assert os.sched_getaffinity(0) == before
    try:
        pin_to([None])
        assert os.sched_getaffinity(0) == before
        pin_to([min(before)])
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)
