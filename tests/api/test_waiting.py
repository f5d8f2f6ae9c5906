"""Who waits for whom, in sentences, from what replicas and servers say."""

from __future__ import annotations

import pytest

from cotswold.api import doing, waiting
from cotswold.run import Event


def replica(
    number: int, what: str = "computing", *whom: str, seconds: float = 0.1, silent: float = 0.0
) -> Event:
    return {
        "name": f"replica-{number}",
        "machine": "other",
        "pid": 0,
        "doing": what,
        "waits_for": list(whom),
        "for_seconds": seconds,
        "silent_seconds": silent,
    }


def server(number: int, *whom: str, queued: int = 0, silent: float = 0.0) -> Event:
    return {
        "name": f"server-{number}",
        "machine": "other",
        "pid": 0,
        "waits_for": list(whom),
        "queued": queued,
        "silent_seconds": silent,
        "shards": 1,
        "refused": [["stale", 3]],
    }


def concluded(*rows: Event) -> list[str]:
    replicas = [row for row in rows if "doing" in row]
    servers = [row for row in rows if "doing" not in row]
    return waiting.conclusions({"each": replicas, "servers": servers}, is_here=False)


def test_where_all_compute_nobody_is_blamed() -> None:
    found = concluded(replica(1), replica(2, "pushing", "server-0", seconds=0.5), server(0))
    assert found == ["nobody has waited long for anybody"]


def test_all_waiting_ends_at_the_replica_for_which_a_server_keeps_updates_back() -> None:
    slow = replica(3, seconds=40.0)
    rows = [replica(each, "pushing", "server-0", seconds=30.0) for each in (1, 2)]
    (said,) = concluded(*rows, slow, server(0, "replica-3", queued=2))
    assert said == "replica-1 and replica-2 wait for replica-3 in the end, which computes"


def test_a_server_that_does_not_answer_is_named_with_all_who_wait_for_it() -> None:
    rows = [replica(each, "pushing", "server-1", seconds=9.0) for each in (1, 2, 3, 4, 5)]
    found = concluded(*rows, server(0), server(1, silent=8.0))
    assert found[0].startswith("server-1 has said nothing for 8.0 s")
    assert found[1] == "replica-1, replica-2, replica-3 and 2 more wait for server-1"


def test_who_has_no_samples_is_not_stuck() -> None:
    assert concluded(replica(1, "idle", "coordinator", seconds=50.0)) == [
        "nobody has waited long for anybody"
    ]


def test_a_ring_of_waiting_is_named_and_not_walked_for_ever() -> None:
    found = concluded(replica(1, "pushing", "server-0", seconds=9.0), server(0, "replica-1", queued=1))
    assert found == ["replica-1 waits for server-0 in the end, which has not answered yet"]


def test_every_process_has_a_line() -> None:
    now = {"each": [replica(1, "pulling", "server-0", seconds=70.0)], "servers": [server(0, queued=1)]}
    one, other = waiting.table(now, is_here=False)
    assert one.startswith(
        "replica-1 (process 0 on other) waits for server-0 to send parameters, for 1 min 10 s;"
    )
    assert other.endswith("0 B in its queue, 1 shard, 3 refused: stale")
    assert "applies 1 update" in other


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (replica(1, "joining", "coordinator"), "waits for the coordinator to admit it"),
        (replica(1, "idle", "coordinator"), "waits for the coordinator to hand out samples"),
        (replica(1, "starting", silent=9.0), "starts"),
        (replica(1, silent=9.0), "is silent; when it was heard last it computes"),
    ],
)
def test_what_a_replica_does_is_said_in_words(row: Event, said: str) -> None:
    assert doing.replica_does(row) == said


JUDGING: Event = {
    "name": "evaluator-1",
    "machine": "other",
    "pid": 7,
    "doing": "judging",
    "judges": 12000,
    "for_seconds": 1.5,
    "silent_seconds": 0.2,
}


def test_an_evaluator_has_a_line_and_one_that_is_silent_is_named() -> None:
    (said,) = waiting.table({"evaluators": [JUDGING]}, is_here=True)
    assert said == "evaluator-1 (process 7) judges the parameters of sample 12,000, for 1.5 s"
    silent = JUDGING | {"silent_seconds": 8.0, "pid": 0}
    (said,) = waiting.conclusions({"evaluators": [silent]}, is_here=False)
    assert said.startswith("evaluator-1 has said nothing for 8.0 s")
    assert doing.evaluator_does(silent).startswith("is silent; when it was heard last it judges")
    assert doing.evaluator_does({"doing": "idle"}) == "waits for parameters to judge"
