"""The wait graph in sentences, from the reports of replicas and servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cotswold.host.process_info import is_stopped
from cotswold.run import Event
from cotswold.testing.signals import wait_until
from cotswold.ui import activity
from cotswold.ui import wait_graph as waiting


def replica(
    number: int,
    what: str = "computing",
    *whom: str,
    seconds: float = 0.1,
    silent: float = 0.0,
    in_flight: int = 0,
    pid: int = 0,
) -> Event:
    return {
        "name": f"replica-{number}",
        "machine": "other",
        "pid": pid,
        "samples_in_flight": in_flight,
        "activity": what,
        "waits_for": list(whom),
        "activity_seconds": seconds,
        "silent_seconds": silent,
    }


def server(number: int, *whom: str, queued: int = 0, silent: float = 0.0) -> Event:
    return {
        "name": f"server-{number}",
        "machine": "other",
        "pid": 0,
        "waits_for": list(whom),
        "queued_updates": queued,
        "silent_seconds": silent,
        "shards": 1,
        "refused_updates": [["stale", 3]],
    }


def concluded(*rows: Event) -> list[str]:
    replicas = [row for row in rows if "activity" in row]
    servers = [row for row in rows if "activity" not in row]
    return waiting.diagnose({"replicas": replicas, "servers": servers}, is_here=False)


def test_no_process_is_named_if_all_compute() -> None:
    found = concluded(replica(1), replica(2, "pushing", "server-0", seconds=0.5), server(0))
    assert found == ["no process has waited for long"]


def test_all_waiting_ends_at_the_replica_for_which_a_server_keeps_updates_back() -> None:
    slow = replica(3, seconds=40.0)
    rows = [replica(each, "pushing", "server-0", seconds=30.0) for each in (1, 2)]
    (said,) = concluded(*rows, slow, server(0, "replica-3", queued=2))
    assert said == "replica-1 and replica-2 wait for replica-3 in the end, which computes"


def test_a_server_that_does_not_answer_is_named_with_all_who_wait_for_it() -> None:
    rows = [replica(each, "pushing", "server-1", seconds=9.0) for each in (1, 2, 3, 4, 5)]
    found = concluded(*rows, server(0), server(1, silent=8.0))
    assert found[0].startswith("server-1 sent no message for 8.0 s")
    assert found[1] == "replica-1, replica-2, replica-3 and 2 more wait for server-1"


def test_a_server_with_a_disk_says_what_could_be_lost() -> None:
    saving = {**server(1), "dirty_bytes": 2_500_000, "dirty_seconds": 0.71}
    clean = {**server(2), "dirty_bytes": 0, "dirty_seconds": 0.0}
    lines = waiting.table({"servers": [server(0), saving, clean]}, is_here=False)
    assert "on disk" not in lines[0]
    assert lines[1].endswith(", 2.5 MB not on disk, since 0.7 s") and lines[2].endswith(", all on disk")


def test_who_has_no_samples_is_not_stuck() -> None:
    assert concluded(replica(1, "idle", "coordinator", seconds=50.0)) == ["no process has waited for long"]


def test_a_stopped_replica_is_not_said_to_wait_for_a_server() -> None:
    stopped = replica(2, "pushing", "server-0", seconds=9.0, silent=8.0, in_flight=32)
    waiting_one = replica(1, "pushing", "server-0", seconds=8.0)
    alone = concluded(stopped, server(0))
    assert len(alone) == 1 and alone[0].startswith("replica-2 sent no message for 8.0 s")
    found = concluded(waiting_one, stopped, server(0, "replica-2", queued=1))
    assert found[1:] == ["replica-1 and server-0 wait for replica-2"]


@pytest.mark.parametrize("silent", [0.0, 6.0])
def test_at_the_end_of_an_epoch_the_replicas_with_samples_are_waited_for(silent: float) -> None:
    idle = [replica(each, "idle", "coordinator", seconds=9.0, in_flight=0) for each in (1, 3)]
    found = concluded(*idle, replica(2, seconds=9.0, silent=silent, in_flight=32), server(0))
    said = "replica-1 and replica-3 wait for replica-2"
    assert found[-1] == (said if silent else f"{said} in the end, which computes")


def test_where_all_samples_are_pushed_the_silent_server_is_waited_for() -> None:
    idle = replica(1, "idle", "coordinator", seconds=9.0, in_flight=32)
    found = concluded(idle, server(0, silent=8.0), server(1))
    assert found[0].startswith("server-0 sent no message for") and found[1:] == [
        "replica-1 waits for server-0"
    ]


def test_a_stopped_process_that_a_replica_has_started_is_named() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
        now = {"replicas": [replica(1, seconds=9.0, pid=os.getpid())]}
        found = waiting.diagnose(now, is_here=True)
        process.kill()
    how = f"kill -CONT {process.pid} continues it"
    assert found == [f"replica-1 has a child process {process.pid}, which is stopped; {how}"]


def test_a_ring_of_waiting_is_named_and_not_walked_for_ever() -> None:
    found = concluded(replica(1, "pushing", "server-0", seconds=9.0), server(0, "replica-1", queued=1))
    assert found == ["replica-1 waits for server-0 in the end, which has not answered yet"]


def test_every_process_has_a_line() -> None:
    row = replica(1, "pulling", "server-0", seconds=70.0, pid=7)
    now = {"replicas": [row], "servers": [server(0, queued=1)]}
    one, other = waiting.table(now, is_here=False)
    assert one.startswith(
        "replica-1 (process 7 on other) waits for server-0 to send parameters, for 1 min 10 s;"
    )
    assert other.endswith("0 B in its queue, 1 shard, 3 refused: too stale")
    assert "applies 1 update" in other


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (replica(1, "joining", "coordinator"), "waits for the coordinator to admit it"),
        (replica(1, "idle", "coordinator"), "waits for the coordinator to hand out samples"),
        (replica(1, "starting", silent=9.0), "starts"),
        (
            replica(1, "pushing", "server-0", silent=9.0),
            "is silent; at its last message it waited for server-0 to apply its push",
        ),
        (replica(1, silent=9.0), "is silent; at its last message it computed"),
    ],
)
def test_what_a_replica_does_is_said_in_words(row: Event, said: str) -> None:
    assert activity.replica_does(row) == said


def test_of_one_that_is_silent_it_is_said_how_long_ago_it_was_heard() -> None:
    (said,) = waiting.table({"replicas": [replica(1, seconds=70.0, silent=9.0)]}, is_here=False)
    assert "is silent; at its last message it computed, 9.0 s ago;" in said


JUDGING: Event = {
    "name": "evaluator-1",
    "machine": "other",
    "pid": 7,
    "activity": "evaluating",
    "evaluated_samples": 12000,
    "activity_seconds": 1.5,
    "silent_seconds": 0.2,
}


def test_an_evaluator_has_a_line_and_one_that_is_silent_is_named() -> None:
    (said,) = waiting.table({"evaluators": [JUDGING]}, is_here=True)
    assert said == "evaluator-1 (process 7) evaluates the parameters of sample 12,000, for 1.5 s"
    silent = JUDGING | {"silent_seconds": 8.0, "pid": 0}
    (said,) = waiting.diagnose({"evaluators": [silent]}, is_here=False)
    assert said.startswith("evaluator-1 sent no message for 8.0 s")
    assert activity.describe_evaluator(silent).startswith("is silent; at its last message it evaluated")
    assert activity.describe_evaluator({"activity": "idle"}) == "waits for parameters to evaluate"


def test_where_buckets_have_too_few_copies_a_server_says_so() -> None:
    assert activity.server_does({**server(0), "under_replicated": [3, 1, 2]}) == (
        "3 buckets wait: one has 1 copy of at least 2 (replication_factor_min)"
    )
    assert activity.server_does({**server(0), "under_replicated": [0, 0, 2]}) == "waits for updates"
