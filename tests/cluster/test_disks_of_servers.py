"""Servers whose disks have what they knew a while ago: real processes, all of which are killed at once."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.opened_replicas import PATTERNS, Opener, check_account, checkpoint, finish
from tests.cluster.opened_replicas import opened as opened
from tests.cluster.test_kept_copies import EPOCHS, check_tallies, controller, tallied

from cotswold.cluster.replicas import Replicas

Events = list[tuple[str, Mapping[str, object]]]

pytestmark = pytest.mark.slow


def told(events: Events, kind: str) -> list[str]:
    return [
        str(more["what" if "sentence" not in more else "sentence"]) for each, more in events if each == kind
    ]


def kill_all(replicas: Replicas) -> None:
    for process in replicas.servers.values():
        os.kill(process, signal.SIGKILL)


def until(replicas: Replicas, is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline and not replicas.is_over, replicas.status()
        replicas.proceed(0.05)


def revived(events: Events) -> int:
    return sum(kind == "revived" for kind, _ in events)


def check_after_losses(replicas: Replicas) -> None:
    """Whatever counts is in every shard; what was lost and handed out again may be in some twice."""
    tallies = finish(replicas, 90.0).view(4, PATTERNS)
    check_account(replicas)
    total = replicas.ledger.total
    assert total.counted + total.torn + total.left_out == EPOCHS * PATTERNS, total
    least, most = tallies.sum(1).min().item(), tallies.sum(1).max().item()
    assert total.counted <= least and most <= total.handed_out, (total, least, most)


@pytest.mark.parametrize("copies", [1, 3])
def test_all_servers_are_killed_at_once_and_the_run_goes_on_from_their_disks(
    opened: Opener, tmp_path: Path, copies: int
) -> None:
    events: Events = []
    disks = tmp_path / "servers"
    with opened(events=events, **tallied(copies=copies, disks=str(disks), silent=20.0)) as replicas:
        for times in (1, 2):
            replicas.proceed(1.5)
            counted = replicas.ledger.total.counted
            kill_all(replicas)
            until(replicas, lambda times=times: revived(events) >= 4 * times)  # type: ignore[misc]  # mypy and defaults
            assert replicas.ledger.total.counted >= counted - 2000, "no more than a window is lost"
        check_after_losses(replicas)
        assert sorted(replicas.servers) == ["server-0.2", "server-1.2", "server-2.2"]
        assert any("goes on from its disk" in each for each in told(events, "copies"))
    assert not disks.exists(), "they are the run's"


def test_with_disks_a_server_that_dies_alone_loses_nothing(opened: Opener, tmp_path: Path) -> None:
    events: Events = []
    with opened(events=events, **tallied(disks=str(tmp_path / "servers"), silent=20.0)) as replicas:
        for number in range(3):
            replicas.proceed(0.7)
            os.kill(replicas.servers[sorted(replicas.servers)[number]], signal.SIGKILL)
        check_tallies(replicas)
    assert not revived(events)


def test_servers_and_the_controller_die_at_once(opened: Opener, tmp_path: Path) -> None:
    events: Events = []
    with opened(events=events, **tallied(disks=str(tmp_path / "servers"), silent=20.0)) as replicas:
        replicas.proceed(1.5)
        os.kill(controller(replicas), signal.SIGKILL)
        kill_all(replicas)
        until(replicas, lambda: revived(events) >= 4)
        check_after_losses(replicas)


def test_a_checkpoint_that_was_under_way_is_begun_anew(opened: Opener, tmp_path: Path) -> None:
    more: dict[str, Any] = {"disks": str(tmp_path / "servers"), "silent": 20.0}
    with opened(**tallied(**more)) as replicas:
        replicas.proceed(1.5)
        snapshot = checkpoint(replicas, lambda: kill_all(replicas))
        tallies = snapshot.vectors["x"].view(4, PATTERNS)
        assert tallies.sum(1).min() >= snapshot.ledger.total.counted
    with opened(snapshot=snapshot, **tallied()) as replicas:
        check_after_losses(replicas)


def test_a_disk_that_is_damaged_is_named_and_another_has_what_it_had(opened: Opener, tmp_path: Path) -> None:
    events: Events = []
    disks = tmp_path / "servers"
    with opened(events=events, **tallied(disks=str(disks), copies=3, silent=20.0)) as replicas:
        replicas.proceed(1.5)
        kill_all(replicas)
        (disks / "server-1" / "db" / "CURRENT").write_bytes(b"MANIFEST-000000\n")
        until(replicas, lambda: revived(events) >= 4)
        check_after_losses(replicas)
    assert any("server-1" in each and "damaged" in each for each in told(events, "copies"))
    shutil.rmtree(disks, ignore_errors=True)
