"""Versions of shards restored from disks."""

from __future__ import annotations

from dataclasses import replace

from cotswold.paramserver.runtime.server_metrics import ServerMetrics
from cotswold.replicas.restored_versions import RestoredShard, VersionCheck, restored_event
from cotswold.shards.core.versions import version_after_restarts
from cotswold.wire import Group, Shard
from cotswold.wire.lifecycle import ServerCounters

SHARDS = [Shard(number, f"run/000{number // 2}", 0, 1, "", 0) for number in range(4)]


def counts(
    server: str, *versions: tuple[int, int], restored: tuple[tuple[int, int], ...] = ()
) -> ServerCounters:
    return replace(ServerMetrics().counts(server, [], {}), versions=versions, restored=restored)


def test_a_shard_of_a_new_incarnation_is_reported_once_with_its_old_version() -> None:
    restoring, groups = VersionCheck(SHARDS), {"run/0000": Group("run/0000", 5, "server-0.1")}
    assert restoring.on_counters(counts("server-0", (0, 40), (1, 41)), {}) == []
    assert restoring.on_counters(counts("server-0", (0, 50), (1, 51)), {}) == []
    again = counts(
        "server-0.1",
        (0, version_after_restarts(45, 4)),
        (1, version_after_restarts(48, 4)),
        restored=((0, version_after_restarts(44, 4)), (1, version_after_restarts(47, 4))),
    )
    assert restoring.on_counters(again, groups) == [
        RestoredShard("run/0000", "server-0.1", 4, 5, 0, 50, 44),
        RestoredShard("run/0000", "server-0.1", 4, 5, 1, 51, 47),
    ]
    assert restoring.on_counters(again, groups) == []


def test_what_was_so_when_a_run_was_resumed_is_no_news() -> None:
    restored = ((2, version_after_restarts(9, 3)),)
    assert (
        VersionCheck(SHARDS).on_counters(
            counts("server-0", (2, version_after_restarts(12, 3)), restored=restored), {}
        )
        == []
    )


def test_a_table_has_a_sentence() -> None:
    rows = [
        RestoredShard("run/0000", "server-0.1", 4, 5, 0, 50, 44),
        RestoredShard("run/0001", "server-0.1", 4, 5, 2, 1200, 1210),
    ]
    event = restored_event(rows)
    assert event["name"] == "server-0.1" and event["sentence"] == (
        "2 buckets (0, 1): the 2 shards had at least 1,250 updates, and the disk has 1,254: at least 6 "
        "updates were lost, and replicas compute their samples again"
    )
    assert event["rows"] == [vars(each) for each in rows]


def test_a_disk_that_has_all_reported_updates_is_not_said_to_have_lost_none() -> None:
    event = restored_event([RestoredShard("run/0001", "server-0.1", 4, 5, 2, 1200, 1210)])
    assert event["sentence"] == (
        "1 bucket (1): the 1 shard had at least 1,200 updates, and the disk has 1,210: "
        "no update that a server had reported is lost"
    )
